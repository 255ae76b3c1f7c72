"""Triton kernels in a plan: launches on a GPU, or for CPU tensors calls of Triton's interpreter.

Triton and its assembler compile several kernels at a time, beside the rest of the plan's assembly:
steps are made with what is known at once, and completed at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

import torch

from minidynamo.inductor import config, metrics
from minidynamo.inductor.codegen.kernel import KernelSpec
from minidynamo.inductor.codegen.plan_steps import (
    Arg,
    Expr,
    PyCall,
    Ref,
    Size,
    Slot,
    TritonLaunch,
)
from minidynamo.inductor.codegen.triton import TritonKernel, codegen_triton
from minidynamo.inductor.codegen.triton_combine import Launch, batches, joined, written_range
from minidynamo.inductor.ir import Buffer
from minidynamo.inductor.origins import operators
from minidynamo.inductor.runtime.compile_pool import submit
from minidynamo.inductor.runtime.triton_launch import (
    Binary,
    compile_kernel,
    device_target,
    interpreted,
    triton_version,
)
from minidynamo.inductor.runtime.triton_tune import fastest
from minidynamo.inductor.sizes import plan_size
from minidynamo.inductor.symbolic import Symbol, as_expr, product


class TritonSteps:
    """Makes one plan's steps for Triton kernels.

    Attributes:
        callables: what the executor has to be given for the interpreter's kernels, by their names.
        joined: texts of kernels that others were put together in, by their names.
        launched_inputs: names of the graph's inputs that kernels were compiled to find aligned.
    """

    def __init__(self) -> None:
        self.kernels: dict[str, TritonKernel] = {}
        self.joined: dict[str, str] = {}
        self.launches: dict[int, Launch] = {}
        self.callables: dict[str, Callable[..., None]] = {}
        self.launched_inputs: set[str] = set()

    def generate(
        self, spec: KernelSpec, symbol: str, device: torch.device, sizes: Sequence[Symbol] = ()
    ) -> str:
        """The kernel's source. sizes: the spec's size symbols."""
        if spec.device != "cpu" and config.max_autotune:
            kernel = fastest(spec, symbol, device, sizes)
        else:
            kernel = codegen_triton(spec, symbol)
        self.kernels[symbol] = kernel
        if spec.device == "cpu":
            self.callables[symbol] = interpreted(kernel)
        return kernel.source

    def step(
        self,
        spec: KernelSpec,
        symbol: str,
        slots: Sequence[Slot],
        buffers: Sequence[Buffer],
        misaligned: set[str],
        sizes: Sequence[Size] = (),
    ) -> PyCall | TritonLaunch:
        """The step that runs a generated kernel on these slots; `complete` has to see it.

        misaligned: names of buffers whose memory may begin anywhere. sizes: values of the spec's
        size symbols.

        Raises:
            TritonCompileError: Triton is missing.
        """
        kernel = self.kernels[symbol]
        origin = ", ".join(operators(spec.origins))
        if spec.device == "cpu":
            return PyCall(symbol, (*map(Ref, slots), *map(_number, sizes)), {}, (), origin)
        names = [buffer.name for buffer in buffers]
        aligned = tuple(i for i, name in enumerate(names) if name not in misaligned)
        self.launched_inputs.update(names[i] for i in aligned if buffers[i].kind == "input")
        triton_version()
        pointers = [("ptr", Ref(slot)) for slot in slots]
        numbers = [("i64", _number(size)) for size in sizes]
        step = TritonLaunch(
            symbol,
            kernel.name,
            "",
            str(buffers[0].device),
            (plan_size(kernel.grid), 1, 1),
            kernel.num_warps,
            0,
            (*pointers, *numbers),
            tuple(slots[position] for position in kernel.writes),
            origin,
        )
        points = as_expr(product(s.size for s in (*spec.iters, *spec.reduces) if s.size))
        known = points.const if points.is_const else None
        ranges = {slots[i]: written_range(spec.body, spec.args[i]) for i in kernel.writes}
        self.launches[id(step)] = Launch(step, kernel, aligned, known, ranges)
        return step

    def complete(self, steps: Sequence[Any]) -> list[Any]:
        """The steps with what compiling told about launches, small ones put together.

        Raises:
            TritonCompileError: Triton refused a kernel.
        """
        found: list[Any] = []
        for item in batches(steps, self.launches):
            found.append(self._together(item) if isinstance(item, list) else item)
        binaries: dict[tuple[Any, ...], Future[Binary]] = {}
        for launch in found:
            if isinstance(launch, Launch) and launch.compiled_as not in binaries:
                target = device_target(torch.device(launch.step.device))
                binaries[launch.compiled_as] = submit(
                    compile_kernel, launch.kernel, target, launch.aligned
                )
        wait(binaries.values())
        return [
            _completed(item.step, binaries[item.compiled_as].result())
            if isinstance(item, Launch)
            else item
            for item in found
        ]

    def _together(self, parts: Sequence[Launch]) -> Launch:
        """One launch that does what these do."""
        if len(parts) == 1:
            return parts[0]
        metrics.increment("kernel_calls", 1 - len(parts))
        kernel = joined([part.kernel for part in parts])
        self.joined[kernel.name] = kernel.source
        args: list[tuple[str, Arg]] = []
        aligned: list[int] = []
        for part in parts:
            aligned += [len(args) + position for position in part.aligned]
            args += part.step.args
        step = replace(
            parts[0].step,
            kernel=kernel.name,
            function=kernel.name,
            grid=(kernel.grid.const, 1, 1),
            num_warps=kernel.num_warps,
            args=tuple(args),
            writes=tuple(slot for part in parts for slot in part.step.writes),
            origin=", ".join(dict.fromkeys(part.step.origin for part in parts)),
        )
        return Launch(step, kernel, tuple(aligned))

    def aligned_inputs(self, inputs: Sequence[Buffer | None]) -> list[int]:
        """Positions of the inputs that have to be aligned when the plan runs."""
        return [
            position
            for position, buffer in enumerate(inputs)
            if buffer is not None and buffer.name in self.launched_inputs
        ]


def _completed(step: TritonLaunch, binary: Binary) -> TritonLaunch:
    return replace(
        step,
        function=binary.function,
        cubin=str(binary.cubin),
        num_warps=binary.num_warps,
        shared=binary.shared,
        args=(*step.args, *[("null", None)] * binary.scratch),
    )


def _number(size: Size) -> Arg:
    return size if isinstance(size, int) else Expr(size)
