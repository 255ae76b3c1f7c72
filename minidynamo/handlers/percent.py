"""`text % values`."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..variables.base import NotConstant, VariableTracker, unsupported
from ..variables.constant import ConstantVariable, is_inert, runs_code
from ..variables.lists import SequenceVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


class _Shown:
    """Stands for an object of the trace where Python formats text: `%s` and `%r` ask for its."""

    def __init__(self, tx: Translator, item: VariableTracker) -> None:
        self.tx = tx
        self.item = item

    def _text(self, function: Callable[..., Any]) -> str:
        text = self.tx.call_function(self.tx.wrap_constant(function), [self.item], {})
        return str(text.realize().as_python_constant())

    def __str__(self) -> str:
        return self._text(str)

    def __repr__(self) -> str:
        return self._text(repr)

    def __index__(self) -> int:
        """Of a member of an enum."""
        return operator.index(self.item.as_python_constant())

    __int__ = __index__


class _ShownMapping(_Shown):
    """The same of a dict, whose items the text may name."""

    def __getitem__(self, key: str) -> Any:
        found = self.item.getitem(self.tx, ConstantVariable(key)).realize()
        return _shown(self.tx, found.specialized(self.tx))


def _shown(tx: Translator, item: VariableTracker) -> Any:
    """A constant, or what stands for another value."""
    is_known = isinstance(item, ConstantVariable) and is_inert(item.value)
    if is_known and not runs_code(item.value, ("__str__", "__repr__", "__int__", "__index__")):  # type: ignore[attr-defined]
        return item.value  # type: ignore[attr-defined]
    return _Shown(tx, item)


def format_values(
    tx: Translator, operand: ConstantVariable, other: VariableTracker
) -> VariableTracker:
    """The text or bytes with the items of a tuple, or the one value; of objects, those that `%s` or
    `%r` shows.
    """
    items = [other]
    if isinstance(other, SequenceVariable) and issubclass(other.cls, tuple):
        if other.overrides("__getitem__"):
            unsupported(
                "string formatting", repr(operand), "it formats values that are not known"
            )
        items = [item.realize() for item in other.items]
    values: Any = tuple(_shown(tx, item) for item in items)
    if not any(isinstance(value, _Shown) for value in values):
        return tx.fold(operator.mod, (operand.value, values), {})
    if isinstance(operand.value, str):
        if issubclass(other.python_type(), dict):
            values = _ShownMapping(tx, other)
        with contextlib.suppress(TypeError, ValueError, NotConstant):
            return ConstantVariable(operand.value % values)
    unsupported("string formatting", repr(operand), "it formats values that are not known")
