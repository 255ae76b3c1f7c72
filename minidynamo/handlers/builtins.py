"""The builtin functions: one row for each that does more than compute on constants.

Constants never get here for pure functions (`abs(3)`, `len("ab")`): those run while tracing.
"""

from __future__ import annotations

import builtins
import itertools
import math
import operator
import sys
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ..variables.arity import harmless_call
from ..variables.base import NotConstant, ObservedException, VariableTracker, unsupported
from ..variables.builtin_object import (
    BuiltinObject,
    checked,
    has_slot,
    index_of,
    is_none,
    observed,
    type_name,
)
from ..variables.classes import ClassVariable
from ..variables.constant import ConstantVariable
from ..variables.descriptors import class_variable, lookup_special
from ..variables.exceptions import ExceptionVariable
from ..variables.functions import MethodOfVariable, UserFunctionVariable
from ..variables.iterators import CallableIterator
from ..variables.lazy_iterators import (
    EnumerateVariable,
    FilterVariable,
    MapVariable,
    ReversedVariable,
    ZipVariable,
)
from ..variables.lists import SequenceVariable
from ..variables.marks import is_attribute_error
from ..variables.namespaces import locals_of
from ..variables.numpy_numbers import NumpyNumberVariable
from ..variables.registry import handles
from ..variables.sequence_methods import sort_items
from ..variables.services import SEQUENCE_BUILDERS
from ..variables.sets import SetVariable
from ..variables.symint import SymVariable, compute
from ..variables.tensor import TensorVariable
from ..variables.user_defined import UserDefinedObjectVariable
from ..variables.user_values import UserValueVariable
from .class_definitions import type_new
from .extremes import select_extreme
from .powers import power
from .torch_symbolic import data_truth, number_holder, number_of

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Values = VariableTracker


