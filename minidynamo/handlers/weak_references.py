"""Weak references: those of the frame, and those that the traced code makes."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from ..finalizers import leads_to
from ..source import Source, WeakrefSource
from ..variables.base import LazyVariable, VariableTracker, unsupported
from ..variables.reach import is_held
from ..variables.registry import handles, wraps

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


class WeakrefVariable(VariableTracker):
    """A weak reference of the frame; calling it gives its object, guarded."""

    def __init__(self, value: weakref.ref[Any], *, source: Source) -> None:
        super().__init__(source=source)
        self.value = value

    def python_type(self) -> type:
        return type(self.value)

    def identity(self) -> Any:
        return self.value

    def truth(self, tx: Translator) -> bool:
        return True

    def call(self, tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        assert self.source is not None
        if is_let_go(tx, self.value()):
            _refuse_call()
        return tx.wrap(self.value(), WeakrefSource(self.source))


class NewWeakrefVariable(VariableTracker):
    """`weakref.ref(referent)`. An object made inside is alive while the traced frames lead to it,
    one of the frame while the log does not grow; otherwise it is not known.
    """

    def __init__(self, referent: VariableTracker, version: int) -> None:
        super().__init__()
        self.referent = referent
        self.version = version

    def python_type(self) -> type:
        return weakref.ReferenceType

    def truth(self, tx: Translator) -> bool:
        return True

    def call(self, tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        if self.referent.source is not None:
            is_alive = tx.output.side_effects.version == self.version
            is_alive &= not is_let_go(tx, tx.output.side_effects.real_of(self.referent))
        else:
            is_alive = _is_held(tx, self.referent)
        if not is_alive:
            _refuse_call()
        return self.referent

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.begin_call(weakref.ref)
        codegen(self.referent)
        codegen.end_call(1)


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
        if leads_to(value.value, real) and not is_held(tx, traced):
            return True
    effects = tx.output.side_effects
    if real is None or not effects.has_let_go(real):
        return False
    known = effects.variable_of(real)
    return known is None or not is_held(tx, (known,))


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
    """Without a callback, of an object that can be changed: others may be shared."""
    referent = args[0].realize()
    if len(args) != 1 or kwargs or referent.is_python_constant():
        return NotImplemented
    if referent.source is None and not referent.is_user_defined:
        return NotImplemented
    kind = referent.python_type()
    if not kind.__weakrefoffset__:
        text = f"cannot create weak reference to {kind.__name__!r} object"
        tx.raise_observed(TypeError, text)
    tx.output.watched.add(referent)
    return NewWeakrefVariable(referent, tx.output.side_effects.version)


@wraps(weakref.ReferenceType)
def wrap_weakref(tx: Translator, value: weakref.ref[Any], source: Source) -> VariableTracker:
    tx.guard(source, "TYPE_IS", type(value))
    return WeakrefVariable(value, source=source)
