"""collections, and the callables that the operator module makes."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..variables.base import VariableTracker, unsupported
from ..variables.builder import builds
from ..variables.builtin_object import NONE, BuiltinObject
from ..variables.constant import ConstantVariable
from ..variables.registry import handles, wraps
from .builtins import Values, builtin

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator


@builtin(vars(dict)["fromkeys"])
def _fromkeys(
    tx: Translator,
    cls: Values,
    iterable: Values,
    value: Values = NONE,
    /,
) -> Values:
    result = tx.call_function(cls, [], {}).realize()
    for key in iterable.unpack(tx):
        result.setitem(tx, key.realize(), value)
    return result


@builtin(vars(collections.OrderedDict)["fromkeys"])
def _ordered_fromkeys(
    tx: Translator,
    cls: Values,
    iterable: Values,
    value: Values = NONE,
) -> Values:
    return _fromkeys(tx, cls, iterable, value)


@builtin(collections._count_elements)  # type: ignore[attr-defined]
def _count_elements(
    tx: Translator,
    mapping: Values,
    iterable: Values,
    /,
) -> None:
    for item in iterable.each(tx):
        key = item.realize()
        count = mapping.call_method(tx, "get", [key, ConstantVariable(0)], {}).realize()
        total = tx.call_operator(operator.add, [count, ConstantVariable(1)])
        mapping.setitem(tx, key, total)


@handles(collections.namedtuple)
def _namedtuple(tx: Translator, args: list[Values], kwargs: dict[str, Values]) -> Any:
    """A class made of constants: while tracing, once and for all calls of what is compiled."""
    values = [*args, *kwargs.values()]
    if not values or not all(value.is_python_constant() for value in values):
        return NotImplemented
    named = {name: value.as_python_constant() for name, value in kwargs.items()}
    named.setdefault("module", tx.globals.get("__name__"))  # type: ignore[attr-defined]
    made: list[type] = []
    constants = [value.as_python_constant() for value in args]
    tx.fold(lambda: made.append(collections.namedtuple(*constants, **named)), (), {})  # type: ignore[misc]
    return tx.wrap_held(made[0], made[0].__name__)


# -- itemgetter, attrgetter, methodcaller ----------------------------------------------------------


class GetterVariable(BuiltinObject):
    """An operator.itemgetter, attrgetter or methodcaller: what it was made with."""

    def __init__(
        self, cls: type, args: list[Values], kwargs: dict[str, Values], **common: Any
    ) -> None:
        super().__init__(cls, **common)
        self.args = args
        self.kwargs = kwargs

    def call(
        self,
        tx: Translator,
        args: list[Values],
        kwargs: dict[str, Values],
    ) -> Values:
        if len(args) != 1 or kwargs:
            unsupported("call does not fit", repr(self), "eager will raise the TypeError")
        return _CALLS[self.cls](tx, self, args[0])

    def truth(self, tx: Translator) -> bool:
        return True

    def hash_key(self, tx: Translator) -> Any:
        return self.identity()

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.begin_call(self.cls)
        codegen.sequence([*self.args, *self.kwargs.values()])
        codegen.end_call(len(self.args) + len(self.kwargs), tuple(self.kwargs))


def _get_items(
    tx: Translator,
    self: GetterVariable,
    target: Values,
) -> Values:
    found = [target.getitem(tx, key.realize()) for key in self.args]
    return found[0] if len(found) == 1 else tx.wrap_items(tuple, found)


def _get_attributes(
    tx: Translator,
    self: GetterVariable,
    target: Values,
) -> Values:
    found = []
    for path in self.args:
        value = target
        for name in path.realize().as_python_constant().split("."):
            value = tx.getattr(value, name)
        found.append(value)
    return found[0] if len(found) == 1 else tx.wrap_items(tuple, found)


def _call_method(
    tx: Translator,
    self: GetterVariable,
    target: Values,
) -> Values:
    name, *args = self.args
    function = tx.getattr(target, name.realize().as_python_constant())
    return tx.call_function(function, args, self.kwargs)


_CALLS: dict[type, Callable[..., Values]] = {
    operator.itemgetter: _get_items,
    operator.attrgetter: _get_attributes,
    operator.methodcaller: _call_method,
}


def _make(cls: type) -> Callable[..., Any]:
    def handler(
        tx: Translator,
        args: list[Values],
        kwargs: dict[str, Values],
    ) -> Values:
        if not args or (kwargs and cls is not operator.methodcaller):
            unsupported("call does not fit", cls.__name__, "eager will raise the TypeError")
        if cls is not operator.itemgetter and not _are_names(args, cls):
            unsupported("call does not fit", cls.__name__, "eager will raise the TypeError")
        return GetterVariable(cls, args, kwargs)

    return handler


def _are_names(args: list[Values], cls: type) -> bool:
    names = args[:1] if cls is operator.methodcaller else args
    return all(name.is_python_constant() and name.python_type() is str for name in names)


for _class in _CALLS:
    handles(_class)(_make(_class))


@wraps(*_CALLS)
def _wrap_getter(
    tx: Translator,
    value: Any,
    source: Source,
) -> VariableTracker:
    tx.guard(source, "ID_IS", value)
    variable = _build_getter(tx, value)
    variable.source = source
    return variable


@builds(*_CALLS)
def _build_getter(tx: Translator, value: Any) -> VariableTracker:
    """It can't be changed, so what it was made of is known."""
    reduced = value.__reduce__()
    function, args = reduced[:2]
    keywords = getattr(function, "keywords", {})
    constants = [*getattr(function, "args", ()), *args]
    return GetterVariable(
        type(value),
        [tx.wrap_constant(item) for item in constants],
        {name: tx.wrap_constant(item) for name, item in keywords.items()},
    )
