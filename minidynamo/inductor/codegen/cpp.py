"""C++ for a kernel: `codegen_cpp(spec, name, threads)` gives the source of a function
`extern "C" void name(void** ptrs, const int64_t* sizes, int64_t* failure)`; a check that fails
writes its number (from 1) and the value to `failure`.

One loop symbol is *vectorised*: its loop takes N elements at a time, the values that change with it
are vectors, the others are numbers, computed in the outermost loop that knows them. Four shapes of
loop nest follow:

    elementwise      for outer { for x += N { body } }
    transposing      for outer { for y += N { for x += N { turn N x N; for k < N { body } } } }
    inner reduction  for outer { for r += N { accumulate }  numbers  for r += N { .. } }
    outer reduction  for outer { for x += N * T { for r { accumulate }  vectors  for r { .. } } }

Columns of long rows are walked down many at a time (`cpp_columns.py`).

Several walks over the reduction symbols follow each other where one needs another's result. What is
dear to compute and wanted in two walks is kept in a row of scratch memory. The outer loops run in
parallel by OpenMP where there is enough to do; few long rows are cut into a fixed number of chunks
(the same for any thread count), combined in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from minidynamo.inductor.codegen.code import Code
from minidynamo.inductor.codegen.cpp_columns import PanelPrinter, Panels, plan_panels
from minidynamo.inductor.codegen.cpp_parts import parts_of, without_short_loop
from minidynamo.inductor.codegen.cpp_reduce import FLUSH_EVERY, Accumulator
from minidynamo.inductor.codegen.cpp_stages import (
    LANES,
    SCRATCH_ELEMENTS,
    SCRATCH_ELEMENTS_BY_COLUMN,
    STORES,
    Transposition,
    Walk,
    choose_vector_symbol,
    dependencies,
    find_transposition,
    parallel_symbols,
    plan_stages,
    size_of,
)
from minidynamo.inductor.codegen.cpp_tuning import USUAL, Tuning
from minidynamo.inductor.codegen.cpp_turned import (
    block_loop,
    close_rows,
    open_rows,
    read_tiles,
    short_rows,
    turned_in_walk,
)
from minidynamo.inductor.codegen.cpp_values import ValuePrinter
from minidynamo.inductor.codegen.cpp_vec import MEMORY_TYPE
from minidynamo.inductor.codegen.kernel import KernelSpec, failure_texts
from minidynamo.inductor.codegen.narrow import (
    SMALL,
    bytes_of_bools,
    narrow_integers,
    stays_small,
    within_limits,
)
from minidynamo.inductor.loop_body import LoopBody
from minidynamo.inductor.ops import OPS
from minidynamo.inductor.origins import operators
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import Expr, Symbol, as_expr, loop_symbol, product

# Work (elements, weighted by cost) below which threads cost more than they bring; and of a chunk.
PARALLEL_WORK = 1 << 16
CHUNK_WORK = 1 << 15
MAX_CHUNKS = 64


# How functions are declared that are hardly ever called.
_SELDOM = "__attribute__((cold, noinline)) static"


def codegen_cpp(spec: KernelSpec, name: str, threads: int, tuning: Tuning = USUAL) -> str:
    """Source text of the kernel; it needs `cpp_prefix.h` in front."""
    spec = replace(spec, body=without_short_loop(spec.body))
    kernel = CppKernel(spec, name, threads, tuning)
    limits = within_limits(spec.body, tuning.vector) if spec.sizes else []
    if not limits:
        return kernel.generate()
    kernel.name = f"{name}_large"
    small = CppKernel(spec, name, threads, tuning, limits=limits)
    return kernel.generate(_SELDOM) + small.generate()


class CppKernel:
    """Prints one kernel.

    Attributes:
        vec: the vectorised symbol, None where there is no loop at all.
        by_row: whether that is a reduction symbol.
        by_element: whether its loop, for all that, takes one element at a time.
        outer: the other symbols that are not reduced, in loop order.
        parts: the kernels of the parts that its loop is cut into, if it is.
        limits: sizes that it is only for if they are at most `SMALL`.
    """

    def __init__(
        self,
        spec: KernelSpec,
        name: str,
        threads: int,
        tuning: Tuning,
        whole: CppKernel | None = None,
        vec: Symbol | None = None,
        limits: Sequence[Expr] = (),
    ) -> None:
        self.spec = spec
        self.limits: Sequence[Expr] = whole.limits if whole else limits
        self.tuning = tuning
        self.name = name
        self.threads = threads
        self.code: Code = Code() if whole is None else whole.code
        self.parts: list[CppKernel] = []
        self.body = bytes_of_bools(narrow_integers(spec.body, bool(self.limits)))
        self.nodes = self.body.nodes
        self.reduces = self.body.reduces
        if self.body.has_scan():
            # Sums of floats go on along the reduction symbols, which are then not vectorised.
            alone = loop_symbol("alone", 1)
            self.body = LoopBody((*self.body.iters, alone), self.body.reduces, self.body.nodes)
        self.vec = vec or choose_vector_symbol(self.body, tuning.vector)
        self.by_row = self.vec in self.reduces
        self.outer = [s for s in self.body.iters if s != self.vec]
        self.stages = plan_stages(self.body, self._scratch_limit())
        self.by_element = self._parts_lanes()
        lanes = None if self.by_element else self.vec
        kept = frozenset(self.stages.scratch)
        failures = failure_texts((whole or self).spec.body)
        self.values = ValuePrinter(
            self.body, lanes, self.code, kept, failures, bool(self.limits)
        )
        self.emitted: set[int] = set()
        self.accumulators: dict[int, Accumulator] = {}

    # -- decisions ---------------------------------------------------------------------------------
    def _lane_bytes(self) -> int:
        small = self.vec is not None and find_transposition(self.body, self.vec) is None
        sizes = [1 if small and stays_small(self.body, self.values.is_vec) else 4]
        for node, is_vec in zip(self.nodes, self.values.is_vec, strict=True):
            if is_vec or node.op == "reduction":
                sizes.append(
                    node.dtype.itemsize if node.value not in ("argmax", "argmin") else 4
                )
        return max(sizes)

    def _unroll(self) -> int:
        assert self.vec is not None
        size = self.vec.size
        unroll = self.tuning.unroll
        long = not isinstance(size, int) or size >= 2 * unroll * LANES
        return unroll if self.by_row and long else 1

    def _scratch_limit(self) -> int:
        total = product(size_of(s) for s in self.reduces)
        known = isinstance(total, int)
        if not (known or self.vec) or not self.tuning.keeps_rows:
            return 0
        return SCRATCH_ELEMENTS if self.by_row else SCRATCH_ELEMENTS_BY_COLUMN

    def _work(self) -> int:
        total = hint_of(product(size_of(s) for s in (*self.body.iters, *self.reduces)))
        cost = sum(OPS[node.op].cost for node in self.nodes)
        return total * (8 + cost) // 8

    def _adds(self) -> bool:
        return any(node.op == "scatter" for node in self.nodes)

    def _parts_lanes(self) -> bool:
        """Whether every lane goes somewhere else with its value: cheap work is then done element
        by element, as taking vectors apart costs more than they bring.
        """
        if self.vec is None or self.reduces or sum(OPS[n.op].cost for n in self.nodes) > 32:
            return False
        depends, ops = dependencies(self.body), ["scatter"]
        if sum(OPS[n.op].cost for n in self.nodes) <= 16 and self._keeps_failure():
            ops.append("load")
        places = [n.index.value_refs() for n in self.nodes if n.op in ops and n.index]
        return any(self.vec in depends[ref] for refs in places for ref in refs)

    def _rows(self) -> int:
        """Independent pieces of work in the outer loops."""
        return hint_of(product(size_of(s) for s in self.outer))

    def _columns(self) -> int:
        """Vectors of columns side by side."""
        assert self.vec is not None
        return max(min(hint_of(size_of(self.vec)) // LANES, self.tuning.columns), 1)

    def _tiles(self) -> int:
        """Pieces of the vectorised loop where that is an outer one."""
        assert self.vec is not None
        if self.by_row:
            return 1
        return max(hint_of(size_of(self.vec)) // (LANES * self._columns()), 1)

    def _count(self, symbol: Symbol) -> str:
        """How many values a loop symbol takes, as C++."""
        return self.values.index(as_expr(size_of(symbol)))

    def _parallel(self) -> str:
        """`#pragma omp parallel for` with its clauses; with symbolic sizes, whether several threads
        are worth it is asked at run time.
        """
        symbols = (*self.body.iters, *self.reduces)
        total = as_expr(product(size_of(s) for s in symbols))
        condition = ""
        if not total.is_const:
            cost = 8 + sum(OPS[node.op].cost for node in self.nodes)
            condition = f" if ({self.values.index(total)} >= {8 * PARALLEL_WORK // cost})"
        return f"#pragma omp parallel for num_threads({self.threads}){condition}"

    # -- the function ------------------------------------------------------------------------------
    def generate(self, linkage: str = 'extern "C"') -> str:
        """The source text."""
        if self.spec.origins:
            self.code.line(f"// {', '.join(operators(self.spec.origins))}")
        own = self._keeps_failure()
        failure = "reported" if own else "failure"
        parameters = f"void** ptrs, const i64* sizes, i64* {failure}"
        with self.code.block(f"{linkage} void {self.name}({parameters})"):
            self.code.line("using namespace md;")
            self._lanes()
            for position, arg in enumerate(self.spec.args):
                ctype = ("const " if arg.role == "in" else "") + MEMORY_TYPE[arg.dtype]
                self.code.line(f"{ctype}* __restrict {arg.name} = ({ctype}*)ptrs[{position}];")
            for position, size in enumerate(self.spec.sizes):
                self.code.line(f"const i64 {size} = sizes[{position}];")
            if self.limits:
                small = " && ".join(f"{self.values.index(e)} <= {SMALL}" for e in self.limits)
                self.code.line(f"if (!({small}))")
                self.code.line(f"  return {self.name}_large(ptrs, sizes, {failure});")
            if own:
                self.code.line("i64 failure[2] = {reported[0], reported[1]};")
            self._nest()
            if own:
                self.code.line("reported[0] = failure[0], reported[1] = failure[1];")
        return self.code.text()

    def _keeps_failure(self) -> bool:
        """Whether failures of checks are kept in registers: one thread alone may."""
        return bool(self.spec.failures) and self.threads == 1

    def _lanes(self) -> None:
        self.code.line(f"constexpr int N = BYTES / {self._lane_bytes()};")

    def _nest(self) -> None:
        least = 1 if self.spec.sizes else PARALLEL_WORK
        much = self._work() >= least
        parallel = self.threads > 1 and much
        if self.vec is None:
            with self._outer_loops(False):
                self._rest_of(self.stages.numbers[0])
        elif not self.reduces:
            turned = None if self.by_element else find_transposition(self.body, self.vec)
            if turned is None or self._adds():
                self._elementwise(parallel)
            else:
                self._transposing(parallel, turned)
        else:
            few = much and self._rows() * self._tiles() < 2 * self.threads
            chunked = few and isinstance(self.reduces[0].size, int) and not self.body.has_scan()
            self._rowwise(parallel and not chunked, chunked)

    # -- loops -------------------------------------------------------------------------------------
    @contextmanager
    def _outer_loops(
        self, parallel: bool, extra: Sequence[tuple[str, str]] = (), at: int | None = None
    ) -> Iterator[None]:
        """Loops over the outer symbols and `extra` (variable, count), and in each the numbers that
        change with no symbol further in. Loops that OpenMP joins must follow without a gap.

        at: how many of the outer symbols stand before `extra`; those after it run in order.
        """
        first = len(self.outer) if at is None else at
        loops: list[tuple[str, str]] = [(s.name, self._count(s)) for s in self.outer]
        loops[first:first] = extra
        own: list[Symbol | None] = [*self.outer]
        own[first:first] = [None] * len(extra)
        joined = self._parallel_depth(loops[: first + len(extra)]) if parallel else 0
        if joined:
            collapse = f" collapse({joined})" if joined > 1 else ""
            self.code.line(f"{self._parallel()}{collapse} schedule(static)")
        known: set[Symbol] = set()
        self.emitted = set()
        with ExitStack() as stack:
            if not joined:
                self._emit_known(known)
            for depth, (variable, count) in enumerate(loops, 1):
                head = f"for (i64 {variable} = 0; {variable} < {count}; {variable}++)"
                stack.enter_context(self.code.block(head))
                known.update(s for s in own[depth - 1 : depth] if s is not None)
                if depth >= joined:
                    self._emit_known(known)
            if loops and self.vec is not None:
                self.code.line("one_by_one();")
            yield

    def _parallel_depth(self, loops: Sequence[tuple[str, str]]) -> int:
        """How many loops OpenMP joins: enough to give every thread several pieces."""
        total, depth = 1, 0
        for _, count in loops:
            total, depth = total * (int(count) if count.isdigit() else 1 << 10), depth + 1
            if total >= 8 * self.threads:
                break
        return depth

    def _emit_known(self, known: set[Symbol]) -> None:
        """Numbers of the first stage that depend on no more than `known`; parts have their own."""
        if self.parts:
            return
        for position in self.stages.numbers[0]:
            is_number = (
                not self.values.is_vec[position] and self.nodes[position].op not in STORES
            )
            if (
                position not in self.emitted
                and is_number
                and self.values.depends[position] <= known
            ):
                self.values.number(position)
                self.emitted.add(position)

    def _rest_of(self, positions: Iterable[int]) -> None:
        for position in positions:
            if position not in self.emitted:
                self._emit(position)

    def _emit(self, position: int) -> None:
        if self.nodes[position].op == "reduction":
            self.accumulators[position].update()
        else:
            self.values.emit(position)

    # -- without reductions ------------------------------------------------------------------------
    def _elementwise(self, parallel: bool) -> None:
        assert self.vec is not None
        size = self._count(self.vec)
        extra: list[tuple[str, str]] = []
        chunk = None
        safe = parallel_symbols(self.body)
        self.outer.sort(key=lambda symbol: symbol not in safe)
        first = sum(symbol in safe for symbol in self.outer)
        rows = product(size_of(s) for s in self.outer[:first])
        few = isinstance(rows, int) and rows < 4 * self.threads
        if parallel and few and self.vec in safe:
            inside = hint_of(product(size_of(s) for s in self.outer[first:]))
            share = -(-hint_of(size_of(self.vec)) // (8 * self.threads)) // 64 * 64
            chunk = max(1024 // max(inside, 1) // 64 * 64, 64, share)
            count = f"({size} + {chunk - 1}) / {chunk}"
            extra = [("chunk", str(-(-int(size) // chunk)) if size.isdigit() else count)]
        elif not self.by_element:
            self._cut()
        with self._outer_loops(parallel, extra, first):
            if self.parts:
                for part in self.parts:
                    part.row()
                return
            low, high = "0", size
            if chunk is not None:
                low, high = "low", "high"
                self.code.line(f"const i64 low = chunk * {chunk};")
                self.code.line(
                    f"const i64 high = low + {chunk} < {size} ? low + {chunk} : {size};"
                )
            self._vector_loop(low, high, lambda: self._rest_of(self.stages.numbers[0]))

    def _cut(self) -> None:
        """Find the parts of the vectorised loop."""
        assert self.vec is not None
        for symbol, body in parts_of(self.spec.body, self.vec):
            spec = replace(self.spec, body=body)
            part = CppKernel(spec, self.name, self.threads, self.tuning, self, symbol)
            self.parts.append(part)

    def row(self) -> None:
        """The vectorised loop of a part."""
        assert self.vec is not None
        with self.code.block(""):
            self._lanes()
            self._emit_known(set(self.outer))
            rest = self.stages.numbers[0]
            self._vector_loop("0", self._count(self.vec), lambda: self._rest_of(rest))

    def _vector_loop(
        self, low: str, high: str, body: Callable[[], None], unroll: int = 1
    ) -> None:
        """`body` for vec from `low` to `high`, N elements at a time, the last ones as `Some`."""
        assert self.vec is not None
        x = self.vec.name
        if self.by_element:
            with self.code.block(f"for (i64 {x} = {low}; {x} < {high}; {x}++)"):
                body()
            return
        head = f"auto body = [&](auto w, i64 {x}, int u) __attribute__((always_inline))"
        with self.code.block(head, "};"):
            body()
        line = self.code.line
        line(f"i64 {x} = {low};")
        if unroll > 1:
            calls = " ".join(f"body(All{{}}, {x} + {u} * N, {u});" for u in range(unroll))
            step = f"{unroll} * N"
            line(f"for (; {x} + {step} <= {high}; {x} += {step}) {{ {calls} {self._flush()}}}")
        line(f"for (; {x} + N <= {high}; {x} += N) body(All{{}}, {x}, 0);")
        line(f"if ({x} < {high}) body(Some{{{high} - {x}}}, {x}, 0);")

    def _transposing(self, parallel: bool, turned: Transposition) -> None:
        """Loads that are contiguous along another symbol are read N x N at a time and turned, a
        block of the vectorised symbol before the work on it.
        """
        assert self.vec is not None
        y = turned.symbol.name
        width, height = self._count(self.vec), self._count(turned.symbol)
        self.outer = [s for s in self.outer if s != turned.symbol]
        line = self.code.line
        block = 8 * LANES
        extra = [
            ("xb", f"({width} + {block - 1}) / {block}"),
            ("yb", f"({height} + N - 1) / N"),
        ]
        with self._outer_loops(parallel, extra):
            line(f"const i64 low = xb * {block};")
            line(f"const i64 high = low + {block} < {width} ? low + {block} : {width};")
            line(f"const i64 {y}0 = yb * N, ys = {height} - {y}0 < N ? {height} - {y}0 : N;")
            read_tiles(self.values, turned, self.body.iters, block)
            with self.code.block("for (int k = 0; k < ys; k++)"):
                line(f"const i64 {y} = {y}0 + k;")
                self._emit_known({*self.outer, turned.symbol})
                self._vector_loop("low", "high", lambda: self._rest_of(self.stages.numbers[0]))

    # -- reductions --------------------------------------------------------------------------------
    def _rowwise(self, parallel: bool, chunked: bool) -> None:
        """The outer loops in parallel, or (chunked) each walk."""
        assert self.vec is not None
        if self.by_row:
            with self._outer_loops(parallel):
                self._reduction(chunked)
            return
        if not chunked:
            threads = self.threads if parallel else 1
            panels = plan_panels(self.values, self.stages, self.outer, threads)
            if panels is not None:
                self._panels(panels, parallel)
                return
        size, x = self._count(self.vec), self.vec.name
        wide = self._columns()
        with self._outer_loops(
            parallel, [("tile", f"({size} + {wide} * N - 1) / ({wide} * N)")]
        ):
            head = f"auto columns = [&](auto w, auto count, i64 {x}) __attribute__((always_inline))"
            with self.code.block(head, "};"):
                self.code.line("constexpr int T = decltype(count){};")
                self._reduction(chunked)
            line = self.code.line
            line(f"i64 {x} = tile * {wide} * N;")
            line(f"const i64 end = {x} + {wide} * N < {size} ? {x} + {wide} * N : {size};")
            if wide > 1:
                call = f"columns(All{{}}, Const<{wide}>{{}}, {x})"
                line(f"if ({x} + {wide} * N <= {size}) {{ {call}; continue; }}")
            line(f"for (; {x} + N <= end; {x} += N) columns(All{{}}, Const<1>{{}}, {x});")
            line(f"if ({x} < end) columns(Some{{end - {x}}}, Const<1>{{}}, {x});")

    def _panels(self, panels: Panels, parallel: bool) -> None:
        """Long columns, many at a time."""
        with self._outer_loops(parallel, [("panel", panels.count)]):
            PanelPrinter(
                self.values,
                panels,
                self._columns(),
                self._emit,
                self._flush,
                self.accumulators,
                self.emitted,
            ).panel(self.stages)

    def _reduction(self, chunked: bool) -> None:
        """All stages of one row (or of N * T columns)."""
        turned = [] if chunked else short_rows(self.values)
        for position in turned:
            open_rows(self.values, position)
        if self.stages.scratch:
            self.values.declare_scratch(as_expr(product(size_of(s) for s in self.reduces)))
        for numbers, walk in zip(self.stages.numbers, self.stages.walks, strict=True):
            self._rest_of(numbers)
            if walk.nodes:
                self._walk(walk, chunked)
            for position in walk.nodes:
                if position in turned:
                    close_rows(self.values, position)

    def _walk(self, walk: Walk, chunked: bool) -> None:
        unroll = self._unroll()
        accumulators = [Accumulator(self.values, p, unroll) for p in walk.reductions]
        self.accumulators = {accumulator.position: accumulator for accumulator in accumulators}
        size = as_expr(size_of(self.reduces[0]))
        for accumulator in accumulators:
            accumulator.declare_result()
        if chunked:
            self._chunked_walk(walk, size.const)
            return
        with self.code.block(""):
            self._declare_accumulators()
            for position in walk.nodes:
                if self.nodes[position].op == "scan" and position not in self.values.kept:
                    self.values.declare_scan(position)
            self._walk_loops(walk, "0", self._count(self.reduces[0]))
            for accumulator in accumulators:
                accumulator.finish()

    def _declare_accumulators(self) -> None:
        for accumulator in self.accumulators.values():
            accumulator.declare()
        if any(accumulator.cascades for accumulator in self.accumulators.values()):
            self.code.line("i64 steps = 0;")

    def _chunked_walk(self, walk: Walk, size: int) -> None:
        """The walk in pieces of the outermost reduction loop, run by all threads. One thread takes
        the same pieces: their sums are as accurate.
        """
        rest = max(self._work() // max(size * self._rows(), 1), 1)
        step = max(CHUNK_WORK // rest, -(-size // MAX_CHUNKS), 1)
        step = -(-step // 64) * 64 if len(self.reduces) == 1 else step
        count = -(-size // step)
        for accumulator in self.accumulators.values():
            accumulator.declare_parts(count)
        line = self.code.line
        if self.threads > 1:
            line(f"{self._parallel()} schedule(static)")
        with self.code.block(f"for (int chunk = 0; chunk < {count}; chunk++)"):
            line(f"const i64 low = chunk * {step}ll;")
            line(f"const i64 high = low + {step} < {size} ? low + {step} : {size};")
            self._declare_accumulators()
            self._walk_loops(walk, "low", "high")
            for accumulator in self.accumulators.values():
                accumulator.save_part()
        for accumulator in self.accumulators.values():
            accumulator.combine_parts(count)

    def _walk_loops(self, walk: Walk, low: str, high: str) -> None:
        """The loops over the reduction symbols, from `low` to `high` in the outermost."""
        plain = [s for s in self.reduces if s != self.vec]
        known, done = set(self.body.iters), set[int]()
        turned = turned_in_walk(self.values, walk.nodes)
        with ExitStack() as stack:
            for symbol in plain:
                first, last = self._bounds(symbol, low, high)
                r = symbol.name
                loop = self.code.block(f"for (i64 {r} = {first}; {r} < {last}; {r}++)")
                if turned and symbol == plain[-1]:
                    loop = block_loop(self.values, turned, first, last)
                stack.enter_context(loop)
                known.add(symbol)
                for position in walk.nodes:
                    if position not in done and self._is_number_of(position, known):
                        self._emit(position)
                        done.add(position)
            rest = [position for position in walk.nodes if position not in done]

            def body() -> None:
                for position in rest:
                    self._emit(position)

            if self.by_row:
                assert self.vec is not None
                unroll = self._unroll() if self.accumulators else 1
                self._vector_loop(*self._bounds(self.vec, low, high), body, unroll)
            else:
                body()
            if plain and self._flush():
                self.code.line(self._flush())

    def _bounds(self, symbol: Symbol, low: str, high: str) -> tuple[str, str]:
        return (low, high) if symbol == self.reduces[0] else ("0", self._count(symbol))

    def _is_number_of(self, position: int, known: set[Symbol]) -> bool:
        op = self.nodes[position].op
        is_value = op != "reduction" and op not in STORES
        is_number = self.by_row or not self.values.is_vec[position]
        return is_value and is_number and self.values.depends[position] <= known

    def _flush(self) -> str:
        """Every so often, move partial sums on, so that the error does not grow with the length."""
        sums = [a for a in self.accumulators.values() if a.cascades]
        if not sums:
            return ""
        moves = " ".join(a.flush() for a in sums)
        seldom = " ".join(a.flush_total() for a in sums if a.is_long)
        if seldom:
            moves += f" if (steps % {FLUSH_EVERY**2} == 0) {{ {seldom} }}"
        return f"if (++steps % {FLUSH_EVERY} == 0) {{ {moves} }} "
