"""Max pooling: of planes and volumes, with the positions of the maxima or without.

Where a gradient is wanted (`passes/pooled_positions.py`), the number of the element in its window
is kept, a byte, and every element collects the gradients of the windows that it is the maximum of.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Index, TensorValue
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.indexing import select
from minidynamo.inductor.lowering.pooling import Window, divided
from minidynamo.inductor.lowering.promotion import compute_type
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.magnitudes import magnitude
from minidynamo.inductor.passes.pooled_positions import COLLECT, MOST, POOL
from minidynamo.inductor.symbolic import IntLike, dot, product

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten


@register(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def lower_max_pool(
    g: GraphLowering,
    x: TensorValue,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    dims = 3 if g.node.target is aten.max_pool3d_with_indices.default else 2
    window = Window(
        x,
        dims,
        kernel,
        stride,
        padding,
        dilation,
    )
    return _maxima(g, window) if window.may_be_written_out() else DECLINED


@register(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def lower_adaptive_max_pool(g: GraphLowering, x: TensorValue, size: Sequence[int]) -> Any:
    window = divided(x, size)
    return DECLINED if window is None else _maxima(g, window)


def _maxima(g: GraphLowering, window: Window) -> Any:
    if any(user.args[1] != 0 for user in g.node.users):
        if math.prod(window.kernel) > MOST:
            return DECLINED
        return _with_positions(g, window)
    out = window.reduced(
        g,
        float("-inf"),
        "maximum",
        lambda b, index, value: value,
        g.meta[0],
    )
    return out, None


def _with_positions(g: GraphLowering, window: Window) -> list[TensorValue]:
    """Maxima, and where in its plane or volume each is."""
    rows = [product(window.extents[d + 1 :]) for d in range(window.dims)]
    steps = [row * step for row, step in zip(rows, window.dilation, strict=True)]

    def position(b: BodyBuilder, index: Index, offset: Value) -> Value:
        own = index[-window.dims :]
        firsts = [window.position(d, i, 0) * rows[d] for d, i in enumerate(own)]
        first = b.index_expr(sum(firsts[1:], firsts[0]))
        return b.op("add", first, b.cast(offset, torch.int64))

    return _found(g, window, steps, position)


def _found(
    g: GraphLowering, window: Window, steps: Sequence[IntLike], finish: Any
) -> list[TensorValue]:
    """Maxima and what `finish` makes of the offset of each from its window's first element.

    steps: what one element further adds to that, in each dimension.
    """
    g.keep(window.x)
    places = itertools.product(*map(range, window.kernel))
    offsets = [dot(at, steps) for at in places]
    wide = magnitude(offsets[-1], 1 << 31) is None
    dtype = torch.int64 if wide else torch.int32

    def best(b: BodyBuilder, index: Index) -> tuple[Value, Value]:
        offset = _first_inside(b, window, index, steps, dtype)
        values = window.values(b, index, float("-inf"))
        value = next(values)
        for own, other in zip(offsets[1:], values, strict=True):
            is_nan = b.op("ne", other, other)
            better = b.op("bitwise_or", b.op("gt", other, value), is_nan)
            value = b.op("where", better, other, value)
            offset = b.op("where", better, b.constant(own, dtype), offset)
        return value, finish(b, index, offset)

    results = [
        g.lazy(
            lambda b, index, which=which: best(b, index)[which],  # type: ignore[misc]
            (window.x,),
            cost=8 * window.elements,
            meta=meta,
        )
        for which, meta in enumerate(g.meta)
    ]
    for result in results:
        window.lay_out(g, result)
        g.realize(result)
    return results


def _first_inside(
    b: BodyBuilder, window: Window, index: Index, steps: Sequence[IntLike], dtype: torch.dtype
) -> Value:
    """The offset of the first element of a window that is not padding: what eager takes for the
    maximum where no number is above -inf.
    """
    offset = b.constant(0, dtype)
    for d, i in enumerate(index[-window.dims :]):
        step, none = b.constant(steps[d], dtype), b.constant(0, dtype)
        for k in range(-(-window.padding[d] // window.dilation[d])):
            place = b.index_expr(window.position(d, i, k))
            is_outside = b.op("lt", place, b.index_expr(0))
            offset = b.op("add", offset, b.op("where", is_outside, step, none))
    return offset


@register(POOL)
def lower_pool(
    g: GraphLowering,
    x: TensorValue,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Any:
    window = Window(
        x,
        len(kernel),
        kernel,
        stride,
        padding,
        dilation,
    )
    steps = [math.prod(kernel[d + 1 :]) for d in range(len(kernel))]
    return _found(g, window, steps, lambda b, index, number: number)


@register(COLLECT)
def lower_collect(
    g: GraphLowering,
    grad: TensorValue,
    numbers: TensorValue,
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    laid_out: bool,
) -> Any:
    window = Window(
        grad,
        len(kernel),
        kernel,
        stride,
        padding,
    )
    compute = compute_type(grad.dtype)
    g.keep(grad)

    def inner(b: BodyBuilder, index: Index) -> Value:
        none = b.constant(0, compute)
        total = none
        for mask, at, number in window.results_over(b, index, grad.size[-window.dims :]):

            def share(at: Any = at, number: Any = number) -> Value:
                own = b.cast(numbers.load(b, at), torch.int32)
                is_here = b.op("eq", own, b.index_expr(number, torch.int32))
                return b.op("where", is_here, b.cast(grad.load(b, at), compute), none)

            total = b.op("add", total, select(b, mask, share, lambda: none))
        return total

    return g.lazy(inner, (grad, numbers), cost=12 * math.prod(window.covering()))
