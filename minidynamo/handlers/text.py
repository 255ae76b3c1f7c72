"""str, repr, ascii and format of traced values."""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..variables.base import VariableTracker, unsupported
from ..variables.builtin_object import NONE, BuiltinObject, builtin_method, type_name
from ..variables.constant import ConstantVariable
from ..variables.deques import DequeVariable
from ..variables.descriptors import lookup_special
from ..variables.dict_views import DictViewVariable, MappingProxyVariable
from ..variables.dicts import DictVariable
from ..variables.exceptions import ExceptionVariable
from ..variables.functions import CallableVariable, UserFunctionVariable
from ..variables.lists import SequenceVariable
from ..variables.modules import PythonModuleVariable
from ..variables.nested_functions import NestedFunctionVariable
from ..variables.postponed import ADDRESS, PrintedText
from ..variables.registry import handles
from ..variables.sets import SetVariable
from ..variables.tensor import TensorVariable
from ..variables.user_defined import UserDefinedObjectVariable
from .builtins import Values, builtin, data_dependent

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

# -- text ---------------------------------------------------------------------------------------


def _text(function: Callable[[Any], str], special: str) -> None:
    def convert(
        tx: Translator,
        value: Values | None = None,
        /,
        *more: Values,
    ) -> Values:
        if value is None:
            return ConstantVariable("")
        if isinstance(value, TensorVariable):
            data_dependent(function.__name__, value)
        if not more and _shows_address(tx, value):
            return text_with_address(tx, value)
        printed = _printed(value) if not more and function is str else None
        if printed is not None:
            return printed
        text = text_of(tx, value, special)
        if text is None or more:
            unsupported(
                "text of an object", f"{function.__name__}({value!r})", "it is not known"
            )
        if isinstance(text, PrintedText) and function is not ascii:
            return text
        if isinstance(text, PrintedText):
            unsupported("text of an object", f"ascii({value!r})", "it is not known")
        if function is ascii:
            text = text.encode("ascii", "backslashreplace").decode("ascii")
        return ConstantVariable(text)

    builtin(function)(convert)


def _printed(value: VariableTracker) -> PrintedText | None:
    """A text that is made behind the graph, also as the only argument of an exception."""
    if isinstance(value, ExceptionVariable) and len(value.args) == 1:
        plain = value.python_type().__str__ is BaseException.__str__
        value = value.args[0].realize() if plain else value
    return value if isinstance(value, PrintedText) else None


_CLASS_REPRS = (type.__repr__, enum.EnumMeta.__repr__)
_MODULE_REPR = types.ModuleType.__repr__
_SHOWN = {"__name__", "__file__", "__loader__", "__spec__"}  # in a module's text
_TEXT_METHODS = ("__repr__", "__str__", "__format__")


def _shows_address(
    tx: Translator,
    value: VariableTracker,
) -> bool:
    """Whether the text of an object has its address, which it gets behind the graph."""
    if isinstance(value, NestedFunctionVariable):
        return True
    if not isinstance(value, UserDefinedObjectVariable):
        return False
    cls = value.python_type()
    for name in _TEXT_METHODS:
        if getattr(cls, name) is not getattr(object, name):
            return False
        lookup_special(tx, value, name)  # stays so
    return True


def text_with_address(tx: Translator, value: VariableTracker) -> PrintedText:
    """`object.__repr__`, and the text of a function."""
    if isinstance(value, NestedFunctionVariable):
        name = value.getattr(tx, "__qualname__").realize().as_python_constant()
        return PrintedText([f"<function {name} at 0x", (value, ADDRESS), ">"])
    cls = tx.call_function(tx.wrap_constant(type), [value], {})
    home, name = (
        cls.getattr(tx, part).realize().as_python_constant()
        for part in ("__module__", "__qualname__")
    )
    if not isinstance(home, str) or home == "builtins":
        unsupported(
            "repr of object", repr(value), "the default repr shows the object's address"
        )
    return PrintedText([f"<{home}.{name} object at 0x", (value, ADDRESS), ">"])


