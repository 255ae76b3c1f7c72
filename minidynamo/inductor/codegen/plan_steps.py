"""What a plan is made of: arguments, tables and steps, as frozen dataclasses without behaviour.

`plan.py` holds the plan itself and re-exports all of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Slot = int
Size = int | str


# ------------------------------------------------------------------------------------------------
# Arguments: what may stand in the argument tree of an extern call, and in the outputs


@dataclass(frozen=True, slots=True)
class Ref:
    """The value in a slot: a tensor, or the integer of an integer input."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Expr:
    """An integer expression over the plan's symbols."""

    text: str


@dataclass(frozen=True, slots=True)
class Dtype:
    """A `torch.dtype`, by its name without the `torch.` prefix."""

    name: str


@dataclass(frozen=True, slots=True)
class Device:
    """A `torch.device`, spelled as `str` of it (`cpu`, `cuda:0`)."""

    name: str


@dataclass(frozen=True, slots=True)
class Layout:
    """A `torch.layout`, by its name (`strided`)."""

    name: str


@dataclass(frozen=True, slots=True)
class MemoryFormat:
    """A `torch.memory_format`, by its name (`contiguous_format`, `channels_last`, ...)."""

    name: str


@dataclass(frozen=True, slots=True)
class Define:
    """In an output position: the integer that the call returns becomes this symbol's value."""

    symbol: str


Arg = (
    Ref
    | Expr
    | Dtype
    | Device
    | Layout
    | MemoryFormat
    | None
    | bool
    | int
    | float
    | complex
    | str
    | tuple["Arg", ...]
)
"""An argument tree. Lists of the graph are tuples here."""

Out = Slot | None | Define | tuple["Out", ...]
"""Where one result goes: a slot, nowhere, a symbol, or (list results) a place for each element."""

TAGGED: dict[str, type] = {
    "ref": Ref,
    "expr": Expr,
    "dtype": Dtype,
    "device": Device,
    "layout": Layout,
    "memory_format": MemoryFormat,
    "define": Define,
}
TAG_OF = {cls: tag for tag, cls in TAGGED.items()}
_TORCH_ARGS: dict[type, type] = {
    torch.dtype: Dtype,
    torch.device: Device,
    torch.layout: Layout,
    torch.memory_format: MemoryFormat,
}


def argument(value: Any) -> Arg:
    """The `Arg` for a plain Python or torch value; tensors must already be `Ref`, symbols `Expr`.

    Raises:
        TypeError: the value has no plain-data form.
    """
    plain = (bool, int, float, complex, str)
    if value is None or type(value) in TAG_OF or isinstance(value, plain):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(argument(item) for item in value)
    wrapper = _TORCH_ARGS.get(type(value))
    if wrapper is None:
        raise TypeError(f"{type(value).__name__} cannot be an argument in a plan: {value!r}")
    return wrapper(str(value).removeprefix("torch."))


def refs(arg: Any) -> Iterator[Slot]:
    """The slots read by an argument tree (`Ref`s, in order)."""
    if isinstance(arg, Ref):
        yield arg.slot
    elif isinstance(arg, tuple):
        for item in arg:
            yield from refs(item)


def out_symbols(out: Out) -> Iterator[str]:
    """The symbols that an output tree defines."""
    if isinstance(out, Define):
        yield out.symbol
    elif isinstance(out, tuple):
        for item in out:
            yield from out_symbols(item)


def out_slots(out: Out) -> Iterator[Slot]:
    """The slots that an output tree gives a value to."""
    if isinstance(out, int):
        yield out
    elif isinstance(out, tuple):
        for item in out:
            yield from out_slots(item)


# ------------------------------------------------------------------------------------------------
# The plan's tables


@dataclass(frozen=True, slots=True)
class Input:
    """One positional input: a tensor that must have this dtype, device, size and stride, or an int.

    A dimension given as an expression must have that value when the plan runs; strides of
    dimensions of size one are not looked at. `size=None` stands for "whatever comes" (only extern
    calls may then read the tensor). A tensor whose memory does not begin at a multiple of
    `alignment` bytes (a power of two) is copied before the steps run, and back afterwards if they
    write to it; parts of it must not be outputs.
    """

    name: str
    kind: str = "tensor"
    dtype: str = "float32"
    device: str = "cpu"
    size: tuple[Size, ...] | None = None
    stride: tuple[Size, ...] | None = None
    alignment: int = 1


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol whose value an input gives: an int input itself, or a number of a tensor's layout.

    Attributes:
        what: `value`, `size`, `stride` or `storage_offset`.
        dim: the dimension, for `size` and `stride`.
    """

    name: str
    slot: Slot
    what: str = "value"
    dim: int = 0


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant tensor, given to the executor when it is made, in the order of this table.

    `data` is the base64 text of its bytes when the plan itself carries it (contiguous, CPU); with
    `data=None` the one who makes the executor looks the tensor up by name (an attribute of the
    graph module). `stride=None` means contiguous.
    """

    name: str
    dtype: str = "float32"
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] | None = None
    data: str | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """One generated kernel.

    In C++, a function of the plan's library: `extern "C" void symbol(void**, const int64_t*)`. The
    first argument holds data pointers, the second integers, as the `KernelCall` lists them.
    Kernels in Triton stand here for whoever reads the plan.

    Attributes:
        symbol: the function's name.
        source: its whole text, as it goes to the compiler after the plan's `header`.
        origins: the user's source lines (`file:line  text`) that it computes.
        language: `cpp` or `triton`.
    """

    symbol: str
    source: str
    origins: tuple[str, ...] = ()
    language: str = "cpp"


