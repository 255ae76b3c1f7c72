"""Tensors filled with the number in another: `torch.full(size, t)`, `x.new_full(size, t)`.

Eager reads the number. Here the tensor itself is written, where its numbers fit those of the
result: eager refuses numbers that do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..variables.base import VariableTracker
from ..variables.registry import handles
from ..variables.tensor import TensorVariable, tensor_method

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


_OPTIONS = frozenset("dtype device layout pin_memory".split())


def _number(
    args: Args, kwargs: Kwargs, options: frozenset[str] = _OPTIONS
) -> TensorVariable | None:
    """The tensor that eager takes as a number, if the second argument is one."""
    tensor = args[1].realize() if len(args) == 2 else None
    if type(tensor) is not TensorVariable or kwargs.keys() - options:
        return None
    return None if tensor.fake.dim() or tensor.fake.requires_grad else tensor


def _is_size(value: VariableTracker) -> bool:
    """One number is none to these functions, though it is to torch.empty."""
    return value.realize().python_type() in (tuple, list, torch.Size)


def _dtype(kwargs: Kwargs, default: torch.dtype) -> torch.dtype:
    given = kwargs.get("dtype")
    return (given.as_python_constant() if given is not None else None) or default


def _fits(number: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether each number of the one dtype is one of the other, perhaps rounded."""
    if wanted.is_complex or number.is_complex:
        return number == wanted
    if wanted.is_floating_point:
        return torch.promote_types(number, wanted) == wanted and wanted.itemsize >= 4
    return number == wanted


def _filled(tx: Translator, made: VariableTracker, number: VariableTracker) -> VariableTracker:
    return made.call_method(tx, "fill_", [number], {})


@handles(torch.full)
def full(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    number = _number(args, kwargs)
    if number is None or not _is_size(args[0]):
        return NotImplemented
    kind = number.fake.dtype
    numbers = torch.get_default_dtype() if kind.is_floating_point else torch.int64
    dtype = _dtype(kwargs, kind if kind is torch.bool else numbers)
    if not _fits(kind, dtype):
        return NotImplemented
    kwargs = {**kwargs, "dtype": tx.wrap_constant(dtype)}
    made = tx.call_function(tx.wrap_constant(torch.empty), args[:1], kwargs)
    return _filled(tx, made, number)


@handles(torch.full_like)
def full_like(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    number = _number(args, kwargs, _OPTIONS | {"memory_format"})
    like = args[0].realize() if args else None
    if number is None or not isinstance(like, TensorVariable):
        return NotImplemented
    if not _fits(number.fake.dtype, _dtype(kwargs, like.fake.dtype)):
        return NotImplemented
    made = tx.call_function(tx.wrap_constant(torch.empty_like), [like], kwargs)
    return _filled(tx, made, number)


@tensor_method("new_full")
def new_full(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
    number = _number(args, kwargs)
    if number is None or not _is_size(args[0]):
        return NotImplemented
    if not _fits(number.fake.dtype, _dtype(kwargs, self.fake.dtype)):
        return NotImplemented
    made = self.call_method(tx, "new_empty", args[:1], kwargs)
    return _filled(tx, made, number)
