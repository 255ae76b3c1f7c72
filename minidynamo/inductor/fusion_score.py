"""Which neighbours to fuse: what joining two groups of operations saves, and what forbids it.

    score = FusionScore(buffers, groups, touching)
    score.saved(first, second)       # bytes of memory traffic: more is tried first, 0 never
    score.verdict(first, second)     # (the loop nest of both, "") or (None, why not)

The terms of `saved`:

    2 x bytes   of each buffer that one group writes and the other reads: neither the store nor the
                load needs memory once they share a loop
    1 x bytes   of each buffer that both write elements of, never neighbours: the parts of complex
                numbers
    1 x bytes   of each buffer that both read: it is loaded once; on the CPU, if it is more than
                NUMBER bytes: what all steps of an optimizer read is no reason to join them, equal
                kernels are compiled once

Symbolic sizes count by their hints. `verdict` refuses, in this order:

    different devices
    more nodes than config.max_fusion_nodes, which the compiler spills; more buffers than
        MAX_BUFFERS, past which the hardware loses its streams
    two writers of one input: their order would be lost
    another group that needs one of them and is needed by the other
    no common loop nest (`fusion.join`)
    on the CPU, few long rows: a group inside of another's reduction has only the rows to share out
        among the threads (MIN_ROWS; a walk of SMALL_WORK elements needs no threads)
    on the CPU, elements laid out anew (a transposition) that are walked by rows more than once: the
        walks would each turn them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from minidynamo.inductor import config
from minidynamo.inductor.codegen.cpp_stages import (
    FIELDS,
    choose_vector_symbol,
    find_transposition,
)
from minidynamo.inductor.fusion import join
from minidynamo.inductor.ir import Buffer, ComputedOp, Operation
from minidynamo.inductor.loop_body import LoopBody, Node
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import product
from minidynamo.inductor.targets import uses_triton

NUMBER = 8
MAX_BUFFERS = 40
MIN_ROWS = 8
SMALL_WORK = 1 << 14


@dataclass(eq=False, slots=True)
class Group:
    """Operations that run together. `members`, `ancestors`, `descendants`: masks over operation
    positions, the last two of all that must run before and after.
    """

    position: int
    operations: list[Operation]
    members: int
    ancestors: int
    descendants: int
    body: LoopBody | None
    alive: bool = True
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    @property
    def name(
        self,
    ) -> str:
        return "+".join(op.name for op in self.operations)


def device_of(
    group: Group,
) -> str:
    """Type of the device that a group of loops runs on."""
    return place_of(group).type


def place_of(
    group: Group,
) -> torch.device:
    """The device that a group of loops runs on."""
    operation = group.operations[0]
    assert isinstance(operation, ComputedOp)
    return operation.outputs[0].device


APART = "another kernel has to run in between"


def are_apart(
    first: Group,
    second: Group,
) -> bool:
    """Whether something that needs one of them is needed by the other."""
    after, before = first.descendants & second.ancestors, second.descendants & first.ancestors
    return bool(after or before)


def _has_gaps(
    group: Group,
    buffer: str,
) -> bool:
    """Whether what a group stores there are not neighbours, but few elements apart."""
    if group.body is None:
        return False
    stores = [n for n in group.body.nodes if n.op == "store" and n.buffer == buffer]
    return bool(stores) and all(
        min(map(abs, _steps(node, group.body)), default=0) in range(2, FIELDS + 1)
        for node in stores
    )


def _steps(
    node: Node,
    body: LoopBody,
) -> list[int]:
    """How far apart in memory an element's neighbours along each loop are."""
    assert node.index is not None
    factors = [node.index.coeff(symbol) for symbol in body.iters]
    return [int(f.const) for f in factors if f is not None and f.is_const and f.const]


