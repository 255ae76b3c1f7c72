"""Computing a value again in each kernel that reads it, where that is cheaper than a store.

    notes = Recompute(groups, touching, score, kept, overwritten).run()

A buffer that one kernel fills for others disappears, and they compute its elements themselves, if

    only kernels read it, and the graph does not return it
    its elements are made of elements of memory that is not written to meanwhile, by arithmetic
        alone: no reductions, computed positions, checks or random numbers
    what it is made of takes no more memory than it does (inputs and results of the graph aside,
        which are there anyway)
    saved >= LEAST_BYTES and repeated <= OPERATIONS_PER_BYTE * saved

where `saved` counts bytes and `repeated` machine operations (the costs of `ops.py`):

    saved = bytes of the buffer, once for the store and once for each kernel that reads it
            + bytes of what the kernel that filled it then needs no longer
            - bytes of what the others have to read besides
    repeated = cost of an element x how often kernels read one
               - cost of all elements, where the kernel that filled it does nothing else with them

On a GPU a launch takes longer than most arithmetic: there it is done where a whole kernel
disappears for at most LAUNCH_OPERATIONS, however little traffic that saves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import torch

from minidynamo.inductor import config
from minidynamo.inductor.dependencies import roots
from minidynamo.inductor.fusion import division_count, solve
from minidynamo.inductor.fusion_score import MAX_BUFFERS, FusionScore, Group, device_of
from minidynamo.inductor.loop_body import LOW_PRECISION, LoopBody, Node, NodeList
from minidynamo.inductor.ops import OPS
from minidynamo.inductor.origins import operators
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import Atom, Expr, IntLike, product, symbol_expr
from minidynamo.inductor.targets import uses_triton

# Below this the caches hold what is saved.
LEAST_BYTES = 1 << 22
OPERATIONS_PER_BYTE = 2
# What a large GPU computes in a few microseconds.
LAUNCH_OPERATIONS = 1 << 26


class Recompute:
    """The pass over one graph's groups, which it changes."""

    def __init__(
        self,
        groups: Sequence[Group],
        touching: Mapping[str, list[Group]],
        score: FusionScore,
        kept: Set[str],
        overwritten: Set[str],
    ) -> None:
        self.groups = groups
        self.touching = touching
        self.score = score
        self.buffers = score.buffers
        self.kept = kept
        self.overwritten = overwritten

    def run(self) -> list[str]:
        """Sentences about what is computed again."""
        notes = []
        for group in self.groups:
            if not group.alive or group.body is None:
                continue
            for name in sorted(group.writes - self.kept):
                note = self._try(group, name)
                notes += [note] if note else []
        return notes

    def _try(
        self,
        group: Group,
        name: str,
    ) -> str:
        """Take one buffer away; what was done, or nothing."""
        assert group.body is not None
        others = [g for g in self.touching[name] if g.alive and g is not group]
        if not others or any(g.body is None or name in g.writes for g in others):
            return ""
        made = _elements(group.body, name)
        if made is None or not self._can_stay(made, name):
            return ""
        on_gpu = uses_triton(device_of(group))
        bodies = [
            _inlined(other.body, group.body, name, made, on_gpu)  # type: ignore[arg-type]
            for other in others
        ]
        rest = group.body.without_dead_nodes(lambda node: node.buffer != name)
        saved, repeated = self._balance(group, rest, name, made, others)
        if on_gpu:
            is_worth = _dies(rest) and saved >= 0 and repeated <= LAUNCH_OPERATIONS
        else:
            is_worth = saved >= LEAST_BYTES and repeated <= OPERATIONS_PER_BYTE * saved
        if not is_worth or not all(map(self._is_small, bodies)):
            return ""
        for other, body in zip([group, *others], [rest, *bodies], strict=True):
            assert body is not None
            self._change(other, body)
        group.writes = group.writes - {name}
        origins = [o for op in group.operations for o in op.origins if name in _names(op)]
        what = ", ".join(dict.fromkeys(operators(tuple(origins)))) or name
        kernels = f"{len(others)} kernel{'s' * (len(others) > 1)}"
        return (
            f"computed again in {kernels} instead of stored, saving {saved / 1e6:.1f} MB"
            f" of traffic for {repeated / 1e6:.1f} million operations: {what}"
        )

    def _can_stay(
        self,
        made: Sequence[Node],
        name: str,
    ) -> bool:
        """Whether what the elements are made of still has its values later, and is not much."""
        sources = {node.buffer for node in made if node.buffer is not None}
        memory = {root.name for source in sources for root in roots(self.buffers[source])}
        held = [
            source
            for source in sources
            if source not in self.kept and self.buffers[source].kind in ("computed", "extern")
        ]
        small = sum(map(self.score.nbytes, held)) <= self.score.nbytes(name)
        return small and not memory & self.overwritten

    def _balance(
        self,
        group: Group,
        rest: LoopBody,
        name: str,
        made: Sequence[Node],
        others: Sequence[Group],
    ) -> tuple[int, int]:
        """Bytes that are not moved, and operations that are done again."""
        nbytes = self.score.nbytes
        sources = {node.buffer for node in made if node.buffer is not None}
        saved = (1 + len(others)) * nbytes(name)
        saved += sum(map(nbytes, group.reads - rest.reads()))
        saved -= sum(nbytes(source) for other in others for source in sources - other.reads)
        cost = sum(OPS[node.op].cost for node in made if node.op != "load")
        once = hint_of(product(self.buffers[name].size)) if _dies(rest) else 0
        return saved, cost * (sum(_times_read(other.body, name) for other in others) - once)

    def _is_small(self, body: LoopBody | None) -> bool:
        if body is None or len(body.nodes) > config.max_fusion_nodes:
            return False
        return len({node.buffer for node in body.nodes if node.buffer}) <= MAX_BUFFERS

    def _change(
        self,
        group: Group,
        body: LoopBody,
    ) -> None:
        group.body = body
        group.reads = body.reads()
        for source in group.reads:
            if group not in self.touching[source]:
                self.touching[source].append(group)


