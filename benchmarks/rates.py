"""How fast kernels that only move memory run on a GPU, beside a copy and beside torch.compile.

    python benchmarks/rates.py [--mebibytes 512] [--ahead 14]

Times are the GPU's own (events around several launches), of tensors that its caches do not hold.
`copy` is the fraction of the rate of `torch.Tensor.copy_` from device to device (the goal is 0.9),
`ratio` the time by torch.compile's (the goal is 0.95). `--ahead 14` compiles everything first, in
that many processes.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from common import compile_ahead, gpu_seconds, is_in_part, table

import minidynamo

Made = tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]
LAUNCHES, ROUNDS = 10, 9


def cases(count: int) -> dict[str, Callable[[torch.dtype], Made]]:
    """Functions of about `count` elements, by name."""
    width = 4096
    rows = count // width

    def x(dtype: torch.dtype, *size: int) -> torch.Tensor:
        return torch.randn(size or (rows, width), device="cuda").to(dtype)

    return {
        "relu": lambda d: (torch.relu, (x(d),)),
        "add": lambda d: (torch.add, (x(d), x(d))),
        "add in place": lambda d: (lambda a, b: a.add_(b), (x(d), x(d))),
        "gelu": lambda d: (F.gelu, (x(d),)),
        "silu, product": lambda d: (lambda a, b: F.silu(a) * b, (x(d), x(d))),
        "to float32": lambda d: (lambda a: a.float() * 2, (x(d),)),
        "transposed": lambda d: (lambda a: a.t() + 1, (x(d),)),
        "sum of rows": lambda d: (lambda a: a.sum(-1), (x(d),)),
        "sum of columns": lambda d: (lambda a: a.sum(0), (x(d),)),
        "sum of all": lambda d: (torch.sum, (x(d),)),
        "largest of rows of 256": lambda d: (lambda a: a.amax(-1), (x(d, count // 256, 256),)),
        "softmax": lambda d: (lambda a: a.softmax(-1), (x(d),)),
        "softmax of 1024": lambda d: (lambda a: a.softmax(-1), (x(d, count // 1024, 1024),)),
        "softmax of 32768": lambda d: (lambda a: a.softmax(-1), (x(d, count // 32768, 32768),)),
        "layer norm": lambda d: (
            lambda a, w, b: F.layer_norm(a, (width,), w, b),
            (x(d), x(d, width), x(d, width)),
        ),
        "layer norm of 768": lambda d: (
            lambda a, w, b: F.layer_norm(a, (768,), w, b),
            (x(d, count // 768, 768), x(d, 768), x(d, 768)),
        ),
        "rms norm": lambda d: (lambda a, w: F.rms_norm(a, (width,), w), (x(d), x(d, width))),
    }


def nbytes(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=512, help="of the largest operand")
    parser.add_argument("--ahead", type=int, default=0, help="processes that compile first")
    parser.add_argument("--compile-part", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ahead:
        compile_ahead(["--mebibytes", str(options.mebibytes)], options.ahead)
    size = options.mebibytes << 20
    source = torch.empty(size // 4, device="cuda")
    target = torch.empty_like(source)
    rate = 2 * size / gpu_seconds(lambda: target.copy_(source), LAUNCHES, ROUNDS)
    print(f"copy: {rate / 1e12:.2f} TB/s on {torch.cuda.get_device_name()}", flush=True)
    lines, ratios = [], []
    for dtype in (torch.float32, torch.bfloat16):
        for position, (name, make) in enumerate(cases(size // dtype.itemsize).items()):
            if not is_in_part(position, options.compile_part):
                continue
            minidynamo.reset()
            torch._dynamo.reset()
            function, args = make(dtype)
            times = {}
            for compiler in (torch.compile, minidynamo.compile):
                compiled = compiler(function, dynamic=False)
                result = compiled(*args)
                if options.compile_part:
                    continue
                call = partial(compiled, *args)
                times[compiler] = gpu_seconds(call, LAUNCHES, ROUNDS)
            if options.compile_part:
                continue
            moved = nbytes(*args, result)
            ours, theirs = times[minidynamo.compile], times[torch.compile]
            ratios.append(ours / theirs)
            line = [f"{name}, {str(dtype)[6:]}", f"{ours * 1e6:.0f}", f"{theirs * 1e6:.0f}"]
            lines.append([*line, f"{ratios[-1]:.2f}", f"{moved / ours / rate:.2f}"])
            print("  ".join(lines[-1]), flush=True)
    if options.compile_part:
        return
    print(table(["case", "ours us", "torch us", "ratio", "copy"], lines))
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"geometric mean of the ratios: {mean:.3f}")


if __name__ == "__main__":
    main()
