"""Views: operators that rearrange, repeat or cut out elements without computing.

On memory that exists, the geometry is the fake tensor's. On a value without memory, the index is
transformed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Buffer, Index, Size, TensorValue, View
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.stale_views import storage_of
from minidynamo.inductor.symbolic import ZERO, Expr, contiguous_strides, dot, is_nonneg

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten


def wrap(
    dim: int,
    ndim: int,
) -> int:
    return dim + max(ndim, 1) if dim < 0 else dim


def linear_index(
    index: Index,
    size: Size,
) -> Expr:
    """Row-major position of `index`."""
    return dot(index, contiguous_strides(size))


def reshape_index(
    index: Index,
    old: Size,
    new: Size,
) -> list[Expr]:
    """The index into `old` of the element that is at `index` of `new` (both row-major, equal
    numel).

    Dimensions that are the same in both stay what they are, which matters where only a mask says
    that an index is within its dimension.
    """
    result = [ZERO for _ in old]
    if any(extent == 0 for extent in old):
        return result
    for own, others in _regrouped(old, new):
        if len(own) == len(others) == 1:
            result[own[0]] = index[others[0]]
            continue
        position = linear_index([index[d] for d in others], tuple(new[d] for d in others))
        sizes = tuple(old[d] for d in own)
        for d, step in zip(own, contiguous_strides(sizes), strict=True):
            result[d] = (position // step) % old[d]
    return result


def _regrouped(
    old: Size,
    new: Size,
) -> Iterator[tuple[list[int], list[int]]]:
    """Dimensions of `old`, and those of `new` that have the same elements, last ones first; those
    of one element are left out.
    """
    own = [d for d, extent in enumerate(old) if extent != 1]
    others = [d for d, extent in enumerate(new) if extent != 1]
    while own and others:
        first, second = len(own) - 1, len(others) - 1
        a, b = old[own[first]], new[others[second]]
        while a != b:
            if not (isinstance(a, int) and isinstance(b, int)):
                yield own, others  # their sizes do not say
                return
            if a < b:
                first -= 1
                a = a * old[own[first]]
            else:
                second -= 1
                b = b * new[others[second]]
        yield own[first:], others[second:]
        own, others = own[:first], others[:second]


@register(aten.view, aten._unsafe_view.default, aten.reshape, aten._reshape_alias)
def lower_view(
    g: GraphLowering,
    x: TensorValue,
    size: Any,
    *strides: Any,
) -> Any:
    if isinstance(size, torch.dtype):
        return _view_dtype(g, x, size)
    old, new = x.size, tuple(g.meta.shape)
    if old == new:
        return x
    return g.view(x, lambda index: reshape_index(index, old, new))


def _view_dtype(
    g: GraphLowering,
    x: TensorValue,
    dtype: torch.dtype,
) -> Any:
    if dtype.itemsize != x.dtype.itemsize or torch.bool in (dtype, x.dtype):
        return DECLINED
    if _results_on_memory(g.node) > 1 or _is_storage_read(g.node):
        return DECLINED  # a kernel would give them memory of their own

    def inner(
        b: BodyBuilder,
        index: Index,
    ) -> Value:
        bits = b.cast(x.load(b, index), x.dtype)
        return b.compute(bits if dtype == x.dtype else b.bitcast(bits, dtype))

    return g.lazy(inner, (x,))


def _results_on_memory(
    node: torch.fx.Node,
) -> int:
    """How many results of the graph lie in the memory of the node's."""
    memory = _memories(node)
    results = [_memories(result) for result in node.graph.output_node().all_input_nodes]
    return sum(not memory.isdisjoint(other) for other in results)


def _memories(
    node: torch.fx.Node,
) -> set[int]:
    """The storages of its value and of what that is a view of: a graph that was captured has one
    for each new value of what was written to.
    """
    found: set[int] = set()
    while isinstance(value := node.meta.get("val"), torch.Tensor):
        if value.layout is torch.strided:
            found.add(storage_of(value))
        if not getattr(node.target, "is_view", False):
            break
        node = node.args[0]  # type: ignore[assignment]
    return found


