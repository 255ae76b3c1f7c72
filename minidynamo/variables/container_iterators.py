"""Iterators over dicts, sets and deques, which notice that their container changed."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, NoReturn

from ..exc import Unsupported
from ..side_effects import Mutation
from .base import VariableTracker
from .builtin_object import construct, observed
from .deques import DequeVariable
from .dicts import DictVariable
from .iterators import ItemsIterator, IteratorVariable, advance
from .services import SEQUENCE_BUILDERS
from .sets import SetVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator


class SetIterator(ItemsIterator):
    """Over a set, which must not change its size meanwhile."""

    def __init__(self, tx: Translator, container: SetVariable) -> None:
        super().__init__(container.unpack(tx), type(iter(set())))
        self.container = container
        self.keys = list(container.table)
        self.made_in = tx.last_step()
        self.exhausted = False

    def step(self, tx: Translator) -> VariableTracker | None:
        if self.exhausted:
            return None
        if len(self.container.table) != len(self.items):
            tx.raise_observed(RuntimeError, "Set changed size during iteration")
        item = super().step(tx)
        self.exhausted = item is None
        return item

    def remaining(self) -> int:
        changed = len(self.container.table) != len(self.items)
        return 0 if self.exhausted or changed else super().remaining()

    def reconstruct(self, codegen: PyCodegen) -> None:
        if not self.exhausted and list(self.container.table) != self.keys:
            refuse_changed(self, self.made_in)
        if self.container.operations:
            refuse_stale(self, self.container, self.made_in)
        construct(codegen, _set_iterator, self.container, self.index + self.exhausted)


def refuse_changed(iterator: IteratorVariable, step: int) -> NoReturn:
    """A container made anew does not know that it changed while it was iterated over: let the
    graph end where the iterator was made.
    """
    why = "its container changed while it was iterated over"
    reason = Unsupported("iterator", repr(iterator), why)
    reason.made_at = step  # type: ignore[attr-defined]
    raise reason


def refuse_stale(iterator: IteratorVariable, container: VariableTracker, step: int) -> None:
    """The iterator is made before an existing container is changed, and would notice: let the graph
    end where it was made.
    """
    if container.mutation is Mutation.EXISTING:
        reason = Unsupported("iterator", repr(iterator), "its container was changed before")
        reason.made_at = step  # type: ignore[attr-defined]
        raise reason


def _set_iterator(container: Any, attempts: int) -> Any:
    iterator = iter(container)
    advance(iterator, attempts)
    return iterator


class DictIterator(IteratorVariable):
    """Over a dict's keys, values or items, forwards or backwards."""

    def __init__(
        self,
        tx: Translator,
        mapping: DictVariable,
        kind: str,
        backwards: bool,
    ) -> None:
        super().__init__(DICT_ITERATOR_TYPES[kind, backwards], mutation=Mutation.NEW)
        self.made_in = tx.last_step()
        self.mapping = mapping
        self.kind = kind
        self.backwards = backwards
        keys = list(mapping.entries)
        self.keys = keys[::-1] if backwards else keys
        self.index = 0
        self.exhausted = False
        # An iterator of the dict that models this one notices changes as the real one does.
        self.table = mapping.entries
        self.key_changes = mapping.key_changes
        # Of items: to look a key up would compare it again.
        items = self.table.items()
        self.live = reversed(items) if backwards else iter(items)

    def step(self, tx: Translator) -> VariableTracker | None:
        if self.exhausted:
            return None
        if self.mapping.entries is self.table and not self.is_ordered:
            with observed(tx):
                item = next(self.live, None)
            if item is None:
                self.exhausted = True
                return None
            self.index += 1
            return entry_part(tx, self.kind, item[1])
        return self.step_by_key(tx)

    def step_by_key(self, tx: Translator) -> VariableTracker | None:
        """The next entry of an OrderedDict, or of a dict whose entries were replaced."""
        if self.is_ordered and self.index >= len(self.keys):
            self.exhausted = True  # it looked for the next key when it gave the last one
            return None
        changed = self.is_ordered and self.mapping.key_changes != self.key_changes
        if changed or len(self.mapping.entries) != len(self.keys):
            kind = "OrderedDict mutated" if self.is_ordered else "dictionary changed size"
            tx.raise_observed(RuntimeError, f"{kind} during iteration")
        if self.index >= len(self.keys):
            self.exhausted = True
            return None
        key = self.keys[self.index]
        if key not in self.mapping.entries:
            tx.raise_observed(RuntimeError, "dictionary keys changed during iteration")
        self.index += 1
        return entry_part(tx, self.kind, self.mapping.entries[key])

    @property
    def is_ordered(self) -> bool:
        return issubclass(self.mapping.cls, collections.OrderedDict)

    def remaining(self) -> int:
        changed = len(self.mapping.entries) != len(self.keys)
        return 0 if self.exhausted or changed else len(self.keys) - self.index

    def reconstruct(self, codegen: PyCodegen) -> None:
        count = self.index + self.exhausted
        if not self.exhausted and self.mapping.key_changes != self.key_changes:
            refuse_changed(self, self.made_in)
        if self.mapping.key_changes:
            refuse_stale(self, self.mapping, self.made_in)
        construct(codegen, new_dict_iterator, self.mapping, self.kind, self.backwards, count)


