"""Pooling: the window is written out, so that it fuses with what stands around.

With channels innermost (the layout that convolutions choose) a window is a few contiguous loads;
else neighbours along a row are `stride` apart. A window of many elements is done in one dimension
after the other: 7 x 7 takes 14 loads. Windows that are longer still are calls of torch's operators.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Index, Lazy, TensorValue
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.convolution import channels_last
from minidynamo.inductor.lowering.indexing import in_bounds, select
from minidynamo.inductor.lowering.promotion import compute_type
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import (
    ZERO,
    Expr,
    IntLike,
    contiguous_strides,
)

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
# Elements of the largest window that is written out as a whole, and in one dimension.
MAX_WINDOW = 16
MAX_LINE = 32
Finish = Callable[[BodyBuilder, Index, Value], Value]


def has_elements(extent: IntLike) -> bool:
    """Whether this dimension is not empty: eager refuses one, so guards keep symbolic sizes from
    becoming zero. What depends on data has none.
    """
    return hint_of(extent, 0) > 0


def _numbers(value: Any, count: int) -> tuple[int, ...]:
    """One number for each pooled dimension."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * count if len(values) == 1 else values


def _all_of(b: BodyBuilder, tests: Iterable[Value | None]) -> Value | None:
    """Whether all of them hold; None holds everywhere."""
    known = [test for test in tests if test is not None]
    return reduce(partial(b.op, "bitwise_and"), known) if known else None


def _element(
    b: BodyBuilder, x: TensorValue, at: Index, mask: Value | None, outside: float
) -> Value:
    """The element there, as it is computed with, where the mask holds; else that number."""
    compute = compute_type(x.dtype)
    return select(
        b, mask, lambda: b.cast(x.load(b, at), compute), lambda: b.constant(outside, compute)
    )


