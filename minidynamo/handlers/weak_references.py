"""Weak references: those of the frame, and those that the traced code makes."""

from __future__ import annotations

import operator
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from ..finalizers import leads_to
from ..source import CallSource, Source, WeakrefSource
from ..variables.base import LazyVariable, VariableTracker, unsupported
from ..variables.builtin_object import NOT_IMPLEMENTED, is_none
from ..variables.dicts import note_identity
from ..variables.reach import is_held_outside
from ..variables.registry import handles, wraps
from ..variables.tensor import TensorVariable
from ..variables.user_defined import OpaqueVariable
from ..variables.user_keys import UserKey

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


@dataclass(frozen=True)
class _WeakKey:
    """The hash key of a reference: references are equal, and hash alike, as their objects do."""

    key: Any


class _Reference(VariableTracker):
    def truth(self, tx: Translator) -> bool:
        return True

    def is_basic(self) -> bool:
        """Whether it is the one reference that all of an object's without a callback are."""
        raise NotImplementedError

    def shares(self, tx: Translator, other: VariableTracker) -> bool | None:
        if not (isinstance(other, _Reference) and self.is_basic() and other.is_basic()):
            return None
        left, right = (side.call(tx, [], {}).realize() for side in (self, other))
        return None if is_none(left) or is_none(right) else tx.is_same(left, right)

    def hash_key(self, tx: Translator) -> Any:
        return self._key_of(tx, self.hashed_as(tx))

    def _key_of(self, tx: Translator, referent: VariableTracker) -> _WeakKey:
        key = referent.hash_key(tx)
        note_identity(tx, referent)
        if isinstance(key, UserKey):
            unsupported("weak reference", "hash", "its object has a hash of its own")
        if isinstance(referent, TensorVariable) and not self.is_basic():
            unsupported(
                "weak reference", "hash", "references that differ compare their tensors"
            )
        return _WeakKey(key)

    def hashed_as(self, tx: Translator) -> VariableTracker:
        referent = self.call(tx, [], {}).realize()
        if is_none(referent):
            unsupported("weak reference", "hash", "its object is gone")
        return referent

    def compare(
        self, tx: Translator, method: str, other: VariableTracker
    ) -> VariableTracker | None:
        """`weakref_richcompare`: identity where one of the objects is gone."""
        if method not in ("__eq__", "__ne__"):
            return NOT_IMPLEMENTED
        if not isinstance(other, _Reference):
            return NOT_IMPLEMENTED
        left, right = (side.call(tx, [], {}).realize() for side in (self, other))
        if is_none(left) or is_none(right):
            return None
        function = operator.eq if method == "__eq__" else operator.ne
        return tx.call_operator(function, [left, right])


