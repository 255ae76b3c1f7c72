"""Memory that is turned on its way, as neighbours there are not neighbours in the vectorised loop.

`read_tiles` is for loop nests without reductions: N x N elements at a time. `short_rows` finds
rows of a few elements that a kernel reduces, one in each lane; `open_rows` reads N of them before
the walks, `close_rows` writes them after the walk that computes them. Longer rows are read and
written N elements at a time inside of a walk (`turned_in_walk`, `block_loop`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from minidynamo.inductor.codegen.cpp_stages import Transposition, size_of
from minidynamo.inductor.codegen.cpp_values import ValuePrinter
from minidynamo.inductor.codegen.cpp_vec import MEMORY_TYPE
from minidynamo.inductor.loop_body import Node
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import ZERO, Atom, Expr, Symbol, product, symbol_expr

# A transposing copy of so many bytes does not stay in a cache: what it touches next is asked for.
PREFETCH_BYTES = 24 << 20
# Rows of fewer elements are taken apart by reading with steps.
LEAST_ROW, MOST_ROW = 3, 64
# Rows of fewer elements are not worth a block of N.
LEAST_BLOCK = 8


def read_tiles(
    values: ValuePrinter, turned: Transposition, iters: Sequence[Symbol], block: int
) -> None:
    """Read a block of the vectorised symbol for N values of the turned one."""
    points = hint_of(product(size_of(s) for s in iters))
    moved = points * sum(node.dtype.itemsize for node in values.nodes if node.buffer)
    far = moved >= PREFETCH_BYTES
    if far:
        _prefetch_stores(values, turned)
    for position in turned.loads:
        _read_tile(values, position, turned, block, far)


def _read_tile(
    values: ValuePrinter, position: int, turned: Transposition, block: int, far: bool
) -> None:
    assert values.vec is not None
    node, x, line = values.nodes[position], values.vec.name, values.code.line
    assert node.index is not None
    first = symbol_expr(Symbol(f"{turned.symbol.name}0"))
    index = values.index(node.index.subs({turned.symbol: first}))
    stride, tiles = values.index(turned.strides[position]), f"t{position}"
    line(f"V<{MEMORY_TYPE[node.dtype]}, N> {tiles}[{block} / N][N];")
    with values.code.block(f"for (i64 {x} = low; {x} < high; {x} += N)"):
        line(f"const i64 rows = high - {x} < N ? high - {x} : N;")
        if far:
            line(f"prefetch({node.buffer} + {index} + N, {stride}, rows, N);")
        source = f"{node.buffer} + {index}, {stride}"
        line(f"ld_turned<N>({tiles}[({x} - low) / N], {source}, rows, ys);")
    values.tiled[position] = f"{tiles}[({x} - low) / N][k]"


def _prefetch_stores(values: ValuePrinter, turned: Transposition) -> None:
    """The rows of a block that are about to be written."""
    assert values.vec is not None
    start = symbol_expr(Symbol(f"{turned.symbol.name}0"))
    first: dict[Atom, int | Expr] = {
        turned.symbol: start,
        values.vec: symbol_expr(Symbol("low")),
    }
    for node in values.nodes:
        if node.op != "store" or node.index is None or node.index.value_refs():
            continue
        stride = node.index.coeff(turned.symbol)
        if stride is not None and values.step(node.index) == 1:
            at = f"{node.buffer} + {values.index(node.index.subs(first))}"
            values.code.line(f"prefetch({at}, {values.index(stride)}, ys, high - low);")


def short_rows(values: ValuePrinter) -> list[int]:
    """Loads and stores of short rows that lie side by side, each in a lane."""
    if not values.by_column or len(values.reduces) != 1:
        return []
    (symbol,) = values.reduces
    if not isinstance(symbol.size, int) or not LEAST_ROW <= symbol.size <= MOST_ROW:
        return []
    return _lying_along(values, symbol, range(len(values.nodes)), (1,))


def _lying_along(
    values: ValuePrinter, symbol: Symbol, positions: Iterable[int], steps: Sequence[int]
) -> list[int]:
    """Loads and stores whose neighbours are those of `symbol` (in order, or in reverse), and not
    those of the lanes.
    """
    found = []
    for position in positions:
        node = values.nodes[position]
        plain = node.op == "store" or (node.op == "load" and not node.args)
        if not plain or node.index is None or not values.is_vec[position]:
            continue
        step = values.stride(node.index)
        if step is not None and step not in (0, 1) and node.index.coeff(symbol) in steps:
            found.append(position)
    return found


def open_rows(values: ValuePrinter, position: int) -> None:
    """Declare the turned rows of a load or a store, and read those of a load."""
    node, (symbol,) = values.nodes[position], values.reduces
    rows = f"t{position}"
    values.code.line(f"V<{MEMORY_TYPE[node.dtype]}, N> {rows}[T][{size_of(symbol)}];")
    if node.op == "load":
        values.for_columns(
            f"ld_rows<N, {size_of(symbol)}>({rows}[t], {_place(values, position, symbol)});"
        )
    values.tiled[position] = f"{rows}[t][{symbol.name}]"


def close_rows(values: ValuePrinter, position: int) -> None:
    """Write the turned rows of a store."""
    if values.nodes[position].op == "store":
        (symbol,) = values.reduces
        length, at = size_of(symbol), _place(values, position, symbol)
        first, _, rest = at.partition(", ")
        values.for_columns(f"st_rows<N, {length}>({first}, t{position}[t], {rest});")


def _place(values: ValuePrinter, position: int, symbol: Symbol, first: Expr = ZERO) -> str:
    """Where the rows of a load or a store begin, how far they are apart, and how many there are."""
    node = values.nodes[position]
    assert node.index is not None
    stride = values.stride(node.index)
    assert stride is not None
    at, step = values.index(node.index.subs({symbol: first})), values.index(stride)
    return f"{node.buffer} + {at} + t * N * {step}, {step}, w"


def turned_in_walk(values: ValuePrinter, positions: Iterable[int]) -> list[int]:
    """Loads and stores of a walk over long rows of which every lane has one."""
    if not values.by_column or not values.reduces:
        return []
    symbol = values.reduces[-1]
    if isinstance(symbol.size, int) and symbol.size < LEAST_BLOCK:
        return []
    found = _lying_along(values, symbol, positions, (1, -1))
    return [position for position in found if position not in values.tiled]


def _is_reversed(node: Node, symbol: Symbol) -> bool:
    return node.index is not None and node.index.coeff(symbol) == -1


@contextmanager
def block_loop(values: ValuePrinter, turned: list[int], low: str, high: str) -> Iterator[None]:
    """The innermost loop of a walk, N elements of the rows at a time: what `turned` loads is read
    before them, what it stores is written after them.
    """
    symbol, code = values.reduces[-1], values.code
    r, line, nodes = symbol.name, code.line, values.nodes
    low_end = symbol_expr(Symbol(f"{r}b"))
    high_end = low_end + symbol_expr(Symbol(f"{r}s")) - 1
    ends = {p: high_end if _is_reversed(nodes[p], symbol) else low_end for p in turned}
    places = {p: _place(values, p, symbol, ends[p]) for p in turned}
    with code.block(f"for (i64 {r}b = {low}; {r}b < {high}; {r}b += N)"):
        line(f"const i64 {r}s = {high} - {r}b < N ? {high} - {r}b : N;")
        for position in turned:
            line(f"V<{MEMORY_TYPE[nodes[position].dtype]}, N> t{position}[T][N];")
            at = f"{r}b + {r}s - 1 - {r}" if ends[position] is high_end else f"{r} - {r}b"
            values.tiled[position] = f"t{position}[t][{at}]"
            if nodes[position].op == "load":
                values.for_columns(f"ld_block<N>(t{position}[t], {places[position]}, {r}s);")
        with code.block(f"for (i64 {r} = {r}b; {r} < {r}b + {r}s; {r}++)"):
            yield
        for position in turned:
            del values.tiled[position]
            if nodes[position].op == "store":
                first, _, rest = places[position].partition(", ")
                values.for_columns(f"st_block<N>({first}, t{position}[t], {rest}, {r}s);")
