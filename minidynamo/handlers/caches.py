"""`functools.lru_cache` of functions, in captured code."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ..exc import Unsupported
from ..side_effects import Mutation
from ..variables.base import unsupported
from ..variables.builtin_object import (
    BuiltinObject,
    builtin_method,
    has_slot,
    index_of,
    is_none,
)
from ..variables.constant import ConstantVariable
from ..variables.dicts import key_of
from .builtins import Values, builtin

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

_CachedFunction = functools._lru_cache_wrapper
_ONE = (int, str)


class NewCacheVariable(BuiltinObject):
    """A function with a cache that the traced code made. results: by key, the oldest use first.

    One that was called can't be made behind the graph: then the graph breaks where it was made.
    """

    def __init__(
        self, function: Values, limit: int | None, is_typed: bool, info: Values, made_at: int
    ) -> None:
        super().__init__(_CachedFunction, mutation=Mutation.NEW)
        self.function = function
        self.limit = limit
        self.is_typed = is_typed
        self.info = info
        self.made_at = made_at
        self.results: dict[Any, Values] = {}
        self.hits = self.misses = 0

    def truth(self, tx: Translator) -> bool:
        return True

    def call(self, tx: Translator, args: list[Values], kwargs: dict[str, Values]) -> Values:
        key = None if self.limit == 0 else self._key(tx, args, kwargs)
        tx.output.side_effects.mutate(self)
        if key in self.results:
            self.hits += 1
            found = self.results.pop(key)
            self.results[key] = found
            return found
        self.misses += 1
        result = tx.call_function(self.function, args, kwargs)
        if self.limit == 0 or key in self.results:
            return result
        if self.limit is not None and len(self.results) >= self.limit:
            del self.results[next(iter(self.results))]
        self.results[key] = result
        return result

    def _key(self, tx: Translator, args: list[Values], kwargs: dict[str, Values]) -> Any:
        """`lru_cache_make_key`."""
        values = [value.realize() for value in (*args, *kwargs.values())]
        keys = tuple(key_of(tx, value) for value in values)
        if self.is_typed:
            return keys, tuple(kwargs), tuple(value.python_type() for value in values)
        is_one = len(values) == 1 and not kwargs and values[0].python_type() in _ONE
        return ("one", keys[0]) if is_one else (keys, tuple(kwargs))

    def reconstruct(self, codegen: PyCodegen) -> None:
        if self.hits or self.misses:
            reason = Unsupported("cached function", self.describe(), "its cache is not rebuilt")
            reason.made_at = self.made_at  # type: ignore[attr-defined]
            raise reason
        codegen.begin_call(_CachedFunction)
        codegen(self.function)
        for constant in (self.limit, self.is_typed):
            codegen.load_const(constant)
        codegen(self.info)
        codegen.end_call(4)
        self.reconstruct_attributes(codegen)


@builtin(_CachedFunction)
def _make_cache(
    tx: Translator, user_function: Values, maxsize: Values, typed: Values, info: Values, /
) -> Values:
    if not has_slot(tx, user_function, "__call__"):
        unsupported("call does not fit", "lru_cache", "eager will raise the TypeError")
    limit = None if is_none(maxsize) else max(index_of(tx, maxsize), 0)
    return NewCacheVariable(user_function, limit, typed.truth(tx), info, tx.last_step())


@builtin_method(_CachedFunction, "cache_info")
def _cache_info(tx: Translator, self: NewCacheVariable, /) -> Values:
    numbers = (self.hits, self.misses, self.limit, len(self.results))
    return tx.call_function(self.info, [ConstantVariable(number) for number in numbers], {})


@builtin_method(_CachedFunction, "cache_clear")
def _cache_clear(tx: Translator, self: NewCacheVariable, /) -> None:
    tx.output.side_effects.mutate(self)
    self.results.clear()
    self.hits = self.misses = 0
