"""`max_autotune` on the CPU: variants of a kernel are compiled, timed, and the fastest kept.

    tuning = tuned(spec, threads, header)       # for codegen_cpp

The variants are those of `cpp.Tuning`. They run on zeros, so only kernels whose time does not hang
on what they read are measured: none with computed positions. The usual variant stays unless another
is clearly faster.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

import torch

from minidynamo import events
from minidynamo.inductor.codegen.cpp import codegen_cpp
from minidynamo.inductor.codegen.cpp_tuning import USUAL, Tuning
from minidynamo.inductor.codegen.kernel import KernelSpec
from minidynamo.inductor.runtime.cpp_toolchain import compile_library
from minidynamo.inductor.timing import fastest_times

VARIANTS = (
    USUAL,
    Tuning(vector=1),
    Tuning(unroll=2),
    Tuning(unroll=8),
    Tuning(columns=2),
    Tuning(columns=8),
    Tuning(keeps_rows=False),
)
# A variant must take less than this share of the usual one's time.
CLEARLY = 0.97
# Kernels over fewer elements are not worth it; memory that measuring may take.
LEAST_ELEMENTS = 1 << 12
MOST_BYTES = 1 << 30


def tuned(spec: KernelSpec, threads: int, header: str) -> Tuning:
    """The fastest variant of a kernel on this machine. Raises what the compiler raises."""
    if not _is_measurable(spec):
        return USUAL
    sources: dict[str, Tuning] = {}
    for variant in VARIANTS:
        sources.setdefault(codegen_cpp(spec, "variant", threads, variant), variant)
    if len(sources) == 1:
        return USUAL
    names = {f"v{place}_{spec.key[:12]}": v for place, v in enumerate(sources.values())}
    texts = {name: codegen_cpp(spec, name, threads, v) for name, v in names.items()}
    library = ctypes.CDLL(str(compile_library(texts, header)))
    with events.timed("autotune"):
        seconds = fastest_times(_calls(spec, [getattr(library, name) for name in names]))
    best = min(range(len(seconds)), key=seconds.__getitem__)
    return list(names.values())[best] if seconds[best] < CLEARLY * seconds[0] else USUAL


def _is_measurable(spec: KernelSpec) -> bool:
    sizes = [arg.numel for arg in spec.args]
    numbers = [n for n in sizes if isinstance(n, int)]
    if spec.sizes or len(numbers) < len(sizes) or max(numbers) < LEAST_ELEMENTS:
        return False
    if (
        sum(n * arg.dtype.itemsize for n, arg in zip(numbers, spec.args, strict=True))
        > MOST_BYTES
    ):
        return False
    indices = [node.index for node in spec.body.nodes if node.index is not None]
    scatters = any(node.op == "scatter" for node in spec.body.nodes)
    return not scatters and not any(index.value_refs() for index in indices)


def _calls(spec: KernelSpec, functions: list[Callable[..., None]]) -> list[Callable[[], None]]:
    """Calls of the compiled variants on memory of their own."""
    memory = [torch.zeros(int(arg.numel), dtype=arg.dtype) for arg in spec.args]  # type: ignore[arg-type]
    pointers = (ctypes.c_void_p * len(memory))(*(tensor.data_ptr() for tensor in memory))
    sizes, failure = (ctypes.c_int64 * 1)(), (ctypes.c_int64 * 2)()

    def call(function: Callable[..., None], kept: list[torch.Tensor]) -> None:
        function(pointers, sizes, failure)

    return [partial(call, function, memory) for function in functions]
