"""isinstance and issubclass."""

from __future__ import annotations

import _abc
import abc
import types
import typing
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..variables.base import NotConstant, ObservedException, VariableTracker, unsupported
from ..variables.builtin_object import observed
from ..variables.constant import LIBRARY, ConstantVariable, is_of_library
from ..variables.descriptors import bind, class_lookup, guard_class
from ..variables.lists import SequenceVariable
from ..variables.marks import is_attribute_error, is_marked
from ..variables.registry import handles
from ..variables.tensor import TensorVariable
from .builtins import Values, builtin

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


def class_of(
    tx: Translator,
    value: VariableTracker,
) -> Any:
    """The second argument of isinstance and issubclass: classes, unions and tuples of them."""
    try:
        return value.as_python_constant()
    except NotConstant:
        if isinstance(value, SequenceVariable):
            return tuple(class_of(tx, item.realize()) for item in value.items)
        unsupported("isinstance", repr(value), "the class is not known while tracing")


@builtin(isinstance)
def _isinstance(
    tx: Translator,
    value: Values,
    classes: Values,
    /,
) -> Values:
    checked_classes = class_of(tx, classes)
    if any(value.python_type() is kind for kind in weakref.ProxyTypes):
        unsupported("isinstance", repr(value), "it asks what a proxy of weakref stands for")
    return ConstantVariable(_matches(tx, value, checked_classes))


def _matches(
    tx: Translator,
    value: VariableTracker,
    classes: Any,
) -> bool:
    """`object_recursive_isinstance`: one class after the other, so that what is wrong with a
    later one is an error only if no earlier one fits.
    """
    if isinstance(classes, tuple):
        return any(_matches(tx, value, item) for item in classes)
    if isinstance(classes, types.UnionType):
        if any(isinstance(item, types.GenericAlias) for item in classes.__args__):
            return _matches_no_class(tx, value, classes)
        return any(
            _matches(tx, value, item) for item in classes.__args__ if isinstance(item, type)
        )
    if not isinstance(classes, type):
        return _matches_no_class(tx, value, classes)
    check = _own_check(tx, classes, "__instancecheck__")
    if check is not None:
        is_same = value.python_type() is classes
        return is_same or tx.call_function(check, [value], {}).truth(tx)
    with observed(tx):
        if is_marked(tx, value, classes) or _is_instance(tx, value, classes):
            return True
        shown = None if _is_protocol(classes) else _shown_class(tx, value)
        return shown is not None and issubclass(shown, classes)


def _matches_no_class(
    tx: Translator,
    value: VariableTracker,
    alias: Any,
) -> bool:
    """What is no class raises as Python does, but for hints like typing.List and
    typing.Union[int, str], which ask for the type.
    """
    with observed(tx):
        if value.is_python_constant():
            return isinstance(value.as_python_constant(), alias)
        if not isinstance(alias, typing._BaseGenericAlias):  # type: ignore[attr-defined]
            isinstance(None, alias)
        return issubclass(value.python_type(), alias)


def _own_check(
    tx: Translator,
    cls: Any,
    name: str,
) -> VariableTracker | None:
    """The method by which a metaclass of the program answers, bound to the class; or None."""
    meta: Any = type(cls)
    if not isinstance(cls, type):
        return None
    if not is_of_library(meta.__module__):
        guard_class(tx, meta)
    if getattr(meta, name) is getattr(type, name):
        return None
    owner = next(base for base in meta.__mro__ if name in vars(base))
    is_python = isinstance(vars(owner)[name], types.FunctionType)
    if is_of_library(owner.__module__) or not is_python:
        return None
    found = class_lookup(tx, meta, name)
    assert found is not None
    return bind(tx, found, tx.wrap_constant(cls), meta)


def _shown_class(
    tx: Translator,
    value: VariableTracker,
) -> type | None:
    """What `__class__` gives where a user's class says something else than the type is."""
    if not value.is_user_defined:
        return None
    cls = value.python_type()
    found = class_lookup(tx, cls, "__class__")
    plain = cls.__getattribute__ is object.__getattribute__
    if plain and found is not None and found.raw is vars(object)["__class__"]:
        return None
    try:
        shown = tx.getattr(value, "__class__").as_python_constant()
    except ObservedException as error:
        if not is_attribute_error(error):
            raise
        return None
    except NotConstant:
        return None
    return shown if isinstance(shown, type) and shown is not cls else None


def _is_instance(
    tx: Translator,
    value: VariableTracker,
    cls: type,
) -> bool:
    kind = value.python_type()
    if type(cls) is type or kind is cls:
        return issubclass(kind, cls)
    of_tensors = isinstance(cls, type) and issubclass(cls, torch.Tensor)  # or typing.Mapping
    if isinstance(value, TensorVariable):
        if of_tensors:
            return issubclass(kind, cls)  # what stands for the tensor is a FakeTensor
        return isinstance(value.fake, cls)
    if value.is_python_constant():
        return isinstance(value.as_python_constant(), cls)
    if type(cls).__instancecheck__ is type.__instancecheck__ or of_tensors:
        return issubclass(kind, cls)
    if _is_protocol(cls):
        return _has_members(tx, value, cls)
    real = tx.output.side_effects.real_of(value)
    if real is not None:
        return isinstance(real, cls)
    if "__instancecheck__" in _user_methods(cls):
        unsupported("isinstance", cls.__qualname__, "its metaclass has an __instancecheck__")
    if not isinstance(cls, abc.ABCMeta):
        return isinstance(_Stand(kind), cls)
    return issubclass(kind, cls)


