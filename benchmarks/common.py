"""What the benchmarks share: a timer that interleaves its subjects, and tables.

Absolute times drift with the machine's load and clock, so the subjects of a comparison take turns
in short rounds, and what is reported is the minimum and the median over the rounds and ratios of
them.
"""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = [
    "Timing",
    "compile_ahead",
    "device_name",
    "gpu_seconds",
    "interleaved",
    "is_in_part",
    "table",
    "write_page",
]

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Timing:
    """Seconds per call over the rounds of one subject."""

    rounds: tuple[float, ...]

    @property
    def best(self) -> float:
        """Seconds of the fastest round: what the code costs when nothing disturbs it."""
        return min(self.rounds)

    @property
    def median(self) -> float:
        """Seconds of the middle round."""
        return statistics.median(self.rounds)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _round(
    call: Callable[[], object], count: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    _synchronize()
    start = clock()
    for _ in range(count):
        call()
    _synchronize()
    return (clock() - start) / count


def interleaved(
    subjects: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 15,
    round_seconds: float = 0.05,
    warmup: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time every subject `rounds` times, taking turns; a round is as many calls as fill its time.

    Subjects are called without arguments and warmed up before; garbage is not collected meanwhile.
    `clock` gives seconds; `time.process_time` leaves out what other processes take of one thread.
    """
    counts = {}
    for name, call in subjects.items():
        for _ in range(warmup):
            call()
        counts[name] = max(1, int(round_seconds / max(_round(call, 1, clock), 1e-9)))
        counts[name] = max(
            1, int(round_seconds / max(_round(call, min(counts[name], 100), clock), 1e-9))
        )
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, call in subjects.items():
                seconds[name].append(_round(call, counts[name], clock))
    finally:
        if was_enabled:
            gc.enable()
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def gpu_seconds(call: Callable[[], object], calls: int = 20, rounds: int = 7) -> float:
    """What one call takes the GPU, the host's work left out: the median over rounds in which the
    GPU is kept waiting until its queue holds `calls` calls.
    """
    found = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(10_000_000)  # cycles: about five milliseconds
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / calls / 1000)
    return statistics.median(found)


def compile_ahead(arguments: Sequence[str], processes: int) -> None:
    """Runs this script in several processes, each with its `--compile-part`, to fill the caches."""
    commands = [
        [sys.executable, sys.argv[0], *arguments, "--compile-part", f"{part}/{processes}"]
        for part in range(processes)
    ]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    for process in running:
        process.wait()


def is_in_part(position: int, part: str) -> bool:
    """Whether that position is one of the part "3/8"; all are in the part ""."""
    if not part:
        return True
    number, parts = map(int, part.split("/"))
    return position % parts == number


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned text; the first column to the left, the others to the right."""
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for row in cells:
        left = row[0].ljust(widths[0])
        right = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([left, *right]).rstrip())
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines)


def device_name(device: str) -> str:
    """What the subjects run on: the GPU's name, or the CPU with its number of threads."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


def write_page(name: str, text: str) -> None:
    """A page of results in `benchmarks/results`."""
    path = RESULTS / f"{name}.md"
    path.write_text(text)
    print(f"written: {path}")