class WeakrefVariable(_Reference):
    """A weak reference of the frame; calling it gives its object, guarded."""

    def __init__(self, value: weakref.ref[Any], *, source: Source) -> None:
        super().__init__(source=source)
        self.value = value

    def python_type(self) -> type:
        return type(self.value)

    def hashed_as(self, tx: Translator) -> VariableTracker:
        """It keeps the hash that it once gave."""
        if self.value() is not None:
            hash(self.value)
        return super().hashed_as(tx)

    def is_basic(self) -> bool:
        return type(self.value) is weakref.ref and self.value.__callback__ is None

    def identity(self) -> Any:
        return self.value

    def call(self, tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        assert self.source is not None
        if is_let_go(tx, self.value()):
            _refuse_call()
        return tx.wrap(self.value(), WeakrefSource(self.source))


class NewWeakrefVariable(_Reference):
    """`weakref.ref(referent, callback)`. An object is alive while the traced frames lead to it, one
    of the frame while nothing of the frame is changed, too; otherwise it is not known.
    """

    def __init__(
        self, referent: VariableTracker, version: int, callback: VariableTracker | None
    ) -> None:
        super().__init__()
        self.referent = referent
        self.version = version
        self.callback = callback

    def python_type(self) -> type:
        return weakref.ReferenceType

    def is_basic(self) -> bool:
        return self.callback is None

    def hashed_as(self, tx: Translator) -> VariableTracker:
        """The real one has to keep its hash."""
        unsupported("weak reference", "hash", "it is made behind the graph")

    def hash_key(self, tx: Translator) -> Any:
        """A container is rebuilt behind the graph: its keys' objects must live until then."""
        effects = tx.output.side_effects
        real = effects.real_of(self.referent)
        if self.referent.source is None or effects.has_let_go(real):
            _refuse_call()
        return self._key_of(tx, self.referent)

    def call(self, tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        effects = tx.output.side_effects
        is_alive = self.referent.source is not None and effects.outside == self.version
        is_alive = is_alive and not is_let_go(tx, effects.real_of(self.referent))
        if not is_alive and not _is_held(tx, self.referent):
            _refuse_call()
        return self.referent

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.begin_call(weakref.ref)
        codegen(self.referent)
        if self.callback is not None:
            codegen(self.callback)
        codegen.end_call(1 if self.callback is None else 2)


def _refuse_call() -> NoReturn:
    unsupported("weak reference", "call", "its object may have been freed since")


def is_let_go(tx: Translator, real: Any) -> bool:
    """Whether an argument of the frame that holds `real` is not held by the frame any more, or
    what held it was changed.
    """
    kept = [id(value) for value in tx.root.locals.values()]
    for value in tx.root.arguments:
        if id(value) in kept or real is None or not isinstance(value, LazyVariable):
            continue
        traced = (value, value.realize()) if value.is_realized else (value,)
        if leads_to(value.value, real) and not is_held_outside(tx, traced):
            return True
    effects = tx.output.side_effects
    if real is None or not effects.has_let_go(real):
        return False
    known = effects.variable_of(real)
    return known is None or not is_held_outside(tx, (known,))


def _is_held(tx: Translator, wanted: VariableTracker) -> bool:
    """Whether locals, stacks and cells of the running frames lead to an object made inside, by
    attributes and items alone.
    """
    todo: list[Any] = []
    frame: Any = tx
    while frame is not None:
        todo += [*frame.stack, *frame.locals.values(), *frame.cells.values()]
        frame = frame.parent
    effects = tx.output.side_effects
    seen: set[int] = set()
    while todo:
        item = todo.pop()
        if isinstance(item, LazyVariable) and item.is_realized:
            item = item.realize()
        if item is wanted:
            return True
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, VariableTracker):
            todo += effects.stored_attrs(item).values()
            item = getattr(item, "items", None)
        if isinstance(item, (list, tuple, dict)):
            todo += item.values() if isinstance(item, dict) else item
    return False


@handles(weakref.ref)
def new_weakref(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """Of an object that can be changed: others may be shared. With a callback, of one of the
    frame: at the end of an object made inside, it would have to be traced.
    """
    referent = args[0].realize()
    if kwargs or referent.is_python_constant():
        return NotImplemented
    callback = args[1] if len(args) > 1 and not is_none(args[1].realize()) else None
    is_followed = referent.is_user_defined or isinstance(referent, TensorVariable)
    if referent.source is None and (callback is not None or not is_followed):
        return NotImplemented
    kind = referent.python_type()
    if not kind.__weakrefoffset__:
        text = f"cannot create weak reference to {kind.__name__!r} object"
        tx.raise_observed(TypeError, text)
    tx.output.watched.add(referent)
    effects = tx.output.side_effects
    if callback is not None and not _watch_end(tx, effects.real_of(referent)):
        return NotImplemented
    return NewWeakrefVariable(referent, effects.outside, callback)


def _watch_end(tx: Translator, real: Any) -> bool:
    """From now on the end of `real` runs code. False: where that is, is not known."""
    if real is None or is_let_go(tx, real) or tx.output.side_effects.has_let_go(real):
        return False
    for name, value in zip(tx.root.frame.f_locals, tx.root.arguments, strict=True):
        if isinstance(value, LazyVariable) and leads_to(value.value, real):
            tx.root.mortal[name] = value
    tx.output.side_effects.watch_end(real)
    return True


@wraps(weakref.ReferenceType, weakref.KeyedRef)
def wrap_weakref(tx: Translator, value: weakref.ref[Any], source: Source) -> VariableTracker:
    tx.guard(source, "TYPE_IS", type(value))
    return WeakrefVariable(value, source=source)


# -- proxies ---------------------------------------------------------------------------------------


def _referent(proxy: Any) -> Any:
    """What a proxy stands for; None: it is gone, or hides it."""
    try:
        found = proxy.__repr__.__self__
    except (AttributeError, ReferenceError):
        return None
    return found if any(ref is proxy for ref in weakref.getweakrefs(found)) else None


class ProxyVariable(VariableTracker):
    """`weakref.proxy(obj)` of the frame: attributes and items are those of the object."""

    def __init__(self, value: Any, *, source: Source) -> None:
        super().__init__(source=source)
        self.value = value

    def python_type(self) -> type:
        return type(self.value)

    def identity(self) -> Any:
        return self.value

    def referent(self, tx: Translator) -> VariableTracker:
        """The object, guarded."""
        assert self.source is not None
        real = _referent(self.value)
        if real is None or is_let_go(tx, real):
            _refuse_call()
        return tx.wrap(real, CallSource(self.source, _referent, "<what {base} stands for>"))

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        return self.referent(tx).getattr(tx, name)

    def setattr(self, tx: Translator, name: str, value: VariableTracker) -> None:
        self.referent(tx).setattr(tx, name, value)

    def delattr(self, tx: Translator, name: str) -> None:
        self.referent(tx).delattr(tx, name)

    def call(self, tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        return tx.call_for(self, self.referent(tx), args, kwargs)

    def getitem(self, tx: Translator, key: VariableTracker) -> VariableTracker:
        return self.referent(tx).getitem(tx, key)

    def setitem(self, tx: Translator, key: VariableTracker, value: VariableTracker) -> None:
        self.referent(tx).setitem(tx, key, value)

    def length(self, tx: Translator) -> VariableTracker:
        return self.referent(tx).length(tx)

    def contains(self, tx: Translator, item: VariableTracker) -> VariableTracker:
        return self.referent(tx).contains(tx, item)

    def iter(self, tx: Translator) -> VariableTracker:
        return self.referent(tx).iter(tx)

    def truth(self, tx: Translator) -> bool:
        return self.referent(tx).truth(tx)


@wraps(*weakref.ProxyTypes)
def wrap_proxy(tx: Translator, value: Any, source: Source) -> VariableTracker:
    """One of an object whose class looks up attributes itself is only moved around."""
    tx.guard(source, "TYPE_IS", type(value))
    real = _referent(value)
    if real is None or type(real).__getattribute__ is not object.__getattribute__:
        return OpaqueVariable(value, source=source)
    return ProxyVariable(value, source=source)
