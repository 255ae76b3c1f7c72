"""functools: reduce, partial, cmp_to_key."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..side_effects import Mutation
from ..source import partial_source
from ..variables.base import VariableTracker, unsupported
from ..variables.builtin_object import BuiltinObject, builtin_method, construct, has_slot
from ..variables.constant import ConstantVariable
from ..variables.registry import handles, wraps
from .builtins import Values, builtin

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator


@builtin(functools.reduce)
def _reduce(
    tx: Translator,
    function: Values,
    iterable: Values,
    initial: Values | None = None,
    /,
) -> Values:
    iterator = iterable.iter(tx)
    total = iterator.next(tx) if initial is None else initial
    if total is None:
        tx.raise_observed(TypeError, "reduce() of empty iterable with no initial value")
    while (item := iterator.next(tx)) is not None:
        total = tx.call_function(function, [total, item], {})
    return total


# -- partial ---------------------------------------------------------------------------------------


class PartialVariable(BuiltinObject):
    """functools.partial(function, *args, **keywords)."""

    takes_lazy_args = True

    def __init__(
        self,
        function: Values,
        args: list[Values],
        keywords: Values,
        *,
        source: Source | None = None,
        mutation: Mutation = Mutation.NEW,
        real: Any = None,
    ) -> None:
        super().__init__(functools.partial, source=source, mutation=mutation, real=real)
        self.function = function
        self.args = args
        self.keywords = keywords

    def call(
        self,
        tx: Translator,
        args: list[Values],
        kwargs: dict[str, Values],
    ) -> Values:
        keywords = {**tx.unpack_keywords(self.keywords.realize()), **kwargs}
        return tx.call_for(self, self.function, [*self.args, *args], keywords)

    def getattr(
        self,
        tx: Translator,
        name: str,
    ) -> VariableTracker:
        parts = {"func": self.function, "keywords": self.keywords}
        if name == "args":
            return tx.wrap_items(tuple, self.args)
        return parts[name].realize() if name in parts else super().getattr(tx, name)

    def truth(self, tx: Translator) -> bool:
        return True

    def reconstruct(self, codegen: PyCodegen) -> None:
        def push_args() -> None:
            codegen.sequence(self.args)
            codegen.emit("BUILD_TUPLE", len(self.args))

        construct(codegen, _partial, self.function, push_args, self.keywords)
        self.reconstruct_attributes(codegen)


def _partial(
    function: Any,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Any:
    return functools.partial(function, *args, **keywords)


@handles(functools.partial)
def _make_partial(
    tx: Translator,
    args: list[Values],
    kwargs: dict[str, Values],
) -> Values:
    if not args or not has_slot(args[0], "__call__"):
        unsupported("call does not fit", "partial", "eager will raise the TypeError")
    function, *rest = args
    keywords = dict(kwargs)
    if isinstance(function, PartialVariable) and not tx.output.side_effects.stored_attrs(
        function
    ):
        keywords = {**tx.unpack_keywords(function.keywords.realize()), **keywords}
        rest = [*function.args, *rest]
        function = function.function
    return PartialVariable(function, rest, tx.wrap_keywords(keywords))


@wraps(functools.partial)
def _wrap_partial(
    tx: Translator,
    value: Any,
    source: Source,
) -> VariableTracker:
    tx.guard(source, "TYPE_IS", functools.partial)
    function = tx.wrap(value.func, partial_source(source, "func"))
    args = tx.wrap(value.args, partial_source(source, "args")).unpack(tx)
    keywords = tx.lazy(value.keywords, partial_source(source, "keywords"))
    return PartialVariable(
        function, args, keywords, source=source, mutation=Mutation.EXISTING, real=value
    )


# -- cmp_to_key ------------------------------------------------------------------------------------

_Key = type(functools.cmp_to_key(lambda left, right: 0))
_ORDER: dict[str, Callable[..., Any]] = {
    "__lt__": operator.lt,
    "__le__": operator.le,
    "__gt__": operator.gt,
    "__ge__": operator.ge,
    "__eq__": operator.eq,
}


class CompareKeyVariable(BuiltinObject):
    """cmp_to_key(function), and what calling it with an object gives."""

    def __init__(
        self,
        function: Values,
        item: Values | None = None,
    ) -> None:
        super().__init__(_Key, mutation=Mutation.NEW)
        self.function = function
        self.item = item

    def call(
        self,
        tx: Translator,
        args: list[Values],
        kwargs: dict[str, Values],
    ) -> Values:
        (item,) = [*args, *kwargs.values()]
        return CompareKeyVariable(self.function, item)

    def getattr(
        self,
        tx: Translator,
        name: str,
    ) -> VariableTracker:
        if name == "obj" and self.item is not None:
            return self.item
        return super().getattr(tx, name)

    def reconstruct(self, codegen: PyCodegen) -> None:
        if self.item is None:
            construct(codegen, functools.cmp_to_key, self.function)
        else:
            construct(codegen, _compare_key, self.function, self.item)


def _compare_key(function: Any, item: Any) -> Any:
    return functools.cmp_to_key(function)(item)


@builtin(functools.cmp_to_key)
def _cmp_to_key(tx: Translator, mycmp: Values) -> Values:
    return CompareKeyVariable(mycmp)


def _compare(name: str) -> Callable[..., Values]:
    def row(
        tx: Translator,
        self: CompareKeyVariable,
        other: Values,
        /,
    ) -> Values:
        if not isinstance(other, CompareKeyVariable) or self.item is None or other.item is None:
            tx.raise_observed(TypeError, "other argument must be K instance")
        order = tx.call_function(self.function, [self.item, other.item], {})
        return tx.call_operator(_ORDER[name], [order.realize(), ConstantVariable(0)])

    return row


for _name in _ORDER:
    builtin_method(_Key, _name)(_compare(_name))
