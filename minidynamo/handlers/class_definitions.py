"""Definitions of classes in the traced code: their bodies are traced, and what they leave behind
makes a real class (`variables/stand_ins.py`). Properties and their like are made of stand-ins too.
"""

from __future__ import annotations

import abc
import builtins
import collections
import enum
import types
from typing import TYPE_CHECKING, Any, NoReturn

from ..source import ConstSource
from ..variables.base import NotConstant, VariableTracker, unsupported
from ..variables.classes import ClassVariable
from ..variables.constant import ConstantVariable
from ..variables.descriptors import guard_class
from ..variables.functions import CellVariable
from ..variables.nested_functions import NestedFunctionVariable
from ..variables.registry import handles
from ..variables.stand_ins import display_of, is_made, note_made, stand_in

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]

# Metaclasses that only make the class.
_PLAIN_METACLASSES = (type, abc.ABCMeta)
# What sees the body's names as a mapping, and hooks that `type` or `abc` call with the real class.
_SEES_NAMES = frozenset("locals vars dir eval exec __classdict__".split())
_HOOKS = frozenset("__init_subclass__ __subclasshook__ __set_name__".split())


def _refuse(name: str, why: str) -> NoReturn:
    hint = "move it out of the compiled function, or compile without fullgraph=True"
    unsupported("class definition", name, why, [hint])


