"""What backward passes that a graph captures (config.trace_autograd_ops) do to histories.

A pass frees the history that it walks, and `requires_grad_()` on a tensor that the graph makes
starts one that AOTAutograd does not know of: no result of the graph may have either.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def history(roots: Iterable[Any], stops: Iterable[Any] = ()) -> list[Any]:
    """The nodes of autograd's graph behind `roots`, these included; nothing behind `stops`."""
    found: dict[Any, None] = {}
    ended, stack = set(stops), [node for node in roots if node is not None]
    while stack:
        node = stack.pop()
        if node not in found and node not in ended:
            found[node] = None
            stack += [after for after, _ in node.next_functions if after is not None]
    return list(found)


def is_of_leaf(node: Any) -> bool:
    """Whether it is where a leaf's gradients are accumulated, which no pass frees."""
    return type(node).__name__ == "AccumulateGrad"


class CapturedBackward:
    """The nodes that passes freed, and the leaves that the graph has made, each with the step of
    the frame that did it.
    """

    def __init__(self) -> None:
        self.freed: dict[Any, int] = {}
        self.leaves: list[tuple[torch.Tensor, int]] = []

    def spoilt(self, results: Iterable[Any]) -> int | None:
        """The step because of which one of the `results` of the graph is not as in eager."""
        if not (self.freed or self.leaves):
            return None
        made = {id(leaf): step for leaf, step in self.leaves}
        for result in results:
            if not isinstance(result, torch.Tensor) or not result.requires_grad:
                continue
            if id(result) in made:
                return made[id(result)]
            for node in history([result.grad_fn]):
                step = self.freed.get(node)
                if step is None and is_of_leaf(node):
                    step = made.get(id(node.variable))
                if step is not None:
                    return step
        return None
