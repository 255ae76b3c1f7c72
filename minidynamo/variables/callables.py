"""Callables made of other callables: what `compile` gave, and functions with a cache."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .. import _C, markers, trace_rules
from ..side_effects import Mutation
from ..source import AttrSource, Source
from .base import NotConstant, ObservedException, VariableTracker, unsupported
from .functions import CallableVariable
from .registry import wraps

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


class CompiledFunctionVariable(CallableVariable):
    """What `compile(fn)` or `disable(fn)` gave; while tracing, `compile` adds nothing."""

    takes_lazy_args = True

    def call(
        self, tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        name = getattr(self.value, "__qualname__", repr(self.value))
        if self.value.region is None:
            why = markers.decision_reason(self.value)
            text = f"{name} was passed to disable{f': {why}' if why else ''}"
            unsupported("disabled function", name, text)
        assert self.source is not None
        function = tx.wrap(self.value.__wrapped__, AttrSource(self.source, "__wrapped__"))
        is_strict = getattr(self.value.region.callback, "fullgraph", False)
        if is_strict and not tx.output.options.fullgraph:
            strictly = tx.wrap_constant(markers.call_strictly)
            return tx.call_function(strictly, [function, *args], kwargs)
        return tx.call_for(self, function, args, kwargs)


class CachedFunctionVariable(CallableVariable):
    """A function with a cache (functools.lru_cache), called for real while tracing.

    Its result stays what it is for equal arguments, by the cache's own contract, and its side
    effects happen once, as in eager. Where the arguments are no constants it is traced, so that its
    side effects happen in each call.
    """

    mutation = Mutation.EXISTING

    def call(
        self, tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        name = self.describe()
        try:
            values = [arg.as_python_constant() for arg in args]
            named = {key: arg.as_python_constant() for key, arg in kwargs.items()}
        except NotConstant:
            return self._trace(tx, args, kwargs)
        wrapped = getattr(self.value, "__wrapped__", None)
        is_constant = markers.decision(wrapped) is markers.Decision.CONSTANT
        if not is_constant and not tx.output.side_effects.is_empty():
            # It may read what the traced code changed.
            return self._trace(tx, args, kwargs)
        try:
            result = self.value(*values, **named)
        except Exception as error:
            raise ObservedException(tx.wrap_exception(error)) from error
        return tx.wrap_held(result, f"{name}(...)")

    def setattr(self, tx: Translator, name: str, value: VariableTracker) -> None:
        tx.output.side_effects.store_attr(self, name, value)

    def _trace(
        self, tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        """The function behind the cache, as if it were called first; arguments must be hashable."""
        for argument in (*args, *kwargs.values()):
            argument.check_hashable(tx)
        return tx.call_function(self.getattr(tx, "__wrapped__"), args, kwargs)


def _wraps_as(kind: type[CallableVariable], type_: type) -> None:
    def wrap(tx: Translator, value: Any, source: Source) -> VariableTracker:
        tx.guard(source, "ID_IS", value)
        return kind(value, source=source)

    wraps(type_)(wrap)


_wraps_as(CompiledFunctionVariable, _C.CompiledFunction)
_wraps_as(CachedFunctionVariable, functools._lru_cache_wrapper)
if trace_rules.numpy is not None:
    _wraps_as(CallableVariable, type(trace_rules.numpy.sqrt))
    _wraps_as(CallableVariable, type(trace_rules.numpy.prod))
