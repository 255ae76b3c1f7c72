"""From real objects to symbolic values.

`wrap` is for objects of the frame (with guards), `from_python` for new ones.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .. import trace_rules
from ..side_effects import Mutation
from ..source import (
    AttrSource,
    CellContentsSource,
    FuncClosureCellSource,
    FuncCodeSource,
    FuncGlobalsSource,
    MethodFuncSource,
    MethodSelfSource,
)
from ..source_chains import WITH_PARTS
from .base import VariableTracker, unsupported
from .constant import ConstantVariable, is_value
from .descriptors import guard_class
from .functions import (
    BoundMethodVariable,
    CallableVariable,
    MethodOfVariable,
    UserFunctionVariable,
)
from .instance_dict import InstanceDictVariable
from .registry import INSTANCE_WRAPPERS, WRAPPERS, handler_of, wraps, wraps_instances
from .tensor import TensorVariable, wrap_tensor

if TYPE_CHECKING:
    from ..source import Source
    from ..symbolic_convert import Translator

# What methods of C that ask for their defining class are, bound to an object.
_C_METHOD = type(re.compile("").match)
# type of a plain Python value -> how a new traced value is made of it
FROM_PYTHON: dict[type, Callable[[Translator, Any], VariableTracker]] = {}


def builds(*types_: type) -> Callable[[Any], Any]:
    """Register how a value of one of `types_` that the tracer computed becomes a traced value."""

    def register(function: Any) -> Any:
        for type_ in types_:
            assert type_ not in FROM_PYTHON, f"{type_} is registered twice"
            FROM_PYTHON[type_] = function
        return function

    return register


def wrap(
    tx: Translator, value: Any, source: Source, *, itemwise: bool = False
) -> VariableTracker:
    """The traced value for an object that the frame reaches through `source`, with its guards.

    itemwise: a tuple of constants is guarded item by item, since they are expected to change.
    """
    if type(type(value)).__hash__ is None:
        name = type(value).__qualname__
        unsupported("unknown kind of object", source.name, f"its class {name} has no hash")
    if is_value(value) and not itemwise:
        if type(value) is int or type(value) is float:
            number = tx.output.shapes.number(value, source, tx.user_stack)
            if number is not None:
                return tx.wrap_number(number, source=source)
        elif type(value) in WITH_PARTS and tx.output.shapes.has_symbolic_parts(value, source):
            return WRAPPERS[slice if type(value) is slice else tuple](tx, value, source)
        elif type(value) in trace_rules.NUMPY_NUMBERS:
            return WRAPPERS[type(value)](tx, value, source)
        tx.guard(source, "CONST_EQ", value)
        return ConstantVariable(value, source=source)
    effects = tx.output.side_effects
    known = effects.variable_of(value)
    if known is None and id(value) in effects.owners:
        known = _dict_of(effects.owners[id(value)])
    if known is not None:
        return _alias(tx, known, source)
    wrapper = WRAPPERS.get(type(value)) or _instance_wrapper(value)
    if wrapper is None:
        unsupported(
            "unknown kind of object",
            f"{source.name}: {type(value).__module__}.{type(value).__qualname__}",
            f"objects of type {type(value).__qualname__} are not traced",
        )
    variable = wrapper(tx, value, source)
    # Tensors and whatever else has a wrapper of its own are what they are. The object is not asked.
    if type(value) not in WRAPPERS and not issubclass(type(value), type):
        guard_class(tx, type(value))
    # Where another object stands for this one, that one has the variable.
    if variable.source == source and not isinstance(variable, ConstantVariable):
        effects.track(value, variable)
        _own_dict(tx, value, variable)
    return variable


def _dict_of(owner: Any) -> InstanceDictVariable:
    """The instance dict of an object of the frame."""
    if isinstance(owner, TensorVariable):
        unsupported("instance dict", owner.describe(), "that of a plain tensor is not traced")
    if owner.given is not None:
        unsupported("instance dict", owner.describe(), "the object has another one by now")
    return InstanceDictVariable(owner)


def _own_dict(tx: Translator, value: Any, variable: VariableTracker) -> None:
    """Let the instance dict of an object be known as such where the frame reaches it later."""
    own = getattr(variable, "dict", None)
    if type(own) is dict and own is not value and not issubclass(type(value), types.ModuleType):
        tx.output.side_effects.know_dict(variable, own)


def _alias(tx: Translator, known: VariableTracker, source: Source) -> VariableTracker:
    """The same object reached by a second route: one value, and a guard that it stays so."""
    if known.source is not None and known.source != source:
        tx.guard(source, "ALIAS", known.source)
    return known


def _instance_wrapper(value: Any) -> Any:
    for type_, wrapper in INSTANCE_WRAPPERS:
        if issubclass(type(value), type_):  # a proxy's __class__ does not count
            return wrapper
    return None


def from_python(tx: Translator, value: Any) -> VariableTracker:
    """The traced value for an object that the tracer itself computed (no source, no guard)."""
    if is_value(value):
        return ConstantVariable(value)
    known = tx.output.side_effects.variable_of(value)
    if known is not None:
        return known
    build = FROM_PYTHON.get(type if isinstance(value, type) else type(value))
    if build is not None:
        return build(tx, value)
    unsupported(
        "result kind",
        type(value).__qualname__,
        f"a result of type {type(value).__qualname__} computed while tracing can't be used further",
    )


wraps(torch.Tensor, torch.nn.Parameter)(wrap_tensor)
wraps_instances(torch.Tensor)(wrap_tensor)


@wraps(types.FunctionType)
def wrap_function(tx: Translator, value: types.FunctionType, source: Source) -> VariableTracker:
    """Python functions are known by code and globals, so one made anew for each call still fits."""
    tx.guard(source, "TYPE_IS", types.FunctionType)
    tx.guard(FuncCodeSource(source), "ID_IS", value.__code__)
    tx.guard(FuncGlobalsSource(source), "ID_IS", value.__globals__)
    if value.__module__ == _INSTRUMENTED:
        return _wrap_instrumented(tx, value, source)
    return UserFunctionVariable(value, source=source)


# torch.compile, once used in the process, replaces `nn.Module.__init__` and `__setstate__` by
# functions of this module which call the original and then note the module's age.
_INSTRUMENTED = "torch._dynamo.mutation_guard"


def _wrap_instrumented(
    tx: Translator, value: types.FunctionType, source: Source
) -> VariableTracker:
    """The function that torch's own compiler wrapped: its note has no meaning here."""
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    (index,) = (i for i, contents in enumerate(cells) if callable(contents))
    return tx.wrap(cells[index], CellContentsSource(FuncClosureCellSource(source, index)))


