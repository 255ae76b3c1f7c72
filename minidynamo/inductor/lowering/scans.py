"""Running sums, products and extremes: loops that go along a dimension in order.

As eager does, 16- and 32-bit floats are accumulated in double precision on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Index, Inner, TensorValue, dense_strides, loop_index
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.promotion import compute_type
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.lowering.views import wrap
from minidynamo.inductor.origins import origin_of
from minidynamo.inductor.symbolic import dot, loop_symbol, product, symbol_expr
from minidynamo.inductor.targets import uses_triton

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten

# Fewer rows side by side do not fill a vector.
LEAST_ROWS = 8


def _runs(x: TensorValue) -> bool:
    return x.ndim > 0 and all(n > 0 for n in x.size)


def _accumulated(g: GraphLowering, dtype: torch.dtype) -> torch.dtype:
    """What a scan of such elements is computed in."""
    if not dtype.is_floating_point:
        return dtype
    return torch.float64 if g.meta_device().type == "cpu" else compute_type(dtype)


def _scan(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    inner: Inner,
    meta: torch.Tensor,
) -> TensorValue:
    """`inner` has a scan that goes along `dim`; the result has memory and meta's dtype."""
    at, size = wrap(dim, x.ndim), x.size
    index, iters = loop_index(tuple(1 if d == at else n for d, n in enumerate(size)), "x")
    reduces = [loop_symbol(f"r{at}", size[at])]
    index[at] = symbol_expr(reduces[0])
    b = BodyBuilder(iters, reduces)
    stride = dense_strides(size, tuple(meta.stride()))
    buffer = g._new_buffer(meta.dtype, size, stride, meta.device)
    value = b.cast(inner(b, index), compute_type(meta.dtype))
    b.store(buffer.name, dot(index, stride), value, meta.dtype)
    g._append_computed(b, buffer, (*x.origins, origin_of(g.node)))
    return g.whole(buffer)


def _running(name: str) -> Callable[..., Any]:
    def lower(g: GraphLowering, x: TensorValue, dim: int, dtype: Any = None) -> Any:
        if not _runs(x):
            return DECLINED
        result = g.meta.dtype
        compute = _accumulated(g, result)

        def inner(b: BodyBuilder, index: Index) -> Value:
            given = b.cast(x.load(b, index), compute_type(result))
            return b.scan(name, b.cast(given, compute))

        return _scan(g, x, dim, inner, g.meta)

    return lower


register(aten.cumsum.default)(_running("sum"))
register(aten.cumprod.default)(_running("prod"))


@register(aten.logcumsumexp.default)
def lower_logcumsumexp(g: GraphLowering, x: TensorValue, dim: int) -> Any:
    if not _runs(x) or not x.dtype.is_floating_point:
        return DECLINED
    at = wrap(dim, x.ndim)
    rows = product(n for d, n in enumerate(x.size) if d != at)
    few = at == x.ndim - 1 and isinstance(rows, int) and rows < LEAST_ROWS
    if few and not uses_triton(x.device.type):
        return DECLINED  # one element after the other: torch's operator is as good
    compute = _accumulated(g, x.dtype)
    return _scan(
        g, x, dim, lambda b, i: b.scan("logaddexp", b.cast(x.load(b, i), compute)), g.meta
    )


def _extreme(name: str) -> Callable[..., Any]:
    """The extreme so far and where it was last seen."""

    def lower(g: GraphLowering, x: TensorValue, dim: int) -> Any:
        if not _runs(x) or x.dtype == torch.bool:
            return DECLINED
        at, compute = wrap(dim, x.ndim), compute_type(x.dtype)
        size = x.size[at]
        places = torch.int32 if isinstance(size, int) and size < 1 << 31 else torch.int64
        g.keep(x)

        def value(b: BodyBuilder, index: Index) -> Value:
            return b.scan(name, b.cast(x.load(b, index), compute))

        def place(b: BodyBuilder, index: Index) -> Value:
            own = b.cast(x.load(b, index), compute)
            hit = b.op("eq", own, b.scan(name, own))
            if compute.is_floating_point:
                hit = b.op("bitwise_or", hit, b.op("isnan", own))
            own_place = b.cast(b.index_expr(index[at]), places)
            seen = b.scan("max", b.op("where", hit, own_place, b.constant(-1, places)))
            return b.cast(seen, torch.int64)

        values, indices = g.meta
        return _scan(g, x, dim, value, values), _scan(g, x, dim, place, indices)

    lower.__name__ = f"lower_cum{name}"
    return lower


register(aten.cummax.default)(_extreme("max"))
register(aten.cummin.default)(_extreme("min"))
