"""Callables made of other callables: what `compile` gave, and functions with a cache."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .. import _C, markers, trace_rules
from ..source import AttrSource, Source
from .base import VariableTracker, unsupported
from .cached_functions import CachedFunctionVariable
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
