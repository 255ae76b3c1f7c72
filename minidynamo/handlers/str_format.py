"""`str.format` of values that are not known while tracing: the template is read, and what its
fields show is traced (`build_string` of CPython's unicode_format.h).
"""

from __future__ import annotations

import _string
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..variables.base import VariableTracker
from ..variables.builtin_object import observed
from ..variables.constant import FORMATTING, ConstantVariable
from ..variables.postponed import joined, postponed_text

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]

_CONVERSIONS: dict[str, Callable[..., str]] = {"r": repr, "s": str, "a": ascii}
_SWITCHED = "cannot switch from {} field {} to {} field {}"
_TO_AUTOMATIC = _SWITCHED.format("manual", "specification", "automatic", "numbering")
_TO_MANUAL = _SWITCHED.format("automatic", "numbering", "manual", "specification")


class _Fields:
    """What the names of a template's fields stand for.

    args: the values by number; None for `format_map`, which has only names.
    """

    def __init__(
        self,
        tx: Translator,
        args: Args | None,
        named: Callable[[str], VariableTracker],
    ) -> None:
        self.tx = tx
        self.args = args
        self.named = named
        self.count = 0
        self.is_automatic: bool | None = None

    def find(self, name: str) -> VariableTracker:
        """`get_field_object`: an argument, and then attributes and items of it."""
        with observed(self.tx):
            first, rest = _string.formatter_field_name_split(name)
        value = self._argument(first)
        while True:
            with observed(self.tx):
                step = next(rest, None)
            if step is None:
                return value
            is_attribute, key = step
            value = value.realize()
            if is_attribute:
                value = self.tx.getattr(value, key)
            else:
                value = value.getitem(self.tx, ConstantVariable(key))

    def _argument(self, first: int | str) -> VariableTracker:
        if first != "" and not isinstance(first, int):
            return self.named(first)
        is_automatic = first == ""
        if self.is_automatic is None:
            self.is_automatic = is_automatic
        elif self.is_automatic is not is_automatic:
            self.tx.raise_observed(ValueError, _TO_AUTOMATIC if is_automatic else _TO_MANUAL)
        number = self.count if isinstance(first, str) else first
        self.count += is_automatic
        if self.args is None:
            self.tx.raise_observed(ValueError, "Format string contains positional fields")
        if number >= len(self.args):
            what = f"Replacement index {number} out of range for positional args tuple"
            self.tx.raise_observed(IndexError, what)
        return self.args[number]


def _made(
    tx: Translator,
    template: str,
    fields: _Fields,
    depth: int,
) -> VariableTracker:
    """The text of a template, or of what stands behind the colon of a field."""
    if depth == 0:
        tx.raise_observed(ValueError, "Max string recursion exceeded")
    pieces: Args = []
    markup = _string.formatter_parser(template)
    while True:
        with observed(tx):
            found = next(markup, None)
        if found is None:
            return joined(tx, pieces)
        literal, name, spec, conversion = found
        if literal:
            pieces.append(ConstantVariable(literal))
        if name is not None:
            pieces.append(_field(tx, fields, name, spec, conversion, depth))


def _field(
    tx: Translator,
    fields: _Fields,
    name: str,
    spec: str,
    conversion: str | None,
    depth: int,
) -> VariableTracker:
    value = fields.find(name)
    if conversion is not None:
        convert = _CONVERSIONS.get(conversion)
        if convert is None:
            shown = conversion if 32 < ord(conversion) < 127 else f"\\x{ord(conversion):x}"
            tx.raise_observed(ValueError, f"Unknown conversion specifier {shown}")
        value = tx.call_function(tx.wrap_constant(convert), [value], {})
    text = spec
    if "{" in spec:
        text = _made(tx, spec, fields, depth - 1).specialized(tx).as_python_constant()
    value = value.realize()
    return postponed_text(tx, value, text) or tx.format_value(value, text)


def format_string(
    tx: Translator,
    template: str,
    method: str,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """`template.format(*args, **kwargs)`, or `template.format_map(mapping)`."""

    def named(name: str) -> VariableTracker:
        if method == "format_map":
            return args[0].realize().getitem(tx, ConstantVariable(name))
        if name not in kwargs:
            tx.raise_observed(KeyError, name)
        return kwargs[name]

    if method == "format_map" and (len(args) != 1 or kwargs):
        count = (
            "no keyword arguments" if kwargs else f"exactly one argument ({len(args)} given)"
        )
        tx.raise_observed(TypeError, f"str.format_map() takes {count}")
    fields = _Fields(tx, None if method == "format_map" else list(args), named)
    return _made(tx, template, fields, 2)


FORMATTING.append(format_string)
