"""C++ for a kernel: `codegen_cpp(spec, threads)` gives the source of `extern "C" void name(void**,
const int64_t*)`.

One loop symbol is *vectorised*: its loop takes N elements at a time, the values that change with it
are vectors, the others are numbers, computed in the outermost loop that knows them. Three shapes of
loop nest follow:

    elementwise      for outer.. { for x += N { body } } inner reduction  for outer.. { for r += N {
    accumulate }  numbers  for r += N { .. } }      (softmax over rows) outer reduction  for outer..
    { for x += N { for r { accumulate }  vectors  for r { .. } } }  (sums of columns)

Several walks over the reduction symbols follow each other where one needs another's result. What is
dear to compute and wanted in two walks is kept in a row of scratch memory. The outer loops run in
parallel by OpenMP where there is enough to do; few long rows are cut into a fixed number of chunks
(the same for any thread count), combined in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from minidynamo.inductor.codegen.code import Code
from minidynamo.inductor.codegen.cpp_reduce import FLUSH_EVERY, Accumulator
from minidynamo.inductor.codegen.cpp_stages import (
    Walk,
    choose_vector_symbol,
    dependencies,
    plan_stages,
    size_of,
)
from minidynamo.inductor.codegen.cpp_vec import (
    CTYPE,
    LANE_TYPE,
    MEMORY_TYPE,
    SCALAR,
    VECTOR,
    literal,
    operation,
    scalar_cast,
    vector_cast,
)
from minidynamo.inductor.codegen.kernel import KernelSpec
from minidynamo.inductor.codegen.narrow import narrow_integers
from minidynamo.inductor.loop_body import LoopBody, Node
from minidynamo.inductor.ops import OPS
from minidynamo.inductor.symbolic import (
    Atom,
    Expr,
    FloorDiv,
    Mod,
    Symbol,
    ValueRef,
    as_expr,
    contiguous_strides,
    dot,
    is_nonneg,
    product,
    symbol_expr,
)

# Rows up to this length may be kept in scratch memory; by columns, N times as much is kept.
SCRATCH_ELEMENTS = 8192
SCRATCH_ELEMENTS_BY_COLUMN = 1024
# Work (elements, weighted by cost) below which threads cost more than they bring; and of a chunk.
PARALLEL_WORK = 1 << 16
CHUNK_WORK = 1 << 15
MAX_CHUNKS = 64
UNROLL = 4
STORES = ("store", "atomic_add")


def codegen_cpp(spec: KernelSpec, name: str, threads: int) -> str:
    """Source text of the kernel; it needs `cpp_prefix.h` in front."""
    return CppKernel(spec, name, threads).generate()


class CppKernel:
    """Prints one kernel.

    Attributes:
        vec: the vectorised symbol, None where there is no loop at all.
        inner_vec: whether that is a reduction symbol.
        is_vec: for every node, whether its value changes with `vec`.
        inner: for every node, whether it changes with a reduction symbol.
    """

    def __init__(self, spec: KernelSpec, name: str, threads: int) -> None:
        self.spec = spec
        self.name = name
        self.threads = threads
        self.code = Code()
        self.body: LoopBody = narrow_integers(spec.body)
        self.nodes = self.body.nodes
        self.reduces = self.body.reduces
        self.vec = choose_vector_symbol(self.body)
        self.inner_vec = self.vec in self.reduces
        self.depends = dependencies(self.body)
        self.is_vec = [self.vec in symbols for symbols in self.depends]
        self.inner = self.body.levels()
        self.outer = [s for s in self.body.iters if s != self.vec]
        self.args = {arg.name: arg for arg in spec.args}
        self.stages = plan_stages(self.body, self.inner, self._scratch_limit())
        self.kept: set[int] = set()  # scratch values that the text so far has computed
        self.emitted: set[int] = set()
        self.accumulators: dict[int, Accumulator] = {}
        self.walk_accumulators: list[Accumulator] = []
        self.lane_bytes = self._lane_bytes()
        self.unroll = self._unroll()

    # -- decisions ---------------------------------------------------------------------------------
    def _lane_bytes(self) -> int:
        sizes = [4]
        for node, is_vec in zip(self.nodes, self.is_vec, strict=True):
            if is_vec or node.op == "reduction":
                sizes.append(node.dtype.itemsize if node.value not in ("argmax", "argmin") else 4)
        return max(sizes)

    def _unroll(self) -> int:
        """Accumulators side by side, which hide the latency of an addition, where the row is long
        enough.
        """
        if self.vec is None or not self.inner_vec:
            return 1
        size = self.vec.size
        return UNROLL if not isinstance(size, int) or size >= UNROLL * 32 else 1

    def _scratch_limit(self) -> int:
        total = product(s.size for s in self.reduces)  # type: ignore[misc]
        return (
            0
            if not isinstance(total, int)
            else (SCRATCH_ELEMENTS if self.inner_vec else SCRATCH_ELEMENTS_BY_COLUMN)
        )

    def _work(self) -> int:
        total = product(s.size for s in (*self.body.iters, *self.reduces))  # type: ignore[misc]
        cost = sum(OPS[node.op].cost for node in self.nodes)
        return total * (8 + cost) // 8 if isinstance(total, int) else 1 << 40

    def _rows(self) -> int:
        """Independent pieces of work in the outer loops."""
        total = product(s.size for s in self.outer)  # type: ignore[misc]
        return total if isinstance(total, int) else 1 << 20

    # -- the function ------------------------------------------------------------------------------
    def generate(self) -> str:
        for origin in (", ".join(self.spec.origins),) if self.spec.origins else ():
            self.code.line(f"// {origin}")
        with self.code.block(f'extern "C" void {self.name}(void** ptrs, const i64* sizes)', "}"):
            self.code.line("using namespace md;")
            self.code.line(f"constexpr int N = BYTES / {self.lane_bytes};")
            for position, arg in enumerate(self.spec.args):
                ctype = MEMORY_TYPE[arg.dtype]
                const = "const " if arg.role == "in" else ""
                self.code.line(
                    f"{const}{ctype}* __restrict {arg.name} = ({const}{ctype}*)ptrs[{position}];"
                )
            self._nest()
        return self.code.text()

    def _nest(self) -> None:
        parallel = self.threads > 1 and self._work() >= PARALLEL_WORK
        if not self.reduces:
            self._elementwise(parallel)
        elif self._rows() * self._tiles() < 2 * self.threads and parallel and self._chunkable():
            self._rowwise(False, chunked=True)
        else:
            self._rowwise(parallel, chunked=False)

    def _tiles(self) -> int:
        """Pieces of the vectorised loop where that is an outer one."""
        assert self.vec is not None
        size = self.vec.size
        return 1 if self.inner_vec or not isinstance(size, int) else max(size // 16, 1)

    def _chunkable(self) -> bool:
        return isinstance(self.reduces[0].size, int)

    # -- loops -------------------------------------------------------------------------------------
    @contextmanager
    def _outer_loops(self, parallel: bool, extra: Sequence[tuple[str, str]] = ()) -> Iterator[None]:
        """Open the loops over the outer symbols and `extra` (variable, count), then emit what they
        know.
        """
        loops = [(s.name, str(as_expr(size_of(s)))) for s in self.outer] + list(extra)
        pragma = self._pragma(loops) if parallel and loops else None
        if pragma:
            self.code.line(pragma)
        blocks = []
        known: set[Symbol] = set()
        collapsed = _collapse_count(pragma)
        emitted: set[int] = set()
        for depth, (variable, count) in enumerate([("", ""), *loops]):
            if depth:
                block = self.code.block(
                    f"for (i64 {variable} = 0; {variable} < {count}; {variable}++)"
                )
                block.__enter__()
                blocks.append(block)
                if depth <= len(self.outer):
                    known.add(self.outer[depth - 1])
            if depth == 0 and pragma:
                continue
            if depth >= collapsed:
                self._emit_known(known, emitted)
        self.emitted = emitted
        yield
        for block in reversed(blocks):
            block.__exit__(None, None, None)

    def _emit_known(self, known: set[Symbol], emitted: set[int]) -> None:
        """Numbers of the first stage that depend on no more than `known`."""
        for position in self.stages.numbers[0]:
            is_number = not self.is_vec[position] and self.nodes[position].op not in STORES
            if position not in emitted and is_number and self.depends[position] <= known:
                self._scalar(position)
                emitted.add(position)

    def _pragma(self, loops: Sequence[tuple[str, str]]) -> str:
        """The OpenMP line: as many loops together as give every thread several pieces."""
        total, depth = 1, 0
        for _, count in loops:
            total, depth = total * (int(count) if count.isdigit() else 1 << 10), depth + 1
            if total >= 8 * self.threads:
                break
        collapse = f" collapse({depth})" if depth > 1 else ""
        return f"#pragma omp parallel for{collapse} num_threads({self.threads}) schedule(static)"

    def _elementwise(self, parallel: bool) -> None:
        """No reductions: everything that is vectorised happens in the innermost loop."""
        if self.vec is None:
            with self._outer_loops(False):
                self._rest_of(self.stages.numbers[0])
            return
        size, rows = as_expr(size_of(self.vec)), self._rows()
        extra: list[tuple[str, str]] = []
        chunk = None
        if parallel and rows < 4 * self.threads and size.is_const:
            chunk = max(1024, -(-size.const // (8 * self.threads)) // 64 * 64)
            extra = [("chunk", str(-(-size.const // chunk)))]
        with self._outer_loops(parallel, extra):
            if chunk is None:
                low, high = "0", str(size)
            else:
                low, high = "low", "high"
                self.code.line(f"const i64 low = chunk * {chunk};")
                self.code.line(f"const i64 high = low + {chunk} < {size} ? low + {chunk} : {size};")
            self._vector_loop(low, high, lambda: self._rest_of(self.stages.numbers[0]))

    def _rest_of(self, positions: Iterable[int]) -> None:
        for position in positions:
            if position not in self.emitted:
                self._emit(position)

    def _vector_loop(self, low: str, high: str, body: Callable[[], None], unroll: int = 1) -> None:
        """`body` for vec from `low` to `high`, N elements at a time, the last ones as `Some`."""
        assert self.vec is not None
        x = self.vec.name
        head = f"auto body = [&](auto w, i64 {x}, int u) __attribute__((always_inline))"
        with self.code.block(head, "};"):
            body()
        self.code.line(f"i64 {x} = {low};")
        if unroll > 1:
            calls = " ".join(f"body(All{{}}, {x} + {u} * N, {u});" for u in range(unroll))
            flush = self._flush_text()
            self.code.line(
                f"for (; {x} + {unroll} * N <= {high}; {x} += {unroll} * N) {{ {calls} {flush}}}"
            )
        self.code.line(f"for (; {x} + N <= {high}; {x} += N) body(All{{}}, {x}, 0);")
        self.code.line(f"if ({x} < {high}) body(Some{{{high} - {x}}}, {x}, 0);")

    def _rowwise(self, parallel: bool, chunked: bool) -> None:
        """Reductions: the outer loops in parallel, or (chunked) each walk."""
        assert self.vec is not None
        if self.inner_vec:
            with self._outer_loops(parallel):
                self._reduction(chunked)
            return
        size = as_expr(size_of(self.vec))
        x = self.vec.name
        with self._outer_loops(parallel, [("tile", f"({size} + N - 1) / N")]):
            head = f"auto column = [&](auto w, i64 {x}) __attribute__((always_inline))"
            with self.code.block(head, "};"):
                self._reduction(chunked)
            self.code.line(f"if ((tile + 1) * N <= {size}) column(All{{}}, tile * N);")
            self.code.line(f"else column(Some{{{size} - tile * N}}, tile * N);")

    # -- reductions --------------------------------------------------------------------------------
    def _reduction(self, chunked: bool) -> None:
        """All stages of one row (or of N columns)."""
        self._declare_scratch()
        for step, numbers in enumerate(self.stages.numbers):
            self._rest_of(numbers)
            if step < len(self.stages.walks):
                self._walk(self.stages.walks[step], chunked)

    def _declare_scratch(self) -> None:
        total = as_expr(product(size_of(s) for s in self.reduces))
        for position in self.stages.scratch:
            ctype = LANE_TYPE[self.nodes[position].dtype]
            if self.is_vec[position] and not self.inner_vec:
                self.code.line(f"V<{ctype}, N> s{position}[{total}];")
            else:
                self.code.line(f"alignas(64) {ctype} s{position}[{total} + N];")

    def _walk(self, walk: Walk, chunked: bool) -> None:
        if not walk.nodes:
            return
        accumulators = [Accumulator(self, position) for position in walk.reductions]
        outermost = self.reduces[0]
        size = as_expr(size_of(outermost))
        self.walk_accumulators = accumulators
        for accumulator in accumulators:
            accumulator.declare_result()
        if not chunked:
            with self.code.block(""):
                for accumulator in accumulators:
                    accumulator.declare()
                self._walk_loops(walk, accumulators, "0", str(size))
                for accumulator in accumulators:
                    accumulator.finish()
            return
        self._chunked_walk(walk, accumulators, size.const)

    def _chunked_walk(self, walk: Walk, accumulators: list[Accumulator], size: int) -> None:
        """The walk in pieces of the outermost reduction loop, run by all threads; partial results
        combined in order.
        """
        rest = max(self._work() // max(size * self._rows(), 1), 1)
        step = max(CHUNK_WORK // rest, -(-size // MAX_CHUNKS), 1)
        step = -(-step // 64) * 64 if len(self.reduces) == 1 else step
        count = -(-size // step)
        for accumulator in accumulators:
            accumulator.declare_parts(count)
        pragma = f"#pragma omp parallel for num_threads({self.threads}) schedule(static)"
        self.code.line(pragma)
        with self.code.block(f"for (int chunk = 0; chunk < {count}; chunk++)"):
            self.code.line(f"const i64 low = chunk * {step}ll;")
            self.code.line(f"const i64 high = low + {step} < {size} ? low + {step} : {size};")
            for accumulator in accumulators:
                accumulator.declare()
            self._walk_loops(walk, accumulators, "low", "high")
            for accumulator in accumulators:
                accumulator.save_part()
        for accumulator in accumulators:
            accumulator.combine_parts(count)

    def _walk_loops(self, walk: Walk, accumulators: list[Accumulator], low: str, high: str) -> None:
        """The loops over the reduction symbols, from `low` to `high` in the outermost."""
        self.accumulators = {accumulator.position: accumulator for accumulator in accumulators}
        order = [s for s in self.reduces if s != self.vec]
        blocks, done = [], set[int]()
        known = set(self.body.iters)
        for symbol in order:
            bounds = (
                (low, high) if symbol == self.reduces[0] else ("0", str(as_expr(size_of(symbol))))
            )
            block = self.code.block(
                f"for (i64 {symbol.name} = {bounds[0]}; {symbol.name} < {bounds[1]}; "
                f"{symbol.name}++)"
            )
            block.__enter__()
            blocks.append(block)
            known.add(symbol)
            for position in walk.nodes:
                node = self.nodes[position]
                ready = self.depends[position] <= known and node.op not in (
                    "reduction",
                    "store",
                    "atomic_add",
                )
                if position not in done and ready and (self.inner_vec or not self.is_vec[position]):
                    self._emit(position)
                    done.add(position)
        rest = [p for p in walk.nodes if p not in done]

        def body() -> None:
            for position in rest:
                self._emit(position)

        if self.inner_vec:
            assert self.vec is not None
            whole = self.vec != self.reduces[0]
            bounds = ("0", str(as_expr(size_of(self.vec)))) if whole else (low, high)
            self._vector_loop(*bounds, body, self.unroll if accumulators else 1)
        else:
            self.code.line("constexpr int u = 0;")
            body()
        flush = self._flush_text() if order else ""
        if flush:
            self.code.line(flush)
        for block in reversed(blocks):
            block.__exit__(None, None, None)

    def _flush_text(self) -> str:
        """Every so often, move partial sums on, so that the error does not grow with the length."""
        sums = [a for a in self.accumulators.values() if a.cascades]
        if not sums:
            return ""
        moves = " ".join(a.flush() for a in sums)
        return f"if (++steps == {FLUSH_EVERY}) {{ steps = 0; {moves} }} "

    # -- nodes -------------------------------------------------------------------------------------
    def _emit(self, position: int) -> None:
        node = self.nodes[position]
        if node.op == "reduction":
            self.accumulators[position].update()
        elif node.op in STORES:
            self._store(position, node)
        elif self.is_vec[position]:
            self._vector(position)
        else:
            self._scalar(position)

    def _scalar(self, position: int) -> None:
        node = self.nodes[position]
        args = [f"v{arg}" for arg in node.args]
        self.code.line(f"const {CTYPE[node.dtype]} v{position} = {self._scalar_text(node, args)};")

    def _scalar_text(self, node: Node, args: list[str]) -> str:
        if node.op == "constant":
            assert not isinstance(node.value, str) and node.value is not None
            return literal(node.value, node.dtype)
        if node.op == "index_expr":
            assert node.index is not None
            return self.index(node.index)
        if node.op == "load":
            assert node.index is not None
            text = f"{node.buffer}[{self.index(node.index)}]"
            return f"({args[0]} ? {text} : 0)" if args else text
        if node.op == "cast":
            return scalar_cast(args[0], self.nodes[node.args[0]].dtype, node.dtype)
        operand = self.nodes[node.args[-1]].dtype
        return operation(SCALAR, node.op, args, operand, CTYPE[node.dtype])

    def lanes(self, position: int) -> str:
        """The value as a vector."""
        if self.is_vec[position]:
            return f"v{position}"
        dtype = self.nodes[position].dtype
        value = f"-(i32)v{position}" if dtype == torch.bool else f"v{position}"
        return f"splat<N>(({LANE_TYPE[dtype]}){value})"

    def _vector(self, position: int) -> None:
        node = self.nodes[position]
        ctype = LANE_TYPE[node.dtype]
        if position in self.kept:
            self.code.line(f"const V<{ctype}, N> v{position} = {self._from_scratch(position)};")
            return
        text = self._vector_text(node)
        self.code.line(f"const V<{ctype}, N> v{position} = {text};")
        if position in self.stages.scratch:
            self.code.line(self._to_scratch(position))
            self.kept.add(position)

    def _scratch_index(self) -> str:
        strides = contiguous_strides([size_of(s) for s in self.reduces])
        return self.index(dot([symbol_expr(s) for s in self.reduces], strides))

    def _from_scratch(self, position: int) -> str:
        index = self._scratch_index()
        return f"ld<N>(s{position} + {index}, w)" if self.inner_vec else f"s{position}[{index}]"

    def _to_scratch(self, position: int) -> str:
        index = self._scratch_index()
        if self.inner_vec:
            return f"st(s{position} + {index}, v{position}, w);"
        return f"s{position}[{index}] = v{position};"

    def _vector_text(self, node: Node) -> str:
        if node.op == "index_expr":
            assert node.index is not None
            return self.index_vector(node.index, CTYPE[node.dtype])
        if node.op == "load":
            text = self._vector_load(node)
            return f"from_bytes({text})" if node.dtype == torch.bool else text
        args = [self.lanes(arg) for arg in node.args]
        if node.op == "cast":
            return vector_cast(args[0], self.nodes[node.args[0]].dtype, node.dtype)
        operand = self.nodes[node.args[-1]].dtype
        return operation(VECTOR, node.op, args, operand, f"V<{LANE_TYPE[node.dtype]}, N>")

    # -- memory ------------------------------------------------------------------------------------
    def _step(self, index: Expr) -> int | None:
        """By how much the index grows with the vectorised symbol; None where that varies."""
        assert self.vec is not None
        if any(self.is_vec[ref] for ref in index.value_refs()):
            return None
        factor = index.coeff(self.vec)
        return factor.const if factor is not None and factor.is_const else None

    def _lane_index(self, index: Expr) -> str:
        """The index at lane `l`."""
        assert self.vec is not None
        text = self.index(index, lane=True)
        return f"[&](int l) {{ const i64 {self.vec.name}_ = {self.vec.name} + l; return {text}; }}"

    def index_vector(self, index: Expr, ctype: str) -> str:
        step = self._step(index)
        if step is not None:
            return f"linear<{ctype}, N>({self.index(index)}, {step})"
        return f"lanewise<{ctype}, N>({self._lane_index(index)})"

    def _address(self, buffer: str, index: Expr) -> str:
        assert self.vec is not None
        text = self.index(index, lane=True)
        x = self.vec.name
        return f"[&](int l) {{ const i64 {x}_ = {x} + l; return {buffer} + {text}; }}"

    def _vector_load(self, node: Node) -> str:
        assert node.index is not None and node.buffer is not None
        ctype = MEMORY_TYPE[node.dtype]
        step = self._step(node.index)
        if node.args and self.is_vec[node.args[0]]:
            at = self._address(node.buffer, node.index)
            return f"gather_if<N, {ctype}>(v{node.args[0]}, w, {at})"
        if step == 1:
            text = f"ld<N>({node.buffer} + {self.index(node.index)}, w)"
        elif step == 0:
            text = f"splat<N>({node.buffer}[{self.index(node.index)}])"
        else:
            text = f"gather<N, {ctype}>(w, {self._address(node.buffer, node.index)})"
        return f"(v{node.args[0]} ? {text} : V<{ctype}, N>{{}})" if node.args else text

    def _store(self, position: int, node: Node) -> None:
        assert node.index is not None and node.buffer is not None
        (value,) = node.args
        index = node.index
        vectorised = self.vec is not None and self.is_vec[position]
        if node.op == "atomic_add":
            self._atomic_add(node, vectorised)
            return
        if not vectorised:
            self.code.line(f"{node.buffer}[{self.index(index)}] = v{value};")
            return
        text = self.lanes(value)
        if node.dtype == torch.bool:
            text = f"to_bytes({text})"
        if self._step(index) == 1:
            self.code.line(f"st({node.buffer} + {self.index(index)}, {text}, w);")
        else:
            self.code.line(f"scatter({text}, w, {self._address(node.buffer, index)});")

    def _atomic_add(self, node: Node, vectorised: bool) -> None:
        assert node.index is not None and node.buffer is not None
        (value,) = node.args
        if not vectorised:
            self.code.line(f"atomic_add(&{node.buffer}[{self.index(node.index)}], v{value});")
            return
        self.code.line(
            f"{{ auto at = {self._address(node.buffer, node.index)}; auto x = {self.lanes(value)};"
            " for (int l = 0; l < lanes<N>(w); l++) atomic_add(at(l), x[l]); }"
        )

    def index(self, expr: Expr, lane: bool = False) -> str:
        """An index as C++; with `lane`, for one lane of the vectorised loop."""

        def atom_text(atom: Atom) -> str:
            if isinstance(atom, Symbol):
                return f"{atom.name}_" if lane and atom == self.vec else atom.name
            if isinstance(atom, ValueRef):
                return (
                    f"(i64)v{atom.node}[l]"
                    if lane and self.is_vec[atom.node]
                    else f"(i64)v{atom.node}"
                )
            assert isinstance(atom, (FloorDiv, Mod))
            num, den = atom.num.render(atom_text), atom.den.render(atom_text)
            if is_nonneg(atom.num):
                return f"({num} {'/' if isinstance(atom, FloorDiv) else '%'} {den})"
            return f"{'floor' if isinstance(atom, FloorDiv) else 'mod'}_index({num}, {den})"

        return expr.render(atom_text)


def _collapse_count(pragma: str | None) -> int:
    if pragma is None:
        return 0
    start = pragma.find("collapse(")
    return 1 if start < 0 else int(pragma[start + 9 : pragma.index(")", start)])
