"""Pooling over small windows: the window is written out, so that it fuses with what stands around.

With channels innermost (the layout that convolutions choose) a window is a few contiguous loads;
else neighbours along a row are `stride` apart. Larger windows, and results that want the position
of the maximum, are calls of torch's operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Index, Lazy, TensorValue
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.convolution import channels_last
from minidynamo.inductor.lowering.indexing import in_bounds, select
from minidynamo.inductor.lowering.promotion import compute_type
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.symbolic import Expr

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
# Elements of the largest window that is written out.
MAX_WINDOW = 16
Pair = tuple[int, int]


def _pair(value: Any) -> Pair:
    values = (value,) if isinstance(value, int) else tuple(value)
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


class _Window:
    """The elements of a plane that one result is made of."""

    def __init__(
        self, x: TensorValue, kernel: Any, stride: Any, padding: Any, dilation: Any = 1
    ) -> None:
        self.x = x
        self.kernel = _pair(kernel)
        self.stride = _pair(stride) if stride else self.kernel
        self.padding = _pair(padding)
        self.dilation = _pair(dilation)

    def is_small(self) -> bool:
        """Whether it may be written out."""
        x = self.x
        static = all(isinstance(n, int) for n in x.size) and x.numel() != 0
        return static and x.dtype.is_floating_point and self._count() <= MAX_WINDOW

    def _count(self) -> int:
        return self.kernel[0] * self.kernel[1]

    def _position(self, d: int, i: Expr, k: int) -> Expr:
        return i * self.stride[d] + (k * self.dilation[d] - self.padding[d])

    def values(self, b: BodyBuilder, index: Index, outside: float) -> Iterator[Value]:
        """The elements in row-major order, `outside` of the plane that number."""
        compute = compute_type(self.x.dtype)
        *lead, i, j = index
        height, width = self.x.size[-2:]
        for ky in range(self.kernel[0]):
            y = self._position(0, i, ky)
            row = in_bounds(b, y, 0, height)
            for kx in range(self.kernel[1]):
                column = self._position(1, j, kx)
                mask = in_bounds(b, column, 0, width)
                if row is not None:
                    mask = row if mask is None else b.op("bitwise_and", row, mask)
                yield select(
                    b,
                    mask,
                    lambda at=(*lead, y, column): b.cast(self.x.load(b, at), compute),  # type: ignore[misc]
                    lambda: b.constant(outside, compute),
                )

    def reduced(
        self,
        g: GraphLowering,
        outside: float,
        combine: str,
        finish: Callable[[BodyBuilder, Value], Value],
        fake: torch.Tensor,
    ) -> TensorValue:
        """A value without memory: the window's elements combined in order."""
        g.keep(self.x)

        def inner(b: BodyBuilder, index: Index) -> Value:
            total: Value | None = None
            for value in self.values(b, index, outside):
                total = value if total is None else b.op(combine, total, value)
            assert total is not None
            return finish(b, total)

        result = g.lazy(inner, (self.x,), cost=4 * self._count(), meta=fake)
        if self.x.ndim == 4 and self.x.stride == channels_last(self.x.size):
            assert isinstance(result.data, Lazy)
            if g.free_layout or result.layout == channels_last(result.size):
                result.data.stride = channels_last(result.size)
        g.realize(result)
        return result


@register(aten.max_pool2d_with_indices.default)
def lower_max_pool(
    g: GraphLowering,
    x: TensorValue,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    window = _Window(x, kernel, stride, padding, dilation)
    wants_positions = any(user.args[1] != 0 for user in g.node.users)
    if wants_positions or not window.is_small():
        return DECLINED
    fake: Sequence[torch.Tensor] = g.meta
    out = window.reduced(g, float("-inf"), "maximum", lambda b, value: value, fake[0])
    return out, None


@register(aten.avg_pool2d.default)
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
    window = _Window(x, kernel, stride, padding)
    counts_all = count_include_pad or window.padding == (0, 0)
    if not window.is_small() or ceil_mode or not (counts_all or divisor_override):
        return DECLINED
    count = divisor_override or window.kernel[0] * window.kernel[1]
    compute = compute_type(x.dtype)

    def mean(b: BodyBuilder, total: Value) -> Value:
        return b.op("truediv", total, b.constant(count, compute))

    return window.reduced(g, 0.0, "add", mean, g.meta)
