"""The order of what runs: the graph's, except that what frees memory comes first.

A step that is the last to read more bytes than it writes runs as soon as it can. Of steps that read
the same, one whose results are only the graph's goes before one that takes memory for others: the
gradient of a weight before the gradient that is passed on, which then may lie where what the first
one read was. Nothing comes between a collective and the wait for it, which may still read its
operands meanwhile.

In a backward pass the gradient of a weight comes later where it takes more memory than what it is
computed from, as with small batches: `put_off`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Among how many steps one is looked for that may run and frees memory.
LOOKAHEAD = 24
# How many bytes a step takes that is put off, and how many, and what part, less there have to be
# at the fullest moment.
LEAST_TAKEN, LEAST_SAVED, LEAST_PART = 1 << 16, 1 << 16, 32


@dataclass(frozen=True, slots=True)
class Step:
    """What ordering knows of a step: its place in the graph as a bit, the bits of what comes before
    it, and the memory that it reads and writes (inputs and results of the graph aside).

    given: inputs of the graph that it reads and that nobody else holds; results: of the graph.
    """

    members: int
    ancestors: int
    reads: frozenset[str]
    writes: frozenset[str]
    is_wait: bool = False
    given: frozenset[str] = frozenset()
    results: frozenset[str] = frozenset()


def in_order(
    steps: Sequence[Step],
    nbytes: Callable[[str], int],
) -> list[int]:
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


def _chosen(
    ready: Sequence[int],
    steps: Sequence[Step],
    gain: Callable[[Step], int],
) -> int:
    """Of the steps that may run now, which does."""
    first = steps[ready[0]]
    gains = [gain(steps[at]) for at in ready]
    if gains[0] >= 0:
        return ready[0]
    for at, bytes_freed in zip(ready, gains, strict=True):
        if bytes_freed > 0 or (bytes_freed == 0 and first.reads & steps[at].reads):
            return at
    return ready[0]


def put_off(
    steps: Sequence[Step],
    order: Sequence[int],
    nbytes: Callable[[str], int],
) -> list[int]:
    """The order with steps that only write results of the graph where they free more than they
    take, or at the end; `order` itself where the fullest moment is no emptier for it.
    """
    if any(step.is_wait for step in steps):
        return list(order)
    before = fullest(steps, order, nbytes)
    after = _put_off(steps, order, nbytes)
    saved = before - fullest(steps, after, nbytes)
    return after if saved > max(before // LEAST_PART, LEAST_SAVED) else list(order)


def fullest(
    steps: Sequence[Step],
    order: Sequence[int],
    nbytes: Callable[[str], int],
) -> int:
    """Bytes that are held at the fullest moment, those of `given` inputs among them."""
    readers = _Readers(steps, nbytes)
    held = sum(nbytes(name) for name in {name for step in steps for name in step.given})
    most = held
    for at in order:
        held += readers.taken(steps[at])
        most = max(most, held)
        held -= readers.freed(steps[at])
        readers.run(steps[at])
    return most


class _Readers:
    """Who has still to read what."""

    def __init__(
        self,
        steps: Sequence[Step],
        nbytes: Callable[[str], int],
    ) -> None:
        self._nbytes = nbytes
        self._counts: dict[str, int] = {}
        self._made: set[str] = set()
        for step in steps:
            for name in step.reads | step.given:
                self._counts[name] = self._counts.get(name, 0) + 1

    def taken(self, step: Step) -> int:
        return sum(map(self._nbytes, (step.writes | step.results) - self._made))

    def freed(self, step: Step) -> int:
        read = step.reads | step.given
        return sum(self._nbytes(name) for name in read if self._counts[name] == 1)

    def run(self, step: Step) -> set[str]:
        """What is left to a single reader."""
        self._made |= step.writes | step.results
        for name in step.reads | step.given:
            self._counts[name] -= 1
        return {name for name in step.reads | step.given if self._counts[name] == 1}


def _put_off(
    steps: Sequence[Step],
    order: Sequence[int],
    nbytes: Callable[[str], int],
) -> list[int]:
    readers = _Readers(steps, nbytes)
    waiting: list[int] = []
    result: list[int] = []

    def takes(at: int) -> int:
        return readers.taken(steps[at]) - readers.freed(steps[at])

    def run(at: int) -> None:
        result.append(at)
        single = readers.run(steps[at])
        for later in list(waiting):
            is_touched = single & (steps[later].reads | steps[later].given)
            if is_touched and later in waiting and takes(later) <= 0:
                waiting.remove(later)
                run(later)

    for at in order:
        for first in [other for other in waiting if steps[at].ancestors & steps[other].members]:
            if first in waiting:
                waiting.remove(first)
                run(first)
        if steps[at].results and not steps[at].writes and takes(at) > LEAST_TAKEN:
            waiting.append(at)
        else:
            run(at)
    while waiting:
        best = min(waiting, key=takes)
        waiting.remove(best)
        run(best)
    return result
