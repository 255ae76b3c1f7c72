"""The loop IR that lowering produces.

A *tensor value* (`TensorValue`) is what a graph node's result is while lowering: either `View`,
memory that exists (part of a `Buffer`), or `Lazy`, a function from an index to a scalar that has no
memory yet. Pointwise operators build `Lazy` values on top of their operands, so a chain of them
costs one loop; views of a `Lazy` transform its index. `GraphLowering.realize` gives a `Lazy`
memory: it traces the function once into a `LoopBody` and appends a `ComputedOp`.

The product of lowering is a list of operations in order, over named buffers:

    ComputedOp   one loop nest, described by a LoopBody (stores to one buffer before fusion)
    ExternOp     a call of an operator through torch's dispatcher
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from minidynamo.inductor.loop_body import BodyBuilder, LoopBody, Value
from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import (
    ZERO,
    Expr,
    IntLike,
    Symbol,
    contiguous_strides,
    dot,
    loop_symbol,
    symbol_expr,
)

Size = tuple[IntLike, ...]
Index = Sequence[Expr]
Inner = Callable[[BodyBuilder, Index], Value]


# In the meta of a graph node: an operator writes to its memory, which is its own.
OVERWRITTEN = "overwritten"


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory with a name. `stride` is in elements; index 0 is where the data pointer points.

    Attributes:
        kind: `input`, `constant`, `computed` (planned by us) or `extern` (returned by an operator).
        alias_of: buffers whose memory this one may share (an operator returned a view).
        rewritten: parts of it get other values, one after the other, as parts of inputs may.
    """

    name: str
    dtype: torch.dtype
    size: Size
    stride: Size
    device: torch.device
    kind: str = "computed"
    alias_of: tuple[Buffer, ...] = ()
    rewritten: bool = False

    @property
    def is_overwritten(self) -> bool:
        """Whether a loop that writes to it changes values that it had."""
        return self.kind == "input" or self.rewritten

    @property
    def strided(self) -> bool:
        """Whether it is ordinary memory (a sparse tensor has no strides)."""
        return len(self.stride) == len(self.size)

    def extent(self) -> IntLike:
        """Elements from the pointer to the last element, inclusive."""
        last: IntLike = 1
        for extent, stride in zip(self.size, self.stride, strict=True):
            last = last + (extent - 1) * stride
        if isinstance(last, Expr) and last.is_const:
            last = last.const
        return 0 if any(extent == 0 for extent in self.size) else last


@dataclass(eq=False, slots=True)
class View:
    """Part of a buffer: element `index` is at `offset + sum(index * stride)`.

    `exact` says that the geometry is the one that eager has, so that views of it can be taken over
    from the fake tensors; `is_new` that it must be a tensor of its own, whatever its geometry.
    """

    buffer: Buffer
    size: Size
    stride: Size
    offset: IntLike = 0
    exact: bool = True
    is_new: bool = False

    def load(self, b: BodyBuilder, index: Index) -> Value:
        return b.load(self.buffer.name, dot(index, self.stride, self.offset), self.buffer.dtype)

    def is_whole(self) -> bool:
        """Whether it is the buffer itself."""
        buffer = self.buffer
        same = self.size == buffer.size and self.stride == buffer.stride
        return same and self.offset == 0 and not self.is_new


# Bounds of a value without memory.
MAX_COST, MAX_READS, MAX_DEPTH = 400, 16, 100


@dataclass(eq=False, slots=True)
class Lazy:
    """A tensor without memory: `inner(builder, index)` computes an element.

    Attributes:
        stride: layout for when it gets memory.
        cost: rough machine operations for one element.
        reads: how many loads one element takes.
        origins: names of the graph nodes that went into it.
        base: for a view, what it is a view of; `stride` and `offset` then are its geometry in
            base's memory, once that has some, counted from base's first element.
        depth: how many functions call each other for an element.
    """

    inner: Inner
    stride: Size
    cost: int = 0
    reads: int = 0
    origins: tuple[str, ...] = ()
    base: TensorValue | None = None
    offset: IntLike = 0
    depth: int = 0

    @property
    def is_large(self) -> bool:
        """Whether it has to be given memory, to keep kernels and Python's recursion small."""
        return self.cost > MAX_COST or self.reads > MAX_READS or self.depth > MAX_DEPTH


