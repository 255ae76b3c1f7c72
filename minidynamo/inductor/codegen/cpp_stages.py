"""What the C++ printer decides before it prints: the vectorised loop, and the order of the work.

`choose_vector_symbol` picks the loop that takes N elements at a time. `plan_stages` orders the
nodes of a body with reductions into numbers (code outside of the reduction loops) and walks (over
the reduction symbols), and decides what is kept in scratch memory between walks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from minidynamo.inductor.loop_body import LoopBody, Node
from minidynamo.inductor.ops import OPS
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import (
    Expr,
    IntLike,
    Symbol,
    is_less,
    is_nonneg,
    product,
    symbol_expr,
)

# A value that costs this much and is wanted in several walks is kept.
SCRATCH_COST = 8
# Rows up to this length may be kept in scratch memory; by columns, N * T times as much is kept.
SCRATCH_ELEMENTS = 8192
SCRATCH_ELEMENTS_BY_COLUMN = 512
# What rounding to bfloat16 costs more than another cast: few processors have an instruction.
ROUNDING_COST = 4
STORES = ("store", "scatter")
EXTREMES = ("max", "min")
# Lanes of the widest vectors, for decisions; the text itself says N.
LANES = 16
# Rows of no more elements are reduced each in a lane: where one number comes out of a row, where
# several do, and where a position does. First rows that are read with steps between the lanes, then
# (bytes) rows whose elements lie side by side, which are read whole and turned.
TINY_ROW = 8
TINY_ROW_OF_SEVERAL = 10
TINY_ROW_OF_POSITIONS = 16
TURNED_ROW = 64
TURNED_ROW_OF_SEVERAL = 256
# What turning a block of rows costs, beside what a vector of neighbours saves.
BLOCK_WEIGHT = 0.25


@dataclass(slots=True)
class Walk:
    """One walk over the reduction symbols: nodes to compute, and the reductions it finishes."""

    nodes: list[int]
    reductions: list[int]


@dataclass(slots=True)
class Stages:
    """The body in order: `numbers[0]`, `walks[0]`, `numbers[1]`, ... (outer nodes and walks
    alternate).
    """

    numbers: list[list[int]]
    walks: list[Walk]
    scratch: list[int] = field(default_factory=list)


def size_of(symbol: Symbol) -> IntLike:
    """How many values a loop symbol takes."""
    assert symbol.size is not None
    return symbol.size


def stays_same(step: Expr | None) -> bool:
    """Whether that is known and no loop changes it: a number, or computed from sizes."""
    return step is not None and step.is_uniform()


def dependencies(body: LoopBody) -> list[frozenset[Symbol]]:
    """For every node, the loop symbols that its value changes with."""
    result: list[frozenset[Symbol]] = []
    reduces = frozenset(body.reduces)
    for node in body.nodes:
        symbols: set[Symbol] = set()
        if node.index is not None:
            symbols |= {s for s in node.index.symbols() if s.size is not None}
        for arg in node.operands():
            symbols |= result[arg]
        if node.op == "scan":
            symbols |= reduces
        result.append(
            frozenset(symbols - reduces) if node.op == "reduction" else frozenset(symbols)
        )
    return result


# Numbers side by side in memory that vectors of each are made of by moves between registers.
FIELDS = 4


def choose_vector_symbol(body: LoopBody, place: int = 0) -> Symbol | None:
    """The loop symbol with most accesses to neighbouring elements; ties go to the inner loop.
    `place`: 1 for the second best, where there is one.

    Stores count more than loads, which can be turned; what happens once a row hardly counts. To
    add to memory lane by lane costs no more than in short vectors. What lies along long rows of
    which every lane has one is turned in blocks, and costs little; several running sums at once
    are worth that.
    """
    rows = next((s for s in body.reduces[-1:] if _is_long(s)), None)
    chained = BLOCK_WEIGHT if body.has_scan() else -BLOCK_WEIGHT
    scored: list[tuple[float, int, Symbol]] = []
    weights, varying = _access_weights(body), dependencies(body)
    symbols = (*body.iters, *_row_symbols(body))
    for rank, symbol in enumerate(symbols):
        score, filled = 0.0, _filled(symbol)
        added = 4.0 if filled > 0.5 else filled
        across = filled >= 0.5 and symbol in body.iters
        for node, weight in weights:
            assert node.index is not None
            factor = node.index.coeff(symbol)
            along = across and _lies_along(node, rows)
            found = any(symbol in varying[ref] for ref in node.index.value_refs())
            if along and stays_same(factor) and not factor.is_const:  # type: ignore[union-attr]
                score += chained * weight
            elif factor is None or not factor.is_const or (found and node.op == "load"):
                score -= weight  # every lane reads elsewhere
            elif factor.const == 1:
                score += min(added, weight) if node.op == "scatter" else weight
            elif factor.const == 0:
                score += weight if along else 0  # one number for all lanes
            elif along:
                score += chained * weight
            elif abs(factor.const) <= FIELDS:
                score -= weight / 4  # vectors that are taken apart
            else:
                score -= 1.0 if node.op == "scatter" else weight
        scored.append((score * filled if score > 0 else score, rank, symbol))
    scored.sort(key=lambda row: row[:2], reverse=True)
    return scored[min(place, len(scored) - 1)][2] if scored else None


def _lies_along(node: Node, symbol: Symbol | None) -> bool:
    """Whether elements next to each other along the symbol are neighbours in memory."""
    return symbol is not None and node.index is not None and node.index.coeff(symbol) in (1, -1)


def _filled(symbol: Symbol) -> float:
    """Which part of the lanes of all vectors of a loop are in use."""
    if not isinstance(symbol.size, int) or not symbol.size:
        return 1.0
    return symbol.size / (-(-symbol.size // LANES) * LANES)


def _row_symbols(body: LoopBody) -> tuple[Symbol, ...]:
    """The reduction symbols that may be vectorised: where there is a scan, that of neighbours, if
    its results are the same in any grouping.
    """
    if _has_tiny_rows(body):
        return ()
    scans = [node for node in body.nodes if node.op == "scan"]
    if all(node.value in EXTREMES or is_whole(node) for node in scans):
        return body.reduces[-1:] if scans else body.reduces
    return ()


def is_whole(node: Node) -> bool:
    """Whether sums and products of such values are exact, as they wrap around."""
    return node.value in ("sum", "prod") and not node.dtype.is_floating_point


def _has_tiny_rows(body: LoopBody) -> bool:
    """Whether rows are so short that many of them side by side are better than one at a time.

    A vector along such a row would be mostly empty, and be folded to a number for each reduction.
    """
    length, most = product(size_of(s) for s in body.reduces), TINY_ROW
    folded = [node.value for node in body.nodes if node.op == "reduction"]
    finds = "argmax" in folded or "argmin" in folded
    if len(folded) > 1:
        most = TINY_ROW_OF_SEVERAL
    if finds:
        most = TINY_ROW_OF_POSITIONS
    if _lies_in_rows(body):
        wide = any(node.dtype.itemsize == 8 for node in body.nodes if node.op != "reduction")
        turned = TURNED_ROW_OF_SEVERAL if finds or len(folded) > 1 else TURNED_ROW
        most = max(most, turned // (8 if wide else 4))
    many = any(hint_of(size_of(s)) >= LANES for s in body.iters)
    return many and isinstance(length, int) and length <= most


def _lies_in_rows(body: LoopBody) -> bool:
    """Whether all that is read and written along the reduction symbol are neighbours."""
    if len(body.reduces) != 1:
        return False
    for node, is_inner in zip(body.nodes, body.levels(), strict=True):
        if is_inner and node.buffer is not None:
            assert node.index is not None
            if node.args[: node.op == "load"] or node.index.value_refs():
                return False
            steps = [node.index.coeff(symbol) for symbol in body.iters]
            if any(step is None or not step.is_const for step in steps):
                return False
            if node.index.coeff(body.reduces[0]) != 1:
                return False
    return True


def _access_weights(body: LoopBody) -> list[tuple[Node, float]]:
    inner = body.levels()
    result = []
    for node, is_inner in zip(body.nodes, inner, strict=True):
        if node.buffer is not None:
            weight = 4.0 if node.op in STORES and not body.reduces else 1.0
            result.append((node, weight if is_inner or not body.reduces else 0.05))
    return result


def parallel_symbols(body: LoopBody) -> set[Symbol]:
    """Loops whose iterations may run side by side: no two of them add to one element."""
    safe = set(body.iters)
    for node in body.nodes:
        if node.op == "scatter":
            assert node.index is not None
            safe = {symbol for symbol in safe if _determines(node.index, symbol)}
    return safe


def _determines(index: Expr, symbol: Symbol) -> bool:
    """Whether equal indices mean equal values of `symbol`, whatever the other atoms are."""
    step = index.coeff(symbol)
    if step is None or not is_nonneg(step - 1):
        return False
    rest = index - symbol_expr(symbol) * step
    low = (rest - rest.const) % (step * size_of(symbol))
    return is_nonneg(low) and is_less(low, step)


@dataclass(frozen=True, slots=True)
class Transposition:
    """Loads that are contiguous along `symbol` while the kernel is vectorised along another one;
    `strides`: position of the load -> how far apart neighbours of the vectorised symbol are.
    """

    symbol: Symbol
    loads: tuple[int, ...]
    strides: dict[int, Expr]


def find_transposition(body: LoopBody, vec: Symbol) -> Transposition | None:
    """The symbol along which most of the loads lie that are not contiguous along `vec`."""
    found: dict[Symbol, dict[int, Expr]] = {}
    for position, node in enumerate(body.nodes):
        if node.op != "load" or node.args or node.index is None or node.index.value_refs():
            continue
        step = node.index.coeff(vec)
        if step is None or not stays_same(step) or step in (0, 1):
            continue
        for symbol in body.iters:
            if symbol != vec and node.index.coeff(symbol) == 1 and _is_long(symbol):
                found.setdefault(symbol, {})[position] = step
    if not found or not _is_long(vec):
        return None
    symbol = max(found, key=lambda s: len(found[s]))
    return Transposition(symbol, tuple(found[symbol]), found[symbol])


def _is_long(symbol: Symbol) -> bool:
    return not isinstance(symbol.size, int) or symbol.size >= 8


def _stage_of(nodes: Sequence[Node]) -> list[int]:
    """For an outer node, how many walks come before it; for an inner one, the first walk that can
    compute it.
    """
    stage: list[int] = []
    for node in nodes:
        earliest = max((stage[arg] for arg in node.operands()), default=0)
        stage.append(earliest + 1 if node.op == "reduction" else earliest)
    return stage


def plan_stages(body: LoopBody, scratch_limit: int) -> Stages:
    """Order the nodes into numbers and walks; rows of at most `scratch_limit` may be kept."""
    nodes = body.nodes
    if not body.reduces:
        return Stages([list(range(len(nodes)))], [])
    inner, stage = body.levels(), _stage_of(nodes)
    roots: dict[int, list[int]] = {}
    for position, node in enumerate(nodes):
        if node.op == "reduction":
            roots.setdefault(stage[position] - 1, []).append(position)
        elif inner[position] and node.op in STORES:
            roots.setdefault(stage[position], []).append(position)
    for position in _unused_checks(nodes, inner, [p for ends in roots.values() for p in ends]):
        roots.setdefault(stage[position], []).append(position)
    plan = Stages([], [])
    keeps = hint_of(product(size_of(s) for s in body.reduces)) <= scratch_limit
    # What stays the same along one of the loops is computed outside of that, and costs little.
    whole = {p for p, own in enumerate(dependencies(body)) if own.issuperset(body.reduces)}
    computed: set[int] = set()
    scratch: set[int] = set()
    for step in range(max([*roots, *stage]) + 1):
        plan.numbers.append(
            [
                position
                for position, node in enumerate(nodes)
                if stage[position] == step and not inner[position] and node.op != "reduction"
            ]
        )
        ends = roots.get(step, [])
        needed = _needed(nodes, inner, ends, computed if keeps else set(), scratch)
        computed |= needed & whole
        plan.walks.append(Walk(sorted(needed), [p for p in ends if nodes[p].op == "reduction"]))
    plan.scratch += sorted(scratch)
    return plan


def _unused_checks(nodes: Sequence[Node], inner: list[bool], roots: list[int]) -> list[int]:
    """Checks whose values no root needs: `(zeros(3)[i] * x).sum()` fails for a bad index, too."""
    checks = [p for p, node in enumerate(nodes) if node.op == "check" and inner[p]]
    if not checks:
        return []
    reached = _needed(nodes, inner, roots, set(), set())
    return [position for position in checks if position not in reached]


def _needed(
    nodes: Sequence[Node],
    inner: list[bool],
    roots: Iterable[int],
    computed: set[int],
    scratch: set[int],
) -> set[int]:
    """What a walk computes for `roots`; dear values of earlier walks are added to `scratch` and not
    looked behind.
    """
    needed: set[int] = set()
    work = list(roots)
    while work:
        position = work.pop()
        if position in needed:
            continue
        needed.add(position)
        node = nodes[position]
        if (
            position in computed
            and node.dtype.is_floating_point
            and _cost(nodes, inner, position) >= SCRATCH_COST
        ):
            scratch.add(position)
            continue
        work += [arg for arg in node.operands() if inner[arg]]
    return needed


def _cost(nodes: Sequence[Node], inner: list[bool], position: int) -> int:
    """Machine operations to compute an inner value anew."""
    seen: set[int] = set()
    work, total = [position], 0
    while work:
        p = work.pop()
        if p not in seen:
            seen.add(p)
            total += OPS[nodes[p].op].cost
            if nodes[p].op == "cast" and nodes[p].dtype == torch.bfloat16:
                total += ROUNDING_COST
            work += [arg for arg in nodes[p].operands() if inner[arg]]
    return total
