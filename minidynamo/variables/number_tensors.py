"""Tensors made of numbers, and the numbers that tensors of the graph are known to hold.

`torch.tensor(x.shape[0])` keeps the size a symbol; used as a number again (`item()`, a bound of a
slice) it is that symbol, and the graph does not break.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
)
from torch.fx.node import Node, map_arg

from ..exc import Unsupported
from ..output_graph import example_value
from .base import VariableTracker
from .constant import ConstantVariable
from .input_numbers import number_of_input

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

_NUMBER_OF = torch.ops.aten._local_scalar_dense.default
# Operators on int64 tensors that give what they give on Python's integers.
_OPERATORS = {operator.add, operator.sub, operator.mul, operator.neg}
# What an operator raises that has read a tensor's number, which its result does not show or which
# it wants to be an int.
_READ = (PendingUnbackedSymbolNotFound, GuardOnDataDependentSymNode)
_WANTS_INTS = "expected to contain only concrete integers"
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
        if type(item) in (int, float, complex):  # not by way of the default dtype
            return torch.tensor(item, dtype=wanted, device=place)
        _check_number(item, wanted)
        return _leaf(item, wanted).reshape(()).to(place, wanted)

    return build(data)


def _check_number(
    item: Any,
    wanted: torch.dtype,
) -> None:
    """Eager asks a tensor for an integer or a real number where the dtype wants one."""
    if not isinstance(item, torch.Tensor) or wanted.is_complex:
        return
    if not wanted.is_floating_point and (item.is_floating_point() or item.is_complex()):
        raise TypeError("only integer tensors of a single element can be converted to an index")
    if item.is_complex():
        raise TypeError(f"a complex tensor may not be a number of dtype {wanted}")


def _collect(
    item: Any,
    leaves: list[torch.Tensor],
) -> None:
    if isinstance(item, (list, tuple)):
        for part in item:
            _collect(part, leaves)
    else:
        leaves.append(_leaf(item))


def _leaf(
    item: Any,
    kind: torch.dtype | None = None,
) -> torch.Tensor:
    if isinstance(item, torch.Tensor):
        return item.detach()
    if type(item) not in _DTYPES:
        return torch.tensor(item)
    return torch.scalar_tensor(item, dtype=kind or _DTYPES[type(item)])


def with_items(
    tx: Translator,
    call: tuple[Any, Any],
    given: Any,
    failure: Unsupported,
) -> Any:
    """Arguments of a node with the numbers of the tensors that its operator asked for theirs, as
    eager's parser of arguments does (`roll(x, tensor)`); `failure` where none was asked.

    Without fullgraph only integers, as torch.compile does.
    """
    cause, env = failure.__cause__, tx.output.shape_env
    settings = env.settings
    is_refused = isinstance(cause, DataDependentOutputException) and cause.func is _NUMBER_OF
    if not is_refused and not isinstance(cause, _READ) and _WANTS_INTS not in str(cause):
        raise failure
    env.settings = replace(settings, allow_scalar_outputs=True)
    try:
        if is_refused:
            before = tx.output.checkpoint()
            with contextlib.suppress(Unsupported):
                tx.output.create_node(call[0], call[1], given[0], given[1], ())
            # Where all that it asked for is in its result's sizes, it has been added.
            tx.output.rollback(before)
        numbers = {node: _item(tx, node) for node in _asked(given, is_refused)}
    finally:
        env.settings = settings
    if not numbers:
        raise failure
    return map_arg(given, lambda node: numbers.get(node, node))


def _asked(
    given: Any,
    integers: bool,
) -> list[Node]:
    nodes: dict[Node, None] = {}
    map_arg(given, nodes.setdefault)
    asked = [
        node for node in nodes if getattr(example_value(node), "item_memo", None) is not None
    ]
    is_float = any(example_value(node).is_floating_point() for node in asked)
    return [] if integers and is_float else asked


def _item(
    tx: Translator,
    node: Node,
) -> Any:
    example_value(node).item_memo = None  # the number is to be the result of `item`
    number = known_number(tx, node) or tx.add_node("call_method", "item", (node,), {})
    tx.output.draws.has_items = True
    return tx.as_proxy(number)


def known_number(
    tx: Translator,
    node: Node,
) -> VariableTracker | None:
    """The number that a tensor of the graph holds, where that is known while tracing."""
    constant = getattr(example_value(node), "constant", None)
    if constant is not None and not constant.dim():
        return ConstantVariable(constant.item())
    return _number_behind(tx, node) or number_of_input(tx, node)


def _number_behind(
    tx: Translator,
    value: Any,
) -> VariableTracker | None:
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