# ------------------------------------------------------------------------------------------------
# Steps


@dataclass(frozen=True, slots=True)
class Alloc:
    """A new uninitialised tensor.

    The executor may place it in memory it keeps between calls if it cannot escape.
    """

    slot: Slot
    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: str
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Reuse:
    """A dead tensor's memory under a new size, stride and dtype (which must fit in it).

    `source` is gone afterwards.
    """

    slot: Slot
    source: Slot
    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class AsStrided:
    """A view of `base`'s storage.

    `offset` counts elements from where `base` begins, or with `relative=False` from where its
    storage begins (as `torch.as_strided` does with an explicit offset).
    """

    slot: Slot
    base: Slot
    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size = 0
    relative: bool = True


@dataclass(frozen=True, slots=True)
class Restride:
    """An operator's result in the layout that kernels were compiled for.

    The new slot holds `source` itself where it has these strides, else a copy that has; running it
    raises where size or dtype differ. To be put after an `Extern` whose strides matter.
    """

    slot: Slot
    source: Slot
    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Call a compiled CPU kernel.

    Attributes:
        kernel: symbol of a `Kernel` of the plan.
        args: slots whose data pointers make up `ptrs`, in order.
        sizes: integers for `sizes`, in order; a float is passed as the bits of a double.
        writes: those of `args` that the kernel writes (all the others are only read).
        failures: for each check that the kernel makes of its data, the name of the exception
            (`IndexError`, `ValueError`, else `RuntimeError`) and its text, {} for the value.
        offsets: bytes between the beginnings of the slots' data and the pointers of `args`; may be
            left out where all are 0.
    """

    kernel: str
    args: tuple[Slot, ...]
    sizes: tuple[Size | float, ...] = ()
    writes: tuple[Slot, ...] = ()
    origin: str = ""
    failures: tuple[tuple[str, str], ...] = ()
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Extern:
    """Call an operator through torch's dispatcher, below autograd.

    Attributes:
        op: qualified name (`aten::addmm`).
        overload: overload name, `""` for the default one; an `out` overload writes into planned
            memory.
        outs: one place for each return value of the operator's schema.
    """

    op: str
    overload: str = ""
    args: tuple[Arg, ...] = ()
    kwargs: Mapping[str, Arg] = field(default_factory=dict)
    outs: tuple[Out, ...] = ()
    origin: str = ""


@dataclass(frozen=True, slots=True)
class PyCall:
    """Call a Python callable, which the executor is given under this name.

    With no place in `outs` the result is ignored, with one it is taken itself, with more it must be
    a tuple or list of as many.
    """

    callable: str
    args: tuple[Arg, ...] = ()
    kwargs: Mapping[str, Arg] = field(default_factory=dict)
    outs: tuple[Out, ...] = ()
    origin: str = ""


@dataclass(frozen=True, slots=True)
class TritonLaunch:
    """Launch a compiled GPU kernel on torch's current stream of the device.

    Attributes:
        kernel: its name, for people.
        function: symbol in the cubin.
        cubin: path of the cubin file.
        device: `cuda` or `cuda:N`.
        grid: three launch dimensions in blocks.
        num_warps: threads of a block, in units of 32.
        shared: bytes of dynamic shared memory.
        args: `(type, value)` pairs: `ptr` with a `Ref`; `i1`, `i8`, `i16`, `i32`, `i64`, `u8` ...
            with an int or `Expr`; `f32`, `f64` with a number; `null` with None (for the scratch
            pointers that Triton appends).
        writes: slots that the kernel writes.
    """

    kernel: str
    function: str
    cubin: str
    device: str
    grid: tuple[Size, Size, Size]
    num_warps: int
    shared: int
    args: tuple[tuple[str, Arg], ...]
    writes: tuple[Slot, ...] = ()
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Free:
    """Drop these slots: their memory may be used again, and nothing may read them any more."""

    slots: tuple[Slot, ...]


Step = Alloc | Reuse | AsStrided | Restride | KernelCall | Extern | PyCall | TritonLaunch | Free

STEP_TYPES: dict[str, type] = {
    "alloc": Alloc,
    "reuse": Reuse,
    "as_strided": AsStrided,
    "restride": Restride,
    "kernel": KernelCall,
    "extern": Extern,
    "pycall": PyCall,
    "triton": TritonLaunch,
    "free": Free,
}
STEP_TAGS = {cls: tag for tag, cls in STEP_TYPES.items()}


def step_defines(step: Step) -> Iterator[Slot]:
    """The slots that a step gives their value."""
    if isinstance(step, (Alloc, Reuse, AsStrided, Restride)):
        yield step.slot
    elif isinstance(step, (Extern, PyCall)):
        yield from out_slots(step.outs)


def step_reads(step: Step) -> Iterator[Slot]:
    """The slots that must hold a value when a step runs, those that it writes to included."""
    if isinstance(step, (Reuse, Restride)):
        yield step.source
    elif isinstance(step, AsStrided):
        yield step.base
    elif isinstance(step, KernelCall):
        yield from step.args
    elif isinstance(step, TritonLaunch):
        yield from refs(step.args)
    elif isinstance(step, (Extern, PyCall)):
        yield from refs(step.args)
        yield from refs(tuple(step.kwargs.values()))
    elif isinstance(step, Free):
        yield from step.slots
