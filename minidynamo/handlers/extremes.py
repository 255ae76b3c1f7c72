"""`min` and `max` of tensors of one number, as a choice inside of the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..variables.base import VariableTracker
from ..variables.constant import ConstantVariable
from ..variables.tensor import TensorVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

_RANK: dict[Any, int] = {bool: 0, int: 1, float: 2}


def _rank(dtype: torch.dtype) -> int:
    return 0 if dtype is torch.bool else 1 if not dtype.is_floating_point else 2


def _is_choice(value: VariableTracker, like: torch.Tensor) -> bool:
    """Whether a tensor like `like` can stand for the value."""
    if isinstance(value, TensorVariable):
        fake = value.fake
        return not fake.dim() and (fake.dtype, fake.device) == (like.dtype, like.device)
    is_number = isinstance(value, ConstantVariable) and type(value.value) in _RANK
    return is_number and _RANK[type(value.value)] <= _rank(like.dtype)  # type: ignore[attr-defined]


def select_extreme(
    tx: Translator, better: Callable[..., Any], items: list[VariableTracker]
) -> VariableTracker | None:
    """The first of the best of the items, a new tensor; None where the program has to choose.

    Eager gives one of the items itself. So they are to be tensors that only the graph has, and one
    that is written to later is chosen by eager; with fullgraph any tensors and numbers will do.
    """
    tensors = [item for item in items if isinstance(item, TensorVariable)]
    if not tensors or tensors[0].fake.is_complex() or tx.output.overrides.has_modes:
        return None
    like = tensors[0].fake
    if not all(_is_choice(item, like) for item in items) or len(items) < 2:
        return None
    is_inner = all(isinstance(item, TensorVariable) and item.source is None for item in items)
    if not is_inner and not tx.output.options.fullgraph:
        return None
    best = items[0]
    for item in items[1:]:
        if not isinstance(item, TensorVariable) and not isinstance(best, TensorVariable):
            best = item if tx.call_operator(better, [item, best]).truth(tx) else best
            continue
        test = tx.call_operator(better, [item, best])
        best = tx.call_operation(torch.where, [test, item, best], {})
    assert isinstance(best, TensorVariable)
    tx.output.side_effects.choices.append((tx.last_step(), best.fake, best.fake._version))
    return best
