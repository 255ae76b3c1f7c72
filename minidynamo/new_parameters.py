"""Parameters that the traced code makes: real ones, made anew before each call of the graph.

A parameter is one more input of the graph, in which `fill` gives it its values without the graph
of autograd seeing that. So it is a leaf, to which gradients flow as to every other input. One of a
tensor that is an input itself is made of that, and has its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.node import Node
from torch.utils._pytree import tree_leaves

Compiled = Callable[..., Any]


def fill(parameter: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """An operation of the graph; what it returns takes the place of `data`, whose memory
    the parameter shares in eager.
    """
    with torch.no_grad():
        parameter.copy_(data)
    return parameter.detach()


@dataclass(slots=True)
class NewParameter:
    """Its placeholder and how to make it: contiguous, with any values, or of the input `base`."""

    node: Node
    base: Node | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    # One for the backend to look at, and its fake, which the fake mode holds weakly.
    example: torch.nn.Parameter | None = None
    fake: torch.Tensor | None = None

    def make(self, data: torch.Tensor | None) -> torch.nn.Parameter:
        """A new one, for one call of the graph. data: the value of `base`."""
        if data is None:
            data = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        return torch.nn.Parameter(data, requires_grad=self.requires_grad)


def is_alone(graph: torch.fx.Graph, fake: torch.Tensor) -> bool:
    """Whether no other tensor of the graph has the memory of `fake`, or a part of it."""
    memory = fake.untyped_storage()._cdata
    for node in graph.nodes:
        for value in tree_leaves(node.meta.get("example_value")):
            if value is fake or not isinstance(value, torch.Tensor):
                continue
            if value.layout is not torch.strided:
                return False
            if value.untyped_storage()._cdata == memory:
                return False
    return True


def place_last(graph: torch.fx.Graph, made: list[NewParameter]) -> None:
    """Put the placeholders behind all others."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for item in made:
        first.prepend(item.node)


def making(
    graph: Compiled, made: list[NewParameter], inputs: Sequence[Node], outputs: Sequence[Node]
) -> Compiled:
    """A callable that gives `outputs`, for a graph that gives those that are not in `made`."""
    places = {node: place for place, node in enumerate(inputs)}
    makers = [(item.make, None if item.base is None else places[item.base]) for item in made]
    numbers = {item.node: number for number, item in enumerate(made)}
    order = [numbers.get(node) for node in outputs]

    def call(*args: Any) -> tuple[Any, ...]:
        fresh = [make(None if place is None else args[place]) for make, place in makers]
        results = iter(graph(*args, *fresh))
        return tuple([next(results) if n is None else fresh[n] for n in order])

    return call
