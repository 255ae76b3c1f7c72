"""Objects of classes written in Python: attribute lookup and slots as CPython has them.

An object's attributes are its instance dict and slots, overlaid with the side-effect log; a NEW
object has only the log. Everything that the class defines in Python is traced.
"""

from __future__ import annotations

import array
import datetime
import inspect
import types
from collections.abc import Container
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ..shape_history import note_counter
from ..side_effects import Mutation
from ..source import AttrSource, SlotSource, Source
from ..utils import class_dict
from .base import ObservedException, VariableTracker, unsupported
from .builtin_object import (
    BuiltinObject,
    as_iterator,
    is_none,
    name_at_slots,
    refuse_half_slot,
    rich_equal,
    type_name,
    words_without_delitem,
)
from .classes import NEW_OBJECT, class_variable, has_object_layout
from .constant import ConstantVariable, is_inert, is_member_in_c
from .descriptors import (
    GETTERS,
    HELD_DESCRIPTORS,
    ClassAttribute,
    bind,
    class_lookup,
    get_from,
    guard_class,
    lookup_special,
)
from .functions import CallableVariable, MethodOfVariable
from .instance_dict import InstanceDictVariable, LostState
from .instance_state import InstanceState, instance_dict
from .refused_stores import refuse_without_dict
from .registry import handler_of, wraps_instances
from .user_keys import UserKey

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

NONE = ConstantVariable(None)