def text_of(
    tx: Translator,
    value: VariableTracker,
    special: str,
) -> str | PrintedText | None:
    """What `__str__` or `__repr__` gives, where tracing knows it."""
    if issubclass(value.python_type(), type):
        return _text_of_class(tx, value, special)
    if isinstance(value, (ConstantVariable, CallableVariable)) and not value.overrides(special):
        return str(value.value) if special == "__str__" else repr(value.value)
    if isinstance(value, UserFunctionVariable):
        if value.source is not None:
            tx.guard(value.source, "ID_IS", value.fn)
        return repr(value.fn)
    if isinstance(value, PythonModuleVariable):
        names = tx.output.side_effects.stored_attrs(value.holder(tx, "__name__"))
        is_plain = type(value.value).__repr__ is _MODULE_REPR and not names.keys() & _SHOWN
        return repr(value.value) if is_plain else None
    asked = special
    own = value.is_user_defined or isinstance(value, BuiltinObject)
    if own and special == "__str__" and value.python_type().__str__ is object.__str__:
        special = "__repr__"
    if isinstance(value, BuiltinObject):
        found = value.lookup(special)
        if found is not None and (found[2] or isinstance(found[1], types.FunctionType)):
            return _checked(tx, asked, value.call_method(tx, special, [], {}))
        return None
    function = lookup_special(tx, value, special)
    if function is None or value.python_type().__dict__.get("__repr__") is object.__repr__:
        return None
    return _checked(tx, asked, tx.call_function(function, [], {}))


def _text_of_class(
    tx: Translator, value: VariableTracker, special: str
) -> str | PrintedText | None:
    """By its metaclass."""
    cls = value.as_python_constant()
    asked = special
    if special == "__str__" and type(cls).__str__ is object.__str__:
        special = "__repr__"
    method = getattr(type(cls), special)
    if method in _CLASS_REPRS:
        stored = tx.output.side_effects.stored_attrs(value)
        return None if stored.keys() & {"__qualname__", "__module__"} else method(cls)
    if not isinstance(method, types.FunctionType):
        return None
    function = tx.wrap_constant(type(cls)).realize().getattr(tx, special)
    return _checked(tx, asked, tx.call_function(function, [value], {}))


def _checked(
    tx: Translator,
    special: str,
    text: Values,
) -> str | PrintedText | None:
    """What the special method gave; TypeError as the program sees it where it is no text: it
    names the method that was asked for.
    """
    text = text.realize()
    if not issubclass(text.python_type(), str):
        kind = type_name(text.python_type())
        tx.raise_observed(TypeError, f"{special} returned non-string (type {kind})")
    if isinstance(text, PrintedText):
        return text
    return text.as_python_constant() if text.is_python_constant() else None


# -- containers ---------------------------------------------------------------------------------


def shown_by(
    types_: type | tuple[type, ...],
    function: Callable[[Translator, Any], str],
    again: str | None,
) -> None:
    """`function` is the `__repr__` of these classes in C; again: what it gives of a container
    within itself (%s: the name of its class).
    """

    @builtin_method(types_, "__repr__")
    def show_once(tx: Translator, self: BuiltinObject, /) -> VariableTracker:
        if self.is_visited:
            if again is None:
                unsupported("text of an object", repr(self), "it contains itself")
            return ConstantVariable(again.replace("%s", self.cls.__name__))
        self.is_visited = True
        try:
            return ConstantVariable(function(tx, self))
        finally:
            self.is_visited = False


def show(tx: Translator, item: VariableTracker) -> str:
    """Its `repr`, which has to be known."""
    return tx.call_function(tx.wrap_constant(repr), [item.realize()], {}).as_python_constant()


def _join(tx: Translator, items: Iterable[VariableTracker]) -> str:
    return ", ".join([show(tx, item) for item in items])


def _show_list(tx: Translator, value: SequenceVariable) -> str:
    return f"[{_join(tx, value.items)}]"


def _show_tuple(tx: Translator, value: SequenceVariable) -> str:
    return f"({_join(tx, value.items)}{',' if len(value.items) == 1 else ''})"


def _show_dict(tx: Translator, value: DictVariable) -> str:
    value.guard_keys(tx)
    pairs = [f"{show(tx, k)}: {show(tx, v)}" for k, v in [*value.entries.values()]]
    return f"{{{', '.join(pairs)}}}"


