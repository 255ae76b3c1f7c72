"""How a kernel's iteration space is cut into tiles: the axes and their block sizes.

An *axis* is a run of loop symbols that a tile covers together, as one number that is taken apart
again: `x` alone for most elementwise kernels, `y` and `x` where two loops both have neighbouring
elements (transpositions), `x` and `r` where there is something to reduce (x: the rows, r: the
elements of a row).

A reduction is *persistent* where a tile holds whole rows: each value is computed once and stays in
registers. Otherwise it is *looped*: the tile walks along the row, once for every pass of the body.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from minidynamo.inductor.codegen.kernel import KernelSpec
from minidynamo.inductor.loop_body import LoopBody, passes
from minidynamo.inductor.split_reductions import WHOLE_COLUMN
from minidynamo.inductor.symbolic import Expr, IntLike, Symbol, as_expr, product

# A tile has at most so many elements; so many programs keep a large GPU busy (132
# multiprocessors, several each). Of little to do each, half or a quarter as many are enough: more
# of them take longer to begin.
POINTWISE_ELEMENTS = 1024
REDUCTION_ELEMENTS = 4096
BUSY = 1024
BUSY_POINTWISE = BUSY // 2
BUSY_SHORT = BUSY // 4
# Rows are short where a tile of this many elements holds several.
SHORT = 1024
# Fewer programs than this leave multiprocessors idle, so each of them gets all the threads it can.
FEW = 264
# Rows that stay in registers: up to the first length where one walk reads them, up to the second
# where several do, up to the third where they are all that is loaded.
PERSISTENT = 1024
PERSISTENT_SEVERAL_PASSES = 8192
PERSISTENT_ALONE = 32768
# Rows up to this length, and down to a quarter of it, are reduced by single warps, without memory
# that is shared between warps: for shorter ones, several warps have rows of their own anyway.
WARP_ROW = 1024
# Of shorter rows a thread has fewer elements where there is less to do than this many threads, what
# can be under way on a large GPU, have with more of them: more of them wait for memory at a time.
THREADS = 1 << 18
# From so many loads on, a thread has four elements instead of eight: more of them wait at a time.
MANY_LOADS = 5
# Elements that the second-level cache of a large GPU holds for a walk that comes again.
CACHED = 1 << 23
# Bytes of neighbouring columns that a tile has, twice as many where there are enough columns.
LINE = 128
# A transposition is worth two axes from this size on; the tile is a square.
TRANSPOSE_SIZE = 16
SQUARE = 32


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of the tiles.

    Attributes:
        name: `x`, `y` or `r`.
        symbols: the loop symbols that it covers, outermost first.
        block: elements of a tile along it, a power of two.
    """

    name: str
    symbols: tuple[Symbol, ...]
    block: int

    @property
    def numel(self) -> Expr:
        return as_expr(product(_size(s) for s in self.symbols))

    @property
    def is_masked(self) -> bool:
        """Whether the last tile may stand over."""
        return (
            not self.numel.is_const
            or self.numel.const == 0
            or self.numel.const % self.block != 0
        )


@dataclass(frozen=True, slots=True)
class Tiling:
    """The axes in the order of a tile's dimensions, and how to run it.

    Attributes:
        persistent: of a reduction, whether a tile holds whole rows.
        num_warps: of 32 threads each.
    """

    axes: tuple[Axis, ...]
    persistent: bool
    num_warps: int


def is_read_anew(tiling: Tiling) -> bool:
    """Whether each walk of a looped reduction reads memory: there is more than caches hold."""
    if tiling.persistent or len(tiling.axes) != 2:
        return False
    elements = tiling.axes[0].numel * tiling.axes[1].numel
    return not elements.is_const or elements.const >= CACHED


def choose_tiling(spec: KernelSpec) -> Tiling:
    """The tiles for a kernel."""
    return _reduction(spec.body) if spec.reduces else _pointwise(spec.body)


def tilings(spec: KernelSpec) -> list[Tiling]:
    """What to choose from by measurement: the tiles of `choose_tiling`, then its neighbours."""
    first = choose_tiling(spec)
    if not spec.reduces:
        return [first, *_pointwise_neighbours(first)]
    return [first, *_reduction_neighbours(first)]


