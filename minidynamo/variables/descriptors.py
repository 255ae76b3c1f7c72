"""Attributes of classes: the walk along the MRO, and what binding the found object gives.

`class_lookup` is `_PyType_Lookup` with a guard that the class stays as it is; `bind` is the
`__get__` of what was found. A descriptor type is a row of `BINDERS`; one written in Python is bound
by tracing its `__get__`.
"""

from __future__ import annotations

import collections
import functools
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributions.utils import lazy_property
from torch.utils.hooks import RemovableHandle

from .. import _C
from ..guards import Predicate
from ..side_effects import DELETED
from ..source import ClassAttrSource, ConstSource
from ..utils import class_dict, dropping
from .base import AttributeOf, VariableTracker, unsupported
from .constant import ConstantVariable, is_value
from .functions import BoundMethodVariable, CallableVariable, bound_attribute
from .instance_state import InstanceState
from .registry import handler_of

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator
    from .classes import ClassVariable

_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE

# Descriptors written in C: `torch.Tensor.shape`, `type.__dict__["__dict__"]`, slots.
GETTERS = (types.GetSetDescriptorType, types.MemberDescriptorType)
# Fields of named tuples.
TUPLE_GETTER: type = type(vars(collections.namedtuple("_Sample", "item"))["item"])  # noqa: PYI024

# The version of each class when a trace last relied on it, and what it held then (by id: a hint
# only). A class that changed since is guarded attribute by attribute, so that programs that store
# to a class do not recompile each time. By id: a metaclass may hash and compare in its own way.
_seen_versions: dict[int, tuple[weakref.ref[type], int, Any]] = {}
_volatile_classes: dict[int, weakref.ref[type]] = {}


def _note_volatile(cls: type) -> None:
    key = id(cls)
    _volatile_classes[key] = weakref.ref(cls, dropping(_volatile_classes, key))


def _is_volatile(cls: type) -> bool:
    return id(cls) in _volatile_classes


_note_volatile(RemovableHandle)  # it counts handles of hooks


class _Stored:
    """Marks an attribute whose value the traced code stored."""


STORED = _Stored()


@dataclass(slots=True)
class ClassAttribute:
    """What the MRO walk found: `raw` in the dict of `owner`, or a value the traced code stored."""

    name: str
    cls: type
    owner: type
    raw: Any
    stored: VariableTracker | None = None

    def source(self) -> Source:
        """How to reach the raw object. Where the class is guarded as a whole, it is a constant."""
        if _is_volatile(self.cls):
            return ClassAttrSource(class_source(self.cls), self.name)
        if isinstance(self.raw, _CONSTANT_ATTRIBUTES):
            return ConstSource(self.raw, f"{self.owner.__qualname__}.{self.name}")
        return ClassAttrSource(class_source(self.owner), self.name)

    def variable(self, tx: Translator) -> VariableTracker:
        """The unbound attribute as a value."""
        if id(self.owner) in tx.output.side_effects.stand_ins and is_value(self.raw):
            return ConstantVariable(self.raw)  # of a class that was made while tracing
        return (
            self.stored.realize()
            if self.stored is not None
            else tx.wrap(self.raw, self.source())
        )

    def part(self, tx: Translator, value: Any, part: str) -> VariableTracker:
        """A function that a property, classmethod ... holds; these objects never change."""
        return tx.wrap(
            value, ConstSource(value, f"{self.owner.__qualname__}.{self.name}.{part}")
        )

    def is_data_descriptor(self, tx: Translator) -> bool:
        kind = self._kind(tx)
        return hasattr(kind, "__set__") or hasattr(kind, "__delete__")

    def goes_first(self, tx: Translator) -> bool:
        """Whether reading it ignores the instance dict: a data descriptor that has a `__get__`."""
        return hasattr(self._kind(tx), "__get__") and self.is_data_descriptor(tx)

    def _kind(self, tx: Translator) -> type:
        """The class that makes it a descriptor or not, which is guarded."""
        if self.stored is not None:
            return self.stored.realize().python_type()
        kind = type(self.raw)
        if kind not in BINDERS:
            guard_class(tx, kind)
        return kind


