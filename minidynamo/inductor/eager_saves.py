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
from typing import Any, NamedTuple

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
    saves = _saves(gm)
    found = []
    for place, outputs in (saves.places if saves is not None else {}).items():
        tangents = [t for t, position in enumerate(differentiable) if outputs >> position & 1]
        if tangents and place not in known:
            found.append((*place, tangents))
    return found


def together(
    gm: torch.fx.GraphModule,
    differentiable: Sequence[int],
) -> list[list[int]]:
    """For each tangent (by its position in `differentiable`) the ones that eager cannot take behind
    it unless the graph is retained: nodes with saved tensors lie behind both. All of them where the
    trace does not tell.
    """
    saves = _saves(gm)
    if saves is None:
        everything = list(range(len(differentiable)))
        return [everything for _ in differentiable]
    return [
        [t for t, other in enumerate(differentiable) if saves.shared[position] >> other & 1]
        for position in differentiable
    ]


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
    return [i for i in range(len(output.args[0])) if ("output", i) not in saves.places]


def unsaved_inputs(
    gm: torch.fx.GraphModule,
) -> list[int]:
    """The positions of inputs that eager does not save: a caller may write to these before the
    backward pass. Empty where the trace does not tell. Leaves with gradients (parameters) are none
    of them: they change between the steps, and what is cast from them is large.
    """
    saves = _saves(gm)
    if saves is None:
        return []
    given = list(map(_value, gm.graph.find_nodes(op="placeholder")))
    return [
        i
        for i, value in enumerate(given)
        if isinstance(value, torch.Tensor)
        and not (value.requires_grad and value.is_leaf)
        and ("input", i) not in saves.places
    ]


class _Saves(NamedTuple):
    """What eager saves. Outputs are bits, by their positions.

    places: inputs and outputs, each with the outputs behind which eager saves it. shared: for each
    output those with which it shares nodes that save something.
    """

    places: dict[_Place, int]
    shared: list[int]


def _saves(
    gm: torch.fx.GraphModule,
) -> _Saves | None:
    if _IN_META not in gm.meta:
        gm.meta[_IN_META] = _find_saves(gm)
    found: _Saves | None = gm.meta[_IN_META]
    return found


def _find_saves(
    gm: torch.fx.GraphModule,
) -> _Saves | None:
    if any(_hides_saves(node) for node in gm.graph.nodes):
        return None
    (output,) = gm.graph.find_nodes(op="output")
    results = [_value(node) for node in output.args[0]]
    memory = _memory(gm, results)
    found = _Saves({}, [0] * len(results))
    saving = set()
    for node, outputs in _behind(results):
        if type(node).__name__ == "CopySlices":
            saving.add(outputs)  # what it hides may save something
        for tensor in _saved_by(node):
            saving.add(outputs)
            place = memory.get(tensor.untyped_storage()._cdata)
            if place is not None:
                found.places[place] = found.places.get(place, 0) | outputs
    for outputs in saving:
        for position in range(len(results)):
            if outputs >> position & 1:
                found.shared[position] |= outputs
    return found


def _hides_saves(
    node: torch.fx.Node,
) -> bool:
    return is_data(node) or isinstance(node.target, torch._ops.HigherOrderOperator)


def is_data(node: torch.fx.Node) -> bool:
    """Whether a node of a captured graph is `tensor.data`."""
    return node.target is getattr and node.args[1] == "data"


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


def _behind(
    results: Sequence[Any],
) -> Iterator[tuple[Any, int]]:
    """The nodes of autograd that lead to fake tensors, each with those that it leads to."""
    outputs: dict[Any, int] = {}
    for position, value in enumerate(results):
        node = value.grad_fn if isinstance(value, torch.Tensor) else None
        if node is not None:
            outputs[node] = outputs.get(node, 0) | 1 << position
    for node in _in_order(list(outputs)):
        yield node, outputs[node]
        for following, _ in node.next_functions:
            if following is not None:
                outputs[following] = outputs.get(following, 0) | outputs[node]


def _in_order(
    roots: Sequence[Any],
) -> Sequence[Any]:
    """The nodes behind these, each before those behind it."""
    seen: set[Any] = set()
    last_first = []
    pending = [(node, False) for node in roots]
    while pending:
        node, is_done = pending.pop()
        if is_done:
            last_first.append(node)
        elif node is not None and node not in seen:
            seen.add(node)
            pending.append((node, True))
            pending.extend((following, False) for following, _ in node.next_functions)
    return last_first[::-1]


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
