"""The fastest of a few tilings of a Triton kernel, by measurement (`config.max_autotune`).

    kernel = fastest(spec, name, device)

Each candidate runs alone, on tensors of zeros of the kernel's sizes (the sizes at hand, where they
are symbols), as one launch of a plan. What wins is kept on disk for the kernel and the GPU's model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidynamo import _C
from minidynamo.exc import TritonCompileError
from minidynamo.inductor.codegen.kernel import KernelSpec
from minidynamo.inductor.codegen.plan import Arg, Input, PlanBuilder, Ref, TritonLaunch
from minidynamo.inductor.codegen.triton import TritonKernel, codegen_triton
from minidynamo.inductor.codegen.triton_tile import tilings
from minidynamo.inductor.runtime.cache import content_key, store
from minidynamo.inductor.runtime.triton_launch import (
    compile_kernel,
    device_target,
    evaluate,
    triton_version,
)
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import Symbol, symbol_expr

ROUNDS, LAUNCHES = 5, 10
HELD = 500_000  # cycles of the GPU: about a quarter of a millisecond
log = logging.getLogger("minidynamo.inductor")


def candidates(spec: KernelSpec, name: str) -> list[TritonKernel]:
    """The kernel in each of its tilings, the one that the heuristics choose first."""
    found: dict[Any, TritonKernel] = {}
    for tiling in tilings(spec):
        kernel = codegen_triton(spec, name, tiling)
        key = kernel.source, tuple(kernel.blocks.items()), kernel.num_warps
        found.setdefault(key, kernel)
    return list(found.values())


def fastest(
    spec: KernelSpec, name: str, device: torch.device, sizes: Sequence[Symbol] = ()
) -> TritonKernel:
    """The candidate that takes least time on this GPU. sizes: the spec's size symbols.

    A candidate that does not compile or does not fit onto the GPU is left out; if that is all of
    them, the first is given.
    """
    kernels = candidates(spec, name)
    properties = torch.cuda.get_device_properties(device)
    texts = [f"{k.source} {k.blocks} {k.num_warps}" for k in kernels]
    hints = [hint_of(symbol_expr(size)) for size in sizes]
    key = content_key(triton_version(), properties.name, str(hints), spec.text, *texts)
    known = store().get("tuned", key)
    if known is not None and known.isdigit() and int(known) < len(kernels):
        return kernels[int(known)]
    times = [_time(kernel, spec, device, hints) for kernel in kernels]
    best = min(range(len(kernels)), key=times.__getitem__)
    store().put("tuned", key, str(best).encode())
    for kernel, time in zip(kernels, times, strict=True):
        log.debug("%s: %s, %s warps: %.4g ms", name, kernel.blocks, kernel.num_warps, time)
    return kernels[best]


def _time(
    kernel: TritonKernel, spec: KernelSpec, device: torch.device, hints: Sequence[int]
) -> float:
    """Milliseconds of a launch; infinite where it cannot be launched."""
    try:
        run, tensors = _launcher(kernel, spec, device, hints)
        return measure(lambda: run(*tensors))
    except (TritonCompileError, RuntimeError) as error:
        log.debug("%s in blocks of %s is left out: %s", kernel.name, kernel.blocks, error)
        return float("inf")


def _launcher(
    kernel: TritonKernel, spec: KernelSpec, device: torch.device, hints: Sequence[int]
) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """A plan of one launch, and tensors to call it with."""
    b = PlanBuilder()
    tensors: list[torch.Tensor] = []
    pointers: list[tuple[str, Arg]] = []
    for arg in spec.args:
        count = hint_of(arg.numel)
        tensors.append(torch.zeros(count, dtype=arg.dtype, device=device))
        dtype = str(arg.dtype).removeprefix("torch.")
        item = Input(arg.name, dtype=dtype, device=str(device), size=(count,), stride=(1,))
        pointers.append(("ptr", Ref(b.input(item))))
    aligned = range(len(spec.args))
    binary = compile_kernel(kernel, device_target(device), aligned)
    numbers: list[tuple[str, Arg]] = [("i64", hint) for hint in hints]
    nulls: list[tuple[str, Arg]] = [("null", None)] * binary.scratch
    grid = evaluate(kernel.grid, dict(zip(spec.sizes, hints, strict=True)))
    args = (*pointers, *numbers, *nulls)
    b.add(
        TritonLaunch(
            kernel.name,
            binary.function,
            str(binary.cubin),
            str(device),
            (grid, 1, 1),
            binary.num_warps,
            binary.shared,
            args,
            kernel.writes,
        )
    )
    return _C.PlanExecutor(b.finish(()).to_dict(), None, (), {}), tensors


def measure(launch: Callable[[], Any]) -> float:
    """Milliseconds of one launch: the least of a few rounds of launches one behind the other.

    They begin when all of them wait: short kernels would else take as long as the host does.
    """
    launch()
    best = float("inf")
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(HELD)
        start.record()
        for _ in range(LAUNCHES):
            launch()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / LAUNCHES)
    return best
