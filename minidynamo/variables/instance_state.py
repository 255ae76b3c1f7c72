"""The instance dict of an object, seen through the side-effect log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..side_effects import DELETED
from ..source import DictItemSource, InstanceAttrSource, InstanceDictSource, Source
from ..source_calls import instance_dict
from ..utils import class_dict
from .base import VariableTracker
from .constant import ConstantVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator


_HEAP_TYPE = 1 << 9


def push_dict(codegen: PyCodegen, cls: type, push: Callable[[], None]) -> None:
    """Push the instance dict of the object that `push` pushes; no code of the user is run."""
    if cls.__getattribute__ is object.__getattribute__:
        push()
        codegen.emit("LOAD_ATTR", "__dict__")
        return
    codegen.begin_call(instance_dict)
    push()
    codegen.end_call(1)


def _of_class(cls: type, name: str) -> Any:
    return next(
        (class_dict(base)[name] for base in cls.__mro__ if name in class_dict(base)), None
    )


def has_setter(cls: type, name: str) -> bool:
    """Whether the class has a data descriptor of that name; no code of the user is run."""
    return hasattr(type(_of_class(cls, name)), "__set__")


def is_hidden(cls: type, name: str) -> bool:
    """Whether that descriptor is the program's own (a property, say): an entry of the instance dict
    is then reached through the dict alone.
    """
    kind = type(_of_class(cls, name))
    is_own = issubclass(kind, property) or bool(kind.__flags__ & _HEAP_TYPE)
    return is_own and hasattr(kind, "__set__")


class InstanceState(VariableTracker):
    """An object of class `cls` whose attributes are `dict` (None: it has none yet), overlaid with
    the log.
    """

    cls: type
    dict: dict[str, Any] | None
    # The dict that the traced code gave it in place of its own, as a DictVariable.
    given: Any = None

    def load_instance(self, tx: Translator, name: str) -> VariableTracker | None:
        """The entry of the instance dict, or None."""
        if self.given is not None:
            return self.given.find(tx, name)  # type: ignore[no-any-return]
        stored = tx.output.side_effects.load_attr(self, name)
        if stored is DELETED:
            return None
        if isinstance(stored, VariableTracker):
            return stored
        if self.dict is None or self.source is None:
            return None
        if name in self.dict:
            return tx.lazy(self.dict[name], self.item_source(name))
        tx.guard(self.dict_source(), "DICT_LACKS", name)
        return None

    def store_instance(self, tx: Translator, name: str, value: VariableTracker) -> None:
        """Set an entry of the instance dict."""
        if self.given is not None:
            self.given.put(tx, ConstantVariable(name), value)
        else:
            tx.output.side_effects.store_attr(self, name, value)

    def dict_source(self) -> Source:
        """The source of the instance dict itself."""
        assert self.source is not None
        return InstanceDictSource(self.source)

    def item_source(self, name: str) -> Source:
        """The source of an entry of the instance dict; attribute access where that gives it."""
        assert self.source is not None
        plain = self.cls.__getattribute__ is object.__getattribute__
        if plain and not has_setter(self.cls, name):
            return InstanceAttrSource(self.source, name)
        return DictItemSource(self.dict_source(), name)

    def delete_item(self, tx: Translator, name: str) -> None:
        """Delete an entry of the instance dict, which is there."""
        if self.given is not None:
            self.given.take(tx, name)
            return
        existed = self.dict is not None and name in self.dict
        if self.dict is not None and self.source is not None:
            # What was stored before may be new here and replace something in another call.
            tx.guard(self.dict_source(), "DICT_HAS" if existed else "DICT_LACKS", name)
        tx.output.side_effects.delete_attr(self, name, existed=existed)

    # -- leaving the trace ------------------------------------------------------------------------

    def apply_setattr(self, codegen: PyCodegen, name: str) -> None:
        """The store as the log means it: no `__setattr__` of the class runs again."""
        if is_hidden(self.cls, name):
            self._push_entry(codegen, name)
            codegen.emit("STORE_SUBSCR")
            return
        if self.cls.__setattr__ is object.__setattr__:
            super().apply_setattr(codegen, name)
            return
        value = codegen.new_local()
        codegen.emit("STORE_FAST", value)
        codegen.begin_call(object.__setattr__)
        codegen.emit("LOAD_FAST", codegen.preload(self))
        codegen.load_const(name)
        codegen.emit("LOAD_FAST", value)
        codegen.end_call(3)
        codegen.emit("POP_TOP")

    def apply_delattr(self, codegen: PyCodegen, name: str) -> None:
        if is_hidden(self.cls, name):
            self._push_entry(codegen, name)
            codegen.emit("DELETE_SUBSCR")
            return
        if self.cls.__delattr__ is object.__delattr__:
            super().apply_delattr(codegen, name)
            return
        codegen.begin_call(object.__delattr__)
        codegen.emit("LOAD_FAST", codegen.preload(self))
        codegen.load_const(name)
        codegen.end_call(2)
        codegen.emit("POP_TOP")

    def _push_entry(self, codegen: PyCodegen, name: str) -> None:
        local = codegen.preload(self)
        push_dict(codegen, self.cls, lambda: codegen.emit("LOAD_FAST", local))
        codegen.load_const(name)

    # -- all names --------------------------------------------------------------------------------

    def has_stored(self, tx: Translator, name: str) -> bool:
        """Whether the instance dict has the name, without looking at its value."""
        if self.given is not None:
            return self.given.find(tx, name) is not None
        stored = tx.output.side_effects.load_attr(self, name)
        if stored is not None:
            return stored is not DELETED
        if self.dict is None or self.source is None:
            return False
        has = name in self.dict
        kind = "DICT_HAS" if has else "DICT_LACKS"
        tx.guard(self.dict_source(), kind, name)
        return has

    def instance_names(self, tx: Translator) -> Iterator[str]:
        """The keys of the instance dict, in order."""
        if self.given is not None:
            self.given.guard_keys(tx)
            yield from (key for key in list(self.given.entries) if isinstance(key, str))
            return
        stored = tx.output.side_effects.stored_attrs(self)
        existing: dict[str, Any] = {}
        if self.dict is not None and self.source is not None:
            tx.guard(self.dict_source(), "DICT_KEYS", tuple(self.dict))
            existing = self.dict
        slots = slot_names(self.cls)
        recreated = tx.output.side_effects.recreated
        kept = [name for name in existing if (self, name) not in recreated]
        for name in kept:
            if stored.get(name) is not DELETED:
                yield name
        for name, value in stored.items():
            if name not in kept and name not in slots and value is not DELETED:
                yield name


def slot_names(cls: type) -> list[str]:
    """The names in `__slots__` of the class and its bases."""
    return [
        name
        for base in cls.__mro__
        for name, raw in class_dict(base).items()
        if type(raw).__name__ == "member_descriptor"
    ]