class TensorValue:
    """A graph node's result while lowering; `data` goes from `Lazy` to `View` when realized.

    `layout` is the strides that eager gives it; its memory may be laid out differently
    (`View.exact` says so) as long as nobody outside of the graph sees it.
    """

    __slots__ = ("data", "device", "dtype", "layout", "size")

    def __init__(
        self,
        data: Lazy | View,
        dtype: torch.dtype,
        size: Size,
        device: torch.device,
        layout: Size,
    ) -> None:
        self.data = data
        self.layout = layout
        self.dtype = dtype
        self.size = size
        self.device = device

    def load(self, b: BodyBuilder, index: Index) -> Value:
        """The element at `index`, widened to float32 where it is float16 or bfloat16."""
        if isinstance(self.data, View):
            return self.data.load(b, index)
        return self.data.inner(b, index)

    @property
    def ndim(self) -> int:
        return len(self.size)

    @property
    def cost(self) -> int:
        return self.data.cost if isinstance(self.data, Lazy) else 1

    @property
    def depth(self) -> int:
        return self.data.depth if isinstance(self.data, Lazy) else 0

    @property
    def reads(self) -> int:
        return self.data.reads if isinstance(self.data, Lazy) else 1

    @property
    def stride(self) -> Size:
        return self.data.stride

    @property
    def origins(self) -> tuple[str, ...]:
        return self.data.origins if isinstance(self.data, Lazy) else ()

    def numel(self) -> IntLike:
        total: IntLike = 1
        for extent in self.size:
            total = total * extent
        return total


@dataclass(eq=False, slots=True)
class ComputedOp:
    """A loop nest. Before fusion it writes the one buffer in `outputs`."""

    name: str
    body: LoopBody
    outputs: tuple[Buffer, ...]
    origins: tuple[str, ...] = ()

    def reads(self) -> set[str]:
        return self.body.reads()


@dataclass(eq=False, slots=True)
class ExternOp:
    """A call of `op` through the dispatcher.

    Attributes:
        args, kwargs: like the graph node's, with `View` where it has tensors.
        outputs: like the operator's results: a `Buffer`, None, or a list of those for each.
        mutates: names of buffers that the call writes to.
        place: the part of its result's buffer that it fills; None for all of it.
    """

    name: str
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Any, ...]
    mutates: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    inputs: tuple[View, ...] = field(default_factory=tuple)
    place: View | None = None

    def reads(self) -> set[str]:
        return {view.buffer.name for view in self.inputs}

    def output_buffers(self) -> list[Buffer]:
        return [buffer for buffer in flatten_outputs(self.outputs) if buffer is not None]


Operation = ComputedOp | ExternOp


def flatten_outputs(outputs: Any) -> list[Buffer | None]:
    """The leaves of an extern's output tree."""
    if isinstance(outputs, (tuple, list)):
        return [leaf for item in outputs for leaf in flatten_outputs(item)]
    return [outputs]


def is_dense(size: Size, stride: Size) -> bool:
    """Whether every element has its own place and there are no holes (some permutation is
    row-major).
    """
    expected: IntLike = 1
    for extent, step in sorted(
        ((e, s) for e, s in zip(size, stride, strict=True) if e != 1),
        key=lambda pair: (hint_of(pair[1]), hint_of(pair[0])),
    ):
        if step != expected:
            return False
        expected = expected * extent
    return True


def has_own_places(size: Size, stride: Size) -> bool:
    """Whether every element has its own place; there may be holes. Of symbolic sizes, for those of
    the call that was compiled for: the layouts that eager makes never overlap for others only.
    """
    expected = 1
    pairs = [(hint_of(s), hint_of(e)) for e, s in zip(size, stride, strict=True)]
    for step, extent in sorted((s, e) for s, e in pairs if e != 1):
        if step < expected:
            return False
        expected = step * extent
    return True


def dense_strides(size: Size, stride: Size) -> Size:
    """`stride` where that is dense, else row-major strides."""
    return stride if is_dense(size, stride) else contiguous_strides(size)


def loop_index(
    size: Size, prefix: str, stride: Size | None = None
) -> tuple[list[Expr], list[Symbol]]:
    """An index over `size`, with a loop symbol for every dimension that is not 1, those with large
    strides outside.
    """
    index: list[Expr] = [ZERO] * len(size)
    order = list(range(len(size)))
    if stride is not None:
        steps = [hint_of(step) for step in stride]
        order.sort(key=lambda d: -steps[d])
    symbols = []
    for d in order:
        if size[d] != 1:
            symbol = loop_symbol(f"{prefix}{d}", size[d])
            symbols.append(symbol)
            index[d] = symbol_expr(symbol)
    return index, symbols
