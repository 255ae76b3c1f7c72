"""Types that are no classes: `int | str`, `list[int]`, `typing.Optional[int]`."""

from __future__ import annotations

import collections.abc
import types
import typing
from typing import TYPE_CHECKING, Any

from .base import VariableTracker
from .builder import builds
from .classes import hint_of
from .functions import CallableVariable
from .registry import wraps, wraps_instances

if TYPE_CHECKING:
    from ..source import Source
    from ..symbolic_convert import Translator


_CALLABLE_ALIAS = type(collections.abc.Callable[[], None])


@wraps(types.UnionType, types.GenericAlias, _CALLABLE_ALIAS)
def _wrap_union(tx: Translator, value: Any, source: Source) -> VariableTracker:
    tx.guard(source, "ID_IS", value)
    return CallableVariable(value, source=source)


@builds(types.UnionType, types.GenericAlias, _CALLABLE_ALIAS)
def _build_union(tx: Translator, value: Any) -> VariableTracker:
    return CallableVariable(value)


class TypingVariable(CallableVariable):
    """An object of the typing module, known by identity; subscripting it makes another."""

    def getitem(self, tx: Translator, key: VariableTracker) -> VariableTracker:
        item = hint_of(key)
        return tx.fold(lambda: self.value[item], (), {})

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if isinstance(self.value, typing.ParamSpec) and name in ("args", "kwargs"):
            # Each time another object, equal to the others: no guard could hold it.
            return TypingVariable(getattr(self.value, name))
        return super().getattr(tx, name)


# From Python 3.12 on, type variables are made in C.
@wraps(typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple)
@wraps_instances(typing._Final)  # type: ignore[attr-defined]
def _wrap_typing(tx: Translator, value: Any, source: Source) -> VariableTracker:
    tx.guard(source, "ID_IS", value)
    return TypingVariable(value, source=source)


_MADE = (
    typing.List[int],  # noqa: UP006
    typing.Optional[int],  # noqa: UP007, UP045
    typing.Callable,
    typing.Callable[[int], int],
)
_ALIASES = {type(alias) for alias in _MADE}


@builds(*_ALIASES)
def _build_typing(tx: Translator, value: Any) -> VariableTracker:
    return TypingVariable(value)
