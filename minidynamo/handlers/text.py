"""str, repr, ascii and format of traced values."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..variables.base import VariableTracker, unsupported
from ..variables.builtin_object import BuiltinObject, type_name
from ..variables.constant import ConstantVariable
from ..variables.descriptors import lookup_special
from ..variables.dicts import DictVariable
from ..variables.functions import CallableVariable
from ..variables.lists import SequenceVariable
from ..variables.tensor import TensorVariable
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
        text = text_of(tx, value, special)
        if text is None or more:
            unsupported(
                "text of an object", f"{function.__name__}({value!r})", "it is not known"
            )
        if function is ascii:
            text = text.encode("ascii", "backslashreplace").decode("ascii")
        return ConstantVariable(text)

    builtin(function)(convert)


def text_of(
    tx: Translator,
    value: VariableTracker,
    special: str,
) -> str | None:
    """What `__str__` or `__repr__` gives, where tracing knows it."""
    if isinstance(value, ConstantVariable):
        return str(value.value) if special == "__str__" else repr(value.value)
    if isinstance(value, CallableVariable):
        return repr(value.value)
    if issubclass(value.python_type(), type):
        cls = value.as_python_constant()
        return repr(cls) if type(cls).__repr__ is type.__repr__ else None
    own = value.is_user_defined or isinstance(value, BuiltinObject)
    if own and special == "__str__" and value.python_type().__str__ is object.__str__:
        special = "__repr__"
    if isinstance(value, BuiltinObject):
        found = value.lookup(special)
        if found is not None and (found[2] or isinstance(found[1], types.FunctionType)):
            return _checked(tx, special, value.call_method(tx, special, [], {}))
        if special != "__repr__" or value.is_visited:
            return None
        value.is_visited = True
        try:
            return container_repr(tx, value)
        finally:
            value.is_visited = False
    function = lookup_special(tx, value, special)
    if function is None or value.python_type().__dict__.get("__repr__") is object.__repr__:
        return None
    return _checked(tx, special, tx.call_function(function, [], {}))


def _checked(
    tx: Translator,
    special: str,
    text: Values,
) -> str | None:
    """What the special method gave; TypeError as the program sees it where it is no text."""
    text = text.realize()
    if not issubclass(text.python_type(), str):
        kind = type_name(text.python_type())
        tx.raise_observed(TypeError, f"{special} returned non-string (type {kind})")
    return text.as_python_constant() if text.is_python_constant() else None


def container_repr(
    tx: Translator,
    value: BuiltinObject,
) -> str | None:
    """repr of a plain list, tuple or dict."""

    def show(item: VariableTracker) -> str:
        return tx.call_function(
            tx.wrap_constant(repr), [item.realize()], {}
        ).as_python_constant()

    if isinstance(value, SequenceVariable) and value.cls in (list, tuple):
        texts = [show(item) for item in value.items]
        if value.cls is list:
            return f"[{', '.join(texts)}]"
        return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
    if isinstance(value, DictVariable) and value.cls is dict:
        value.guard_keys(tx)
        return f"{{{', '.join(f'{show(k)}: {show(v)}' for k, v in value.entries.values())}}}"
    return None


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
    if own is object.__format__ or (isinstance(value, BuiltinObject) and not given):
        if given:
            kind = type_name(value.python_type())
            tx.raise_observed(
                TypeError, f"unsupported format string passed to {kind}.__format__"
            )
        return tx.call_function(tx.wrap_constant(str), [value], {})
    function = lookup_special(tx, value, "__format__")
    if function is None:
        unsupported("text of an object", f"format({value!r})", "it is not known while tracing")
    text = tx.call_function(function, [ConstantVariable(given)], {}).realize()
    if not issubclass(text.python_type(), str):
        kind = type_name(text.python_type())
        tx.raise_observed(TypeError, f"__format__ must return a str, not {kind}")
    return text
