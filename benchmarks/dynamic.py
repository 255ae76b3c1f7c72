"""Decoders called with many lengths: how often they compile, and what it costs in all.

    python benchmarks/dynamic.py [--lengths 40] [--write]

Each subject gets the same inputs in a fresh process with empty caches; the time is that of all
calls, compilations included. A second pass over the same lengths measures the compiled code alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from common import device_name, table, write_page
from torch import nn

SUBJECTS = ("eager", "minidynamo", "torch.compile")
MODELS = ("gpt", "llama", "generate")


class Block(nn.Module):
    """Pre-norm attention and MLP, written out in elementary operations."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
        mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A small decoder of plain PyTorch: tokens (batch, length) int64 to logits."""

    def __init__(
        self, width: int = 128, heads: int = 4, layers: int = 4, words: int = 512
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def llama() -> nn.Module:
    """A small Llama of transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
    )
    return LlamaForCausalLM(config)


def compiler(subject: str):
    """(compile, number of graphs so far)"""
    if subject == "eager":
        return (lambda module: module), (lambda: 0)
    if subject == "minidynamo":
        import minidynamo
        from minidynamo import events

        graphs: list[object] = []
        events.subscribe(graphs.append, events.GraphEvent).__enter__()
        return minidynamo.compile, (lambda: len(graphs))
    from torch._dynamo.utils import counters

    return torch.compile, (lambda: counters["stats"]["unique_graphs"])


def measure(model: str, subject: str, lengths: int) -> dict[str, float]:
    """First pass, second pass (seconds), and graphs, of one subject on one model."""
    torch.manual_seed(0)
    compile_, graphs = compiler(subject)
    module = (GPT() if model == "gpt" else llama()).eval()
    sizes = [8 + 5 * i % 173 for i in range(lengths)]
    inputs = [torch.randint(0, 512, (2, size)) for size in sizes]
    if model == "generate":
        module.forward = compile_(module.forward)  # type: ignore[method-assign]
        prompts = [tokens[:, :12] for tokens in inputs[:3]]

        def run(tokens: torch.Tensor) -> object:
            return module.generate(tokens, max_new_tokens=lengths, do_sample=False)  # type: ignore[operator]
    else:
        prompts, compiled = inputs, compile_(module)

        def run(tokens: torch.Tensor) -> object:
            return compiled(tokens)

    times = []
    with torch.no_grad():
        for _ in range(2):
            start = time.perf_counter()
            for tokens in prompts:
                run(tokens)
            times.append(time.perf_counter() - start)
    return {"first": times[0], "second": times[1], "graphs": graphs()}


def in_new_process(model: str, subject: str, lengths: int) -> dict[str, float]:
    """`measure` with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(
            os.environ,
            MINIDYNAMO_CACHE_DIR=folder,
            TORCHINDUCTOR_CACHE_DIR=f"{folder}/torch",
        )
        arguments = [model, subject, str(lengths)]
        command = [sys.executable, __file__, "--one", *arguments]
        output = subprocess.run(command, env=environment, capture_output=True, text=True)
        if output.returncode:
            raise RuntimeError(output.stderr)
        return json.loads(output.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, default=40)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--write", action="store_true", help="write the page of results")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        model, subject, lengths = options.one
        print(json.dumps(measure(model, subject, int(lengths))))
        return
    lines = []
    for model in options.models:
        found = {s: in_new_process(model, s, options.lengths) for s in SUBJECTS}
        theirs = found["torch.compile"]
        for subject, row in found.items():
            lines.append(
                [
                    model,
                    subject,
                    str(int(row["graphs"])),
                    f"{row['first']:.2f} s",
                    f"{row['first'] / theirs['first']:.2f}",
                    f"{row['second'] * 1e3:.0f} ms",
                    f"{row['second'] / theirs['second']:.2f}",
                ]
            )
    head = ["model", "subject", "graphs", "first pass", "ratio", "second pass", "ratio"]
    text = table(head, lines)
    print(text)
    if options.write:
        machine = f"torch {torch.__version__}, {device_name('cpu')}"
        title = f"# benchmarks/dynamic.py: {options.lengths} lengths"
        page = f"{title}\n\n{machine}. Ratios: to torch.compile.\n\n```\n{text}\n```\n"
        write_page("dynamic-cpu", page)


if __name__ == "__main__":
    main()
