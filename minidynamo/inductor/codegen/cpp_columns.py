"""Long columns that a kernel reduces, a few rows at a time.

Lanes are columns. Walked down one tile of N * T columns after the other (`cpp.py`), each row gives
a few neighbours from a page of its own. Here a panel of many columns is walked down at once, in
blocks of `ROWS` rows, and what is accumulated lies in memory that stays in the first cache:

    for outer.., panel {
      for r += ROWS { for x in panel += N * T { for ROWS rows { accumulate }; add to the panel's } }
      for x in panel += N * T { numbers }
      for r += ROWS { for x .. } .. }

Sums of floats begin anew in each block. What is computed once a column and wanted in blocks is kept
for the panel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from minidynamo.inductor.codegen.cpp_reduce import FLUSH_EVERY, Accumulator
from minidynamo.inductor.codegen.cpp_stages import LANES, STORES, Stages, Walk, size_of
from minidynamo.inductor.codegen.cpp_turned import short_rows, turned_in_walk
from minidynamo.inductor.codegen.cpp_values import ValuePrinter
from minidynamo.inductor.codegen.cpp_vec import LANE_TYPE
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import Symbol, as_expr, product

# Rows of a block: as many lines as a set of the first cache holds. Columns of a panel at most, and
# bytes that are accumulated for them.
ROWS, PANEL, PANEL_BYTES = 8, 1024, 32768
# Where there are fewer rows or columns, or the rows are so short that several lie on a page, tiles
# are as fast.
LEAST_ROWS, LEAST_COLUMNS, LEAST_BYTES = 32, 128, 1024
# What is computed again sooner than kept.
CHEAP = ("load", "constant", "index_expr")


@dataclass(frozen=True, slots=True)
class Panels:
    """How the columns of a kernel are walked down.

    Attributes:
        symbol: the reduction symbol that is taken `rows` at a time; those inside of it are whole.
        width, count: columns of a panel, and how many panels there are, as C++.
    """

    symbol: Symbol
    rows: int
    width: int
    count: str


def plan_panels(
    values: ValuePrinter,
    stages: Stages,
    outer: Sequence[Symbol],
    threads: int,
) -> Panels | None:
    """The panels of a kernel that reduces columns, None where tiles are as fast, or where something
    is kept between walks, turned, or reduced that all columns have in common.
    """
    vec = values.vec
    assert vec is not None
    columns = hint_of(size_of(vec))
    rows = hint_of(product(size_of(s) for s in values.reduces))
    nodes = range(len(values.nodes))
    item = max(node.dtype.itemsize for node in values.nodes if node.buffer is not None)
    if rows < LEAST_ROWS or columns < LEAST_COLUMNS or columns * item < LEAST_BYTES:
        return None
    reductions = [p for p in nodes if values.nodes[p].op == "reduction"]
    if stages.scratch or any(values.nodes[p].op in ("scan", "scatter") for p in nodes):
        return None
    if not all(values.is_vec[p] for p in reductions):
        return None
    if short_rows(values) or turned_in_walk(values, nodes):
        return None
    own = sum(2 * values.nodes[values.nodes[p].args[0]].dtype.itemsize for p in reductions)
    most = min(PANEL, PANEL_BYTES // max(own, 1))
    shares = -(-threads // max(hint_of(product(size_of(s) for s in outer)), 1))
    panels = max(-(-columns // most), shares)
    width = -(-columns // (panels * 4 * LANES)) * 4 * LANES
    if width < LEAST_COLUMNS:
        return None
    symbol, block = _blocked(values.reduces)
    count = f"({values.index(as_expr(size_of(vec)))} + {width - 1}) / {width}"
    return Panels(symbol, block, width, count)


def _blocked(reduces: Sequence[Symbol]) -> tuple[Symbol, int]:
    """The loop that is cut in blocks of about `ROWS` rows, and how many steps of it one takes."""
    inside = 1
    for symbol in reversed(reduces[1:]):
        size = size_of(symbol)
        if not isinstance(size, int) or size * inside > ROWS:
            return symbol, max(ROWS // inside, 1)
        inside *= size
    return reduces[0], max(ROWS // inside, 1)


class PanelAccumulator(Accumulator):
    """A reduction whose running values are those of a panel's columns."""

    def __init__(self, values: ValuePrinter, position: int) -> None:
        super().__init__(values, position, 1)
        rows = product(size_of(s) for s in values.reduces)
        blocks = rows // ROWS if isinstance(rows, int) else 1 << 40
        self.adds = self.kind == "sum" and self.dtype.is_floating_point
        self.cascades = self.adds and blocks > 2 * FLUSH_EVERY
        self.is_long = self.adds and blocks > 4 * FLUSH_EVERY**2
        self.levels = [f"panel{position}"] + [f"{name}{position}" for name in self._totals()]

    def declare(self) -> None:
        """The memory of the panel."""
        for name in self.levels:
            self.values.code.line(f"{self.type} {name}[P];")
            if not self.is_arg:
                self._each(f"{name}[i] = {self.identity};")

    def _each(self, statement: str) -> None:
        self.values.code.line(f"for (int i = 0; i < P; i++) {statement}")

    def open(self) -> None:
        """The running values of a tile in a block."""
        start = self.identity if self.adds else f"{self.levels[0]}[at + t]"
        self.values.code.line(f"{self.type} {self.a}[T];")
        self.values.for_columns(f"{self.a}[t] = {start};")

    def close(self) -> None:
        """Back to the panel's."""
        becomes = "+=" if self.adds else "="
        self.values.for_columns(f"{self.levels[0]}[at + t] {becomes} {self.a}[t];")

    def flush(self) -> str:
        """Move partial sums to the total."""
        return self._moved(self.levels[1], self.levels[0])

    def flush_total(self) -> str:
        """Move the total of partial sums on."""
        return self._moved(self.levels[2], self.levels[1])

    def _moved(self, target: str, source: str) -> str:
        moves = f"{target}[i] += {source}[i]; {source}[i] = {self.identity};"
        return f"for (int i = 0; i < P; i++) {{ {moves} }}"

    def merge(self) -> None:
        """Leave the walk's values in one place."""
        first, *others = self.levels
        for other in others:
            self._each(f"{first}[i] += {other}[i];")

    def result(self) -> None:
        """The reduction's value, in the columns at hand."""
        self.declare_result()
        place = self._result(f"{self.levels[0]}[at + t]")
        self.values.for_columns(f"v{self.position}[t] = {place};")


