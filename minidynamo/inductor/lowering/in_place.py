"""Writing into part of a tensor's own memory, where `passes/in_place.py` allows that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from minidynamo.inductor.extern import compute_readers
from minidynamo.inductor.ir import (
    Buffer,
    Index,
    Size,
    TensorValue,
    View,
    dense_strides,
    loop_index,
)
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.passes.in_place import FIRST, INPUT
from minidynamo.inductor.symbolic import Expr, dot

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

Place = Callable[[BodyBuilder, Index], Sequence[Expr]]
Element = Callable[[BodyBuilder, Index], Value]


def identity(
    how: str,
    dtype: torch.dtype,
) -> float:
    """What leaves every number as it is, combined with it: of sums -0.0, which keeps that, too."""
    if how in ("sum", "prod"):
        return 1 if how == "prod" else -0.0 if dtype.is_floating_point else 0
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    least = float("-inf") if dtype.is_floating_point else limits.min
    return least if how == "max" else float("inf") if dtype.is_floating_point else limits.max


def own_memory(
    g: GraphLowering,
    x: TensorValue,
    source: TensorValue,
) -> Buffer | None:
    """The memory of `x`, if the node may write `source` there: an input's, or that of a copy that
    the first of several such nodes makes.
    """
    if any(extent == 0 for extent in source.size):
        return None
    view, base = x.data, g.in_place.get(g.node)
    if base == FIRST:
        layout = tuple(g.meta.stride())
        if layout != dense_strides(x.size, layout):
            return None
        buffer = g.realize(g.copy(x, layout)).buffer
        buffer.rewritten = True
        return buffer
    if base is None or not isinstance(view, View) or not view.is_whole():
        return None
    is_own = view.buffer.kind == "input" if base == INPUT else view.buffer.rewritten
    return view.buffer if is_own else None


def write_part(
    g: GraphLowering,
    buffer: Buffer,
    size: Size,
    place: Place,
    value: Element,
    how: str = "",
) -> TensorValue:
    """`value` at `place`, for all indices of `size`; how: a name in `ops.SCATTERS` where places are
    computed, and may meet.

    Where a check fails, the kernel leaves what is there, as nothing is written in eager.
    """
    compute_readers(g, (buffer.name,))
    index, iters = loop_index(size, "x")
    b = BodyBuilder(iters)
    target = dot(place(b, index), buffer.stride)
    new = b.cast(value(b, index), buffer.dtype)
    for node in b.nodes_of("check"):
        if how in ("", "set"):
            old = b.cast(b.load(buffer.name, target, buffer.dtype), buffer.dtype)
        else:
            old = b.constant(identity(how, buffer.dtype), buffer.dtype)
        new = b.op("where", node.args[1], new, old)
    if how:
        b.scatter(buffer.name, target, new, buffer.dtype, how)
    else:
        b.store(buffer.name, target, new, buffer.dtype)
    g._append_computed(b, buffer, (str(g.node.target),))
    layout = tuple(g.meta.stride())
    view = View(buffer, buffer.size, buffer.stride, exact=buffer.stride == layout)
    return TensorValue(view, buffer.dtype, buffer.size, buffer.device, layout)
