"""Going over `obj.__dict__`: its views and their iterators, which notice changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..side_effects import DELETED, Mutation
from .base import VariableTracker
from .builtin_object import construct
from .constant import ConstantVariable
from .container_iterators import (
    DICT_ITERATOR_TYPES,
    entry_part,
    new_dict_iterator,
    refuse_changed,
)
from .dict_views import DictViewVariable, dict_view
from .dicts import DictVariable
from .instance_dict import GOING_OVER, InstanceDictVariable
from .iterators import IteratorVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator


class InstanceViewVariable(DictViewVariable):
    """`table.keys()`, `.values()` or `.items()` of an instance dict."""

    def __init__(self, tx: Translator, table: InstanceDictVariable, kind: str) -> None:
        self.table = table
        self._tx = tx
        super().__init__(self.mapping, kind)

    @property
    def mapping(self) -> DictVariable:
        """A dict with the items of now."""
        return self.table.copy(self._tx)  # type: ignore[return-value]

    @mapping.setter
    def mapping(self, _copy: DictVariable) -> None:
        """It is made anew for each use."""

    def iter(self, tx: Translator) -> VariableTracker:
        return InstanceDictIterator(tx, self.table, self.kind)

    def reconstruct(self, codegen: PyCodegen) -> None:
        construct(codegen, dict_view, self.table, self.kind)


class InstanceDictIterator(IteratorVariable):
    """Over the names of an instance dict, its values or both."""

    def __init__(self, tx: Translator, table: InstanceDictVariable, kind: str) -> None:
        super().__init__(DICT_ITERATOR_TYPES[kind, False], mutation=Mutation.NEW)
        self.made_in = tx.last_step()
        self.table = table
        self.kind = kind
        self.index = 0
        self.exhausted = False
        self._tx = tx
        self.names = self._names_now()

    def _names_now(self) -> list[str]:
        return list(self.table.owner.instance_names(self._tx))

    def step(self, tx: Translator) -> VariableTracker | None:
        if self.exhausted:
            return None
        now = self._names_now()
        if len(now) != len(self.names):
            tx.raise_observed(RuntimeError, "dictionary changed size during iteration")
        if now != self.names:
            refuse_changed(self, self.made_in)
        self.exhausted = self.index >= len(now)
        if self.exhausted:
            return None
        name = self.names[self.index]
        self.index += 1
        value = self.table.owner.load_instance(tx, name)
        assert value is not None
        return entry_part(tx, self.kind, (ConstantVariable(name), value))

    def remaining(self) -> int:
        return 0 if self.exhausted else len(self.names) - self.index

    def reconstruct(self, codegen: PyCodegen) -> None:
        owner = self.table.owner
        stored = codegen.side_effects.stored_attrs(owner)
        is_new = owner.mutation is Mutation.NEW
        real: dict[str, Any] = owner.dict or {}
        later = any(value is DELETED or name not in real for name, value in stored.items())
        if self._names_now() != self.names or (later and not is_new):
            refuse_changed(self, self.made_in)
        count = self.index + self.exhausted
        construct(codegen, new_dict_iterator, self.table, self.kind, False, count)


GOING_OVER["view"] = InstanceViewVariable
GOING_OVER["iterator"] = InstanceDictIterator
