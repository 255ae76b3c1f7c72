"""What autograd keeps of the tensors of a graph: the fake ones have eager's histories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node


def unreached_leaves(given: Sequence[Node], graph: Graph) -> list[int]:
    """By their positions, the leaves that require gradients among what a graph is `given` to which
    nothing that it leaves leads: their hooks are not called for its gradients.
    """
    (output,) = graph.find_nodes(op="output")
    left = output.all_input_nodes
    fakes = [_fake(node) for node in given]
    todo: list[Any] = [
        fake.grad_fn for node in (*given, *left) if (fake := _fake(node)) is not None
    ]
    seen: set[Any] = {None}
    leaves: set[int] = set()
    while todo:
        made_by = todo.pop()
        if made_by in seen:
            continue
        seen.add(made_by)
        if type(made_by).__name__ == "AccumulateGrad":
            leaves.add(id(made_by.variable))
        todo.extend(before for before, _ in made_by.next_functions)
    return [
        position
        for position, fake in enumerate(fakes)
        if fake is not None and _is_leaf(fake) and id(fake) not in leaves
    ]


def _fake(node: Node) -> torch.Tensor | None:
    value = node.meta.get("example_value")
    return value if isinstance(value, torch.Tensor) else None


def _is_leaf(fake: torch.Tensor) -> bool:
    return fake.requires_grad and fake.is_leaf
