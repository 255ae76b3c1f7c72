"""What the C++ printer decides before it prints: the vectorised loop, and the order of the work.

`choose_vector_symbol` picks the loop that takes N elements at a time. `plan_stages` orders the
nodes of a body with reductions into numbers (code outside of the reduction loops) and walks (over
the reduction symbols), and decides what is kept in scratch memory between walks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from minidynamo.inductor.loop_body import LoopBody, Node
from minidynamo.inductor.ops import OPS
from minidynamo.inductor.symbolic import IntLike, Symbol, product

# A value that costs this much and is wanted in several walks is kept.
SCRATCH_COST = 8


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
        result.append(
            frozenset(symbols - reduces) if node.op == "reduction" else frozenset(symbols)
        )
    return result


def choose_vector_symbol(body: LoopBody) -> Symbol | None:
    """The loop symbol with most accesses to neighbouring elements; ties go to the inner loop."""
    best: tuple[float, int] | None = None
    chosen = None
    for rank, symbol in enumerate((*body.iters, *body.reduces)):
        score = 0.0
        for node in body.nodes:
            if node.buffer is None or node.index is None:
                continue
            weight = 1.0 if node.op == "load" else 2.0
            factor = node.index.coeff(symbol)
            if factor is None or not factor.is_const:
                score -= weight
            elif factor.const != 0:
                score += weight if factor.const == 1 else -weight
        size = symbol.size
        if isinstance(size, int):
            lanes = 16
            score *= size / (-(-size // lanes) * lanes) if score > 0 else 1
        if best is None or (score, rank) >= best:
            best, chosen = (score, rank), symbol
    return chosen


def plan_stages(body: LoopBody, inner: list[bool], scratch_limit: int) -> Stages:
    """Order the nodes into outer code and walks; decide what is kept between walks."""
    nodes = body.nodes
    if not body.reduces:
        return Stages([list(range(len(nodes)))], [])
    stage: list[int] = []
    for node in nodes:
        earliest = max((stage[arg] for arg in node.operands()), default=0)
        stage.append(earliest + 1 if node.op == "reduction" else earliest)
    walk_roots: dict[int, list[int]] = {}
    for position, node in enumerate(nodes):
        if node.op == "reduction":
            walk_roots.setdefault(stage[position] - 1, []).append(position)
        elif inner[position] and node.op in ("store", "atomic_add"):
            walk_roots.setdefault(stage[position], []).append(position)
    last = max([*walk_roots, *stage])
    numbers = [
        [
            p
            for p, n in enumerate(nodes)
            if stage[p] == step and not inner[p] and n.op != "reduction"
        ]
        for step in range(last + 1)
    ]
    total = product(size_of(s) for s in body.reduces)
    keeps = isinstance(total, int) and total <= scratch_limit
    computed: set[int] = set()
    scratch: set[int] = set()
    walks = []
    for step in range(last + 1):
        roots = walk_roots.get(step, [])
        needed = _needed(nodes, inner, roots, computed if keeps else set(), scratch)
        computed |= needed
        walks.append(Walk(sorted(needed), [p for p in roots if nodes[p].op == "reduction"]))
    return Stages(numbers, walks, sorted(scratch))


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
            work += [arg for arg in nodes[p].operands() if inner[arg]]
    return total