# Objects that stay what they are: reached through a guarded class they need no fetching.
_CONSTANT_ATTRIBUTES = (
    types.FunctionType,
    property,
    classmethod,
    staticmethod,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    type,
)


def class_source(cls: type) -> Source:
    """Classes are constants of the guards: the class of an object is guarded with the object."""
    return ConstSource(cls, cls.__qualname__)


def guard_class(tx: Translator, cls: type) -> None:
    """The compiled code stands only while no attribute of `cls` or its bases is stored."""
    known = tx.output.guarded_classes
    if cls.__mro__ is None or id(cls) in known or cls.__flags__ & _IMMUTABLE_TYPE:
        return
    if _is_volatile(cls):
        known[id(cls)] = cls
        _guard_special_methods(tx, cls)
        return
    version = _C.type_version(cls)
    key = id(cls)
    seen = _seen_versions.get(key)
    if seen is None or seen[1] != version:
        held = [
            (id(base), *((k, id(v)) for k, v in class_dict(base).items() if not _tags(base, k)))
            for base in cls.__mro__
        ]
        if seen is not None and seen[2] != held:
            _note_volatile(cls)
            guard_class(tx, cls)
            return
        _seen_versions[key] = weakref.ref(cls, dropping(_seen_versions, key)), version, held
    known[key] = cls
    tx.guard(class_source(cls), "TYPE_VERSION", cls)


def _guard_special_methods(
    tx: Translator,
    cls: type,
) -> None:
    """What operators and protocols look for in the class is as it was: nobody names it."""
    held = [(name, _held_weakly(raw)) for name, raw in _special_methods(cls)]

    def are_held(now: type) -> bool:
        methods = _special_methods(now)
        return len(methods) == len(held) and all(
            name == known and raw is get()
            for (name, raw), (known, get) in zip(methods, held, strict=True)
        )

    check = Predicate(are_held, f"the special methods of {cls.__qualname__} are the same")
    tx.guard(class_source(cls), "PREDICATE", check)


def _special_methods(cls: type) -> list[tuple[str, Any]]:
    return [
        (name, raw)
        for base in cls.__mro__
        if not base.__flags__ & _IMMUTABLE_TYPE
        for name, raw in class_dict(base).items()
        if name[:2] == "__" == name[-2:] and _is_method(name, raw) and not _tags(base, name)
    ]