def _is_storage_read(
    node: torch.fx.Node,
) -> bool:
    """Whether a view of the node's may show any part of the storage."""
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    storage = storage_of(node.meta["val"])
    views = [user for user in node.users if isinstance(user.meta.get("val"), torch.Tensor)]
    views = [user for user in views if storage_of(user.meta["val"]) == storage]
    return any(v.target is aten.as_strided.default or _is_storage_read(v) for v in views)


@register(aten.permute)
def lower_permute(
    g: GraphLowering,
    x: TensorValue,
    dims: Sequence[int],
) -> Any:
    order = [wrap(d, x.ndim) for d in dims]
    inverse = [order.index(d) for d in range(len(order))]
    return g.view(x, lambda index: [index[d] for d in inverse])


@register(aten.transpose.int)
def lower_transpose(
    g: GraphLowering,
    x: TensorValue,
    dim0: int,
    dim1: int,
) -> Any:
    if x.ndim == 0:
        return x
    order = list(range(x.ndim))
    a, b = wrap(dim0, x.ndim), wrap(dim1, x.ndim)
    order[a], order[b] = order[b], order[a]
    return lower_permute(g, x, order)


@register(aten.t)
def lower_t(
    g: GraphLowering,
    x: TensorValue,
) -> Any:
    return x if x.ndim < 2 else lower_permute(g, x, [1, 0])


@register(aten.expand)
def lower_expand(
    g: GraphLowering,
    x: TensorValue,
    size: Any,
    implicit: bool = False,
) -> Any:
    new = tuple(g.meta.shape)
    if new == x.size:
        return x
    lead = len(new) - x.ndim

    def reindex(
        index: Index,
    ) -> Index:
        return [
            ZERO if extent == 1 else i for extent, i in zip(x.size, index[lead:], strict=True)
        ]

    return g.view(x, reindex)


@register(aten.unsqueeze)
def lower_unsqueeze(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
) -> Any:
    at = wrap(dim, x.ndim + 1)
    return g.view(x, lambda index: [*index[:at], *index[at + 1 :]])


@register(aten.squeeze)
def lower_squeeze(
    g: GraphLowering,
    x: TensorValue,
    dims: Any = None,
) -> Any:
    if dims is None:
        dims = range(x.ndim)
    chosen = {wrap(d, x.ndim) for d in ([dims] if isinstance(dims, int) else dims)}
    if x.ndim == 0:
        return x
    dropped = {d for d in chosen if x.size[d] == 1}
    if not dropped:
        return x

    def reindex(
        index: Index,
    ) -> Index:
        rest = iter(index)
        return [ZERO if d in dropped else next(rest) for d in range(x.ndim)]

    return g.view(x, reindex)


@register(aten.select.int)
def lower_select(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    position: Any,
) -> Any:
    at = wrap(dim, x.ndim)
    where = position + x.size[at] if position < 0 else position
    return g.view(x, lambda index: [*index[:at], ZERO + where, *index[at:]])


