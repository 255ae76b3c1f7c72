"""What autograd keeps of the tensors of a graph, as the histories of the fake ones tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from .guards import Check, GuardSet
from .source import AttrSource, Source


def unreached_leaves(given: Sequence[Node], graph: Graph) -> list[int]:
    """By their positions, the leaves that require gradients among what a graph is `given` to which
    nothing that it leaves leads: their hooks are not called for its gradients.

    Empty where a fake tensor requires gradients without a history (results of operators with graphs
    of their own): then it is not known what leads where.
    """
    (output,) = graph.find_nodes(op="output")
    inputs = _fakes(given)
    left = [*inputs, *_fakes(output.all_input_nodes)]
    try:
        made_by = [fake.grad_fn for fake in left if fake is not None]
    except RuntimeError:  # autograd does not say it of views whose base was written to since
        return []
    reached = _leaves(made_by)
    reached |= {id(fake) for fake in _fakes(output.all_input_nodes) if _is_leaf(fake)}
    if not reached <= set(map(id, inputs)):
        return []
    unreached = []
    for position, fake in enumerate(inputs):
        if _is_leaf(fake) and id(fake) not in reached:
            unreached.append(position)
    return unreached


def _leaves(todo: list[Any]) -> set[int]:
    """The ids of the leaves that nodes of autograd lead to."""
    seen: set[Any] = {None}
    found: set[int] = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            found.add(id(node.variable))
        todo.extend(before for before, _ in node.next_functions)
    return found


def _fakes(nodes: Sequence[Node]) -> list[torch.Tensor | None]:
    found: list[torch.Tensor | None] = []
    for node in nodes:
        value = node.meta.get("example_value")
        found.append(value if isinstance(value, torch.Tensor) else None)
    return found


def _is_leaf(fake: torch.Tensor | None) -> bool:
    return fake is not None and fake.requires_grad and fake.is_leaf


def guard_history(guards: GuardSet, source: Source, value: torch.Tensor) -> None:
    """That writes to a tensor are still allowed: autograd refuses them for leaves and for
    views of leaves, an error that belongs into the program's try block.
    """
    base = AttrSource(source, "_base")
    guards.add(AttrSource(source, "is_leaf"), Check.CONST_EQ, False)
    if value._base is None:
        guards.add(base, Check.IS_NONE, None)
    else:
        guards.add(base, Check.NOT_NONE, None)
        guards.add(AttrSource(base, "is_leaf"), Check.CONST_EQ, value._base.is_leaf)
