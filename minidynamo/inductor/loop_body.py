"""A kernel's body in SSA form.

A `LoopBody` says what happens at one point of an iteration space: `iters` are the parallel loop
symbols (outermost first), `reduces` the reduction symbols. `nodes` is a list in which every node's
operands stand before it; operands are positions in the list. For example `y[i] = sum_j exp(x[i, j]
- m[i])`:

    %0 = load x[16*x0 + r0]   float32
    %1 = load m[x0]           float32
    %2 = sub %0 %1            float32
    %3 = exp %2               float32
    %4 = reduction sum %3     float32
    %5 = store y[x0] %4       float32

A node is *inner* when its value changes with a reduction symbol, else *outer* (`levels`). A
`reduction` takes an inner value (or an outer one: then every iteration contributes it) and gives an
outer one. Inner nodes may use reductions' results: softmax is one body, which needs several walks
over the reduction symbols (`passes`).

Index expressions (`symbolic.Expr`) are in elements of the buffer, over the loop symbols and, for
indirect indexing, `ValueRef`s to earlier nodes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch

from minidynamo.inductor.magnitudes import magnitude
from minidynamo.inductor.ops import OPS, REDUCTIONS, SCANS
from minidynamo.inductor.symbolic import (
    Atom,
    Expr,
    IntLike,
    Symbol,
    ValueRef,
    as_expr,
    is_less,
    is_nonneg,
    symbol_expr,
)

LOW_PRECISION = (torch.float16, torch.bfloat16)


@dataclass(slots=True, eq=False)
class Node:
    """One SSA node.

    Attributes:
        op: a name in `ops.OPS`.
        args: operands, as positions in the body's list.
        dtype: of the result (of the stored value, for a store: the buffer's).
        buffer: of load, store, scatter.
        index: of load, store, scatter (element of the buffer) and index_expr (the value).
        value: the number of a constant; the name of a reduction; the failure of a check; which word
            of a philox.
    """

    op: str
    args: tuple[int, ...]
    dtype: torch.dtype
    buffer: str | None = None
    index: Expr | None = None
    value: bool | int | float | str | None = None

    def key(self) -> tuple[object, ...]:
        """Equal for nodes that compute the same thing in one body."""
        constant = (type(self.value), repr(self.value)) if self.op == "constant" else self.value
        return self.op, self.args, self.dtype, self.buffer, self.index, constant

    def operands(self) -> tuple[int, ...]:
        """SSA operands and the values that the index refers to."""
        refs = self.index.value_refs() if self.index is not None else ()
        return (*self.args, *sorted(refs)) if refs else self.args


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(slots=True, eq=False)
class LoopBody:
    """What one iteration does; see the module's docstring."""

    iters: tuple[Symbol, ...]
    reduces: tuple[Symbol, ...]
    nodes: list[Node] = field(default_factory=list)

    def text(self) -> str:
        """Readable form, one node a line; equal for equal bodies."""
        ranges = ", ".join(f"{s.name}<{s.size}" for s in self.iters)
        reduces = ", ".join(f"{s.name}<{s.size}" for s in self.reduces)
        lines = [f"for [{ranges}]" + (f" reduce [{reduces}]" if reduces else "")]
        for position, node in enumerate(self.nodes):
            words = [f"%{position} = {node.op}"]
            if node.value is not None:
                words.append(repr(node.value) if node.op == "constant" else str(node.value))
            if node.buffer is not None:
                words.append(f"{node.buffer}[{node.index}]")
            elif node.index is not None:
                words.append(str(node.index))
            words += [f"%{arg}" for arg in node.args]
            lines.append(f"  {' '.join(words)}  {_dtype_name(node.dtype)}")
        return "\n".join(lines)

    def loads(self) -> Iterator[Node]:
        return (node for node in self.nodes if node.op == "load")

    def stores(self) -> Iterator[Node]:
        return (node for node in self.nodes if node.op in ("store", "scatter"))

    def has_scan(self) -> bool:
        return any(node.op == "scan" for node in self.nodes)

    def has_positions(self) -> bool:
        """Whether a reduction gives the position of an element."""
        found = (node.value for node in self.nodes if node.op == "reduction")
        return any(kind in ("argmax", "argmin") for kind in found)

    def reads(self) -> set[str]:
        """Buffers whose old contents matter."""
        return {
            node.buffer
            for node in self.nodes
            if node.op in ("load", "scatter") and node.buffer is not None
        }

    def has_reduction(self) -> bool:
        return any(node.op == "reduction" for node in self.nodes)

    def levels(self) -> list[bool]:
        """For every node, whether it is inner: computed or done anew for every value of the
        reduction symbols.
        """
        reduces = frozenset(self.reduces)
        inner: list[bool] = []
        for node in self.nodes:
            if node.op == "reduction":
                inner.append(False)
                continue
            depends = node.op == "scan" or any(inner[arg] for arg in node.operands())
            inner.append(
                depends
                or (node.index is not None and bool(reduces) and node.index.uses(reduces))
            )
        return inner

    def reindex(
        self,
        iters: Sequence[Symbol],
        reduces: Sequence[Symbol],
        mapping: Mapping[Atom, IntLike],
    ) -> LoopBody:
        """The same work over other loop symbols; `mapping` gives this body's symbols in terms of
        the new ones.
        """
        nodes = [
            node if node.index is None else replace(node, index=node.index.subs(mapping))
            for node in self.nodes
        ]
        return LoopBody(tuple(iters), tuple(reduces), nodes)

    def rename_buffers(self, names: Mapping[str, str]) -> LoopBody:
        nodes = [
            node
            if node.buffer is None
            else replace(node, buffer=names.get(node.buffer, node.buffer))
            for node in self.nodes
        ]
        return LoopBody(self.iters, self.reduces, nodes)

    def without_dead_nodes(
        self, keep_store: Callable[[Node], bool] = lambda node: True
    ) -> LoopBody:
        """Drop stores that `keep_store` refuses and nodes whose value then reaches no store, but
        for checks: `zeros(3)[i]` fails for a bad index, too.
        """
        alive = [False] * len(self.nodes)
        for position in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[position]
            if node.op == "check" or (node.op in ("store", "scatter") and keep_store(node)):
                alive[position] = True
            if alive[position]:
                for arg in node.operands():
                    alive[arg] = True
        if all(alive):
            return self
        builder = NodeList()
        for position, node in enumerate(self.nodes):
            if alive[position]:
                builder.copy(node, position)
        return LoopBody(self.iters, self.reduces, builder.nodes)


class NodeList:
    """Nodes under construction, with common subexpressions found; copies nodes of other bodies."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._known: dict[tuple[object, ...], int] = {}
        self.renumbered: dict[int, int] = {}

    def add(self, node: Node) -> int:
        """Position of the node, or of an equal one already there. Stores are never merged."""
        if node.op in ("store", "scatter"):
            self.nodes.append(node)
            return len(self.nodes) - 1
        key = node.key()
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.nodes)
            self.nodes.append(node)
        return found

    def copy(self, node: Node, position: int) -> int:
        """Add `node`, which stood at `position` of another list; its operands must have been copied
        before.
        """
        args = tuple(self.renumbered[arg] for arg in node.args)
        new = self.add(replace(node, args=args, index=self.moved_index(node)))
        self.renumbered[position] = new
        return new

    def moved_index(self, node: Node) -> Expr | None:
        """The index of a node of the other list, its value references renumbered."""
        index = node.index
        refs = [] if index is None else [a for a in index.atoms() if isinstance(a, ValueRef)]
        if index is None or not refs:
            return index
        return index.subs(
            {ref: symbol_expr(ValueRef(self.renumbered[ref.node], ref.size)) for ref in refs}
        )


def _by_constant(op: Callable[[Expr, Expr], Expr]) -> Callable[[Expr, Expr], Expr | None]:
    return lambda x, y: op(x, y) if y.is_const and y.const > 0 else None


# Operations on int64 whose results are expressions in the loops again.
_INDEX_OPS: dict[str, Callable[..., Expr | None]] = {
    "add": operator.add,
    "sub": operator.sub,
    "neg": operator.neg,
    "mul": lambda x, y: x * y if x.is_const or y.is_const else None,
    "floordiv": _by_constant(operator.floordiv),
    "remainder": _by_constant(operator.mod),
}

# No result may reach this; no loop goes further than the second, for lack of memory.
_INT64 = 1 << 63
_LONGEST_LOOP = 1 << 40

Value = int
"""A value while a body is being built: a node's position."""


class BodyBuilder:
    """Traces a kernel body: what lowerings' inner functions are given.

    `b.load(...)`, `b.op("add", x, y)`, `b.constant(0.5, torch.float32)` return values. `b.dtype(v)`
    is a value's dtype. Loads of float16 and bfloat16 buffers are widened to float32; constants fold
    where it is trivial.
    """

    def __init__(self, iters: Sequence[Symbol], reduces: Sequence[Symbol] = ()) -> None:
        self.iters = tuple(iters)
        self.reduces = tuple(reduces)
        self._list = NodeList()
        self._mask: Value | None = None

    def finish(self) -> LoopBody:
        return LoopBody(self.iters, self.reduces, self._list.nodes).without_dead_nodes()

    def node(self, value: Value) -> Node:
        return self._list.nodes[value]

    def add(self, node: Node) -> Value:
        """A node as it is."""
        return self._list.add(node)

    def dtype(self, value: Value) -> torch.dtype:
        return self._list.nodes[value].dtype

    def nodes_of(self, op: str) -> list[Node]:
        """The nodes of one operation so far."""
        return [node for node in self._list.nodes if node.op == op]

    def expense(self) -> tuple[int, int]:
        """Machine operations (the costs of `ops.py`) and loads so far."""
        loads = self.nodes_of("load")
        return sum(OPS[n.op].cost for n in self._list.nodes if n.op != "load"), len(loads)

    def load(self, buffer: str, index: Expr, dtype: torch.dtype) -> Value:
        args = () if self._mask is None else (self._mask,)
        value = self._list.add(Node("load", args, dtype, buffer=buffer, index=index))
        return self.cast(value, torch.float32) if dtype in LOW_PRECISION else value

    def store(
        self,
        buffer: str,
        index: Expr,
        value: Value,
        dtype: torch.dtype,
    ) -> None:
        self._list.add(
            Node("store", (self.cast(value, dtype),), dtype, buffer=buffer, index=index)
        )

    def scatter(
        self, buffer: str, index: Expr, value: Value, dtype: torch.dtype, how: str = "sum"
    ) -> None:
        """Combine the value with what is at the index; `how`: a name in `ops.SCATTERS`."""
        args = (self.cast(value, dtype),)
        self._list.add(Node("scatter", args, dtype, buffer=buffer, index=index, value=how))

    def constant(
        self,
        value: bool | float | Expr,
        dtype: torch.dtype,
    ) -> Value:
        if isinstance(value, Expr):
            return self.cast(self.index_expr(value), dtype)
        if dtype in LOW_PRECISION:
            value, dtype = torch.tensor(value, dtype=dtype).item(), torch.float32
        if dtype == torch.bool:
            value = bool(value)
        else:
            value = float(value) if dtype.is_floating_point else _wrapped(int(value), dtype)
        return self._list.add(Node("constant", (), dtype, value=value))

    def index_expr(
        self,
        index: IntLike,
        dtype: torch.dtype = torch.int64,
    ) -> Value:
        index = as_expr(index)
        if index.is_const:
            return self.constant(index.const, dtype)
        return self._list.add(Node("index_expr", (), dtype, index=index))

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        node = self.node(value)
        if node.dtype == dtype:
            return value
        if node.op == "constant" and dtype not in LOW_PRECISION and _foldable(node, dtype):
            assert not isinstance(node.value, str) and node.value is not None
            return self.constant(node.value, dtype)
        if node.op == "cast" and dtype in LOW_PRECISION:
            original = self.node(node.args[0])
            if original.dtype == dtype and node.dtype == torch.float32:
                return node.args[0]
        if node.op == "index_expr" and dtype in (torch.int64, torch.int32):
            return self._list.add(replace(node, dtype=dtype))
        if dtype in LOW_PRECISION and node.op == "where" and self._moves(value, dtype):
            condition, *choices = node.args
            own = [self.cast(choice, dtype) for choice in choices]
            return self._list.add(replace(node, args=(condition, *own), dtype=dtype))
        return self._list.add(Node("cast", (value,), dtype))

    def _moves(self, value: Value, dtype: torch.dtype) -> bool:
        """Whether it is a choice among elements of `dtype` and constants: bits that are moved."""
        kinds = self._chosen(value, dtype)
        return "moved" in kinds and kinds <= {"moved", "constant"}

    def _chosen(self, value: Value, dtype: torch.dtype) -> set[str]:
        """What a choice is made among; `moved`: elements of `dtype`."""
        node = self.node(value)
        if node.op == "where":
            return self._chosen(node.args[1], dtype) | self._chosen(node.args[2], dtype)
        moved = node.op == "cast" and self.dtype(node.args[0]) == dtype
        return {"moved" if moved else node.op}

    def compute(self, value: Value) -> Value:
        """The value in a dtype that arithmetic knows: float16 and bfloat16 widened to float32."""
        return self.cast(value, torch.float32) if self.dtype(value) in LOW_PRECISION else value

    def bitcast(self, value: Value, dtype: torch.dtype) -> Value:
        return self._list.add(Node("bitcast", (value,), dtype))

    def op(self, name: str, *args: Value) -> Value:
        """A pointwise operation whose dtype follows from its operands."""
        row = OPS[name]
        assert row.kind == "pointwise" and row.arity == len(args) and row.dtype != "explicit", (
            name
        )
        index = self._known_index(name, args)
        if index is not None:
            return self.index_expr(index)
        return self._list.add(
            Node(name, args, torch.bool if row.dtype == "bool" else self.dtype(args[-1]))
        )

    def known(self, value: Value) -> Expr | None:
        """What an int64 value is in terms of the loops, if that is known.

        Such a value is the same in all lanes but for a step, and its range is known.
        """
        node = self.node(value)
        if node.dtype != torch.int64 or node.op not in ("index_expr", "constant"):
            return None
        return node.index if node.op == "index_expr" else as_expr(int(node.value))  # type: ignore[arg-type]

    def _known_index(self, name: str, args: Sequence[Value]) -> Expr | None:
        """Arithmetic of positions is a position, where it cannot wrap around.

        `x[arange(n) * 2]` is then a strided view, whose places need neither memory nor a check.
        """
        if name not in _INDEX_OPS:
            return None
        known = [self.known(arg) for arg in args]
        if None in known or all(expr.is_const for expr in known):  # type: ignore[union-attr]
            return None
        index = _INDEX_OPS[name](*known)
        if index is None or magnitude(index, _INT64, _LONGEST_LOOP) is None:
            return None
        return index

    def reduction(self, name: str, value: Value) -> Value:
        assert name in REDUCTIONS, name
        dtype = torch.int64 if name in ("argmax", "argmin") else self.dtype(value)
        return self._list.add(Node("reduction", (value,), dtype, value=name))

    def check(self, value: Value, good: Value, failure: str) -> Value:
        """`value`; where `good` (a bool) does not hold, 0, and the kernel fails.

        failure: `IndexError: text`, `ValueError: text` or `RuntimeError: text`, {} for the value.
        """
        if self._mask is not None:
            good = self.op("bitwise_or", good, self.op("bitwise_not", self._mask))
        return self._list.add(Node("check", (value, good), self.dtype(value), value=failure))

    def philox(self, seed: Value, offset: Value, word: int) -> Value:
        """32 random bits (int32) for a seed and an offset (int64)."""
        return self._list.add(Node("philox", (seed, offset), torch.int32, value=word))

    def scan(self, name: str, value: Value) -> Value:
        """The running reduction of `value` (see ops.SCANS)."""
        assert name in SCANS, name
        return self._list.add(Node("scan", (value,), self.dtype(value), value=name))

    def indirect(
        self, value: Value, size: IntLike, failure: str | None = None, wrap: bool = True
    ) -> Expr:
        """Use a computed integer as an index into a dimension of `size`.

        failure: what to raise for one that is outside; None: it is known to be inside.
        wrap: whether negative ones count from the end.
        """
        value = self.cast(value, torch.int64)
        place = self.known(value)
        if place is not None and not is_nonneg(place) and wrap:
            place = place + size
        if place is not None and is_nonneg(place) and is_less(place, as_expr(size)):
            return place
        low, zero = value, self.constant(0, torch.int64)
        if wrap:
            wrapped = self.op("add", value, self.index_expr(size))
            low = self.op("where", self.op("lt", value, zero), wrapped, value)
        if failure is not None:
            inside = self.op("lt", value, self.index_expr(size))
            good = self.op("bitwise_and", self.op("ge", low, zero), inside)
            checked = self.check(value, good, failure)
            low = (
                self.op("where", self.op("lt", checked, zero), low, checked)
                if wrap
                else checked
            )
        return symbol_expr(ValueRef(low, size))

    @contextmanager
    def masked(self, mask: Value) -> Iterator[None]:
        """Loads traced inside read memory only where `mask` (and the enclosing mask) is true."""
        outer = self._mask
        self._mask = mask if outer is None else self.op("bitwise_and", outer, mask)
        try:
            yield
        finally:
            self._mask = outer


def _wrapped(value: int, dtype: torch.dtype) -> int:
    """What memory of the dtype holds of a whole number: -1 is 255 among bytes."""
    limits = torch.iinfo(dtype)
    return (value - limits.min) % (1 << limits.bits) + limits.min


def _foldable(node: Node, dtype: torch.dtype) -> bool:
    if not isinstance(node.value, (bool, int, float)):
        return False
    if node.dtype.is_floating_point and not dtype.is_floating_point:
        return dtype == torch.bool
    if dtype == torch.float32 and node.dtype.is_floating_point:
        return True
    return dtype in (torch.float32, torch.float64) or (
        dtype != torch.bool and torch.iinfo(dtype).min <= node.value <= torch.iinfo(dtype).max
    )


@dataclass(slots=True)
class Pass:
    """One walk over the reduction symbols, or straight code between two walks.

    Attributes:
        nodes: positions to compute in this pass, in order. Inner nodes that an earlier pass had
        already computed
            stand here again where this pass needs them: recompute them, or keep them in a scratch
            row.
        inner: True for a walk over the reduction symbols; False for outer nodes (computed once).
    """

    nodes: list[int]
    inner: bool


def passes(
    body: LoopBody,
    instead: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
) -> list[Pass]:
    """Order the nodes of a body with reductions into alternating outer code and walks over the
    reduction symbols.

    instead: what some nodes are computed of in place of their operands.

    A body without reduction symbols is one outer pass. Otherwise each reduction is finished at the
    end of the earliest walk that has its operands; outer nodes stand in the earliest outer pass
    possible.
    """
    if not body.reduces:
        return [Pass(list(range(len(body.nodes))), False)]
    inner = body.levels()
    # Outer node: number of walks before it; inner node: the first walk that can compute it.
    stage: list[int] = []
    for position, node in enumerate(body.nodes):
        operands = instead.get(position) or node.operands()
        earliest = max((stage[arg] for arg in operands), default=0)
        stage.append(earliest + 1 if node.op == "reduction" else earliest)
    last = max(
        (
            s
            for s, i, n in zip(stage, inner, body.nodes, strict=True)
            if i or n.op == "reduction"
        ),
        default=0,
    )
    out: list[Pass] = []
    for step in range(last + 1):
        outer = [
            p
            for p, node in enumerate(body.nodes)
            if not inner[p] and stage[p] == step and node.op != "reduction"
        ]
        if outer:
            out.append(Pass(outer, False))
        roots = [
            p
            for p, node in enumerate(body.nodes)
            if (node.op == "reduction" and stage[p] == step + 1)
            or (inner[p] and stage[p] == step and node.op in ("store", "scatter"))
        ]
        walk = _closure(body, inner, roots, instead)
        if walk:
            out.append(Pass(walk, True))
    tail = [
        p
        for p, node in enumerate(body.nodes)
        if not inner[p] and stage[p] > last and node.op != "reduction"
    ]
    if tail:
        out.append(Pass(tail, False))
    return out


def _closure(
    body: LoopBody,
    inner: list[bool],
    roots: Iterable[int],
    instead: Mapping[int, tuple[int, ...]],
) -> list[int]:
    """`roots` and the inner nodes that they need, in order."""
    needed: set[int] = set()
    work = list(roots)
    while work:
        position = work.pop()
        if position not in needed:
            needed.add(position)
            operands = instead.get(position) or body.nodes[position].operands()
            work += [arg for arg in operands if inner[arg]]
    return sorted(needed)
