"""Joining two loop nests into one.

Two bodies can be one kernel when their iteration spaces can be identified such that whatever one
stores and the other loads is loaded at the very point where it was stored: the value is then handed
over in a register. `join(a, b)` finds that identification, or says None.

The identification comes from the memory they share. If `a` stores buffer t at 512*x0 + r0 and `b`
loads it at 65536*y0 + 512*y1 + y2, then b's symbols follow by division: y0 = x0 // 128, y1 = x0 %
128, y2 = r0. So reshapes and transpositions between producer and consumer need no special case. A
space without reductions may become the inner level of one with (the elementwise part of a softmax),
or its outer level (the rows' statistics).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from minidynamo.inductor.loop_body import LoopBody, Node, NodeList
from minidynamo.inductor.size_hints import hint_of, is_size
from minidynamo.inductor.symbolic import (
    ZERO,
    Atom,
    Expr,
    FloorDiv,
    IntLike,
    Mod,
    Symbol,
    as_expr,
    is_nonneg,
    loop_symbol,
    product,
    symbol_expr,
)

Mapped = Mapping[Atom, IntLike]
# A loop is not cut into shorter ones than this: they would leave vectors half empty.
SHORTEST_LOOP = 8


def join(
    first: LoopBody,
    second: LoopBody,
) -> LoopBody | None:
    """One body that does `first` and then `second` at every point, or None where that is not the
    same.
    """
    if any(s.size == 0 for s in (*_symbols(first), *_symbols(second))):
        return None
    divisions = division_count(first) + division_count(second)
    for a, b in _aligned(first, second):
        if division_count(a) + division_count(b) > divisions:
            a, b = _split_loops(a, b)
            if division_count(a) + division_count(b) > divisions:
                continue
        merged = _concatenate(a, b)
        if merged is not None and not reads_overwritten(merged):
            return merged
    return None


# -- identifying iteration spaces ------------------------------------------------------------------


def _aligned(
    first: LoopBody,
    second: LoopBody,
) -> Iterator[tuple[LoopBody, LoopBody]]:
    """Both bodies over one iteration space, in each way that their shared memory suggests."""
    if _sizes(first) == _sizes(second):
        pairs_of = zip(_symbols(second), _symbols(first), strict=True)
        mapping: Mapped = {own: symbol_expr(other) for own, other in pairs_of}
        same = second.reindex(first.iters, first.reduces, mapping)
        if _meet(first, same):
            yield first, same
    pairs = list(_shared_indices(first, second))
    if first.reduces or not second.reduces:
        for known, own in pairs:
            moved = _moved(second, first, known, own)
            if moved is not None:
                yield first, moved
    if second.reduces or not first.reduces:
        for own, known in pairs:
            moved = _moved(first, second, known, own)
            if moved is not None:
                yield moved, second


def _meet(
    first: LoopBody,
    second: LoopBody,
) -> bool:
    """Whether bodies over the same loops access what they share at the same points, or at a fixed
    distance: rows and columns of one square matrix are of one size and have nothing in common.
    What depends on most loops counts.
    """
    near: dict[int, bool] = {}
    loops = {*first.iters, *first.reduces}
    for known, own in _shared_indices(first, second):
        depth = len((known.symbols() | own.symbols()) & loops)
        near[depth] = near.get(depth, False) or not (known - own).uses(loops)
    return near[max(near)] if near else True


def _symbols(body: LoopBody) -> tuple[Symbol, ...]:
    return body.iters + body.reduces


def _sizes(body: LoopBody) -> tuple[tuple[IntLike | None, ...], tuple[IntLike | None, ...]]:
    return tuple(s.size for s in body.iters), tuple(s.size for s in body.reduces)


def _shared_indices(
    first: LoopBody,
    second: LoopBody,
) -> Iterator[tuple[Expr, Expr]]:
    """Index pairs of accesses to the same buffer, stores of `first` to the front."""
    accesses: dict[str, list[Expr]] = {}
    for node in (*first.stores(), *first.loads()):
        assert node.buffer is not None and node.index is not None
        known = accesses.setdefault(node.buffer, [])
        if node.index not in known and not node.index.value_refs():
            known.append(node.index)
    seen = set()
    for node in (*second.loads(), *second.stores()):
        assert node.buffer is not None and node.index is not None
        if node.index.value_refs():
            continue
        for index in accesses.get(node.buffer, ()):
            if (index, node.index) not in seen:
                seen.add((index, node.index))
                yield index, node.index


def _moved(
    body: LoopBody,
    target: LoopBody,
    known: Expr,
    own: Expr,
) -> LoopBody | None:
    """`body` over target's symbols, where its index `own` and target's index `known` are the same
    element.
    """
    if body.has_scan():
        return None  # its order is part of its meaning
    mapping = solve(own, known)
    if mapping is None:
        return None
    missing = [s for s in _symbols(body) if s not in mapping]
    used = known.symbols()
    if not _is_injective(known):
        return None  # two points of target would be one of body, and others of body none
    free = [s for s in _symbols(target) if s not in used]
    if missing:
        if product(s.size for s in missing) != product(s.size for s in free):  # type: ignore[misc]
            return None
        mapping.update(_distribute(missing, free))
        free = []
    if any(s not in target.reduces for s in free):
        return None
    if body.reduces and not _keeps_levels(body, target, mapping):
        return None
    if body.has_positions() and not _keeps_order(body, target, mapping):
        return None
    if not _same_extent(body, target, free):
        return None
    return body.reindex(target.iters, target.reduces, mapping)


def solve(
    own: Expr,
    known: Expr,
) -> dict[Atom, IntLike] | None:
    """Values of own's loop symbols such that own == known; own must be affine and injective."""
    found = _steps(own)
    if found is None:
        return None
    steps, first = found
    rest = known - first
    mapping: dict[Atom, IntLike] = {}
    limit: Expr | None = None
    for step, symbol in sorted(steps, key=lambda pair: -hint_of(pair[0])):
        extent = step * symbol.size  # type: ignore[operator]
        if not is_nonneg(step - 1) or (limit is not None and not is_nonneg(limit - extent)):
            return None
        limit = step
        mapping[symbol] = (rest // step) % symbol.size  # type: ignore[operator]
    return mapping if own.subs(mapping) == known else None


def _steps(index: Expr) -> tuple[list[tuple[Expr, Symbol]], Expr] | None:
    """How far an affine index moves with each of its loop symbols, and where it begins; None where
    it is not affine.
    """
    steps, first = [], index
    atoms = dict.fromkeys(index.atoms())
    for symbol in [a for a in atoms if isinstance(a, Symbol) and a.size is not None]:
        step = index.coeff(symbol)
        if step is None or not all(map(is_size, step.atoms())):
            return None
        first = first - step * symbol_expr(symbol)
        steps.append((step, symbol))
    return (steps, first) if all(map(is_size, first.atoms())) else None


def _is_injective(index: Expr) -> bool:
    """Whether the index differs wherever its symbols do; False where that is not plain to see."""
    symbols = {s for s in index.symbols() if s.size is not None}
    for _ in range(6):
        found = next(_divided_symbols([index]), None)
        if found is None:
            break
        symbol, step = found
        outer, inner, point = _halves(symbol, step)
        symbols = symbols - {symbol} | {outer, inner}
        index = index.subs({symbol: point})
    steps = _steps(index)
    if steps is None or not {s for s in symbols if s.size != 1} <= {s for _, s in steps[0]}:
        return False
    return _reach_further(steps[0])


def _reach_further(steps: Sequence[tuple[Expr, Symbol]]) -> bool:
    """Whether each step is longer than what all smaller ones reach together."""
    reach = ZERO
    for step, symbol in sorted(steps, key=lambda pair: hint_of(pair[0])):
        if symbol.size == 1:
            continue
        if not is_nonneg(step - reach - 1):
            return False
        reach = reach + step * (symbol.size - 1)  # type: ignore[operator]
    return True


def _distribute(
    missing: Sequence[Symbol],
    free: Sequence[Symbol],
) -> dict[Atom, IntLike]:
    """Identify two groups of symbols with the same number of points, in row-major order."""
    position = _position(free)
    result: dict[Atom, IntLike] = {}
    for symbol in reversed(missing):
        assert symbol.size is not None
        result[symbol] = position % symbol.size
        position = position // symbol.size
    return result


def _keeps_levels(
    body: LoopBody,
    target: LoopBody,
    mapping: Mapped,
) -> bool:
    """Whether reduction symbols map to reduction symbols and the others to others."""
    for symbols, allowed in ((body.iters, target.iters), (body.reduces, target.reduces)):
        for symbol in symbols:
            value = mapping[symbol]
            loops = [s for s in as_expr(value).symbols() if s.size is not None]
            if not set(loops) <= set(allowed):
                return False
    return True


def _keeps_order(
    body: LoopBody,
    target: LoopBody,
    mapping: Mapped,
) -> bool:
    """Whether reduction points keep their row-major positions: those are results of `argmax`."""
    return _position(body.reduces).subs(mapping) == _position(target.reduces)


def _position(symbols: Sequence[Symbol]) -> Expr:
    position = ZERO
    for symbol in symbols:
        assert symbol.size is not None
        position = position * symbol.size + symbol_expr(symbol)
    return position


def _same_extent(
    body: LoopBody,
    target: LoopBody,
    outside: Sequence[Symbol],
) -> bool:
    """Whether body's points are exactly target's (its rows', where the body is outer)."""
    symbols = [s for s in _symbols(target) if not outside or s not in target.reduces]
    if outside and len(outside) != len(target.reduces):
        return False
    return product(s.size for s in _symbols(body)) == product(s.size for s in symbols)  # type: ignore[misc]


def division_count(body: LoopBody) -> int:
    """How many quotients and remainders the indices of a body have."""
    return sum(
        isinstance(atom, (FloorDiv, Mod))
        for node in body.nodes
        if node.index is not None
        for atom in node.index.atoms()
    )


def _split_loops(*bodies: LoopBody, least: int = 1) -> tuple[LoopBody, ...]:
    """Cut loops in two where an index divides their symbol: x // 128 and x % 128 become symbols,
    the inner one with at least so many values.
    """
    for _ in range(6):
        nodes = [node for body in bodies for node in body.nodes]
        indices = [node.index for node in nodes if node.index is not None]
        cuts = ((symbol, step) for symbol, step in _divided_symbols(indices) if step >= least)
        found = next(cuts, None)
        if found is None:
            break
        bodies = tuple(_split_loop(body, *found) for body in bodies)
    return bodies


def _divided_symbols(indices: Sequence[Expr]) -> Iterator[tuple[Symbol, int]]:
    for index in indices:
        for atom in index.atoms():
            if not isinstance(atom, (FloorDiv, Mod)) or not atom.den.is_const or atom.num.const:
                continue
            ((monomial, coeff),) = list(atom.num.terms.items())[:1]
            symbol = monomial[0]
            if len(atom.num.terms) == len(monomial) == coeff == 1 and isinstance(
                symbol, Symbol
            ):
                step = atom.den.const
                if isinstance(symbol.size, int) and symbol.size % step == 0:
                    yield symbol, step


def _halves(
    symbol: Symbol,
    step: int,
) -> tuple[Symbol, Symbol, Expr]:
    """Symbols of symbol // step and symbol % step, and symbol made of them."""
    assert isinstance(symbol.size, int)
    outer = loop_symbol(f"{symbol.name}o", symbol.size // step)
    inner = loop_symbol(f"{symbol.name}i", step)
    return outer, inner, symbol_expr(outer) * step + symbol_expr(inner)


def _split_loop(
    body: LoopBody,
    symbol: Symbol,
    step: int,
) -> LoopBody:
    outer, inner, point = _halves(symbol, step)

    def cut(symbols: Sequence[Symbol]) -> list[Symbol]:
        return [new for s in symbols for new in ((outer, inner) if s == symbol else (s,))]

    return body.reindex(cut(body.iters), cut(body.reduces), {symbol: point})


# -- one body out of two ---------------------------------------------------------------------------


def _concatenate(
    first: LoopBody,
    second: LoopBody,
) -> LoopBody | None:
    """`first`'s nodes, then `second`'s, loads of what was stored replaced by the value; None if an
    index differs, or an element would be changed before all have read it.
    """
    adds = any(node.op == "scatter" for node in (*first.nodes, *second.nodes))
    if adds and first.reduces:
        return None  # an addition must happen once at every point
    stored: dict[str, tuple[Expr | None, int]] = {}
    ops: dict[str | None, str] = {}
    several: set[str] = set()
    nodes = NodeList()
    for position, node in enumerate(first.nodes):
        new = nodes.copy(node, position)
        if node.op in ("store", "scatter"):
            assert node.buffer is not None
            if node.buffer in stored or node.op == "scatter":
                several.add(node.buffer)
            stored[node.buffer] = (node.index, nodes.nodes[new].args[0])
            ops[node.buffer] = node.op
    read_before = {node.buffer for node in first.loads()}
    nodes.renumbered = {}
    for position, node in enumerate(second.nodes):
        if node.op in ("store", "scatter"):
            if node.buffer in read_before and not _is_in_place(first, node):
                return None
            if node.buffer in stored and "scatter" in (node.op, ops[node.buffer]):
                return None
        if node.op == "load" and node.buffer in stored:
            index, value = stored[node.buffer]
            if node.buffer in several or nodes.moved_index(node) != index:
                return None
            nodes.renumbered[position] = value
            continue
        nodes.copy(node, position)
    return LoopBody(first.iters, first.reduces, nodes.nodes)


def _is_in_place(
    first: LoopBody,
    store: Node,
) -> bool:
    """Whether `first` reads each element of the stored buffer only at the point that stores it, or
    in the row that does: what reads it again after the store is seen by `reads_overwritten`.
    """
    if store.op != "store" or store.index is None or store.index.uses(first.reduces):
        return False
    same = all(
        node.index == store.index for node in first.loads() if node.buffer == store.buffer
    )
    return same and is_injective(store.index, first.iters)


def reads_overwritten(body: LoopBody) -> bool:
    """Whether a walk over the rows reads again what was written in its place: by an earlier one, as
    what follows a reduction computes its operands anew; or in front of it, where a row's own
    results are written that need no more than the walks before.
    """
    written = {n.buffer for n in body.stores()} & {n.buffer for n in body.loads()}
    if not body.reduces or not written:
        return False
    walks: list[int] = []
    reads: list[set[str | None]] = []
    in_walks: list[set[str | None]] = []
    inner = body.levels()
    for node, is_inner in zip(body.nodes, inner, strict=True):
        refs = () if node.index is None else node.index.value_refs()
        operands = [*node.args, *refs]
        over = [body.nodes[arg].op == "reduction" for arg in operands]
        walks.append(
            max((walks[a] + r for a, r in zip(operands, over, strict=True)), default=0)
        )
        own = {node.buffer} & written if node.op == "load" else set()
        same = [arg for arg, is_over in zip(operands, over, strict=True) if not is_over]
        reads.append(own.union(*(reads[arg] for arg in same)))
        in_walk = own if is_inner else set()
        in_walks.append(in_walk.union(*(in_walks[arg] for arg in same)))
    first: dict[str | None, int] = {}
    in_front: dict[str | None, int] = {}
    for node, walk, is_inner in zip(body.nodes, walks, inner, strict=True):
        if node.op in ("store", "scatter"):
            first[node.buffer] = min(walk, first.get(node.buffer, walk))
            if not is_inner:
                in_front[node.buffer] = min(walk, in_front.get(node.buffer, walk))
    return any(
        any(walk > first[name] for name in used)
        or any(walk >= in_front.get(name, len(walks)) for name in inside)
        for walk, used, inside in zip(walks, reads, in_walks, strict=True)
    )


def is_injective(
    index: Expr,
    symbols: Sequence[Symbol],
) -> bool:
    """Whether an affine index differs at all points of the symbols, whatever the sizes are."""
    found = _steps(index)
    if found is None or not {s for _, s in found[0]} <= set(symbols):
        return False
    given = {symbol: step for step, symbol in found[0]}
    steps = [(given.get(symbol, ZERO), symbol) for symbol in symbols]
    return _reach_further([(-s if s.is_const and s.const < 0 else s, x) for s, x in steps])


# -- simplifying the loops of a finished kernel ----------------------------------------------------


def merge_loops(body: LoopBody) -> LoopBody:
    """Turn adjacent loops into one wherever every index allows it, and name the symbols x0.. and
    r0.. . Before that, loops that indices divide are cut, where that takes all divisions away.
    """
    if division_count(body) and not body.has_scan():
        (cut,) = _split_loops(body, least=SHORTEST_LOOP)
        body = body if division_count(cut) else cut
    for reduces in (False, True):
        position = 0
        while position + 1 < len(body.reduces if reduces else body.iters):
            merged = _merge_pair(body, position, reduces)
            if merged is None:
                position += 1
            else:
                body, position = merged, max(position - 1, 0)
    names: dict[Atom, IntLike] = {}
    iters = _renamed(body.iters, "x", names)
    reduces_ = _renamed(body.reduces, "r", names)
    return body.reindex(iters, reduces_, names)


def _renamed(
    symbols: Sequence[Symbol], prefix: str, names: dict[Atom, IntLike]
) -> list[Symbol]:
    result = []
    for position, symbol in enumerate(symbols):
        assert symbol.size is not None
        result.append(loop_symbol(f"{prefix}{position}", symbol.size))
        names[symbol] = symbol_expr(result[-1])
    return result


def _merge_pair(
    body: LoopBody,
    position: int,
    reduces: bool,
) -> LoopBody | None:
    symbols = body.reduces if reduces else body.iters
    outer, inner = symbols[position], symbols[position + 1]
    assert outer.size is not None and inner.size is not None
    merged = loop_symbol(f"{outer.name}_{inner.name}", outer.size * inner.size)
    point = symbol_expr(merged)
    mapping: dict[Atom, IntLike] = {outer: point // inner.size, inner: point % inner.size}
    nodes: list[Node] = []
    for node in body.nodes:
        if node.index is not None and node.index.uses({outer, inner}):
            index = node.index.subs(mapping)
            if _divisions(index) > _divisions(node.index):
                return None
            node = replace(node, index=index)
        nodes.append(node)
    rest = (*symbols[:position], merged, *symbols[position + 2 :])
    if reduces:
        return LoopBody(body.iters, rest, nodes)
    return LoopBody(rest, body.reduces, nodes)


def _divisions(index: Expr) -> int:
    return sum(isinstance(atom, (FloorDiv, Mod)) for atom in index.atoms())
