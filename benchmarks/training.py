"""Training steps: time and peak memory in eager, under torch.compile and under minidynamo.

    python benchmarks/training.py [--device cuda] [--only NAME] [--write]

A step is forward, loss, backward and the optimizer's step on one batch; model and
`optimizer.step` are compiled. Every subject trains a copy of its own; they take turns in one
process. Memory is the peak of what torch's allocator hands out during one step, over what it held
before. Three steps: the seconds until the third is done, with empty caches for both compilers.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from common import device_name, interleaved, table, write_page  # noqa: E402

import minidynamo  # noqa: E402
from minidynamo import _C  # noqa: E402

SUBJECTS = ("eager", "torch.compile", "minidynamo")


class Block(nn.Module):
    """A transformer block: attention, then a network of two layers; (batch, time, width)."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time_, width = x.shape
        parts = (
            self.qkv(self.norm1(x)).view(batch, time_, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        y = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(batch, time_, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """A small decoder: token and position embeddings, blocks, logits of tied weights."""

    def __init__(self, vocabulary: int, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = (
            nn.Embedding(vocabulary, width),
            nn.Embedding(length, width),
        )
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class Residual(nn.Module):
    """Two convolutions with batch norm and a shortcut, as in ResNet-18."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(given, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.shortcut = None
        if stride != 1 or given != width:
            conv = nn.Conv2d(given, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


def resnet() -> nn.Module:
    """The layers of ResNet-18, a quarter as wide, for small images."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
    ]
    width = 16
    for stage in range(4):
        wider = 16 * 2**stage
        layers += [Residual(width, wider, 1 if stage == 0 else 2), Residual(wider, wider, 1)]
        width = wider
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def mlp() -> nn.Module:
    """Four wide layers with normalisation and GELU."""
    layers: list[nn.Module] = []
    for given in (128, 512, 512, 512):
        layers += [nn.Linear(given, 512), nn.LayerNorm(512), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(512, 10))


@dataclass(frozen=True)
class Case:
    """model(batch) -> prediction; loss(prediction) -> scalar."""

    model: Callable[[], nn.Module]
    batch: Callable[[], torch.Tensor]
    loss: Callable[[torch.Tensor], torch.Tensor]


def _labels(prediction: torch.Tensor) -> torch.Tensor:
    flat = prediction.flatten(0, -2)
    target = torch.arange(flat.shape[0], device=flat.device) % flat.shape[1]
    return F.cross_entropy(flat, target)


CASES = {
    "transformer block": Case(
        lambda: Block(256, 4, dropout=0.1),
        lambda: torch.randn(4, 128, 256),
        lambda y: y.square().mean(),
    ),
    "small GPT": Case(
        lambda: GPT(1000, 128, 4, 128), lambda: torch.randint(0, 1000, (4, 128)), _labels
    ),
    "ResNet-18, narrow": Case(resnet, lambda: torch.randn(8, 3, 32, 32), _labels),
    "MLP": Case(mlp, lambda: torch.randn(128, 128), _labels),
}


def build(case: Case, subject: str, device: str) -> Callable[[], float]:
    """One training step of a fresh copy; returns the loss."""
    torch.manual_seed(0)
    model, batch = case.model().to(device), case.batch().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compilers = {"eager": lambda f: f, "torch.compile": torch.compile}
    compiler = compilers.get(subject, minidynamo.compile)
    forward, update = compiler(model), compiler(optimizer.step)

    def step() -> float:
        loss = case.loss(forward(batch))
        loss.backward()
        update()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def peak_memory(step: Callable[[], float], device: str) -> int:
    """Bytes that one step takes at most, beyond what was taken before."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() - before
    # What minidynamo keeps for its next call would not be seen.
    kept = _C.plan_memory_limit(0)
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            step()
    finally:
        _C.plan_memory_limit(kept)
    held = peak = 0
    for event in recorded.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def measure(name: str, device: str, rounds: int) -> tuple[list[str], list[float]]:
    """A row of the table; the ratios to torch.compile and eager (time), torch.compile (memory)."""
    steps, first = {}, {}
    for subject in SUBJECTS:
        steps[subject] = build(CASES[name], subject, device)
        start = time.perf_counter()
        losses = [steps[subject]() for _ in range(3)]
        first[subject] = time.perf_counter() - start
        print(f"  {name}, {subject}: losses {losses}", file=sys.stderr)
    times = {
        k: t.median for k, t in interleaved(steps, rounds=rounds, round_seconds=0.2).items()
    }
    memory = {subject: peak_memory(step, device) for subject, step in steps.items()}
    ours, theirs, eager = times["minidynamo"], times["torch.compile"], times["eager"]
    row = [name, *(f"{times[s] * 1e3:.1f}" for s in SUBJECTS), f"{ours / theirs:.2f}"]
    row += [f"{ours / eager:.2f}", *(f"{memory[s] / 2**20:.1f}" for s in SUBJECTS)]
    row += [f"{memory['minidynamo'] / memory['torch.compile']:.2f}"]
    row += [f"{first['minidynamo']:.1f}", f"{first['torch.compile']:.1f}"]
    return row, [ours / theirs, ours / eager, memory["minidynamo"] / memory["torch.compile"]]


def main() -> None:
    """Measure all cases and print, or write, the table."""
    parser = argparse.ArgumentParser(description="time and memory of training steps")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=CASES, default=None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="write the page of results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, minidynamo.config.patch(cache_dir=folder):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/torch"
        measured = [
            measure(name, options.device, options.rounds)
            for name in CASES
            if options.only in (None, name)
        ]
    header = ["case", *(f"{s}, ms" for s in SUBJECTS), "/ torch.compile", "/ eager"]
    header += [*(f"{s}, MiB" for s in SUBJECTS), "memory / torch.compile"]
    header += ["three steps, s", "torch.compile's, s"]
    text = table(header, [row for row, _ in measured])
    means = [
        math.exp(sum(math.log(ratios[i]) for _, ratios in measured) / len(measured))
        for i in range(3)
    ]
    summary = (
        f"Geometric means: time {means[0]:.2f}x torch.compile, {means[1]:.2f}x eager; "
        f"memory {means[2]:.2f}x torch.compile."
    )
    about = (
        f"{device_name(options.device)}; torch {torch.__version__}, "
        f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"
    )
    print(about, text, summary, sep="\n\n")
    if options.write:
        page = (
            f"# Training steps\n\n`benchmarks/training.py` on {about}\n\n```\n{text}\n```\n\n"
        )
        write_page(f"training-{options.device}", f"{page}{summary}\n")


if __name__ == "__main__":
    main()
