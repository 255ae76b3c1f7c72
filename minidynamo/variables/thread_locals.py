"""`threading.local` and its subclasses: attributes are those of the calling thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ..source import AttrSource, DictItemSource, Source
from .base import VariableTracker, unsupported
from .builtin_object import type_name
from .descriptors import guard_class
from .instance_dict import InstanceDictVariable
from .registry import wraps_instances
from .user_defined import UserDefinedObjectVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator


class ThreadLocalVariable(UserDefinedObjectVariable):
    """One of the frame. `dict` is that of this thread; guards and code look at theirs."""

    def __init__(self, value: threading.local, *, source: Source) -> None:
        super().__init__(type(value), value, source=source)
        self.dict = value.__dict__

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        self._check(tx, "__getattribute__")
        if name == "__dict__":  # the class's descriptor would give a dict that nothing uses
            self.dict_variable = self.dict_variable or InstanceDictVariable(self)
            return self.dict_variable
        found = self.generic_getattr(tx, name)
        return (self.missing_attribute(tx, name) if found is None else found).realize()

    def setattr(self, tx: Translator, name: str, value: VariableTracker) -> None:
        self._check(tx, "__setattr__")
        self._check_name(tx, name)
        self.generic_setattr(tx, name, value)

    def delattr(self, tx: Translator, name: str) -> None:
        self._check(tx, "__delattr__")
        self._check_name(tx, name)
        self.generic_delattr(tx, name)

    def _check(self, tx: Translator, slot: str) -> None:
        guard_class(tx, self.cls)
        if getattr(self.cls, slot) is not getattr(threading.local, slot):
            unsupported("attribute", f"{self.describe()}.{slot}", "a thread local has its own")

    def _check_name(self, tx: Translator, name: str) -> None:
        """`local_setattro`."""
        if name == "__dict__":
            text = f"'{type_name(self.cls)}' object attribute '__dict__' is read-only"
            tx.raise_observed(AttributeError, text)

    def dict_source(self) -> Source:
        assert self.source is not None
        return AttrSource(self.source, "__dict__")

    def item_source(self, name: str) -> Source:
        return DictItemSource(self.dict_source(), name)

    def apply_setattr(self, codegen: PyCodegen, name: str) -> None:
        VariableTracker.apply_setattr(self, codegen, name)

    def apply_delattr(self, codegen: PyCodegen, name: str) -> None:
        VariableTracker.apply_delattr(self, codegen, name)


@wraps_instances(threading.local)
def wrap_thread_local(tx: Translator, value: Any, source: Source) -> VariableTracker:
    """One object is guarded as such: what it holds in other threads is not known."""
    tx.guard(source, "ID_IS", value)
    return ThreadLocalVariable(value, source=source)
