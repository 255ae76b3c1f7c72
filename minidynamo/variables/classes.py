"""Classes as values: attributes, calling (instances made by the trace), stores to classes.

`CONSTRUCTORS` rows say how instances of builtin layouts (exceptions, containers) are made; the rest
follows `type.__call__`: `__new__`, then `__init__`, both traced.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .. import trace_rules
from ..guards import Predicate
from ..side_effects import DELETED, Mutation
from ..source import AttrSource, ConstSource
from ..utils import class_dict
from .base import ObservedException, VariableTracker, type_name, unsupported
from .builder import builds
from .builtin_object import as_iterator, observed, rich_equal
from .constant import ConstantVariable, is_of_library, is_value
from .descriptors import (
    bind,
    class_lookup,
    class_source,
    class_variable,
    guard_class,
    lookup_special,
)
from .registry import handler_of, wraps, wraps_instances

if TYPE_CHECKING:
    from ..source import Source
    from ..symbolic_convert import Translator

Constructor = Callable[
    ["Translator", "ClassVariable", "list[VariableTracker]", "dict[str, VariableTracker]"],
    "VariableTracker",
]
# (base class, how to make instances of it and of its subclasses); the first that fits is taken.
CONSTRUCTORS: list[tuple[type, Constructor]] = []


def constructs(*bases: type) -> Callable[[Constructor], Constructor]:
    """Register how a call of a subclass of `bases` makes an instance."""

    def register(function: Constructor) -> Constructor:
        for base in bases:
            assert all(base is not known for known, _ in CONSTRUCTORS), base
            CONSTRUCTORS.append((base, function))
        return function

    return register


_DTYPES: dict[type, Any] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


# What is said of a class whose metaclass does not have the method.
_LACKING = {
    "__iter__": "'{}' object is not iterable",
    "__len__": "object of type '{}' has no len()",
}


def hint_of(value: VariableTracker) -> Any:
    """What a subscript of a type has, with the lists and tuples in it."""
    value = value.realize()
    if value.is_python_constant() or value.python_type() not in (list, tuple):
        return value.as_python_constant()
    items: Any = value.items  # type: ignore[attr-defined]
    return value.python_type()(map(hint_of, items))


class ClassVariable(VariableTracker):
    """A class. It is known by identity; `value` is the real class."""

    takes_lazy_args = True

    def __init__(self, value: type, *, source: Source | None = None) -> None:
        super().__init__(source=source, mutation=Mutation.EXISTING)
        self.value = value

    def describe(self) -> str:
        return self.value.__qualname__

    def python_type(self) -> type:
        return type(self.value)

    def overrides(self, name: str) -> bool:
        """Whether a metaclass of the program defines it in Python."""
        metas: tuple[type, ...] = type(self.value).__mro__  # type: ignore[assignment]
        raw = next((vars(meta)[name] for meta in metas if name in vars(meta)), None)
        return isinstance(raw, types.FunctionType) and not is_of_library(raw.__module__)

    def as_python_constant(self) -> Any:
        return self.value

    def as_proxy(self) -> Any:
        """Where operations take a dtype they take Python's number types, which no node can show."""
        return _DTYPES.get(self.value, self.value)

    def identity(self) -> Any:
        return self.value

    def hash_key(self, tx: Translator) -> Any:
        return self.value

    def truth(self, tx: Translator) -> bool:
        meta = type(self.value)
        if meta is type or not (hasattr(meta, "__bool__") or hasattr(meta, "__len__")):
            return True
        if issubclass(meta, enum.EnumMeta):
            return bool(self.value)
        names = (name for name in ("__bool__", "__len__") if hasattr(meta, name))
        function = lookup_special(tx, self, next(names))
        return (
            super().truth(tx)
            if function is None
            else tx.call_function(function, [], {}).truth(tx)
        )

    # -- attributes -----------------------------------------------------------------------------

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        """`type.__getattribute__`."""
        cls, meta = self.value, type(self.value)
        if name == "__annotations__":
            getattr(cls, name, None)  # a class without them gets an empty dict: a store
        if issubclass(meta, enum.EnumMeta):
            member = getattr(cls, name, None)
            if isinstance(member, cls):
                guard_class(tx, cls)
                return ConstantVariable(member)
        meta_found = class_lookup(tx, meta, name)
        if meta_found is not None and meta_found.goes_first(tx):
            return bind(tx, meta_found, self, meta)
        found = class_lookup(tx, cls, name)
        if found is not None:
            return bind(tx, found, None, cls)
        if meta_found is not None:
            return bind(tx, meta_found, self, meta)
        fallback = class_lookup(tx, meta, "__getattr__")
        if fallback is not None:
            return tx.call_function(
                bind(tx, fallback, self, meta), [ConstantVariable(name)], {}
            )
        text = f"type object {type_name(cls)!r} has no attribute {name!r}"
        tx.raise_observed(AttributeError, text)

    def load_slot(self, tx: Translator, descriptor: Any) -> VariableTracker:
        return self._fold_attribute(tx, descriptor.__name__)

    def load_getset(self, tx: Translator, descriptor: Any) -> VariableTracker:
        return self._fold_attribute(tx, descriptor.__name__)

    def _fold_attribute(self, tx: Translator, name: str) -> VariableTracker:
        """`__name__`, `__mro__`, `__dict__` ... : what `type` itself keeps."""
        guard_class(tx, self.value)
        effects = tx.output.side_effects
        stored = effects.load_attr(self, name)
        if isinstance(stored, VariableTracker):
            return stored
        is_kept = id(self.value) in effects.stand_ins and name in _KEPT_NAMES
        if effects.stored_attrs(self) and not is_kept:
            unsupported(
                "class attribute", f"{self!r}.{name}", "the class was changed while tracing"
            )
        try:
            value = getattr(self.value, name)
        except AttributeError as error:
            raise ObservedException(tx.wrap_exception(error)) from None
        if isinstance(value, tuple) and all(isinstance(item, type) for item in value):
            return tx.wrap_items(tuple, [class_variable(tx, item) for item in value])
        if is_value(value) or isinstance(value, type):
            return tx.wrap_constant(value)
        return tx.wrap(value, AttrSource(class_source(self.value), name))

    def setattr(self, tx: Translator, name: str, value: VariableTracker) -> None:
        self._check_plain_store(tx, "__setattr__", name)
        if name in ("__name__", "__qualname__") and not _is_class_name(value):
            unsupported("class attribute store", f"{self!r}.{name}", "eager judges the name")
        tx.output.side_effects.store_attr(self, name, value)

    def delattr(self, tx: Translator, name: str) -> None:
        self._check_plain_store(tx, "__delattr__", name)
        guard_class(tx, self.value)
        existed = name in self.value.__dict__
        stored = tx.output.side_effects.load_attr(self, name)
        if stored is DELETED or (stored is None and not existed):
            text = f"type object {type_name(self.value)!r} has no attribute {name!r}"
            tx.raise_observed(AttributeError, text)
        tx.output.side_effects.delete_attr(self, name, existed=existed)

    def _check_plain_store(self, tx: Translator, slot: str, name: str) -> None:
        cls = self.value
        if getattr(type(cls), slot) is getattr(type, slot) and cls.__flags__ & (1 << 8):
            with observed(tx):
                setattr(cls, name, None)  # TypeError: it is immutable
        if name.startswith("__") and name.endswith("__") and name not in _INERT_NAMES:
            # The C slots, and the hooks of abc, are read from the real class.
            unsupported(
                "class attribute store", f"{self!r}.{name}", "a special method would be changed"
            )
        if getattr(type(cls), slot) is not getattr(type, slot) or cls.__flags__ & (1 << 8):
            unsupported(
                "class attribute store", repr(self), "the class has a store method of its own"
            )

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        return tx.call_function(self.getattr(tx, name), args, kwargs)

    def call_builtin(
        self,
        tx: Translator,
        raw: Any,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        """Methods of `type` that change nothing run on the real class, and so do the other ways to
        make a number or a text (`int.from_bytes`).
        """
        makes = (
            isinstance(raw, types.ClassMethodDescriptorType) and self.value in _VALUE_CLASSES
        )
        if makes and all(value.is_python_constant() for value in (*args, *kwargs.values())):
            named = {name: value.as_python_constant() for name, value in kwargs.items()}
            values = [arg.as_python_constant() for arg in args]
            return tx.fold(raw.__get__(None, self.value), values, named)
        if raw is type.__repr__ and not args and not self._is_renamed(tx):
            return tx.fold(raw, (self.value,), {})
        if raw.__name__ in _PURE_TYPE_METHODS and all(arg.is_python_constant() for arg in args):
            return tx.fold(raw, (self.value, *(arg.as_python_constant() for arg in args)), {})
        if raw.__name__ == "__subclasses__" and not args:
            return self._subclasses(tx)
        if raw in (object.__eq__, object.__ne__) and len(args) == 1 and not kwargs:
            if not tx.is_same(self, args[0].realize()):
                return ConstantVariable(NotImplemented)
            return ConstantVariable(raw is object.__eq__)
        if raw is object.__str__ and not args and not kwargs:
            return tx.call_function(tx.wrap_constant(repr), [self], {})
        if raw is object.__hash__ and not args and not kwargs:
            return ConstantVariable(object.__hash__(self.value))
        return super().call_builtin(tx, raw, args, kwargs)

    def _is_renamed(self, tx: Translator) -> bool:
        stored = tx.output.side_effects.stored_attrs(self)
        return bool(stored.keys() & {"__qualname__", "__module__"})

    def _subclasses(self, tx: Translator) -> VariableTracker:
        """The list of now, guarded by asking again."""
        found: list[type] = self.value.__subclasses__()
        ids = list(map(id, found))
        text = f"{self.value.__name__} has the same subclasses"
        check = Predicate(lambda cls: list(map(id, cls.__subclasses__())) == ids, text)
        tx.guard(tx.source_of(self, self.value), "PREDICATE", check)
        return tx.wrap_items(list, [tx.wrap_constant(cls) for cls in found])

    # -- other slots ----------------------------------------------------------------------------

    def _meta_call(
        self, tx: Translator, name: str, args: list[VariableTracker]
    ) -> VariableTracker:
        """A special method that the metaclass defines; an enum's run on the real class."""
        meta = type(self.value)
        if issubclass(meta, enum.EnumMeta) and all(arg.is_python_constant() for arg in args):
            guard_class(tx, self.value)
            # It gets its members one by one, while it is being made.
            members: list[str] = self.value._member_names_  # type: ignore[attr-defined]
            names = ConstSource(members, f"{self.value.__name__} members")
            tx.guard(names, "LEN_EQ", len(members))
            values = [arg.as_python_constant() for arg in args]
            return tx.fold(
                lambda *a: _as_value(getattr(meta, name)(self.value, *a)), values, {}
            )
        found = class_lookup(tx, meta, name)
        if found is None:
            if name in _LACKING:
                tx.raise_observed(TypeError, _LACKING[name].format(meta.__name__))
            unsupported(
                "class protocol", f"{self!r}.{name}", f"{meta.__qualname__} has no {name}"
            )
        return tx.call_function(bind(tx, found, self, meta), args, {})

    def getitem(self, tx: Translator, key: VariableTracker) -> VariableTracker:
        if hasattr(type(self.value), "__getitem__"):
            return self._meta_call(tx, "__getitem__", [key])
        found = class_lookup(tx, self.value, "__class_getitem__")
        function = getattr(found and found.raw, "__func__", None)
        is_generic = typing.Generic in self.value.__mro__  # which makes an alias
        is_own = isinstance(function, types.FunctionType) and not is_generic
        if is_own and not is_of_library(function.__module__):
            assert found is not None
            return tx.call_function(bind(tx, found, None, self.value), [key], {})
        if key.is_python_constant() and not hasattr(self.value, "__orig_class__"):
            item = key.as_python_constant()
            return tx.fold(lambda: self.value[item], (), {})  # type: ignore[index]
        if isinstance(function, types.FunctionType) and found is not None:
            return tx.call_function(bind(tx, found, None, self.value), [key], {})
        item = hint_of(key) if found is not None or self.value is type else None
        return tx.fold(lambda: self.value[item], (), {})  # type: ignore[index]

    def length(self, tx: Translator) -> VariableTracker:
        return self._meta_call(tx, "__len__", [])

    def contains(self, tx: Translator, item: VariableTracker) -> VariableTracker:
        meta = type(self.value)
        if hasattr(meta, "__contains__"):
            found = self._meta_call(tx, "__contains__", [item]).realize()
            return ConstantVariable(found.truth(tx))
        if not hasattr(meta, "__iter__"):
            tx.raise_observed(TypeError, f"argument of type '{meta.__name__}' is not iterable")
        return ConstantVariable(any(rich_equal(tx, each, item) for each in self.each(tx)))

    def iter(self, tx: Translator) -> VariableTracker:
        return self._iterator(tx, "__iter__")

    def reversed(self, tx: Translator) -> VariableTracker:
        """`reversed(cls)`, where the metaclass has a `__reversed__`."""
        return self._iterator(tx, "__reversed__")

    def _iterator(self, tx: Translator, name: str) -> VariableTracker:
        result = self._meta_call(tx, name, []).realize()
        if issubclass(type(self.value), enum.EnumMeta):
            return result.iter(tx)  # the members, in a tuple
        return as_iterator(tx, result) if name == "__iter__" else result

    # -- calling --------------------------------------------------------------------------------

    def call(
        self, tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        cls = self.value
        if handler_of(cls) is not None or trace_rules.is_pure(cls):
            args, kwargs = _realized(args, kwargs)
            return tx.call_real_callable(self, cls, args, kwargs)
        for base, constructor in CONSTRUCTORS:
            if issubclass(cls, base):
                return constructor(tx, self, args, kwargs)
        return call_type(tx, self, args, kwargs)


def _is_class_name(value: VariableTracker) -> bool:
    if not isinstance(value, ConstantVariable) or type(value.value) is not str:
        return False
    return value.value.isascii() and "\0" not in value.value


# What a store by another name leaves as it is.
_KEPT_NAMES = frozenset(
    "__annotations__ __name__ __qualname__ __mro__ __bases__ __base__".split()
)
_INERT_NAMES = frozenset({"__doc__", "__module__", "__name__", "__qualname__"})
_VALUE_CLASSES = (int, float, bytes, bool)
_PURE_TYPE_METHODS = frozenset(
    {"mro", "__subclasscheck__", "__instancecheck__", "__or__", "__ror__"}
)


def _as_value(value: Any) -> Any:
    return tuple(value) if isinstance(value, types.GeneratorType) else value


def _realized(
    args: list[VariableTracker], kwargs: dict[str, VariableTracker]
) -> tuple[list[VariableTracker], dict[str, VariableTracker]]:
    return [arg.realize() for arg in args], {
        name: arg.realize() for name, arg in kwargs.items()
    }


def call_type(
    tx: Translator,
    cls_variable: ClassVariable,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    """The `__call__` of the metaclass."""
    cls = cls_variable.value
    found = class_lookup(tx, type(cls), "__call__")
    assert found is not None
    if found.raw is not type.__dict__["__call__"]:
        return tx.call_for(cls_variable, bind(tx, found, cls_variable, type(cls)), args, kwargs)
    return instantiate(tx, cls_variable, args, kwargs)


def instantiate(
    tx: Translator,
    cls_variable: ClassVariable,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    """`type.__call__`."""
    cls, tail = cls_variable.value, tx.in_tail
    new = class_lookup(tx, cls, "__new__")
    init = class_lookup(tx, cls, "__init__")
    assert new is not None and init is not None
    plain_new = new.raw is object.__new__
    plain_init = init.raw is object.__init__
    if plain_new:
        if plain_init and (args or kwargs):
            tx.raise_observed(TypeError, f"{cls.__name__}() takes no arguments")
        result = new_object(tx, cls)
    else:
        function = bind(tx, new, None, cls)
        result = tx.call_function(function, [cls_variable, *args], kwargs).realize()
    if cls not in result.python_type().__mro__:  # whatever its metaclass says
        return result
    init = class_lookup(tx, result.python_type(), "__init__")
    assert init is not None
    if init.raw is object.__init__:
        return result
    function = bind(tx, init, result, result.python_type())
    tx.in_tail, tx.made = tail, result
    returned = tx.call_for(cls_variable, function, args, kwargs).realize()
    tx.made = None
    if not (returned.is_python_constant() and returned.as_python_constant() is None):
        kind = returned.python_type().__name__
        tx.raise_observed(TypeError, f"__init__() should return None, not '{kind}'")
    return result


# Makers of the values for new objects, by base class; filled where the VariableTrackers are.
NEW_OBJECT: list[tuple[type, Callable[[type], VariableTracker]]] = []


def has_object_layout(cls: type) -> bool:
    """Whether instances are made by `object.__new__`: their state is an instance dict and slots."""
    for base in cls.__mro__:
        if base is types.SimpleNamespace:
            continue
        if base.__flags__ & (1 << 8) and base is not object:  # Py_TPFLAGS_IMMUTABLETYPE
            return False
        new = class_dict(base).get("__new__")
        if isinstance(new, types.BuiltinFunctionType):
            return new is object.__new__
    return False


def new_object(tx: Translator, cls: type) -> VariableTracker:
    """`object.__new__(cls)`."""
    if not has_object_layout(cls):
        unsupported(
            "new object", cls.__qualname__, f"objects of {cls.__qualname__} keep state in C"
        )
    if any("__del__" in class_dict(base) for base in cls.__mro__):
        unsupported(
            "new object", cls.__qualname__, "objects with __del__ are not made while tracing"
        )
    if cls.__flags__ & (1 << 20):
        with observed(tx):
            object.__new__(cls)  # TypeError: it is abstract
    for base, maker in NEW_OBJECT:
        if issubclass(cls, base):
            return maker(cls)
    raise AssertionError(cls)


# -- wrapping --------------------------------------------------------------------------------------


def wrap_class(tx: Translator, value: type, source: Source) -> VariableTracker:
    tx.guard(source, "ID_IS", value)
    return ClassVariable(value, source=source)


wraps(type)(wrap_class)
wraps_instances(type)(wrap_class)


@builds(type)
def build_class(tx: Translator, value: type) -> VariableTracker:
    variable = ClassVariable(value, source=class_source(value))
    return tx.output.side_effects.track(value, variable)


__all__ = ["CONSTRUCTORS", "ClassVariable", "call_type", "constructs", "instantiate"]
