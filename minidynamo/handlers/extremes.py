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
    """The first of the best of the items, a choice in the graph; None where the program chooses.

    Code behind the graph picks the item itself, as eager gives it. A choice that is written to, or
    one of which an item is written to, is made by eager. Inputs that gradients flow to are chosen
    from with fullgraph only, where numbers will do, too: those not chosen would get zeros.
    """
    tensors = [item for item in items if isinstance(item, TensorVariable)]
    if not tensors or tensors[0].fake.is_complex() or tx.output.overrides.has_modes:
        return None
    like = tensors[0].fake
    if not all(_is_choice(item, like) for item in items) or len(items) < 2:
        return None
    if not (all(map(_can_be_chosen, items)) or tx.output.options.fullgraph):
        return None
    effects, best = tx.output.side_effects, items[0]
    for item in items[1:]:
        if not isinstance(item, TensorVariable) and not isinstance(best, TensorVariable):
            best = item if tx.call_operator(better, [item, best]).truth(tx) else best
            continue
        test = tx.call_operator(better, [item, best])
        both = [test, item, best]
        best = tx.call_operation(torch.where, both, {})
        assert isinstance(best, TensorVariable)
        best.choice = both
        tensors.append(best)
        effects.picked.append((tx.last_step(), best.fake.untyped_storage()._cdata))
    step = tx.last_step()
    effects.choices += [(step, t.fake, t.fake._version) for t in tensors]
    return best


def _can_be_chosen(item: VariableTracker) -> bool:
    """Whether nothing tells that the graph has another tensor than the item for it."""
    if not isinstance(item, TensorVariable):
        return False
    fake = item.fake
    is_plain = item.python_type() is torch.Tensor and not fake.requires_grad
    return item.source is None or (is_plain and fake.layout is torch.strided)
