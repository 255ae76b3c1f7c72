"""The globals of a module, however they are reached: as names, as the module's attributes, as a
dict. All three read and write one entry of the side-effect log.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from ..side_effects import Mutation
from ..source import DictItemSource, GlobalSource, GlobalsSource, Source
from .base import VariableTracker
from .instance_dict import InstanceDictVariable
from .instance_state import InstanceState

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


class GlobalsVariable(InstanceState):
    """The globals dict `dict`; its items are what the log calls attributes. `view` is the dict as
    a value.
    """

    def __init__(self, globals_: dict[str, Any], source: Source) -> None:
        super().__init__(source=source, mutation=Mutation.EXISTING)
        self.cls = types.ModuleType
        self.dict = globals_
        # What was read of it, by name.
        self.loaded: dict[str, tuple[Any, VariableTracker]] = {}

    @property
    def view(self) -> InstanceDictVariable:
        """The dict as a value; not kept, for it refers to this one."""
        return InstanceDictVariable(self)

    def dict_source(self) -> Source:
        assert self.source is not None
        return self.source

    def item_source(self, name: str) -> Source:
        if isinstance(self.source, GlobalsSource):
            return GlobalSource(name)
        return DictItemSource(self.dict_source(), name)

    def apply_setattr(self, codegen: Any, name: str) -> None:
        codegen.emit("LOAD_FAST", codegen.preload(self))
        codegen.load_const(name)
        codegen.emit("STORE_SUBSCR")

    def apply_delattr(self, codegen: Any, name: str) -> None:
        codegen.emit("LOAD_FAST", codegen.preload(self))
        codegen.load_const(name)
        codegen.emit("DELETE_SUBSCR")


def globals_of(tx: Translator, globals_: dict[str, Any], source: Source) -> GlobalsVariable:
    """The value of a globals dict; `source` is how it is reached if it is not the frame's own."""
    known = tx.output.globals_variables
    if id(globals_) not in known:
        if globals_ is tx.root.globals:
            source = GlobalsSource()
        known[id(globals_)] = GlobalsVariable(globals_, source)
    return known[id(globals_)]


def is_globals(tx: Translator, value: dict[Any, Any]) -> bool:
    """Whether a dict serves as the globals of code; whatever ran code has `__builtins__`."""
    return (
        value is tx.root.globals
        or id(value) in tx.output.globals_variables
        or (dict.__contains__(value, "__builtins__") and dict.__contains__(value, "__name__"))
    )


def wrap_globals(tx: Translator, value: dict[str, Any], source: Source) -> VariableTracker:
    """A globals dict as a value, known by identity."""
    tx.guard(source, "ID_IS", value)
    return globals_of(tx, value, source).view