def builtin(*functions: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Register what calling a builtin does: `function(tx, *args, **kwargs)`."""

    def register(function: Callable[..., Any]) -> Any:
        call = harmless_call(functions)
        handles(*functions)(checked(function, functions[0].__name__, call))
        return function

    return register


def data_dependent(what: str, value: VariableTracker) -> NoReturn:
    """Break the graph: a number has to come out of a tensor."""
    unsupported(
        "data-dependent value",
        f"{what}({value.describe()})",
        f"{what}() of a tensor needs its data, which is not known while tracing",
        ["keep the value in a tensor, or move the call out of the compiled function"],
    )


# -- sizes, truth and identity ------------------------------------------------------------------


@builtin(len)
def _len(tx: Translator, value: Values, /) -> Values:
    is_own = value.is_user_defined or value.overrides("__len__")
    if isinstance(value, ConstantVariable) and not is_own:
        return tx.fold(len, (value.value,), {})
    result = value.length(tx).realize()
    if is_own and result.is_python_constant():
        return ConstantVariable(length_of(tx, result))
    return result


def length_of(tx: Translator, result: VariableTracker) -> int:
    """`slot_sq_length`: the length that a `__len__` which returned `result` gives."""
    number = index_of(tx, result)
    with observed(tx):
        if number < 0:
            raise ValueError("__len__() should return >= 0")
        if number > sys.maxsize:
            raise OverflowError("cannot fit 'int' into an index-sized integer")
        return number


@builtin(bool)
def _bool(tx: Translator, value: Values | None = None, /) -> Values:
    truth = None if value is None else data_truth(tx, value)
    return truth or ConstantVariable(value is not None and value.truth(tx))


@builtin(callable)
def _callable(tx: Translator, value: Values, /) -> Values:
    return ConstantVariable(has_slot(tx, value, "__call__"))


# -- types --------------------------------------------------------------------------------------


@builtin(type)
def _type(tx: Translator, value: Values, /, *more: Values, **named: Values) -> Values:
    if more or named:
        if len(more) != 2:
            says = "1 or 3 arguments" if more else "no keyword arguments"
            tx.raise_observed(TypeError, f"type() takes {says}")
        return type_new(tx, [class_variable(tx, type), value, *more], named)
    return class_variable(tx, value.python_type())


# -- attributes ---------------------------------------------------------------------------------


def _name_of(tx: Translator, name: VariableTracker, function: str) -> str:
    if not issubclass(name.python_type(), str):
        kind = type_name(name.python_type())
        tx.raise_observed(TypeError, f"attribute name must be string, not '{kind}'")
    if name.is_symbolic_text:
        name = name.specialized(tx)
    try:
        return str.__str__(_text_of(name, function).as_python_constant())
    except NotConstant:
        unsupported(function, repr(name), "the name is not known while tracing")


def _text_of(name: VariableTracker, function: str) -> VariableTracker:
    """The text in an object of a subclass of str that is found as that text is. What stores keeps
    the object itself, as a key.
    """
    if not isinstance(name, UserValueVariable) or function == "setattr":
        return name
    return name if name.overrides("__hash__") or name.overrides("__eq__") else name.base


@builtin(getattr)
def _getattr(
    tx: Translator,
    value: Values,
    name: Values,
    /,
    *default: Values,
) -> Values:
    try:
        return tx.getattr(value, _name_of(tx, name, "getattr"))
    except ObservedException as error:
        if not default or not is_attribute_error(error):
            raise
        return default[0]


@builtin(hasattr)
def _hasattr(tx: Translator, value: Values, name: Values, /) -> Values:
    try:
        tx.getattr(value, _name_of(tx, name, "hasattr")).realize()
    except ObservedException as error:
        if not is_attribute_error(error):
            raise
        return ConstantVariable(False)
    return ConstantVariable(True)


@builtin(setattr)
def _setattr(
    tx: Translator,
    target: Values,
    name: Values,
    value: Values,
    /,
) -> None:
    tx.setattr(target, _name_of(tx, name, "setattr"), value)


@builtin(delattr)
def _delattr(tx: Translator, target: Values, name: Values, /) -> None:
    target.delattr(tx, _name_of(tx, name, "delattr"))


@builtin(vars)
def _vars(tx: Translator, value: Values | None = None, /) -> Values:
    if value is None:
        return locals_of(tx)
    try:
        return tx.getattr(value, "__dict__")
    except ObservedException as error:
        if not issubclass(error.value.python_type(), AttributeError):
            raise
        tx.raise_observed(TypeError, "vars() argument must have __dict__ attribute")


# -- numbers ------------------------------------------------------------------------------------


def _number(kind: type, special: tuple[str, ...]) -> None:
    """int(x), float(x), complex(x)."""

    def convert(tx: Translator, value: Values, /, *more: Values) -> Values:
        value = number_holder(value)
        if isinstance(value, TensorVariable):
            number = number_of(tx, value, f"__{kind.__name__}__")
            return data_dependent(kind.__name__, value) if number is None else number
        if isinstance(value, NumpyNumberVariable) and not more:
            return value.call_method(tx, f"__{kind.__name__}__", [], {})
        if kind is complex and issubclass(value.python_type(), str):
            return NotImplemented  # which reads the text, whatever its class has
        for name in special:
            function = lookup_special(tx, value, name)
            if function is not None and not more:
                result = tx.call_function(function, [], {}).realize()
                if result.python_type() is not _RESULTS[name]:
                    unsupported(
                        "number", f"{name} of {value!r}", "eager judges what it returned"
                    )
                return tx.call_function(tx.wrap_constant(kind), [result], {})
        if value.is_python_constant() and not more:  # a member of an enum made in C++
            return tx.fold(kind, [value.as_python_constant()], {})
        unsupported("number", f"{kind.__name__}({value!r})", "the number is not known")

    builtin(kind)(convert)


_RESULTS = {
    "__int__": int,
    "__index__": int,
    "__float__": float,
    "__complex__": complex,
}
_number(int, ("__int__", "__index__"))  # of `__trunc__` eager warns
_number(float, ("__float__", "__index__"))
_number(complex, ("__complex__", "__float__", "__index__"))


@builtin(pow)
def _pow(
    tx: Translator,
    base: Values,
    exp: Values,
    mod: Values | None = None,
) -> Values:
    if not is_none(mod):
        return power(tx, [base, exp, mod])  # type: ignore[list-item]
    return tx.call_operator(operator.pow, [base, exp])


@builtin(round)
def _round(tx: Translator, number: Values, ndigits: Values | None = None) -> Values:
    if isinstance(number, TensorVariable) and hasattr(torch.Tensor, "__round__"):
        named = {} if is_none(ndigits) else {"decimals": ndigits}
        return number.node_method(tx, "round", [], named)
    function = lookup_special(tx, number, "__round__")
    if function is None and not has_slot(tx, number, "__round__"):
        kind = type_name(number.python_type())
        tx.raise_observed(TypeError, f"type {kind} doesn't define __round__ method")
    if function is None:
        unsupported("round()", repr(number), "round() of this value is not traced")
    return tx.call_function(function, [] if ndigits is None else [ndigits], {})


@builtin(min)
def _min(tx: Translator, /, *args: Values, **named: Values) -> Values:
    return _extreme(tx, "min", operator.lt, list(args), named)


@builtin(max)
def _max(tx: Translator, /, *args: Values, **named: Values) -> Values:
    return _extreme(tx, "max", operator.gt, list(args), named)


def _extreme(
    tx: Translator,
    name: str,
    better: Callable[..., Any],
    args: list[Values],
    named: dict[str, Values],
) -> Values:
    """`min_max` of bltinmodule.c."""
    key, default = named.get("key"), named.get("default")
    if (
        not args
        or not set(named) <= {"key", "default"}
        or (default is not None and len(args) > 1)
    ):
        unsupported("call does not fit", f"{name}()", "eager will raise the TypeError")
    rest = iter(args) if len(args) > 1 else args[0].each(tx)
    first = next(rest, None)
    if first is None:
        if default is not None:
            return default
        tx.raise_observed(ValueError, _EMPTY[name])
    items: Iterable[Values] = itertools.chain([first], rest)
    if is_none(key) and not isinstance(first.realize(), UserDefinedObjectVariable):
        items = [item.realize() for item in items]
        selected = select_extreme(tx, better, items)
        if (
            selected is None
            and len(items) > 1
            and any(isinstance(i, SymVariable) for i in items)
        ):
            selected = compute(tx, getattr(builtins, name), items)
        if selected is not None:
            return selected
    best, best_key = None, None
    for item in items:
        value = item if is_none(key) else tx.call_function(key, [item], {})  # type: ignore[arg-type]
        value = value.realize()
        if best_key is None or tx.call_operator(better, [value, best_key]).truth(tx):
            best, best_key = item, value
    return best  # type: ignore[return-value]


def _empty_text(function: Callable[..., Any]) -> str:
    try:
        function([])
    except ValueError as error:
        return str(error)
    raise AssertionError(function)


_EMPTY = {"min": _empty_text(min), "max": _empty_text(max)}


@builtin(sum)
def _sum(tx: Translator, iterable: Values, /, start: Values | None = None) -> Values:
    total = ConstantVariable(0) if start is None else start
    for text, words in _SUMMED.items():
        if issubclass(total.python_type(), text):
            tx.raise_observed(TypeError, f"sum() can't sum {words}")
    iterator = iterable.iter(tx)
    sizes: list[Values] = []
    while (item := iterator.next(tx)) is not None and _is_integer(item.realize()):
        sizes.append(item.realize())
    total = _sum_of_integers(tx, total, sizes)
    while item is not None:
        total = tx.call_operator(operator.add, [total, item.realize()]).realize()
        item = iterator.next(tx)
    return total


def _is_integer(value: Values) -> bool:
    return isinstance(value, (SymVariable, ConstantVariable)) and value.python_type() is int


def _sum_of_integers(tx: Translator, total: Values, items: list[Values]) -> Values:
    """Many symbolic ones are one node: the sums of their first two, three, ... are never made."""
    if _is_integer(total) and sum(isinstance(item, SymVariable) for item in items) > 2:
        terms = [total, *items]
        value = torch.sym_sum([term.value for term in terms])  # type: ignore[attr-defined]
        made = (torch.sym_sum, [tx.wrap_items(tuple, terms)])
        return tx.wrap_number(value, made=made)
    for item in items:
        total = tx.call_operator(operator.add, [total, item]).realize()
    return total


@builtin(math.prod)
def _prod(tx: Translator, iterable: Values, /, *, start: Values | None = None) -> Values:
    total: Values = ConstantVariable(1) if start is None else start
    iterator = iterable.iter(tx)
    while (item := iterator.next(tx)) is not None:
        total = tx.call_operator(operator.mul, [total, item.realize()]).realize()
    return total


_SUMMED: dict[type, str] = {
    str: "strings [use ''.join(seq) instead]",
    bytes: "bytes [use b''.join(seq) instead]",
    bytearray: "bytearray [use b''.join(seq) instead]",
}


@builtin(any)
def _any(tx: Translator, iterable: Values, /) -> Values:
    iterator = iterable.iter(tx)
    while (item := iterator.next(tx)) is not None:
        if item.realize().truth(tx):
            return ConstantVariable(True)
    return ConstantVariable(False)


@builtin(all)
def _all(tx: Translator, iterable: Values, /) -> Values:
    iterator = iterable.iter(tx)
    while (item := iterator.next(tx)) is not None:
        if not item.realize().truth(tx):
            return ConstantVariable(False)
    return ConstantVariable(True)


# -- iteration ----------------------------------------------------------------------------------


@builtin(iter)
def _iter(tx: Translator, value: Values, sentinel: Values | None = None, /) -> Values:
    if sentinel is None:
        return value.iter(tx)
    if not has_slot(tx, value, "__call__"):
        return tx.fold(iter, (0, 0), {})  # raises, in the words of this CPython
    return CallableIterator(value, sentinel)


@builtin(next)
def _next(tx: Translator, iterator: Values, /, *default: Values) -> Values:
    if not hasattr(iterator.python_type(), "__next__"):
        kind = type_name(iterator.python_type())
        tx.raise_observed(TypeError, f"'{kind}' object is not an iterator")
    value = iterator.next(tx)
    if value is not None:
        return value
    if default:
        return default[0]
    stop = getattr(iterator, "stop_iteration", lambda: ExceptionVariable(StopIteration, []))
    raise ObservedException(stop())


@builtin(enumerate)
def _enumerate(tx: Translator, iterable: Values, start: Values | None = None) -> Values:
    return EnumerateVariable(iterable.iter(tx), 0 if start is None else index_of(tx, start))


@builtin(zip)
def _zip(tx: Translator, /, *iterables: Values, strict: Values | None = None) -> Values:
    is_strict = strict is not None and strict.truth(tx)
    return ZipVariable([iterable.iter(tx) for iterable in iterables], is_strict)


@builtin(map)
def _map(
    tx: Translator,
    function: Values,
    first: Values,
    /,
    *more: Values,
) -> Values:
    return MapVariable(function, [iterable.iter(tx) for iterable in (first, *more)])


@builtin(filter)
def _filter(tx: Translator, function: Values, iterable: Values, /) -> Values:
    return FilterVariable(function, iterable.iter(tx))


@builtin(reversed)
def _reversed(tx: Translator, value: Values, /) -> Values:
    if isinstance(value, ConstantVariable):
        if isinstance(value.value, range):
            return tx.constant_iterator(value.value[::-1])
        with observed(tx):
            items = list(reversed(value.value))[::-1]
        sequence = tx.wrap_items(tuple, [tx.wrap_constant(item) for item in items])
        return SEQUENCE_BUILDERS["live"](tx, sequence, True)
    if isinstance(value, ClassVariable) and has_slot(tx, value, "__reversed__"):
        return value.reversed(tx)
    function = lookup_special(tx, value, "__reversed__")
    if function is not None and not is_none(function):
        return tx.call_function(function, [], {})
    if isinstance(value, BuiltinObject) and value.lookup("__reversed__") is not None:
        return value.call_method(tx, "__reversed__", [], {})
    if isinstance(value, SequenceVariable) and not value.overrides("__getitem__"):
        return SEQUENCE_BUILDERS["live"](tx, value, True)
    if isinstance(value, TensorVariable):
        return tx.call_function(tx.getattr(value, "__reversed__"), [], {})
    is_sequence = (
        value.is_user_defined and function is None and has_slot(tx, value, "__getitem__")
    )
    if not is_sequence and not isinstance(value, SequenceVariable):
        if function is None and hasattr(value.python_type(), "__reversed__"):
            return value.call_method(tx, "__reversed__", [], {})
        if function is None and hasattr(value.python_type(), "__getitem__"):
            why = "whether its class is a sequence is known in C alone"
            unsupported("reversed()", repr(value), why)
        tx.raise_observed(
            TypeError, f"'{type_name(value.python_type())}' object is not reversible"
        )
    count = index_of(tx, value.length(tx))
    return ReversedVariable(tx, value, count)


@builtin(sorted)
def _sorted(
    tx: Translator,
    iterable: Values,
    /,
    *,
    key: Values | None = None,
    reverse: Values | None = None,
) -> Values:
    if isinstance(iterable, SetVariable) and is_none(key) and iterable.is_totally_ordered():
        items = iterable.elements()
    else:
        items = list(iterable.each(tx, sized=True))
    sort_items(tx, items, key, reverse)
    return tx.wrap_items(list, items)


@builtin(slice)
def _slice(tx: Translator, first: Values, /, *more: Values) -> Values:
    if len(more) > 2:
        text = f"slice expected at most 3 arguments, got {len(more) + 1}"
        tx.raise_observed(TypeError, text)
    return tx.make_slice([first, *more])


@builtin(range)
def _range(tx: Translator, first: Values, /, *more: Values) -> Values:
    bounds = [index_of(tx, part) for part in (first, *more)]
    return tx.fold(range, bounds, {})


@handles(locals)
def _locals(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return locals_of(tx)


@handles(globals)
def _globals(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tx.globals_variable().view


# -- what leaves the graph ----------------------------------------------------------------------

_BREAKING = {
    "print": "it writes to the screen (config.reorderable_logging_functions = {print}: later)",
    "input": "it reads from the terminal",
    "open": "it opens a file",
    "breakpoint": "it stops in the debugger",
    "exec": "it runs code that is not known",
    "compile": "it compiles code",
    "help": "it writes to the screen",
    "__import__": "it imports a module",
    "memoryview": "it gives access to memory",
}


def _register_breaks() -> None:
    for name, why in _BREAKING.items():
        if hasattr(builtins, name):
            handles(getattr(builtins, name))(_breaker(name, why))


def _breaker(name: str, why: str) -> Callable[..., Any]:
    def handler(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
        unsupported(f"{name}()", f"{name}()", f"{name}() is not traced: {why}")

    return handler


_register_breaks()


@handles(eval)
def known_eval(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Of a text that names nothing, as "1 + 1"."""
    text = args[0].realize() if len(args) == 1 and not kwargs else None
    if text is not None and text.python_type() is str and text.is_python_constant():
        try:
            code = compile(text.as_python_constant().lstrip(" \t"), "<string>", "eval")
        except (SyntaxError, ValueError) as error:
            raise ObservedException(tx.wrap_exception(error)) from None
        if not code.co_names and not any(isinstance(c, types.CodeType) for c in code.co_consts):
            return tx.inline(UserFunctionVariable(types.FunctionType(code, tx.globals)), [], {})
    unsupported("eval()", "eval()", "eval() is not traced: it runs code that is not known")


__all__ = ["MethodOfVariable", "builtin", "data_dependent", "is_none"]
