"""The tables that say what a type or a callable is to the tracer. A new case is a new row.

    @wraps(list)                    how to make the VariableTracker of a real object of exactly this
    type
    def wrap_list(tx, value, source): ...

    @wraps_instances(torch.Tensor)  the same for subclasses; tried in order of registration
    @handles(len, operator.length_hint)   what calling this very object does while tracing
    def builtin_len(tx, args, kwargs): ...

    @method(list, "append")         a method of a traced value, by the Python type it stands for
    def list_append(tx, self, args, kwargs): ...

Registering a key twice is an error at import.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..source import Source
    from ..symbolic_convert import Translator
    from .base import VariableTracker

Wrapper = Callable[["Translator", Any, "Source"], "VariableTracker"]
Handler = Callable[["Translator", "list[VariableTracker]", "dict[str, VariableTracker]"], Any]
Method = Callable[..., Any]

WRAPPERS: dict[type, Wrapper] = {}
INSTANCE_WRAPPERS: list[tuple[type, Wrapper]] = []
# Keyed by id, because callables need not be hashable by identity; the object is kept in the value.
_HANDLERS: dict[int, tuple[Any, Handler]] = {}
_NAMED: dict[str, Handler] = {}
METHODS: dict[tuple[type, str], Method] = {}


def wraps(*types: type) -> Callable[[Wrapper], Wrapper]:
    """Register how objects whose type is exactly one of `types` are wrapped."""

    def register(function: Wrapper) -> Wrapper:
        for type_ in types:
            assert type_ not in WRAPPERS, f"{type_} is registered twice"
            WRAPPERS[type_] = function
        return function

    return register


def wraps_instances(*types: type) -> Callable[[Wrapper], Wrapper]:
    """Register how instances of subclasses of `types` are wrapped, after the exact types."""

    def register(function: Wrapper) -> Wrapper:
        for type_ in types:
            assert all(type_ is not known for known, _ in INSTANCE_WRAPPERS), type_
            INSTANCE_WRAPPERS.append((type_, function))
        # What takes any object comes last.
        INSTANCE_WRAPPERS.sort(key=lambda row: row[0] is object)
        return function

    return register


def handles(*callables: Any) -> Callable[[Handler], Handler]:
    """Register what calling each of `callables` (known by identity) does while tracing."""

    def register(function: Handler) -> Handler:
        for target in callables:
            assert id(target) not in _HANDLERS, f"{target!r} is registered twice"
            _HANDLERS[id(target)] = (target, function)
        return function

    return register


def handles_named(*names: str) -> Callable[[Handler], Handler]:
    """The same for functions of modules that only the program imports, by module and name."""

    def register(function: Handler) -> Handler:
        for name in names:
            assert name not in _NAMED, f"{name} is registered twice"
            _NAMED[name] = function
        return function

    return register


def handler_of(target: Any) -> Handler | None:
    """The handler of a real callable, or None."""
    found = _HANDLERS.get(id(target))
    if found is not None:
        return found[1]
    if type(target) is types.FunctionType and _NAMED:
        return _NAMED.get(f"{target.__module__}.{target.__qualname__}")
    return None


def method(type_: type, *names: str) -> Callable[[Method], Method]:
    """Register methods of traced values that stand for objects of `type_`."""

    def register(function: Method) -> Method:
        for name in names:
            assert (type_, name) not in METHODS, f"{type_.__name__}.{name} is registered twice"
            METHODS[type_, name] = function
        return function

    return register
