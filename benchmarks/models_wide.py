"""Models at sizes where computing matters: eager, torch.compile and minidynamo in turns.

    python benchmarks/models_wide.py [--train] [--rounds 7] [--write FILE] [bert llama ...]

The rows of model_zoo_wide.py in float32 on one thread, without gradients; `--train` takes a forward
and a backward in training mode instead (of dropout too, each compiler drawing numbers of its own).
First calls are in processor seconds, the C++ compiler's included, with empty caches on disk; later
calls are the least of the rounds, in which the three take turns, in processor milliseconds. A file
that is there keeps the rows of other models.
"""

from __future__ import annotations

import argparse
import copy
import logging
import math
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
from torch._dynamo.utils import counters

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from common import interleaved  # noqa: E402
from model_training import tensors  # noqa: E402
from model_zoo_wide import TRAINED, WIDE, build_wide  # noqa: E402
from models import versions  # noqa: E402
from models_inductor import empty_caches, error, processor_seconds  # noqa: E402

import minidynamo  # noqa: E402
from minidynamo import events  # noqa: E402

HEADER = """# Models beside torch.compile

Rows of benchmarks/model_zoo_wide.py (width 256, two to eight layers), float32 on one thread, by
`python benchmarks/models_wide.py [--train]`. Columns:

- graphs: of the first call, ours / torch.compile's; again: how many of ours a second call adds
- error, theirs: the largest difference from eager, relative to the largest entry
- first: processor seconds of the first call with empty caches, C++ compiler included, and the ratio
- call: processor milliseconds, and the ratio of ours to torch.compile's and to eager's
"""
COLUMNS = (
    "model|graphs|again|error|theirs|first|torch.compile's|ratio|call|torch.compile's|eager's"
    "|/ torch.compile|/ eager"
).split("|")
Step = Callable[[], Any]


def stepper(model: torch.nn.Module, call: Any, inputs: dict[str, Any], trains: bool) -> Step:
    """A function that does what is measured; returns the tensors to compare."""

    def infer() -> list[torch.Tensor]:
        return list(tensors(call(**inputs)))

    def train() -> list[torch.Tensor]:
        model.zero_grad()
        outputs = tensors(call(**inputs))
        first = next(t for t in outputs if t.is_floating_point() and t.requires_grad)
        loss = first.square().mean()
        loss.backward()
        return [loss.detach()]

    return train if trains else infer


def first_call(step: Step) -> tuple[list[torch.Tensor], float]:
    """Results of the first call and its seconds."""
    torch.manual_seed(1)
    start = processor_seconds()
    found = [value.clone() for value in step()]
    return found, processor_seconds() - start


def measure(name: str, trains: bool, rounds: int) -> list[str]:
    """A row of the table."""
    model, inputs = build_wide(name)
    model.train(trains)
    steps, found, seconds = {}, {}, {}
    graphs: list[Any] = []
    with (
        empty_caches(),
        events.subscribe(graphs.append, events.GraphEvent),
        torch.set_grad_enabled(trains),
    ):
        compilers = {
            "eager": lambda m: m,
            "torch.compile": torch.compile,
            "minidynamo": minidynamo.compile,
        }
        counters.clear()
        for subject, compiler in compilers.items():
            own = copy.deepcopy(model)
            steps[subject] = stepper(own, compiler(own), inputs, trains)
            found[subject], seconds[subject] = first_call(steps[subject])
        counts = [len(graphs), counters["stats"]["unique_graphs"]]
        steps["minidynamo"]()
        again = len(graphs) - counts[0]
        times = interleaved(steps, rounds=rounds, round_seconds=0.1, clock=time.process_time)
    calls = [times[s].best * 1e3 for s in ("minidynamo", "torch.compile", "eager")]
    firsts = [seconds[s] for s in ("minidynamo", "torch.compile")]
    errors = [
        "" if trains else f"{error(found['eager'], found[s]):.0e}"
        for s in ("minidynamo", "torch.compile")
    ]
    return [
        name,
        " / ".join(map(str, counts)),
        str(again),
        *errors,
        *(f"{value:.2f}" for value in (*firsts, firsts[0] / firsts[1], *calls)),
        f"{calls[0] / calls[1]:.2f}",
        f"{calls[0] / calls[2]:.2f}",
    ]


def earlier_rows(page: Path | None) -> dict[str, list[str]]:
    """The rows of a page by model."""
    if page is None or not page.exists():
        return {}
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row for row in rows if row[0].split(",")[0] in WIDE}


def report(rows: dict[str, list[str]]) -> str:
    """The page, in the order of the models, training steps last."""
    names = [*WIDE, *(f"{name}, training" for name in TRAINED)]
    ordered = [rows[name] for name in names if name in rows]
    lines = [COLUMNS, ["---"] * len(COLUMNS), *ordered]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    means = []
    for title, column in (("first calls", 7), ("calls", 11), ("calls to eager's", 12)):
        logs = [math.log(max(float(row[column]), 1e-3)) for row in ordered]
        means.append(f"{title} {math.exp(sum(logs) / len(logs)):.2f}")
    return f"{HEADER}\n{versions()} Geometric means: {', '.join(means)}.\n\n{text}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join(WIDE)}")
    parser.add_argument("--train", action="store_true", help="training steps")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", type=Path, help="the file that gets the table")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1
    rows = earlier_rows(arguments.write)
    for compiler in (minidynamo.compile, torch.compile):  # what only a first compilation takes
        compiler(lambda x: x.sin() + 1)(torch.ones(8))
    for name in arguments.models or (TRAINED if arguments.train else WIDE):
        row = measure(name, arguments.train, arguments.rounds)
        row[0] += ", training" if arguments.train else ""
        rows[row[0]] = row
        print("  ".join(row), flush=True)
        if arguments.write:
            arguments.write.write_text(report(rows))


if __name__ == "__main__":
    main()
