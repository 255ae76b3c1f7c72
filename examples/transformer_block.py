"""The main job: a transformer block, captured whole, compiled, checked against eager and timed.

    python examples/transformer_block.py [--compare] [--device cpu] [--modes default ...]

Prints `explain()` of the block, the largest error of each mode against eager, and milliseconds per
call (fastest of interleaved rounds). `--compare` adds torch.compile in the same modes. The exit
status is not 0 when a result differs from eager by 1e-4 or more, or the capture is not one graph
without breaks.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from common import device_name, interleaved, table  # noqa: E402

import minidynamo  # noqa: E402

TOLERANCE = 1e-4


class TransformerBlock(nn.Module):
    """Self-attention and a feed-forward network, each with a residual and a LayerNorm after it.

    Takes and returns a float tensor of shape (batch, sequence, width).
    """

    def __init__(self, width: int = 512, heads: int = 8, hidden: int = 2048) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)
        )
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block applied to `x`."""
        attended, _ = self.attention(x, x, x, need_weights=False)
        x = self.norm1(x + attended)
        return self.norm2(x + self.feed_forward(x))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--compare", action="store_true", help="time torch.compile too")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--modes", nargs="+", default=list(minidynamo.list_mode_options()))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


def main() -> int:
    """Runs the job; returns the exit status."""
    args = arguments()
    torch.manual_seed(0)
    block = TransformerBlock().to(args.device).eval()
    x = torch.randn(args.batch, args.sequence, 512, device=args.device)
    status = 0
    with torch.no_grad():
        report = minidynamo.explain(block)(x)
        text, _, _ = str(report).partition("Out Guards:")
        print(f"{text}Out Guards: {len(report.out_guards)}\n")
        if report.graph_count != 1 or report.graph_break_count != 0:
            print("FAILED: the block is not captured as one graph without a break")
            status = 1
        subjects = {("eager", ""): block}
        for mode in args.modes:
            subjects["minidynamo", mode] = minidynamo.compile(block, mode=mode)
            if args.compare:
                subjects["torch.compile", mode] = torch.compile(block, mode=mode)
        expected = block(x)
        errors = {}
        for key, model in subjects.items():
            errors[key] = (model(x) - expected).abs().max().item()
        print_times(args, subjects, errors, x)
    worst = max(error for (who, _), error in errors.items() if who == "minidynamo")
    print(f"\nlargest error of minidynamo against eager: {worst:.2e}")
    if not worst < TOLERANCE:
        print(f"FAILED: the error is not below {TOLERANCE:g}")
        status = 1
    return status


def print_times(
    args: argparse.Namespace, subjects: dict, errors: dict, x: torch.Tensor
) -> None:
    """The table of milliseconds per call, speed-up over eager, and errors."""
    calls = {key: (lambda model=model: model(x)) for key, model in subjects.items()}
    timings = interleaved(calls, rounds=args.rounds, round_seconds=0.1)
    eager = timings["eager", ""].best
    rows = []
    for (who, mode), timing in timings.items():
        speedup = f"{eager / timing.best:.2f}x"
        milliseconds = f"{timing.best * 1e3:.3f}"
        rows.append((who, mode, milliseconds, speedup, f"{errors[who, mode]:.1e}"))
    print(f"input {tuple(x.shape)}, {device_name(args.device)}, torch {torch.__version__}\n")
    print(table(("", "mode", "ms", "speed-up", "max error"), rows))


if __name__ == "__main__":
    sys.exit(main())
