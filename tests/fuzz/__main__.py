"""Long runs: `python tests/fuzz [--kind KIND] [--programs N] [--seed S] [--backend B]`.

`python`: statements and objects, under the `eager` backend. `tensors`: tensor operations, under the
default backend, with other sizes in later calls, writes and gradients. `triton`: the same, as
Triton's interpreter runs them. `views`: views, writes, aliases among arguments, grad modes.
`sizes`: arithmetic of sizes and numbers over six calls. `indexing`: reads and writes by indices.
`modules`: training steps of small networks. `dtypes`: exact arithmetic at the edges of mixed
dtypes. `reductions`: reductions, scans and norms over all layouts. `training`: networks with state,
trained, frozen, hooked and checkpointed in any order. All but the first three take `--backend
eager`, `aot_eager`, `fast` (scheduled, then run operator by operator) or `inductor`, and say how
many graphs they had. Prints the seed, and each failing program shrunk to few rows, with what
differs. Exits with 1 if any failed. The same seed gives the same programs.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["MINIDYNAMO_RAISE_INTERNAL_ERRORS"] = "1"

from script_runner import BACKENDS, graph_counts  # noqa: E402
from search import KINDS, search  # noqa: E402

BATCH = 500
MEMORY = 8 << 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/fuzz", description=__doc__)
    parser.add_argument(
        "--kind", choices=KINDS, default="python", help="what programs are made of"
    )
    parser.add_argument("--programs", type=int, default=5000, help="how many to run")
    parser.add_argument("--seed", type=int, default=None, help="a number; default: a new one")
    parser.add_argument(
        "--backend", choices=BACKENDS, help="of kinds that have a choice; default: fast"
    )
    options = parser.parse_args()
    if options.backend and options.kind in ("python", "tensors", "triton"):
        parser.error(f"--backend: {options.kind} has its own")
    if options.programs < 1:
        parser.error(f"--programs: at least 1, not {options.programs}")
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    # A program that fills memory ends with a MemoryError, and is not used.
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    failures = 0
    started = time.monotonic()
    for first in range(0, options.programs, BATCH):
        count = min(BATCH, options.programs - first)
        print(f"seed {seed + first}: {count} programs", flush=True)
        failure = search(seed + first, count, options.kind, options.backend)
        if failure is not None:
            failures += 1
            print(failure, flush=True)
    took = time.monotonic() - started
    if graph_counts:
        print(
            f"graphs a program: {statistics.mean(graph_counts):.1f}, most {max(graph_counts)}"
        )
    print(f"{options.programs} programs from seed {seed} in {took:.0f} s: {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
