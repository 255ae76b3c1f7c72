"""Image networks of torchvision: time of the GPU, of a call and memory beside torch.compile's.

    python benchmarks/image_networks.py [NAME ...] [--batch N] [--size N] [--write]

Every network is measured in evaluation (float32, no gradients) and in one training step (forward
and backward pass under autocast to bfloat16). All networks are compiled at once, each in a process
of its own; then they are timed one after the other. `error` is that of the results, or of all
gradients together, beside eager's: norm of the difference by norm; torch.compile's follows.
"""

from __future__ import annotations

import argparse
import copy
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torchvision
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from common import device_name, gpu_seconds, interleaved, table, write_page  # noqa: E402
from training import peak_memory  # noqa: E402

import minidynamo  # noqa: E402

NETWORKS = (
    "resnet18",
    "resnet50",
    "mobilenet_v3_large",
    "efficientnet_b0",
    "densenet121",
    "convnext_tiny",
    "regnet_y_800mf",
    "vgg11_bn",
)
SUBJECTS = ("eager", "torch.compile", "minidynamo")
HEADER = ["network", "", "eager us", "torch us", "ours us", "/ torch", "calls / torch"]
HEADER += ["MiB / torch", "error", "torch's", "compiled in s", "torch's"]
Step = Callable[[], list[torch.Tensor]]


def compiled(model: nn.Module, subject: str) -> Callable[..., torch.Tensor]:
    """The model as the subject runs it."""
    if subject == "eager":
        return model
    return torch.compile(model) if subject == "torch.compile" else minidynamo.compile(model)


def evaluation(model: nn.Module, call: Callable[..., torch.Tensor], x: torch.Tensor) -> Step:
    """One call without gradients; returns its result."""

    def step() -> list[torch.Tensor]:
        with torch.no_grad():
            return [call(x)]

    model.eval()
    return step


def training(model: nn.Module, call: Callable[..., torch.Tensor], x: torch.Tensor) -> Step:
    """Forward and backward pass; returns the gradients."""

    def step() -> list[torch.Tensor]:
        for p in model.parameters():
            p.grad = None
        with torch.autocast(x.device.type, torch.bfloat16):
            loss = call(x).float().square().mean()
        loss.backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    model.train()
    return step


def error(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Norm of all differences together by the norm of what is expected."""
    difference = sum(
        float((a - b).double().square().sum()) for a, b in zip(found, expected, strict=True)
    )
    return (difference / sum(float(b.double().square().sum()) for b in expected)) ** 0.5


def measure(name: str, device: str, batch: int, size: int) -> list[list[str]]:
    """Rows of the table; waits for a line of input between compiling and timing."""
    torch.manual_seed(0)
    original = getattr(torchvision.models, name)(weights=None)
    for module in original.modules():
        if isinstance(module, (nn.Dropout, torchvision.ops.StochasticDepth)):
            module.p = 0.0
    x = torch.randn(batch, 3, size, size, device=device)
    ready = []
    for what in (evaluation, training):
        steps, seconds, results = {}, {}, {}
        for subject in SUBJECTS:
            model = copy.deepcopy(original).to(device)
            steps[subject] = what(model, compiled(model, subject), x)
            start = time.perf_counter()
            results[subject] = [t.detach().clone() for t in steps[subject]()]
            seconds[subject] = time.perf_counter() - start
        errors = [error(results[s], results["eager"]) for s in reversed(SUBJECTS[1:])]
        ready.append((what.__name__, steps, seconds, errors))
    print("ready", flush=True)
    sys.stdin.readline()
    rows = []
    for kind, steps, seconds, errors in ready:
        for step in steps.values():
            step(), step()
        memory = {subject: peak_memory(step, device) for subject, step in steps.items()}
        calls = {s: t.median for s, t in interleaved(steps, rounds=5).items()}
        gpu = calls
        if device != "cpu":
            gpu = {s: gpu_seconds(step, calls=3, rounds=5) for s, step in steps.items()}
        ours, theirs = "minidynamo", "torch.compile"
        row = [name, kind, *(f"{gpu[s] * 1e6:.0f}" for s in SUBJECTS)]
        row += [f"{gpu[ours] / gpu[theirs]:.2f}", f"{calls[ours] / calls[theirs]:.2f}"]
        row += [f"{memory[ours] / max(memory[theirs], 1):.2f}", *(f"{e:.1e}" for e in errors)]
        rows.append([*row, f"{seconds[ours]:.1f}", f"{seconds[theirs]:.1f}"])
    return rows


def start(name: str, options: argparse.Namespace) -> subprocess.Popen[str]:
    """A process that compiles a network and waits."""
    arguments = ["--one", "--batch", str(options.batch), "--size", str(options.size)]
    return subprocess.Popen(
        [sys.executable, __file__, name, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def main() -> None:
    """Compile all in parallel, time them in turn and print, or write, the table."""
    parser = argparse.ArgumentParser(description="image networks beside torch.compile")
    parser.add_argument("names", nargs="*", default=NETWORKS, help="of torchvision.models")
    parser.add_argument("--batch", type=int, default=32, help="images in a batch")
    parser.add_argument("--size", type=int, default=224, help="height and width of an image")
    parser.add_argument("--write", action="store_true", help="write the page of results")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.one:
        for row in measure(options.names[0], device, options.batch, options.size):
            print("row", *row, sep="\t", flush=True)
        return
    processes = {name: start(name, options) for name in options.names}
    for process in processes.values():
        assert process.stdout is not None
        process.stdout.readline()
    rows, failed = [], []
    for name, process in processes.items():
        output, _ = process.communicate("go\n")
        found = [line.split("\t")[1:] for line in output.splitlines() if line[:4] == "row\t"]
        rows += found
        failed += [name] * (len(found) != 2 or process.returncode != 0)
        for row in found:
            print("  ".join(row), flush=True)
    text = table(HEADER, rows)
    about = (
        f"{device_name(device)}; torch {torch.__version__}, Python {platform.python_version()}, "
        f"{time.strftime('%Y-%m-%d')}; batches of {options.batch} images of {options.size}"
    )
    print(about, text, sep="\n\n")
    if options.write:
        page = f"# Image networks\n\n`benchmarks/image_networks.py` on {about}\n\n"
        write_page("image-networks", f"{page}```\n{text}\n```\n")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
