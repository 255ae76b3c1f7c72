"""`functools.singledispatch` and its methods: their Python code is traced, without their caches."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from ..variables.base import VariableTracker
from ..variables.constant import ConstantVariable
from ..variables.registry import handles

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


# CPython 3.13 keeps methods of instances, too.
_WITH_CACHES = ("singledispatch.<locals>.dispatch", "singledispatchmethod.__get__")


def _is_dispatch(tx: Translator) -> bool:
    code = tx.code
    return (
        code.co_qualname in _WITH_CACHES
        and code.co_filename == functools.singledispatch.__code__.co_filename
    )


@handles(weakref.WeakKeyDictionary.__getitem__)
def _cached(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    if not _is_dispatch(tx):
        return NotImplemented
    tx.raise_observed(KeyError)


@handles(weakref.WeakKeyDictionary.__setitem__)
def _cache(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    return ConstantVariable(None) if _is_dispatch(tx) else NotImplemented


@handles(functools._find_impl)  # type: ignore[attr-defined]
def _find_implementation(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """The row of the table for the nearest class; an ambiguous one raises as in eager."""
    if len(args) != 2 or kwargs:
        return NotImplemented
    cls, table = args
    keys = [key.as_python_constant() for key in table.unpack(tx)]
    nearest = functools._find_impl(cls.as_python_constant(), {key: key for key in keys})  # type: ignore[attr-defined]
    return table.getitem(tx, tx.wrap_constant(nearest))
