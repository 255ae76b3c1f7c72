"""Operators that choose elements by position: concatenation, padding, triangles, slice scatter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Index, TensorValue
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.in_place import own_memory, write_part
from minidynamo.inductor.lowering.promotion import compute_type
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.lowering.views import wrap
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import ZERO, Expr, IntLike, as_expr, is_less, is_nonneg
from minidynamo.inductor.targets import uses_triton

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
# Pieces of a concatenation among which every element chooses.
MAX_CHOSEN_PIECES = 8


def in_bounds(
    b: BodyBuilder,
    index: Expr,
    low: IntLike,
    high: IntLike,
) -> Value | None:
    """Whether low <= index < high, as a bool value; None where that is always so."""
    tests = []
    if not is_nonneg(index - low):
        tests.append(b.op("ge", b.index_expr(index), b.index_expr(low)))
    if not is_less(index, ZERO + high):
        tests.append(b.op("lt", b.index_expr(index), b.index_expr(high)))
    if not tests:
        return None
    return tests[0] if len(tests) == 1 else b.op("bitwise_and", *tests)


def select(
    b: BodyBuilder,
    mask: Value | None,
    inside: Callable[[], Value],
    outside: Callable[[], Value],
) -> Value:
    """`inside()` where the mask holds (its loads touch memory only there), else `outside()`."""
    if mask is None:
        return inside()
    with b.masked(mask):
        value = inside()
    return b.op("where", mask, value, outside())


@register(aten.cat.default)
def lower_cat(
    g: GraphLowering,
    tensors: Sequence[TensorValue],
    dim: int = 0,
) -> Any:
    """Each piece is written by its own loops into its part of the result; a few on a GPU are
    chosen from element by element, so that operators behind take part.
    """
    at = wrap(dim, g.meta.dim())
    pieces = [x for x in tensors if not (x.ndim == 1 and x.size[0] == 0 and g.meta.dim() != 1)]
    pieces = [x for x in pieces if x.size[at] != 0]
    if uses_triton(g.meta.device.type) and 0 < len(pieces) <= MAX_CHOSEN_PIECES:
        return _chosen(g, pieces, at)
    return g.assemble(pieces, at)


def _chosen(
    g: GraphLowering,
    pieces: Sequence[TensorValue],
    dim: int,
) -> TensorValue:
    compute = compute_type(g.meta.dtype)

    def inner(
        b: BodyBuilder,
        index: Index,
    ) -> Value:
        def piece(
            x: TensorValue,
            start: IntLike,
        ) -> Value:
            return b.cast(
                x.load(b, [*index[:dim], index[dim] - start, *index[dim + 1 :]]), compute
            )

        starts: list[IntLike] = [0]
        for x in pieces:
            starts.append(starts[-1] + x.size[dim])
        value: Value | None = None
        for x, low, high in reversed(list(zip(pieces, starts[:-1], starts[1:], strict=True))):
            mask = in_bounds(b, index[dim], low, high)
            if mask is None:
                return piece(x, low)
            with b.masked(mask):
                own = piece(x, low)
            value = own if value is None else b.op("where", mask, own, value)
        assert value is not None
        return value

    return g.lazy(inner, pieces, cost=2 * len(pieces))


@register(aten.constant_pad_nd.default)
def lower_pad(
    g: GraphLowering,
    x: TensorValue,
    pad: Sequence[int],
    value: Any = 0,
) -> Any:
    compute = compute_type(x.dtype)
    lead = x.ndim - len(pad) // 2
    before = [0] * lead + [pad[2 * (x.ndim - 1 - d)] for d in range(lead, x.ndim)]

    def inner(
        b: BodyBuilder,
        index: Index,
    ) -> Value:
        source = [i - before[d] for d, i in enumerate(index)]
        mask: Value | None = None
        for i, extent in zip(source, x.size, strict=True):
            test = in_bounds(b, i, 0, extent)
            if test is not None:
                mask = test if mask is None else b.op("bitwise_and", mask, test)
        return select(b, mask, lambda: x.load(b, source), lambda: b.constant(value, compute))

    return g.lazy(inner, (x,), cost=4)


def _triangle(
    name: str,
    test: str,
) -> Callable[..., Any]:
    def lower(
        g: GraphLowering,
        x: TensorValue,
        diagonal: int = 0,
    ) -> Any:
        compute = compute_type(x.dtype)

        def inner(
            b: BodyBuilder,
            index: Index,
        ) -> Value:
            distance = b.index_expr(index[-1] - index[-2])
            keep = b.op(test, distance, b.constant(diagonal, torch.int64))
            return select(b, keep, lambda: x.load(b, index), lambda: b.constant(0, compute))

        return g.lazy(inner, (x,), cost=3)

    lower.__name__ = f"lower_{name}"
    return lower


register(aten.tril.default)(_triangle("tril", "le"))
register(aten.triu.default)(_triangle("triu", "ge"))


@register(aten.slice_scatter.default)
def lower_slice_scatter(
    g: GraphLowering,
    x: TensorValue,
    source: TensorValue,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Any:
    at = wrap(dim, x.ndim)
    extent = x.size[at]
    first, part = _places(extent, start, end, step)
    last = first + (source.size[at] - 1) * step + 1
    if source.size != (*x.size[:at], part, *x.size[at + 1 :]):
        return DECLINED  # eager's error
    buffer = own_memory(g, x, source)
    if buffer is not None:
        place = lambda b, i: [*i[:at], i[at] * step + first, *i[at + 1 :]]  # noqa: E731
        return write_part(g, buffer, source.size, place, source.load)

    begin = _own_part(g.node, at, extent) if step == 1 and isinstance(extent, int) else None
    if begin is not None:
        return _copied_within(g, x, at, (first, last), begin)

    def inner(
        b: BodyBuilder,
        index: Index,
    ) -> Value:
        mask = in_bounds(b, index[at], first, last)
        distance = index[at] - first
        if step != 1:
            # Counted from a multiple of the step below zero, where division rounds down as well.
            counted = distance + first // step * step + step
            hit = b.op("eq", b.index_expr(counted % step), b.index_expr(0))
            mask = hit if mask is None else b.op("bitwise_and", mask, hit)
            distance = counted // step - (first // step + 1)
        own = [*index[:at], distance, *index[at + 1 :]]
        return select(
            b,
            mask,
            lambda: b.cast(source.load(b, own), compute_type(x.dtype)),
            lambda: x.load(b, index),
        )

    return g.lazy(inner, (x, source), cost=3)


def _places(
    extent: IntLike,
    start: Any,
    end: Any,
    step: int,
) -> tuple[IntLike, IntLike]:
    """Where a slice begins, and of how many places it is; `Undecided` where that is not proven."""
    ends: list[IntLike] = []
    for given, default in ((start, 0), (end, extent)):
        place = default if given is None or given == sys.maxsize else given
        place = place + extent if place < 0 else place
        ends.append(0 if place < 0 else extent if place > extent else place)
    first, last = ends
    if step == 1:
        return first, last - first if last > first else 0
    return first, len(range(int(first), int(last), step))


def _own_part(
    node: torch.fx.Node,
    dim: int,
    extent: int,
) -> int | None:
    """Where the part begins, if what is written is a part of the same tensor along `dim`."""
    x, source = node.args[:2]
    if not isinstance(source, torch.fx.Node) or source.target is not aten.slice.Tensor:
        return None
    given: Sequence[Any] = source.args
    defaults: Sequence[Any] = (0, None, None, 1)
    own, start, end, step = [*given[1:], *defaults[len(given) - 1 :]]
    if given[0] is not x or step != 1 or own not in (dim, dim - source.meta["val"].dim()):
        return None
    ends = [end.meta["val"] if isinstance(end, torch.fx.Node) else end for end in (start, end)]
    known = [n.node.maybe_as_int() if isinstance(n, torch.SymInt) else n for n in ends]
    if any(k is None and n is not None for k, n in zip(known, ends, strict=True)):
        return None
    return range(extent)[slice(*known)].start


def _copied_within(
    g: GraphLowering, x: TensorValue, dim: int, bounds: tuple[IntLike, IntLike], begin: int
) -> TensorValue:
    """The positions `bounds` along `dim` have what is from `begin` on: one read, of either."""

    def inner(
        b: BodyBuilder,
        index: Index,
    ) -> Value:
        mask, here = in_bounds(b, index[dim], *bounds), b.index_expr(index[dim])
        there = b.index_expr(index[dim] - bounds[0] + begin)
        place = there if mask is None else b.op("where", mask, there, here)
        own = b.indirect(place, x.size[dim], wrap=False)
        return x.load(b, [*index[:dim], own, *index[dim + 1 :]])

    return g.lazy(inner, (x,))


@register(aten.diagonal_scatter.default)
def lower_diagonal_scatter(
    g: GraphLowering,
    x: TensorValue,
    source: TensorValue,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
) -> Any:
    row, column = wrap(dim1, x.ndim), wrap(dim2, x.ndim)
    if any(extent == 0 for extent in source.size) or not all(type(n) is int for n in x.size):
        return DECLINED
    part = torch.empty(x.size, device="meta").diagonal(offset, dim1, dim2)  # type: ignore[arg-type]
    if source.size != part.shape:
        return DECLINED  # eager's error

    def inner(
        b: BodyBuilder,
        index: Index,
    ) -> Value:
        hit = b.op("eq", b.index_expr(index[row] + offset), b.index_expr(index[column]))
        rest = [i for d, i in enumerate(index) if d not in (row, column)]
        own = [*rest, index[row] if offset >= 0 else index[column]]
        return select(
            b,
            hit,
            lambda: b.cast(source.load(b, own), compute_type(x.dtype)),
            lambda: x.load(b, index),
        )

    return g.lazy(inner, (x, source), cost=3)


@register(aten.select_scatter.default)
def lower_select_scatter(
    g: GraphLowering,
    x: TensorValue,
    source: TensorValue,
    dim: int,
    position: int,
) -> Any:
    at = wrap(dim, x.ndim)
    where = position + x.size[at] if position < 0 else position
    outside = isinstance(where, int) and not 0 <= where < hint_of(x.size[at], where + 1)
    if outside or source.size != (*x.size[:at], *x.size[at + 1 :]):
        return DECLINED  # eager's error
    buffer = own_memory(g, x, source)
    if buffer is not None:
        place = lambda b, i: [*i[:at], as_expr(where), *i[at:]]  # noqa: E731
        return write_part(g, buffer, source.size, place, source.load)

    def inner(
        b: BodyBuilder,
        index: Index,
    ) -> Value:
        hit = b.op("eq", b.index_expr(index[at]), b.index_expr(where))
        own = [*index[:at], *index[at + 1 :]]
        return select(
            b,
            hit,
            lambda: b.cast(source.load(b, own), compute_type(x.dtype)),
            lambda: x.load(b, index),
        )

    return g.lazy(inner, (x, source), cost=3)
