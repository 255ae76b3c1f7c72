"""The text of a body's nodes in C++: values as numbers or vectors, loads, stores, indices.

A vector value `v7` is `V<float, N> v7`; in kernels that reduce by columns it is `V<float, N>
v7[T]`, N * T neighbouring columns at once, so that a row of memory is read in longer pieces and
additions need not wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minidynamo.inductor.codegen.code import Code
from minidynamo.inductor.codegen.cpp_stages import (
    SCRATCH_ELEMENTS,
    SCRATCH_ELEMENTS_BY_COLUMN,
    STORES,
    dependencies,
    size_of,
)
from minidynamo.inductor.codegen.cpp_vec import (
    COMBINE,
    CTYPE,
    LANE_TYPE,
    MEMORY_TYPE,
    SCALAR,
    VECTOR,
    Row,
    literal,
    operation,
    scalar_cast,
    vector_cast,
)
from minidynamo.inductor.codegen.narrow import MOST_NEAR, NEAR
from minidynamo.inductor.loop_body import LoopBody, Node
from minidynamo.inductor.ops import SCAN_STEPS, SCANS, SCATTERS
from minidynamo.inductor.symbolic import (
    Atom,
    Expr,
    FloorDiv,
    Mod,
    Symbol,
    ValueRef,
    contiguous_strides,
    dot,
    is_nonneg,
    symbol_expr,
)


def _ref(atom: Atom) -> int | None:
    """The node that an atom is the value of."""
    return atom.node if isinstance(atom, ValueRef) else None


def _scan_start(name: str, dtype: torch.dtype) -> float:
    value = SCANS[name]
    if abs(value) != float("inf") or dtype.is_floating_point:
        return value
    return torch.iinfo(dtype).max if value > 0 else torch.iinfo(dtype).min


class ValuePrinter:
    """Writes the nodes of one body into `code`.

    Attributes:
        vec: the vectorised symbol, None where there is no loop at all.
        is_vec: for every node, whether its value changes with `vec`.
        by_column: whether `vec` is outside of reduction loops: vector values are arrays of T.
        scratch: values kept from one walk for the next; `kept`: those that the text so far made.
        tiled: loads that are read before, stores that are written later -> where their vector is.
        is_small: whether positions of unknown range are known to fit into 32 bits.
    """

    def __init__(
        self,
        body: LoopBody,
        vec: Symbol | None,
        code: Code,
        scratch: frozenset[int],
        failures: Sequence[str],
        is_small: bool = False,
    ) -> None:
        self.nodes = body.nodes
        self.is_small = is_small
        self.reduces = body.reduces
        self.vec = vec
        self.code = code
        self.scratch = scratch
        self.depends = dependencies(body)
        self.is_vec = [vec in symbols for symbols in self.depends]
        self.by_column = bool(body.reduces) and vec not in body.reduces
        self.failures = {text: number for number, text in enumerate(failures, 1)}
        self.kept: set[int] = set()
        self.tiled: dict[int, str] = {}

    # -- values ------------------------------------------------------------------------------------
    def emit(self, position: int) -> None:
        """The statement of a node that is no reduction."""
        node = self.nodes[position]
        if node.op in STORES:
            self._store(position, node)
        elif self.is_vec[position]:
            self._vector(position)
        else:
            self.number(position)

    def declare_scan(self, position: int) -> None:
        """The running value of a scan, before the loops that it goes along."""
        node = self.nodes[position]
        start, ctype = self._start(node), CTYPE[node.dtype]
        if not (self.is_vec[position] and self.by_column):
            self.code.line(f"{ctype} run{position} = {start};")
            return
        self.code.line(f"V<{ctype}, N> run{position}[T];")
        self.for_columns(f"run{position}[t] = splat<N>(({ctype}){start});")

    def _start(self, node: Node) -> str:
        return literal(_scan_start(str(node.value), node.dtype), node.dtype)

    def _scan(
        self,
        position: int,
        node: Node,
    ) -> None:
        if self.is_vec[position] and not self.by_column:
            step = COMBINE[str(node.value)]
            given = f"{self.lanes(node.args[0])}, run{position}, {self._start(node)}"
            text = f"scan_row<{step}>(w, {given})"
            self.code.line(f"const V<{CTYPE[node.dtype]}, N> v{position} = {text};")
            return
        at = "[t]" if self.is_vec[position] else ""
        ctype = f"V<{CTYPE[node.dtype]}, N>" if at else CTYPE[node.dtype]
        table, run = (VECTOR if at else SCALAR), f"run{position}{at}"
        value = self.lanes(node.args[0]) if at else f"v{node.args[0]}"
        text = operation(table, SCAN_STEPS[str(node.value)], [run, value], node.dtype, ctype)
        if not at:
            self.code.line(f"const {ctype} v{position} = {run} = {text};")
            return
        self.code.line(f"{ctype} v{position}[T];")
        self.for_columns(f"v{position}[t] = {run} = {text};")

    def number(self, position: int) -> None:
        """A value that does not change with the vectorised symbol."""
        node = self.nodes[position]
        kept = f"s{position}[{self._scratch_index()}]" if position in self.scratch else ""
        if position in self.kept:
            self.code.line(f"const {CTYPE[node.dtype]} v{position} = {kept};")
            return
        if node.op == "scan":
            self._scan(position, node)
        else:
            args = [f"v{arg}" for arg in node.args]
            text = self._number_text(node, args)
            self.code.line(f"const {CTYPE[node.dtype]} v{position} = {text};")
        if kept:
            self.code.line(f"{kept} = v{position};")
            self.kept.add(position)

    def _number_text(
        self,
        node: Node,
        args: list[str],
    ) -> str:
        if node.op == "constant":
            assert not isinstance(node.value, str) and node.value is not None
            return literal(node.value, node.dtype)
        if node.op == "index_expr":
            assert node.index is not None
            text = self.index(node.index)
            return f"near({text})" if node.value == NEAR else text
        if node.op == "load":
            assert node.index is not None
            text = f"{node.buffer}[{self.index(node.index)}]"
            return f"({args[0]} ? {text} : 0)" if args else text
        if node.op == "cast":
            return scalar_cast(args[0], self.nodes[node.args[0]].dtype, node.dtype)
        if node.op == "check":
            return f"check_s({args[0]}, {args[1]}, failure, {self.failures[str(node.value)]})"
        if node.op == "philox":
            return f"philox_s({args[0]}, {args[1]}, {node.value})"
        operand = self.nodes[node.args[-1]].dtype
        return operation(SCALAR, node.op, args, operand, CTYPE[node.dtype])

    def name(self, position: int) -> str:
        """How a vector value is referred to."""
        return f"v{position}[t]" if self.by_column else f"v{position}"

    def lanes(self, position: int) -> str:
        """The value as a vector."""
        if self.is_vec[position]:
            return self.name(position)
        dtype = self.nodes[position].dtype
        value = f"-(i32)v{position}" if dtype == torch.bool else f"v{position}"
        return f"splat<N>(({LANE_TYPE[dtype]}){value})"

    def for_columns(self, statement: str) -> None:
        """A statement about vectors, for each of the T of them where there are several."""
        loop = "for (int t = 0; t < T; t++) " if self.by_column else ""
        self.code.line(loop + statement)

    def _vector(self, position: int) -> None:
        node = self.nodes[position]
        ctype = f"V<{LANE_TYPE[node.dtype]}, N>"
        is_kept = position in self.kept
        if node.op == "scan" and not is_kept:
            self._scan(position, node)
        else:
            text = self._from_scratch(position) if is_kept else self._vector_text(position)
            if self.by_column:
                self.code.line(f"{ctype} v{position}[T];")
                self.for_columns(f"v{position}[t] = {text};")
            else:
                self.code.line(f"const {ctype} v{position} = {text};")
        if position in self.scratch and position not in self.kept:
            self.for_columns(self._to_scratch(position))
            self.kept.add(position)

    def _vector_text(self, position: int) -> str:
        node = self.nodes[position]
        if node.op == "index_expr":
            return self._near(node) if node.value == NEAR else self._position(node)
        if node.op == "load":
            text = self.tiled.get(position) or self._vector_load(node)
            return f"from_bytes({text})" if node.dtype == torch.bool else text
        args = [self.lanes(arg) for arg in node.args]
        if node.op == "where" and not self.is_vec[node.args[0]]:
            return f"(v{node.args[0]} ? {args[1]} : {args[2]})"
        if node.op == "cast":
            rounded = self._rounded(node)
            if rounded is not None:
                return f"through_bfloat({self.lanes(rounded)})"
            return vector_cast(args[0], self.nodes[node.args[0]].dtype, node.dtype)
        if node.op == "check":
            number = self.failures[str(node.value)]
            return f"check({args[0]}, {args[1]}, w, failure, {number})"
        if node.op == "philox":
            return f"philox<N>({args[0]}, {args[1]}, {node.value})"
        operand = self.nodes[node.args[-1]].dtype
        return operation(VECTOR, node.op, args, operand, f"V<{LANE_TYPE[node.dtype]}, N>")

    def _position(self, node: Node) -> str:
        assert node.index is not None
        return self.index_vector(node.index, CTYPE[node.dtype])

    def _near(self, node: Node) -> str:
        """Numbers with the signs of an index expression."""
        assert node.index is not None
        step = self.step(node.index)
        if step is not None and abs(step) <= MOST_NEAR:
            return f"linear<i32, N>(near({self._shifted(node.index, step)}), {step})"
        return f"lanewise<i32, N>({self._by_lane('near(', node.index, ')')})"

    def _rounded(self, node: Node) -> int | None:
        """The float32 that a cast has back from bfloat16, if it stands in this walk."""
        (source,) = node.args
        inner = self.nodes[source]
        if inner.op != "cast" or inner.dtype != torch.bfloat16 or source in self.scratch:
            return None
        original = inner.args[0]
        same = node.dtype == self.nodes[original].dtype == torch.float32
        return original if same and self.is_vec[source] and self.is_vec[original] else None

    # -- scratch memory ----------------------------------------------------------------------------
    def declare_scratch(self, total: Expr) -> None:
        """Rows of scratch memory, for `total` points of the reduction symbols."""
        few = SCRATCH_ELEMENTS_BY_COLUMN if self.by_column else SCRATCH_ELEMENTS
        for position in sorted(self.scratch):
            ctype, suffix = LANE_TYPE[self.nodes[position].dtype], ""
            if self.is_vec[position] and self.by_column:
                ctype, suffix = f"V<{ctype}, N>", "[T]"
            more = "" if self.by_column else " + N"
            if total.is_const:
                aligned = "" if self.by_column else "alignas(64) "
                self.code.line(f"{aligned}{ctype} s{position}[{total}{more}]{suffix};")
                continue
            row = f"Row<{ctype}{suffix}, {few}{more}>"
            self.code.line(f"{row} row{position}({self.index(total)}{more});")
            self.code.line(f"auto* const s{position} = row{position}.first;")

    def _scratch_index(self) -> str:
        """Lanes are neighbours: the vectorised symbol is the innermost one."""
        symbols = sorted(self.reduces, key=lambda s: s == self.vec)
        strides = contiguous_strides([size_of(s) for s in symbols])
        return self.index(dot([symbol_expr(s) for s in symbols], strides))

    def _from_scratch(self, position: int) -> str:
        index = self._scratch_index()
        return (
            f"s{position}[{index}][t]" if self.by_column else f"ld<N>(s{position} + {index}, w)"
        )

    def _to_scratch(self, position: int) -> str:
        index = self._scratch_index()
        if self.by_column:
            return f"s{position}[{index}][t] = v{position}[t];"
        return f"st(s{position} + {index}, v{position}, w);"

    # -- memory ------------------------------------------------------------------------------------
    def step(self, index: Expr) -> int | None:
        """By how much the index grows with the vectorised symbol; None where that varies."""
        factor = self.stride(index)
        return factor.const if factor is not None and factor.is_const else None

    def stride(self, index: Expr) -> Expr | None:
        """`step`, where sizes may decide it, too."""
        assert self.vec is not None
        if any(self.is_vec[ref] for ref in index.value_refs()):
            return None
        factor = index.coeff(self.vec)
        return factor if factor is not None and factor.is_uniform() else None

    def _repeats(self, index: Expr) -> int | None:
        """How many neighbours read one element, where that is a small power of two and vectors
        begin at multiples of it.
        """
        assert self.vec is not None
        if self.reduces or any(self.is_vec[ref] for ref in index.value_refs()):
            return None
        own = [m for m in index.terms if Expr(0, {m: 1}).uses({self.vec})]
        if len(own) != 1 or len(own[0]) != 1 or index.terms[own[0]] != 1:
            return None
        (atom,) = own[0]
        if not isinstance(atom, FloorDiv) or atom.num != symbol_expr(self.vec):
            return None
        return atom.den.const if atom.den.is_const and atom.den.const in (2, 4, 8) else None

    def _shifted(
        self,
        index: Expr,
        step: int,
    ) -> str:
        """The index at the first lane."""
        text = self.index(index)
        if not self.by_column or step == 0:
            return text
        return f"{text} + t * N" if step == 1 else f"{text} + t * N * {step}"

    def _by_lane(
        self,
        prefix: str,
        index: Expr,
        suffix: str = "",
    ) -> str:
        """A lambda from lane to the index at that lane, between `prefix` and `suffix`."""
        assert self.vec is not None
        x = self.vec.name
        first = f"{x} + t * N" if self.by_column else x
        text = self.index(index, lane=True)
        return f"[&](int l) {{ const i64 {x}_ = {first} + l; return {prefix}{text}{suffix}; }}"

    def index_vector(
        self,
        index: Expr,
        ctype: str,
    ) -> str:
        """An index expression as a vector of `ctype`."""
        step = self.step(index)
        if step is not None:
            return f"linear<{ctype}, N>({self._shifted(index, step)}, {step})"
        return f"lanewise<{ctype}, N>({self._by_lane('', index)})"

    def _vector_load(self, node: Node) -> str:
        assert node.index is not None and node.buffer is not None
        ctype = MEMORY_TYPE[node.dtype]
        step = self.step(node.index)
        if node.args and self.is_vec[node.args[0]]:
            if step == 1:
                first = f"{node.buffer} + {self._shifted(node.index, 1)}"
                return f"ld_if<N, {ctype}>({self.name(node.args[0])}, {first}, w)"
            if step is not None:
                first = f"{node.buffer} + {self._shifted(node.index, step)}"
                return f"ld_step_if<N, {step}>({self.name(node.args[0])}, {first}, w)"
            at = self._by_lane(f"{node.buffer} + ", node.index)
            return f"gather_if<N, {ctype}>({self.name(node.args[0])}, w, {at})"
        if step == 1:
            text = f"ld<N>({node.buffer} + {self._shifted(node.index, 1)}, w)"
        elif step == 0:
            text = f"splat<N>({node.buffer}[{self.index(node.index)}])"
        elif step is not None:
            first = f"{node.buffer} + {self._shifted(node.index, step)}"
            text = f"ld_step<N, {step}>({first}, w)"
        elif self._repeats(node.index) is not None:
            first = f"{node.buffer} + {self.index(node.index)}"
            text = f"ld_repeat<N, {self._repeats(node.index)}>({first}, w)"
        else:
            text = self._gather(node, ctype)
        return f"(v{node.args[0]} ? {text} : V<{ctype}, N>{{}})" if node.args else text

    def _gather(
        self,
        node: Node,
        ctype: str,
    ) -> str:
        """A load whose positions vary from lane to lane."""
        assert node.index is not None
        parts = self._positions(node.index)
        if parts is not None:
            lanes, rest = parts
            return f"gather_at<N, {ctype}>(w, {node.buffer} + {rest}, {lanes})"
        runs = "_runs" if self._has_runs(node.index) else ""
        return f"gather{runs}<N, {ctype}>(w, {self._by_lane(f'{node.buffer} + ', node.index)})"

    def _positions(self, index: Expr) -> tuple[str, str] | None:
        """Positions as a vector of integers and a number to add, where one value that is computed
        of positions is all that varies.
        """
        own = [ref for ref in index.value_refs() if self.is_vec[ref]]
        if len(own) != 1 or self.nodes[own[0]].dtype not in (torch.int32, torch.int64):
            return None
        if self._is_read(own[0]):
            return None
        terms = [
            m for m in index.terms if any(a in (self.vec,) or _ref(a) == own[0] for a in m)
        ]
        if len(terms) != 1 or len(terms[0]) != 1 or index.terms[terms[0]] != 1:
            return None
        if _ref(terms[0][0]) != own[0]:
            return None
        rest = index - Expr(0, {terms[0]: 1})
        if self.vec is not None and rest.uses({self.vec}):
            return None
        return self.name(own[0]), self.index(rest)

    def _is_read(self, position: int) -> bool:
        """Whether a value depends on memory."""
        node = self.nodes[position]
        return node.buffer is not None or any(map(self._is_read, node.operands()))

    def _has_runs(self, index: Expr) -> bool:
        """Whether neighbouring lanes read neighbours as long as one quotient or remainder does not
        jump: the first and the last lane then say whether all of them do.
        """
        assert self.vec is not None
        if self.reduces or any(self.is_vec[ref] for ref in index.value_refs()):
            return False
        x, step = symbol_expr(self.vec), 0
        jumps: set[Atom] = set()
        for monomial, coeff in index.terms.items():
            if not Expr(0, {monomial: 1}).uses({self.vec}):
                continue
            (atom, *others) = monomial
            if others:
                return False
            if atom == self.vec:
                step += coeff
            elif isinstance(atom, (FloorDiv, Mod)) and not any(
                part.uses({self.vec}) for part in (atom.num - x, atom.den)
            ):
                jumps.add(atom)
                step += coeff if isinstance(atom, Mod) else 0
            else:
                return False
        return step == 1 and len(jumps) == 1

    def _store(
        self,
        position: int,
        node: Node,
    ) -> None:
        assert node.index is not None and node.buffer is not None
        (value,) = node.args
        vectorised = self.vec is not None and self.is_vec[position]
        if node.op == "scatter":
            self._scatter(node)
            return
        if not vectorised:
            self.code.line(f"{node.buffer}[{self.index(node.index)}] = v{value};")
            return
        text = self.lanes(value)
        if node.dtype == torch.bool:
            text = f"to_bytes({text})"
        if position in self.tiled:
            self.for_columns(f"{self.tiled[position]} = {text};")
        elif self.step(node.index) == 1:
            self.for_columns(f"st({node.buffer} + {self._shifted(node.index, 1)}, {text}, w);")
        elif fields := self._fields(position):
            self._store_fields(position, fields)
        else:
            at = self._by_lane(f"{node.buffer} + ", node.index)
            self.for_columns(f"scatter({text}, w, {at});")

    def _fields(self, position: int) -> list[int]:
        """The stores, in order, that together with this one write two or four neighbours each."""
        own = self.nodes[position]
        step = None if own.index is None or self.reduces else self.step(own.index)
        if step not in (2, 4):
            return []
        assert own.index is not None
        places: dict[int, int] = {}
        for other, node in enumerate(self.nodes):
            if node.op == "store" and node.buffer == own.buffer and node.index is not None:
                distance = node.index - own.index
                if distance.is_const:
                    places[distance.const] = other
        low = min(places)
        wanted = [places.get(low + k) for k in range(step)]
        return [p for p in wanted if p is not None] if None not in wanted else []

    def _store_fields(
        self,
        position: int,
        fields: list[int],
    ) -> None:
        """Such stores as one, where the last stands."""
        if position < max(fields):
            return
        texts = []
        for field in fields:
            text = self.lanes(self.nodes[field].args[0])
            if self.nodes[field].dtype == torch.bool:
                text = f"to_bytes({text})"
            texts.append(text)
        first = self.nodes[fields[0]]
        assert first.index is not None
        at = f"{first.buffer} + {self.index(first.index)}"
        self.code.line(f"st_fields({at}, w, {', '.join(texts)});")

    def _scatter(self, node: Node) -> None:
        """Loops whose iterations may meet at one element run in order (`parallel_symbols`). After a
        check that failed nothing is written: the memory may be an input's.
        """
        assert node.index is not None and node.buffer is not None
        (value,) = node.args
        step = SCATTERS[str(node.value)]

        def combined(
            table: dict[str, Row],
            old: str,
            new: str,
            lanes: str = "",
        ) -> str:
            ctype = lanes or CTYPE[node.dtype]
            return operation(table, step, [old, new], node.dtype, ctype) if step else new

        unless = "if (!failure[0]) " if self.failures else ""
        if self.vec is None:
            place = f"{node.buffer}[{self.index(node.index)}]"
            self.code.line(f"{unless}{place} = {combined(SCALAR, place, f'v{value}')};")
            return
        text = self.lanes(value)
        if node.dtype == torch.bool:
            text = f"to_bytes({text})"
        if self.step(node.index) == 1:
            at = f"{node.buffer} + {self._shifted(node.index, 1)}"
            lanes = f"V<{LANE_TYPE[node.dtype]}, N>"
            new = combined(VECTOR, f"ld<N>({at}, w)", text, lanes)
            self.code.line(f"{unless}st({at}, {new}, w);")
            return
        at = self._by_lane(f"{node.buffer} + ", node.index)
        self.code.line(
            f"{unless}{{ auto at = {at}; auto x = {text};"
            f" for (int l = 0; l < lanes<N>(w); l++) *at(l) ="
            f" {combined(SCALAR, '*at(l)', 'x[l]')}; }}"
        )

    def _before_jump(self, atom: FloorDiv | Mod) -> Expr | None:
        """The dividend at the first of the vectorised loop's points, if it grows by one from each
        to the next and the quotient at most once.
        """
        x, den = self.vec, atom.den
        if x is None or x.size is None or not is_nonneg(den - x.size):
            return None
        first = atom.num - symbol_expr(x)
        lane_free = not first.uses({x}) and not den.uses({x}) and not den.value_refs()
        return first if lane_free and is_nonneg(first) else None

    def index(
        self,
        expr: Expr,
        lane: bool = False,
    ) -> str:
        """An index as C++; with `lane`, for one lane of the vectorised loop."""

        def atom_text(atom: Atom) -> str:
            if isinstance(atom, Symbol):
                return f"{atom.name}_" if lane and atom == self.vec else atom.name
            if isinstance(atom, ValueRef):
                if lane and self.is_vec[atom.node]:
                    return f"(i64){self.name(atom.node)}[l]"
                return f"(i64)v{atom.node}"
            assert isinstance(atom, (FloorDiv, Mod))
            den = atom.den.render_divisor(atom_text)
            first = self._before_jump(atom) if lane else None
            if first is not None:  # one division for all lanes
                rest, x = first.render(atom_text), f"{self.vec.name}_"  # type: ignore[union-attr]
                if isinstance(atom, Mod):
                    return f"wrapped({rest} % {den} + {x}, {den})"
                return f"({rest} / {den} + ({rest} % {den} + {x} >= {den}))"
            num = atom.num.render(atom_text)
            if is_nonneg(atom.num):
                return f"({num} {'/' if isinstance(atom, FloorDiv) else '%'} {den})"
            return f"{'floor' if isinstance(atom, FloorDiv) else 'mod'}_index({num}, {den})"

        return expr.render(atom_text)
