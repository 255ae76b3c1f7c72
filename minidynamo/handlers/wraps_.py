"""`functools.update_wrapper` (and so `functools.wraps`) on functions that the traced code made."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ..side_effects import DELETED
from ..variables.base import ObservedException, VariableTracker
from ..variables.functions import BoundMethodVariable, UserFunctionVariable
from ..variables.instance_state import InstanceState
from ..variables.nested_functions import NestedFunctionVariable
from ..variables.registry import handles
from .caches import NewCacheVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
# `__annotations__` are taken over apart: those of a new function are no traced dict yet.
_COPIED = ("__module__", "__name__", "__qualname__", "__doc__")


def _is_default(kwargs: Kwargs) -> bool:
    """Whether the lists of attributes are those of functools."""
    defaults = {
        "assigned": functools.WRAPPER_ASSIGNMENTS,
        "updated": functools.WRAPPER_UPDATES,
    }
    return all(
        value.is_python_constant() and value.as_python_constant() == defaults[name]
        for name, value in kwargs.items()
    )


@handles(functools.update_wrapper)
def update_wrapper(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """Other wrappers than new functions: functools' own code is traced."""
    named = dict(kwargs)
    wrapped = named.pop("wrapped", None) or (args[1] if len(args) == 2 else None)
    wrapper = args[0] if args else None
    if not isinstance(wrapper, (NestedFunctionVariable, NewCacheVariable)) or wrapped is None:
        return NotImplemented
    if not set(named) <= {"assigned", "updated"} or not _is_default(named):
        return NotImplemented
    attributes = _dict_of(tx, wrapped)
    if attributes is None:
        return NotImplemented
    for attribute in _COPIED:
        _copy(tx, wrapper, wrapped, attribute)
    _copy_annotations(tx, wrapper, wrapped)
    for name, value in attributes.items():
        wrapper.setattr(tx, name, value)
    wrapper.setattr(tx, "__wrapped__", wrapped)
    return wrapper


def _copy(tx: Translator, to: VariableTracker, source: VariableTracker, name: str) -> None:
    try:
        value = source.getattr(tx, name)
    except ObservedException as error:
        if not issubclass(error.value.python_type(), AttributeError):
            raise
        return
    to.setattr(tx, name, value)


def _copy_annotations(
    tx: Translator, wrapper: VariableTracker, wrapped: VariableTracker
) -> None:
    if isinstance(wrapped, BoundMethodVariable):
        wrapped = wrapped.function.realize()
    if isinstance(wrapped, (UserFunctionVariable, NestedFunctionVariable)):
        wrapper.setattr(tx, "__annotations__", wrapped.getattr(tx, "__annotations__"))


def _dict_of(tx: Translator, wrapped: VariableTracker) -> dict[str, VariableTracker] | None:
    """The attributes that a function was given (a method has those of its function); None where
    they are not known.
    """
    if isinstance(wrapped, BoundMethodVariable):
        return _dict_of(tx, wrapped.function.realize())
    if isinstance(wrapped, UserFunctionVariable):
        found = tx.output.side_effects.stored_attrs(wrapped)
        stored = {name: value for name, value in found.items() if _is_own(name, value)}
        names = [name for name in vars(wrapped.fn) if name not in stored]
        return {**{name: wrapped.getattr(tx, name) for name in names}, **stored}  # type: ignore[dict-item]
    if isinstance(wrapped, InstanceState):
        names = list(wrapped.instance_names(tx))
        return {name: wrapped.load_instance(tx, name) for name in names}  # type: ignore[misc]
    constant = wrapped.is_python_constant() and not hasattr(
        wrapped.as_python_constant(), "__dict__"
    )
    return {} if constant else None


def _is_own(name: str, value: object) -> bool:
    return value is not DELETED and not (name.startswith("__") and name != "__wrapped__")
