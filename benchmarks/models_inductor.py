"""The models of model_zoo.py under the default backend: errors, graphs, time to compile and call.

    python benchmarks/models_inductor.py [--torch] [--generate] [--write FILE] [bert llama ...]

Inference in float32 on one thread, with `fallback_random`: models may draw numbers. Errors are
relative to the largest entry of the same model's results in float64: ours beside eager's.
Seconds of compiling are processor time, the C++ compiler's included, with an empty cache on
disk; calls are the least of several, in processor time of the thread. `--torch` measures
torch.compile as well (ten times as long), `--generate` compares the tokens of `generate()` with
eager's. A file that is there keeps the rows of other models.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config

sys.path[:0] = [
    str(Path(__file__).resolve().parent),
    str(Path(__file__).resolve().parent.parent),
]

from model_zoo import ZOO, build  # noqa: E402
from models import fresh, tensors, versions  # noqa: E402

import minidynamo  # noqa: E402
from minidynamo import events  # noqa: E402

HEADER = """# Models of transformers under the default backend

Architectures of benchmarks/model_zoo.py with tiny random configurations, inference in float32, made
by `python benchmarks/models_inductor.py`. Columns:

- graphs of the first call
- error, eager's: the largest difference from the same model in float64 (empty: it has no such form;
  the error is then from eager), relative to the largest entry
- compile: processor seconds of the first call with an empty cache, C++ compiler included
- call: microseconds of processor time of a later call
- generate: whether `generate()` with a compiled forward gives eager's tokens, with a dynamic and
  with a static cache

Other empty cells were not measured. `-`: the model has nothing of the kind.
"""
COLUMNS = [
    "model",
    "graphs",
    "error",
    "eager's",
    "compile",
    "torch.compile's",
    "call",
    "torch.compile's",
    "eager's",
    "generate",
]


def processor_seconds() -> float:
    """Of this process and of those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


@contextlib.contextmanager
def empty_caches() -> Iterator[None]:
    """Nothing compiled, in memory or on disk."""
    fresh()
    with tempfile.TemporaryDirectory() as folder, minidynamo.config.patch(cache_dir=folder):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        yield


def results(call: Callable[..., Any], inputs: dict[str, Any]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [t.detach().clone() for t in tensors(call(**inputs))]


def microseconds(
    call: Callable[..., Any], inputs: dict[str, Any], budget: float = 0.2
) -> float:
    """The least of several calls."""
    best, start, count = float("inf"), time.thread_time(), 0
    while count < 3 or time.thread_time() - start < budget:
        before = time.thread_time()
        call(**inputs)
        best, count = min(best, time.thread_time() - before), count + 1
    return best * 1e6


def error(expected: list[torch.Tensor], found: list[torch.Tensor]) -> float:
    """The largest relative difference; infinite where shapes or infinities differ."""
    worst = 0.0
    for a, b in zip(expected, found, strict=True):
        if a.shape != b.shape or not torch.equal(a.isfinite(), b.isfinite()):
            return float("inf")
        if a.is_floating_point() and a.numel():
            a, b = (t.double().nan_to_num(0, 0, 0) for t in (a, b))
            worst = max(worst, float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)))
    return worst


def in_double(name: str) -> list[torch.Tensor] | None:
    """Results in float64; None where the model cannot be run so."""
    model, inputs = build(name)
    wide = {
        key: value.double() if value.is_floating_point() else value
        for key, value in inputs.items()
    }
    try:
        return results(model.double(), wide)
    except RuntimeError:  # some part of the model is float32 whatever its parameters are
        return None


def ours(model: Any) -> Any:
    """A model may draw numbers: eager's."""
    return minidynamo.compile(model, options={"fallback_random": True})


def compiled(
    name: str, compiler: Callable[[Any], Any]
) -> tuple[list[torch.Tensor], float, float]:
    """Results of the first call, its seconds, microseconds of a later one."""
    with empty_caches():
        model, inputs = build(name)
        call = compiler(model)
        start = processor_seconds()
        found = results(call, inputs)
        seconds = processor_seconds() - start
        return found, seconds, microseconds(call, inputs)


def generate(name: str, cache: str) -> str:
    """Tokens of generate() with a compiled forward against eager's."""
    settings: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    if cache == "static":
        settings["cache_implementation"] = "static"
    model, inputs = build(name)
    inputs = {key: value for key, value in inputs.items() if key != "decoder_input_ids"}
    # generate() compiles by itself what has a static cache; here it is our turn.
    model.generation_config.disable_compile = True
    try:
        expected = model.generate(**inputs, **settings)
    except Exception:  # the architecture has no such cache
        return "-"
    fresh()
    model, _ = build(name)
    model.generation_config.disable_compile = True
    model.forward = minidynamo.compile(model.forward)
    return "equal" if torch.equal(expected, model.generate(**inputs, **settings)) else "DIFFERS"


def measure(name: str, with_torch: bool, with_generate: bool) -> list[str]:
    """A row of the table."""
    model, inputs = build(name)
    expected, eager = results(model, inputs), microseconds(model, inputs)
    exact = in_double(name)
    graphs: list[Any] = []
    with events.subscribe(graphs.append, events.GraphEvent):
        found, seconds, call = compiled(name, ours)
    theirs = compiled(name, torch.compile)[1:] if with_torch else None
    tokens = ""
    if not ZOO[name].generates:
        tokens = "-"
    elif with_generate:
        tokens = ", ".join(generate(name, cache) for cache in ("dynamic", "static"))
    return [
        name,
        str(len(graphs)),
        f"{error(exact or expected, found):.0e}",
        f"{error(exact, expected):.0e}" if exact else "",
        f"{seconds:.2f}",
        f"{theirs[0]:.2f}" if theirs else "",
        f"{call:.0f}",
        f"{theirs[1]:.0f}" if theirs else "",
        f"{eager:.0f}",
        tokens,
    ]


def earlier_rows(page: Path | None) -> dict[str, list[str]]:
    """The rows of a page by model."""
    if page is None or not page.exists():
        return {}
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row for row in rows if row[0] in ZOO}


def report(rows: dict[str, list[str]]) -> str:
    """The page, in the order of the zoo."""
    ordered = [rows[name] for name in ZOO if name in rows]
    lines = [COLUMNS, ["---"] * len(COLUMNS), *ordered]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{HEADER}\n{versions()} {len(ordered)} models.\n\n{table}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="models under the default backend")
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join(ZOO)}")
    parser.add_argument("--torch", action="store_true", help="measure torch.compile too")
    parser.add_argument("--generate", action="store_true", help="compare generate()'s tokens")
    parser.add_argument("--write", type=Path, help="the file that gets the table")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.fallback_random = True
    rows = earlier_rows(arguments.write)
    with torch.no_grad():
        compiled("bert", ours)  # what only a process's first compilation takes
        if arguments.torch:
            compiled("bert", torch.compile)
        for name in arguments.models or ZOO:
            rows[name] = measure(name, arguments.torch, arguments.generate)
            print("  ".join(rows[name]), flush=True)
            if arguments.write:
                arguments.write.write_text(report(rows))


if __name__ == "__main__":
    main()