class PanelPrinter:
    """Prints all stages of one panel, in tiles of `wide` vectors.

    Attributes:
        emit: prints a node; flush: the text that moves partial sums of `accumulators` on.
        accumulators: the reductions of the walk that is being printed.
        known: numbers that stand in an outer loop.
        done: the reductions that have their values.
        kept: numbers of each column that lie in memory.
    """

    def __init__(
        self,
        values: ValuePrinter,
        panels: Panels,
        wide: int,
        emit: Callable[[int], None],
        flush: Callable[[], str],
        accumulators: dict[int, Accumulator],
        known: set[int],
    ) -> None:
        self.values = values
        self.panels = panels
        self.wide = wide
        self.emit = emit
        self.flush = flush
        self.accumulators = accumulators
        self.known = known
        self.done: dict[int, PanelAccumulator] = {}
        self.kept: set[int] = set()

    def panel(self, stages: Stages) -> None:
        """All stages."""
        values, width, line = self.values, self.panels.width, self.values.code.line
        assert values.vec is not None
        x, size = values.vec.name, self._count(values.vec)
        used = {arg for node in values.nodes for arg in node.operands()}
        line(f"constexpr int P = ({width} + N - 1) / N;")
        line(f"const i64 {x}p = panel * {width};")
        line(f"const i64 {x}e = {x}p + {width} < {size} ? {x}p + {width} : {size};")
        before: list[int] = []
        for step, (numbers, walk) in enumerate(zip(stages.numbers, stages.walks, strict=True)):
            stores = [p for p in numbers if values.nodes[p].op in STORES]
            before += [p for p in numbers if p not in stores and p not in self.known]
            later = {p for other in stages.walks[step:] for p in other.nodes}
            later.update(p for others in stages.numbers[step + 1 :] for p in others)
            checks = [p for p in numbers if values.nodes[p].op == "check" and p not in used]
            self._numbers(before, [*stores, *checks], later)
            if walk.nodes:
                self._walk(walk, before)

    def _numbers(
        self,
        before: Sequence[int],
        ends: Sequence[int],
        later: set[int],
    ) -> None:
        """What is computed once a column, its stores and the checks nothing else needs (`ends`);
        kept where `later` nodes want it.
        """
        values = self.values
        wanted = {arg for p in later for arg in values.nodes[p].operands()}
        keeps = [
            p
            for p in before
            if p in wanted - self.kept and values.is_vec[p] and values.nodes[p].op not in CHEAP
        ]
        if not keeps and not ends:
            return
        for position in keeps:
            ctype = LANE_TYPE[values.nodes[position].dtype]
            values.code.line(f"V<{ctype}, N> kept{position}[P];")
        with values.code.block(""), self._tiles(before, [*keeps, *ends], 1):
            for position in ends:
                if values.nodes[position].op in STORES:
                    self.emit(position)
            for position in keeps:
                values.for_columns(f"kept{position}[at + t] = v{position}[t];")
        self.kept.update(keeps)

    def _count(self, symbol: Symbol) -> str:
        return self.values.index(as_expr(size_of(symbol)))

    @contextmanager
    def _tiles(self, before: Sequence[int], roots: Sequence[int], wide: int) -> Iterator[None]:
        """What is done for a tile of the panel's columns, and the loops over those; `roots` want
        some of what is computed once a column.
        """
        values, line = self.values, self.values.code.line
        assert values.vec is not None
        x = values.vec.name
        head = f"auto columns = [&](auto w, auto count, i64 {x}) __attribute__((always_inline))"
        with values.code.block(head, "};"):
            line("constexpr int T = decltype(count){};")
            line(f"const i64 at = ({x} - {x}p) / N;")
            for position in self._wanted(before, roots):
                if position in self.kept:
                    ctype = LANE_TYPE[values.nodes[position].dtype]
                    line(f"V<{ctype}, N> v{position}[T];")
                    values.for_columns(f"v{position}[t] = kept{position}[at + t];")
                elif position in self.done:
                    self.done[position].result()
                else:
                    self.emit(position)
            yield
        line(f"i64 {x} = {x}p;")
        for count in sorted({wide, 1}, reverse=True):
            call = f"columns(All{{}}, Const<{count}>{{}}, {x})"
            line(f"for (; {x} + {count} * N <= {x}e; {x} += {count} * N) {call};")
        line(f"if ({x} < {x}e) columns(Some{{{x}e - {x}}}, Const<1>{{}}, {x});")

    def _wanted(
        self,
        before: Sequence[int],
        roots: Sequence[int],
    ) -> list[int]:
        """Of numbers and results, those that `roots` need."""
        ready = {*before, *self.done}
        found: set[int] = set()
        work = [*roots]
        work += [arg for p in roots for arg in self.values.nodes[p].operands()]
        while work:
            position = work.pop()
            if position in ready and position not in found:
                found.add(position)
                if position not in self.done and position not in self.kept:
                    work += self.values.nodes[position].operands()
        return sorted(found)

    def _walk(self, walk: Walk, before: Sequence[int]) -> None:
        values, panels, code = self.values, self.panels, self.values.code
        found = [PanelAccumulator(values, position) for position in walk.reductions]
        self.accumulators.clear()
        self.accumulators.update({accumulator.position: accumulator for accumulator in found})
        for accumulator in found:
            accumulator.declare()
        place = values.reduces.index(panels.symbol)
        inner = [p for p in walk.nodes if p not in self.known]
        with ExitStack() as stack:
            stack.enter_context(code.block(""))
            if self.flush():
                code.line("i64 steps = 0;")
            for symbol in values.reduces[:place]:
                stack.enter_context(self._loop(symbol, "0", self._count(symbol)))
            r, rows, size = panels.symbol.name, panels.rows, self._count(panels.symbol)
            head = f"for (i64 {r}b = 0; {r}b < {size}; {r}b += {rows})"
            stack.enter_context(code.block(head))
            code.line(f"const i64 {r}e = {r}b + {rows} < {size} ? {r}b + {rows} : {size};")
            with self._tiles(before, inner, self.wide):
                for accumulator in found:
                    accumulator.open()
                self._block(inner, place)
                for accumulator in found:
                    accumulator.close()
            if self.flush():
                code.line(self.flush())
        for accumulator in found:
            accumulator.merge()
        self.done.update({accumulator.position: accumulator for accumulator in found})

    @contextmanager
    def _loop(
        self,
        symbol: Symbol,
        low: str,
        high: str,
    ) -> Iterator[None]:
        r = symbol.name
        with self.values.code.block(f"for (i64 {r} = {low}; {r} < {high}; {r}++)"):
            self.values.code.line("one_by_one();")
            yield

    def _block(self, nodes: Sequence[int], place: int) -> None:
        """The rows of a block; from `place` on the reduction symbols are its loops."""
        values = self.values
        later = set(values.reduces[place:])
        left = list(nodes)
        with ExitStack() as stack:
            for symbol in values.reduces[place:]:
                r = symbol.name
                whole = symbol != self.panels.symbol
                bounds = ("0", self._count(symbol)) if whole else (f"{r}b", f"{r}e")
                stack.enter_context(self._loop(symbol, *bounds))
                later.discard(symbol)
                for position in [p for p in left if self._is_number_without(p, later)]:
                    self.emit(position)
                    left.remove(position)
            for position in left:
                self.emit(position)

    def _is_number_without(self, position: int, symbols: set[Symbol]) -> bool:
        values = self.values
        is_number = not values.is_vec[position] and values.nodes[position].op not in STORES
        return is_number and values.depends[position].isdisjoint(symbols)
