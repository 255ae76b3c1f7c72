"""What running a plan costs beside eager: small calls, many inputs, products, large outputs.

    python benchmarks/plan_overhead.py

Plans are written by hand here, so this measures the executor alone: no guards, no frame hook.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common import device_name, interleaved, table  # noqa: E402

from minidynamo import _C  # noqa: E402
from minidynamo.inductor.codegen.plan import (  # noqa: E402
    Extern,
    Input,
    Kernel,
    KernelCall,
    PlanBuilder,
    Ref,
)
from minidynamo.inductor.runtime.cpp_toolchain import compile_library  # noqa: E402

HEADER = "#include <cstdint>\n"
LOOP = """extern "C" void {name}(void** ptrs, const int64_t* sizes) {{
  const float* in = (const float*)ptrs[0];
  float* out = (float*)ptrs[1];
  {pragma}
  for (int64_t i = 0; i < sizes[0]; ++i) out[i] = in[i] * 2;
}}
"""
SERIAL = Kernel("scale", LOOP.format(name="scale", pragma=""))
PARALLEL = Kernel(
    "scale_all", LOOP.format(name="scale_all", pragma="#pragma omp parallel for simd")
)


def square(name: str, n: int) -> Input:
    """A contiguous n x n input."""
    return Input(name, size=(n, n), stride=(n, 1))


def scale(builder: PlanBuilder, source: int, n: int) -> int:
    """Add an allocation of n elements and the kernel that fills it; returns the new slot."""
    symbol = builder.kernel(PARALLEL if n > 20_000 else SERIAL)
    slot = builder.alloc((n,), (1,), "float32")
    builder.add(KernelCall(symbol, (source, slot), (n,), (slot,)))
    return slot


def executor(builder: PlanBuilder, *outputs: int) -> _C.PlanExecutor:
    """The finished plan, ready to run."""
    plan = builder.finish(tuple(map(Ref, outputs)))
    library = compile_library({kernel.symbol: kernel.source for kernel in plan.kernels}, HEADER)
    return _C.PlanExecutor(plan.to_dict(), str(library))


def chain(n: int, length: int) -> _C.PlanExecutor:
    """Kernels one after the other; all buffers but the last are planned."""
    builder = PlanBuilder()
    slot = builder.input(Input("x", size=(n,), stride=(1,)))
    for _ in range(length):
        slot = scale(builder, slot, n)
    return executor(builder, slot)


def many_inputs(count: int) -> _C.PlanExecutor:
    """One kernel, and inputs that are checked only."""
    builder = PlanBuilder()
    slots = [builder.input(square(f"x{index}", 8)) for index in range(count)]
    return executor(builder, scale(builder, slots[0], 64))


def product(n: int) -> _C.PlanExecutor:
    """A matrix product into planned memory, then a kernel."""
    builder = PlanBuilder()
    x, w = builder.input(square("x", n)), builder.input(square("w", n))
    out = builder.alloc((n, n), (n, 1), "float32")
    builder.add(Extern("aten::mm", "out", (Ref(x), Ref(w)), {"out": Ref(out)}, (None,)))
    return executor(builder, scale(builder, out, n * n))


def cases():
    """Pairs of callables: (what, plan, eager)."""
    x = torch.randn(8)
    for length in (1, 5):
        run = chain(8, length)

        def eager(length=length):
            out = x
            for _ in range(length):
                out = out * 2
            return out

        yield f"{length} kernel(s), 8 elements", lambda run=run: run(x), eager
    a = torch.randn(8, 8)
    inputs = [torch.randn(8, 8) for _ in range(288)]
    run = many_inputs(len(inputs))
    yield "1 kernel, 288 inputs", lambda run=run: run(*inputs), lambda: a * 2
    run = product(8)
    yield "8x8 product and a kernel", lambda run=run: run(a, a), lambda: (a @ a) * 2
    for megabytes in (1, 16, 64):
        large = torch.randn(megabytes << 18)
        run = chain(large.numel(), 1)
        yield (
            f"1 kernel, {megabytes} MiB",
            lambda run=run, x=large: run(x),
            lambda x=large: x * 2,
        )


def main() -> None:
    rows = []
    for what, run, eager in cases():
        timings = interleaved({"plan": run, "eager": eager}, rounds=15, round_seconds=0.02)
        plan, reference = timings["plan"].best, timings["eager"].best
        cells = [what, f"{plan * 1e6:.2f}", f"{reference * 1e6:.2f}", f"{plan / reference:.2f}"]
        rows.append(cells)
    print(f"torch {torch.__version__}, {device_name('cpu')}")
    print(table(["microseconds a call", "plan", "eager", "ratio"], rows))


if __name__ == "__main__":
    main()
