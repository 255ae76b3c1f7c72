"""Comparisons of what torch.rand gives that hold whatever it gives: no such number is negative.

Models that may drop layers in training ask `torch.rand([]) < self.layerdrop` at each layer, most of
them with the rate 0.0.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx.node import Node

_DRAWS = frozenset({torch.rand, torch.rand_like})
# By the comparison's name: whether it holds, and what has to hold of the other number.
_DECIDED: dict[str, tuple[bool, Any]] = {
    "lt": (False, operator.le),
    "ge": (True, operator.le),
    "le": (False, operator.lt),
    "gt": (True, operator.lt),
}
_NAMES: dict[Any, str] = {
    target: name
    for name in _DECIDED
    for target in (name, getattr(torch, name), getattr(operator, name))
}


def decided(comparison: Node) -> bool | None:
    """The truth of a node that compares a new random number; None where it depends on the number.

    Nothing else may use either: the number might have been written to.
    """
    name = _NAMES.get(comparison.target)
    if name is None or comparison.users or comparison.kwargs or len(comparison.args) != 2:
        return None
    drawn, limit = comparison.args
    if not isinstance(drawn, Node) or type(limit) not in (int, float):
        return None
    if drawn.target not in _DRAWS or "out" in drawn.kwargs or len(drawn.users) != 1:
        return None
    answer, is_met = _DECIDED[name]
    return answer if is_met(limit, 0) else None
