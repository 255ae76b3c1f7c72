"""Reductions to few results on a GPU, in two steps so that all of it has work.

One program reduces one row (or some columns). A sum of 16 million elements would keep a single
multiprocessor busy; `split` cuts what is reduced into pieces, lets a first kernel reduce each of
them into memory, and leaves the reduction of those to the second. Nothing of it concerns CPUs,
where the kernel itself shares a long row among threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from minidynamo.inductor.ir import Index, Inner, Size, TensorValue, View, loop_index
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.ops import REDUCTIONS
from minidynamo.inductor.origins import origin_of
from minidynamo.inductor.symbolic import (
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
# second launch pays.
ROW_PIECE, COLUMN_PIECE = 2048, 64
LONG_ROW = 1 << 15
KINDS = {"sum", "prod", "max", "min", "any", "all"}
_LAST = (1 << 63) - 1
Reduction = tuple[Inner, Size, Sequence[int]]


def split(
    g: GraphLowering,
    kind: str,
    inner: Inner,
    size: Size,
    dims: Sequence[int],
    device: torch.device,
    origins: tuple[str, ...],
) -> Reduction:
    """The reduction that is left to do: the one given, or that of the pieces' results."""
    sizes = [extent for extent in size if isinstance(extent, int)]
    if (
        not uses_triton(device.type)
        or len(sizes) < len(size)
        or kind not in KINDS
        or 0 in sizes
    ):
        return inner, size, dims
    at, pieces = choose_cut(sizes, dims)
    if pieces < 2:
        return inner, size, dims
    partial = _reduce_pieces(g, kind, inner, sizes, dims, at, pieces, device, origins)
    return partial.load, partial.size, dims


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
    at, pieces = choose_cut(sizes, dims)
    if pieces < 2 or any(sizes[d] != 1 for d in dims if d < at):
        return None
    extreme = kind.removeprefix("arg")
    values, places = (
        _reduce_pieces(g, name, inner, sizes, dims, at, pieces, device, names)
        for name in (extreme, kind)
    )
    best = g.reduce(extreme, values.load, values.size, dims, values.dtype, origins=origins)
    length = -(-sizes[at] // pieces) * math.prod(sizes[d] for d in dims if d > at)

    def candidate(b: BodyBuilder, index: Index) -> Value:
        value = values.load(b, index)
        top = best.load(b, [i * 0 if d in dims else i for d, i in enumerate(index)])
        is_best = b.op("eq", value, top)
        if values.dtype.is_floating_point:
            is_best = b.op("bitwise_or", is_best, b.op("isnan", value))
        place = b.op("add", places.load(b, index), b.index_expr(index[at] * length))
        return b.op("where", is_best, place, b.constant(_LAST, torch.int64))

    return g.reduce("min", candidate, values.size, dims, torch.int64, origins=origins)


def choose_cut(size: Sequence[int], dims: Sequence[int]) -> tuple[int, int]:
    """The dimension that is cut, and into how many pieces (1: it is not worth it): of those with
    pieces enough the outermost, whose pieces are long runs of memory.
    """
    pieces = {d: count_pieces(size, dims, d) for d in sorted(dims)}
    most = max(pieces.values())
    at = next(d for d, count in pieces.items() if 2 * count >= most)
    return at, pieces[at]


def count_pieces(size: Sequence[int], dims: Sequence[int], at: int) -> int:
    """Into how many pieces the dimension `at` is cut; 1: it is not worth it."""
    rows = math.prod(extent for d, extent in enumerate(size) if d not in dims)
    length = math.prod(size[d] for d in dims)
    last = max(d for d, extent in enumerate(size) if extent != 1 or d == 0)
    by_column = last not in dims
    programs = -(-rows // COLUMNS) if by_column else rows
    few = FEW_COLUMNS if by_column and rows * length >= LARGE else FEW
    if programs >= few or (not by_column and length < LONG_ROW):
        return 1
    shortest = COLUMN_PIECE if by_column else ROW_PIECE
    wanted = min(BUSY // programs, length // shortest, size[at])
    even = [n for n in range(wanted, max(wanted // 2, 1), -1) if size[at] % n == 0]
    return even[0] if even else wanted


def _reduce_pieces(
    g: GraphLowering,
    kind: str,
    inner: Inner,
    size: Sequence[int],
    dims: Sequence[int],
    at: int,
    pieces: int,
    device: torch.device,
    origins: tuple[str, ...],
) -> TensorValue:
    """The pieces' results: as long as there are pieces along `at`, of extent 1 along other dims."""
    kept: Size = tuple(
        pieces if d == at else 1 if d in dims else extent for d, extent in enumerate(size)
    )
    index, iters = loop_index(kept, "x")
    step = -(-size[at] // pieces)
    symbols = {d: loop_symbol(f"r{d}", size[d]) for d in sorted(dims) if size[d] != 1}
    symbols[at] = loop_symbol(f"r{at}", step)
    full = [symbol_expr(symbols[d]) if d in symbols else i for d, i in enumerate(index)]
    full[at] = index[at] * step + full[at]
    b = BodyBuilder(iters, tuple(symbols.values()))
    end = size[at] if step * pieces > size[at] else None
    value = b.reduction(kind, _guarded(b, kind, inner, full, at, end))
    dtype = b.node(value).dtype
    buffer = g._new_buffer(dtype, kept, contiguous_strides(kept), device)
    b.store(buffer.name, dot(index, buffer.stride), value, dtype)
    g._append_computed(b, buffer, origins)
    view = View(buffer, kept, buffer.stride)
    return TensorValue(view, dtype, kept, device, buffer.stride)


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


def _identity(kind: str, dtype: torch.dtype) -> float:
    value = REDUCTIONS[kind].identity
    assert value is not None
    if math.isfinite(value) or dtype.is_floating_point:
        return value
    if dtype == torch.bool:
        return value > 0
    return torch.iinfo(dtype).max if value > 0 else torch.iinfo(dtype).min
