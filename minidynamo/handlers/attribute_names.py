"""`dir()`: the names of an object's attributes and of its class's."""

from __future__ import annotations

import builtins
import enum
import types
from typing import TYPE_CHECKING, Any

from ..source import InstanceDictSource
from ..variables.base import VariableTracker, unsupported
from ..variables.builtin_object import has_slot
from ..variables.classes import ClassVariable
from ..variables.constant import ConstantVariable
from ..variables.descriptors import bind, class_lookup, guard_class, names_of_class
from ..variables.functions import BoundMethodVariable, UserFunctionVariable
from ..variables.instance_state import InstanceState
from ..variables.modules import PythonModuleVariable
from ..variables.namespaces import locals_of
from ..variables.registry import handles
from ..variables.tensor import TensorVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


@handles(builtins.dir)
def dir_(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """`PyObject_Dir`: what `__dir__` of the class gives, sorted; without an object, the locals."""
    if len(args) > 1 or kwargs:
        return NotImplemented
    names = _asked(tx, args[0].realize()) if args else locals_of(tx)
    return tx.call_function(tx.wrap_constant(sorted), [names], {})


def _asked(tx: Translator, value: VariableTracker) -> VariableTracker:
    kind = value.python_type()
    if isinstance(value, TensorVariable):
        unsupported("dir()", repr(value), "the names of its attributes are not known")
    if isinstance(value, ConstantVariable) and _is_known(kind):
        guard_class(tx, kind)
        return _names(tx, dir(value.value))
    found = class_lookup(tx, kind, "__dir__")
    assert found is not None
    return tx.call_function(bind(tx, found, value, kind), [], {})


def _is_known(kind: type) -> bool:
    """Whether `__dir__` of the class is the one of enums, which looks at the class alone."""
    return issubclass(kind, enum.Enum) and kind.__dir__ is enum.Enum.__dir__


@handles(object.__dir__)
def object_dir(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    value = args[0].realize()
    cls = value.python_type()
    has_dict = cls.__dictoffset__ != 0
    if has_dict and not isinstance(value, InstanceState) or not has_slot(tx, value, "__dir__"):
        unsupported("dir()", repr(value), "the names of its attributes are not known")
    # The `__dict__` of a method is that of its function.
    kept = value.function.realize() if isinstance(value, BoundMethodVariable) else value
    own = list(kept.instance_names(tx)) if isinstance(kept, InstanceState) else []
    if isinstance(kept, UserFunctionVariable):
        own = list(vars(kept.fn))
        tx.guard(InstanceDictSource(tx.source_of(kept, kept.fn)), "DICT_KEYS", tuple(own))
    elif kept is not value and not isinstance(kept, InstanceState):
        unsupported(
            "dir()", repr(value), "the names of its function's attributes are not known"
        )
    return _names(tx, [*own, *names_of_class(tx, cls)])


@handles(type.__dir__)
def type_dir(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    value = args[0].realize()
    if not isinstance(value, ClassVariable):
        return NotImplemented
    return _names(tx, names_of_class(tx, value.value))


@handles(types.ModuleType.__dir__)
def module_dir(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """What the module's own function `__dir__` gives, or its namespace."""
    value = args[0].realize()
    if not isinstance(value, PythonModuleVariable):
        return NotImplemented
    namespace = value.getattr(tx, "__dict__").realize()
    name = ConstantVariable("__dir__")
    if namespace.contains(tx, name).truth(tx):
        return tx.call_function(namespace.getitem(tx, name), [], {})
    return tx.wrap_items(list, namespace.unpack(tx))


def _names(tx: Translator, names: list[str]) -> VariableTracker:
    return tx.wrap_items(list, [ConstantVariable(name) for name in dict.fromkeys(names)])
