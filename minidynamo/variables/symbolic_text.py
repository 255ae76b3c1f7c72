"""Texts made of symbolic numbers, such as messages of errors about sizes.

A text is kept as the call that makes it. Its characters are not known: what is only passed on,
stored, raised or returned is made behind the graph, by the same call on the real numbers. Whoever
looks at the characters makes the numbers constants of this call, which are guards.
"""

from __future__ import annotations

import operator
import re
import string
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .base import VariableTracker
from .constant import ConstantVariable
from .lists import SequenceVariable
from .symint import TEXT_CALLS, SymVariable, symbols_in

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


class SymbolicText(VariableTracker):
    """`function(*parts)`, where the last parts are given by the names `keywords`."""

    is_symbolic_text = True

    def __init__(
        self, function: Callable[..., str], parts: Args, keywords: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self.function = function
        self.parts = parts
        self.keywords = keywords

    def describe(self) -> str:
        return "a text of symbolic numbers"

    def python_type(self) -> type:
        return str

    def as_python_constant(self) -> str:
        """The text, once the numbers in it are constants."""
        return self.text_of([part.realize().as_python_constant() for part in self.parts])

    def text_of(self, values: list[Any]) -> str:
        n_args = len(values) - len(self.keywords)
        return self.function(
            *values[:n_args], **dict(zip(self.keywords, values[n_args:], strict=True))
        )

    def specialized(self, tx: Translator) -> ConstantVariable:
        return ConstantVariable(self.text_of([_known(tx, part) for part in self.parts]))

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.begin_call(self.function)
        codegen.sequence(self.parts)
        codegen.end_call(len(self.parts), self.keywords)


def _known(
    tx: Translator,
    part: VariableTracker,
) -> Any:
    """The value of a part in this call. What was computed from ints (`n % 3`) is no constant
    by itself once that is decided; guards on sums of floats would add them in another order.
    """
    part = part.realize()
    if isinstance(part, SequenceVariable) and part.python_type() in (list, tuple):
        return part.python_type()([_known(tx, item) for item in part.items])
    for number in symbols_in([part]):
        number.specialized(tx)
    if isinstance(part, SymVariable) and part.python_type() is float:
        return part.as_python_constant()
    return part.specialized(tx).as_python_constant()


def _looks(name: str) -> Callable[..., Any]:
    def look(self: SymbolicText, tx: Translator, *args: Any) -> Any:
        return getattr(self.specialized(tx), name)(tx, *args)

    return look


for _name in "getattr call_method call getitem length contains iter truth hash_key".split():
    setattr(SymbolicText, _name, _looks(_name))


# -- what makes such a text -----------------------------------------------------------------------

_SHOWN = frozenset(
    {int, float, complex, bool, str, bytes, type(None), types.EllipsisType}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format}
)
_SEQUENCES = (tuple, list, torch.Size)


def _shown(tx: Translator, value: VariableTracker) -> VariableTracker | None:
    """The value as it is now, if no code of the program runs to show it."""
    value = value.realize()
    if isinstance(value, (SymVariable, SymbolicText)):
        return value
    if isinstance(value, ConstantVariable):
        return value if _is_shown(value.value) else None
    if not isinstance(value, SequenceVariable) or value.cls not in _SEQUENCES:
        return None
    if value.is_visited:
        return None
    value.is_visited = True
    try:
        items = [_shown(tx, item) for item in value.unpack(tx)]
    finally:
        value.is_visited = False
    return None if None in items else tx.wrap_items(value.cls, items)  # type: ignore[arg-type]


def _is_shown(value: Any) -> bool:
    if type(value) in (tuple, torch.Size):
        return all(map(_is_shown, value))
    return type(value) in _SHOWN


def _stand_in(value: VariableTracker) -> Any:
    """A value of the same types."""
    if isinstance(value, SymVariable):
        return value.python_type()(1)
    if isinstance(value, SymbolicText):
        return value.text_of([_stand_in(part) for part in value.parts])
    if isinstance(value, SequenceVariable):
        return value.cls(_stand_in(item) for item in value.items)
    return value.as_python_constant()


def _is_text(value: VariableTracker) -> bool:
    return isinstance(value, SymbolicText) or (
        isinstance(value, ConstantVariable) and type(value.value) is str
    )


# `c` makes a character of a number, which not every number has.
_CHARACTER = re.compile(r"%[^%a-z]*c")


def _fits_percent(args: Args) -> bool:
    template = args[0]
    if not isinstance(template, ConstantVariable) or not _is_text(template):
        return False
    return _CHARACTER.search(template.value) is None


def _fits_format(args: Args) -> bool:
    """Whether the template of `str.format` only asks for texts of its arguments."""
    template = args[0]
    if not isinstance(template, ConstantVariable):
        return False
    try:
        fields = list(string.Formatter().parse(template.value))
    except ValueError:
        return False
    names = [name for _, name, _, _ in fields if name]
    specs = [spec for _, _, spec, _ in fields if spec]
    return all(name.isdigit() or name.isidentifier() for name in names) and not any(
        "{" in spec or spec.endswith("c") for spec in specs
    )


def _fits_spec(args: Args) -> bool:
    spec = args[1] if len(args) > 1 else ConstantVariable("")
    return isinstance(spec, ConstantVariable) and not str(spec.value).endswith("c")


def _is_one(args: Args) -> bool:
    return len(args) == 1


def _is_plain(spec: Args) -> bool:
    return not spec or spec[0].as_python_constant() == ""


# What gives a text of its arguments and does nothing else -> when.
_MAKERS: dict[Any, Callable[[Args], bool]] = {
    str: _is_one,
    repr: _is_one,
    ascii: _is_one,
    format: _fits_spec,
    operator.add: lambda args: all(map(_is_text, args)),
    operator.iadd: lambda args: all(map(_is_text, args)),
    operator.mod: _fits_percent,
    operator.imod: _fits_percent,
    str.format: _fits_format,
    str.join: lambda args: len(args) == 2 and isinstance(args[0], ConstantVariable),
}
_PURE = {operator.iadd: operator.add, operator.imod: operator.mod}


def symbolic_text(
    tx: Translator, function: Any, args: Args, kwargs: Kwargs
) -> SymbolicText | None:
    """What the call gives, if it makes a text of symbolic numbers."""
    owner = getattr(function, "__self__", None)
    if type(owner) is str:
        function = getattr(str, function.__name__, None)
        args = [ConstantVariable(owner), *args]
    fits = _MAKERS.get(function)
    if fits is None or (kwargs and function is not str.format):
        return None
    shown = [_shown(tx, value) for value in (*args, *kwargs.values())]
    parts = [part for part in shown if part is not None]
    if len(parts) < len(shown) or not symbols_in(parts) or not fits(parts[: len(args)]):
        return None
    if (
        function in (str, format)
        and isinstance(parts[0], SymbolicText)
        and _is_plain(parts[1:])
    ):
        return parts[0]
    text = SymbolicText(_PURE.get(function, function), parts, tuple(kwargs))
    try:
        _stand_in(text)
    except (TypeError, ValueError, LookupError, AttributeError):
        return None  # constants then give the program's own error
    return text


TEXT_CALLS.append(symbolic_text)