class Window:
    """The elements that one result is made of, in the last `dims` dimensions of `x`.

    Attributes:
        kernel, stride, padding, dilation: a number for each of these dimensions.
        extents: the sizes of `x` in these dimensions.
    """

    def __init__(
        self,
        x: TensorValue,
        dims: int,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
    ) -> None:
        self.x = x
        self.dims = dims
        self.kernel = _numbers(kernel, dims)
        self.stride = _numbers(stride, dims) if stride else self.kernel
        self.padding = _numbers(padding, dims)
        self.dilation = _numbers(dilation, dims)
        self.extents = x.size[-dims:]
        self.elements = math.prod(self.kernel)

    def may_be_written_out(self) -> bool:
        """Whether there are elements, and the windows are small enough."""
        x = self.x
        if not x.dtype.is_floating_point or not all(map(has_elements, self.extents)):
            return False
        return x.numel() != 0 and max(self.kernel) <= MAX_LINE

    def position(self, d: int, i: Expr, k: int) -> Expr:
        """Where in dimension `d` the `k`th element of the window of result `i` is.

        It may lie outside of `x`, in the padding.
        """
        return i * self.stride[d] + (k * self.dilation[d] - self.padding[d])

    def values(self, b: BodyBuilder, index: Index, outside: float) -> Iterator[Value]:
        """The elements in row-major order, `outside` of `x` that number."""
        lead, own = index[: -self.dims], index[-self.dims :]
        for offsets in itertools.product(*map(range, self.kernel)):
            place = [self.position(d, own[d], offset) for d, offset in enumerate(offsets)]
            inside = (in_bounds(b, at, 0, self.extents[d]) for d, at in enumerate(place))
            yield _element(b, self.x, (*lead, *place), _all_of(b, inside), outside)

    def combined(
        self,
        b: BodyBuilder,
        index: Index,
        outside: float,
        combine: str,
    ) -> Value:
        """The sum or the maximum of a window's elements, as `combine` has it."""
        total: Value | None = None
        for value in self.values(b, index, outside):
            total = value if total is None else b.op(combine, total, value)
        assert total is not None
        return total

    def is_channels_last(self) -> bool:
        x = self.x
        return self.dims == 2 and x.ndim == 4 and x.stride == channels_last(x.size)

    def covering(self) -> list[int]:
        """In each dimension the number of windows that an element may be in."""
        return [-(-k // s) for k, s in zip(self.kernel, self.stride, strict=True)]

    def results_over(
        self, b: BodyBuilder, index: Index, counts: Sequence[Any]
    ) -> Iterator[tuple[Value | None, list[Expr], Expr]]:
        """The results, in order, whose windows may have the element at `index`: whether the one at
        that place exists and has it (None: always), its place, and which of the window's elements
        it is. counts: how many results.
        """
        lead, own = index[: -self.dims], index[-self.dims :]
        for offsets in itertools.product(*(range(n - 1, -1, -1) for n in self.covering())):
            place = []
            tests = []
            number = ZERO
            for d, back in enumerate(offsets):
                padded, step = own[d] + self.padding[d], self.stride[d]
                at = padded // step - back
                offset = padded % step + back * step
                number = number * self.kernel[d] + offset
                tests += [
                    in_bounds(b, at, 0, counts[d]),
                    in_bounds(b, offset, 0, self.kernel[d]),
                ]
                place.append(at)
            yield _all_of(b, tests), [*lead, *place], number

    def _in(self, x: TensorValue, dims: Sequence[int]) -> Window:
        """The window's extent in these dimensions, over `x`; in the others a single element.

        One dimension after the other gives the same maximum, and the same sum but for rounding.
        """
        part = Window(x, self.dims, 1, 1, 0, 1)
        for name in ("kernel", "stride", "padding", "dilation"):
            own = getattr(self, name)
            single = getattr(part, name)
            values = [own[d] if d in dims else single[d] for d in range(self.dims)]
            setattr(part, name, tuple(values))
        return part

    def _after(
        self,
        g: GraphLowering,
        d: int,
        extent: IntLike,
        outside: float,
        combine: str,
    ) -> Window:
        """What remains when dimension `d`, of which there are `extent` results, is combined.

        What was combined so far has memory, in the dtype that is computed in.
        """
        x = self.x
        line = self._in(x, [d])
        size = list(x.size)
        size[d - self.dims] = extent
        stride = contiguous_strides(size)
        if x.ndim == 4 and x.stride == channels_last(x.size):
            stride = channels_last(tuple(size))

        def inner(b: BodyBuilder, index: Index) -> Value:
            return line.combined(b, index, outside, combine)

        data = Lazy(
            inner,
            stride,
            4 * self.kernel[d],
            self.kernel[d],
            x.origins,
        )
        dtype = compute_type(x.dtype)
        value = TensorValue(
            data,
            dtype,
            tuple(size),
            x.device,
            stride,
        )
        g.realize(value)
        others = [k for k in range(self.dims) if k != d]
        return self._in(value, others)

    def reduced(
        self,
        g: GraphLowering,
        outside: float,
        combine: str,
        finish: Finish,
        fake: torch.Tensor,
    ) -> TensorValue:
        """The windows' elements combined; `finish` is given the index and the sum or maximum."""
        window = self
        g.keep(self.x)
        for d in range(self.dims - 1):
            if math.prod(window.kernel) <= MAX_WINDOW:
                break
            if window.kernel[d] > 1:
                window = window._after(g, d, fake.shape[d - self.dims], outside, combine)

        def inner(b: BodyBuilder, index: Index) -> Value:
            return finish(b, index, window.combined(b, index, outside, combine))

        cost = 4 * math.prod(window.kernel)
        result = g.lazy(inner, (window.x,), cost=cost, meta=fake)
        self.lay_out(g, result)
        g.realize(result)
        return result

    def lay_out(self, g: GraphLowering, result: TensorValue) -> None:
        """As the elements are, where that is eager's layout or nobody sees it."""
        if self.is_channels_last():
            assert isinstance(result.data, Lazy)
            if g.free_layout or result.layout == channels_last(result.size):
                result.data.stride = channels_last(result.size)


@register(aten.avg_pool2d.default, aten.avg_pool3d.default)
def lower_average_pool(
    g: GraphLowering,
    x: TensorValue,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    dims = 3 if g.node.target is aten.avg_pool3d.default else 2
    window = Window(
        x,
        dims,
        kernel,
        stride,
        padding,
    )
    if not window.may_be_written_out():
        return DECLINED
    padded = any(window.padding) and not count_include_pad
    count = divisor_override or math.prod(window.kernel)
    varies = (padded or ceil_mode) and not divisor_override
    compute = compute_type(x.dtype)

    def mean(b: BodyBuilder, index: Index, total: Value) -> Value:
        number = b.constant(count, compute)
        if varies:
            number = b.cast(_counted(b, window, index, count_include_pad), compute)
        return b.op("truediv", total, number)

    return window.reduced(
        g,
        0.0,
        "add",
        mean,
        g.meta,
    )


def _counted(
    b: BodyBuilder,
    window: Window,
    index: Index,
    with_padding: bool,
) -> Value:
    """How many elements of a window count: those of the input, or of its padding as well."""
    total = b.constant(1, torch.int64)
    for d, i in enumerate(index[-window.dims :]):
        extent, padding = window.extents[d], window.padding[d]
        first = window.position(d, i, 0)
        outside = padding if with_padding else 0
        end = b.op(
            "minimum",
            b.index_expr(first + window.kernel[d]),
            b.index_expr(extent + outside),
        )
        start = b.index_expr(first)
        if not with_padding:
            start = b.op("maximum", start, b.constant(0, torch.int64))
        total = b.op("mul", total, b.op("sub", end, start))
    return total


@register(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def lower_average_pool_backward(
    g: GraphLowering,
    grad: TensorValue,
    x: TensorValue,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    """Each element collects its share from the results whose windows it is in."""
    dims = 3 if g.node.target is aten.avg_pool3d_backward.default else 2
    window = Window(
        x,
        dims,
        kernel,
        stride,
        padding,
    )
    covering = window.covering()
    if not window.may_be_written_out() or math.prod(covering) > MAX_WINDOW:
        return DECLINED
    padded = any(window.padding) and not count_include_pad
    varies = (padded or ceil_mode) and not divisor_override
    count = divisor_override or math.prod(window.kernel)
    compute = compute_type(x.dtype)
    g.keep(grad)

    def share(b: BodyBuilder, at: Index) -> Value:
        number = b.constant(count, compute)
        if varies:
            number = b.cast(_counted(b, window, at, count_include_pad), compute)
        return b.op("truediv", b.cast(grad.load(b, at), compute), number)

    def inner(b: BodyBuilder, index: Index) -> Value:
        total: Value | None = None
        for mask, at, _ in window.results_over(b, index, grad.size[-dims:]):
            value = select(
                b,
                mask,
                lambda at=at: share(b, at),  # type: ignore[misc]
                lambda: b.constant(0, compute),
            )
            total = value if total is None else b.op("add", total, value)
        assert total is not None
        return total

    return g.lazy(inner, (grad,), cost=8 * math.prod(covering))


def divided(x: TensorValue, size: Sequence[int]) -> Window | None:
    """Windows of one size, where the results divide the input."""
    extents = x.size[-len(size) :]
    if not all(isinstance(n, int) for n in (*extents, *size)):
        return None
    if any(not out or given % out for given, out in zip(extents, size, strict=True)):
        return None
    kernel = tuple(given // out for given, out in zip(extents, size, strict=True))
    window = Window(x, len(size), kernel)
    return window if window.may_be_written_out() else None


class Spread(Window):
    """Windows of different sizes, which cover the input evenly: as many as `counts`."""

    def __init__(
        self,
        x: TensorValue,
        counts: Sequence[int],
    ) -> None:
        self.counts = tuple(counts)
        extents = x.size[-len(counts) :]
        sizes = [
            {-(-(i + 1) * n // m) - i * n // m for i in range(m)}  # type: ignore[operator]
            for n, m in zip(extents, counts, strict=True)
        ]
        self.least = [min(own) for own in sizes]
        kernel = [max(own) for own in sizes]
        super().__init__(
            x,
            len(counts),
            kernel,
            1,
        )

    def begin(self, d: int, i: Expr) -> Expr:
        """The first element of the `i`th window in dimension `d`."""
        return i * self.extents[d] // self.counts[d]

    def length(self, d: int, i: Expr) -> Expr:
        """How many elements that window has."""
        count = self.counts[d]
        behind = (i + 1) * self.extents[d]
        end = (behind + (count - 1)) // count
        return end - self.begin(d, i)

    def values(
        self,
        b: BodyBuilder,
        index: Index,
        outside: float,
    ) -> Iterator[Value]:
        """The elements in row-major order, that number where a window has none left."""
        lead, own = index[: -self.dims], index[-self.dims :]
        for offsets in itertools.product(*map(range, self.kernel)):
            place = [self.begin(d, own[d]) + offset for d, offset in enumerate(offsets)]
            inside = (
                in_bounds(b, ZERO + offset, 0, self.length(d, own[d]))
                for d, offset in enumerate(offsets)
                if offset >= self.least[d]
            )
            yield _element(b, self.x, (*lead, *place), _all_of(b, inside), outside)


def spread(
    x: TensorValue,
    size: Sequence[int],
) -> Spread | None:
    """Windows of different sizes, where they are known and small."""
    if not all(isinstance(n, int) and n for n in (*x.size, *size)):
        return None
    window = Spread(x, size)
    small = window.elements <= MAX_WINDOW
    return window if small and window.may_be_written_out() else None


@register(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def lower_adaptive_average_pool(g: GraphLowering, x: TensorValue, size: Sequence[int]) -> Any:
    window = divided(x, size) or spread(x, size)
    if window is None:
        return DECLINED
    compute = compute_type(x.dtype)

    def mean(b: BodyBuilder, index: Index, total: Value) -> Value:
        if not isinstance(window, Spread):
            return b.op("truediv", total, b.constant(window.elements, compute))
        for d, i in enumerate(index[-window.dims :]):
            if window.kernel[d] > 1:
                length = b.index_expr(window.length(d, i))
                total = b.op("truediv", total, b.cast(length, compute))
        return total

    return window.reduced(
        g,
        0.0,
        "add",
        mean,
        g.meta,
    )