# Rows, columns, warps.
_TILES = (
    (16, 64, 4),
    (64, 16, 4),
    (64, 32, 8),
    (64, 64, 8),
)
# Elements, warps.
_BLOCKS = (
    (256, 2),
    (512, 4),
    (1024, 4),
    (1024, 8),
    (2048, 8),
    (4096, 8),
)


def _pointwise_neighbours(first: Tiling) -> Iterator[Tiling]:
    if len(first.axes) == 2:
        y, x = first.axes
        for rows, columns, warps in _TILES:
            yield Tiling((replace(y, block=rows), replace(x, block=columns)), True, warps)
        return
    (x,) = first.axes
    most = next_power_of_two(_count(x.symbols, 1 << 30))
    for block, warps in _BLOCKS:
        if block <= most:
            yield Tiling((replace(x, block=block),), True, warps)


def _reduction_neighbours(first: Tiling) -> Iterator[Tiling]:
    x, r = first.axes
    rows = next_power_of_two(_count(x.symbols, 1 << 30))
    whole = next_power_of_two(_count(r.symbols, 1 << 30))

    def variant(
        x_block: int,
        r_block: int,
        warps: int,
        persistent: bool,
    ) -> Tiling:
        axes = replace(x, block=x_block), replace(r, block=r_block)
        return Tiling(axes, persistent, min(max(warps, 1), 16))

    for warps in (first.num_warps // 2, first.num_warps * 2):
        yield variant(x.block, r.block, warps, first.persistent)
    for x_block in (x.block // 2, x.block * 2, x.block * 4):
        if 1 <= x_block <= rows and x_block * r.block <= 4 * REDUCTION_ELEMENTS:
            warps = first.num_warps * x_block // x.block
            yield variant(x_block, r.block, warps, first.persistent)
    if first.persistent:
        if whole > 1024:
            yield variant(1, 1024, 4, False)
        return
    if whole <= 2 * PERSISTENT_SEVERAL_PASSES:
        yield variant(1, whole, whole // 512, True)
    for r_block in (r.block // 4, r.block // 2, r.block * 2):
        if r_block < whole:
            yield variant(x.block, r_block, x.block * r_block // 512, False)


def next_power_of_two(value: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(value - 1, 0).bit_length()


def _size(symbol: Symbol) -> IntLike:
    assert symbol.size is not None
    return symbol.size


def _count(symbols: Sequence[Symbol], unknown: int) -> int:
    """How many points; `unknown` where a size is only known at run time."""
    total = as_expr(product(map(_size, symbols)))
    return total.const if total.is_const else unknown


def _neighbours(body: LoopBody, symbol: Symbol) -> int:
    """How often an access is made whose next element belongs to the next value of `symbol`."""
    loops = (*body.iters, *body.reduces)
    count = 0
    for node in body.nodes:
        index = node.index if node.buffer is not None else None
        if index is not None and index.coeff(symbol) == 1:
            everywhere = bool(index.value_refs())
            used = [s for s in loops if everywhere or index.uses([s])]
            count += _count(used, 1 << 20)
    return count


def _pointwise(body: LoopBody) -> Tiling:
    other = _second_axis(body)
    widths = _widths(body)
    if other is not None:
        rest = tuple(s for s in body.iters if s != other)
        side, warps = (SQUARE, 4) if max(widths) > 2 else (2 * SQUARE, 8)
        return Tiling((Axis("y", (other,), side), Axis("x", rest, side)), True, warps)
    count = _count(body.iters, BUSY * POINTWISE_ELEMENTS)
    loads = sum(node.op == "load" for node in body.nodes)
    step = _step(body)
    if step > 1:
        block = 512 if step == 2 and loads < MANY_LOADS else 256
        while block > 64 and count < block * FEW:
            block //= 2
        block = min(block, next_power_of_two(count))
        return Tiling((Axis("x", body.iters, block),), True, max(1, min(block // 32, 8)))
    block = min(next_power_of_two(count // BUSY_POINTWISE), POINTWISE_ELEMENTS)
    block = min(max(block, 256), next_power_of_two(count))
    lanes = 16 // max(widths) if len(widths) > 1 else 4 if loads >= MANY_LOADS else 8
    warps = max(1, min(max(4, min(block // (32 * lanes), 8)), block // 32))
    return Tiling((Axis("x", body.iters, min(block, 32 * lanes * warps)),), True, warps)


def _step(body: LoopBody) -> int:
    """How far apart an access' neighbours lie where it leaves elements out, else 1: neighbouring
    threads are then to have neighbouring elements, since a thread's own elements come by one
    instruction each.
    """
    if not body.iters:
        return 1
    indices = [node.index for node in body.nodes if node.buffer is not None]
    factors = [index.coeff(body.iters[-1]) for index in indices if index is not None]
    steps = [abs(f.const) for f in factors if f is not None and f.is_const]
    return max((step for step in steps if step <= 16), default=1)


def _widths(body: LoopBody) -> set[int]:
    """Bytes of an element of the accesses to neighbours. Where they are not all of one width, a
    thread has as many elements as 16 bytes have of the widest: with more of them, Triton sends the
    narrower ones through shared memory.
    """
    innermost = body.iters[-1:]
    return {
        node.dtype.itemsize
        for node in body.nodes
        if node.buffer is not None and node.index is not None and node.index.uses(innermost)
    } or {4}


def _second_axis(body: LoopBody) -> Symbol | None:
    """A loop that some accesses are contiguous along while others are along the innermost."""
    if len(body.iters) < 2:
        return None
    innermost = body.iters[-1]
    best = max(body.iters[:-1], key=lambda s: _neighbours(body, s))
    large = all(_count((s,), TRANSPOSE_SIZE) >= TRANSPOSE_SIZE for s in (innermost, best))
    turned = any(
        node.index.coeff(best) == 1
        and (node.index.uses([innermost]) or node.index.value_refs())
        for node in body.nodes
        if node.buffer is not None and node.index is not None
    )
    return best if large and turned and _neighbours(body, innermost) else None


def _reduction(body: LoopBody) -> Tiling:
    rows = _count(body.iters, BUSY)
    length = _count(body.reduces, 1 << 20)
    walks = sum(part.inner for part in passes(body))
    limit = PERSISTENT
    if walks > 1:
        inner = body.levels()
        loads = sum(inner[p] and node.op == "load" for p, node in enumerate(body.nodes))
        limit = max(PERSISTENT_SEVERAL_PASSES, PERSISTENT_ALONE // max(loads, 1))
    by_column = bool(body.iters) and (
        _neighbours(body, body.iters[-1]) > _neighbours(body, body.reduces[-1])
    )
    walked = 64 if by_column else 2048 if rows >= BUSY else 4096 if rows >= FEW else 8192
    if by_column and min(_widths(body)) == 2 and rows * length >= CACHED:
        walked *= 2
    r_block = next_power_of_two(length)
    if by_column:
        limit = WHOLE_COLUMN if walks > 1 else 64
    elif rows < FEW:
        limit = max(limit, walked)
    persistent = r_block <= limit
    if not persistent:
        r_block = walked
    each = 16 if rows >= FEW else 4  # elements of a thread
    x_block = max(1, min(rows // BUSY, REDUCTION_ELEMENTS // r_block, 64))
    if by_column:
        columns = max(LINE // max(_widths(body)), 32)
        x_block = max(columns, min(rows // BUSY, 2 * columns))
        each = 32 if persistent and rows >= FEW else each
    elif persistent and rows >= BUSY and r_block <= WARP_ROW:
        if r_block >= WARP_ROW // 4:
            each, most = 32, WARP_ROW // r_block
        else:
            each, most = min(16, max(8, rows * length // THREADS)), 256
        x_block = max(1, min(rows // BUSY, REDUCTION_ELEMENTS // r_block, most))
    several = min(rows // BUSY_SHORT, SHORT // r_block, 256)
    if persistent and several > x_block:
        x_block = several
        each = max(2, x_block * r_block // 128)
    x_block = min(next_power_of_two(x_block), next_power_of_two(rows))
    warps = next_power_of_two(max(x_block * r_block // (32 * each), 1))
    axes = Axis("x", body.iters, x_block), Axis("r", body.reduces, r_block)
    return Tiling(axes, persistent, min(warps, 32 if r_block > 8192 else 16))
