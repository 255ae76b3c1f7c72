"""functools: reduce, partial and classes derived from it, cmp_to_key."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..side_effects import Mutation
from ..source import CallSource, partial_source
from ..variables.base import VariableTracker, unsupported
from ..variables.builtin_object import (
    BuiltinObject,
    builtin_method,
    construct,
    has_slot,
    type_name,
)
from ..variables.constant import ConstantVariable
from ..variables.registry import handles, wraps, wraps_instances
from ..variables.user_defined import UserDefinedObjectVariable
from .builtins import Values, builtin
from .text import show, shown_by

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
            self.push_args(codegen)

        construct(codegen, _partial, self.function, push_args, self.keywords)
        self.reconstruct_attributes(codegen)

    def push_args(self, codegen: PyCodegen) -> None:
        codegen.sequence(self.args)
        codegen.emit("BUILD_TUPLE", len(self.args))


def _partial(
    function: Any,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Any:
    return functools.partial(function, *args, **keywords)


def _make_partial(
    tx: Translator,
    args: list[Values],
    kwargs: dict[str, Values],
) -> PartialVariable:
    if not args or not has_slot(tx, args[0], "__call__"):
        unsupported("call does not fit", "partial", "eager will raise the TypeError")
    function, *rest = args
    keywords = dict(kwargs)
    below = _partial_below(tx, function)
    if below is not None:
        keywords = {**tx.unpack_keywords(below.keywords.realize()), **keywords}
        rest = [*below.args, *rest]
        function = below.function
    return PartialVariable(function, rest, tx.wrap_keywords(keywords))


handles(functools.partial)(_make_partial)


def _show_partial(tx: Translator, value: PartialVariable) -> str:
    parts = [show(tx, value.function)]
    parts += [show(tx, item) for item in value.args]
    keywords = tx.unpack_keywords(value.keywords.realize())
    parts += [f"{name}={show(tx, item)}" for name, item in keywords.items()]
    return f"{type_name(value.cls)}({', '.join(parts)})"


shown_by(functools.partial, _show_partial, "...")


class _CalledByPython(functools.partial[Any]):
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


_ALL_ARE_TAKEN_OVER = functools.partial(_CalledByPython(int)).func is int


def _partial_below(tx: Translator, function: Values) -> PartialVariable | None:
    """The partial whose parts are taken over by another one: it has no dict and, in some versions
    of CPython, is called by C.
    """
    if not isinstance(function, (PartialVariable, UserPartialVariable)):
        return None
    owner = next(cls for cls in function.cls.__mro__ if "__call__" in vars(cls))
    is_called_by_c = owner is functools.partial or _ALL_ARE_TAKEN_OVER
    if not is_called_by_c or any(function.instance_names(tx)):
        return None
    return function if isinstance(function, PartialVariable) else function.base


def _wrap_partial(
    tx: Translator,
    value: Any,
    source: Source,
) -> PartialVariable:
    tx.guard(source, "TYPE_IS", type(value))
    is_plain = type(value) is functools.partial

    def source_of(name: str) -> Source:
        if is_plain:
            return partial_source(source, name)
        return CallSource(source, _PARTS[name], f"{{base}}.{name}")

    function = tx.wrap(_PARTS["func"](value), source_of("func"))
    args = tx.wrap(_PARTS["args"](value), source_of("args")).unpack(tx)
    keywords = tx.lazy(_PARTS["keywords"](value), source_of("keywords"))
    return PartialVariable(
        function, args, keywords, source=source, mutation=Mutation.EXISTING, real=value
    )


wraps(functools.partial)(_wrap_partial)

# How the parts are read: a subclass may have attributes of the same names.
_PARTS = {name: vars(functools.partial)[name].__get__ for name in ("func", "args", "keywords")}


class UserPartialVariable(UserDefinedObjectVariable):
    """An object of a class derived from partial: attributes and what the class defines are traced
    as of any object, partial's own methods and members are those of `base`.
    """

    def __init__(
        self,
        cls: type,
        base: PartialVariable,
        value: Any = None,
        *,
        source: Source | None = None,
    ) -> None:
        super().__init__(cls, value, source=source)
        self.base = base

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        """partial's own `__getattribute__` is the one of `object`."""
        if self.cls.__getattribute__ is not functools.partial.__getattribute__:
            return super().getattr(tx, name)
        found = self.generic_getattr(tx, name)
        return (found or self.missing_attribute(tx, name)).realize()

    def load_slot(self, tx: Translator, descriptor: Any) -> VariableTracker:
        if descriptor.__objclass__ is functools.partial:
            return self.base.getattr(tx, descriptor.__name__)
        return super().load_slot(tx, descriptor)

    def call_builtin(
        self,
        tx: Translator,
        raw: Any,
        args: list[Values],
        kwargs: dict[str, Values],
    ) -> Values:
        if raw is functools.partial.__call__:
            return tx.call_for(self, self.base, args, kwargs)
        if raw not in _AS_OF_OBJECT:
            return super().call_builtin(tx, raw, args, kwargs)
        attribute, *value = [arg.realize() for arg in args]
        name = attribute.as_python_constant()
        return _AS_OF_OBJECT[raw](self, tx, name, *value) or ConstantVariable(None)

    def push_blank(self, codegen: PyCodegen) -> None:
        construct(
            codegen,
            _partial_of_class,
            lambda: codegen.load_const(self.cls),
            self.base.function,
            lambda: self.base.push_args(codegen),
            self.base.keywords,
        )


def _generic_getattr(self: UserPartialVariable, tx: Translator, name: str) -> VariableTracker:
    return self.generic_getattr(tx, name) or self.no_attribute(tx, name)


_AS_OF_OBJECT: dict[Any, Callable[..., VariableTracker | None]] = {
    functools.partial.__getattribute__: _generic_getattr,
    functools.partial.__setattr__: UserPartialVariable.generic_setattr,
    functools.partial.__delattr__: UserPartialVariable.generic_delattr,
}


def _partial_of_class(
    cls: type,
    function: Any,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Any:
    return functools.partial.__new__(cls, function, *args, **keywords)


def new_partial(
    tx: Translator,
    cls: type,
    *args: Values,
    **kwargs: Values,
) -> Values:
    """`functools.partial.__new__(cls, *args, **kwargs)`."""
    base = _make_partial(tx, list(args), kwargs)
    return base if cls is functools.partial else UserPartialVariable(cls, base)


@wraps_instances(functools.partial)
def _wrap_user_partial(
    tx: Translator,
    value: Any,
    source: Source,
) -> VariableTracker:
    base = _wrap_partial(tx, value, source)
    return UserPartialVariable(type(value), base, value, source=source)


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
