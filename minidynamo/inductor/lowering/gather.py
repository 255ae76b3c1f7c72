"""Operators that read at computed positions: indexing with tensors, gather, embedding.

An index that is out of range makes the kernel fail with eager's exception; nothing is read there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Index, Lazy, Size, TensorValue
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.promotion import category, compute_type
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.lowering.views import wrap
from minidynamo.inductor.passes.data_checks import ONE_HOT
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import ZERO, Expr, IntLike, contiguous_strides, product
from minidynamo.inductor.targets import uses_triton

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
OUTSIDE = "index {} is out of bounds for dimension %s with size %s"
OUT_OF_ALL = "IndexError: out of range: tried to access index {} on a tensor of %s elements."
# Computing a value again for every time it is read is dearer than this: give it memory.
SOURCE_COST = 6
# Arithmetic of a position that is not counted where it depends on nothing but the position.
FREE_POSITION = 8
# A position that costs more than that is kept where so many elements are read with it.
FEW_ELEMENTS = 3


def prepared(
    g: GraphLowering,
    x: TensorValue,
    reads: IntLike,
) -> None:
    """Make `x` the source of so many reads at computed positions: few of a large value (the
    target's log-probability out of a vocabulary's) are computed, others find it in memory.
    """
    if not isinstance(x.data, Lazy):
        return
    few = hint_of(reads) * max(x.cost, SOURCE_COST) <= hint_of(x.numel())
    if not few and (x.cost >= SOURCE_COST or x.reads > 1):
        g.realize(x)


def _keep_positions(
    g: GraphLowering,
    *positions: TensorValue,
) -> None:
    """Give memory to positions that are dear and serve several elements (a bias for each head by
    the logarithm of a distance): loops over these may be outside of those over the positions.
    """
    if uses_triton(g.meta.device.type):
        return  # a launch is dearer
    reads = hint_of(product(g.meta.shape))
    for place in positions:
        is_dear = isinstance(place.data, Lazy) and place.cost > FREE_POSITION
        if is_dear and hint_of(place.numel()) * FEW_ELEMENTS <= reads:
            g.realize(place)


def broadcast_index(x: TensorValue, index: Index) -> list[Expr]:
    """The index into `x` of an element of a shape that it is broadcast to."""
    own = index[len(index) - x.ndim :]
    return [ZERO if extent == 1 else i for extent, i in zip(x.size, own, strict=True)]


def unravelled(place: Expr, size: Size) -> list[Expr]:
    """The index of the element at a row-major position."""
    steps = zip(size, contiguous_strides(size), strict=True)
    return [ZERO if n == 1 else (place // step) % n for n, step in steps]


def is_broadcastable(size: Size, to: Size) -> bool:
    """Whether memory of this size is broadcast to size `to`, for sure."""
    own = to[len(to) - len(size) :]
    return len(size) <= len(to) and all(a in (1, b) for a, b in zip(size, own, strict=True))


def is_empty(x: TensorValue) -> bool:
    return any(extent == 0 for extent in x.size)


class Places:
    """The dimensions of a source that tensors index, and where the result has theirs.

    Attributes:
        dims: which dimensions of the source are indexed; `tensors`: by what.
        first: where the common shape of the tensors stands in the result; ndim: its length.
    """

    def __init__(self, indices: Sequence[TensorValue | None]) -> None:
        self.dims = [d for d, t in enumerate(indices) if t is not None]
        self.tensors = [t for t in indices if t is not None]
        self.ndim = max(t.ndim for t in self.tensors)
        adjacent = self.dims == list(range(self.dims[0], self.dims[0] + len(self.dims)))
        self.first = self.dims[0] if adjacent else 0

    def source(
        self,
        x: TensorValue,
        index: Index,
        position: Callable[[int, Index], Expr],
    ) -> list[Expr]:
        """The index into `x` for an index of the result; `position(dim, index of the tensors)`."""
        common = index[self.first : self.first + self.ndim]
        rest = iter([*index[: self.first], *index[self.first + self.ndim :]])
        return [position(d, common) if d in self.dims else next(rest) for d in range(x.ndim)]


def _is_integer(x: TensorValue) -> bool:
    return category(x.dtype) == 1


def lookup(
    b: BodyBuilder,
    x: TensorValue,
    places: Places,
    dim: int,
    index: Index,
    kind: str | None,
) -> Expr:
    """The position along `dim` that its tensor has at `index`; kind: the exception for a bad one,
    whose text counts the dimensions that are indexed.
    """
    number = places.dims.index(dim)
    tensor = places.tensors[number]
    value = tensor.load(b, broadcast_index(tensor, index))
    failure = None if kind is None else f"{kind}: {OUTSIDE % (number, x.size[dim])}"
    return b.indirect(value, x.size[dim], failure)


def _lower_index(kind: str | None) -> Callable[..., Any]:
    def lower(
        g: GraphLowering,
        x: TensorValue,
        indices: Sequence[TensorValue | None],
    ) -> Any:
        tensors = [t for t in indices if t is not None]
        if not tensors or not all(map(_is_integer, tensors)) or is_empty(x):
            return DECLINED
        if any(t.dtype == torch.uint8 for t in tensors):
            return DECLINED  # a mask
        places = Places(indices)
        prepared(g, x, product(g.meta.shape))
        if kind is not None:
            _keep_positions(g, *tensors)

        def inner(b: BodyBuilder, index: Index) -> Value:
            source = places.source(x, index, lambda d, own: lookup(b, x, places, d, own, kind))
            return x.load(b, source)

        # Positions that are no elements of memory are computed once a row, or tested nowhere.
        free = sum(t.cost for t in tensors if not t.reads and t.cost <= FREE_POSITION)
        return g.lazy(inner, (x, *tensors), cost=2 - free)

    return lower


register(aten.index.Tensor)(_lower_index("IndexError"))
register(aten._unsafe_index.Tensor)(_lower_index(None))


@register(aten._unsafe_masked_index.default)
def lower_masked_index(
    g: GraphLowering,
    x: TensorValue,
    mask: TensorValue,
    indices: Sequence[TensorValue | None],
    fill: Any,
) -> Any:
    tensors = [t for t in indices if t is not None]
    if not tensors or is_empty(x) or isinstance(fill, complex):
        return DECLINED
    places = Places(indices)
    prepared(g, x, product(g.meta.shape))

    def inner(b: BodyBuilder, index: Index) -> Value:
        keep = b.cast(mask.load(b, broadcast_index(mask, index)), torch.bool)
        source = places.source(x, index, lambda d, own: lookup(b, x, places, d, own, None))
        with b.masked(keep):
            value = x.load(b, source)
        return b.op("where", keep, value, b.constant(fill, compute_type(x.dtype)))

    return g.lazy(inner, (x, mask, *tensors), cost=3)


def are_row_numbers(indices: TensorValue) -> bool:
    return indices.ndim <= 1 and indices.dtype in (torch.int32, torch.int64)


@register(aten.index_select.default)
def lower_index_select(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
) -> Any:
    if x.ndim == 0 or is_empty(x) or not are_row_numbers(indices):
        return DECLINED
    at = wrap(dim, x.ndim)
    prepared(g, x, product(g.meta.shape))
    _keep_positions(g, indices)

    def inner(b: BodyBuilder, index: Index) -> Value:
        value = indices.load(b, [index[at]] if indices.ndim else [])
        text = "IndexError: index out of range in self"
        place = b.indirect(value, x.size[at], text, wrap=False)
        return x.load(b, [*index[:at], place, *index[at + 1 :]])

    return g.lazy(inner, (x, indices), cost=2)


@register(aten.gather.default)
def lower_gather(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    *,
    sparse_grad: bool = False,
) -> Any:
    if x.ndim == 0 or indices.ndim != x.ndim or is_empty(x):
        return DECLINED
    at = wrap(dim, x.ndim)
    prepared(g, x, product(g.meta.shape))
    failure = f"RuntimeError: {OUTSIDE % (at, x.size[at])}"

    def inner(b: BodyBuilder, index: Index) -> Value:
        place = b.indirect(indices.load(b, index), x.size[at], failure, wrap=False)
        return x.load(b, [*index[:at], place, *index[at + 1 :]])

    return g.lazy(inner, (x, indices), cost=2)


@register(aten.embedding.default)
def lower_embedding(
    g: GraphLowering,
    weight: TensorValue,
    indices: TensorValue,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if is_empty(weight) or weight.ndim != 2:
        return DECLINED
    prepared(g, weight, product(g.meta.shape))
    _keep_positions(g, indices)

    def inner(b: BodyBuilder, index: Index) -> Value:
        text = "IndexError: index out of range in self"
        row = b.indirect(indices.load(b, index[:-1]), weight.size[0], text, wrap=False)
        return weight.load(b, [row, index[-1]])

    return g.lazy(inner, (weight, indices), cost=2)


@register(ONE_HOT)
def lower_one_hot(
    g: GraphLowering,
    x: TensorValue,
    classes: int,
) -> Any:
    def inner(b: BodyBuilder, index: Index) -> Value:
        place = b.cast(x.load(b, index[:-1]), torch.int64)
        for name, bound, text in (
            ("ge", 0, "non-negative."),
            ("lt", classes, "smaller than num_classes."),
        ):
            good = b.op(name, place, b.constant(bound, torch.int64))
            place = b.check(place, good, f"RuntimeError: Class values must be {text}")
        return b.cast(b.op("eq", place, b.index_expr(index[-1])), torch.int64)

    return g.lazy(inner, (x,), cost=3)


@register(aten.take.default)
def lower_take(
    g: GraphLowering,
    x: TensorValue,
    indices: TensorValue,
) -> Any:
    if is_empty(x):
        return DECLINED
    prepared(g, x, product(g.meta.shape))
    total = x.numel()

    def inner(b: BodyBuilder, index: Index) -> Value:
        place = b.indirect(indices.load(b, index), total, OUT_OF_ALL % total)
        return x.load(b, unravelled(place, x.size))

    return g.lazy(inner, (x, indices), cost=3)
