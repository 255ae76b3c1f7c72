"""Integers as 32-bit values where they fit, and bools as bytes, where that is all there is.

Positions are int64. When all that is done with one is arithmetic whose results fit, comparing it
and converting it, int32 gives the same result and twice the lanes. With symbolic sizes, a kernel
asks before it begins whether they are small enough for that (`within_limits`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from minidynamo.inductor.atoms import ValueRef
from minidynamo.inductor.codegen.cpp_stages import (
    EXTREMES,
    STORES,
    choose_vector_symbol,
    dependencies,
    size_of,
)
from minidynamo.inductor.loop_body import LOW_PRECISION, LoopBody, Node, NodeList
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import Expr, as_expr, is_nonneg, product, symbol_expr, upper

_LIMIT = 1 << 31
# What kernels ask of positions whose range is not known: a sum of several fits.
SMALL = 1 << 28
# Positions are smaller, and their differences from numbers that are clamped to it are int64.
_FAR = 1 << 61
# The value of an index_expr of int32 that has the sign of the expression (see `near`).
NEAR = "near"
# Such numbers may grow by this from lane to lane.
MOST_NEAR = 1 << 16
_COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])
_SMALL = (torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32)
Range = tuple[int, int] | None


def _range(node: Node, ranges: Sequence[Range], nodes: Sequence[Node], is_small: bool) -> Range:
    """The smallest and the largest value of an int64 node; `is_small` as for `narrow_integers`.

    None where that is not known: numbers from memory may be anything, and so may what is computed
    of them.
    """
    if node.dtype != torch.int64:
        return None
    if node.op == "constant":
        return (node.value, node.value) if isinstance(node.value, int) else None
    if node.op == "index_expr":
        high, low = (_end(end, is_small) for end in _ends_of(node))
        return None if high is None or low is None else (-low, high)
    if node.op == "cast":
        source = nodes[node.args[0]].dtype
        if source not in _SMALL:
            return None
        return (0, 1) if source == torch.bool else _limits(source)
    if node.op == "scan":
        return ranges[node.args[0]] if node.value in EXTREMES else None
    rule = _RULES.get(node.op)
    args = [ranges[arg] for arg in (node.args[1:] if node.op == "where" else node.args)]
    if rule is None or any(arg is None for arg in args):
        return None
    ends = list(rule(*args))
    return min(ends), max(ends)


def _ends_of(position: Node) -> tuple[Expr | None, Expr | None]:
    """The largest values of an index expression and of its negative."""
    assert position.index is not None
    return upper(position.index), upper(-position.index)


def _end(end: Expr | None, is_small: bool) -> int | None:
    if end is None or end.is_const:
        return None if end is None else end.const
    return SMALL if is_small else None


def _ranges(body: LoopBody, is_small: bool) -> list[Range]:
    ranges: list[Range] = []
    for node in body.nodes:
        ranges.append(_range(node, ranges, body.nodes, is_small))
    return ranges


def _limits(dtype: torch.dtype) -> tuple[int, int]:
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def _sum(x: tuple[int, int], y: tuple[int, int]) -> list[int]:
    """The ends of x + y."""
    smallest = x[0] + y[0]
    largest = x[1] + y[1]
    return [smallest, largest]


def _negative(x: tuple[int, int]) -> tuple[int, int]:
    """The ends of -x, the smaller one first."""
    low, high = x
    return -high, -low


def _absolute(x: tuple[int, int]) -> list[int]:
    """Values among which are the ends of |x|: 0 may be one, which does no harm."""
    return [0, *map(abs, x)]


def _products(x: tuple[int, int], y: tuple[int, int]) -> list[int]:
    """The ends of x * y are products of ends."""
    return [a * b for a in x for b in y]


# Operation -> values among which are the smallest and the largest result.
_RULES: dict[str, Callable[..., Iterable[int]]] = {
    "add": _sum,
    "sub": lambda x, y: _sum(x, _negative(y)),
    "mul": _products,
    "neg": _negative,
    "abs": _absolute,
    "maximum": lambda x, y: map(max, x, y),
    "minimum": lambda x, y: map(min, x, y),
    "where": lambda x, y: (*x, *y),
}


def _fits(bounds: Range) -> bool:
    # One less than the smallest int32 has: its absolute value is none.
    return bounds is not None and bounds[0] > -_LIMIT and bounds[1] < _LIMIT


class _Clamped:
    """The body where positions that are compared with a number that stays the same along their
    loops are compared with that number clamped: to what holds all of them and one more on each
    side, which fits. Where it is not known how large a position may be (symbolic sizes), the sign
    of the distance between both is compared with 0. `ranges` are those of the new nodes.
    """

    def __init__(self, body: LoopBody, is_small: bool) -> None:
        self._nodes = body.nodes
        self._old = _ranges(body, is_small)
        self._depends = dependencies(body)
        self._list = NodeList()
        self.ranges: list[Range] = []
        self._by_sign = False
        self._lanes = choose_vector_symbol(body)
        for position, node in enumerate(body.nodes):
            self._copy(position, node)
        copy = LoopBody(body.iters, body.reduces, self._list.nodes)
        self.body = copy.without_dead_nodes() if self._by_sign else copy
        if self._by_sign:
            self.ranges = _ranges(self.body, is_small)

    def _add(self, node: Node, bounds: Range = None) -> int:
        at = self._list.add(node)
        if at == len(self.ranges):
            self.ranges.append(bounds)
        return at

    def _copy(self, position: int, node: Node) -> None:
        ends = None
        if node.op in _COMPARISONS:
            first, second = node.args
            ends = self._ends(first, second)
            if ends is None:
                first, second = second, first
                ends = self._ends(first, second)
        at = self._list.renumbered
        if ends is None:
            if not (node.op in _COMPARISONS and self._compare_by_sign(position, *node.args)):
                self._list.copy(node, position)
            self.ranges += [self._old[position]] * (len(self._list.nodes) - len(self.ranges))
            return
        number = self._clamp(at[second], *ends)
        args = [number if arg == second else at[arg] for arg in node.args]
        at[position] = self._add(replace(node, args=tuple(args)))

    def _ends(self, position: int, number: int) -> Range:
        """What to clamp the number to, if that is to be done."""
        bounds, own = self._old[position], self._depends[position]
        if bounds is None or not own or own & self._depends[number]:
            return None
        wide = self._nodes[number].dtype == torch.int64 and self._old[number] is None
        ends = bounds[0] - 1, bounds[1] + 1
        return ends if wide and _fits(ends) else None

    def _clamp(self, value: int, low: int, high: int) -> int:
        value = self._between(value, low, high)
        value = self._add(Node("cast", (value,), torch.int32))
        return self._add(Node("cast", (value,), torch.int64), (low, high))

    def _between(self, value: int, low: int, high: int) -> int:
        for op, end in (("maximum", low), ("minimum", high)):
            limit = self._add(Node("constant", (), torch.int64, value=end), (end, end))
            value = self._add(Node(op, (value, limit), torch.int64))
        return value

    def _compare_by_sign(self, position: int, first: int, second: int) -> bool:
        """Compare the sign of first - second with 0, if one of them is a position of which nothing
        is known and the other one a position, too, or a number that stays along its loops.
        """
        nodes = self._nodes
        unknown = [_is_position(nodes[p]) and not _fits(self._old[p]) for p in (first, second)]
        if not any(unknown) or nodes[first].dtype != nodes[second].dtype:
            return False
        number = second if unknown[0] else first
        if not all(unknown) and self._depends[first] & self._depends[second]:
            return False
        if not _is_position(nodes[number]) and self._lanes in self._depends[number]:
            return False  # as wide as it is in memory
        distance = self._distance_term(first) - self._distance_term(second)
        sign = self._add(Node("index_expr", (), torch.int32, index=distance, value=NEAR))
        zero = self._add(Node("constant", (), torch.int32, value=0))
        node = replace(nodes[position], args=(sign, zero))
        self._list.renumbered[position] = self._add(node)
        self._by_sign = True
        return True

    def _distance_term(self, position: int) -> Expr:
        node = self._nodes[position]
        if _is_position(node):
            return node.index  # type: ignore[return-value]
        if node.op == "constant" and isinstance(node.value, int):
            return as_expr(max(-_FAR, min(_FAR, node.value)))
        clamped = self._between(self._list.renumbered[position], -_FAR, _FAR)
        return symbol_expr(ValueRef(clamped))


def _is_position(node: Node) -> bool:
    """Whether this is a sum of the loops' positions and of sizes, with factors that cannot make
    it larger than `_FAR`.
    """
    if node.op != "index_expr" or node.dtype != torch.int64:
        return False
    assert node.index is not None
    numbers = (node.index.const, *node.index.terms.values())
    return not node.index.value_refs() and all(abs(n) < _LIMIT for n in numbers)


def within_limits(body: LoopBody, place: int = 0) -> list[Expr]:
    """What a kernel has to find to be at most `SMALL` before `narrow_integers(body, True)` may take
    the place of the body; none where its vectors have no more lanes for that. place: which loop is
    vectorised.
    """
    ends: list[Expr | None] = []
    for node in body.nodes:
        if node.op == "index_expr" and node.dtype == torch.int64:
            ends += _ends_of(node)
        elif _is_place(node):
            ends.append(as_expr(product(size_of(symbol) for symbol in body.reduces)))
    limits = {str(end): end for end in ends if end is not None and not is_nonneg(SMALL - end)}
    if not limits or None in ends or any(hint_of(end) > SMALL for end in limits.values()):
        return []
    usual, narrowed = (_is_wide(narrow_integers(body, x), place, x) for x in (False, True))
    return [*limits.values()] if usual and not narrowed else []


def _is_place(node: Node) -> bool:
    """Whether this is where a row has its largest or its smallest element."""
    return node.op == "reduction" and node.value in ("argmax", "argmin")


def _is_wide(body: LoopBody, place: int, is_small: bool) -> bool:
    """Whether vectors have elements of 64 bits; is_small: where those of a row are counted, 32."""
    vec, depends = choose_vector_symbol(body, place), dependencies(body)
    return any(
        not is_small
        if _is_place(node)
        else node.dtype.itemsize > 4 and vec in symbols and node.op not in STORES
        for node, symbols in zip(body.nodes, depends, strict=True)
    )


def narrow_integers(body: LoopBody, is_small: bool = False) -> LoopBody:
    """The body with int32 in place of int64 for such values. is_small: positions of symbolic ranges
    are known to be between -SMALL and SMALL.

    Where one operand of a comparison, or of arithmetic, stays wide, the others do, and so does
    what somebody else wants as it is: a store, a reduction.
    """
    clamped = _Clamped(body, is_small)
    body, ranges = clamped.body, clamped.ranges
    nodes = body.nodes
    narrow = {position for position, bounds in enumerate(ranges) if _fits(bounds)}
    while narrow:
        wrong: set[int] = set()
        for position, node in enumerate(nodes):
            # An address takes any integer.
            operands = node.args if node.index is not None else node.operands()
            wide = any(
                nodes[arg].dtype == torch.int64 and arg not in narrow for arg in operands
            )
            if position in narrow and wide:
                wrong.add(position)
            stays = position in narrow or node.op in _COMPARISONS
            if wide or not (stays or (node.op == "cast" and not node.index)):
                wrong.update(arg for arg in operands if arg in narrow)
        if not wrong:
            break
        narrow -= wrong
    if not narrow:
        return body
    changed = [
        replace(node, dtype=torch.int32) if position in narrow else node
        for position, node in enumerate(nodes)
    ]
    return LoopBody(body.iters, body.reduces, changed)


_LOGIC = {
    "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
}
_LOGIC |= {"ne": "bitwise_xor", "bitwise_not": "bitwise_xor"}
_BYTES = _LOGIC | {"load": "load", "store": "store", "where": "where", "constant": "constant"}


def bytes_of_bools(body: LoopBody) -> LoopBody:
    """The body with bools that are loaded, combined and stored as bytes 0 and 1, which are four
    times as many lanes as the masks that comparisons make and choices take.
    """
    nodes = body.nodes
    if body.reduces or not any(n.op == "store" and n.dtype == torch.bool for n in nodes):
        return body
    logic = {p for p, node in enumerate(nodes) if _is_logic(node, nodes)}
    while logic:
        wrong: set[int] = set()
        for position, node in enumerate(nodes):
            masks = node.args[:1] if node.op == "where" else ()
            taken = () if node.op == "load" else node.args[len(masks) :]
            refused = set(node.operands())
            if position in logic:
                refused = refused.difference(taken).union(masks)
            if position in logic and not logic.issuperset(taken):
                wrong.add(position)
            wrong.update(logic.intersection(refused))
        if not wrong:
            break
        logic -= wrong
    if not logic or not any(nodes[p].op == "load" for p in logic):
        return body
    return _as_bytes(body, logic)


def _is_logic(node: Node, nodes: Sequence[Node]) -> bool:
    if node.dtype != torch.bool or node.op not in _BYTES:
        return False
    return node.op not in _LOGIC or all(nodes[arg].dtype == torch.bool for arg in node.args)


def _as_bytes(body: LoopBody, logic: set[int]) -> LoopBody:
    """`logic`: the nodes that become bytes."""
    builder = NodeList()
    computes = any(body.nodes[p].op in _LOGIC for p in logic)
    one = Node("constant", (), torch.uint8, value=1)
    for position, node in enumerate(body.nodes):
        if position not in logic:
            builder.copy(node, position)
            continue
        own = replace(node, op=_BYTES[node.op], dtype=torch.uint8)
        if node.op == "constant":
            own = replace(own, value=int(bool(node.value)))
        builder.copy(own, position)
        at = builder.renumbered
        if node.op == "bitwise_not":
            last = replace(own, args=(at[node.args[0]], builder.add(one)))
            at[position] = builder.add(last)
        elif node.op == "load" and computes:
            # Bytes other than 0 and 1 count as true.
            last = Node("minimum", (at[position], builder.add(one)), torch.uint8)
            at[position] = builder.add(last)
    return LoopBody(body.iters, body.reduces, builder.nodes).without_dead_nodes()


_MOVES = frozenset(["load", "store", "where"])
_SMALL_OPS = _MOVES | {"add", "sub", "minimum", "maximum", *_LOGIC.values()}


def stays_small(body: LoopBody, is_vec: Sequence[bool]) -> bool:
    """Whether all that varies along the vectorised loop are elements that are moved, or integers
    that are computed with as they are: a vector then has as many lanes as fit.
    """
    nodes = [node for node, varies in zip(body.nodes, is_vec, strict=True) if varies]
    return not body.reduces and all(
        node.op in (_MOVES if node.dtype in LOW_PRECISION else _SMALL_OPS)
        and node.dtype != torch.bool
        for node in nodes
    )
