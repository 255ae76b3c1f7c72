"""`inspect`: signatures of functions that are known while tracing."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Any

from ..source import ConstSource
from ..variables.base import NotConstant, VariableTracker
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
    except NotConstant:
        return NotImplemented
    if not isinstance(real, (types.FunctionType, types.MethodType)):
        return NotImplemented
    result = inspect.signature(real)
    return tx.wrap(result, ConstSource(result, f"signature of {real.__name__}"))


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
