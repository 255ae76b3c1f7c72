"""From scheduled steps to a Plan: slots, allocations, views, calls, outputs.

    plan = PlanAssembler(lowered, threads).build(steps)

Memory is planned by the executor (csrc/plan_memory.cpp) from the steps' order; here a buffer is
only allocated before the step that first writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from minidynamo import events
from minidynamo.inductor import config, metrics, symbolic
from minidynamo.inductor.codegen.autotune import tuned
from minidynamo.inductor.codegen.cpp import codegen_cpp
from minidynamo.inductor.codegen.cpp_tuning import USUAL
from minidynamo.inductor.codegen.kernel import Kernel, KernelSpec, with_offsets
from minidynamo.inductor.codegen.plan import (
    Arg,
    AsStrided,
    Constant,
    Expr,
    Extern,
    Input,
    KernelCall,
    Plan,
    PlanBuilder,
    Ref,
    Restride,
    Reuse,
    Symbol,
    argument,
)
from minidynamo.inductor.codegen.plan import Kernel as PlanKernel
from minidynamo.inductor.codegen.triton_steps import TritonSteps
from minidynamo.inductor.dependencies import roots
from minidynamo.inductor.graph import GraphLowering
from minidynamo.inductor.ir import Buffer, ExternOp, View
from minidynamo.inductor.origins import operators, source_lines
from minidynamo.inductor.runtime.triton_launch import ALIGNMENT
from minidynamo.inductor.size_hints import size_symbols
from minidynamo.inductor.sizes import plan_size
from minidynamo.inductor.symbolic import Undecided, contiguous_strides, symbol_expr
from minidynamo.inductor.targets import uses_triton

aten = torch.ops.aten
# Operators whose `out` overload writes into planned memory, if the result is row-major.
OUT_VARIANTS = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}


@cache
def cpp_prefix() -> str:
    """Text that stands before every kernel."""
    folder = Path(__file__).parent
    return "".join(
        (folder / f"cpp_{part}.h").read_text() for part in ("prefix", "math64", "math")
    )


def dtype_name(dtype: torch.dtype) -> str:
    """As plans spell it."""
    return str(dtype).removeprefix("torch.")


class PlanAssembler:
    """Builds one plan. `slots` maps buffer names, `views` parts of buffers, to slots."""

    def __init__(self, lowered: GraphLowering, threads: int) -> None:
        self.lowered = lowered
        self.threads = threads
        self.builder = PlanBuilder()
        self.slots: dict[str, int] = {}
        self.views: dict[tuple[Any, ...], int] = {}
        self.sources: dict[str, str] = {}
        self.triton = TritonSteps()
        self.used: set[str] = set()
        self.misaligned: set[str] = set()

    def build(self, steps: Sequence[Kernel | ExternOp]) -> Plan:
        self._inputs(steps)
        self.used = self._used(steps)
        self.misaligned = self._misaligned()
        for step in steps:
            if isinstance(step, Kernel):
                self._kernel(step)
            else:
                self._extern(step)
        self.builder.steps[:] = self.triton.complete(self.builder.steps)
        for name, source in self.triton.joined.items():
            self.builder.kernel(PlanKernel(name, source, (), "triton"))
        outputs = [self._output(value) for value in self.lowered.outputs]
        self.builder.mutated_inputs = [self.slots[name] for name in self.lowered.written]
        inputs = self.builder.inputs
        for position in self.triton.aligned_inputs(self.lowered.inputs):
            inputs[position] = replace(inputs[position], alignment=ALIGNMENT)
        return self.builder.finish(outputs, header=cpp_prefix())

    def _inputs(self, steps: Sequence[Kernel | ExternOp]) -> None:
        known = {b.name for step in steps if isinstance(step, Kernel) for b in step.buffers}
        for position, buffer in enumerate(self.lowered.inputs):
            if buffer is None:
                self.builder.input(Input(f"in{position}", "int"))
                continue
            item = Input(
                buffer.name,
                dtype=dtype_name(buffer.dtype),
                device=str(buffer.device),
                size=tuple(map(plan_size, buffer.size)) if buffer.strided else None,
                stride=tuple(map(plan_size, buffer.stride)) if buffer.strided else None,
            )
            if buffer.name not in known and _may_be_random_state(buffer):
                item = Input(buffer.name)
            self.slots[buffer.name] = self.builder.input(item)
        self._symbols()
        for name in self.lowered.constants:
            buffer = self.lowered.buffers[name]
            size = tuple(map(int, buffer.size))
            constant = Constant(name, dtype_name(buffer.dtype), size)
            self.slots[name] = self.builder.constant(constant)

    def _symbols(self) -> None:
        """Say which input gives the value of each size symbol.

        Raises Undecided if an input's size needs a symbol that none gives.
        """
        found: dict[str, Symbol] = {}
        needed: set[symbolic.Symbol] = set()
        for slot, item in enumerate(self.lowered.input_numbers):
            for what, dim, number in item:
                needed |= size_symbols([number])
                name = _only_symbol(number)
                if name:
                    found.setdefault(name, Symbol(name, slot, what, dim))
        wholes = {s.whole[0] if s.whole else s.name for s in needed if s.whole or s.is_given}
        missing = wholes - set(found)
        if missing:
            raise Undecided(f"no input gives the value of {missing}")
        self.builder.symbols += found.values()

    # -- steps -------------------------------------------------------------------------------------
    def _kernel(self, kernel: Kernel) -> None:
        spec = kernel.spec
        offsets: tuple[int, ...] = ()
        is_triton = uses_triton(spec.device)
        if not is_triton:
            spec, offsets = with_offsets(spec)
        symbol = f"k_{spec.key[:16]}"
        if symbol not in self.sources:
            self._generate(kernel, spec, symbol, is_triton)
        metrics.increment("kernel_calls")
        for new, old in kernel.reuses:
            self._take_over(new, old)
        slots = tuple(self._slot_for_kernel(buffer) for buffer in kernel.buffers)
        sizes = tuple(plan_size(symbol_expr(size)) for size in kernel.sizes)
        if is_triton:
            step = self.triton.step(spec, symbol, slots, kernel.buffers, self.misaligned, sizes)
            self.builder.add(step)
            return
        written = zip(slots, spec.args, strict=True)
        writes = tuple(slot for slot, arg in written if arg.role != "in")
        origin = ", ".join(operators(spec.origins))
        call = KernelCall(symbol, slots, sizes, writes, origin, spec.failures, offsets)
        self.builder.add(call)

    def _generate(self, kernel: Kernel, spec: KernelSpec, symbol: str, is_triton: bool) -> None:
        if is_triton:
            device = kernel.buffers[0].device
            source = self.triton.generate(spec, symbol, device, kernel.sizes)
            language = "triton"
        else:
            tuning = tuned(spec, self.threads, cpp_prefix()) if config.max_autotune else USUAL
            source, language = codegen_cpp(spec, symbol, self.threads, tuning), "cpp"
        self.sources[symbol] = source
        lines = tuple(source_lines(spec.origins))
        self.builder.kernel(PlanKernel(symbol, source, lines, language))
        metrics.increment("generated_kernel_count")
        metrics.increment(
            "generated_cpp_vec_kernel_count", language == "cpp" and "V<" in source
        )
        if events.wants(events.KernelEvent):
            events.emit(events.KernelEvent(symbol, language, source, spec.origins))

    def _used(self, steps: Sequence[Kernel | ExternOp]) -> set[str]:
        """Buffers that a step reads or the graph returns."""
        used = {value.buffer.name for value in self.lowered.outputs if isinstance(value, View)}
        for step in steps:
            if isinstance(step, Kernel):
                used.update(buffer.name for buffer in step.buffers)
                used.update(old.name for _, old in step.reuses)
            else:
                used |= step.reads()
        return used

    def _misaligned(self) -> set[str]:
        """Buffers whose memory may begin anywhere.

        An input is among them only where the plan returns a part of it: the others are replaced by
        copies if need be.
        """
        found: set[str] = set()
        for value in self.lowered.outputs:
            if isinstance(value, View) and not (value.is_whole() and not value.buffer.alias_of):
                found |= {root.name for root in (value.buffer, *roots(value.buffer))}
        buffers = self.lowered.buffers
        found = {name for name in found if buffers[name].kind == "input"}
        found |= {name for name, buffer in buffers.items() if buffer.alias_of}
        for name, tensor in self.lowered.constants.items():
            if tensor.device.type != "cpu" and tensor.data_ptr() % ALIGNMENT:
                found.add(name)
        return found

    def _slot_for_kernel(self, buffer: Buffer) -> int:
        return self.slots[buffer.name] if buffer.name in self.slots else self._alloc(buffer)

    def _alloc(self, buffer: Buffer) -> int:
        slot = self.builder.alloc(
            tuple(map(plan_size, buffer.size)),
            tuple(map(plan_size, buffer.stride)),
            dtype_name(buffer.dtype),
            str(buffer.device),
            name=buffer.name,
        )
        self.slots[buffer.name] = slot
        return slot

    def _take_over(self, new: Buffer, old: Buffer) -> None:
        """Give a buffer the memory of one that dies."""
        slot = self.builder.slot(new.name)
        size, stride = tuple(map(plan_size, new.size)), tuple(map(plan_size, new.stride))
        source = self.slots[old.name]
        self.builder.add(Reuse(slot, source, size, stride, dtype_name(new.dtype)))
        self.slots[new.name] = slot

    def _extern(self, step: ExternOp) -> None:
        metrics.increment("extern_calls")
        schema = step.op._schema
        args = tuple(self._argument(arg) for arg in step.args)
        kwargs = {key: self._argument(arg) for key, arg in step.kwargs.items()}
        overload = schema.overload_name
        origin = ", ".join([*operators(step.origins), *source_lines(step.origins)])
        if step.op in OUT_VARIANTS and (step.place or _is_row_major(step.outputs[0])):
            place = self.slot(step.place) if step.place else self._alloc(step.outputs[0])
            kwargs["out"] = Ref(place)
            extern = Extern(schema.name, "out", args, kwargs, (None,), origin)
        else:
            checks: list[Restride] = []
            outs = tuple(self._out(output, checks) for output in step.outputs)
            extern = Extern(schema.name, overload, args, kwargs, outs, origin)
            self.builder.add(extern)
            for check in checks:
                self.builder.add(check)
            return
        self.builder.add(extern)

    def _out(self, output: Any, checks: list[Restride]) -> Any:
        """Slots for results. `checks` gets the steps that hold them to the strides that the fake
        tensors had, which kernels are compiled for.
        """
        if isinstance(output, tuple):
            return tuple(self._out(item, checks) for item in output)
        if output is None or output.name not in self.used:
            return None
        slot = self.slots[output.name] = self.builder.slot(output.name)
        if output.alias_of or not output.strided:
            return slot
        source = self.builder.slot()
        size, stride = tuple(map(plan_size, output.size)), tuple(map(plan_size, output.stride))
        checks.append(Restride(slot, source, size, stride, dtype_name(output.dtype)))
        return source

    def _argument(self, value: Any) -> Arg:
        if isinstance(value, View):
            return Ref(self.slot(value))
        if isinstance(value, (tuple, list)):
            return tuple(self._argument(item) for item in value)
        return _number(value) if isinstance(value, symbolic.Expr) else argument(value)

    def slot(self, view: View) -> int:
        """The slot that holds this part of a buffer."""
        base = self._slot_for_kernel(view.buffer)
        if view.is_whole():
            return base
        key = (view.buffer.name, view.size, view.stride, view.offset)
        if view.is_new or key not in self.views:
            slot = self.views[key] = self.builder.slot()
            size, stride = tuple(map(plan_size, view.size)), tuple(map(plan_size, view.stride))
            self.builder.add(AsStrided(slot, base, size, stride, plan_size(view.offset)))
        return self.views[key]

    def _output(self, value: Any) -> Arg:
        return self._argument(value)


def _may_be_random_state(buffer: Buffer) -> bool:
    """Whether this may be a seed or offset that an attention operator gave for its backward: those
    are on the CPU or the GPU as the operator likes, whatever its fake implementation says.
    """
    small = all(isinstance(extent, int) and extent <= 2 for extent in buffer.size)
    is_state = buffer.dtype in (torch.int64, torch.uint64) and len(buffer.size) <= 1
    return is_state and small and buffer.device.type != "cpu"


def _only_symbol(number: symbolic.IntLike) -> str:
    """The symbol of the plan that an expression is, if it is just one."""
    if not isinstance(number, symbolic.Expr) or number.const or len(number.terms) != 1:
        return ""
    ((monomial, coeff),) = number.terms.items()
    only = monomial[0]
    if len(monomial) > 1 or not isinstance(only, symbolic.Symbol):
        return ""
    name, times = only.whole or (only.name if only.is_given else "", 1)
    return name if coeff == times else ""


def _number(value: symbolic.Expr) -> Arg:
    size = plan_size(value)
    return size if isinstance(size, int) else Expr(size)


def _is_row_major(buffer: Any) -> bool:
    return isinstance(buffer, Buffer) and buffer.stride == contiguous_strides(buffer.size)
