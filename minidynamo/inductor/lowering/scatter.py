"""Operators that add to computed positions: scatter_add, index_add, embedding's gradient.

The result is a copy of the input, then one pass over what is added. On CPU it adds in eager's
order; only loops whose iterations never meet run in parallel. A position that is out of range makes
the kernel fail with eager's exception.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Index, Size, TensorValue, loop_index
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.gather import OUTSIDE, is_empty
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.lowering.views import wrap
from minidynamo.inductor.symbolic import Expr, dot

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
# Where an addition in memory is the dtype's own.
DTYPES = {torch.float32, torch.float64, torch.int32, torch.int64}
Place = Callable[[BodyBuilder, Index], Sequence[Expr]]


def _is_possible(x: TensorValue, *others: TensorValue) -> bool:
    values = (x, *others)
    static = all(isinstance(n, int) for value in values for n in value.size)
    return static and x.dtype in DTYPES and x.ndim > 0 and not any(map(is_empty, values))


def _is_inside(indices: TensorValue, other: TensorValue, skipped: int = -1) -> bool:
    """Whether `indices` has the dimensions of `other` and no more elements along any of them."""
    if indices.ndim != other.ndim:
        return False
    pairs = enumerate(zip(indices.size, other.size, strict=True))
    return all(own <= extent for d, (own, extent) in pairs if d != skipped)  # type: ignore[operator]


def _added(
    g: GraphLowering,
    x: TensorValue,
    size: Size,
    place: Place,
    value: Callable[[BodyBuilder, Index], Value],
) -> TensorValue:
    """`x` on new memory, to which `value` was added at `place` for all indices of `size`."""
    result = g.lazy(lambda b, index: x.load(b, index), (x,))
    buffer = g.realize(result).buffer
    index, iters = loop_index(size, "x")
    b = BodyBuilder(iters)
    target = dot(place(b, index), buffer.stride)
    b.atomic_add(buffer.name, target, b.cast(value(b, index), x.dtype), x.dtype)
    g._append_computed(b, buffer, (str(g.node.target),))
    return result


@register(aten.scatter_add.default)
def lower_scatter_add(
    g: GraphLowering, x: TensorValue, dim: int, indices: TensorValue, source: TensorValue
) -> Any:
    if not _is_possible(x, indices, source):
        return DECLINED
    at = wrap(dim, x.ndim)
    if not _is_inside(indices, source) or not _is_inside(indices, x, at):
        return DECLINED  # eager says what is wrong
    failure = f"RuntimeError: {OUTSIDE % (at, x.size[at])}"

    def place(b: BodyBuilder, index: Index) -> list[Expr]:
        row = b.indirect(indices.load(b, index), x.size[at], failure, wrap=False)
        return [*index[:at], row, *index[at + 1 :]]

    return _added(g, x, indices.size, place, lambda b, index: source.load(b, index))


@register(aten.index_add.default)
def lower_index_add(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: TensorValue,
    *,
    alpha: Any = 1,
) -> Any:
    if not _is_possible(x, indices, source) or source.ndim != x.ndim or indices.ndim != 1:
        return DECLINED
    at = wrap(dim, x.ndim)
    if source.size != (*x.size[:at], indices.size[0], *x.size[at + 1 :]):
        return DECLINED  # eager says what is wrong
    failure = "RuntimeError: index out of range in self"

    def place(b: BodyBuilder, index: Index) -> list[Expr]:
        row = b.indirect(indices.load(b, [index[at]]), x.size[at], failure, wrap=False)
        return [*index[:at], row, *index[at + 1 :]]

    def value(b: BodyBuilder, index: Index) -> Value:
        loaded = b.cast(source.load(b, index), x.dtype)
        return loaded if alpha == 1 else b.op("mul", loaded, b.constant(alpha, x.dtype))

    return _added(g, x, source.size, place, value)


@register(aten.embedding_dense_backward.default)
def lower_embedding_backward(
    g: GraphLowering,
    grad: TensorValue,
    indices: TensorValue,
    rows: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Any:
    fake = g.meta
    if not _is_possible(grad, indices) or scale_grad_by_freq or not isinstance(rows, int):
        return DECLINED
    zeros = g.lazy(lambda b, index: b.constant(0, grad.dtype), meta=fake)
    failure = "IndexError: index out of range in self"

    def place(b: BodyBuilder, index: Index) -> list[Expr]:
        row = b.indirect(indices.load(b, index[:-1]), rows, failure, wrap=False)
        return [row, index[-1]]

    def value(b: BodyBuilder, index: Index) -> Value:
        loaded = b.cast(grad.load(b, index), grad.dtype)
        if padding_idx < 0:
            return loaded
        row = b.cast(indices.load(b, index[:-1]), torch.int64)
        skipped = b.op("eq", row, b.constant(padding_idx, torch.int64))
        return b.op("where", skipped, b.constant(0, grad.dtype), loaded)

    return _added(g, zeros, grad.size, place, value)
