"""Functions with a cache (functools.lru_cache) that existed before the frame."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import markers
from ..side_effects import Mutation
from ..source import CallSource
from ..source_calls import ABSENT, CachedResult
from .base import NotConstant, ObservedException, VariableTracker, unsupported
from .code_reach import CodeReach
from .constant import ConstantVariable
from .functions import CallableVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


class CachedFunctionVariable(CallableVariable):
    """A function with a cache, called for real while tracing where its arguments are constants or
    objects that existed: that what it gave is still in its cache is guarded.

    It is called by the frame itself where it may read what the frame changed, and is traced where
    there is to be one graph, or where an argument is a value of the graph: once for equal ones.
    """

    mutation = Mutation.EXISTING

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.results: dict[Any, VariableTracker] = {}

    def call(
        self,
        tx: Translator,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        try:
            values = [_real_value(tx, arg) for arg in args]
            named = {key: _real_value(tx, arg) for key, arg in kwargs.items()}
        except NotConstant:
            return self._trace(tx, args, kwargs)
        lookup = CachedResult(self.value, values, named)
        if lookup(self.value) is ABSENT:
            wrapped = getattr(self.value, "__wrapped__", None)
            is_constant = markers.decision(wrapped) is markers.Decision.CONSTANT
            why = None if is_constant else _shared(tx, wrapped, values)
            if why is not None and tx.output.options.fullgraph:
                return self._trace(tx, args, kwargs)
            if why is not None:
                unsupported("cached function", self.describe(), why)
        try:
            result = self.value(*values, **named)
        except Exception as error:
            raise ObservedException(tx.wrap_exception(error)) from error
        label = f"{self.describe()}(...)"
        entry = lookup(self.value)
        if entry is not ABSENT and self.source is not None:
            tx.guard(CallSource(self.source, lookup, "<a result of {base}>"), "ID_IS", entry)
        return tx.wrap_held(result, label)

    def setattr(
        self,
        tx: Translator,
        name: str,
        value: VariableTracker,
    ) -> None:
        tx.output.side_effects.store_attr(self, name, value)

    def _trace(
        self,
        tx: Translator,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        """The function behind the cache, as if it were called first; arguments must be hashable."""
        values = [argument.realize() for argument in (*args, *kwargs.values())]
        for value in values:
            value.check_hashable(tx)
        key = tx.output.graph, tuple(kwargs), tuple(map(_key_part, values))
        effects = tx.output.side_effects
        before = effects.outside
        if key not in self.results:
            result = tx.call_function(self.getattr(tx, "__wrapped__"), args, kwargs)
            self.results[key] = result
        if effects.outside != before and not tx.output.options.fullgraph:
            why = "what it changes it changes once for equal arguments"
            unsupported("cached function", self.describe(), why)
        return self.results[key]


def _key_part(value: VariableTracker) -> Any:
    return (type(value.value), value.value) if isinstance(value, ConstantVariable) else value


def _real_value(
    tx: Translator,
    argument: VariableTracker,
) -> Any:
    """The object that is an argument; raises NotConstant."""
    argument = argument.realize()
    try:
        return argument.as_python_constant()
    except NotConstant:
        real = tx.output.side_effects.real_of(argument)
        is_plain = type(real).__hash__ is object.__hash__ and real is not None
        if argument.source is None or not is_plain:
            raise
        tx.guard(argument.source, "ID_IS", real)
        return real


def _shared(
    tx: Translator,
    function: Any,
    args: Sequence[Any],
) -> str | None:
    """Why the function is not to be called before the frame's own code, or None."""
    effects = tx.output.side_effects
    reach = CodeReach([function, *args])
    if not effects.is_empty():
        found = reach.first_read(effects, effects.pending_attributes())
        if found is not None:
            return f"it may read what was changed: {found}"
    if reach.names.isdisjoint(_CHANGING):
        return None
    for real, variable in effects.tracked():
        if type(real) in _CONTAINERS and reach.reads(real):
            return f"it may change what was read: {variable!r}"
    return None


_CONTAINERS = (list, set, dict, collections.deque)
_CHANGING = frozenset(
    name
    for cls in _CONTAINERS
    for name in (*vars(cls), "__setitem__", "__delitem__")
    if name not in dir(frozenset) + dir(tuple) + ["get", "keys", "values", "items", "fromkeys"]
)