class UserDefinedObjectVariable(InstanceState):
    """An object of a class with the plain object layout. `value` is None for NEW ones."""

    takes_lazy_args = True
    is_user_defined = True
    # Set while its contents are being shown: it may contain itself.
    is_visited = False

    def __init__(self, cls: type, value: Any = None, *, source: Source | None = None) -> None:
        mutation = Mutation.NEW if source is None else Mutation.EXISTING
        super().__init__(source=source, mutation=mutation)
        self.cls = cls
        self.value = value
        self.dict = None if value is None else instance_dict(value)
        self.dict_variable: InstanceDictVariable | None = None

    def describe(self) -> str:
        return super().describe() or f"<new {self.cls.__qualname__}>"

    def python_type(self) -> type:
        return self.cls

    def identity(self) -> Any:
        return self if self.source is None else self.value

    # -- attribute lookup -----------------------------------------------------------------------

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        """`slot_tp_getattr_hook`: `__getattribute__`, then `__getattr__`."""
        guard_class(tx, self.cls)
        try:
            if self.cls.__getattribute__ is object.__getattribute__:
                found = self.generic_getattr(tx, name)
            else:
                found = self._special(tx, "__getattribute__", ConstantVariable(name))
        except ObservedException as error:
            if not issubclass(error.value.python_type(), AttributeError):
                raise
            if not hasattr(self.cls, "__getattr__"):
                raise
            found = None
        if found is None:
            found = self.missing_attribute(tx, name)
        return found.realize()

    def missing_attribute(self, tx: Translator, name: str) -> VariableTracker:
        """What happens when the ordinary lookup finds nothing."""
        fallback = class_lookup(tx, self.cls, "__getattr__")
        if fallback is None:
            self.no_attribute(tx, name)
        return tx.call_function(
            bind(tx, fallback, self, self.cls), [ConstantVariable(name)], {}
        )

    def no_attribute(self, tx: Translator, name: str) -> NoReturn:
        """The AttributeError of the ordinary lookup."""
        text = f"'{type_name(self.cls)}' object has no attribute '{name}'"
        tx.raise_observed(AttributeError, text)

    def generic_getattr(self, tx: Translator, name: str) -> VariableTracker | None:
        """`PyObject_GenericGetAttr`; None where it raises AttributeError for the missing name."""
        found = class_lookup(tx, self.cls, name)
        if found is not None and found.goes_first(tx):
            return bind(tx, found, self, self.cls)
        value = self.load_instance(tx, name)
        if value is not None:
            return value
        return None if found is None else bind(tx, found, self, self.cls)

    def load_slot(self, tx: Translator, descriptor: Any) -> VariableTracker:
        name = descriptor.__name__
        if name == "__dict__":  # of types.SimpleNamespace
            return self.load_getset(tx, descriptor)
        stored = tx.output.side_effects.load_attr(self, name)
        if isinstance(stored, VariableTracker):
            return stored
        if stored is None and self.source is not None:
            try:
                value = descriptor.__get__(self.value)
            except AttributeError:
                tx.guard(self.source, "LACKS_ATTR", name)
                self._unset_slot(tx, name)
            return tx.wrap(value, SlotSource(self.source, descriptor))
        self._unset_slot(tx, name)

    def _unset_slot(self, tx: Translator, name: str) -> NoReturn:
        text = f"'{name_at_slots(self.cls)}' object has no attribute '{name}'"
        tx.raise_observed(AttributeError, text)

    def load_getset(self, tx: Translator, descriptor: Any) -> VariableTracker:
        name = descriptor.__name__
        is_new = self.value is None and self not in tx.output.watched
        if name == "__weakref__" and is_new:  # only the frame could refer to it
            return NONE
        if name == "__class__":
            return class_variable(tx, self.cls)
        if name == "__dict__":
            if self.given is not None:
                return self.given  # type: ignore[no-any-return]
            if self.dict_variable is None:
                self.dict_variable = InstanceDictVariable(self)
            return self.dict_variable
        return super().load_getset(tx, descriptor)

    # -- attribute stores -----------------------------------------------------------------------

    def setattr(self, tx: Translator, name: str, value: VariableTracker) -> None:
        guard_class(tx, self.cls)
        is_int = isinstance(value, ConstantVariable) and type(value.value) is int
        if is_int and self.source is not None:
            note_counter(self.cls, name)
        if self.cls.__setattr__ is object.__setattr__:
            self.generic_setattr(tx, name, value)
        else:
            self._special(tx, "__setattr__", ConstantVariable(name), value)

    def delattr(self, tx: Translator, name: str) -> None:
        guard_class(tx, self.cls)
        if self.cls.__delattr__ is object.__delattr__:
            self.generic_delattr(tx, name)
        else:
            self._special(tx, "__delattr__", ConstantVariable(name))

    def generic_setattr(self, tx: Translator, name: str, value: VariableTracker) -> None:
        """`PyObject_GenericSetAttr` with a value."""
        if not self._descriptor_store(tx, name, value):
            self.store_instance(tx, name, value)

    def generic_delattr(self, tx: Translator, name: str) -> None:
        """`PyObject_GenericSetAttr` with NULL."""
        if self._descriptor_store(tx, name, None):
            return
        if not self.has_stored(tx, name):
            self.no_attribute(tx, name)
        self.delete_item(tx, name)

    def _descriptor_store(
        self, tx: Translator, name: str, value: VariableTracker | None
    ) -> bool:
        """Store (or delete, if value is None) through a data descriptor, if the class has one."""
        found = class_lookup(tx, self.cls, name)
        if found is None or not found.is_data_descriptor(tx):
            if not self.has_dict():
                refuse_without_dict(tx, self.cls, name, found is not None)
            return False
        if isinstance(found.raw, property):
            self._property_store(tx, found, value)
        elif type(found.raw).__name__ == "member_descriptor":
            if value is None:
                self._check_slot(tx, found.raw)
                existed = self.source is not None and hasattr(self.value, name)
                if self.source is not None:
                    tx.guard(self.source, "HAS_ATTR" if existed else "LACKS_ATTR", name)
                tx.output.side_effects.delete_attr(self, name, existed=existed)
            else:
                tx.output.side_effects.store_attr(self, name, value)
        elif isinstance(found.raw, types.GetSetDescriptorType) and name == "__dict__" and value:
            self._replace_dict(tx, value.realize())
        else:
            slot = "__set__" if value is not None else "__delete__"
            setter = class_lookup(tx, type(found.raw), slot)
            if setter is None:
                tx.raise_observed(AttributeError, slot)
            function = bind(tx, setter, found.variable(tx), type(found.raw))
            tx.call_function(function, [self, value] if value is not None else [self], {})
        return True

    def _replace_dict(self, tx: Translator, value: VariableTracker) -> None:
        if not issubclass(value.python_type(), dict):
            kind = type_name(value.python_type())
            tx.raise_observed(
                TypeError, f"__dict__ must be set to a dictionary, not a '{kind}'"
            )
        is_plain = isinstance(value, BuiltinObject) and value.cls is dict
        if not is_plain or type(self) is not UserDefinedObjectVariable:
            unsupported("instance dict", self.describe(), "what replaces it is no plain dict")
        if self.dict_variable is not None:
            self.dict_variable.owner = LostState(self)
        effects = tx.output.side_effects
        if self.source is not None and effects.stored_attrs(self) and tx.root.mortal:
            unsupported("instance dict", self.describe(), "an object in it may come to its end")
        if self.source is None:
            for name in list(self.instance_names(tx)):
                effects.delete_attr(self, name, existed=False)
        effects.store_attr(self, "__dict__", value)
        self.given = value

    def _check_slot(self, tx: Translator, descriptor: Any) -> None:
        """AttributeError if the slot is empty: nothing can be deleted."""
        try:
            self.load_slot(tx, descriptor)
        except ObservedException as error:
            if not issubclass(error.value.python_type(), AttributeError):
                raise
            tx.raise_observed(AttributeError, descriptor.__name__)

    def _property_store(
        self, tx: Translator, found: ClassAttribute, value: VariableTracker | None
    ) -> None:
        part = "fset" if value is not None else "fdel"
        function = getattr(found.raw, part)
        if function is None:
            what = "setter" if value is not None else "deleter"
            text = f"property {found.name!r} of {self.cls.__name__!r} object has no {what}"
            tx.raise_observed(AttributeError, text)
        from_class = found.part(tx, function, part)
        tx.call_function(from_class, [self, value] if value is not None else [self], {})

    def has_dict(self) -> bool:
        if self.source is not None:
            return self.dict is not None
        return any("__dict__" in class_dict(base) for base in self.cls.__mro__)

    # -- slots ----------------------------------------------------------------------------------

    def _special(self, tx: Translator, name: str, *args: VariableTracker) -> VariableTracker:
        """Call a special method of the class; TypeError if there is none."""
        function = lookup_special(tx, self, name)
        if function is None:
            refuse_half_slot(tx, self.cls, name)
            tx.raise_observed(TypeError, _lacking(name, type_name(self.cls)))
        return tx.call_function(function, list(args), {}).realize()

    def call(
        self, tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        function = lookup_special(tx, self, "__call__")
        if function is None:
            tx.raise_observed(TypeError, f"'{type_name(self.cls)}' object is not callable")
        return tx.call_for(self, function, args, kwargs)

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        return tx.call_function(self.getattr(tx, name), args, kwargs)

    def getitem(self, tx: Translator, key: VariableTracker) -> VariableTracker:
        return self._special(tx, "__getitem__", key)

    def setitem(self, tx: Translator, key: VariableTracker, value: VariableTracker) -> None:
        self._special(tx, "__setitem__", key, value)

    def delitem(self, tx: Translator, key: VariableTracker) -> None:
        if class_lookup(tx, self.cls, "__delitem__") is None:
            refuse_half_slot(tx, self.cls, "__delitem__")
            text = f"{type_name(self.cls)!r} object {words_without_delitem(tx, key, self.cls)}"
            tx.raise_observed(TypeError, text)
        self._special(tx, "__delitem__", key)

    def length(self, tx: Translator) -> VariableTracker:
        return self._special(tx, "__len__")

    def iter(self, tx: Translator) -> VariableTracker:
        """`PyObject_GetIter`: `__iter__`, or `__getitem__` with 0, 1, 2, ..."""
        function = lookup_special(tx, self, "__iter__")
        if function is not None and not is_none(function):
            return as_iterator(tx, tx.call_function(function, [], {}).realize())
        if function is None and lookup_special(tx, self, "__getitem__") is not None:
            return SequenceProtocolIterator(self)
        tx.raise_observed(TypeError, _lacking("__iter__", type_name(self.cls)))

    def next(self, tx: Translator) -> VariableTracker | None:
        return self.until_stopped(lambda: self._special(tx, "__next__"))

    def contains(self, tx: Translator, item: VariableTracker) -> VariableTracker:
        """`PySequence_Contains`: `__contains__`, or a search with == along the iteration."""
        function = lookup_special(tx, self, "__contains__")
        if function is not None:
            if is_none(function):
                text = f"'{type_name(self.cls)}' object is not a container"
                tx.raise_observed(TypeError, text)
            return ConstantVariable(tx.call_function(function, [item], {}).realize().truth(tx))
        try:
            iterator = self.iter(tx)
        except ObservedException as error:
            if not issubclass(error.value.python_type(), TypeError):
                raise
            text = f"argument of type '{type_name(self.cls)}' is not iterable"
            tx.raise_observed(TypeError, text)
        while (candidate := iterator.next(tx)) is not None:
            if rich_equal(tx, candidate, item):
                return ConstantVariable(True)
        return ConstantVariable(False)

    def truth(self, tx: Translator) -> bool:
        """`PyObject_IsTrue`: `__bool__`, then `__len__`, else True."""
        function = lookup_special(tx, self, "__bool__")
        if function is not None:
            result = tx.call_function(function, [], {}).realize()
            if result.python_type() is not bool:
                kind = type_name(result.python_type())
                tx.raise_observed(TypeError, f"__bool__ should return bool, returned {kind}")
            return result.truth(tx)
        if class_lookup(tx, self.cls, "__len__") is not None:
            length = tx.call_function(tx.wrap_constant(len), [self], {})
            return length.realize().truth(tx)
        return True

    def hash_key(self, tx: Translator) -> Any:
        guard_class(tx, self.cls)
        hashed = class_lookup(tx, self.cls, "__hash__")
        equality = class_lookup(tx, self.cls, "__eq__")
        assert hashed is not None and equality is not None
        if hashed.raw is None:
            tx.raise_observed(TypeError, f"unhashable type: {type_name(self.cls)!r}")
        if hashed.raw is object.__hash__ and equality.raw is object.__eq__:
            return self.identity()
        return UserKey(tx, self)

    # -- leaving the trace ----------------------------------------------------------------------

    def push_blank(self, codegen: PyCodegen) -> None:
        """Push a new object of the class that has no attributes yet."""
        is_namespace = issubclass(self.cls, types.SimpleNamespace)
        codegen.begin_call(types.SimpleNamespace.__new__ if is_namespace else object.__new__)
        codegen.load_const(self.cls)
        codegen.end_call(1)

    def reconstruct(self, codegen: PyCodegen) -> None:
        self.push_blank(codegen)
        codegen.save_temp(self)
        for name, value in codegen.side_effects.stored_attrs(self).items():
            assert isinstance(value, VariableTracker)
            codegen(value)
            self.apply_setattr(codegen, name)


class SequenceProtocolIterator(VariableTracker):
    """The iterator of an object that has `__getitem__` only: 0, 1, 2, ... up to the IndexError."""

    def __init__(self, target: VariableTracker) -> None:
        super().__init__(mutation=Mutation.NEW)
        self.target = target
        self.index = 0

    def python_type(self) -> type:
        return type(iter(_Indexable()))

    def iter(self, tx: Translator) -> VariableTracker:
        return self

    def next(self, tx: Translator) -> VariableTracker | None:
        if self.index < 0:
            return None
        tx.output.side_effects.mutate(self)
        try:
            item = self.target.getitem(tx, ConstantVariable(self.index))
        except ObservedException as error:
            if not issubclass(error.value.python_type(), (IndexError, StopIteration)):
                raise
            self.index = -1
            return None
        self.index += 1
        return item

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.begin_call(_iterator_at)
        codegen(self.target)
        codegen.load_const(self.index)
        codegen.end_call(2)


class _Indexable:
    def __getitem__(self, index: int) -> Any:
        raise IndexError(index)


def _iterator_at(target: Any, index: int) -> Any:
    """Run by generated code: the iterator over `target`, advanced to `index` (-1: exhausted)."""
    iterator = iter(target if index >= 0 else _Indexable())
    if index >= 0:
        iterator.__setstate__(index)  # type: ignore[attr-defined]
    else:
        next(iterator, None)
    return iterator


_LACKING = {
    "__getitem__": "'{}' object is not subscriptable",
    "__setitem__": "'{}' object does not support item assignment",
    "__len__": "object of type '{}' has no len()",
    "__iter__": "'{}' object is not iterable",
    "__next__": "'{}' object is not an iterator",
}


def _lacking(name: str, type_name: str) -> str:
    return _LACKING.get(name, "'{}' object lacks " + name).format(type_name)


class OpaqueVariable(VariableTracker):
    """An object that the tracer only moves around: nothing but its type is looked at."""

    def __init__(self, value: Any, *, source: Source) -> None:
        super().__init__(source=source)
        self.value = value

    def python_type(self) -> type:
        return type(self.value)

    def identity(self) -> Any:
        return self.value

    def truth(self, tx: Translator) -> bool:
        cls = type(self.value)
        decides = any(
            inspect.getattr_static(cls, name, None) for name in ("__bool__", "__len__")
        )
        return super().truth(tx) if decides else True

    def delitem(self, tx: Translator, key: VariableTracker) -> None:
        kind = self.python_type()
        if self.lacks("__delitem__"):
            text = f"{type_name(kind)!r} object {words_without_delitem(tx, key, kind)}"
            tx.raise_observed(TypeError, text)
        super().delitem(tx, key)

    def method_constant(self, name: str) -> Any:
        if isinstance(self.value, GETTERS):
            return getattr(self.value, name)
        return super().method_constant(name)

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        """A method is got without running code: it is the call of it that breaks the graph."""
        cls = type(self.value)
        plain = is_inert(cls) or cls.__getattribute__ is object.__getattribute__
        own = instance_dict(self.value) or {}
        is_descriptor = cls in HELD_DESCRIPTORS or cls in GETTERS
        if is_descriptor and isinstance(vars(cls).get(name), GETTERS):
            assert self.source is not None
            tx.guard(self.source, "ID_IS", self.value)
            return tx.wrap(getattr(self.value, name), AttrSource(self.source, name))
        if name in _READ_BY_GUARDS.get(cls, ()):
            return self._number_or_text(tx, name)
        if plain and name not in own:
            found = self._of_class(name)
            if isinstance(found, _METHODS):
                return MethodOfVariable(self, name)
            if isinstance(found, staticmethod) and self.source is not None:
                return tx.wrap(found.__func__, AttrSource(self.source, name))
            handler = handler_of(found.fget) if isinstance(found, property) else None
            result = handler(tx, [self], {}) if handler else NotImplemented
            if result is not NotImplemented:
                return result
            made_by_pybind = type(cls).__name__ == "pybind11_type"
            in_c = isinstance(found, property) and not isinstance(
                found.fget, types.FunctionType
            )
            if made_by_pybind and in_c:
                return self._number_or_text(tx, name)
        return super().getattr(tx, name)

    def _number_or_text(self, tx: Translator, name: str) -> VariableTracker:
        """A property made by pybind11 reads a member: a guard looks at it again."""
        value = getattr(self.value, name)
        kinds = (bool, int, float, str, NoneType, torch.device)
        if self.source is None or not isinstance(value, kinds):
            return super().getattr(tx, name)
        return tx.wrap(value, AttrSource(self.source, name))

    def _of_class(self, name: str) -> Any:
        """The class's attribute; of a method made by pybind11 the function, a built-in one."""
        found = inspect.getattr_static(type(self.value), name, None)
        return found.__func__ if type(found).__name__ == "instancemethod" else found

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        if name == "__get__" and type(self.value) in HELD_DESCRIPTORS and args and not kwargs:
            assert self.source is not None
            tx.guard(self.source, "ID_IS", self.value)
            return get_from(tx, self, args)
        if name == "__get__" and isinstance(self.value, GETTERS) and args:
            return tx.get_described(self.value, args[0])
        method = self.getattr(tx, name)
        if not isinstance(method, MethodOfVariable):
            return method.call(tx, args, kwargs)
        handler = handler_of(self._of_class(name))
        result = handler(tx, [self, *args], kwargs) if handler else NotImplemented
        if result is not NotImplemented:
            return result
        what = f"{type_name(type(self.value))}.{name}"
        unsupported(
            "call of an untraced function",
            what,
            f"{what} is not traced: it is not known to be free of side effects",
            ["move the call out of the compiled function, or accept the graph break"],
        )


_DATE, _TIME = "year month day".split(), "hour minute second microsecond fold".split()
# What objects made in C tell of themselves, and do not change: guards look at it again.
_READ_BY_GUARDS: dict[type, Container[str]] = {
    torch.Generator: ("device",),
    datetime.date: _DATE,
    datetime.time: _TIME,
    datetime.datetime: [*_DATE, *_TIME],
    memoryview: "format itemsize nbytes ndim readonly".split(),
    array.array: ("itemsize", "typecode"),
}
_METHODS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.FunctionType,
    types.BuiltinFunctionType,
)


@wraps_instances(object)
def wrap_object(tx: Translator, value: Any, source: Source) -> VariableTracker:
    """Objects that no other row wraps."""
    if handler_of(value) is not None:  # a function of some C library
        tx.guard(source, "ID_IS", value)
        return CallableVariable(value, source=source)
    if is_member_in_c(value):
        tx.guard(source, "ID_IS", value)
        return ConstantVariable(value, source=source)
    if issubclass(type(value), GETTERS):
        tx.guard(source, "ID_IS", value)
        return OpaqueVariable(value, source=source)
    tx.guard(source, "TYPE_IS", type(value))
    if has_object_layout(type(value)):
        return UserDefinedObjectVariable(type(value), value, source=source)
    return OpaqueVariable(value, source=source)


NEW_OBJECT.append((object, UserDefinedObjectVariable))
