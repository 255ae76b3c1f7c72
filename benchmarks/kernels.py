"""Kernels one by one: eager, torch.compile and minidynamo on the same function, in one run.

    python benchmarks/kernels.py [--only softmax] [--threads 1 2] [--device cuda] [--write]

The subjects take turns in short rounds (`common.interleaved`). `ratio` is the median over the
rounds of minidynamo's time by torch.compile's in the same round, so that what disturbs the machine
disturbs both. `copy` is the rate at which arguments and results pass through memory, as a fraction
of what `torch.Tensor.copy_` of 64 MiB reaches (caches may make that more than 1). `error` is the
largest difference from the same function in float64, relative to the largest result.

`--threads 1 2` measures every case with one and with two threads; `--write` puts a table and a
plot for each number of threads into `benchmarks/results/`. So the results page is written by

    python benchmarks/kernels.py --threads 1 2 --write

on a machine with nothing else to do (all cases: about 25 minutes for each number of threads, nearly
all of it torch.compile's first calls). One thread is timed by the process' own time, which leaves
out what others take of the processor; several threads can only be timed by the wall clock.

On a GPU, `ratio` is of calls, most of which wait for the host; `gpu us` and `gpu ratio` are of what
the GPU did (`common.gpu_seconds`). `--ahead 14` fills the caches first, in that many processes;
`first call` is then of full caches.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import kernel_cases_models  # noqa: E402
import kernel_cases_operators  # noqa: E402
from common import (  # noqa: E402
    Timing,
    compile_ahead,
    device_name,
    gpu_seconds,
    interleaved,
    is_in_part,
    table,
)
from kernel_cases import CASES, Case, Make  # noqa: E402

import minidynamo  # noqa: E402

assert kernel_cases_models and kernel_cases_operators  # these enter their rows into CASES
RESULTS = ROOT / "benchmarks" / "results"
SUBJECTS = ("eager", "torch.compile", "minidynamo")
# Ratios that the project aims at.
TARGET_MEAN, TARGET_EACH = 0.95, 1.1
# On a machine that others use, the processor's time of one thread is what can be compared.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Result:
    """One case: seconds by subject, seconds of the first call, error by subject, bytes, and
    seconds of the GPU by subject.
    """

    name: str
    bound: str
    timings: dict[str, Timing]
    first_call: dict[str, float]
    error: dict[str, float]
    nbytes: int
    gpu: dict[str, float]

    def ratio(self, ours: str = "minidynamo", theirs: str = "torch.compile") -> float:
        """Median over the rounds of one subject's time by another's."""
        pairs = zip(self.timings[ours].rounds, self.timings[theirs].rounds, strict=True)
        return statistics.median(a / b for a, b in pairs)


@contextlib.contextmanager
def fresh_caches(keep: bool) -> Iterator[None]:
    """Empty disk caches for both compilers, so that first calls compile."""
    if keep:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/torch"
        os.environ["MINIDYNAMO_CACHE_DIR"] = f"{folder}/minidynamo"  # of other processes
        with minidynamo.config.patch(cache_dir=f"{folder}/minidynamo"):
            yield


def _doubled(value: Any) -> Any:
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floating else value


def _results_of(case: Case, run: Callable[..., Any], args: Any) -> list[torch.Tensor]:
    own = copy.deepcopy(args)
    result = run(*own)
    leaves = pytree.tree_leaves((result, own) if case.mutates else result)
    return [leaf.clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _error(results: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    worst = 0.0
    for got, reference in zip(results, wanted, strict=True):
        if not reference.is_floating_point():
            worst = max(worst, float((got != reference).sum()))
            continue
        finite = reference.isfinite()
        difference = (got.double() - reference)[finite].abs().max().item()
        scale = reference[finite].abs().max().item()
        worst = max(worst, difference / scale if scale else difference)
    return worst


def _nbytes(case: Case, args: Any, results: list[torch.Tensor]) -> int:
    tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    written = results if not case.mutates else results + tensors
    return sum(t.numel() * t.itemsize for t in (*tensors, *written)) - (
        sum(t.numel() * t.itemsize for t in tensors) if case.mutates else 0
    )


def measure(
    name: str, options: argparse.Namespace, clock: Callable[[], float] = time.perf_counter
) -> Result | None:
    """Compile and time one case; None where it is only to be compiled."""
    device = options.device
    case = CASES[name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    minidynamo.reset()
    function, args = case.make(Make(device))
    wide = (
        copy.deepcopy(function).double() if isinstance(function, torch.nn.Module) else function
    )
    compiled: dict[str, Callable[..., Any]] = {
        "eager": function,
        "torch.compile": torch.compile(function, dynamic=False),
        "minidynamo": minidynamo.compile(function, dynamic=False),
    }
    wanted = _results_of(case, wide, pytree.tree_map(_doubled, args))
    first_call, error = {}, {}
    for subject, run in compiled.items():
        own = copy.deepcopy(args)
        start = time.perf_counter()
        run(*own)
        first_call[subject] = time.perf_counter() - start
        results = _results_of(case, run, args)
        error[subject] = _error(results, wanted)
    if options.compile_part:
        return None
    calls = {subject: _bound(run, args) for subject, run in compiled.items()}
    timings = interleaved(
        calls,
        rounds=options.rounds,
        round_seconds=options.seconds,
        clock=clock,
    )
    is_cuda = device.startswith("cuda")
    gpu = {subject: gpu_seconds(call) for subject, call in calls.items() if is_cuda}
    moved = _nbytes(case, args, results)
    return Result(name, case.bound, timings, first_call, error, moved, gpu)


def _bound(run: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], object]:
    own = copy.deepcopy(args)
    return lambda: run(*own)


def copy_rate(device: str) -> float:
    """Bytes per second that a copy of 64 MiB (on a GPU 1 GiB: more than its caches) reads and
    writes.
    """
    source = torch.empty(1 << (28 if device.startswith("cuda") else 24), device=device)
    target = torch.empty_like(source)
    timing = interleaved({"copy": lambda: target.copy_(source)}, rounds=9, round_seconds=0.05)
    return 2 * source.numel() * source.itemsize / timing["copy"].best


def geometric_mean(values: list[float]) -> float:
    """exp of the mean logarithm."""
    return math.exp(sum(map(math.log, values)) / len(values))


def row(result: Result, rate: float) -> list[str]:
    """A line of the table."""
    times = [f"{result.timings[s].median * 1e6:,.0f}" for s in SUBJECTS]
    ours, eager = result.error["minidynamo"], result.error["eager"]
    compile_ratio = result.first_call["minidynamo"] / result.first_call["torch.compile"]
    cells = [
        result.name,
        *times,
        f"{result.ratio():.2f}",
        f"{result.ratio('minidynamo', 'eager'):.2f}",
        f"{result.nbytes / result.timings['minidynamo'].median / rate:.2f}",
        f"{ours:.1e}",
        f"{eager:.1e}",
        f"{compile_ratio:.2f}",
    ]
    if result.gpu:
        cells += [f"{result.gpu[s] * 1e6:.1f}" for s in SUBJECTS]
        cells.append(f"{result.gpu['minidynamo'] / result.gpu['torch.compile']:.2f}")
    return cells


HEADER = ["case", "eager us", "torch us", "ours us", "ratio", "by eager", "copy"]
HEADER += ["error", "eager's", "first call"]
GPU_HEADER = ["gpu us, eager", "torch", "ours", "gpu ratio"]


def summary(results: list[Result]) -> str:
    """Geometric means, and which cases miss the targets."""
    ratios = {result.name: result.ratio() for result in results}
    by_eager = geometric_mean([r.ratio("minidynamo", "eager") for r in results])
    torch_by_eager = geometric_mean([r.ratio("torch.compile", "eager") for r in results])
    compiling = geometric_mean(
        [r.first_call["minidynamo"] / r.first_call["torch.compile"] for r in results]
    )
    late = [f"{name} ({value:.2f})" for name, value in ratios.items() if value > TARGET_EACH]
    on_gpu = []
    if results[0].gpu:
        gpu = {r.name: r.gpu["minidynamo"] / r.gpu["torch.compile"] for r in results}
        slow = [f"{name} ({value:.2f})" for name, value in gpu.items() if value > TARGET_EACH]
        on_gpu = [
            f"time on the GPU / torch.compile's {geometric_mean(list(gpu.values())):.3f};"
            f" above {TARGET_EACH}: {', '.join(slow) or 'none'}"
        ]
    return "\n".join(
        [
            f"{len(results)} cases; geometric means:",
            f"  minidynamo / torch.compile  {geometric_mean(list(ratios.values())):.3f}"
            f"  (target {TARGET_MEAN})",
            f"  minidynamo / eager          {by_eager:.3f}",
            f"  torch.compile / eager       {torch_by_eager:.3f}",
            f"  first call / torch.compile  {compiling:.3f}",
            f"above {TARGET_EACH}: {', '.join(late) or 'none'}",
            *on_gpu,
        ]
    )


def plot(results: list[Result]) -> str:
    """Ratios to torch.compile as bars, an SVG without any library."""
    left, height, scale = 260, 16, 240
    bottom = len(results) * height + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + 2 * scale + 60}"'
        f' height="{bottom}" font-family="sans-serif" font-size="11">'
        '<rect width="100%" height="100%" fill="white"/>'
    ]
    for position, result in enumerate(sorted(results, key=Result.ratio)):
        y, ratio = 20 + position * height, result.ratio()
        colour = "#c44" if ratio > TARGET_EACH else "#999" if ratio > 1 else "#385"
        width = min(ratio, 2) * scale
        parts.append(
            f'<text x="{left - 6}" y="{y + 11}" text-anchor="end">{result.name}</text>'
        )
        parts.append(
            f'<rect x="{left}" y="{y + 2}" width="{width:.0f}" height="{height - 4}"'
            f' fill="{colour}"/><text x="{left + width + 4:.0f}" y="{y + 11}">{ratio:.2f}</text>'
        )
    parts.append(
        f'<line x1="{left + scale}" x2="{left + scale}" y1="16" y2="{bottom - 12}"'
        f' stroke="black"/><text x="{left + scale}" y="12" text-anchor="middle">'
        "time of torch.compile</text></svg>"
    )
    return "\n".join(parts) + "\n"


def _clock(options: argparse.Namespace, threads: int) -> str:
    """The name of the clock that times this many threads."""
    if options.clock != "auto":
        return str(options.clock)
    return "cpu" if threads == 1 and options.device == "cpu" else "wall"


def _kind(options: argparse.Namespace) -> str:
    """What the page is named after: CPUs without AVX-512 have one of their own."""
    if options.device.startswith("cuda"):
        return "cuda"
    capability = torch.backends.cpu.get_cpu_capability().lower()
    return "cpu" if capability.startswith("avx512") else f"cpu-{capability}"


def _plot_path(kind: str, threads: int) -> Path:
    return RESULTS / f"kernels-{kind}{'' if threads == 1 else f'-{threads}'}.svg"


def page(results: dict[int, list[Result]], rate: float, options: argparse.Namespace) -> str:
    """The results as a page: a section for each number of threads."""
    name = device_name(options.device).partition(",")[0]
    kind = _kind(options)
    where = name + kind.removeprefix("cpu").replace("-", ", ") if name == "CPU" else name
    names = HEADER + GPU_HEADER * (kind == "cuda")
    header = "| " + " | ".join(names) + " |"
    rule = "| --- |" + " ---: |" * (len(names) - 1)
    lines = [
        f"# Kernels: {where}, torch {torch.__version__}",
        "",
        "Written by `python benchmarks/kernels.py --write`, whose docstring says what the columns",
        "are. Medians in microseconds; only ratios compare between machines.",
    ]
    for threads, some in results.items():
        clock = {"wall": "wall clock", "cpu": "processor time of the process"}
        cells = ["| " + " | ".join(row(result, rate)) + " |" for result in some]
        lines += ["", f"## {threads} thread{'s' * (threads > 1)}", ""]
        lines += [f"By the {clock[_clock(options, threads)]}.", ""]
        lines += ["```", summary(some), "```", ""]
        lines += [f"![ratios to torch.compile]({_plot_path(kind, threads).name})", ""]
        lines += [header, rule, *cells]
    notes = RESULTS / f"kernels-{kind}-notes.md"
    return "\n".join([*lines, "", notes.read_text() if notes.exists() else ""])


def run(options: argparse.Namespace, rate: float) -> dict[int, list[Result]]:
    """Measure what the options name; results by number of threads, printed as they come."""
    results: dict[int, list[Result]] = {}
    for threads in options.threads or [torch.get_num_threads()]:
        torch.set_num_threads(threads)
        some = results[threads] = []
        for position, name in enumerate(CASES):
            if options.only not in name or time.perf_counter() > options.end:
                continue
            if not is_in_part(position, options.compile_part):
                continue
            try:
                result = measure(name, options, CLOCKS[_clock(options, threads)])
            except Exception as error:  # the other cases are worth having
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                options.failed.append(name)
                continue
            if result is not None:
                some.append(result)
                print("  ".join(row(result, rate)), flush=True)
    return results


def main(argv: list[str]) -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="run cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=0.02, help="length of a round")
    clock_help = "auto: cpu (the process' time) for one thread on the CPU, else wall"
    parser.add_argument("--clock", choices=["auto", *CLOCKS], default="auto", help=clock_help)
    threads_help = "numbers of threads, one table for each (default: as torch has it)"
    parser.add_argument("--threads", type=int, nargs="*", default=[], help=threads_help)
    parser.add_argument(
        "--keep-caches", action="store_true", help="do not start with empty ones"
    )
    budget_help = "no case is begun after so many seconds"
    parser.add_argument("--budget", type=float, default=math.inf, help=budget_help)
    parser.add_argument("--write", action="store_true", help="write page and plots")
    ahead_help = "compile everything first, in so many processes"
    parser.add_argument("--ahead", type=int, default=0, help=ahead_help)
    parser.add_argument("--compile-part", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    with fresh_caches(options.keep_caches), torch.no_grad():
        if options.ahead:
            wanted = ["--keep-caches", "--only", options.only, "--device", options.device]
            compile_ahead(wanted, options.ahead)
        options.failed, options.end = [], time.perf_counter() + options.budget
        rate = 1.0 if options.compile_part else copy_rate(options.device)
        results = {k: some for k, some in run(options, rate).items() if some}
    for threads, some in results.items():
        print(f"\n{threads} thread{'s' * (threads > 1)}")
        names = HEADER + GPU_HEADER * bool(some[0].gpu)
        print(table(names, [row(result, rate) for result in some]))
        print(summary(some))
    if options.write:
        kind = _kind(options)
        (RESULTS / f"kernels-{kind}.md").write_text(page(results, rate, options))
        for threads, some in results.items():
            _plot_path(kind, threads).write_text(plot(some))
    if options.failed:
        sys.exit(f"failed: {', '.join(options.failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
