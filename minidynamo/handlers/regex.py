"""`re` on constants: patterns are constants, matches are known while tracing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..variables.base import NotConstant, VariableTracker, unsupported
from ..variables.builder import builds
from ..variables.constant import is_value
from ..variables.functions import MethodOfVariable
from ..variables.registry import handles, wraps

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


class RegexVariable(VariableTracker):
    """A pattern, or a match that was made of constants: neither ever changes."""

    def __init__(self, value: Any, *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.value = value

    def describe(self) -> str:
        return repr(self.value)

    def python_type(self) -> type:
        return type(self.value)

    def identity(self) -> Any:
        return self.value

    def as_python_constant(self) -> Any:
        if not isinstance(self.value, re.Pattern):
            raise NotConstant(self)
        return self.value

    def truth(self, tx: Translator) -> bool:
        return True

    def hash_key(self, tx: Translator) -> Any:
        return self.value

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if callable(getattr(self.value, name, None)):
            return MethodOfVariable(self, name)
        return tx.fold(getattr, (self.value, name), {})

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: Args,
        kwargs: Kwargs,
    ) -> VariableTracker:
        if not hasattr(self.value, name):
            return tx.fold(getattr, (self.value, name), {})
        return _fold(tx, getattr(self.value, name), args, kwargs)

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.load_const(self.value)


@wraps(re.Pattern)
def wrap_pattern(tx: Translator, value: Any, source: Source) -> VariableTracker:
    """A pattern of the frame."""
    tx.guard(source, "ID_IS", value)
    return RegexVariable(value, source=source)


@builds(re.Pattern, re.Match)
def build_regex(tx: Translator, value: Any) -> VariableTracker:
    """What a call gave while tracing."""
    return RegexVariable(value)


def _fold(
    tx: Translator, function: Callable[..., Any], args: Args, kwargs: Kwargs
) -> VariableTracker:
    """The result of a call with constants; code of the program is not called."""
    try:
        values = [arg.as_python_constant() for arg in args]
        named = {key: arg.as_python_constant() for key, arg in kwargs.items()}
    except NotConstant:
        values, named = [function], {}
    if not all(is_value(v) or isinstance(v, re.Pattern) for v in (*values, *named.values())):
        unsupported("regular expression", function.__name__, "an argument is no plain constant")
    if function.__name__ == "finditer":
        matches = list(function(*values, **named))
        return tx.sequence_iterator([RegexVariable(match) for match in matches])
    return tx.fold(function, values, named)


def _make_handler(function: Callable[..., Any]) -> Callable[..., Any]:
    def handler(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> VariableTracker:
        return _fold(tx, function, args, kwargs)

    return handler


_FUNCTIONS = "match fullmatch search sub subn split findall finditer compile escape"
for _name in _FUNCTIONS.split():
    handles(getattr(re, _name))(_make_handler(getattr(re, _name)))
