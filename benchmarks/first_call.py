"""Seconds of the first call in a new process: with an empty disk cache, then with the full one.

    python benchmarks/first_call.py [--case pointwise] [--repeat 2] [--write]

Each call is a process of its own; torch is imported before the clock starts, the compiler is not.
torch.compile and minidynamo take turns, each with a cache folder of its own. The processor's time
of the process stands beside the wall clock's (without the C++ compiler's, a child). All of it takes
about five minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from common import device_name, table, write_page  # noqa: E402

PROGRAM = """
import sys, time
import torch
torch.manual_seed(0)
is_trained = sys.argv[2] == "training"
if sys.argv[2] == "pointwise":
    model, x = (lambda x: torch.relu(x * x + x).sin() * 0.5), torch.randn(8)
elif sys.argv[2] == "steps":
    w = torch.randn(32, 32) * 0.1
    def model(x):
        states = torch.zeros_like(x)
        for t in range(1, x.shape[1]):
            states[:, t] = torch.tanh(states[:, t - 1] @ w + x[:, t])
        return states
    x = torch.randn(4, 128, 32)
else:
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4 if is_trained else int(sys.argv[2]))
    model.train(is_trained).requires_grad_(is_trained)
    x = torch.randn(2, 16, 64)
start, cpu = time.perf_counter(), time.process_time()
with torch.set_grad_enabled(is_trained):
    if sys.argv[1] == "minidynamo":
        import minidynamo
        y = minidynamo.compile(model)(x)
    else:
        y = torch.compile(model)(x)
    if is_trained:
        y.square().mean().backward()
print(time.perf_counter() - start, time.process_time() - cpu)
"""
CASES = {
    "pointwise": "five pointwise operations",
    "steps": "a recurrence of 128 steps",
    "24": "24 transformer layers",
    "training": "a training step of 4 layers",
}
SUBJECTS = ("torch.compile", "minidynamo")


def first_call(subject: str, case: str, folder: str) -> tuple[float, float]:
    """Wall and processor seconds of one first call."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
        "MINIDYNAMO_CACHE_DIR": f"{folder}/minidynamo",
    }
    environment.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # as installed packages have their bytecode
    command = [sys.executable, "-c", PROGRAM, subject, case]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    wall, cpu = map(float, done.stdout.split()[-2:])
    return wall, cpu


def measure(case: str, repeat: int) -> list[list[str]]:
    """Rows of the table: medians for the empty and the full cache."""
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            for state in ("empty", "full"):
                for subject in SUBJECTS:
                    result = first_call(subject, case, folder)
                    times.setdefault((state, subject), []).append(result)
    rows = []
    for state in ("empty", "full"):
        middle = [
            [statistics.median(pair[i] for pair in times[state, subject]) for i in (0, 1)]
            for subject in SUBJECTS
        ]
        theirs, ours = middle
        cells = [f"{value:.2f}" for value in (*theirs, *ours, ours[0] / theirs[0])]
        rows.append([f"{CASES[case]}, {state} cache", *cells, f"{ours[1] / theirs[1]:.2f}"])
    return rows


def main(argv: list[str]) -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the page of results")
    options = parser.parse_args(argv)
    rows = [row for case in options.case or CASES for row in measure(case, options.repeat)]
    header = ["seconds", "torch", "its cpu", "ours", "our cpu", "ratio", "cpu ratio"]
    text = table(header, rows)
    print(text)
    if options.write:
        about = f"torch {torch.__version__}, {device_name('cpu')}, {options.repeat} repetitions"
        title = "# First calls in new processes"
        note = "Ratios: to torch.compile; cpu: processor's time of the process alone."
        write_page("first-call", f"{title}\n\n{about}. {note}\n\n```\n{text}\n```\n")


if __name__ == "__main__":
    main(sys.argv[1:])