DICT_ITERATOR_TYPES: dict[tuple[str, bool], type] = {
    (kind, backwards): type(
        reversed(getattr({}, kind)()) if backwards else iter(getattr({}, kind)())
    )
    for kind in ("keys", "values", "items")
    for backwards in (False, True)
}


def new_dict_iterator(
    mapping: Any,
    kind: str,
    backwards: bool,
    attempts: int,
) -> Any:
    """Run by generated code: an iterator over a view, advanced so often."""
    view = getattr(mapping, kind)()
    iterator = reversed(view) if backwards else iter(view)
    advance(iterator, attempts)
    return iterator


def entry_part(
    tx: Translator, kind: str, entry: tuple[VariableTracker, VariableTracker]
) -> VariableTracker:
    """What iterating a dict's keys, values or items gives for one entry."""
    if kind == "items":
        return tx.wrap_items(tuple, list(entry))
    return entry[kind == "values"]


SEQUENCE_BUILDERS["elements"] = SetIterator


def dict_iterator(
    tx: Translator,
    mapping: DictVariable,
    kind: str,
    backwards: bool,
) -> VariableTracker:
    """A new iterator; kind: "keys", "values" or "items"."""
    mapping.guard_keys(tx)
    return DictIterator(tx, mapping, kind, backwards)


SEQUENCE_BUILDERS["view"] = dict_iterator


class DequeIterator(IteratorVariable):
    """Over a deque, which must not change meanwhile."""

    def __init__(
        self,
        tx: Translator,
        container: DequeVariable,
        backwards: bool,
    ) -> None:
        empty: collections.deque[Any] = collections.deque()
        cls = type(reversed(empty)) if backwards else type(iter(empty))
        super().__init__(cls, mutation=Mutation.NEW)
        self.container = container
        self.backwards = backwards
        self.index = 0
        self.version = container.version
        self.made_in = tx.last_step()

    def step(self, tx: Translator) -> VariableTracker | None:
        if self.container.version != self.version:
            tx.raise_observed(RuntimeError, "deque mutated during iteration")
        items = self.container.items
        if self.index >= len(items):
            return None
        self.index += 1
        return items[-self.index if self.backwards else self.index - 1]

    def reconstruct(self, codegen: PyCodegen) -> None:
        if self.container.version != self.version:
            refuse_changed(self, self.made_in)
        if self.version:
            refuse_stale(self, self.container, self.made_in)
        construct(codegen, self.cls, self.container, self.index)


SEQUENCE_BUILDERS["deque"] = DequeIterator
