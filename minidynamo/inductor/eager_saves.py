"""What eager saves for the backward pass of a graph that a compiled backward pass does not read.

Eager refuses a backward pass when a tensor that it saved was written to since. A compiled backward
pass often reads something else: of `a / b` the result instead of the operands, of `exp(x)` the
input instead of the result. It would give the gradients of the old values without a word. So inputs
and outputs of the graph that eager saves are watched, too: `_C.DifferentiableGraph` notes their
version counters, and the backward pass raises eager's error when one has moved.

The front end traced the graph operator by operator with autograd's own nodes around fake tensors;
these nodes tell what eager saves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any

import torch
import torch.fx

Watched = tuple[str, int, list[int]]  # "input" or "output", its position, its tangents
_Place = tuple[str, int]
_IN_META = "eager_saves"


def watched(
    gm: torch.fx.GraphModule,
    differentiable: Sequence[int],
    known: Collection[_Place],
) -> list[Watched]:
    """The inputs and outputs that eager saves, each with the tangents (by their positions in
    `differentiable`) of which one has to be given for eager to look at it.

    gm: the graph of torch's functions that the front end captured. differentiable: positions of the
    outputs that have gradients. known: what the compiled backward pass saves itself. Empty for
    graphs of which the trace does not tell: with operators of graphs (`checkpoint` saves what it
    pleases), and those that read `.data`, whose memory has several counters.
    """
    found = []
    for place, outputs in (_saves(gm) or {}).items():
        tangents = [t for t, position in enumerate(differentiable) if position in outputs]
        if tangents and place not in known:
            found.append((*place, tangents))
    return found


def unsaved_outputs(
    gm: torch.fx.GraphModule,
) -> list[int]:
    """The positions of outputs that eager does not save: a caller may write to these before the
    backward pass. Empty where the trace does not tell.
    """
    saves = _saves(gm)
    if saves is None:
        return []
    (output,) = gm.graph.find_nodes(op="output")
    return [i for i in range(len(output.args[0])) if ("output", i) not in saves]


def _saves(
    gm: torch.fx.GraphModule,
) -> dict[_Place, set[int]] | None:
    """The inputs and outputs that eager saves, and outputs behind which it does."""
    if _IN_META not in gm.meta:
        gm.meta[_IN_META] = _find_saves(gm)
    found: dict[_Place, set[int]] | None = gm.meta[_IN_META]
    return found


def _find_saves(
    gm: torch.fx.GraphModule,
) -> dict[_Place, set[int]] | None:
    if any(_hides_saves(node) for node in gm.graph.nodes):
        return None
    (output,) = gm.graph.find_nodes(op="output")
    results = [_value(node) for node in output.args[0]]
    memory = _memory(gm, results)
    found: dict[_Place, set[int]] = {}
    for position, result in enumerate(results):
        for tensor in _saved_behind(result):
            place = memory.get(tensor.untyped_storage()._cdata)
            if place is not None:
                found.setdefault(place, set()).add(position)
    return found


def _hides_saves(
    node: torch.fx.Node,
) -> bool:
    is_data = node.target is getattr and node.args[1] == "data"
    return is_data or isinstance(node.target, torch._ops.HigherOrderOperator)


def _value(
    node: Any,
) -> Any:
    return node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None


def _memory(
    gm: torch.fx.GraphModule,
    results: Sequence[Any],
) -> dict[int, _Place]:
    """By its address, whose memory it is. What two inputs share is of neither."""
    inputs = map(_value, gm.graph.find_nodes(op="placeholder"))
    given = [("input", i, value) for i, value in enumerate(inputs)]
    given += [("output", i, value) for i, value in enumerate(results)]
    owners: dict[int, list[_Place]] = {}
    for kind, position, value in given:
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            address = value.untyped_storage()._cdata
            owners.setdefault(address, []).append((kind, position))
    return {a: o[0] for a, o in owners.items() if len(o) == 1}


def _saved_behind(
    value: Any,
) -> Iterator[torch.Tensor]:
    """What the nodes of autograd hold that lead to a fake tensor."""
    nodes = [value.grad_fn] if isinstance(value, torch.Tensor) else []
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        yield from _saved_by(node)
        for following, _ in node.next_functions:
            if following not in seen:
                seen.add(following)
                nodes.append(following)


def _saved_by(
    node: Any,
) -> Iterator[torch.Tensor]:
    kind: Any = type(node)
    for name in _fields(kind):
        saved = getattr(node, name)
        for each in saved if isinstance(saved, tuple) else (saved,):
            tensor = each.data  # as it was saved; to unpack it would make a new one
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                yield tensor


@cache
def _fields(
    kind: type,
) -> Sequence[str]:
    return [name for name in dir(kind) if name.startswith("_raw_saved_")]