def _held_weakly(raw: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(raw)
    except TypeError:
        return lambda: raw


def _is_method(
    name: str,
    raw: Any,
) -> bool:
    is_absent = raw is None and name != "__doc__"
    return is_absent or callable(raw) or isinstance(raw, (property, classmethod))


def _tags(cls: type, name: str) -> bool:
    """Whether torch._dynamo may replace it when it first compiles something (`is_tagging` of the
    guards): that alone does not make a class one that is changed again and again."""
    tagged = ("__init__", "__setstate__", "___needs_generation_tag_patch")
    return cls is torch.nn.Module and name in tagged


def class_lookup(tx: Translator, cls: type, name: str) -> ClassAttribute | None:
    """`_PyType_Lookup`: the unbound attribute along the MRO, as the traced code would find it."""
    if cls.__mro__ is None:
        unsupported("class", cls.__qualname__, "its metaclass is just making it")
    guard_class(tx, cls)
    effects = tx.output.side_effects
    for owner in cls.__mro__:
        known = effects.variable_of(owner)
        stored = effects.load_attr(known, name) if known is not None else None
        if isinstance(stored, VariableTracker):
            return ClassAttribute(name, cls, owner, STORED, stored)
        if stored is not DELETED and name in (table := class_dict(owner)):
            found = ClassAttribute(name, cls, owner, table[name])
            if _is_volatile(cls) and isinstance(found.raw, _CONSTANT_ATTRIBUTES):
                tx.guard(found.source(), "ID_IS", found.raw)
            return found
    if _is_volatile(cls):
        text = f"{cls.__qualname__} has no attribute {name!r}"
        tx.guard(class_source(cls), "PREDICATE", Predicate(_lacks(name), text))
    return None


def names_of_class(tx: Translator, cls: type) -> list[str]:
    """The names in the dicts of the class and its bases, in the order of `dir`."""
    guard_class(tx, cls)
    if _is_volatile(cls):
        held = tuple(class_dict(cls))
        check = Predicate(lambda c: tuple(class_dict(c)) == held, "its names are the same")
        tx.guard(class_source(cls), "PREDICATE", check)
    known = tx.output.side_effects.variable_of(cls)
    stored = tx.output.side_effects.stored_attrs(known) if known is not None else {}
    names = dict.fromkeys(class_dict(cls)) | dict.fromkeys(stored)
    found = [name for name in names if stored.get(name) is not DELETED]
    return [*found, *(name for base in cls.__bases__ for name in names_of_class(tx, base))]


@functools.lru_cache(maxsize=1024)
def _lacks(name: str) -> Callable[[type], bool]:
    return lambda cls: not any(name in class_dict(base) for base in cls.__mro__)


def lookup_special(tx: Translator, value: VariableTracker, name: str) -> VariableTracker | None:
    """`_PyObject_LookupSpecial`: the bound method that the class of a user's object gives, or None.

    Values of other kinds have their slots in Python methods of their VariableTracker: None for
    them, but for what a Python subclass of a builtin class defines itself.
    """
    value = value.realize()
    if not value.is_user_defined and not value.overrides(name):
        return None
    cls = value.python_type()
    found = class_lookup(tx, cls, name)
    return None if found is None else bind(tx, found, value, cls)


class CMethodVariable(BoundMethodVariable):
    """A C function of a type, bound to an object that the tracer models: it needs a handler."""

    takes_lazy_args = False

    def __init__(self, raw: Any, receiver: VariableTracker) -> None:
        super().__init__(CallableVariable(raw), receiver)
        self.raw = raw

    def python_type(self) -> type:
        is_slot = isinstance(self.raw, types.WrapperDescriptorType)
        return types.MethodWrapperType if is_slot else types.BuiltinMethodType

    def as_python_constant(self) -> Any:
        receiver = self.receiver.as_python_constant()
        if isinstance(self.raw, types.ClassMethodDescriptorType):
            return self.raw.__get__(None, receiver)
        # CPython does not check that a method which wants to know its class is told one.
        return self.raw.__get__(receiver, type(receiver))

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        owner = self.receiver.python_type()
        if issubclass(owner, type):
            owner = self.receiver.as_python_constant()
        found = bound_attribute(tx, self.raw, owner, name)
        return super().getattr(tx, name) if found is None else found

    def call(
        self, tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        handler = handler_of(self.raw)
        if handler is not None:
            result = handler(tx, [self.receiver, *args], kwargs)
            if result is not NotImplemented:
                return result
        return self.receiver.call_builtin(tx, self.raw, args, kwargs)

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.begin_call(type(self.raw).__get__)
        codegen.load_const(self.raw)
        if isinstance(self.raw, types.ClassMethodDescriptorType):
            codegen.load_const(None)
            codegen(self.receiver)
        else:
            codegen(self.receiver)
            codegen.load_const(self.receiver.python_type())
        codegen.end_call(3)


# -- binding ---------------------------------------------------------------------------------------


def bind(
    tx: Translator, found: ClassAttribute, instance: VariableTracker | None, cls: type
) -> VariableTracker:
    """`found.__get__(instance, cls)`, or the object itself if it is no descriptor.

    instance None: it was found by an access to the class.
    """
    if found.stored is not None:
        return _bind_stored(tx, found, instance)
    binder = BINDERS.get(type(found.raw))
    if binder is not None:
        return binder(tx, found, instance, cls)
    getter = class_lookup(tx, type(found.raw), "__get__")
    if getter is None:
        return found.variable(tx)
    inherited = BINDERS.get(getter.owner)
    if inherited is not None:
        return inherited(tx, found, instance, cls)
    return _bind_by_get(tx, found, instance, cls, getter)


def _bind_by_get(
    tx: Translator,
    found: ClassAttribute,
    instance: VariableTracker | None,
    cls: type,
    getter: ClassAttribute,
) -> VariableTracker:
    """The `__get__` of a class written in Python."""
    function = bind(tx, getter, found.variable(tx), type(found.raw))
    owner = instance if instance is not None else ConstantVariable(None)
    return tx.call_function(function, [owner, class_variable(tx, cls)], {})


def class_variable(tx: Translator, cls: type) -> ClassVariable:
    """The value of a class that is known because of a guard on something else."""
    known = tx.output.side_effects.variable_of(cls)
    return known if known is not None else tx.wrap_constant(cls)  # type: ignore[return-value]


def _bind_stored(
    tx: Translator, found: ClassAttribute, instance: VariableTracker | None
) -> VariableTracker:
    assert found.stored is not None
    value = found.stored.realize()
    kind = value.python_type()
    if kind is types.FunctionType:
        return value if instance is None else BoundMethodVariable(value, instance)
    if hasattr(kind, "__get__"):
        unsupported(
            "descriptor",
            f"{found.name} of {found.cls.__qualname__}",
            "it was stored to the class",
        )
    return value


def _bind_function(
    tx: Translator, found: ClassAttribute, instance: VariableTracker | None, cls: type
) -> VariableTracker:
    function = found.variable(tx)
    return function if instance is None else BoundMethodVariable(function, instance)


def _bind_builtin(
    tx: Translator, found: ClassAttribute, instance: VariableTracker | None, cls: type
) -> VariableTracker:
    if instance is None:
        return CallableVariable(found.raw, source=found.source())
    return CMethodVariable(found.raw, instance)


def _bind_property(
    tx: Translator, found: ClassAttribute, instance: VariableTracker | None, cls: type
) -> VariableTracker:
    if instance is None:
        return found.variable(tx)
    if found.raw.fget is None:
        tx.raise_observed(
            AttributeError, f"property {found.name!r} of {cls.__name__!r} has no getter"
        )
    getter = found.part(tx, found.raw.fget, "fget")
    tail = tx.in_tail
    if not isinstance(tail, AttributeOf) or tail.owner is not instance or _intercepts(cls):
        tail = None
    return tx.call_for(tail, getter, [instance], {})


def _intercepts(cls: type) -> bool:
    """Whether an AttributeError of a getter is not the end of the matter."""
    return hasattr(cls, "__getattr__") or cls.__getattribute__ is not object.__getattribute__


def _bind_staticmethod(
    tx: Translator, found: ClassAttribute, instance: VariableTracker | None, cls: type
) -> VariableTracker:
    return found.part(tx, found.raw.__func__, "__func__")


# Whether a classmethod binds the descriptor that it holds: CPython 3.13 no longer does.
_CLASSMETHOD_CHAINS = classmethod(property(lambda cls: True)).__get__(None, object) is True  # type: ignore[arg-type, type-var]


def _bind_classmethod(
    tx: Translator, found: ClassAttribute, instance: VariableTracker | None, cls: type
) -> VariableTracker:
    held = found.raw.__func__
    if type(held) is not types.FunctionType and hasattr(type(held), "__get__"):
        if type(held) is not property or not _CLASSMETHOD_CHAINS:
            unsupported("descriptor", f"classmethod {found.name}", "it holds a descriptor")
        inner = ClassAttribute(found.name, found.cls, found.owner, held)
        return bind(tx, inner, class_variable(tx, cls), cls)
    return BoundMethodVariable(found.part(tx, held, "__func__"), class_variable(tx, cls))


def _bind_class_builtin(
    tx: Translator, found: ClassAttribute, instance: VariableTracker | None, cls: type
) -> VariableTracker:
    return CMethodVariable(found.raw, class_variable(tx, cls))


def _bind_member(
    tx: Translator, found: ClassAttribute, instance: VariableTracker | None, cls: type
) -> VariableTracker:
    if instance is None:
        return found.variable(tx)
    return instance.load_slot(tx, found.raw)


def _bind_getset(
    tx: Translator, found: ClassAttribute, instance: VariableTracker | None, cls: type
) -> VariableTracker:
    if instance is None:
        return found.variable(tx)
    return instance.load_getset(tx, found.raw)


def _bind_cached_property(
    tx: Translator, found: ClassAttribute, instance: VariableTracker | None, cls: type
) -> VariableTracker:
    """Called only where the instance dict has no such name."""
    if instance is None:
        return found.variable(tx)
    value = tx.call_function(found.part(tx, found.raw.func, "func"), [instance], {})
    if isinstance(instance, InstanceState):
        instance.store_instance(tx, found.raw.attrname, value)
    else:
        tx.output.side_effects.store_attr(instance, found.raw.attrname, value)
    return value


def _bind_lazy_property(
    tx: Translator, found: ClassAttribute, instance: VariableTracker | None, cls: type
) -> VariableTracker:
    """From the class it is a new property each time: one of them serves."""
    if instance is None:
        label = f"{found.owner.__qualname__}.{found.name}"
        return tx.wrap_held(found.raw.__get__(None, cls), label)
    getter = class_lookup(tx, type(found.raw), "__get__")
    assert getter is not None
    return _bind_by_get(tx, found, instance, cls, getter)


def _bind_plain(
    tx: Translator, found: ClassAttribute, instance: VariableTracker | None, cls: type
) -> VariableTracker:
    return found.variable(tx)


Binder = Callable[
    ["Translator", ClassAttribute, "VariableTracker | None", type], "VariableTracker"
]
BINDERS: dict[type, Binder] = {
    types.FunctionType: _bind_function,
    property: _bind_property,
    staticmethod: _bind_staticmethod,
    classmethod: _bind_classmethod,
    functools.cached_property: _bind_cached_property,
    lazy_property: _bind_lazy_property,
    types.MemberDescriptorType: _bind_member,
    TUPLE_GETTER: _bind_member,
    types.GetSetDescriptorType: _bind_getset,
    types.WrapperDescriptorType: _bind_builtin,
    types.MethodDescriptorType: _bind_builtin,
    types.ClassMethodDescriptorType: _bind_class_builtin,
    types.BuiltinFunctionType: _bind_plain,
    # Objects that only look like descriptors: their __get__ is about classes made of classes.
    type: _bind_plain,
    # Callables of C that bind as functions do.
    functools._lru_cache_wrapper: _bind_function,
    _C.CompiledFunction: _bind_function,
}

# Those that do not ask for an object of a certain class.
HELD_DESCRIPTORS = (property, staticmethod, classmethod, TUPLE_GETTER)


def get_from(
    tx: Translator, held: VariableTracker, args: list[VariableTracker]
) -> VariableTracker:
    """`held.__get__(instance, cls)` for one of `HELD_DESCRIPTORS`, which is guarded."""
    raw: Any = held.identity()
    instance, *rest = (arg.realize() for arg in args)
    cls = rest[0].identity() if rest else instance.python_type()
    is_none = instance.is_python_constant() and instance.as_python_constant() is None
    if type(raw) is TUPLE_GETTER and not is_none:
        if isinstance(instance, ConstantVariable):
            return tx.fold(getattr(raw, "__get__"), (instance.value,), {})  # noqa: B009
        if not issubclass(instance.python_type(), tuple):
            unsupported("descriptor", repr(raw), "it is asked for an item of what is no tuple")
    if not isinstance(cls, type) or len(rest) > 1:
        unsupported("descriptor", repr(raw), "it is asked for something of what is no class")
    if is_none and type(raw) in (property, TUPLE_GETTER):
        return held
    found = ClassAttribute(type(raw).__name__, cls, cls, raw)
    return bind(tx, found, None if is_none else instance, cls)
