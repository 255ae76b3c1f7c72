"""`typing`: questions about type hints, and those of a class or function."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..guards import Predicate
from ..source import ConstSource
from ..utils import class_dict
from ..variables.base import NotConstant, VariableTracker
from ..variables.registry import Handler, handles

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


def _of_a_hint(function: Callable[[Any], Any]) -> Handler:
    def handler(tx: Translator, args: list[VariableTracker], kwargs: dict[str, Any]) -> Any:
        if len(args) != 1 or kwargs:
            return NotImplemented
        try:
            hint = args[0].as_python_constant()
        except NotConstant:
            return NotImplemented
        result = function(hint)
        return tx.wrap(result, ConstSource(result, f"{function.__name__}({hint!r})"))

    return handler


for _function in (typing.get_origin, typing.get_args):
    handles(_function)(_of_a_hint(_function))


def _annotations(value: Any) -> list[tuple[str, Any]]:
    """Those that `get_type_hints` looks at, as they are stored."""
    if not isinstance(value, type):
        return list(value.__annotations__.items())
    found = (class_dict(cls).get("__annotations__") for cls in value.__mro__)
    return [item for held in found if isinstance(held, dict) for item in held.items()]


def _has(value: Any) -> bool:
    return isinstance(vars(value).get("__annotations__"), dict) or not isinstance(value, type)


def _names_nothing(hint: Any) -> bool:
    """Whether there is no text or forward reference in a hint, which is looked up anew."""
    try:
        return bool(typing._eval_type(hint, {}, {}) == hint)  # type: ignore[attr-defined]
    except NameError:
        return False


@handles(typing.get_type_hints)
def get_type_hints(tx: Translator, args: list[VariableTracker], kwargs: dict[str, Any]) -> Any:
    """Of classes and functions outside of the trace: what stands there, while it stands there."""
    named = {key: value.realize() for key, value in kwargs.items()}
    known = all(value.is_python_constant() for value in (*args, *named.values()))
    if len(args) != 1 or not known or not named.keys() <= {"include_extras"}:
        return NotImplemented
    value = args[0].as_python_constant()
    if not isinstance(value, (type, types.FunctionType)) or hasattr(value, "__no_type_check__"):
        return NotImplemented
    held = _annotations(value)
    effects = tx.output.side_effects
    dicts = [cls.__annotations__ for cls in getattr(value, "__mro__", [value]) if _has(cls)]
    if any(effects.variable_of(own) in effects.contents for own in dicts):
        return NotImplemented  # the frame has changed one
    if not all(not isinstance(hint, str) and _names_nothing(hint) for _, hint in held):
        return NotImplemented
    source = tx.source_of(args[0], value)
    text = f"the annotations of {source.name} are the same"
    check = Predicate(lambda real: _annotations(real) == held, text)
    tx.guard(source, "PREDICATE", check)
    flags = {key: flag.as_python_constant() for key, flag in named.items()}
    hints = typing.get_type_hints(value, **flags)
    label = f"get_type_hints({source.name})"
    return tx.wrap_keywords(
        {
            name: tx.wrap(hint, ConstSource(hint, f"{label}[{name!r}]"))
            for name, hint in hints.items()
        }
    )
