"""One training step of the architectures of model_zoo.py: gradients beside eager's.

    python benchmarks/model_training.py [--backend aot_eager] [--write FILE] [llama bert ...]
    python benchmarks/model_training.py --device cuda

The model is in training mode, dropout included: `fallback_random` lets it draw eager's numbers. The
loss is the mean square of the first result. An error is the largest difference of a gradient,
relative to the largest entry of eager's (of a gradient below 1e-4 of the model's largest one, to
that). Where it is large, the step is repeated in float64, since rounding alone makes such
differences where gradients cancel. A model whose two runs in eager differ draws numbers that no
seed decides (reformer seeds its layers from the system's entropy): its step is repeated with every
dropout probability zero.
"""

from __future__ import annotations

import argparse
import copy
import platform
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from common import table  # noqa: E402
from model_zoo import ZOO, build  # noqa: E402

import minidynamo  # noqa: E402
from minidynamo import events  # noqa: E402

Gradients = dict[str, torch.Tensor | None]
TOLERANCE = 1e-3
NEGLIGIBLE = 1e-4  # of the model's largest gradient: what is smaller is mostly rounding


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors of a model's output, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif hasattr(value, "values"):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)


def step(model: nn.Module, call: Any, inputs: dict[str, Any]) -> tuple[float, Gradients]:
    """Loss and gradients by name of one forward and backward from a fixed seed."""
    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(7)  # of transformers' masks of spectra
    outputs = tensors(call(**inputs))
    first = next(t for t in outputs if t.is_floating_point() and t.requires_grad)
    loss = first.float().square().mean()
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in model.named_parameters()}


def error(want: Gradients, got: Gradients) -> float:
    """The largest relative error; infinite where only one of the two has a gradient."""
    worst = 0.0
    largest = max((float(g.abs().max()) for g in want.values() if g is not None), default=0.0)
    for name, ours in got.items():
        eager = want[name]
        if eager is None or ours is None:
            # AOTAutograd gives zeros where eager gives nothing.
            zero = eager is None and (ours is None or not ours.any())
            worst = worst if zero else float("inf")
            continue
        difference = float((eager - ours).abs().max())
        if difference:
            worst = max(worst, difference / (float(eager.abs().max()) + NEGLIGIBLE * largest))
    return worst


def is_equal_in_float64(model: nn.Module, inputs: dict[str, Any], backend: str) -> bool:
    """Whether the step gives eager's gradients when all of it is in double precision."""
    wide = {
        key: value.double() if torch.is_tensor(value) and value.is_floating_point() else value
        for key, value in inputs.items()
    }
    return is_equal_step(model.double(), wide, backend)


def is_equal_without_dropout(model: nn.Module, inputs: dict[str, Any], backend: str) -> bool:
    """Whether the step gives eager's gradients when nothing is dropped."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and (name == "p" or "dropout" in name):
                setattr(module, name, 0.0)
    return is_equal_step(model, inputs, backend)


def is_equal_step(model: nn.Module, inputs: dict[str, Any], backend: str) -> bool:
    """Whether a step of a compiled copy of `model` gives eager's gradients."""
    ours = copy.deepcopy(model)
    _, want = step(model, model, inputs)
    minidynamo.reset()
    options = {"fallback_random": True} if backend == "inductor" else None
    _, got = step(ours, minidynamo.compile(ours, backend=backend, options=options), inputs)
    return error(want, got) <= TOLERANCE


def build_on(name: str, device: str) -> tuple[nn.Module, dict[str, Any]]:
    """A model of the zoo in training mode and its inputs, the same ones in every call."""
    torch.manual_seed(0)
    model, inputs = build(name)
    moved = {key: v.to(device) if torch.is_tensor(v) else v for key, v in inputs.items()}
    return model.train().to(device), moved


def measure(name: str, backend: str, device: str) -> list[str]:
    """A row: name, loss, error, graphs, breaks, verdict."""
    model, inputs = build_on(name, device)
    again, ours = copy.deepcopy(model), copy.deepcopy(model)
    loss, want = step(model, model, inputs)
    _, twice = step(again, again, inputs)
    minidynamo.reset()
    options = {"fallback_random": True} if backend == "inductor" else None
    graphs: list[Any] = []
    breaks: list[Any] = []
    with (
        events.subscribe(graphs.append, events.GraphEvent),
        events.subscribe(breaks.append, events.GraphBreakEvent),
    ):
        compiled = minidynamo.compile(ours, backend=backend, options=options)
        our_loss, got = step(ours, compiled, inputs)
    is_fixed, off = error(want, twice) <= TOLERANCE, error(want, got)
    is_equal = off <= TOLERANCE and abs(loss - our_loss) <= 1e-4 * (1 + abs(loss))
    verdict = "equal" if is_equal and is_fixed else "DIFFERENT"
    model, inputs = build_on(name, device)
    if not is_fixed:
        same = is_equal_without_dropout(model, inputs, backend)
        verdict = "equal without dropout" if same else "eager varies"
    elif not is_equal and is_equal_in_float64(model, inputs, backend):
        verdict = "equal in float64"
    return [name, f"{loss:.5f}", f"{off:.1e}", str(len(graphs)), str(len(breaks)), verdict]


def main() -> None:
    """Measure the models named, or all, and print or write the table; fails if one differs."""
    parser = argparse.ArgumentParser(description="gradients of compiled training steps")
    parser.add_argument("models", nargs="*", help="names of the zoo; all if none is given")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--write", type=Path, default=None, help="a Markdown file for the table"
    )
    options = parser.parse_args()
    rows = []
    for name in options.models or ZOO:
        try:
            rows.append(measure(name, options.backend, options.device))
        except Exception as failure:
            text = f"{type(failure).__name__}: {str(failure).splitlines()[0][:60]}"
            rows.append([name, "", "", "", "", text])
        print(*rows[-1], flush=True)
    header = ["model", "loss", "error of gradients", "graphs", "breaks", "gradients"]
    text = table(header, rows)
    good = sum(row[-1].startswith("equal") for row in rows)
    about = (
        f"{good} of {len(rows)} models; backend {options.backend}, {options.device}; "
        f"torch {torch.__version__}, "
        f"Python {platform.python_version()}, {platform.machine()}, {time.strftime('%Y-%m-%d')}"
    )
    print(text, about, sep="\n\n")
    if options.write is not None:
        title = "# A training step of models of transformers"
        body = "`benchmarks/model_training.py` compares one step's gradients with eager's."
        options.write.write_text(f"{title}\n\n{body}\n\n{about}\n\n```\n{text}\n```\n")
    if any(not row[-1].startswith("equal") for row in rows):
        sys.exit("some gradients differ")


if __name__ == "__main__":
    main()
