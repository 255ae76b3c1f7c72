"""Loops cut where tests of positions change: `parts_of(body, x)`.

A pad, a roll or a choice among pieces tests the position of each element. Such a test is true on
one side of a place and false on the other, so the loop over x is cut there, and each part has a
body without it: the inside of a pad is a copy. The distance to a mirror (`abs`) is cut likewise.

`without_short_loop(body)` writes out an innermost loop over two or four neighbours (the corners of
boxes, parts of complex numbers), so that vectors run along the loop around it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from minidynamo.inductor.codegen.cpp_stages import size_of
from minidynamo.inductor.loop_body import BodyBuilder, LoopBody, Node, Value
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import (
    Atom,
    Expr,
    FloorDiv,
    IntLike,
    Mod,
    Symbol,
    ValueRef,
    as_expr,
    is_nonneg,
    loop_symbol,
    symbol_expr,
)

# So many parts, nodes in all of them, and elements in the longest one pay.
MOST_PARTS, MOST_NODES, LONG = 8, 400, 32
# Lengths of loops that are written out, and how far apart elements may be that a vector reads.
FIELDS, MOST_STEP = (2, 4), 12


def parts_of(body: LoopBody, x: Symbol) -> list[tuple[Symbol, LoopBody]]:
    """Neighbouring parts of the loop over `x`, in order, each with its own symbol from 0; empty
    where there is nothing to cut, or it does not pay.
    """
    size = size_of(x)
    if hint_of(size) < LONG or not _may_be_cut(body):
        return []
    if _has_pairs(body, x):
        return _pairs(body, x)
    parts: list[tuple[Symbol, LoopBody]] = []
    work: list[tuple[IntLike, IntLike]] = [(0, size)]
    while work:
        low, high = work.pop()
        part = _Part(body, x, low, high)
        cut = part.trace()
        if cut is None:
            parts.append((part.symbol, part.builder.finish()))
        else:
            work += [(low + cut, high), (low, low + cut)]
        if len(parts) + len(work) > MOST_PARTS:
            return []
    nodes = sum(len(own.nodes) for _, own in parts)
    longest = max(hint_of(size_of(symbol)) for symbol, _ in parts)
    return parts if len(parts) > 1 and nodes <= MOST_NODES and longest >= LONG else []


def without_short_loop(body: LoopBody) -> LoopBody:
    """The body with its innermost loop written out where that would fill few of a vector's lanes
    and what it stores lies side by side; else as it is.
    """
    if len(body.iters) < 2 or body.reduces or len(body.nodes) > MOST_NODES // 4:
        return body
    *outer, x = body.iters
    if x.size not in FIELDS or not _is_made_of_rows(body, outer[-1], x):
        return body
    builder = BodyBuilder(outer)
    for place in range(x.size):
        part = _Part(
            body,
            x,
            place,
            place + 1,
            builder,
            as_expr(place),
        )
        part.trace(whole=True)
    return builder.finish()


def _is_made_of_rows(
    body: LoopBody,
    y: Symbol,
    x: Symbol,
) -> bool:
    """Whether all that is stored are rows of x side by side along y, and reads go in steps."""
    if y.size is None or not isinstance(x.size, int) or hint_of(y.size) < LONG:
        return False
    if not {node.op for node in body.nodes}.isdisjoint(["scatter", "scan", "check", "philox"]):
        return False
    stored = {node.buffer: node.index for node in body.stores()}
    if len(stored) < sum(1 for _ in body.stores()):
        return False
    for node in (*body.stores(), *body.loads()):
        assert node.index is not None
        step = node.index.coeff(y)
        if node.index.value_refs() or step is None or not step.is_const:
            return False
        if node.op == "store" and (step != as_expr(x.size) or node.index.coeff(x) != 1):
            return False
        if (
            not 0 <= step.const <= MOST_STEP
            or stored.get(node.buffer, node.index) != node.index
        ):
            return False
    # Where all of it lies side by side the two loops would have become one.
    return any(node.index.coeff(y) not in (0, x.size) for node in body.loads() if node.index)


def _has_pairs(body: LoopBody, x: Symbol) -> bool:
    """Whether even and odd elements read neighbours where all of them together do not: something is
    read at `(x + c) // 2`, and what is stored lies next to each other.
    """
    jumps = False
    for node in body.nodes:
        if node.index is None or node.op == "index_expr":
            continue
        if node.op == "store" and node.index.coeff(x) != as_expr(1):
            return False
        for atom in node.index.atoms():
            if isinstance(atom, (FloorDiv, Mod)) and atom.num.uses({x}):
                if atom.den != as_expr(2) or atom.num.coeff(x) != as_expr(1):
                    return False
                jumps = jumps or isinstance(atom, Mod) or atom.num != symbol_expr(x)
            elif isinstance(atom, ValueRef):
                return False
    return jumps


def _pairs(body: LoopBody, x: Symbol) -> list[tuple[Symbol, LoopBody]]:
    """The loop over pairs of elements, in parts, and the last element if it has no neighbour."""
    size = size_of(x)
    count = size // 2
    pair = loop_symbol(x.name, count)
    builder = BodyBuilder([pair if s == x else s for s in body.iters])
    for offset in range(2):
        half = _Part(body, x, 0, count, builder, symbol_expr(pair) * 2 + offset)
        half.trace(whole=True)
    both = builder.finish()
    parts = parts_of(both, pair) or [(pair, both)]
    if size % 2 != 0:
        last = _Part(body, x, size - size % 2, size)
        last.trace(whole=True)
        parts.append((last.symbol, last.builder.finish()))
    return parts


def _may_be_cut(body: LoopBody) -> bool:
    ops = {node.op for node in body.nodes}
    tested = "index_expr" in ops and not ops.isdisjoint(_CUT)
    jumps = any(
        isinstance(atom, (FloorDiv, Mod))
        for node in body.nodes
        if node.index is not None
        for atom in node.index.atoms()
    )
    return (tested or jumps) and ops.isdisjoint(["scatter", "scan", "reduction"])


class _Part:
    """The body for x in [low, high), traced anew with what is known there."""

    def __init__(
        self,
        body: LoopBody,
        x: Symbol,
        low: IntLike,
        high: IntLike,
        builder: BodyBuilder | None = None,
        place: Expr | None = None,
    ) -> None:
        self.body = body
        self.x, self.low, self.high = x, low, high
        self.symbol = loop_symbol(x.name, high - low)
        self.place = symbol_expr(self.symbol) + low if place is None else place
        iters = [self.symbol if s == x else s for s in body.iters]
        self.builder = builder or BodyBuilder(iters)
        self.values: list[Value] = []
        self.cut: IntLike | None = None

    def trace(self, whole: bool = False) -> IntLike | None:
        """Write the part's nodes, or say where (from its start) it has to be cut before; with
        `whole` it stays.
        """
        for node in self.body.nodes:
            self.cut = None
            self.values.append(self._traced(node))
            if self.cut is not None and not whole:
                return self.cut
        return None

    # -- nodes -------------------------------------------------------------------------------------
    def _traced(self, node: Node) -> Value:
        args = tuple(self.values[arg] for arg in node.args)
        moved = replace(node, args=args, index=self._moved(node.index))
        own = _FOLDED.get(node.op)
        return self.builder.add(moved) if own is None else own(self, moved)

    def _moved(self, index: Expr | None) -> Expr | None:
        if index is None:
            return None
        places: dict[Atom, IntLike] = {self.x: self.place}
        for atom in index.atoms():
            if isinstance(atom, ValueRef):
                places[atom] = self._position(atom)
        moved = index.subs(places)
        for atom in moved.atoms():
            if isinstance(atom, (FloorDiv, Mod)):
                self._cut_at_jump(atom)
        return moved

    def _cut_at_jump(self, atom: FloorDiv | Mod) -> None:
        """Cut where a quotient grows, if that is so seldom that the parts are long."""
        first = atom.num - symbol_expr(self.symbol)
        if first.is_const and atom.den.is_const and atom.den.const >= LONG:
            self._cut_before(-first.const % atom.den.const)

    def _cut_before(self, place: IntLike) -> None:
        """If it is known to lie inside."""
        length = as_expr(self.high - self.low)
        if place not in (0, length) and is_nonneg(as_expr(place)) and is_nonneg(length - place):
            self.cut = place

    def _position(self, ref: ValueRef) -> Expr:
        value = self.values[ref.node]
        known = self.builder.known(value)
        return symbol_expr(ValueRef(value, ref.size)) if known is None else known

    def _known_bool(self, value: Value) -> bool | None:
        node = self.builder.node(value)
        return bool(node.value) if node.op == "constant" else None

    def _load(self, node: Node) -> Value:
        reads = self._known_bool(node.args[0]) if node.args else True
        if reads is None:
            return self.builder.add(node)
        if reads:
            return self.builder.add(replace(node, args=()))
        return self.builder.add(Node("constant", (), node.dtype, value=0))

    def _where(self, node: Node) -> Value:
        condition, first, second = node.args
        chosen = self._known_bool(condition)
        if chosen is None:
            return first if first == second else self.builder.add(node)
        return first if chosen else second

    def _check(self, node: Node) -> Value:
        return node.args[0] if self._known_bool(node.args[1]) else self.builder.add(node)

    def _cast(self, node: Node) -> Value:
        return self.builder.cast(node.args[0], node.dtype)

    def _logic(self, node: Node) -> Value:
        """`and` and `or` of bools one of which is known."""
        if node.dtype != torch.bool:
            return self._arithmetic(node)
        for value, other in (node.args, node.args[::-1]):
            known = self._known_bool(value)
            if known is not None:
                return value if known == (node.op == "bitwise_or") else other
        return self.builder.add(node)

    def _arithmetic(self, node: Node) -> Value:
        if node.dtype != torch.int64:
            return self.builder.add(node)
        return self.builder.op(node.op, *node.args)

    def _index(self, node: Node) -> Value:
        assert node.index is not None
        return self.builder.index_expr(node.index, node.dtype)

    # -- tests -------------------------------------------------------------------------------------
    def _abs(self, node: Node) -> Value:
        known = self.builder.known(node.args[0])
        if known is None:
            return self.builder.add(node)
        sign = self._decided(known)
        if sign is None:
            return self.builder.add(node)
        return self.builder.index_expr(known if sign else -known)

    def _extreme(self, node: Node) -> Value:
        x, y = (self.builder.known(arg) for arg in node.args)
        if x is None or y is None:
            return self.builder.add(node)
        larger = self._decided(x - y)
        if larger is None:
            return self.builder.add(node)
        return node.args[0 if larger == (node.op == "maximum") else 1]

    def _test(self, node: Node) -> Value:
        x, y = (self.builder.known(arg) for arg in node.args)
        if x is None or y is None:
            return self.builder.add(node)
        holds = _HOLDS[node.op](self, x - y)
        return (
            self.builder.add(node)
            if holds is None
            else self.builder.constant(holds, torch.bool)
        )

    def _decided(self, distance: Expr) -> bool | None:
        """Whether distance >= 0, if that is so everywhere or nowhere; otherwise the part may be
        cut there.
        """
        if is_nonneg(distance):
            return True
        if is_nonneg(-distance - 1):
            return False
        step = distance.coeff(self.symbol)
        if step is not None and step.is_const and step.const:
            c = distance - symbol_expr(self.symbol) * step
            if c.is_uniform():
                # a * x + c >= 0 begins at the first x >= -c / a, or ends behind the last
                # x <= c / -a.
                a, self.cut = step.const, None
                self._cut_before(-(c // a) if a > 0 else c // -a + 1)
        return None

    def _equal(self, distance: Expr) -> bool | None:
        at_least = self._decided(distance)
        at_most = self._decided(-distance) if self.cut is None else None
        if at_least is None or at_most is None:
            return False if False in (at_least, at_most) else None
        return at_least and at_most


def _negated(holds: bool | None) -> bool | None:
    return None if holds is None else not holds


_HOLDS: dict[str, Callable[[_Part, Expr], bool | None]] = {
    "ge": lambda part, d: part._decided(d),
    "lt": lambda part, d: _negated(part._decided(d)),
    "le": lambda part, d: part._decided(-d),
    "gt": lambda part, d: _negated(part._decided(-d)),
    "eq": lambda part, d: part._equal(d),
    "ne": lambda part, d: _negated(part._equal(d)),
}
_CUT = [*_HOLDS, "abs", "maximum", "minimum"]
_FOLDED: dict[str, Callable[[_Part, Node], Value]] = {
    **dict.fromkeys(_HOLDS, _Part._test),
    **dict.fromkeys(["bitwise_and", "bitwise_or"], _Part._logic),
    **dict.fromkeys(["add", "sub", "mul", "neg", "floordiv", "remainder"], _Part._arithmetic),
    **dict.fromkeys(["maximum", "minimum"], _Part._extreme),
    "abs": _Part._abs,
    "load": _Part._load,
    "where": _Part._where,
    "check": _Part._check,
    "cast": _Part._cast,
    "index_expr": _Part._index,
}
