"""Memory that is turned on its way, as neighbours there are not neighbours in the vectorised loop.

`read_tiles` is for loop nests without reductions: N x N elements at a time. `short_rows` finds
rows of a few elements that a kernel reduces, one in each lane; `open_rows` reads N of them before
the walks, `close_rows` writes them after the walk that computes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from minidynamo.inductor.codegen.cpp_stages import Transposition, size_of
from minidynamo.inductor.codegen.cpp_values import ValuePrinter
from minidynamo.inductor.codegen.cpp_vec import MEMORY_TYPE
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import ZERO, Atom, Expr, Symbol, product, symbol_expr

# A transposing copy of so many bytes does not stay in a cache: what it touches next is asked for.
PREFETCH_BYTES = 24 << 20
# Rows of fewer elements are taken apart by reading with steps.
LEAST_ROW, MOST_ROW = 3, 64


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
    stride, tiles = turned.strides[position], f"t{position}"
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
    found = []
    for position, node in enumerate(values.nodes):
        plain = node.op == "store" or (node.op == "load" and not node.args)
        if not plain or node.index is None or not values.is_vec[position]:
            continue
        step = values.step(node.index)
        if step not in (None, 0, 1) and node.index.coeff(symbol) == 1:
            found.append(position)
    return found


def open_rows(values: ValuePrinter, position: int) -> None:
    """Declare the turned rows of a load or a store, and read those of a load."""
    node, (symbol,) = values.nodes[position], values.reduces
    rows = f"t{position}"
    values.code.line(f"V<{MEMORY_TYPE[node.dtype]}, N> {rows}[T][{size_of(symbol)}];")
    if node.op == "load":
        values.for_columns(
            f"ld_rows<N, {size_of(symbol)}>({rows}[t], {_place(values, position)});"
        )
    values.tiled[position] = f"{rows}[t][{symbol.name}]"


def close_rows(values: ValuePrinter, position: int) -> None:
    """Write the turned rows of a store."""
    if values.nodes[position].op == "store":
        length, at = size_of(values.reduces[0]), _place(values, position)
        first, _, rest = at.partition(", ")
        values.for_columns(f"st_rows<N, {length}>({first}, t{position}[t], {rest});")


def _place(values: ValuePrinter, position: int) -> str:
    node, (symbol,) = values.nodes[position], values.reduces
    assert node.index is not None
    step = values.step(node.index)
    first = values.index(node.index.subs({symbol: ZERO}))
    return f"{node.buffer} + {first} + t * N * {step}, {step}, w"
