"""Which operations must stay in order: reads and writes of buffers, aliases resolved.

`Dependencies(operations)` gives for each operation, as a bit mask over positions, everything that
must run before it (transitively). Several operations may write disjoint parts of one buffer
(`torch.cat`): they do not depend on each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch

from minidynamo.inductor.effects import has_effect
from minidynamo.inductor.ir import Buffer, ComputedOp, ExternOp, Operation


def roots(buffer: Buffer) -> list[Buffer]:
    """The buffers whose memory this one may be."""
    if not buffer.alias_of:
        return [buffer]
    return [root for base in buffer.alias_of for root in roots(base)]


def writes_of(operation: Operation) -> set[str]:
    """Buffers that an operation gives a value to."""
    if isinstance(operation, ComputedOp):
        return {buffer.name for buffer in operation.outputs}
    return {buffer.name for buffer in operation.output_buffers()} | set(operation.mutates)


def overwritten(operation: Operation) -> tuple[str, ...]:
    """Buffers that had a value before."""
    if isinstance(operation, ExternOp):
        return operation.mutates
    return tuple(buffer.name for buffer in operation.outputs if buffer.is_overwritten)


def is_effectful(operation: Operation) -> bool:
    """Operators that must run once and in order, also if nobody wants their results."""
    if not isinstance(operation, ExternOp):
        return False
    if operation.mutates:
        return True
    op = operation.op
    return not isinstance(op, torch._ops.OpOverload) or has_effect(op)


def bits(mask: int) -> list[int]:
    """Positions of the ones."""
    text = bin(mask)
    last = len(text) - 1
    found = []
    at = text.find("1", 2)
    while at >= 0:
        found.append(last - at)
        at = text.find("1", at + 1)
    return found


class Dependencies:
    """`ancestors[i]`, `descendants[i]`: masks of the operations that must come before and after
    operation i.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        buffers: Mapping[str, Buffer],
    ) -> None:
        self.ancestors: list[int] = []
        self._writers: dict[str, int] = defaultdict(int)
        self._readers: dict[str, int] = defaultdict(int)
        self._buffers = buffers
        given: list[list[int]] = []
        effects = 0
        for position, operation in enumerate(operations):
            direct = self._direct(operation)
            if is_effectful(operation):
                direct |= effects
                effects |= 1 << position
            given.append(bits(direct))
            self.ancestors.append(direct)
            for earlier in given[-1]:
                self.ancestors[-1] |= self.ancestors[earlier]
            self._record(operation, 1 << position)
        self.descendants = [0] * len(operations)
        for position in reversed(range(len(operations))):
            for earlier in given[position]:
                self.descendants[earlier] |= self.descendants[position] | 1 << position

    def _memory(self, name: str) -> list[str]:
        return [root.name for root in roots(self._buffers[name])]

    def _direct(self, operation: Operation) -> int:
        mask = 0
        for name in operation.reads():
            for root in (name, *self._memory(name)):
                mask |= self._writers[root]
        for name in overwritten(operation):
            for root in self._memory(name):
                mask |= self._writers[root] | self._readers[root]
        return mask

    def _record(
        self,
        operation: Operation,
        bit: int,
    ) -> None:
        for name in operation.reads():
            for root in self._memory(name):
                self._readers[root] |= bit
        for name in writes_of(operation):
            self._writers[name] |= bit
            if name in overwritten(operation):
                for root in self._memory(name):
                    self._writers[root] |= bit
