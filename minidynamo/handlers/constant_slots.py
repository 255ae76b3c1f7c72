"""Operators of constants: numbers, str and bytes, with operands that are no constants."""

from __future__ import annotations

import datetime
import decimal
import operator
from collections.abc import Sized
from enum import Enum
from typing import TYPE_CHECKING, Any

from ..guards import Predicate
from ..variables.base import VariableTracker, unsupported
from ..variables.builtin_object import NOT_IMPLEMENTED, has_slot, index_of
from ..variables.constant import ConstantVariable
from ..variables.user_values import UserValueVariable
from .percent import format_values

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


def slot_with_value(
    tx: Translator, operand: ConstantVariable, method: str, other: UserValueVariable
) -> VariableTracker:
    """A constant's slot with an object that it takes for the number or text it holds."""
    value, kinds = operand.value, (type(operand.value), other.family)
    if not has_slot(tx, operand, method):
        return NOT_IMPLEMENTED
    slot = getattr(type(value), method)
    if isinstance(value, Sized):
        fits = kinds == (str, str) or (method == "__mul__" and other.family is int)
        if method == "__mod__" and not other.overrides("__rmod__"):
            return format_values(tx, operand, other)
        if not fits or method == "__mod__" or other.overrides("__rmul__"):
            unsupported("operator", f"{method} of {operand!r} and {other!r}", "not traced")
    return tx.fold(slot, (value, other.base.value), {})


def constant_slot(
    tx: Translator,
    operand: ConstantVariable,
    method: str,
    other: VariableTracker,
) -> VariableTracker:
    """A constant's slot with an operand that is no constant: numbers and strings do not know it."""
    if isinstance(operand.value, (str, bytes)) and method == "__mod__":
        return format_values(tx, operand, other)
    if isinstance(operand.value, (str, bytes)) and method in ("__mul__", "__rmul__"):
        if not other.is_user_defined or not hasattr(other.python_type(), "__index__"):
            return NOT_IMPLEMENTED
        return tx.fold(operator.mul, (operand.value, index_of(tx, other)), {})
    members = issubclass(other.python_type(), Enum) or isinstance(operand.value, Enum)
    if members and isinstance(other, ConstantVariable) and hasattr(operand.value, method):
        return tx.fold(getattr(type(operand.value), method), (operand.value, other.value), {})
    return NOT_IMPLEMENTED


# Written in C, and their objects never change.
_IMMUTABLE = (datetime.date, datetime.time, datetime.datetime, decimal.Decimal)


def fixed_object(tx: Translator, value: VariableTracker) -> Any:
    """An object that existed before, which never changes, guarded; None for others."""
    real = tx.output.side_effects.real_of(value)
    kind = type(real)
    is_fixed = kind in _IMMUTABLE and getattr(real, "tzinfo", None) is None
    if value.source is None or not is_fixed or (kind is decimal.Decimal and real.is_nan()):
        return None
    tx.guard(value.source, "TYPE_IS", kind)
    tx.guard(value.source, "PREDICATE", Predicate(lambda v: v == real, f"it is {real}"))
    return real
