"""Interpolation of planes, to the nearest element and bilinear.

Nearest: a power of two repeats elements; other factors look positions up in a table.

Bilinear, rows first: where a plane grows, each of its rows is interpolated once, into memory, and
the rows of the result are mixed from those with contiguous loads. With channels innermost, or where
the plane shrinks, a result is computed from its four neighbours. So it is on a GPU, in one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Index, Lazy, TensorValue, contiguous_strides
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.pooling import has_elements
from minidynamo.inductor.lowering.promotion import compute_type
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.lowering.scalar import Scalar, maximum, minimum, where
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import Expr, IntLike, as_expr, is_nonneg
from minidynamo.inductor.targets import uses_triton

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
Element = Callable[[BodyBuilder, Expr], Scalar]


def _step(
    b: BodyBuilder, given: IntLike, wanted: IntLike, scale: float | None, dtype: torch.dtype
) -> float | Scalar:
    """How far the elements of neighbouring results are apart."""
    if scale:
        return 1 / scale
    if isinstance(given, int) and isinstance(wanted, int):
        return given / wanted
    elements, results = (Scalar(b, b.constant(as_expr(n), dtype)) for n in (given, wanted))
    return elements / results


@dataclass(frozen=True)
class _Axis:
    """One dimension: which two elements a result lies between, and how near to the second."""

    given: IntLike
    wanted: IntLike
    scale: float | None
    aligned: bool
    compute: torch.dtype

    def _step(self, b: BodyBuilder) -> float | Scalar:
        if not self.aligned:
            return _step(b, self.given, self.wanted, self.scale, self.compute)
        if self.wanted == 1:
            return 0.0
        step = _step(b, self.given - 1, self.wanted - 1, None, self.compute)
        if isinstance(step, Scalar) and not is_nonneg(as_expr(self.wanted) - 2):
            is_one = Scalar(b, b.index_expr(self.wanted)).eq(1)
            return where(is_one, step.const(0.0), step)
        return step

    def _position(self, b: BodyBuilder, i: Expr) -> Scalar:
        place = Scalar(b, b.cast(b.index_expr(i), self.compute))
        if self.aligned:
            return place * self._step(b)
        return maximum((place + 0.5) * self._step(b) - 0.5, 0.0)

    def first(self, b: BodyBuilder, i: Expr) -> Value:
        """The element before (int64)."""
        place = self._position(b, i).to(torch.int64)
        return minimum(place, as_expr(self.given) - 1).value

    def weight(self, b: BodyBuilder, i: Expr) -> Value:
        """The share of the element after."""
        before = Scalar(b, b.cast(self.first(b, i), self.compute))
        return minimum(maximum(self._position(b, i) - before, 0.0), 1.0).value

    def table(
        self, g: GraphLowering, fn: Callable[[BodyBuilder, Expr], Value], dtype: torch.dtype
    ) -> TensorValue:
        """`fn` of all results' positions, in memory."""
        size, device = (self.wanted,), g.meta.device
        data = Lazy(lambda b, index: fn(b, index[0]), (1,), 8)
        value = TensorValue(data, dtype, size, device, (1,))
        g.realize(value)
        return value

    def mix(self, g: GraphLowering) -> Callable[[BodyBuilder, Expr, Element], Scalar]:
        """A function of a result's position and of what gives the elements: the mixture of two. On
        a GPU positions and weights are cheaper to compute again than two more kernels.
        """
        first: Callable[[BodyBuilder, Expr], Value] = self.first
        weight: Callable[[BodyBuilder, Expr], Value] = self.weight
        if not uses_triton(g.meta.device.type):
            places = self.table(g, self.first, torch.int64)
            weights = self.table(g, self.weight, self.compute)
            first, weight = lambda b, i: places.load(b, [i]), lambda b, i: weights.load(b, [i])

        def mixed(b: BodyBuilder, i: Expr, element: Element) -> Scalar:
            place = first(b, i)
            after = minimum(Scalar(b, place) + 1, as_expr(self.given) - 1).value
            left = element(b, b.indirect(place, self.given, wrap=False))
            right = element(b, b.indirect(after, self.given, wrap=False))
            share = Scalar(b, weight(b, i))
            return left * (1 - share) + right * share

        return mixed