class FusionScore:
    """The judgement of pairs; `groups` and `touching` (groups by the buffers that they read or
    write) are the scheduler's own, and change as it joins.
    """

    def __init__(
        self,
        buffers: Mapping[str, Buffer],
        groups: Sequence[Group],
        touching: Mapping[str, list[Group]],
    ) -> None:
        self.buffers = buffers
        self.groups = groups
        self.touching = touching

    def saved(
        self,
        first: Group,
        second: Group,
    ) -> int:
        """Bytes of traffic that joining saves."""
        handed = (first.writes & second.reads) | (second.writes & first.reads)
        least = 0 if uses_triton(device_of(first)) else NUMBER
        shared = filter(least.__lt__, map(self.nbytes, first.reads & second.reads))
        woven = [
            b
            for b in first.writes & second.writes
            if _has_gaps(first, b) and _has_gaps(second, b)
        ]
        return 2 * sum(map(self.nbytes, handed)) + sum(shared) + sum(map(self.nbytes, woven))

    def nbytes(
        self,
        name: str,
    ) -> int:
        """Size of a buffer."""
        buffer = self.buffers[name]
        return hint_of(product(buffer.size)) * buffer.dtype.itemsize

    def verdict(
        self,
        first: Group,
        second: Group,
    ) -> tuple[LoopBody | None, str]:
        """The loop nest of both, `first` running first, or None and the reason."""
        assert first.body is not None and second.body is not None
        reason = self._refusal(first, second)
        if reason:
            return None, reason
        body = join(first.body, second.body)
        if body is None:
            return None, "no common loop nest"
        if self._starves_threads(first, second, body):
            return None, "the rows are too few to run in parallel"
        if self._turns_for_rows(first, second):
            return None, "rows that are walked several times are turned once"
        return body, ""

    def _refusal(
        self,
        first: Group,
        second: Group,
    ) -> str:
        assert first.body is not None and second.body is not None
        if place_of(first) != place_of(second):
            return "different devices"
        if len(first.body.nodes) + len(second.body.nodes) > config.max_fusion_nodes:
            return "the kernel would be too long"
        if len(first.reads | second.reads | first.writes | second.writes) > MAX_BUFFERS:
            return "the kernel would use too many buffers"
        if any(self.buffers[name].is_overwritten for name in first.writes & second.writes):
            return "both write to one tensor"
        if are_apart(first, second):
            return APART
        return ""

    def _starves_threads(
        self,
        first: Group,
        second: Group,
        body: LoopBody,
    ) -> bool:
        """Whether two walks over few long rows would be one: only rows of their own run in
        parallel inside a row.
        """
        assert first.body is not None and second.body is not None
        if not body.reduces or not first.writes & second.reads or device_of(first) != "cpu":
            return False
        rows = hint_of(product(s.size for s in body.iters))  # type: ignore[misc]
        length = hint_of(product(s.size for s in body.reduces))  # type: ignore[misc]
        if rows >= MIN_ROWS or rows * length <= SMALL_WORK:
            return False
        return first.body.has_reduction() and _walks(second.body, body)

    def _turns_for_rows(
        self,
        first: Group,
        second: Group,
    ) -> bool:
        """Whether `first` lays elements out anew that `second` reads by rows, more than once."""
        assert first.body is not None and second.body is not None
        if first.body.reduces or not second.body.reduces or device_of(first) != "cpu":
            return False
        if uses_triton("cpu") or not first.writes & second.reads:
            return False
        walks = sum(node.op == "reduction" for node in second.body.nodes)
        for name in first.writes & second.reads:
            others = (g for g in self.touching[name] if g is not first and g is not second)
            walks += sum(group.alive and name in group.reads for group in others)
        vector = choose_vector_symbol(first.body)
        if walks < 2 or vector is None:
            return False
        return find_transposition(first.body, vector) is not None


def _walks(
    body: LoopBody,
    merged: LoopBody,
) -> bool:
    """Whether `body`, once inside `merged`, does work for every element of the rows."""
    rows = product(s.size for s in merged.iters)  # type: ignore[misc]
    return bool(body.reduces) or product(s.size for s in body.iters) != rows  # type: ignore[misc]
