"""Captures the architectures of model_zoo.py: results, graphs and the time that tracing takes,
beside torch.compile's.

    python benchmarks/models.py [--rounds 3] [--write docs/models.md] [bert llama ...]

Both compilers get the same random tiny models with a backend that runs the graph as it is, so the
first call's time is that of capturing. It is processor time of the calling thread, the least of the
rounds, in which the two take turns, each time on a new model with nothing compiled. `generate()` is
called with a compiled forward, with a dynamic and a static cache, and has to give eager's tokens.
"""

from __future__ import annotations

import argparse
import logging
import math
import platform
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import transformers

sys.path[:0] = [
    str(Path(__file__).resolve().parent),
    str(Path(__file__).resolve().parent.parent),
]

from model_zoo import ZOO, build  # noqa: E402

import minidynamo  # noqa: E402

HEADER = """# Models of transformers

Architectures of benchmarks/model_zoo.py with tiny random configurations, captured with a backend
that runs the graph as it is (`python benchmarks/models.py --write docs/models.md`). Columns:

- graphs: how many the first call gives, ours / torch.compile's; again: how many the second adds
- seconds: processor time of the first call, ours / torch.compile's, and the ratio
- equal: whether the results of both calls are eager's, bit for bit; "close": but for rounding,
  where a model takes another way when it is compiled
- generate: whether `generate()` with a compiled forward gives eager's tokens, and how many graphs
  it compiles, with a dynamic and with a static cache

torch.compile leaves a frame that breaks inside of a loop to eager, so fewer graphs of its may hold
less: in vilt its graphs have 152 operations, ours 201.
"""


@dataclass
class Counting:
    """A backend that runs graphs as they are and counts them."""

    graphs: int = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        return gm.forward


@dataclass
class Capture:
    """What capturing one model gave: seconds of the first call, graphs of both calls, results."""

    seconds: float
    graphs: int
    later: int
    results: list[Any] = field(default_factory=list)


def ours(model: torch.nn.Module, backend: Any) -> Any:
    return minidynamo.compile(model, backend=backend)


def theirs(model: torch.nn.Module, backend: Any) -> Any:
    return torch.compile(model, backend=backend)


def fresh() -> None:
    """Nothing compiled, for either of the two."""
    minidynamo.reset()
    torch._dynamo.reset()


def capture(name: str, compiler: Callable[..., Any]) -> Capture:
    """A new model's first two calls under `compiler`."""
    fresh()
    model, inputs = build(name)
    backend = Counting()
    compiled = compiler(model, backend)
    torch.manual_seed(1)
    start = time.thread_time()
    first = compiled(**inputs)
    seconds = time.thread_time() - start
    graphs = backend.graphs
    torch.manual_seed(1)
    second = compiled(**inputs)
    return Capture(seconds, graphs, backend.graphs - graphs, [first, second])


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors of a model's output, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors(item)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors(item)]
    return tensors(dict(vars(value))) if hasattr(value, "__dict__") else []


def is_equal(expected: Any, actual: Any) -> bool:
    """Whether two outputs hold the same tensors, bit for bit (NaN equals NaN)."""
    left, right = tensors(expected), tensors(actual)
    return len(left) == len(right) and all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(left, right, strict=True)
    )


def is_close(expected: Any, actual: Any) -> bool:
    """Whether two outputs hold the same tensors but for rounding."""
    left, right = tensors(expected), tensors(actual)
    return len(left) == len(right) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
        for a, b in zip(left, right, strict=True)
    )


def eager(name: str) -> list[Any]:
    """Two calls of a new model."""
    model, inputs = build(name)
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        results.append(model(**inputs))
    return results


def generate(name: str, cache: str) -> str:
    """Tokens of generate() with a compiled forward against eager's."""
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    if cache == "static":
        settings["cache_implementation"] = "static"
    model, inputs = build(name)
    inputs = {key: value for key, value in inputs.items() if key != "decoder_input_ids"}
    try:
        expected = model.generate(**inputs, **settings)
    except Exception:  # the architecture has no such cache
        return "-"
    minidynamo.reset()
    backend = Counting()
    model, _ = build(name)
    # generate() compiles by itself what has a static cache; here it is our turn.
    model.generation_config.disable_compile = True
    model.forward = minidynamo.compile(model.forward, backend=backend)
    actual = model.generate(**inputs, **settings)
    return f"{'equal' if torch.equal(expected, actual) else 'DIFFERS'}, {backend.graphs}"


def measure(name: str, rounds: int) -> tuple[list[str], float, bool]:
    """A row of the table, the ratio of the seconds, and whether it holds what it should."""
    expected = eager(name)
    mine, other = [], []
    for _ in range(rounds):
        mine.append(capture(name, ours))
        other.append(capture(name, theirs))
    a, b = min(mine, key=lambda c: c.seconds), min(other, key=lambda c: c.seconds)
    equal = all(is_equal(x, y) for x, y in zip(expected, a.results, strict=True))
    close = equal or all(is_close(x, y) for x, y in zip(expected, a.results, strict=True))
    tokens = "-"
    if ZOO[name].generates:
        tokens = "; ".join(generate(name, cache) for cache in ("dynamic", "static"))
    ratio = a.seconds / b.seconds
    row = [
        name,
        f"{a.graphs} / {b.graphs}",
        str(a.later),
        f"{a.seconds:.2f} / {b.seconds:.2f}",
        f"{ratio:.2f}",
        "yes" if equal else "close" if close else "NO",
        tokens,
    ]
    return row, ratio, close and a.graphs <= b.graphs and "DIFFERS" not in tokens


def versions() -> str:
    """What was measured, and when."""
    return (
        f"{time.strftime('%Y-%m-%d')}: CPython {platform.python_version()},"
        f" torch {torch.__version__}, transformers {transformers.__version__},"
        f" {platform.machine()}, one thread."
    )


def report(rows: list[list[str]], ratios: list[float]) -> str:
    """The page."""
    names = [
        "model",
        "graphs",
        "again",
        "seconds",
        "ratio",
        "equal",
        "generate (dynamic; static)",
    ]
    lines = [names, ["---"] * len(names), *rows]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    summary = f"{len(rows)} models; geometric mean of the ratios: {mean:.2f}."
    return f"{HEADER}\n{versions()} {summary}\n\n{table}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join(ZOO)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=Path, help="the file that gets the table")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rows, ratios = [], []
    with torch.no_grad():
        for compiler in (ours, theirs):
            capture("bert", compiler)
        for name in arguments.models or ZOO:
            if not hasattr(transformers, ZOO[name].model):
                continue
            row, ratio, holds = measure(name, arguments.rounds)
            rows.append(row)
            ratios.append(ratio)
            print("  ".join(row) + ("" if holds else "  <--"), flush=True)
    text = report(rows, ratios)
    print(text.split("\n\n")[1 if arguments.write else -2])
    if arguments.write:
        arguments.write.write_text(text)


if __name__ == "__main__":
    main()
