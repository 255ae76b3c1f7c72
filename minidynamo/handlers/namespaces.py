"""types.SimpleNamespace: an object whose only state is its instance dict."""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any

from ..variables.base import VariableTracker
from ..variables.builtin_object import NONE, NOT_IMPLEMENTED
from ..variables.classes import ClassVariable, new_object
from ..variables.constant import ConstantVariable
from ..variables.registry import handles
from ..variables.user_defined import UserDefinedObjectVariable
from .object_methods import object_delattr, object_getattribute, object_setattr

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
_Namespace = types.SimpleNamespace


@handles(_Namespace.__new__)
def namespace_new(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """Arguments are for `__init__`."""
    cls = args[0].realize()
    return new_object(tx, cls.value) if isinstance(cls, ClassVariable) else NotImplemented


@handles(_Namespace.__init__)
def namespace_init(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """Stores the keywords. Positional arguments are an error, or new in Python 3.13."""
    value = args[0].realize()
    if len(args) > 1 or not isinstance(value, UserDefinedObjectVariable):
        return NotImplemented
    for name, item in kwargs.items():
        tx.output.side_effects.store_attr(value, name, item)
    return NONE


if "__getattribute__" in vars(_Namespace):  # else, as in Python 3.13, object's own
    handles(_Namespace.__getattribute__)(object_getattribute)
    handles(_Namespace.__setattr__)(object_setattr)
    handles(_Namespace.__delattr__)(object_delattr)


def _tables(tx: Translator, args: Args) -> list[VariableTracker] | None:
    """The instance dicts of two namespaces."""
    values = [arg.realize() for arg in args]
    if not all(isinstance(v, UserDefinedObjectVariable) for v in values):
        return None
    if not all(issubclass(v.python_type(), _Namespace) for v in values):
        return None
    return [tx.getattr(v, "__dict__").call_method(tx, "copy", [], {}).realize() for v in values]


def _compare(name: str) -> None:
    """Namespaces compare as their dicts."""
    function = getattr(operator, name)

    @handles(getattr(_Namespace, name))
    def compare(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        tables = _tables(tx, args)
        return NOT_IMPLEMENTED if tables is None else tx.call_operator(function, tables)


for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
    _compare(_name)


@handles(_Namespace.__repr__)
def namespace_repr(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    value = args[0].realize()
    if not isinstance(value, UserDefinedObjectVariable) or value.is_visited:
        return NotImplemented
    cls = value.python_type()
    value.is_visited = True
    try:
        items = tx.unpack_keywords(tx.getattr(value, "__dict__"))
        texts = [
            f"{name}={_repr_of(tx, item)}"
            for name, item in items.items()
            if name.isidentifier()
        ]
    finally:
        value.is_visited = False
    name = "namespace" if cls is _Namespace else cls.__name__
    return ConstantVariable(f"{name}({', '.join(texts)})")


def _repr_of(tx: Translator, item: VariableTracker) -> str:
    function = tx.wrap_constant(repr)
    return str(tx.call_function(function, [item.realize()], {}).as_python_constant())
