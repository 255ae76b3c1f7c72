"""Operators that make tensors from numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Index
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.promotion import compute_type
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.symbolic import Expr

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
Number = bool | int | float
_SMALL = (torch.uint8, torch.int8, torch.int16)


def may_overflow(value: Any, dtype: torch.dtype) -> bool:
    """Whether it is a symbolic number that ATen refuses where it does not fit."""
    return isinstance(value, Expr) and dtype in _SMALL


def constant(g: GraphLowering, value: Number | Expr) -> Any:
    """The node's result, filled with `value`."""
    dtype = g.meta.dtype
    if may_overflow(value, dtype):
        return DECLINED
    if isinstance(value, Expr) and compute_type(dtype) == dtype and not dtype.is_complex:
        return g.lazy(lambda b, index: _position(b, value, dtype))
    if isinstance(value, complex) or not isinstance(value, (bool, int, float)):
        return DECLINED
    return g.lazy(lambda b, index: b.constant(value, dtype))


@register(aten.full.default, aten.new_full.default, aten.full_like.default)
def lower_full(
    g: GraphLowering,
    like_or_size: Any,
    size_or_value: Any,
    *args: Any,
    **kw: Any,
) -> Any:
    value = args[0] if g.node.target is aten.new_full.default else size_or_value
    return constant(g, value)


@register(
    aten.zeros.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.new_empty.default,
)
def lower_zeros(g: GraphLowering, *args: Any, **kwargs: Any) -> Any:
    return constant(g, 0)


@register(aten.zero.default)
def lower_zero(g: GraphLowering, x: Any) -> Any:
    return constant(g, 0)


@register(aten.fill.Scalar)
def lower_fill(g: GraphLowering, x: Any, value: Any) -> Any:
    return constant(g, value)


@register(aten.fill.Tensor)
def lower_fill_tensor(g: GraphLowering, x: Any, value: Any) -> Any:
    return g.pointwise(lambda v: v, (value,), g.meta.dtype)


@register(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def lower_ones(g: GraphLowering, *args: Any, **kwargs: Any) -> Any:
    return constant(g, 1)


@register(aten.scalar_tensor.default)
def lower_scalar_tensor(g: GraphLowering, value: Number | Expr, **kwargs: Any) -> Any:
    return constant(g, value)


def _position(b: BodyBuilder, index: Expr, dtype: torch.dtype) -> Value:
    return b.cast(b.index_expr(index), compute_type(dtype))


@register(aten.arange.default, aten.arange.start, aten.arange.start_step)
def lower_arange(
    g: GraphLowering,
    first: Any,
    end: Any = None,
    step: Any = 1,
    **kwargs: Any,
) -> Any:
    start = 0 if end is None else first
    dtype = g.meta.dtype
    if any(isinstance(v, float) and not v.is_integer() for v in (start, step)):
        return DECLINED
    if not dtype.is_floating_point:
        start, step = int(start), int(step)
    fractional = any(isinstance(v, float) for v in (start, step))
    if dtype.is_floating_point and (fractional or dtype != torch.float32):
        return DECLINED

    def inner(b: BodyBuilder, index: Index) -> Value:
        return _position(b, index[0] * step + start, dtype)

    return g.lazy(inner, cost=1)


@register(torch.ops.prims.iota.default)
def lower_iota(g: GraphLowering, length: int, *, start: int, step: int, **kwargs: Any) -> Any:
    dtype = g.meta.dtype
    return g.lazy(lambda b, index: _position(b, index[0] * step + start, dtype), cost=1)


@register(aten.eye.default, aten.eye.m)
def lower_eye(g: GraphLowering, *args: Any, **kwargs: Any) -> Any:
    dtype = compute_type(g.meta.dtype)

    def inner(b: BodyBuilder, index: Index) -> Value:
        return b.cast(b.op("eq", b.index_expr(index[0]), b.index_expr(index[1])), dtype)

    return g.lazy(inner, cost=2)
