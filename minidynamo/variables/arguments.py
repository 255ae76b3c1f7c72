"""How the arguments of a call go to the parameters of a Python function."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, NoReturn

from .base import ObservedException, VariableTracker
from .functions import BaseFunctionVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


def bind_arguments(
    tx: Translator,
    function: BaseFunctionVariable,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> dict[str, VariableTracker]:
    """The callee's locals at entry, by CPython's rules for positional, keyword, * and **
    parameters.

    Raises the TypeError of a call that does not fit.
    """
    code = function.get_code()
    n_positional, n_keyword = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    bound: dict[str, VariableTracker] = dict(zip(names[:n_positional], args, strict=False))
    extra = args[n_positional:]
    next_name = n_positional + n_keyword
    if code.co_flags & 0x04:
        bound[names[next_name]] = tx.wrap_items(tuple, extra)
        next_name += 1
    elif extra:
        _bad_call(tx, function, args, kwargs)
    by_keyword = set(names[code.co_posonlyargcount : n_positional + n_keyword])
    rest: dict[str, VariableTracker] = {}
    for name, value in kwargs.items():
        if name not in by_keyword:
            rest[name] = value
        elif name in bound:
            _bad_call(tx, function, args, kwargs)
        else:
            bound[name] = value
    if code.co_flags & 0x08:
        bound[names[next_name]] = tx.wrap_keywords(rest)
    elif rest:
        _bad_call(tx, function, args, kwargs)
    _fill_defaults(tx, function, args, kwargs, bound)
    return bound


def _fill_defaults(
    tx: Translator,
    function: BaseFunctionVariable,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
    bound: dict[str, VariableTracker],
) -> None:
    code = function.get_code()
    positional = code.co_varnames[: code.co_argcount]
    keyword = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    missing = [name for name in positional if name not in bound]
    if missing:
        defaults = function.defaults(tx)
        by_name = dict(zip(reversed(positional), reversed(defaults), strict=False))
        for name in missing:
            if name not in by_name:
                _bad_call(tx, function, args, kwargs)
            bound[name] = by_name[name]
    missing = [name for name in keyword if name not in bound]
    if missing:
        kwdefaults = function.kwdefaults(tx)
        for name in missing:
            if name not in kwdefaults:
                _bad_call(tx, function, args, kwargs)
            bound[name] = kwdefaults[name]


def _bad_call(
    tx: Translator,
    function: BaseFunctionVariable,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> NoReturn:
    """CPython finds the words: the call of a function of this shape fails before its code runs."""
    code = function.get_code()
    cells = tuple(types.CellType() for _ in code.co_freevars)
    defaults = (None,) * len(function.defaults(tx))
    stand_in = types.FunctionType(code, {}, code.co_name, defaults, cells or None)
    stand_in.__qualname__ = function.getattr(tx, "__qualname__").as_python_constant()
    stand_in.__kwdefaults__ = dict.fromkeys(function.kwdefaults(tx))
    try:
        stand_in(*(None for _ in args), **dict.fromkeys(kwargs))
    except TypeError as error:
        raise ObservedException(tx.wrap_exception(error)) from None
    raise AssertionError(f"{stand_in.__qualname__} takes these arguments")
