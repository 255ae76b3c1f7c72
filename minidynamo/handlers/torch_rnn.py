"""Recurrent layers: they can't be differentiated in a graph, so training breaks around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..variables.base import VariableTracker, unsupported
from ..variables.registry import Handler, handles
from ..variables.tensor import TensorVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

_VF = torch._C._VariableFunctions


def _needs_grad(values: list[VariableTracker]) -> bool:
    flat = [v.realize() for v in values]
    tensors = [v for v in flat if isinstance(v, TensorVariable)]
    nested = [v for v in flat if v.python_type() in (tuple, list)]
    inner = [getattr(v, "items", []) for v in nested]
    return any(t.fake.requires_grad for t in tensors) or any(map(_needs_grad, inner))


def _recurrent(target: Any) -> Handler:
    def handler(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> VariableTracker:
        if torch.is_grad_enabled() and _needs_grad(args):
            unsupported(
                "recurrent layer in training",
                target.__name__,
                f"AOTAutograd can't differentiate torch.{target.__name__} inside a graph",
                ["leave the recurrent layer to eager, or run under torch.no_grad()"],
            )
        return tx.call_operation(target, args, kwargs)

    return handler


for _name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    _target = getattr(_VF, _name)
    handles(_target)(_recurrent(_target))
