"""The order of what runs: the graph's, except that what frees memory comes first.

A step that is the last to read more bytes than it writes runs as soon as it can. Of steps that read
the same, one whose results are only the graph's goes before one that takes memory for others: the
gradient of a weight before the gradient that is passed on, which then may lie where what the first
one read was. Nothing comes between a collective and the wait for it, which may still read its
operands meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Among how many steps one is looked for that may run and frees memory.
LOOKAHEAD = 24


@dataclass(frozen=True, slots=True)
class Step:
    """What ordering knows of a step: its place in the graph as a bit, the bits of what comes before
    it, and the memory that it reads and writes (inputs and results of the graph aside).
    """

    members: int
    ancestors: int
    reads: frozenset[str]
    writes: frozenset[str]
    is_wait: bool = False


def in_order(steps: Sequence[Step], nbytes: Callable[[str], int]) -> list[int]:
    """Positions of `steps`, which are given in the graph's order, in the order to run them."""
    readers: dict[str, int] = {}
    for step in steps:
        for name in step.reads:
            readers[name] = readers.get(name, 0) + 1

    def gain(step: Step) -> int:
        freed = sum(nbytes(name) for name in step.reads if readers[name] == 1)
        return freed - sum(map(nbytes, step.writes))

    waiting = list(range(len(steps)))
    waits = [at for at in waiting if steps[at].is_wait]
    done, result = 0, []
    while waiting:
        near = [at for at in waits if not steps[at].ancestors & ~done][:1]
        near = near or [at for at in waiting[:LOOKAHEAD] if not steps[at].ancestors & ~done]
        ready = near or [next(at for at in waiting if not steps[at].ancestors & ~done)]
        chosen = _chosen(ready, steps, gain)
        waiting.remove(chosen)
        if steps[chosen].is_wait:
            waits.remove(chosen)
        done |= steps[chosen].members
        result.append(chosen)
        for name in steps[chosen].reads:
            readers[name] -= 1
    return result


def _chosen(ready: Sequence[int], steps: Sequence[Step], gain: Callable[[Step], int]) -> int:
    """Of the steps that may run now, which does."""
    first = steps[ready[0]]
    gains = [gain(steps[at]) for at in ready]
    if gains[0] >= 0:
        return ready[0]
    for at, bytes_freed in zip(ready, gains, strict=True):
        if bytes_freed > 0 or (bytes_freed == 0 and first.reads & steps[at].reads):
            return at
    return ready[0]