@handles(builtins.__build_class__)
def build_class(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """`class Name(*bases, metaclass=...)`: the metaclass is type or ABCMeta."""
    body, label, *rest = [value.realize() for value in args]
    name = label.as_python_constant()
    if not isinstance(body, NestedFunctionVariable):
        _refuse(name, "its body is no function that the traced code made")
    for value in (*rest, *kwargs.values()):
        if not isinstance(value, ClassVariable):
            _refuse(name, "it has bases or keyword arguments that are no classes")
    bases = tuple(value.as_python_constant() for value in rest)
    named = {key: value.as_python_constant() for key, value in kwargs.items()}
    meta = _metaclass(tx, name, bases, named)
    names = _names_of(tx, body, name)
    return _made_class(tx, meta, name, bases, names)


@handles(type.__new__)
def type_new(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """`type(name, bases, namespace)`."""
    kinds = [value.python_type() for value in args[1:]]
    if kwargs or len(kinds) != 3 or not all(map(issubclass, kinds, (str, tuple, dict))):
        if kwargs or not all(value.is_python_constant() for value in args):
            return NotImplemented
        return tx.fold(type.__new__, tuple(value.as_python_constant() for value in args), {})
    meta, label, bases, namespace = (value.realize() for value in args)
    name, given = label.as_python_constant(), bases.unpack(tx)
    if not all(isinstance(base.realize(), ClassVariable) for base in given):
        _refuse(name, "it has bases that are no classes")
    found = tuple(base.realize().as_python_constant() for base in given)
    if _metaclass(tx, name, found, {}) is not meta.as_python_constant():
        _refuse(name, "its metaclass is another one")
    pairs = namespace.call_method(tx, "items", [], {}).unpack(tx)
    entries = [pair.realize().unpack(tx) for pair in pairs]
    names = {key.realize().as_python_constant(): value for key, value in entries}
    names.setdefault("__module__", ConstantVariable(tx.globals["__name__"]))
    return _made_class(tx, type, name, found, names)


@handles(enum.EnumMeta.__call__)
def make_enum(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """`Enum(name, names, ...)` of one of `enum`'s own, which run no code of the program."""
    cls = args[0].realize().as_python_constant()
    if len(args) < 3 and "names" not in kwargs:
        # A member is looked up: no guard can be about a class of this call.
        known = is_made(tx, cls) and len(args) == 2 and args[1].is_python_constant()
        return tx.fold(cls, (args[1].as_python_constant(),), {}) if known else NotImplemented
    if cls.__module__ != "enum":
        _refuse("an enum", f"{cls.__qualname__} may have code that runs while tracing")
    try:
        values = [_names(tx, value) for value in args[1:]]
        named = {name: _names(tx, value) for name, value in kwargs.items()}
    except NotConstant:
        _refuse("an enum", "its names and values are no constants")
    if named.get("type") not in (None, int, float, str):
        _refuse("an enum", "its type may have code that runs while tracing")
    named.setdefault("module", tx.globals["__name__"])
    made: list[type] = []
    tx.fold(lambda: made.append(cls(*values, **named)), (), {})
    return tx.wrap_constant(note_made(tx, made[0]))


def _names(tx: Translator, value: VariableTracker) -> Any:
    """The names of members: also a mapping in an order of its own."""
    value = value.realize()
    if value.python_type() is not collections.OrderedDict:
        return display_of(tx, value)
    items = value.call_method(tx, "items", [], {}).unpack(tx)
    return [tuple(display_of(tx, part) for part in item.realize().unpack(tx)) for item in items]


def _metaclass(
    tx: Translator, name: str, bases: tuple[type, ...], named: dict[str, Any]
) -> type:
    """The metaclass, if making a class by it runs no code of the program."""
    found: list[type] = []
    kinds = [*map(type, bases), named.get("metaclass", type)]
    if not all(kind in _PLAIN_METACLASSES for kind in kinds) or named.keys() - {"metaclass"}:
        _refuse(name, "its metaclass, or a hook of its bases, would run while tracing")
    tx.fold(lambda: found.append(types.prepare_class(name, bases, named)[0]), (), {})
    for base in bases:
        if not is_made(tx, base):
            guard_class(tx, base)
        if not isinstance(base.__init_subclass__, types.BuiltinMethodType):
            _refuse(name, f"{base.__qualname__} has an __init_subclass__")
    return found[0]


def _names_of(tx: Translator, body: NestedFunctionVariable, name: str) -> Kwargs:
    """What the body leaves behind."""
    code = body.get_code()
    if _SEES_NAMES & {*code.co_names, *code.co_cellvars}:
        _refuse(name, "its body looks at its names as a whole")
    if not {*code.co_cellvars}.isdisjoint(code.co_freevars):
        _refuse(name, "its body has a name both for a cell and for one around it")
    body.namespace = {}
    tx.inline(body, [], {})
    return body.namespace


def _made_class(
    tx: Translator, meta: type, name: str, bases: tuple[type, ...], names: Kwargs
) -> VariableTracker:
    cell = names.pop("__classcell__", None)
    if cell is not None and not isinstance(cell.realize(), CellVariable):
        _refuse(name, "it has a __classcell__ of its own")
    reals: dict[str, Any] = {}
    others: Kwargs = {}
    for key, value in names.items():
        is_special = key.startswith("__")
        find = display_of if is_special else stand_in
        if key in _HOOKS:
            _refuse(name, f"{key} would run while tracing")
        try:
            reals[key] = find(tx, value)
            continue
        except NotConstant:
            others[key] = value
        kind = value.realize().python_type()
        is_bound = hasattr(kind, "__set_name__") or hasattr(kind, "__get__")
        if is_special or is_bound:
            _refuse(name, f"{key} is an object that the traced code made")
    made: list[type] = []
    tx.fold(lambda: made.append(meta(name, bases, reals)), (), {})
    variable = tx.wrap_constant(note_made(tx, made[0])).realize()
    for key, value in others.items():
        tx.output.side_effects.store_attr(variable, key, value)
    if isinstance(cell, CellVariable):
        cell.store(tx, variable)
    return variable


# -- descriptors that hold functions ---------------------------------------------------------------


def _holder(function: Any) -> None:
    def make(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        try:
            values = [stand_in(tx, value) for value in args]
            named = {name: stand_in(tx, value) for name, value in kwargs.items()}
        except NotConstant:
            return NotImplemented
        holds = (*values, *named.values())
        if not any(is_made(tx, value) for value in holds):
            return NotImplemented
        made: list[Any] = []
        tx.fold(lambda: made.append(function(*values, **named)), (), {})
        return tx.wrap(note_made(tx, made[0]), ConstSource(made[0], function.__name__))

    handles(function)(make)


for _function in (
    property,
    property.setter,
    property.getter,
    property.deleter,
    staticmethod,
    classmethod,
):
    _holder(_function)