def _dies(rest: LoopBody) -> bool:
    """Whether a kernel that is left with this does nothing."""
    return not any(node.op in ("store", "scatter") for node in rest.nodes)


def _times_read(reader: LoopBody | None, name: str) -> int:
    assert reader is not None
    loops = [s.size for s in (*reader.iters, *reader.reduces) if s.size is not None]
    return hint_of(product(loops)) * sum(node.buffer == name for node in reader.loads())


def _names(operation: object) -> set[str]:
    return {buffer.name for buffer in getattr(operation, "outputs", ())}


def _elements(body: LoopBody, name: str) -> list[Node] | None:
    """The nodes that an element of a buffer is made of, the value that is stored last; None where
    they are more than arithmetic on elements.
    """
    stores = [node for node in body.nodes if node.buffer == name and node.op == "store"]
    if len(stores) != 1 or any(node.op == "check" for node in body.nodes):
        return None  # `zeros(3)[i]` needs its check, if not for its value
    wanted = _needed(body, stores[0].args[0])
    nodes = [body.nodes[position] for position in wanted]
    for node in nodes:
        plain = node.op == "load" or OPS[node.op].kind in ("leaf", "pointwise")
        if not plain or (node.index is not None and node.index.value_refs()):
            return None
    return nodes


def _needed(body: LoopBody, position: int) -> list[int]:
    found: set[int] = set()
    work = [position]
    while work:
        at = work.pop()
        if at not in found:
            found.add(at)
            work += body.nodes[at].operands()
    return sorted(found)


def _inlined(
    reader: LoopBody,
    producer: LoopBody,
    name: str,
    made: Sequence[Node],
    also_masked: bool,
) -> LoopBody | None:
    """The reader with the producer's arithmetic in place of its loads of `name`; None where their
    loops do not fit together without divisions.

    also_masked: also where it loads under a mask, as parts of a `cat` do: nothing that is computed
    outside of the mask may stop the program.
    """
    (store,) = [node for node in producer.nodes if node.buffer == name and node.op == "store"]
    assert store.index is not None
    places = {id(producer.nodes[p]): p for p in _needed(producer, store.args[0])}
    nodes = NodeList()
    for position, node in enumerate(reader.nodes):
        if node.buffer != name:
            nodes.copy(node, position)
            continue
        assert node.index is not None
        is_plain = not node.args or (also_masked and node.dtype not in LOW_PRECISION)
        mapping = _solved(store.index, node.index) if is_plain else None
        if mapping is None or not _is_covered(made, mapping):
            return None
        mask = tuple(nodes.renumbered[arg] for arg in node.args)
        values: dict[int, int] = {}
        for part in made:
            args = tuple(values[arg] for arg in part.args)
            if part.op == "load" and mask:
                both = Node("bitwise_and", (*args, *mask), torch.bool)
                args = (nodes.add(both),) if args else mask
            index = None if part.index is None else part.index.subs(mapping)
            values[places[id(part)]] = nodes.add(replace(part, args=args, index=index))
        value = values[store.args[0]]
        if mask:  # outside of it a load gives 0
            zero = nodes.add(Node("constant", (), node.dtype, value=_zero(node.dtype)))
            value = nodes.add(Node("where", (*mask, value, zero), node.dtype))
        nodes.renumbered[position] = value
    body = LoopBody(reader.iters, reader.reduces, nodes.nodes)
    return body if division_count(body) <= division_count(reader) else None


def _solved(own: Expr, known: Expr) -> dict[Atom, IntLike] | None:
    """Values of the producer's loop symbols where it stores at `own` what is read at `known`."""
    if known.value_refs():
        return None
    atoms = [monomial[0] for monomial in own.terms if len(monomial) == 1]
    if len(atoms) == 1 and own == symbol_expr(atoms[0]):
        return {atoms[0]: known}  # also where only the mask says that it is within the loop
    return solve(own, known)


def _zero(dtype: torch.dtype) -> bool | int | float:
    return False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0


def _is_covered(made: Sequence[Node], mapping: Mapping[Atom, IntLike]) -> bool:
    """Whether every loop symbol of the producer has a value in the reader."""
    used = {s for node in made if node.index is not None for s in node.index.symbols()}
    return all(symbol in mapping for symbol in used if symbol.size is not None)