def _show_defaultdict(tx: Translator, value: DictVariable) -> str:
    factory = show(tx, value.default_factory or NONE)
    return f"{value.cls.__name__}({factory}, {_show_dict(tx, value)})"


def _show_ordered(tx: Translator, value: DictVariable) -> str:
    """As a dict, or as a list of pairs: CPython has changed that."""
    shown = value.in_order(tx)
    if not value.entries:
        return f"{value.cls.__name__}()"
    as_dict = "{" in repr(collections.OrderedDict(a=1))
    left, middle, right = ("", ": ", "") if as_dict else ("(", ", ", ")")
    pairs = [f"{left}{show(tx, k)}{middle}{show(tx, v)}{right}" for k, v in shown]
    text = ", ".join(pairs)
    return f"{value.cls.__name__}({{{text}}})" if as_dict else f"{value.cls.__name__}([{text}])"


def _show_deque(tx: Translator, value: DequeVariable) -> str:
    limit = "" if value.items.maxlen is None else f", maxlen={value.items.maxlen}"
    return f"{value.cls.__name__}([{_join(tx, value.items)}]{limit})"


def _show_view(tx: Translator, value: DictViewVariable) -> str:
    return f"{value.cls.__name__}([{_join(tx, value.unpack(tx))}])"


def _show_proxy(tx: Translator, value: MappingProxyVariable) -> str:
    return f"mappingproxy({show(tx, value.mapping)})"


def _show_set(tx: Translator, value: SetVariable) -> str:
    name = value.cls.__name__
    if not value.table:
        return f"{name}()"
    items = f"{{{_join(tx, value.unpack(tx))}}}"
    return items if value.cls is set else f"{name}({items})"


shown_by((set, frozenset), _show_set, "%s(...)")
shown_by(list, _show_list, "[...]")
shown_by(tuple, _show_tuple, "(...)")
shown_by(dict, _show_dict, "{...}")
shown_by(collections.defaultdict, _show_defaultdict, None)
shown_by(collections.OrderedDict, _show_ordered, "...")
shown_by(collections.deque, _show_deque, "[...]")
shown_by(types.MappingProxyType, _show_proxy, None)
for _cls in (dict, collections.OrderedDict):
    for _kind in ("keys", "values", "items"):
        shown_by(type(getattr(_cls(), _kind)()), _show_view, "...")


@handles(object.__repr__)
def _object_repr(tx: Translator, args: list[Values], kwargs: dict[str, Values]) -> Any:
    value = args[0].realize() if args else None
    if not isinstance(value, UserDefinedObjectVariable) or len(args) > 1 or kwargs:
        return NotImplemented
    return text_with_address(tx, value)


_text(str, "__str__")
_text(repr, "__repr__")
_text(ascii, "__repr__")


@builtin(format)
def _format(
    tx: Translator,
    value: Values,
    spec: Values | None = None,
    /,
) -> Values:
    given = "" if spec is None else spec.as_python_constant()
    if isinstance(value, TensorVariable):
        data_dependent("format", value)
    own = value.python_type().__format__
    is_plain = isinstance(value, BuiltinObject) and not value.overrides("__format__")
    if own is object.__format__ or (is_plain and not given):
        if given:
            kind = type_name(value.python_type())
            tx.raise_observed(
                TypeError, f"unsupported format string passed to {kind}.__format__"
            )
        return tx.call_function(tx.wrap_constant(str), [value], {})
    if own is enum.Enum.__format__:
        text = tx.call_function(tx.wrap_constant(str), [value], {})
        return tx.call_function(tx.wrap_constant(format), [text, ConstantVariable(given)], {})
    function = lookup_special(tx, value, "__format__")
    if function is None and isinstance(value, ConstantVariable):
        if not given:
            return tx.call_function(tx.wrap_constant(str), [value], {})
        return tx.fold(format, (value.value, given), {})
    if function is None:
        unsupported("text of an object", f"format({value!r})", "it is not known while tracing")
    text = tx.call_function(function, [ConstantVariable(given)], {}).realize()
    if not issubclass(text.python_type(), str):
        kind = type_name(text.python_type())
        tx.raise_observed(TypeError, f"__format__ must return a str, not {kind}")
    return text
