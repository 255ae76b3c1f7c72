"""Writing into part of an input's own memory, where `passes/in_place.py` allows that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from minidynamo.inductor.ir import Buffer, Index, Size, TensorValue, View, loop_index
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.symbolic import Expr, dot

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

Place = Callable[[BodyBuilder, Index], Sequence[Expr]]
Element = Callable[[BodyBuilder, Index], Value]


def own_memory(g: GraphLowering, x: TensorValue, source: TensorValue) -> Buffer | None:
    """The input that `x` is, if the node may write `source` there."""
    view = x.data
    if any(extent == 0 for extent in source.size):
        return None
    if g.node not in g.in_place or not isinstance(view, View) or not view.is_whole():
        return None
    return view.buffer if view.buffer.kind == "input" else None


def write_part(
    g: GraphLowering,
    buffer: Buffer,
    size: Size,
    place: Place,
    value: Element,
    scatters: bool,
) -> TensorValue:
    """`value` at `place`, for all indices of `size`; scatters: places are computed, and may meet.

    Where a check fails, the kernel writes what is there already, as nothing is written in eager.
    """
    index, iters = loop_index(size, "x")
    b = BodyBuilder(iters)
    target = dot(place(b, index), buffer.stride)
    new = b.cast(value(b, index), buffer.dtype)
    for node in b.nodes_of("check"):
        old = b.cast(b.load(buffer.name, target, buffer.dtype), buffer.dtype)
        new = b.op("where", node.args[1], new, old)
    if scatters:
        b.scatter(buffer.name, target, new, buffer.dtype, "set")
    else:
        b.store(buffer.name, target, new, buffer.dtype)
    g._append_computed(b, buffer, (str(g.node.target),))
    layout = tuple(g.meta.stride())
    view = View(buffer, buffer.size, buffer.stride, exact=buffer.stride == layout)
    return TensorValue(view, buffer.dtype, buffer.size, buffer.device, layout)
