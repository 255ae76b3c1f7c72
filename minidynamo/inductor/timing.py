"""Which of several functions is fastest, for decisions that are made by measuring."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

# Rounds, in which the functions take turns; seconds that each has in a round.
ROUNDS = 5
SECONDS = 0.001


def fastest_times(functions: Sequence[Callable[[], Any]]) -> list[float]:
    """Seconds of one call of each, the least of several rounds: what disturbs only adds."""
    counts = []
    for function in functions:
        function()
        counts.append(max(int(SECONDS / max(_seconds(function, 1), 1e-7)), 1))
    best = [float("inf")] * len(functions)
    for _ in range(ROUNDS):
        for place, (function, count) in enumerate(zip(functions, counts, strict=True)):
            best[place] = min(best[place], _seconds(function, count) / count)
    return best


def _seconds(function: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        function()
    return time.perf_counter() - start
