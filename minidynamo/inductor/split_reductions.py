"""Reductions to few results on a GPU, in two steps so that all of it has work.

One program reduces one row (or some columns). A sum of 16 million elements would keep a single
multiprocessor busy; `split` cuts what is reduced into pieces, lets a first kernel reduce each of
them into memory, and leaves the reduction of those to the second. `whole_pieces` are such that a
program has one in registers: what walks over its rows several times then reads memory once. Nothing
of it concerns CPUs, where the kernel itself shares a long row among threads.

Whether rows or columns are reduced is seen from the strides: channels last, the planes of an image
are columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from minidynamo.inductor.ir import Index, Inner, Lazy, Size, TensorValue, View, loop_index
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.ops import REDUCTIONS
from minidynamo.inductor.origins import origin_of
from minidynamo.inductor.symbolic import (
    Expr,
    IntLike,
    contiguous_strides,
    dot,
    loop_symbol,
    symbol_expr,
)
from minidynamo.inductor.targets import uses_triton

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

# Programs that keep a large GPU busy, and how few of them are worth a second kernel.
BUSY, FEW = 1024, 128
# Of a large matrix' columns, whose programs have few threads, more are needed.
FEW_COLUMNS, LARGE = 512, 1 << 22
# Columns that one program reduces together (`codegen/triton_tile.py`).
COLUMNS = 32
# A piece has at least so many elements of a row, or of a column; and a whole row so many that a
# second launch pays. In registers it has at most so many.
ROW_PIECE, COLUMN_PIECE = 2048, 64
LONG_ROW = 1 << 15
WHOLE_ROW, WHOLE_COLUMN = 8192, 128
KINDS = {"sum", "prod", "max", "min", "any", "all"}
_LAST = (1 << 63) - 1
Reduction = tuple[Inner, Size, Sequence[int], Size | None]


@dataclass(frozen=True, slots=True)
class Cut:
    """Where what is reduced is cut.

    Attributes:
        outer: reduced dimensions that are taken apart, each of their indices is in other pieces.
        at: the dimension that is cut, into so many `pieces`.
        step: its extent in a piece; the last one may have less.
        reduced: the reduced dimensions, outermost in memory first; those behind `at` are whole.
    """

    outer: tuple[int, ...]
    at: int
    pieces: int
    step: int
    reduced: tuple[int, ...]


def memory_order(
    size: Sequence[IntLike],
    layout: Size | None,
) -> list[int]:
    """The dimensions, outermost in memory first; the given order where strides are not known."""
    strides = [stride for stride in layout or () if isinstance(stride, int)]
    if len(strides) < len(size):
        return list(range(len(size)))
    return sorted(range(len(size)), key=lambda d: -strides[d])


def split(
    g: GraphLowering,
    kind: str,
    inner: Inner,
    size: Size,
    dims: Sequence[int],
    device: torch.device,
    origins: tuple[str, ...],
    layout: Size | None,
) -> Reduction:
    """The reduction that is left to do: the one given, or that of the pieces' results. layout: the
    strides of what is read, if it has any; given back where the order of loops is to follow it.
    """
    if not uses_triton(device.type):
        return inner, size, dims, None
    sizes = [extent for extent in size if isinstance(extent, int)]
    if len(sizes) < len(size) or kind not in KINDS or 0 in sizes:
        return inner, size, dims, layout
    order = memory_order(sizes, layout)
    cut = choose_cut(sizes, dims, order)
    if cut is None:
        return inner, size, dims, layout
    partial = _reduce_pieces(g, kind, inner, sizes, order, cut, device, origins)
    return partial.load, partial.size, dims, partial.layout


def split_position(
    g: GraphLowering,
    kind: str,
    inner: Inner,
    size: Size,
    dims: Sequence[int],
    origins: tuple[str, ...],
) -> TensorValue | None:
    """`argmax` or `argmin` in two steps, with `keepdim` shape; None where that is not worth it.

    Of each piece both the extreme and its position are kept. Of the pieces that have the extreme of
    all, or NaN, the first position counts.
    """
    device, names = g.meta_device(), (*origins, origin_of(g.node))
    sizes = [extent for extent in size if isinstance(extent, int)]
    if not uses_triton(device.type) or len(sizes) < len(size) or 0 in sizes:
        return None
    order = list(range(len(sizes)))
    cut = choose_cut(sizes, dims, order)
    if cut is None:
        return None
    extreme = kind.removeprefix("arg")
    values, places = (
        _reduce_pieces(g, name, inner, sizes, order, cut, device, names)
        for name in (extreme, kind)
    )
    best = g.reduce(extreme, values.load, values.size, dims, values.dtype, origins=origins)

    def before(
        index: Index,
    ) -> Expr:
        """How many elements come before those of the piece."""
        inside = math.prod(sizes[d] for d in dims if d > cut.at)
        count = index[cut.at] * (cut.step * inside)
        for d in cut.outer:
            count += index[d] * math.prod(sizes[k] for k in dims if k > d)
        return count

    def candidate(
        b: BodyBuilder,
        index: Index,
    ) -> Value:
        value = values.load(b, index)
        top = best.load(b, [i * 0 if d in dims else i for d, i in enumerate(index)])
        is_best = b.op("eq", value, top)
        if values.dtype.is_floating_point:
            is_best = b.op("bitwise_or", is_best, b.op("isnan", value))
        place = b.op("add", places.load(b, index), b.index_expr(before(index)))
        return b.op("where", is_best, place, b.constant(_LAST, torch.int64))

    return g.reduce("min", candidate, values.size, dims, torch.int64, origins=origins)


def whole_pieces(
    x: TensorValue,
    dims: Sequence[int],
) -> Cut | None:
    """Pieces of equal extent that registers hold, where `split` would cut; None where there are
    none, or none that are large enough.
    """
    sizes = [extent for extent in x.size if isinstance(extent, int)]
    if not uses_triton(x.device.type) or len(sizes) < x.ndim or 0 in sizes or not sizes:
        return None
    order = memory_order(sizes, x.layout)
    cut = choose_cut(sizes, dims, order)
    if cut is None:
        return None
    most = WHOLE_COLUMN
    if _last(sizes, order) in dims:
        length, count = (math.prod(sizes[d] for d in some) for some in (dims, cut.outer))
        most = min(WHOLE_ROW, length // (count * cut.pieces))
    inside, reduced = 1, cut.reduced
    for place in range(len(reduced) - 1, -1, -1):
        extent = sizes[reduced[place]]
        if inside * extent > most:
            step = next(n for n in range(most // inside, 0, -1) if extent % n == 0)
            if inside * step < most // 4:
                return None
            return Cut(reduced[:place], reduced[place], extent // step, step, reduced)
        inside *= extent
    return None


def cut_apart(
    x: TensorValue,
    cut: Cut,
) -> tuple[TensorValue, list[int], list[int]]:
    """`x` with the dimension of the cut as two, the pieces and what is inside; the dimensions that
    are reduced within a piece, and those that are left then.
    """
    at, step = cut.at, cut.step

    def inner(
        b: BodyBuilder,
        index: Index,
    ) -> Value:
        place = index[at] * step + index[at + 1]
        return x.load(b, [*index[:at], place, *index[at + 2 :]])

    size = (*x.size[:at], cut.pieces, step, *x.size[at + 1 :])
    layout = (*x.layout[:at], x.layout[at] * step, *x.layout[at:])
    apart = TensorValue(
        Lazy(inner, layout, x.cost, 1, x.origins), x.dtype, size, x.device, layout
    )
    moved = {d: d + (d > at) for d in cut.reduced}
    left = [*(moved[d] for d in cut.outer), at]
    within = [at + 1, *(moved[d] for d in cut.reduced if d != at and d not in cut.outer)]
    return apart, sorted(within), sorted(left)


def choose_cut(
    size: Sequence[int],
    dims: Sequence[int],
    order: Sequence[int],
) -> Cut | None:
    """Where to cut so that there are pieces enough; None: it is not worth it. It begins with the
    outermost dimension, so that pieces are long runs of memory.
    """
    wanted = count_pieces(size, dims, order)
    reduced = tuple(d for d in order if d in dims)
    outer, found = 0, 1
    while outer < len(reduced) - 1 and found * size[reduced[outer]] < wanted:
        found *= size[reduced[outer]]
        outer += 1
    extent = size[reduced[outer]]
    need = min(-(-wanted // found), extent)
    if found * need < 2:
        return None
    even = [n for n in range(need, max(need // 2, 1), -1) if extent % n == 0]
    pieces = even[0] if even else need
    return Cut(reduced[:outer], reduced[outer], pieces, -(-extent // pieces), reduced)


def _last(
    size: Sequence[int],
    order: Sequence[int],
) -> int:
    """The dimension of neighbouring elements."""
    return next((d for d in reversed(order) if size[d] != 1), 0)


def count_pieces(
    size: Sequence[int],
    dims: Sequence[int],
    order: Sequence[int],
) -> int:
    """How many pieces there are to be; 1: it is not worth it."""
    rows = math.prod(extent for d, extent in enumerate(size) if d not in dims)
    length = math.prod(size[d] for d in dims)
    by_column = _last(size, order) not in dims
    programs = -(-rows // COLUMNS) if by_column else rows
    few = FEW_COLUMNS if by_column and rows * length >= LARGE else FEW
    if programs >= few or (not by_column and length < LONG_ROW):
        return 1
    return max(min(BUSY // programs, length // (COLUMN_PIECE if by_column else ROW_PIECE)), 1)


def _reduce_pieces(
    g: GraphLowering,
    kind: str,
    inner: Inner,
    size: Sequence[int],
    order: Sequence[int],
    cut: Cut,
    device: torch.device,
    origins: tuple[str, ...],
) -> TensorValue:
    """The pieces' results: as long as there are pieces along the dimension that is cut, of extent 1
    along those that are whole in a piece. Those of one result are neighbours.
    """
    extents = list(size)
    for d in cut.reduced:
        if d not in cut.outer:
            extents[d] = cut.pieces if d == cut.at else 1
    kept: Size = tuple(extents)
    index, iters = loop_index(kept, "x", strides_in_order(kept, order))
    stride = strides_in_order(kept, [*(d for d in order if d not in cut.reduced), *cut.reduced])
    whole = [d for d in cut.reduced if d not in cut.outer and size[d] != 1]
    symbols = {d: loop_symbol(f"r{d}", cut.step if d == cut.at else size[d]) for d in whole}
    full = [symbol_expr(symbols[d]) if d in symbols else i for d, i in enumerate(index)]
    if cut.at in symbols:
        full[cut.at] = index[cut.at] * cut.step + full[cut.at]
    b = BodyBuilder(iters, tuple(symbols.values()))
    end = size[cut.at] if cut.step * cut.pieces > size[cut.at] else None
    value = b.reduction(kind, _guarded(b, kind, inner, full, cut.at, end))
    dtype = b.node(value).dtype
    buffer = g._new_buffer(dtype, kept, stride, device)
    b.store(buffer.name, dot(index, buffer.stride), value, dtype)
    g._append_computed(b, buffer, origins)
    view = View(buffer, kept, buffer.stride)
    return TensorValue(view, dtype, kept, device, buffer.stride)


def strides_in_order(
    size: Size,
    order: Sequence[int],
) -> Size:
    """Strides of a dense tensor whose dimensions are in this order in memory, outermost first."""
    dense = contiguous_strides(tuple(size[d] for d in order))
    return tuple(dense[list(order).index(d)] for d in range(len(size)))


def _guarded(
    b: BodyBuilder, kind: str, inner: Inner, index: Index, at: int, end: int | None
) -> Value:
    """The element at `index`, or the reduction's identity behind `end` along `at`."""
    if end is None:
        return inner(b, index)
    exists = b.op("lt", b.index_expr(index[at]), b.index_expr(end))
    with b.masked(exists):
        value = inner(b, index)
    dtype = b.node(value).dtype
    identity = _identity(kind.removeprefix("arg"), dtype)
    return b.op("where", exists, value, b.constant(identity, dtype))


def _identity(
    kind: str,
    dtype: torch.dtype,
) -> float:
    value = REDUCTIONS[kind].identity
    assert value is not None
    if math.isfinite(value) or dtype.is_floating_point:
        return value
    if dtype == torch.bool:
        return value > 0
    return torch.iinfo(dtype).max if value > 0 else torch.iinfo(dtype).min
