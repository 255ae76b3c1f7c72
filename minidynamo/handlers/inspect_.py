"""`inspect`: signatures of functions that are known while tracing."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any

from ..source import ConstSource
from ..variables.base import NotConstant, VariableTracker
from ..variables.builtin_object import observed
from ..variables.functions import BoundMethodVariable
from ..variables.registry import handles

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


@handles(inspect.signature)
def signature(
    tx: Translator,
    args: list[VariableTracker],
    kwargs: dict[str, Any],
) -> Any:
    """The signature depends on the function alone; of a bound method, not on its object."""
    if len(args) != 1 or kwargs:
        return NotImplemented
    function = args[0]
    try:
        if isinstance(function, BoundMethodVariable):
            real: Any = types.MethodType(
                function.function.realize().as_python_constant(), object()
            )
        else:
            real = function.as_python_constant()
        if isinstance(real, type) and _is_init_alone(real):
            made_by: Any = function.getattr(tx, "__init__").realize().as_python_constant()
        else:
            made_by = real
    except NotConstant:
        return NotImplemented
    if not isinstance(made_by, (types.FunctionType, types.MethodType)):
        return NotImplemented
    with observed(tx):
        result = inspect.signature(real)
    return tx.wrap(result, ConstSource(result, f"signature of {real.__name__}"))


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
