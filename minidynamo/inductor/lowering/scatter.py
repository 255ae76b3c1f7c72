"""Operators that write to computed positions: scatter, index_put, index_add, embedding's gradient.

The result is a copy of the input, then one pass over what is written or added. On CPU it goes in
eager's order; only loops whose iterations never meet run in parallel. A position that is out of
range makes the kernel fail with eager's exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Index, Lazy, Size, TensorValue, loop_index
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.gather import (
    OUT_OF_ALL,
    OUTSIDE,
    Places,
    are_row_numbers,
    broadcast_index,
    is_broadcastable,
    is_empty,
    lookup,
    unravelled,
)
from minidynamo.inductor.lowering.in_place import (
    Element,
    Place,
    identity,
    own_memory,
    write_part,
)
from minidynamo.inductor.lowering.promotion import category, compute_type
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.lowering.scalar import Scalar, where
from minidynamo.inductor.lowering.views import wrap
from minidynamo.inductor.symbolic import ZERO, Expr, IntLike, dot, product
from minidynamo.inductor.targets import uses_triton

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
# Where combining in memory is the dtype's own arithmetic.
DTYPES = {torch.float32, torch.float64, torch.int32, torch.int64}


def _is_possible(
    how: str,
    x: TensorValue,
    *others: TensorValue,
) -> bool:
    if x.ndim == 0 or any(map(is_empty, (x, *others))):
        return False
    only_sums = uses_triton(x.device.type)
    return how == "set" or (x.dtype in DTYPES and (how == "sum" or not only_sums))


def _is_inside(
    indices: TensorValue,
    other: TensorValue,
    skipped: int = -1,
) -> bool:
    """Whether `indices` has the dimensions of `other` and no more elements along any of them."""
    if indices.ndim != other.ndim:
        return False
    pairs = enumerate(zip(indices.size, other.size, strict=True))
    return all(own <= extent for d, (own, extent) in pairs if d != skipped)  # type: ignore[operator]


def _scattered(
    g: GraphLowering,
    x: TensorValue,
    size: Size,
    place: Place,
    *steps: tuple[str, Element],
) -> TensorValue:
    """`x` on new memory, into which values were scattered at `place` for all indices of `size`.

    steps: one pass each, (how it combines: a name in `ops.SCATTERS`, the value).
    """
    own = own_memory(g, x, x)
    if own is not None and len(steps) == 1:
        how, value = steps[0]
        return write_part(g, own, size, place, value, how)
    result = g.lazy(lambda b, index: x.load(b, index), (x,))
    buffer = g.realize(result).buffer
    for how, value in steps:
        index, iters = loop_index(size, "x")
        b = BodyBuilder(iters)
        target = dot(place(b, index), buffer.stride)
        b.scatter(buffer.name, target, b.cast(value(b, index), x.dtype), x.dtype, how)
        g._append_computed(b, buffer, (str(g.node.target),))
    return result


# -- along one dimension ---------------------------------------------------------------------------


def _lower_scatter(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: Any,
    how: str,
    include_self: bool = True,
) -> Any:
    tensors = (indices, source) if isinstance(source, TensorValue) else (indices,)
    if not _is_possible(how, x, *tensors) or isinstance(source, complex):
        return DECLINED
    at = wrap(dim, x.ndim)
    if not all(_is_inside(indices, t) for t in tensors) or not _is_inside(indices, x, at):
        return DECLINED  # eager says what is wrong
    failure = f"RuntimeError: {OUTSIDE % (at, x.size[at])}"

    def place(b: BodyBuilder, index: Index) -> list[Expr]:
        row = b.indirect(indices.load(b, index), x.size[at], failure, wrap=False)
        return [*index[:at], row, *index[at + 1 :]]

    def value(b: BodyBuilder, index: Index) -> Value:
        if isinstance(source, TensorValue):
            return source.load(b, index)
        return b.constant(source, compute_type(x.dtype))

    if how == "set" and isinstance(x.data, Lazy) and _is_one_a_row(indices, x, at):
        return _chosen(g, x, at, indices, value, failure)
    steps = [(how, value)]
    if not include_self:
        start = identity(how, x.dtype) + 0  # sums begin at 0.0
        steps.insert(0, ("set", lambda b, index: b.constant(start, x.dtype)))
    return _scattered(g, x, indices.size, place, *steps)


def _is_one_a_row(
    indices: TensorValue,
    x: TensorValue,
    at: int,
) -> bool:
    return indices.size == (*x.size[:at], 1, *x.size[at + 1 :])


def _chosen(
    g: GraphLowering,
    x: TensorValue,
    at: int,
    indices: TensorValue,
    value: Element,
    failure: str,
) -> TensorValue:
    """What is written once in each row, as a choice at every element: `x` needs no memory, and what
    reads the result joins (the gradient of a cross entropy).
    """
    g.keep(indices)

    def inner(b: BodyBuilder, index: Index) -> Value:
        own = [*index[:at], ZERO, *index[at + 1 :]]
        row = b.indirect(indices.load(b, own), x.size[at], failure, wrap=False)
        here = Scalar(b, b.index_expr(index[at])).eq(Scalar(b, b.index_expr(row)))
        new = Scalar(b, b.cast(value(b, own), compute_type(x.dtype)))
        return where(here, new, Scalar(b, x.load(b, index))).value

    return g.lazy(inner, (x, indices), cost=2)


@register(aten.scatter.src, aten.scatter.value)
def lower_scatter(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: Any,
) -> Any:
    return _lower_scatter(g, x, dim, indices, source, "set")


@register(aten.scatter.reduce, aten.scatter.value_reduce)
def lower_scatter_with(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: Any,
    *,
    reduce: str,
) -> Any:
    how = {"add": "sum", "multiply": "prod"}[reduce]
    return _lower_scatter(g, x, dim, indices, source, how)


@register(aten.scatter_add.default)
def lower_scatter_add(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: TensorValue,
) -> Any:
    return _lower_scatter(g, x, dim, indices, source, "sum")


@register(aten.scatter_reduce.two)
def lower_scatter_reduce(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: TensorValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    how = {"sum": "sum", "prod": "prod", "amax": "max", "amin": "min"}.get(reduce)
    if how is None:
        return DECLINED
    return _lower_scatter(g, x, dim, indices, source, how, include_self)


# -- by several dimensions -------------------------------------------------------------------------


def _masked(
    g: GraphLowering,
    x: TensorValue,
    at: int,
    mask: TensorValue,
    value: TensorValue,
    add: bool,
) -> Any:
    """One number written, or added, where a mask over dimensions `at` and on is true."""
    inside = x.size[at : at + mask.ndim] == mask.size
    if any(extent != 1 for extent in value.size) or not inside or value.dtype != x.dtype:
        return DECLINED
    compute = compute_type(x.dtype)

    def inner(b: BodyBuilder, index: Index) -> Value:
        keep = Scalar(b, mask.load(b, index[at : at + mask.ndim]))
        old, new = Scalar(b, x.load(b, index)), value.load(b, [ZERO] * value.ndim)
        new_scalar = Scalar(b, b.cast(new, compute))
        return where(keep, old + new_scalar if add else new_scalar, old).value

    return g.lazy(inner, (x, mask, value), cost=2)


def _common_size(tensors: Sequence[TensorValue]) -> Size | None:
    """The size that tensors are broadcast to; None where eager says that they are not."""
    rank = max(t.ndim for t in tensors)
    common: list[IntLike] = [1] * rank
    for tensor in tensors:
        for d, extent in enumerate(tensor.size, rank - tensor.ndim):
            if extent != 1 and common[d] not in (1, extent):
                return None
            common[d] = common[d] if extent == 1 else extent
    return tuple(common)


@register(aten.index_put.default, aten._unsafe_index_put.default)
def lower_index_put(
    g: GraphLowering,
    x: TensorValue,
    indices: Sequence[TensorValue | None],
    values: TensorValue,
    accumulate: bool = False,
) -> Any:
    tensors = [t for t in indices if t is not None]
    how = "sum" if accumulate else "set"
    if not tensors or values.dtype != x.dtype or not _is_possible(how, x, *tensors, values):
        return DECLINED
    if len(tensors) == 1 and tensors[0].dtype == torch.bool:
        at = next(d for d, t in enumerate(indices) if t is not None)
        return _masked(g, x, at, tensors[0], values, accumulate)
    if any(category(t.dtype) != 1 or t.dtype == torch.uint8 for t in tensors):
        return DECLINED
    places = Places(indices)
    common = _common_size(tensors)
    if common is None:
        return DECLINED
    rest = [extent for d, extent in enumerate(x.size) if d not in places.dims]
    size = (*rest[: places.first], *common, *rest[places.first :])
    if not is_broadcastable(values.size, size):
        return DECLINED  # eager's error

    def place(b: BodyBuilder, index: Index) -> list[Expr]:
        return places.source(
            x, index, lambda d, own: lookup(b, x, places, d, own, "IndexError")
        )

    def value(b: BodyBuilder, index: Index) -> Value:
        return values.load(b, broadcast_index(values, index))

    return _scattered(g, x, size, place, (how, value))


def _rows_of(
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: TensorValue,
    failure: str,
) -> Place | None:
    """Where the slices of `source` along `dim` go; None where eager says what is wrong."""
    if source.ndim != x.ndim or indices.ndim != 1 or not are_row_numbers(indices):
        return None
    at = wrap(dim, x.ndim)
    if source.size != (*x.size[:at], indices.size[0], *x.size[at + 1 :]):
        return None

    def place(b: BodyBuilder, index: Index) -> list[Expr]:
        row = b.indirect(indices.load(b, [index[at]]), x.size[at], failure, wrap=False)
        return [*index[:at], row, *index[at + 1 :]]

    return place


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
    failure = "RuntimeError: index out of range in self"
    if x.dtype != source.dtype or not _is_possible("sum", x, indices, source):
        return DECLINED
    place = _rows_of(x, dim, indices, source, failure)
    if place is None:
        return DECLINED

    def value(b: BodyBuilder, index: Index) -> Value:
        loaded = b.cast(source.load(b, index), x.dtype)
        return loaded if alpha == 1 else b.op("mul", loaded, b.constant(alpha, x.dtype))

    return _scattered(g, x, source.size, place, ("sum", value))


@register(aten.index_copy.default)
def lower_index_copy(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: TensorValue,
) -> Any:
    if x.dtype != source.dtype or not _is_possible("set", x, indices, source):
        return DECLINED
    if indices.dtype != torch.int64:
        return DECLINED
    at = wrap(dim, x.ndim)
    outside = OUTSIDE % (at, x.size[at]) if x.ndim else ""
    place = _rows_of(x, dim, indices, source, f"IndexError: index_copy_(): {outside}")
    return (
        DECLINED
        if place is None
        else _scattered(g, x, source.size, place, ("set", source.load))
    )


@register(aten.index_reduce.default)
def lower_index_reduce(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: TensorValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    how = {"prod": "prod", "amax": "max", "amin": "min"}.get(reduce)
    if how is None or x.dtype != source.dtype or not _is_possible(how, x, indices, source):
        return DECLINED
    failure = "IndexError: index out of range in self"
    place = _rows_of(x, dim, indices, source, failure)
    if place is None:
        return DECLINED
    steps: list[tuple[str, Element]] = [(how, source.load)]
    if not include_self:
        start = identity(how, x.dtype) + 0  # sums begin at 0.0
        steps.insert(0, ("set", lambda b, index: b.constant(start, x.dtype)))
    return _scattered(g, x, source.size, place, *steps)


@register(aten.max_unpool2d.default, aten.max_unpool3d.default)
def lower_max_unpool(
    g: GraphLowering,
    x: TensorValue,
    indices: TensorValue,
    size: Sequence[IntLike],
    *_strides: Any,
) -> Any:
    if not _is_possible("set", x, indices) or indices.size != x.size:
        return DECLINED
    if not x.dtype.is_floating_point:
        return DECLINED
    lead, plane = x.ndim - len(size), tuple(size)
    if 0 in plane:  # eager looks at no index then
        return DECLINED
    shape = "x".join(map(str, plane))
    failure = (
        f"RuntimeError: Found an invalid max index: {{}} (output volumes are of size {shape})"
    )

    def place(b: BodyBuilder, index: Index) -> list[Expr]:
        flat = b.indirect(indices.load(b, index), product(plane), failure, wrap=False)
        return [*index[:lead], *unravelled(flat, plane)]

    zeros = g.lazy(lambda b, index: b.constant(0, x.dtype))
    return _scattered(g, zeros, x.size, place, ("set", x.load))


@register(aten.put.default)
def lower_put(
    g: GraphLowering,
    x: TensorValue,
    indices: TensorValue,
    source: TensorValue,
    accumulate: bool = False,
) -> Any:
    how = "sum" if accumulate else "set"
    if not _is_possible(how, x, indices, source) or indices.size != source.size:
        return DECLINED
    if source.dtype != x.dtype:
        return DECLINED  # eager says what is wrong
    total = x.numel()

    def place(b: BodyBuilder, index: Index) -> list[Expr]:
        flat = b.indirect(indices.load(b, index), total, OUT_OF_ALL % total)
        return unravelled(flat, x.size)

    return _scattered(g, x, indices.size, place, (how, source.load))


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
    if (
        not _is_possible("sum", grad, indices)
        or scale_grad_by_freq
        or not isinstance(rows, int)
    ):
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

    return _scattered(g, zeros, grad.size, place, ("sum", value))
