"""`inspect`: signatures of functions that are known while tracing."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any

from ..source import (
    AttrSource,
    ConstSource,
    FuncDefaultsTupleSource,
    FuncKwDefaultsDictSource,
    FuncKwDefaultsSource,
)
from ..variables.base import NotConstant, VariableTracker
from ..variables.builtin_object import observed
from ..variables.constant import ConstantVariable, is_value
from ..variables.functions import BoundMethodVariable, UserFunctionVariable
from ..variables.registry import handles
from ..variables.user_defined import UserDefinedObjectVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

# What an object may have that `inspect.signature` prefers to the `__call__` of its class.
_OTHER_SIGNATURES = (
    "__signature__ __wrapped__ __code__ _partialmethod __partialmethod__".split()
)


@handles(inspect.signature)
def signature(
    tx: Translator,
    args: list[VariableTracker],
    kwargs: dict[str, Any],
) -> Any:
    """The signature depends on the function alone; of a bound method, not on its object."""
    real = _known_callable(tx, args, kwargs)
    if real is None:
        return NotImplemented
    if isinstance(real, type) and _is_init_alone(real):
        try:
            init = args[0].getattr(tx, "__init__").realize()
            made_by: Any = _watched(tx, init, init.as_python_constant())
        except NotConstant:
            return NotImplemented
    else:
        made_by = real
    if not isinstance(made_by, (types.FunctionType, types.MethodType)):
        return NotImplemented
    with observed(tx):
        result = inspect.signature(real)
    return tx.wrap(result, ConstSource(result, f"signature of {real.__name__}"))


def _known_callable(tx: Translator, args: list[VariableTracker], kwargs: dict[str, Any]) -> Any:
    """The one argument, or None; methods are bound to another object than the program's.

    An object that is called has the signature of its type's `__call__`.
    """
    if len(args) != 1 or kwargs:
        return None
    function = args[0].realize()
    if isinstance(function, UserDefinedObjectVariable):
        has = tx.wrap_constant(hasattr)
        for name in _OTHER_SIGNATURES:
            if tx.call_function(has, [function, ConstantVariable(name)], {}).truth(tx):
                return None
        kind = tx.call_function(tx.wrap_constant(type), [function], {})
        call = tx.getattr(kind, "__call__").realize()
        if not isinstance(call, UserFunctionVariable):
            return None
        return types.MethodType(_watched(tx, call, call.as_python_constant()), object())
    try:
        if isinstance(function, BoundMethodVariable):
            method = function.function.realize()
            return types.MethodType(_watched(tx, method, method.as_python_constant()), object())
        return _watched(tx, function, function.as_python_constant())
    except NotConstant:
        return None


def _watched(tx: Translator, variable: VariableTracker, real: Any) -> Any:
    """The function, whose defaults, annotations and attributes the signature may depend on."""
    source, watched = tx.source_of(variable, real), real
    seen: set[int] = set()
    while isinstance(watched, types.FunctionType) and id(watched) not in seen:
        seen.add(id(watched))  # one may wrap itself, which inspect refuses
        tx.guard(FuncDefaultsTupleSource(source), "ID_IS", watched.__defaults__)
        tx.guard(AttrSource(source, "__annotations__"), "ID_IS", watched.__annotations__)
        if watched.__kwdefaults__ is None:
            tx.guard(FuncKwDefaultsDictSource(source), "IS_NONE")
        for name, value in (watched.__kwdefaults__ or {}).items():
            tx.guard(FuncKwDefaultsSource(source, name), "ID_IS", value)
        names = ("__signature__", "__wrapped__")
        present = [name for name in names if hasattr(watched, name)]
        for name in names:
            tx.guard(source, "HAS_ATTR" if name in present else "LACKS_ATTR", name)
        for name in present[:1]:
            source, watched = AttrSource(source, name), getattr(watched, name)
            tx.guard(source, "ID_IS", watched)
        if not present:
            break
    return real


@handles(inspect.getfullargspec)
def full_arg_spec(
    tx: Translator,
    args: list[VariableTracker],
    kwargs: dict[str, Any],
) -> Any:
    """As a signature, in new containers at each call."""
    real = _known_callable(tx, args, kwargs)
    if not isinstance(real, (types.FunctionType, types.MethodType)):
        return NotImplemented
    try:
        spec = inspect.getfullargspec(real)
    except TypeError:
        return NotImplemented  # eager raises it, with its cause
    fields = [_copied(tx, value, real.__name__) for value in spec]
    return tx.call_function(tx.wrap_constant(inspect.FullArgSpec), fields, {})


def _copied(tx: Translator, value: Any, name: str) -> VariableTracker:
    """The container with the program's objects."""
    if isinstance(value, dict):
        return tx.wrap_keywords({key: _object(tx, item, name) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return tx.wrap_items(type(value), [_object(tx, item, name) for item in value])
    return _object(tx, value, name)


def _object(tx: Translator, value: Any, name: str) -> VariableTracker:
    if is_value(value):
        return tx.wrap_constant(value)
    return tx.wrap(value, ConstSource(value, f"what the signature of {name} names"))


def _is_init_alone(cls: type) -> bool:
    """Whether calls of a class take what its `__init__` takes."""
    says_itself = any("__signature__" in vars(base) for base in cls.__mro__)
    is_plain = type(cls).__call__ is type.__call__ and cls.__new__ is object.__new__
    return is_plain and not says_itself


@handles(inspect.Signature.parameters.fget)  # type: ignore[attr-defined]
def parameters(
    tx: Translator,
    args: list[VariableTracker],
    kwargs: dict[str, Any],
) -> Any:
    """A signature never changes, so its mapping of parameters is a constant."""
    real = getattr(args[0], "value", None)
    if not isinstance(real, inspect.Signature):
        return NotImplemented
    mapping = real.parameters
    return tx.wrap(mapping, ConstSource(mapping, f"{args[0].describe()}.parameters"))


@handles(inspect.formatannotation)
def format_annotation(
    tx: Translator,
    args: list[VariableTracker],
    kwargs: dict[str, Any],
) -> Any:
    """How texts of signatures show an annotation: classes and hints of typing by their names."""
    values = [value.realize() for value in args]
    if not values or kwargs or not all(value.is_python_constant() for value in values):
        return NotImplemented
    annotation, *rest = [value.as_python_constant() for value in values]
    is_hint = getattr(annotation, "__module__", None) == "typing"
    if is_hint or isinstance(annotation, (type, types.GenericAlias)):
        return tx.wrap_constant(inspect.formatannotation(annotation, *rest))
    return tx.call_function(tx.wrap_constant(repr), values[:1], {})