@wraps(types.CodeType)
def wrap_code(tx: Translator, value: types.CodeType, source: Source) -> VariableTracker:
    """Code objects never change: known by identity, their attributes are constants."""
    tx.guard(source, "ID_IS", value)
    return ConstantVariable(value, source=source)


@wraps(types.MethodType)
def wrap_method(tx: Translator, value: types.MethodType, source: Source) -> VariableTracker:
    if handler_of(value) is not None:
        return wrap_callable(tx, value, source)  # a function of a module: one object
    tx.guard(source, "TYPE_IS", types.MethodType)
    function = tx.wrap(value.__func__, MethodFuncSource(source))
    receiver = tx.wrap(value.__self__, MethodSelfSource(source))
    return BoundMethodVariable(function, receiver, source=source)


# Methods in C that are told their class: of re.Pattern and other types made at run time.
_ClassMethodType = type(re.compile("").match)


@wraps(types.BuiltinFunctionType, types.MethodWrapperType, _ClassMethodType)
def wrap_builtin(tx: Translator, value: Any, source: Source) -> VariableTracker:
    """A method of an object or a class is a new object each time: known by what it is bound to."""
    owner, name = value.__self__, value.__name__
    if owner is None or isinstance(owner, types.ModuleType) or not _is_method(value):
        return wrap_callable(tx, value, source)
    tx.guard(source, "TYPE_IS", type(value))
    tx.guard(AttrSource(source, "__name__"), "CONST_EQ", name)
    is_slot = isinstance(value, types.MethodWrapperType)
    owner_source = AttrSource(source, "__self__") if is_slot else MethodSelfSource(source)
    receiver = tx.wrap(owner, owner_source)
    method = receiver.getattr(tx, name)
    method.source = source
    return method


def _is_method(value: Any) -> bool:
    """Whether getting the attribute of its owner gives the method."""
    owner = value.__self__
    raw = inspect.getattr_static(owner, value.__name__, None)
    if isinstance(owner, type):
        return _is_class_method(raw) and raw.__get__(None, owner) == value
    return (
        isinstance(raw, (types.MethodDescriptorType, types.WrapperDescriptorType))
        and raw.__get__(owner, type(owner)) == value
    )


def _is_class_method(raw: Any) -> bool:
    return isinstance(raw, types.ClassMethodDescriptorType)


@wraps(
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
)
def wrap_callable(tx: Translator, value: Any, source: Source) -> VariableTracker:
    """C functions and operators are known by identity."""
    tx.guard(source, "ID_IS", value)
    return CallableVariable(value, source=source)


@wraps(torch.jit.ScriptFunction)
def wrap_script_function(
    tx: Translator, value: torch.jit.ScriptFunction, source: Source
) -> VariableTracker:
    """What torch.jit.script made of a Python function is traced as that function."""
    tx.guard(source, "ID_IS", value)
    original = getattr(value, "_torchdynamo_inline", None)
    if not isinstance(original, types.FunctionType):
        unsupported("scripted function", source.name, "its Python code is not known")
    return tx.wrap(original, AttrSource(source, "_torchdynamo_inline"))


@builds(types.FunctionType)
def build_function(tx: Translator, value: types.FunctionType) -> VariableTracker:
    return UserFunctionVariable(value)


@builds(
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    _C_METHOD,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
def build_callable(tx: Translator, value: Any) -> VariableTracker:
    return CallableVariable(value)


@builds(types.MethodType)
def build_method(tx: Translator, value: types.MethodType) -> VariableTracker:
    if is_value(value.__self__) and isinstance(value.__func__, types.BuiltinFunctionType):
        # A method that pybind11 made, of a constant.
        return MethodOfVariable(ConstantVariable(value.__self__), value.__name__)
    return BoundMethodVariable(from_python(tx, value.__func__), from_python(tx, value.__self__))


__all__ = ["FROM_PYTHON", "Mutation", "builds", "from_python", "wrap"]
