"""`cls.__new__` of the builtin types that have values of their own.

It is the first half of making an object:

`type.__call__` is traced (`classes.instantiate`): `__new__`, then `__init__`, whose rows are
methods of the values. So subclasses written in Python need nothing more.
"""

from __future__ import annotations

import collections
import datetime
import functools
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..side_effects import Mutation
from ..utils import class_dict
from ..variables.arity import bare_class, refuse
from ..variables.base import VariableTracker, unsupported
from ..variables.builtin_object import checked, has_slot, type_name
from ..variables.classes import instantiate
from ..variables.constant import ConstantVariable
from ..variables.deques import DequeVariable
from ..variables.dict_methods import merge
from ..variables.dict_views import MappingProxyVariable
from ..variables.dicts import DictVariable
from ..variables.exceptions import (
    BUILTIN_EXCEPTIONS,
    OPAQUE_EXCEPTIONS,
    ExceptionVariable,
    exception_with_state,
)
from ..variables.lists import ListVariable, TupleVariable, is_structseq, tuple_mutation
from ..variables.registry import handles
from ..variables.sets import Operand, SetVariable, made_of, operand, set_like
from ..variables.user_values import new_value
from .builtins import builtin
from .functools_ import new_partial

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Values = VariableTracker


def _constructs(*functions: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Register `function(tx, cls, *args, **kwargs)` for these `__new__`; cls is the real class."""

    def register(function: Callable[..., Any]) -> Any:
        for unique in {id(target): target for target in functions}.values():
            handles(unique)(checked(_maker(unique, function), "__new__"))
        return function

    return register


def _maker(target: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """`target`, a `__new__` of C, by `function`."""

    def new(
        tx: Translator, cls: Values | None = None, /, *args: Values, **kwargs: Values
    ) -> Any:
        real = _class_to_make(tx, target.__self__, cls)
        if any("__del__" in class_dict(base) for base in real.__mro__):
            unsupported("new object", real.__qualname__, "objects with __del__ are not made")
        return function(tx, real, *args, **kwargs)

    return new


def _class_to_make(tx: Translator, owner: type, cls: Values | None) -> type:
    """`tp_new_wrapper`: TypeError if the `__new__` of `owner` makes no objects of `cls`."""
    name = type_name(owner)
    if cls is None:
        tx.raise_observed(TypeError, f"{name}.__new__(): not enough arguments")
    real = cls.as_python_constant() if cls.is_python_constant() else None
    if not isinstance(real, type):
        kind = type_name(cls.python_type())
        tx.raise_observed(TypeError, f"{name}.__new__(X): X is not a type object ({kind})")
    if not issubclass(real, owner):
        text = (
            f"{name}.__new__({type_name(real)}): {type_name(real)} is not a subtype of {name}"
        )
        tx.raise_observed(TypeError, text)
    return real


@_constructs(list.__new__)
def _new_list(tx: Translator, cls: type, *args: Values, **kwargs: Values) -> Values:
    return ListVariable([], cls, mutation=Mutation.NEW)


@_constructs(collections.deque.__new__)
def _new_deque(tx: Translator, cls: type, *args: Values, **kwargs: Values) -> Values:
    return DequeVariable([], None, cls, mutation=Mutation.NEW)


@_constructs(dict.__new__)
def _new_dict(tx: Translator, cls: type, *args: Values, **kwargs: Values) -> Values:
    return DictVariable({}, cls)


@_constructs(set.__new__)
def _new_set(tx: Translator, cls: type, *args: Values, **kwargs: Values) -> Values:
    return SetVariable(set(), {}, cls, mutation=Mutation.NEW)


def _check_arguments(
    tx: Translator, owner: type, cls: type, args: tuple[Values, ...], kwargs: dict[str, Values]
) -> None:
    """tuple and frozenset take one argument; keywords are for the `__init__` of a subclass."""
    if len(args) > 1 or (kwargs and cls.__init__ is object.__init__):  # type: ignore[misc]
        refuse(tx, cls.__name__, args, kwargs, bare_class(owner, cls))


@_constructs(frozenset.__new__)
def _new_frozenset(tx: Translator, cls: type, *args: Values, **kwargs: Values) -> Values:
    _check_arguments(tx, frozenset, cls, args, kwargs)
    if args and cls is args[0].python_type() is frozenset:
        return args[0]
    return made_of(cls, operand(tx, args[0]) if args else Operand((), {}, True, ()))


@_constructs(tuple.__new__)
def _new_tuple(tx: Translator, cls: type, *args: Values, **kwargs: Values) -> Values:
    _check_arguments(tx, tuple, cls, args, kwargs)
    items = list(args[0].each(tx, sized=True)) if args else []
    return TupleVariable(items, cls, mutation=tuple_mutation(cls, Mutation.NEW))


_STRUCTSEQS = [v for v in vars(torch.return_types).values() if isinstance(v, type)]


@_constructs(*(class_.__new__ for class_ in _STRUCTSEQS if is_structseq(class_)))
def _new_structseq(tx: Translator, cls: Any, *args: Values, **kwargs: Values) -> Values:
    items = args[0].unpack(tx) if len(args) == 1 and not kwargs else []
    if not len(items) == cls.n_sequence_fields == cls.n_fields:
        unsupported("call does not fit", cls.__name__, "eager will raise the TypeError")
    return TupleVariable(items, cls)


@_constructs(*(class_.__new__ for class_ in BUILTIN_EXCEPTIONS))
def _new_exception(tx: Translator, cls: Any, *args: Values, **kwargs: Values) -> Values:
    if issubclass(cls, BaseExceptionGroup) or cls.__flags__ & (1 << 20):
        unsupported("exception class", cls.__name__, f"making a {cls.__name__} is not traced")
    if issubclass(cls, OPAQUE_EXCEPTIONS) or (kwargs and cls in BUILTIN_EXCEPTIONS):
        return exception_with_state(tx, cls, list(args), kwargs)
    return ExceptionVariable(cls, list(args))


_constructs(functools.partial.__new__)(new_partial)


def _makes_values(family: type) -> None:
    def new(tx: Translator, cls: type, *args: Values, **kwargs: Values) -> Values:
        return new_value(tx, family, cls, args, kwargs)

    _constructs(family.__new__)(new)


for _family in (int, float, str):
    _makes_values(_family)


@_constructs(bool.__new__)
def _new_bool(tx: Translator, cls: type, *args: Values, **kwargs: Values) -> Values:
    return tx.call_function(tx.wrap_constant(bool), list(args), kwargs)


@_constructs(datetime.timedelta.__new__)
def _new_timedelta(
    tx: Translator,
    cls: type,
    *args: Values,
    **kwargs: Values,
) -> Values:
    if cls is not datetime.timedelta:
        unsupported("new object", cls.__qualname__, "its timedelta is not known")
    named = {name: value.as_python_constant() for name, value in kwargs.items()}
    return tx.fold(cls, tuple(value.as_python_constant() for value in args), named)


@builtin(types.MappingProxyType)
def _mapping_proxy(tx: Translator, mapping: Values, /) -> Values:
    if not isinstance(mapping, DictVariable):
        unsupported(
            "new object", "mappingproxy", "a proxy of this kind of mapping is not traced"
        )
    return MappingProxyVariable(mapping)


def _call_class(cls: type) -> Callable[..., Any]:
    """Calls of builtin types whose arguments `__init__` takes."""

    def handler(
        tx: Translator,
        args: list[Values],
        kwargs: dict[str, Values],
    ) -> Values:
        variable: Any = tx.wrap_constant(cls)
        return instantiate(tx, variable, args, kwargs)

    return handler


for _class in (collections.deque, collections.OrderedDict, collections.defaultdict):
    handles(_class)(_call_class(_class))


# -- calls of builtin types -----------------------------------------------------------------------


@builtin(list)
def _list(tx: Translator, iterable: Values | None = None, /) -> Values:
    if iterable is None:
        return tx.wrap_items(list, [])
    if _ASKED_BEFORE and has_slot(tx, iterable, "__len__"):
        tx.ask_length(iterable)
    return tx.wrap_items(list, list(iterable.each(tx, sized=True)))


class _Asked:
    """Whether `list` wants the length before it asks for an iterator, as on CPython 3.11."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def __len__(self) -> int:
        self.order.append("length")
        return 0

    def __iter__(self) -> Iterator[Any]:
        self.order.append("iterator")
        return iter(())


list(_asked := _Asked())
_ASKED_BEFORE = _asked.order[0] == "length"


@builtin(tuple)
def _tuple(tx: Translator, iterable: Values | None = None, /) -> Values:
    if iterable is not None and iterable.python_type() is tuple:
        return iterable
    items = [] if iterable is None else list(iterable.each(tx, sized=True))
    return tx.wrap_items(tuple, items)


@builtin(set)
def _set(tx: Translator, iterable: Values | None = None, /) -> Values:
    return _make_set(tx, set, iterable)


@builtin(frozenset)
def _frozenset(tx: Translator, iterable: Values | None = None, /) -> Values:
    if iterable is not None and iterable.python_type() is frozenset:
        return iterable
    return _make_set(tx, frozenset, iterable)


def _make_set(tx: Translator, cls: type, iterable: Values | None) -> Values:
    if iterable is None:
        return tx.wrap_items(cls, [])
    is_set = set_like(iterable) is not None and not iterable.overrides("__iter__")
    if is_set or iterable.python_type() is dict:
        return made_of(cls, operand(tx, iterable))
    return tx.wrap_items(cls, iterable.unpack(tx))


@builtin(dict)
def _dict(tx: Translator, other: Values | None = None, /, **named: Values) -> Values:
    result = DictVariable({})
    if other is not None:
        merge(tx, result, other)
    for name, value in named.items():
        result.setitem(tx, ConstantVariable(name), value)
    return result