@register(aten.upsample_bilinear2d.default)
def lower_upsample_bilinear2d(
    g: GraphLowering,
    x: TensorValue,
    size: Any,
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Any:
    wanted = tuple(g.meta.shape)
    if not x.dtype.is_floating_point or not _is_plane(x, wanted, scales_h, scales_w):
        return DECLINED
    g.realize(x)
    compute = compute_type(x.dtype)
    rows = _Axis(x.size[2], wanted[2], scales_h, align_corners, compute)
    columns = _Axis(x.size[3], wanted[3], scales_w, align_corners, compute)
    down, across = rows.mix(g), columns.mix(g)

    def along_row(b: BodyBuilder, index: Index) -> Value:
        def pixel(b: BodyBuilder, column: Expr) -> Scalar:
            return Scalar(b, b.cast(x.load(b, [*index[:3], column]), compute))

        return across(b, index[3], pixel).value

    source = along_row
    in_memory = x.stride[1] != 1 and hint_of(rows.wanted) >= hint_of(rows.given)
    if in_memory and not uses_triton(x.device.type):
        each = (*x.size[:3], wanted[3])
        stride = contiguous_strides(each)
        wide = TensorValue(
            Lazy(
                along_row,
                stride,
                12,
                2,
                x.origins,
            ),
            compute,
            each,
            x.device,
            stride,
        )
        g.realize(wide)
        source = wide.load  # type: ignore[assignment]

    def inner(b: BodyBuilder, index: Index) -> Value:
        def in_row(b: BodyBuilder, row: Expr) -> Scalar:
            return Scalar(b, source(b, [*index[:2], row, index[3]]))

        return down(b, index[2], in_row).value

    return g.lazy(inner, (x,), cost=16)


def _is_plane(x: TensorValue, wanted: Sequence[IntLike], *scales: Any) -> bool:
    """Whether these are images of known dimensions, with an element at least."""
    known = all(scale is None or isinstance(scale, float) for scale in scales)
    return known and x.ndim == 4 and all(map(has_elements, (*x.size[2:], *wanted[2:])))


def _nearest(
    g: GraphLowering, given: IntLike, wanted: IntLike, scale: float | None
) -> Callable[[BodyBuilder, Expr], Expr]:
    """From a result's position to the position of the element that it is."""
    on_cpu = g.meta_device().type == "cpu"
    for n in (1, 2, 4, 8, 16):
        if wanted == given * n and (scale in (None, n) or n <= 2 and on_cpu):
            return lambda b, i, n=n: i // n  # type: ignore[misc]

    def place(b: BodyBuilder, index: Index) -> Value:
        own = Scalar(b, b.cast(b.index_expr(index[0]), torch.float32))
        step = _step(b, given, wanted, scale, torch.float32)
        found = minimum((own * step).to(torch.int64), as_expr(given) - 1)
        if on_cpu and scale and not (isinstance(given, int) and isinstance(wanted, int)):
            # Where nothing grows, or to twice the size, eager does not ask for the scale.
            own, results, elements = (
                Scalar(b, b.index_expr(n)) for n in (index[0], wanted, given)
            )
            found = where(results.eq(elements * 2), own.op("floordiv", 2), found)
            found = where(results.eq(elements), own, found)
        return found.value

    if uses_triton(g.meta.device.type):
        return lambda b, i: b.indirect(place(b, [i]), given, wrap=False)
    data = Lazy(place, (1,), 8)
    table = TensorValue(
        data,
        torch.int64,
        (wanted,),
        g.meta.device,
        (1,),
    )
    g.realize(table)
    return lambda b, i: b.indirect(table.load(b, [i]), given, wrap=False)


@register(aten.upsample_nearest2d.default)
def lower_upsample_nearest2d(
    g: GraphLowering,
    x: TensorValue,
    size: Any,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Any:
    wanted = tuple(g.meta.shape)
    if not _is_plane(x, wanted, scales_h, scales_w):
        return DECLINED
    row = _nearest(g, x.size[2], wanted[2], scales_h)
    column = _nearest(g, x.size[3], wanted[3], scales_w)
    g.keep(x)

    def inner(b: BodyBuilder, index: Index) -> Value:
        return x.load(b, [*index[:2], row(b, index[2]), column(b, index[3])])

    return g.lazy(inner, (x,), cost=2)
