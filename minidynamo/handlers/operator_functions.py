"""The functions of the operator module that are no operators: identity, items, membership, ..."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..variables.base import ObservedException, VariableTracker, unsupported
from ..variables.builtin_object import checked, has_slot, index_of, is_none, type_name
from ..variables.constant import ConstantVariable
from ..variables.functions import CallableVariable
from ..variables.lazy_iterators import ReversedVariable
from ..variables.lists import SliceVariable, as_sequence
from ..variables.registry import handles
from .operators import binary_op1, rich_compare, special_method

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

_ZERO = ConstantVariable(0)


def _handles(*functions: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    def register(function: Callable[..., Any]) -> Any:
        return handles(*functions)(checked(function, functions[0].__name__))

    return register


@_handles(operator.is_)
def _is(tx: Translator, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(tx.is_same(left, right))


@_handles(operator.is_not)
def _is_not(
    tx: Translator, left: VariableTracker, right: VariableTracker, /
) -> VariableTracker:
    return ConstantVariable(not tx.is_same(left, right))


@_handles(operator.not_)
def _not(tx: Translator, value: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(not value.truth(tx))


@_handles(operator.truth)
def _truth(tx: Translator, value: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(value.truth(tx))


@_handles(operator.contains)
def _contains(
    tx: Translator, container: VariableTracker, item: VariableTracker, /
) -> VariableTracker:
    return container.contains(tx, item)


@_handles(operator.getitem)
def _getitem(tx: Translator, container: VariableTracker, key: VariableTracker, /) -> Any:
    if isinstance(container, ConstantVariable) and not key.is_python_constant():
        key = _constant_index(tx, container, key)
    return container.getitem(tx, key)


def _constant_index(
    tx: Translator, container: ConstantVariable, key: VariableTracker
) -> VariableTracker:
    """The key of a constant sequence with `__index__` of user-defined objects called."""
    if not isinstance(container.value, (str, bytes, range, tuple)):
        return key
    if isinstance(key, SliceVariable):
        return ConstantVariable(slice(*[_index_or_none(tx, part) for part in key.parts]))
    return ConstantVariable(index_of(tx, key)) if key.is_user_defined else key


def _index_or_none(tx: Translator, value: VariableTracker) -> int | None:
    return None if is_none(value.realize()) else index_of(tx, value)


@_handles(operator.setitem)
def _setitem(
    tx: Translator,
    container: VariableTracker,
    key: VariableTracker,
    value: VariableTracker,
    /,
) -> None:
    container.setitem(tx, key, value)


@_handles(operator.delitem)
def _delitem(tx: Translator, container: VariableTracker, key: VariableTracker, /) -> None:
    container.delitem(tx, key)


@_handles(operator.abs)
def _abs(tx: Translator, value: VariableTracker, /) -> VariableTracker:
    return tx.call_function(tx.wrap_constant(abs), [value], {})


def _concatenates(tx: Translator, *values: VariableTracker) -> bool:
    """`PySequence_Check` of classes of the program."""
    return all(
        has_slot(tx, value, "__getitem__")
        and not issubclass(value.python_type(), (dict, torch.Tensor))
        for value in values
    )


@_handles(operator.concat)
def _concat(
    tx: Translator, left: VariableTracker, right: VariableTracker, /
) -> VariableTracker:
    is_list = as_sequence(left, list) is not None or as_sequence(left, tuple) is not None
    if not (is_list or _concatenates(tx, left, right)):
        unsupported("operator", "concat", "concat of these values is not traced")
    if is_list and right.python_type() is torch.Size:  # whose `__radd__` is of numbers, for `+`
        return left.call_method(tx, "__add__", [right], {})
    return tx.call_operator(operator.add, [left, right])


@_handles(operator.iconcat)
def _iconcat(
    tx: Translator, left: VariableTracker, right: VariableTracker, /
) -> VariableTracker:
    if as_sequence(left, list) is None and not _concatenates(tx, left, right):
        unsupported("operator", "iconcat", "iconcat of these values is not traced")
    return tx.call_operator(operator.iadd, [left, right])


@_handles(operator.index)
def _index(tx: Translator, value: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(index_of(tx, value))


@_handles(operator.length_hint)
def _length_hint(
    tx: Translator, value: VariableTracker, default: VariableTracker = _ZERO, /
) -> VariableTracker:
    if default.python_type() not in (int, bool):
        unsupported("operator", "length_hint", "the default is no int")
    try:
        if has_slot(tx, value, "__len__"):
            return tx.call_function(tx.wrap_constant(len), [value], {})
        if not has_slot(tx, value, "__length_hint__"):
            return default
        if isinstance(value, ReversedVariable):
            return value.length_hint(tx)
        if not value.is_user_defined:
            return value.call_method(tx, "__length_hint__", [], {})
        function = special_method(tx, value, "__length_hint__")
        assert function is not None
        hint = tx.call_function(function, [], {}).realize()
    except ObservedException as error:
        if not issubclass(error.value.python_type(), TypeError):
            raise
        return default
    if hint.is_python_constant() and hint.as_python_constant() is NotImplemented:
        return default
    if not issubclass(hint.python_type(), int):
        kind = type_name(hint.python_type())
        tx.raise_observed(TypeError, f"__length_hint__ must be an integer, not {kind}")
    if hint.as_python_constant() < 0:
        tx.raise_observed(ValueError, "__length_hint__() should return >= 0")
    return hint


@_handles(operator.indexOf)
def _index_of(tx: Translator, container: VariableTracker, item: VariableTracker, /) -> Any:
    return tx.wrap_items(list, container.unpack(tx)).call_method(tx, "index", [item], {})


@_handles(operator.countOf)
def _count_of(tx: Translator, container: VariableTracker, item: VariableTracker, /) -> Any:
    return tx.wrap_items(list, container.unpack(tx)).call_method(tx, "count", [item], {})


@_handles(operator.call)
def _call(tx: Translator, function: VariableTracker, /, *args: Any, **kwargs: Any) -> Any:
    return tx.call_function(function, list(args), kwargs)


__all__ = ["CallableVariable", "binary_op1", "rich_compare", "special_method"]
