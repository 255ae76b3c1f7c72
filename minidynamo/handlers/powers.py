"""`pow` of three arguments, as `ternary_op` of CPython asks the slots of all three."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, NoReturn

from ..variables.base import VariableTracker, unsupported
from ..variables.builtin_object import NOT_IMPLEMENTED, type_name
from ..variables.constant import ConstantVariable
from ..variables.descriptors import lookup_special
from ..variables.user_values import UserValueVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

# Of ints, floats and complex numbers; "user" is the slot of classes made in Python.
_FAMILIES = (int, float, complex)
_ASKED = ("__pow__", "__rpow__")


def power(tx: Translator, values: list[VariableTracker]) -> VariableTracker:
    """`pow(base, exp, mod)`, not all of them constants."""
    values = [value.realize() for value in values]
    kinds = [value.python_type() for value in values]
    slots = [_slot(value) for value in values]
    first, second, third = slots
    if kinds[0] is kinds[1] or first is second:
        second = None
    asked = [(0, first), (1, second)]
    if second is not None and issubclass(kinds[1], kinds[0]):
        asked.reverse()
    if third not in (first, second):
        asked.append((2, third))
    for _, slot in asked:
        result = _ask(tx, slot, slots, values)
        if not (isinstance(result, ConstantVariable) and result.value is NotImplemented):
            return result
    names = ", ".join(f"'{type_name(kind)}'" for kind in kinds)
    tx.raise_observed(TypeError, f"unsupported operand type(s) for ** or pow(): {names}")


def _slot(value: VariableTracker) -> type | str | None:
    """Which C function the slot is; None where there is none."""
    cls = value.python_type()
    methods = [getattr(cls, name, None) for name in _ASKED]
    if any(isinstance(method, types.FunctionType) for method in methods):
        return "user"
    if methods == [None, None]:
        return None
    family = next((family for family in _FAMILIES if issubclass(cls, family)), None)
    is_own = family is not None and methods == [getattr(family, name) for name in _ASKED]
    if is_own and isinstance(value, (ConstantVariable, UserValueVariable)):
        return family
    _refuse()


def _ask(
    tx: Translator,
    slot: type | str | None,
    slots: list[type | str | None],
    values: list[VariableTracker],
) -> VariableTracker:
    if slot is None:
        return NOT_IMPLEMENTED
    if slot == "user":  # `slot_nb_power`, which asks the first one only
        if slots[0] != "user":
            return NOT_IMPLEMENTED
        method = lookup_special(tx, values[0], "__pow__")
        if method is None:
            _refuse()
        return tx.call_function(method, values[1:], {}).realize()
    if slot is not int:
        _refuse()
    if not all(issubclass(value.python_type(), int) for value in values):
        return NOT_IMPLEMENTED
    numbers = [
        value.base if isinstance(value, UserValueVariable) else value for value in values
    ]
    return tx.fold(pow, [int(number.as_python_constant()) for number in numbers], {})


def _refuse() -> NoReturn:
    unsupported("pow()", "pow with 3 arguments", "what these values do with it is not traced")
