"""The C methods of `object` and `type`, as classes written in Python inherit or call them."""

from __future__ import annotations

import copyreg
import types
from typing import TYPE_CHECKING, Any

from ..variables.base import VariableTracker, type_name
from ..variables.builtin_object import is_none
from ..variables.classes import ClassVariable, instantiate, new_object
from ..variables.constant import ConstantVariable
from ..variables.descriptors import bind, class_lookup, class_variable, lookup_special
from ..variables.functions import BoundMethodVariable
from ..variables.reductions import default_state
from ..variables.registry import handles
from ..variables.user_defined import UserDefinedObjectVariable
from ..variables.user_keys import hash_of_identity

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
NONE = ConstantVariable(None)
NOT_IMPLEMENTED = ConstantVariable(NotImplemented)


def _user_object(args: Args) -> UserDefinedObjectVariable | None:
    value = args[0].realize() if args else None
    if isinstance(value, UserDefinedObjectVariable):
        return value
    return None


@handles(object.__new__)
def object_new(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """Further arguments are for `__init__`, where the class has one; else a TypeError."""
    if not args:
        tx.raise_observed(TypeError, "object.__new__(): not enough arguments")
    cls = args[0].realize()
    if not isinstance(cls, ClassVariable):
        return NotImplemented
    if len(args) > 1 or kwargs:
        new, init = (class_lookup(tx, cls.value, name) for name in ("__new__", "__init__"))
        assert new is not None and init is not None
        if new.raw is not object.__new__:
            text = "object.__new__() takes exactly one argument (the type to instantiate)"
            tx.raise_observed(TypeError, text)
        if init.raw is object.__init__:
            tx.raise_observed(TypeError, f"{cls.value.__name__}() takes no arguments")
    return new_object(tx, cls.value)


@handles(object.__init__)
def object_init(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    if len(args) > 1 or kwargs:
        cls = args[0].realize().python_type()
        if getattr(cls, "__init__") is not object.__init__:  # noqa: B009
            text = "object.__init__() takes exactly one argument (the instance to initialize)"
            tx.raise_observed(TypeError, text)
        if cls.__new__ is object.__new__:
            tx.raise_observed(TypeError, f"{cls.__name__}() takes no arguments")
    return NONE


@handles(object.__init_subclass__)
def object_init_subclass(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    return NONE


@handles(object.__getattribute__)
def object_getattribute(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    value = _user_object(args)
    if value is None:
        return NotImplemented
    name = args[1].realize().as_python_constant()
    found = value.generic_getattr(tx, name)
    if found is None:
        value.no_attribute(tx, name)
    return found


def _refuse_classes(tx: Translator, name: str, args: Args) -> None:
    """`hackcheck`: the method of object is not the one for classes."""
    cls = args[0].realize() if args else None
    if isinstance(cls, ClassVariable):
        text = f"can't apply this {name} to {type_name(cls.python_type())} object"
        tx.raise_observed(TypeError, text)


@handles(object.__setattr__)
def object_setattr(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    _refuse_classes(tx, "__setattr__", args)
    value = _user_object(args)
    if value is None:
        return NotImplemented
    value.generic_setattr(tx, args[1].realize().as_python_constant(), args[2])
    return NONE


@handles(object.__delattr__)
def object_delattr(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    _refuse_classes(tx, "__delattr__", args)
    value = _user_object(args)
    if value is None:
        return NotImplemented
    value.generic_delattr(tx, args[1].realize().as_python_constant())
    return NONE


@handles(object.__eq__)
def object_eq(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    if _user_object(args) is None:
        return NotImplemented
    return ConstantVariable(True) if tx.is_same(args[0], args[1]) else NOT_IMPLEMENTED


@handles(object.__ne__)
def object_ne(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """The opposite of what the class's `__eq__` says, unless that is NotImplemented."""
    value = _user_object(args)
    if value is None:
        return NotImplemented
    equality = lookup_special(tx, value, "__eq__")
    assert equality is not None
    result = tx.call_function(equality, [args[1]], {}).realize()
    if result.is_python_constant() and result.as_python_constant() is NotImplemented:
        return result
    return ConstantVariable(not result.truth(tx))


@handles(object.__hash__)
def object_hash(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    value = _user_object(args)
    return NotImplemented if value is None else hash_of_identity(tx, value)


def _ordering(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    return NotImplemented if _user_object(args) is None else NOT_IMPLEMENTED


for _name in ("__lt__", "__le__", "__gt__", "__ge__"):
    handles(getattr(object, _name))(_ordering)


@handles(object.__format__)
def object_format(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """`str(self)` where the format is empty."""
    value = _user_object(args)
    if value is None or len(args) != 2:
        return NotImplemented
    if args[1].as_python_constant() != "":
        kind = type_name(value.cls)
        tx.raise_observed(TypeError, f"unsupported format string passed to {kind}.__format__")
    return tx.call_function(tx.wrap_constant(str), [value], {})


@handles(object.__str__)
def object_str(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """`self.__repr__()`, whatever that returns."""
    value = _user_object(args)
    if value is None or len(args) != 1:
        return NotImplemented
    function = lookup_special(tx, value, "__repr__")
    assert function is not None
    return tx.call_function(function, [], {})


@handles(object.__reduce_ex__)
def object_reduce_ex(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """What copy.copy and copy.deepcopy rebuild an object from (`reduce_newobj`)."""
    value = _user_object(args)
    if value is None or len(args) != 2 or not args[1].is_python_constant():
        return NotImplemented
    protocol = args[1].as_python_constant()
    if not isinstance(protocol, int) or protocol < 2:
        return NotImplemented
    found = {
        name: class_lookup(tx, value.cls, name)
        for name in ("__reduce__", "__getstate__", "__getnewargs_ex__", "__getnewargs__")
    }
    reduce, getstate = found["__reduce__"], found["__getstate__"]
    if found["__getnewargs_ex__"] or found["__getnewargs__"]:
        return NotImplemented
    if reduce is not None and reduce.raw is not object.__reduce__:
        return tx.call_function(bind(tx, reduce, value, value.cls), [], {})
    if getstate is not None and getstate.raw is not getattr(object, "__getstate__", None):
        state = tx.call_function(bind(tx, getstate, value, value.cls), [], {})
    else:
        state = default_state(tx, value, value.has_dict())
    arguments = tx.wrap_items(tuple, [class_variable(tx, value.cls)])
    make = tx.wrap_constant(copyreg.__newobj__)  # type: ignore[attr-defined]
    return tx.wrap_items(tuple, [make, arguments, state, NONE, NONE])


@handles(type.__call__)
def type_call(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """`super().__call__(...)` in a metaclass."""
    cls = args[0].realize()
    if not isinstance(cls, ClassVariable):
        return NotImplemented
    return instantiate(tx, cls, args[1:], kwargs)


@handles(type.__getattribute__)
def type_getattribute(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    return args[0].realize().getattr(tx, args[1].realize().as_python_constant())


@handles(types.FunctionType.__get__)
def function_get(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """`function.__get__(obj, cls)`."""
    if kwargs or not 2 <= len(args) <= 3:
        return NotImplemented
    if all(is_none(given) for given in args[1:]):
        tx.raise_observed(TypeError, "__get__(None, None) is invalid")
    return args[0] if is_none(args[1]) else BoundMethodVariable(args[0], args[1].realize())


@handles(types.FunctionType.__call__)
def function_call(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    return tx.call_function(args[0], args[1:], kwargs)


@handles(types.MethodType)
def method_type(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """`types.MethodType(function, obj)`."""
    if len(args) != 2 or kwargs:
        return NotImplemented
    return BoundMethodVariable(args[0], args[1])
