"""Types that are no classes: `int | str`, `list[int]`, `typing.Optional[int]`."""

from __future__ import annotations

import collections.abc
import types
import typing
from typing import TYPE_CHECKING, Any

from .base import ObservedException, VariableTracker
from .builder import builds
from .classes import hint_of
from .functions import CallableVariable
from .instance_state import InstanceState
from .registry import wraps, wraps_instances

if TYPE_CHECKING:
    from ..source import Source
    from ..symbolic_convert import Translator


_CALLABLE_ALIAS = type(collections.abc.Callable[[], None])


@wraps(types.UnionType)
def _wrap_union(tx: Translator, value: Any, source: Source) -> VariableTracker:
    tx.guard(source, "ID_IS", value)
    return CallableVariable(value, source=source)


@builds(types.UnionType)
def _build_union(tx: Translator, value: Any) -> VariableTracker:
    return CallableVariable(value)


class _Asking(type):
    """A class of this kind says which attribute it is asked for."""

    def __getattribute__(cls, name: str) -> Any:
        return cls, name


class _Asked(metaclass=_Asking):
    pass


def _is_of_origin(name: str) -> bool:
    """Whether `list[int]` hands this attribute on to `list` (`ga_getattro`)."""
    found = getattr(types.GenericAlias(_Asked, (int,)), name, None)
    return found == (_Asked, name)


class GenericAliasVariable(CallableVariable):
    """`list[int]`: most attributes are those of the class."""

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if _is_of_origin(name):
            return tx.getattr(tx.wrap_constant(self.value.__origin__), name)
        return super().getattr(tx, name)

    def call(
        self, tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        """`ga_call`."""
        return _made_by(tx, self, args, kwargs, (AttributeError, TypeError))


def _made_by(
    tx: Translator,
    alias: CallableVariable,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
    ignored: tuple[type[Exception], ...],
) -> VariableTracker:
    """An object of the class that an alias is of; it is told what made it, if it can keep that."""
    made = tx.call_function(tx.wrap_constant(alias.value.__origin__), args, kwargs).realize()
    if isinstance(made, InstanceState):
        try:
            made.setattr(tx, "__orig_class__", alias)
        except ObservedException as error:
            if not issubclass(error.value.python_type(), ignored):
                raise
    return made


@wraps(types.GenericAlias, _CALLABLE_ALIAS)
def _wrap_alias(tx: Translator, value: Any, source: Source) -> VariableTracker:
    tx.guard(source, "ID_IS", value)
    return GenericAliasVariable(value, source=source)


@builds(types.GenericAlias, _CALLABLE_ALIAS)
def _build_alias(tx: Translator, value: Any) -> VariableTracker:
    return GenericAliasVariable(value)


class _Stubborn(typing.Generic[typing.AnyStr]):
    """Objects that refuse attributes, with an error of their own."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise ValueError(name)


try:
    _Stubborn[str]()
    # Later versions of Python let any error of that pass.
    _IGNORED: tuple[type[Exception], ...] = (Exception,)
except ValueError:
    _IGNORED = (AttributeError,)


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

    def call(
        self, tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        """`Stack[int]()`, where `Stack` is a class of the program."""
        is_alias = type(self.value) is type(typing.List[int])  # noqa: UP006
        if not is_alias or not self.value._inst or not isinstance(self.value.__origin__, type):
            return super().call(tx, args, kwargs)
        return _made_by(tx, self, args, kwargs, _IGNORED)


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
