"""The Plan: what the inductor backend produces for one graph, as plain data.

A plan is a straight-line program over numbered *slots*. Slots `0 .. n_inputs-1` hold the inputs,
the next `len(constants)` hold the constant tensors, and every later slot is given its value by
exactly one step. The C++ class `minidynamo._C.PlanExecutor` runs it; `to_json`/`from_json` store
it; `render` prints it as a short program for people.

Sizes, strides, offsets and other integers are an `int` or a string holding an expression over the
plan's symbols (`"s0*s1 + 1"`, `"FloorDiv(s0, 2)"`: what `str` of a sympy expression of torch's
`ShapeEnv` gives).

Build one with `PlanBuilder`, or write the dataclasses of `plan_steps` (re-exported here) down;
`Plan.validate` says what is wrong with it.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from minidynamo.inductor.codegen.plan_render import render_arg, render_input, render_step
from minidynamo.inductor.codegen.plan_steps import (
    STEP_TAGS,
    STEP_TYPES,
    TAG_OF,
    TAGGED,
    Alloc,
    Arg,
    AsStrided,
    Constant,
    Define,
    Device,
    Dtype,
    Expr,
    Extern,
    Free,
    Input,
    Kernel,
    KernelCall,
    Layout,
    MemoryFormat,
    Out,
    PyCall,
    Ref,
    Restride,
    Reuse,
    Size,
    Slot,
    Step,
    Symbol,
    TritonLaunch,
    argument,
    out_slots,
    out_symbols,
    refs,
    step_defines,
    step_reads,
)

__all__ = [
    "Alloc",
    "Arg",
    "AsStrided",
    "Constant",
    "Define",
    "Device",
    "Dtype",
    "Expr",
    "Extern",
    "Free",
    "Input",
    "Kernel",
    "KernelCall",
    "Layout",
    "MemoryFormat",
    "Out",
    "Plan",
    "PlanBuilder",
    "PlanError",
    "PyCall",
    "Ref",
    "Restride",
    "Reuse",
    "Size",
    "Slot",
    "Step",
    "Symbol",
    "TritonLaunch",
    "argument",
    "constant_data",
    "constant_tensor",
    "out_slots",
    "refs",
    "step_defines",
    "step_reads",
]

FORMAT_VERSION = 2


class PlanError(ValueError):
    """A plan is not well formed; the message lists every problem."""


@dataclass(frozen=True)
class Plan:
    """One graph's program.

    Attributes:
        inputs: the positional inputs, slots `0 ..`.
        constants: the constant tensors, in the slots after the inputs.
        symbols: symbols that the inputs define.
        steps: the program.
        outputs: what is returned, in order: `Ref`, `Expr`, None, or a plain number.
        kernels: functions of the shared library that `KernelCall` steps name.
        header: text that stands before every kernel's source.
        mutated_inputs: input slots that kernels write to; their version counters are bumped.
        slot_names: names for printing; others are `buf<slot>`.
    """

    inputs: tuple[Input, ...] = ()
    constants: tuple[Constant, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    steps: tuple[Step, ...] = ()
    outputs: tuple[Arg, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    header: str = ""
    mutated_inputs: tuple[Slot, ...] = ()
    slot_names: Mapping[Slot, str] = field(default_factory=dict)

    version: ClassVar[int] = FORMAT_VERSION

    @property
    def n_slots(self) -> int:
        """One more than the highest slot in use."""
        used = [slot for step in self.steps for slot in step_defines(step)]
        return max([len(self.inputs) + len(self.constants) - 1, *used]) + 1

    def slot_name(self, slot: Slot) -> str:
        """The name of a slot in printed code."""
        if slot in self.slot_names:
            return self.slot_names[slot]
        if slot < len(self.inputs):
            return self.inputs[slot].name
        index = slot - len(self.inputs)
        return self.constants[index].name if index < len(self.constants) else f"buf{slot}"

    def validate(self) -> Plan:
        """Check that the program is well formed; returns itself.

        Raises:
            PlanError: with every problem found.
        """
        problems = list(_problems(self))
        if problems:
            raise PlanError("; ".join(problems))
        return self

    def render(self, *, kernels: bool = True) -> str:
        """The plan as a short readable program, followed by its kernels' sources."""
        name = self.slot_name
        lines = [f"def run({', '.join(render_input(item) for item in self.inputs)}):"]
        lines += [
            f"    {symbol.name} = {name(symbol.slot)}"
            + ("" if symbol.what == "value" else f".{symbol.what}({symbol.dim})")
            for symbol in self.symbols
        ]
        lines += [f"    {render_step(step, name)}" for step in self.steps]
        outputs = ", ".join(render_arg(output, name) for output in self.outputs)
        lines.append(f"    return ({outputs}{',' if len(self.outputs) == 1 else ''})")
        if kernels:
            for kernel in self.kernels:
                lines += ["", f"// ---- {kernel.symbol}"]
                lines += [f"// {origin}" for origin in kernel.origins]
                lines.append(kernel.source.strip())
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """The plan as dictionaries, lists, strings and numbers: for `PlanExecutor` and JSON."""
        return {
            "version": self.version,
            "n_slots": self.n_slots,
            "inputs": [_fields(item) for item in self.inputs],
            "constants": [_fields(item) for item in self.constants],
            "symbols": [_fields(item) for item in self.symbols],
            "kernels": [_fields(item) for item in self.kernels],
            "steps": [{"step": STEP_TAGS[type(step)], **_fields(step)} for step in self.steps],
            "outputs": _encode(self.outputs),
            "header": self.header,
            "mutated_inputs": list(self.mutated_inputs),
            "slot_names": {str(slot): name for slot, name in self.slot_names.items()},
        }

    def to_json(self) -> str:
        """The plan as JSON text; equal plans give equal texts."""
        return json.dumps(self.to_dict(), separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """The inverse of `to_dict`.

        Raises:
            ValueError: the data is of another format version.
        """
        if data.get("version") != cls.version:
            raise ValueError(f"plan of format {data.get('version')!r}, this is {cls.version}")
        return cls(
            inputs=tuple(_from_fields(Input, item) for item in data["inputs"]),
            constants=tuple(_from_fields(Constant, item) for item in data["constants"]),
            symbols=tuple(_from_fields(Symbol, item) for item in data["symbols"]),
            kernels=tuple(_from_fields(Kernel, item) for item in data["kernels"]),
            steps=tuple(_from_fields(STEP_TYPES[item["step"]], item) for item in data["steps"]),
            outputs=_decode(data["outputs"]),
            header=data["header"],
            mutated_inputs=tuple(data["mutated_inputs"]),
            slot_names={int(slot): name for slot, name in data["slot_names"].items()},
        )

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The inverse of `to_json`."""
        return cls.from_dict(json.loads(text))


# ------------------------------------------------------------------------------------------------
# Constants


def constant_tensor(constant: Constant) -> torch.Tensor:
    """The tensor of a constant that the plan carries."""
    assert constant.data is not None, f"constant {constant.name} is not in the plan"
    dtype = getattr(torch, constant.dtype)
    data = bytearray(base64.b64decode(constant.data))
    if not data:
        return torch.empty(constant.size, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(constant.size)


def constant_data(tensor: torch.Tensor) -> str:
    """What `Constant.data` holds for a CPU tensor (to be read back as contiguous)."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return base64.b64encode(bytes(flat.tolist())).decode("ascii")


# ------------------------------------------------------------------------------------------------
# Validation


def _problems(plan: Plan) -> Iterator[str]:
    """Sentences about what is wrong: slots, symbols, kernels, outputs."""
    symbols = {symbol.name for symbol in plan.symbols}
    for symbol in plan.symbols:
        if symbol.slot >= len(plan.inputs):
            yield f"symbol {symbol.name} is defined by slot {symbol.slot}, which is no input"
    kernels = {kernel.symbol for kernel in plan.kernels}
    live = set(range(len(plan.inputs) + len(plan.constants)))
    ever = set(live)
    for index, step in enumerate(plan.steps):
        where = f"step {index} ({STEP_TAGS[type(step)]})"
        for slot in step_reads(step):
            if slot not in live:
                state = "after it was freed" if slot in ever else "before it has a value"
                yield f"{where} uses slot {slot} {state}"
        for slot in step_defines(step):
            if slot in ever:
                yield f"{where} gives slot {slot} a second value"
            live.add(slot)
            ever.add(slot)
        live.difference_update(_ends(step))
        symbols.update(out_symbols(getattr(step, "outs", ())))
        yield from (f"{where} {problem}" for problem in _step_problems(step, kernels))
    for output in plan.outputs:
        for slot in refs(output):
            if slot not in live:
                yield f"output slot {slot} has no value at the end"
    for slot in plan.mutated_inputs:
        if slot >= len(plan.inputs):
            yield f"mutated slot {slot} is no input"


def _ends(step: Step) -> tuple[Slot, ...]:
    if isinstance(step, Reuse):
        return (step.source,)
    return step.slots if isinstance(step, Free) else ()


def _step_problems(step: Step, kernels: set[str]) -> Iterator[str]:
    if isinstance(step, (Alloc, Reuse, AsStrided, Restride)) and len(step.size) != len(
        step.stride
    ):
        yield f"has {len(step.size)} sizes and {len(step.stride)} strides"
    if isinstance(step, KernelCall):
        if step.kernel not in kernels:
            yield f"calls unknown kernel {step.kernel}"
        if not set(step.writes) <= set(step.args):
            yield "writes slots that are not among its arguments"
        if len(step.offsets) not in (0, len(step.args)):
            yield f"has {len(step.offsets)} offsets for {len(step.args)} arguments"
    if isinstance(step, Extern) and "::" not in step.op:
        yield f"names operator {step.op!r} without a namespace"


# ------------------------------------------------------------------------------------------------
# JSON


_PLAIN = (int, str, bool, type(None))
_FIELDS = {
    cls: tuple(entry.name for entry in dataclasses.fields(cls))
    for cls in (*STEP_TYPES.values(), *TAGGED.values(), Input, Symbol, Constant, Kernel)
}


def _encode(value: Any) -> Any:
    """An argument, an out tree or a field's value, as JSON data."""
    cls = type(value)
    if cls in _PLAIN:
        return value
    if cls is tuple:
        return [_encode(item) for item in value]
    if cls in TAG_OF:
        return {TAG_OF[cls]: getattr(value, _FIELDS[cls][0])}
    if cls is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if cls is complex:
        return {"complex": [_encode(value.real), _encode(value.imag)]}
    raise TypeError(f"{cls.__name__} cannot be in a plan: {value!r}")


def _decode(value: Any) -> Any:
    """The inverse of `_encode`."""
    cls = type(value)
    if cls is list:
        return tuple(_decode(item) for item in value)
    if cls is not dict:
        return value
    ((tag, item),) = value.items()
    if tag == "float":
        return float(item)
    if tag == "complex":
        return complex(*_decode(item))
    return TAGGED[tag](item)


def _fields(item: Any) -> dict[str, Any]:
    values = {name: getattr(item, name) for name in _FIELDS[type(item)]}
    keywords = values.get("kwargs")
    encoded = {name: _encode(value) for name, value in values.items() if name != "kwargs"}
    if keywords is not None:
        encoded["kwargs"] = {key: _encode(value) for key, value in keywords.items()}
    return encoded


def _from_fields(cls: type, data: Mapping[str, Any]) -> Any:
    values = {name: _decode(data[name]) for name in _FIELDS[cls] if name != "kwargs"}
    if "kwargs" in _FIELDS[cls]:
        values["kwargs"] = {key: _decode(value) for key, value in data["kwargs"].items()}
    return cls(**values)


# ------------------------------------------------------------------------------------------------
# Building


class PlanBuilder:
    """Collects a plan step by step and hands out slot numbers.

    Inputs come first, then constants, then steps. `finish` validates.
    """

    def __init__(self) -> None:
        self.inputs: list[Input] = []
        self.constants: list[Constant] = []
        self.symbols: list[Symbol] = []
        self.kernels: dict[str, Kernel] = {}
        self.steps: list[Step] = []
        self.slot_names: dict[Slot, str] = {}
        self.mutated_inputs: list[Slot] = []
        self._next = 0

    def slot(self, name: str = "") -> Slot:
        """A fresh slot number."""
        slot, self._next = self._next, self._next + 1
        if name:
            self.slot_names[slot] = name
        return slot

    def input(self, item: Input) -> Slot:
        """Add a positional input."""
        assert len(self.inputs) == self._next, "inputs come first"
        self.inputs.append(item)
        return self.slot()

    def constant(self, item: Constant) -> Slot:
        """Add a constant tensor."""
        assert len(self.inputs) + len(self.constants) == self._next, "constants follow inputs"
        self.constants.append(item)
        return self.slot()

    def kernel(self, kernel: Kernel) -> str:
        """Add a kernel to the library (once for each symbol); returns the symbol."""
        known = self.kernels.setdefault(kernel.symbol, kernel)
        assert known.source == kernel.source, f"two sources for kernel {kernel.symbol}"
        return kernel.symbol

    def alloc(
        self,
        size: Iterable[Size],
        stride: Iterable[Size],
        dtype: str,
        device: str = "cpu",
        *,
        name: str = "",
    ) -> Slot:
        """Add an `Alloc` step; returns its slot."""
        slot = self.slot(name)
        self.steps.append(Alloc(slot, tuple(size), tuple(stride), dtype, device))
        return slot

    def add(self, step: Step) -> None:
        """Add a step whose slots were made by `slot`."""
        self.steps.append(step)

    def finish(self, outputs: Iterable[Arg], *, header: str = "") -> Plan:
        """The plan, validated.

        Raises:
            PlanError: it is not well formed.
        """
        return Plan(
            inputs=tuple(self.inputs),
            constants=tuple(self.constants),
            symbols=tuple(self.symbols),
            steps=tuple(self.steps),
            outputs=tuple(outputs),
            kernels=tuple(self.kernels.values()),
            header=header,
            mutated_inputs=tuple(self.mutated_inputs),
            slot_names=dict(self.slot_names),
        ).validate()