def _is_protocol(cls: type) -> bool:
    """Whether it is a protocol of typing, not a class that implements one."""
    return isinstance(cls, type(typing.Protocol)) and getattr(cls, "_is_protocol", False)


def _has_members(
    tx: Translator,
    value: VariableTracker,
    protocol: Any,
) -> bool:
    """`typing._ProtocolMeta.__instancecheck__`: the object is asked for each member."""
    kind = value.python_type()
    if not protocol._is_runtime_protocol and tx.globals.get("__name__") not in _RECKLESS:
        return isinstance(None, protocol)  # raises
    listed = getattr(protocol, "__protocol_attrs__", None)
    names = sorted(typing._get_protocol_attrs(protocol) if listed is None else listed)  # type: ignore[attr-defined]
    called = {name for name in names if callable(getattr(protocol, name, None))}
    if abc.ABCMeta.__instancecheck__(protocol, _Stand(kind)):
        return True
    if len(called) == len(names) and not value.is_user_defined:
        return False
    return all(_has_member(tx, value, name, name in called) for name in names)


# The modules that typing lets ask about any protocol: their code walks over whole MROs.
_RECKLESS = ("abc", "functools")


class _Stand:
    """Says that it is of a class: `_abc_instancecheck` asks no more. Itself it has no hash, so
    that it passes for nothing that the class does not pass for.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, cls: type) -> None:
        self._shown = cls

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._shown


def _has_member(
    tx: Translator,
    value: VariableTracker,
    name: str,
    is_called: bool,
) -> bool:
    """Whether the object has a member; None is no method."""
    try:
        found = tx.getattr(value, name).realize()
    except ObservedException as error:
        if not is_attribute_error(error):
            raise
        return False
    return not is_called or found.python_type() is not types.NoneType


Args = list[VariableTracker]


def _checks(function: Any) -> Callable[..., Any]:
    """Registers what a check of Python's own metaclasses asks of (class, object)."""

    def register(check: Callable[..., Any]) -> Any:
        def handler(tx: Translator, args: Args, kwargs: dict[str, VariableTracker]) -> Any:
            if len(args) != 2 or kwargs or not args[0].realize().is_python_constant():
                return NotImplemented
            return check(tx, args[0].realize().as_python_constant(), args[1].realize())

        return handles(function)(handler)

    return register


@_checks(type.__instancecheck__)
def _plain_instance(tx: Translator, cls: Any, value: VariableTracker) -> VariableTracker:
    kinds = (value.python_type(), _shown_class(tx, value))
    return ConstantVariable(any(kind is not None and cls in kind.__mro__ for kind in kinds))


@_checks(type.__subclasscheck__)
def _plain_subclass(tx: Translator, cls: Any, value: VariableTracker) -> Any:
    kind = value.as_python_constant() if value.is_python_constant() else None
    return ConstantVariable(cls in kind.__mro__) if isinstance(kind, type) else NotImplemented


@_checks(_abc._abc_instancecheck)
def _abstract_instance(tx: Translator, cls: Any, value: VariableTracker) -> VariableTracker:
    kind = _shown_class(tx, value) or value.python_type()
    own = _own_check(tx, cls, "__subclasscheck__")
    if own is not None:
        return tx.call_function(own, [tx.wrap_constant(kind)], {})
    return tx.fold(_abc._abc_subclasscheck, (cls, kind), {})


@_checks(_abc._abc_subclasscheck)
def _abstract_subclass(tx: Translator, cls: Any, value: VariableTracker) -> VariableTracker:
    return tx.fold(_abc._abc_subclasscheck, (cls, value.as_python_constant()), {})


def _user_methods(cls: type) -> set[str]:
    """What the metaclasses written outside of abc and typing define."""
    metas: tuple[type, ...] = type(cls).__mro__  # type: ignore[assignment]
    return {name for meta in metas if meta.__module__ not in LIBRARY for name in vars(meta)}


@builtin(issubclass)
def _issubclass(
    tx: Translator,
    cls: Values,
    classes: Values,
    /,
) -> Values:
    own: list[VariableTracker] = []

    def others(classes: Any) -> Any:
        """Those whose metaclasses are Python's."""
        if isinstance(classes, tuple):
            return tuple(map(others, classes))
        check = _own_check(tx, classes, "__subclasscheck__")
        if check is None:
            return classes
        own.append(check)
        return ()

    rest = others(class_of(tx, classes))
    if any(tx.call_function(check, [cls], {}).truth(tx) for check in own):
        return ConstantVariable(True)
    return tx.fold(issubclass, (cls.as_python_constant(), rest), {})
