"""From lowered operations to kernels in running order.

    steps = schedule(lowered)       # list of Kernel and ExternOp

The passes, in order: `drop_dead`, `fuse`, `fuse_siblings`, `recompute`, `order`, `finish`,
`with_reuse`. Fusion is greedy: every operation, in the order of the graph, is joined with the
neighbour (a group that produced what it reads, or that reads the same memory) that saves most
memory traffic, unless something forbids it (`fusion_score.py` has the terms). On a GPU small groups
of equal loops are joined besides, whatever they read: a launch costs more than they do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

from minidynamo import events
from minidynamo.inductor.codegen.kernel import Kernel, KernelArg, KernelSpec
from minidynamo.inductor.dependencies import Dependencies, bits, is_effectful, roots, writes_of
from minidynamo.inductor.dependencies import overwritten as overwritten_by
from minidynamo.inductor.effects import is_wait
from minidynamo.inductor.fusion import merge_loops
from minidynamo.inductor.fusion_score import (
    APART,
    FusionScore,
    Group,
    are_apart,
    device_of,
    place_of,
)
from minidynamo.inductor.graph import GraphLowering
from minidynamo.inductor.ir import Buffer, ComputedOp, ExternOp, Operation, View
from minidynamo.inductor.loop_body import LoopBody
from minidynamo.inductor.ordering import Step, in_order, put_off
from minidynamo.inductor.origins import operators, source_lines
from minidynamo.inductor.recompute import Recompute
from minidynamo.inductor.reuse import with_reuse
from minidynamo.inductor.size_hints import hint_of, size_symbols
from minidynamo.inductor.symbolic import IntLike, product
from minidynamo.inductor.targets import uses_triton

# A kernel over no more points than this is done in about the time that launching it takes.
LAUNCH_POINTS = 1 << 16


class Scheduler:
    """One graph's scheduling; see the module's docstring for the passes."""

    def __init__(
        self,
        lowered: GraphLowering,
        given: Set[str] = frozenset(),
    ) -> None:
        self.lowered = lowered
        self.given = given
        self.buffers = lowered.buffers
        self.outputs = self._output_names()
        operations = drop_dead(lowered.operations, self.buffers, self.outputs)
        dependencies = Dependencies(operations, self.buffers)
        self.groups = [
            Group(
                position,
                [operation],
                1 << position,
                dependencies.ancestors[position],
                dependencies.descendants[position],
                operation.body if isinstance(operation, ComputedOp) else None,
                reads=operation.reads(),
                writes=writes_of(operation),
            )
            for position, operation in enumerate(operations)
        ]
        self._group_at = list(self.groups)  # by an operation's position
        self.touching: dict[str, list[Group]] = defaultdict(list)
        for group in self.groups:
            for name in group.reads | group.writes:
                self.touching[name].append(group)
        self.score = FusionScore(self.buffers, self.groups, self.touching)
        # Names of operations of two groups that `_try` kept apart, and the reason.
        self.refused: list[tuple[str, str, str]] = []

    def run(self, kind: str = "") -> list[Kernel | ExternOp]:
        self.fuse()
        self.fuse_siblings()
        notes = self.recompute()
        done = [(group, step) for group in self.order() for step in self.finish(group)]
        steps = with_reuse([step for _, step in done], self.buffers, self.outputs)
        if events.wants(events.ScheduleEvent):
            groups = [group for group, _ in done]
            described = [_described(step) for step in steps]
            apart = self._kept_apart(groups)
            events.emit(events.ScheduleEvent(kind, described, apart, notes=notes))
        return steps

    def _output_names(self) -> set[str]:
        """Buffers that outlive the graph: outputs, what they may be views of, written inputs."""
        names = set(self.lowered.written)
        for value in self.lowered.outputs:
            if isinstance(value, View):
                names.add(value.buffer.name)
                names |= {root.name for root in roots(value.buffer)}
        return names

    # -- fusion ------------------------------------------------------------------------------------
    def fuse(self) -> None:
        for group in self.groups:
            if group.body is None or not group.alive:
                continue
            while True:
                for other in self._neighbours(group):
                    joined = self._try(other, group)
                    if joined is not None:
                        group = joined
                        break
                else:
                    break

    def fuse_siblings(self) -> None:
        """Join groups that have nothing in common but their loops, where launches would dominate:
        an optimizer's steps for parameters of one size, the last steps of several reductions.
        """
        latest: dict[tuple[Any, ...], Group] = {}
        for group in self.groups:
            if not group.alive or group.body is None or not group.body.nodes:
                continue
            sizes = [s.size for s in (*group.body.iters, *group.body.reduces)]
            if group.body.reduces and all(isinstance(size, int) for size in sizes):
                continue  # beside each other they are faster: see codegen/triton_combine.py
            if not uses_triton(device_of(group)) or hint_of(product(sizes)) > LAUNCH_POINTS:  # type: ignore[arg-type]
                continue
            key = (place_of(group), len(group.body.reduces), *sizes)
            sibling = latest.get(key)
            joined = self._try(sibling, group) if sibling is not None else None
            latest[key] = joined or group

    def _neighbours(self, group: Group) -> list[Group]:
        """Groups with memory in common, those that save most first. Without those between which
        another has to run: of the steps of an unrolled loop that would be all pairs.
        """
        scores: dict[int, tuple[int, Group]] = {}
        for name in group.reads | group.writes:
            for other in self.touching[name]:
                if not other.alive or other.body is None or other is group:
                    continue
                if are_apart(other, group):
                    continue
                if other.position not in scores:
                    score = self.score.saved(other, group)
                    if score > 0:
                        scores[other.position] = (score, other)
        ranked = sorted(scores.values(), key=lambda item: (-item[0], -item[1].position))
        return [other for _, other in ranked]

    def _try(
        self,
        a: Group,
        b: Group,
    ) -> Group | None:
        """Join two groups if that is right and worth it; the earlier one survives."""
        first, second = (a, b) if a.position < b.position else (b, a)
        if second.members & first.ancestors:
            first, second = second, first
        body, reason = self.score.verdict(first, second)
        if events.wants(events.FusionEvent):
            events.emit(events.FusionEvent(first.name, second.name, body is not None, reason))
        if body is None:
            self.refused.append((first.operations[0].name, second.operations[0].name, reason))
            return None
        self._absorb(first, second, body)
        return first

    def _absorb(
        self,
        first: Group,
        second: Group,
        body: LoopBody,
    ) -> None:
        members = first.members | second.members
        before = first.ancestors ^ second.ancestors
        after = first.descendants ^ second.descendants
        first.ancestors = (first.ancestors | second.ancestors) & ~members
        first.descendants = (first.descendants | second.descendants) & ~members
        first.members, first.body = members, body
        # What came before or after both knows of all members.
        for group in self._groups_in(after & ~members):
            group.ancestors |= members | first.ancestors
        for group in self._groups_in(before & ~members):
            group.descendants |= members | first.descendants
        for position in bits(second.members):
            self._group_at[position] = first
        first.operations += second.operations
        first.position = min(first.position, second.position)
        first.reads = body.reads()
        first.writes |= second.writes
        second.alive = False
        for name in second.reads | second.writes:
            touching = self.touching[name]
            touching.remove(second)
            if first not in touching:
                touching.append(first)

    def _groups_in(self, mask: int) -> list[Group]:
        """The groups of the operations in a mask."""
        found = (self._group_at[position] for position in bits(mask))
        return list(dict.fromkeys(found))

    def recompute(self) -> list[str]:
        """Drop buffers whose elements are cheaper to compute again; see `recompute.py`."""
        overwritten = {
            root.name
            for group in self.groups
            for operation in group.operations
            for name in overwritten_by(operation)
            for root in roots(self.buffers[name])
        }
        return Recompute(
            self.groups,
            self.touching,
            self.score,
            self.outputs,
            overwritten,
        ).run()

    # -- order -------------------------------------------------------------------------------------
    def order(self) -> list[Group]:
        """Groups so that everything comes after what it needs; see `ordering.py`."""
        groups = sorted((g for g in self.groups if g.alive), key=lambda g: g.position)
        given = self.given - self.outputs
        steps = [
            Step(
                g.members,
                g.ancestors,
                self._held(g.reads),
                self._held(self._given(g)),
                any(isinstance(o, ExternOp) and is_wait(o.op) for o in g.operations),
                self._roots(g.reads) & given,
                self._roots(self._given(g)) & self.outputs,
            )
            for g in groups
        ]
        order = in_order(steps, self.score.nbytes)
        if given:
            order = put_off(steps, order, self.score.nbytes)
        return [groups[position] for position in order]

    def _roots(
        self,
        names: Iterable[str],
    ) -> frozenset[str]:
        return frozenset(root.name for name in names for root in roots(self.buffers[name]))

    def _given(self, group: Group) -> set[str]:
        """Buffers that a group fills for others."""
        if group.body is None:
            return group.writes
        return {name for name in self._needed_outside(group) if name is not None}

    def _held(self, names: Iterable[str]) -> frozenset[str]:
        """The memory behind buffers, without what outlives the graph anyway."""
        found = {root for name in names for root in roots(self.buffers[name])}
        return frozenset(
            root.name
            for root in found
            if root.kind in ("computed", "extern") and root.name not in self.outputs
        )

    def _kept_apart(self, groups: Sequence[Group]) -> list[tuple[int, int, str]]:
        """Positions in `groups` of neighbours that did not become one kernel, and why: what was
        refused last, or that one of them calls an operator.
        """
        at = {op.name: i for i, group in enumerate(groups) for op in group.operations}
        pairs: dict[tuple[int, int], str] = {}
        for first, second, reason in self.refused:
            if first in at and second in at and at[first] != at[second]:
                i, j = at[first], at[second]
                pairs[min(i, j), max(i, j)] = reason
        for i, group in enumerate(groups):
            for name in group.reads | group.writes:
                for other in self.touching[name]:
                    j = at.get(other.operations[0].name, i) if other.alive else i
                    if other.body is None or j == i or name not in other.writes | group.writes:
                        continue
                    both = min(i, j), max(i, j)
                    if group.body is None:
                        pairs[both] = "operators that are called run alone"
                    elif are_apart(group, other):
                        pairs.setdefault(both, APART)
        return [(*pair, reason) for pair, reason in sorted(pairs.items())]

    # -- kernels -----------------------------------------------------------------------------------
    def finish(self, group: Group) -> Iterator[Kernel | ExternOp]:
        if group.body is None:
            (operation,) = group.operations
            assert isinstance(operation, ExternOp)
            yield operation
            return
        needed = self._needed_outside(group)
        body = group.body.without_dead_nodes(lambda node: node.buffer in needed)
        if body.nodes and any(node.op in ("store", "scatter") for node in body.nodes):
            yield make_kernel(merge_loops(body), self.buffers, _origins(group.operations))

    def _needed_outside(self, group: Group) -> set[str | None]:
        needed: set[str | None] = set(group.writes & self.outputs)
        for name in group.writes:
            if any(
                other.alive and other is not group and name in other.reads
                for other in self.touching[name]
            ):
                needed.add(name)
        return needed


def _described(step: Kernel | ExternOp) -> events.Step:
    """A step as reports show it."""
    if isinstance(step, ExternOp):
        names = operators(step.origins) or [str(step.op)]
        return events.Step("call", names, source_lines(step.origins))
    spec = step.spec
    language = "triton" if uses_triton(spec.device) else "cpp"
    names, lines = operators(spec.origins), source_lines(spec.origins)
    return events.Step(language, names, lines, len(step.reuses))


def _origins(operations: Iterable[Operation]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for operation in operations for name in operation.origins))


def drop_dead(
    operations: Sequence[Operation],
    buffers: dict[str, Buffer],
    outputs: set[str],
) -> list[Operation]:
    """Without the operations whose results nobody reads."""
    wanted, kept = set(outputs), []
    for operation in reversed(operations):
        if is_effectful(operation) or writes_of(operation) & wanted:
            kept.append(operation)
            for name in operation.reads():
                wanted.add(name)
                wanted |= {root.name for root in roots(buffers[name])}
    return kept[::-1]


def make_kernel(
    body: LoopBody,
    buffers: dict[str, Buffer],
    origins: tuple[str, ...],
) -> Kernel:
    """The kernel for a finished body over named buffers."""
    read: dict[str, None] = {}
    written: dict[str, None] = {}
    for node in body.nodes:
        if node.buffer is not None:
            if node.op != "store":
                read[node.buffer] = None
            if node.op != "load":
                written[node.buffer] = None
    names = [*read, *(name for name in written if name not in read)]
    args = []
    for position, name in enumerate(names):
        role = "in" if name not in written else "inout" if name in read else "out"
        args.append(
            KernelArg(f"a{position}", buffers[name].dtype, _extent(buffers[name]), role)
        )
    renamed = body.rename_buffers(
        {name: arg.name for name, arg in zip(names, args, strict=True)}
    )
    used = tuple(buffers[name] for name in names)
    numbers: list[Any] = [node.index for node in body.nodes]
    numbers += [symbol.size for symbol in (*body.iters, *body.reduces)]
    numbers += [arg.numel for arg in args]
    sizes = tuple(sorted(size_symbols(numbers), key=lambda symbol: symbol.name))
    names_of = tuple(symbol.name for symbol in sizes)
    spec = KernelSpec(renamed, tuple(args), names_of, used[0].device.type, origins)
    return Kernel(spec, used, sizes)


def _extent(buffer: Buffer) -> IntLike:
    return buffer.extent()


def schedule(
    lowered: GraphLowering,
    kind: str = "",
    given: Set[str] = frozenset(),
) -> list[Kernel | ExternOp]:
    """The kernels and calls of a lowered graph, in running order. kind: what reports call it;
    given: inputs that nobody else holds.
    """
    return Scheduler(lowered, given).run(kind)
