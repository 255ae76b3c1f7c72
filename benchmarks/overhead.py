"""What a call costs beside the kernels: eager, torch.compile and minidynamo in turns.

    python benchmarks/overhead.py [--rounds 15] [--no-torch-compile] [--device cuda] [--json FILE]

1. five pointwise operations on 8 elements, default backends
2. the same with a backend that returns a stored result: hook, guards and glue alone
3. an nn.Module with a stored result, by `compile(module)` and by `compile_(module)`
4. plain recursive Python functions that are not captured: outside of a region, and inside of one
5. the five operations with gradients: the forward pass alone, and with the backward pass

Microseconds per call: fastest and median round, and the ratios of the fastest to eager's and to
torch.compile's. One thread, no gradients but in the last group.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from common import Timing, interleaved, table  # noqa: E402

import minidynamo  # noqa: E402

Subjects = dict[str, Callable[[], object]]


def five_ops(x: torch.Tensor) -> torch.Tensor:
    """Five pointwise operations on `x`, of any shape."""
    return ((x * 2 + 1).sin() - 0.5).relu()


def stored_result(gm: torch.fx.GraphModule, example_inputs: list) -> Callable[..., object]:
    """A backend that computes nothing: the graph's result is the tensor made here."""
    result = (torch.zeros(8),)
    return lambda *_inputs: result


class FiveOps(torch.nn.Module):
    """`five_ops` as a module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See `five_ops`."""
        return five_ops(x)


def fib(n: int) -> int:
    """Python calls and nothing else."""
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def pointwise(backend: str | Callable, with_torch: bool, device: str = "cpu") -> Subjects:
    """The function in eager and compiled with `backend` by each compiler."""
    x = torch.randn(8, device=device)
    ours = minidynamo.compile(five_ops, backend=backend)
    subjects: Subjects = {"eager": lambda: five_ops(x), "minidynamo": lambda: ours(x)}
    if with_torch:
        theirs = torch.compile(five_ops, backend=backend)
        subjects["torch.compile"] = lambda: theirs(x)
    return subjects


def modules(with_torch: bool) -> Subjects:
    """A module whose graph costs nothing, compiled as a wrapper and in place."""
    x = torch.randn(8)
    eager, in_place = FiveOps(), FiveOps()
    ours = minidynamo.compile(FiveOps(), backend=stored_result)
    minidynamo.compile_(in_place, backend=stored_result)
    subjects: Subjects = {
        "eager": lambda: eager(x),
        "minidynamo": lambda: ours(x),
        "minidynamo, in place": lambda: in_place(x),
    }
    if with_torch:
        theirs = torch.compile(FiveOps(), backend=stored_result)
        subjects["torch.compile"] = lambda: theirs(x)
    return subjects


def unhooked() -> Subjects:
    """fib(12), 465 calls: by itself, and called in a region that does not capture it."""

    def call_fib() -> int:
        return fib(12)

    def inside() -> int:
        minidynamo.graph_break()
        return fib(12)

    def outside() -> int:
        return fib(12)

    compiled = minidynamo.compile(inside, backend="eager")
    disabled = minidynamo.disable(outside)
    return {
        "eager": call_fib,
        "minidynamo, inside a region": compiled,
        "minidynamo, disabled": disabled,
    }


def training(with_torch: bool, device: str, *, backward: bool) -> Subjects:
    """The five operations on a leaf with 8 elements."""
    x = torch.randn(8, device=device, requires_grad=True)
    ones = torch.ones(8, device=device)

    def step(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], object]:
        function(x).backward(ones)
        if backward:
            return lambda: torch.autograd.grad(function(x), x, ones)
        return lambda: function(x)

    subjects = {"eager": step(five_ops), "minidynamo": step(minidynamo.compile(five_ops))}
    if with_torch:
        subjects["torch.compile"] = step(torch.compile(five_ops))
    return subjects


def report(title: str, timings: dict[str, Timing]) -> str:
    """One table: microseconds and ratios."""
    eager = timings["eager"].best
    other = timings["torch.compile"].best if "torch.compile" in timings else None
    rows = []
    for name, timing in timings.items():
        to_other = f"{timing.best / other:.3f}" if other else "-"
        best, median = (f"{value * 1e6:.3f}" for value in (timing.best, timing.median))
        rows.append((name, best, median, f"{timing.best / eager:.3f}", to_other))
    header = ("", "best us", "median us", "to eager", "to torch.compile")
    return f"{title}\n{table(header, rows)}\n"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-torch-compile", action="store_true")
    parser.add_argument("--device", default="cpu", help="of the first group's tensors")
    parser.add_argument("--json", type=Path, help="write the rounds, in seconds, to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with_torch = not args.no_torch_compile
    groups: dict[str, Callable[[], Subjects]] = {
        "five pointwise ops, 8 elements": lambda: pointwise(
            "inductor", with_torch, args.device
        ),
        "the same, stored result": lambda: pointwise(stored_result, with_torch),
        "nn.Module, stored result": lambda: modules(with_torch),
        "fib(12), not captured": unhooked,
        "with gradients: the forward pass": lambda: training(
            with_torch, args.device, backward=False
        ),
        "with gradients: forward and backward": lambda: training(
            with_torch, args.device, backward=True
        ),
    }
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, one thread\n")
    results = {}
    for title, make in groups.items():
        with torch.set_grad_enabled("gradients" in title):
            timings = interleaved(make(), rounds=args.rounds)
            print(report(title, timings))
            results[title] = {name: timing.rounds for name, timing in timings.items()}
    if args.json:
        args.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
