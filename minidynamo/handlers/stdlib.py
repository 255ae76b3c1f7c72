"""Functions of the standard library that have no effect while tracing, and weak references."""

from __future__ import annotations

import typing
import weakref
from typing import TYPE_CHECKING, Any

from ..source import Source, WeakrefSource
from ..variables.base import VariableTracker
from ..variables.registry import handles, wraps

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


@handles(typing.cast)
def typing_cast(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    return args[1] if len(args) > 1 else kwargs["val"]


class WeakrefVariable(VariableTracker):
    """A weak reference of the frame; calling it gives its object, guarded."""

    def __init__(self, value: weakref.ref[Any], *, source: Source) -> None:
        super().__init__(source=source)
        self.value = value

    def python_type(self) -> type:
        return type(self.value)

    def identity(self) -> Any:
        return self.value

    def truth(self, tx: Translator) -> bool:
        return True

    def call(self, tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        assert self.source is not None
        return tx.wrap(self.value(), WeakrefSource(self.source))


@wraps(weakref.ReferenceType)
def wrap_weakref(tx: Translator, value: weakref.ref[Any], source: Source) -> VariableTracker:
    tx.guard(source, "TYPE_IS", type(value))
    return WeakrefVariable(value, source=source)
