"""Tensors made of numbers, and the numbers that tensors of the graph are known to hold.

`torch.tensor(x.shape[0])` keeps the size a symbol; used as a number again (`item()`, a bound of a
slice) it is that symbol, and the graph does not break.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.node import Node

from ..output_graph import example_value
from .base import VariableTracker
from .constant import ConstantVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

# Operators on int64 tensors that give what they give on Python's integers.
_OPERATORS = {operator.add, operator.sub, operator.mul, operator.neg}
# torch.tensor makes constants of symbols; None: the default dtype.
_DTYPES = {torch.SymInt: torch.int64, torch.SymBool: torch.bool, torch.SymFloat: None}


def tensor_of_items(
    data: Any, dtype: torch.dtype | None = None, device: Any = None
) -> torch.Tensor:
    """A node of the graph: `torch.tensor(data)` where tensors or symbolic numbers are in it.

    data: a number, or lists and tuples of numbers and tensors, where a tensor is the number
    that is its one item (eager raises for others). The dtype is that to which all of them promote.
    """
    leaves: list[torch.Tensor] = []
    _collect(data, leaves)
    wanted = dtype or functools.reduce(torch.promote_types, (leaf.dtype for leaf in leaves))
    place = device or torch.get_default_device()

    def build(item: Any) -> torch.Tensor:
        if isinstance(item, (list, tuple)):
            return torch.stack([build(part) for part in item])
        if type(item) in (int, float):  # not by way of the default dtype
            return torch.tensor(item, dtype=wanted, device=place)
        return _leaf(item, wanted).reshape(()).to(place, wanted)

    return build(data)


def _collect(item: Any, leaves: list[torch.Tensor]) -> None:
    if isinstance(item, (list, tuple)):
        for part in item:
            _collect(part, leaves)
    else:
        leaves.append(_leaf(item))


def _leaf(item: Any, kind: torch.dtype | None = None) -> torch.Tensor:
    if isinstance(item, torch.Tensor):
        return item.detach()
    if type(item) not in _DTYPES:
        return torch.tensor(item)
    return torch.scalar_tensor(item, dtype=kind or _DTYPES[type(item)])


def known_number(tx: Translator, node: Node) -> VariableTracker | None:
    """The number that a tensor of the graph holds, where that is known while tracing."""
    constant = getattr(example_value(node), "constant", None)
    if constant is not None and not constant.dim():
        return ConstantVariable(constant.item())
    return _number_behind(tx, node)


def _number_behind(tx: Translator, value: Any) -> VariableTracker | None:
    if not isinstance(value, Node):
        return ConstantVariable(value) if type(value) is int else None
    fake = example_value(value)
    if isinstance(fake, torch.SymInt):
        return tx.wrap_node(value)
    if not isinstance(fake, torch.Tensor) or fake.dim() or fake.dtype is not torch.int64:
        return None
    if fake.is_inference() or fake._version:  # nothing has been written to it
        return None
    if value.target is tensor_of_items:
        return _number_behind(tx, value.args[0])
    if value.target not in _OPERATORS or value.kwargs:
        constant = getattr(fake, "constant", None)
        return None if constant is None else ConstantVariable(constant.item())
    operands = []
    for operand in value.args:
        number = _number_behind(tx, operand)
        if number is None:
            return None
        operands.append(number)
    return tx.call_function(tx.wrap_constant(value.target), operands, {})
