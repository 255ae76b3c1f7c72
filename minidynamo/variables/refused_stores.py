"""Attributes that objects of builtin types refuse to set or delete: one of the same type, made for
this, says how.
"""

from __future__ import annotations

import collections
import functools
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from .base import REFUSE_STORE, NotConstant, ObservedException, VariableTracker, type_name
from .instance_state import has_setter

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


class _Sample:
    """Has a bound method, and a slot."""

    __slots__ = ("__weakref__", "slot")

    def method(self) -> None:
        """Does nothing."""


# Of types none of whose objects can be stored to.
_EXISTING: tuple[Any, ...] = (
    len,
    str.upper,
    int.__add__,
    (1).__add__,
    vars(dict)["fromkeys"],
    vars(type)["__name__"],
    vars(_Sample)["slot"],
    {}.keys(),
    {}.values(),
    {}.items(),
    _Sample().method,
)
_MADE: dict[type, Callable[[], Any]] = {
    collections.deque: collections.deque,
    functools.partial: lambda: functools.partial(len),
    types.GeneratorType: lambda: (item for item in [0]),
    types.FunctionType: lambda: lambda: None,
    super: lambda: super(object, 1),
    weakref.ref: lambda: weakref.ref(len),
}


_FIXED = {type(value): value for value in _EXISTING}


class _Unknown:
    """Stands for an object that is not known while tracing."""


def refuse_store(tx: Translator, cls: type, name: str, value: VariableTracker | None) -> None:
    """Raise what an object of `cls` raises where its attribute is set, or deleted (value: None).
    Returns where it might not.
    """
    if cls in _FIXED:
        sample = _FIXED[cls]
    elif cls in _MADE and (value is not None or not _may_have(cls, name)):
        sample = _MADE[cls]()
    else:
        return
    try:
        if value is None:
            delattr(sample, name)
            return
        try:
            given = value.realize().as_python_constant()
        except NotConstant:
            given = _Unknown()
        setattr(sample, name, given)
    except (AttributeError, TypeError) as error:
        if isinstance(error, AttributeError) or value is None or type(given) is not _Unknown:
            raise ObservedException(tx.wrap_exception(error)) from error


def _may_have(cls: type, name: str) -> bool:
    """Whether an object of the class may have an entry of that name in its dict."""
    return cls.__dictoffset__ != 0 and not has_setter(cls, name)


def _words_without_dict() -> str:
    """What the interpreter adds where an attribute of an object without a dict is set."""
    try:
        object().missing = None  # type: ignore[attr-defined]
    except AttributeError as error:
        return str(error).partition("'missing'")[2]
    raise AssertionError


_NO_DICT = _words_without_dict()


def refuse_without_dict(tx: Translator, cls: type, name: str, is_of_class: bool) -> NoReturn:
    """What is raised where an attribute is set or deleted of an object that has no dict.

    is_of_class: whether its class has an attribute of that name, which is no data descriptor.
    """
    text = f"'{type_name(cls)}' object attribute '{name}' is read-only"
    if not is_of_class:
        text = f"'{type_name(cls)}' object has no attribute '{name}'" + _NO_DICT
    tx.raise_observed(AttributeError, text)


REFUSE_STORE.append(refuse_store)