@register(aten.slice.Tensor)
def lower_slice(
    g: GraphLowering,
    x: TensorValue,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Any:
    at, new = wrap(dim, x.ndim), tuple(g.meta.shape)
    if new == x.size:
        return x
    extent = x.size[at]
    first = 0 if start is None else start
    first = min(max(first + extent if first < 0 else first, 0), extent)  # type: ignore[operator,type-var]
    return g.view(x, lambda index: [*index[:at], index[at] * step + first, *index[at + 1 :]])


def _piece(
    g: GraphLowering,
    x: TensorValue,
    fake: torch.Tensor,
    dim: int,
    first: int,
) -> TensorValue:
    """A slice of `x` along `dim` that begins at `first`, with the geometry of `fake`."""
    return g.view_like(
        x,
        lambda index: [*index[:dim], index[dim] + first, *index[dim + 1 :]],
        fake,
    )


@register(
    aten.split.Tensor, aten.split_with_sizes, aten.unsafe_split, aten.unsafe_split_with_sizes
)
def lower_split(
    g: GraphLowering,
    x: TensorValue,
    sizes: Any,
    dim: int = 0,
) -> Any:
    at, first, pieces = wrap(dim, x.ndim), 0, []
    for fake in g.meta:
        pieces.append(_piece(g, x, fake, at, first))
        first += fake.shape[at]
    return pieces


@register(aten.unbind.int)
def lower_unbind(
    g: GraphLowering,
    x: TensorValue,
    dim: int = 0,
) -> Any:
    at = wrap(dim, x.ndim)

    def one(
        position: int,
        fake: torch.Tensor,
    ) -> TensorValue:
        return g.view_like(
            x,
            lambda index: [*index[:at], ZERO + position, *index[at:]],
            fake,
        )

    return [one(position, fake) for position, fake in enumerate(g.meta)]


@register(aten.as_strided.default)
def lower_as_strided(
    g: GraphLowering,
    x: TensorValue,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Any part of a storage: read in kernels only where it is known to lie in memory of our own.
    Where an input lies in its storage, and how long that is, differs from call to call.
    """
    view, memory = lower_memory_view(g, x), g.realize(x).buffer
    if view is DECLINED or memory.kind != "computed":
        return DECLINED
    first = view.data.offset
    behind = first + Buffer("", x.dtype, view.size, view.layout, x.device).extent()
    spare = memory.extent() - behind
    ends = [end if isinstance(end, Expr) else ZERO + end for end in (first, spare)]
    return view if all(map(is_nonneg, ends)) else DECLINED


@register(aten.diagonal.default, aten.unfold.default)
def lower_memory_view(
    g: GraphLowering,
    x: TensorValue,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Views that are defined on memory, or rare: the value is given memory first."""
    view = g.realize(x)
    if not view.exact:
        return DECLINED
    fake = g.meta
    offset = view.offset + g.moved(fake)
    data = View(view.buffer, tuple(fake.shape), tuple(fake.stride()), offset)
    return TensorValue(data, x.dtype, data.size, x.device, data.stride)


# -- rearrangements that give new memory -----------------------------------------------------------


@register(aten.flip.default)
def lower_flip(
    g: GraphLowering,
    x: TensorValue,
    dims: Sequence[int],
) -> Any:
    flipped = {wrap(d, x.ndim) for d in dims}

    def reindex(
        index: Index,
    ) -> list[Expr]:
        return [
            x.size[d] - 1 - i if d in flipped else i  # type: ignore[misc]
            for d, i in enumerate(index)
        ]

    return g.lazy(lambda b, index: x.load(b, reindex(index)), (x,))


@register(aten.repeat.default)
def lower_repeat(
    g: GraphLowering,
    x: TensorValue,
    repeats: Sequence[int],
) -> Any:
    lead = len(repeats) - x.ndim

    def reindex(
        index: Index,
    ) -> list[Expr]:
        return [
            i % extent if extent != 1 else ZERO
            for extent, i in zip(x.size, index[lead:], strict=True)
        ]

    if any(extent == 0 for extent in x.size):
        return DECLINED
    return g.lazy(lambda b, index: x.load(b, reindex(index)), (x,))


@register(aten.roll.default)
def lower_roll(
    g: GraphLowering,
    x: TensorValue,
    shifts: Sequence[int],
    dims: Sequence[int] = (),
) -> Any:
    if not dims or any(extent == 0 for extent in x.size):
        return DECLINED
    amount = dict.fromkeys(range(x.ndim), 0)
    for shift, dim in zip(shifts, dims, strict=True):
        amount[wrap(dim, x.ndim)] += shift

    def reindex(
        index: Index,
    ) -> list[Expr]:
        return [
            (i + (-amount[d] % x.size[d])) % x.size[d] if amount[d] else i  # type: ignore[operator]
            for d, i in enumerate(index)
        ]

    return g.lazy(lambda b, index: x.load(b, reindex(index)), (x,))
