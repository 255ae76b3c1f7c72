"""Iterators over sequences, dicts, sets and deques, of callables, and generators.

`step` advances without a record; `next` records the advance first. An iterator that existed
before the frame is replayed by advancing the real one as often (attempts that found it exhausted
count too), or by setting its position. Iterators that only combine others (zip, map) need no
replay of their own.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from ..exc import Unsupported
from ..side_effects import Mutation
from .arity import refuse
from .base import ObservedException, VariableTracker, unsupported
from .builtin_object import NONE, BuiltinObject, construct, observed
from .constant import ConstantVariable
from .deques import DequeVariable
from .dicts import DictVariable
from .exceptions import ExceptionVariable
from .lists import SequenceVariable
from .services import SEQUENCE_BUILDERS
from .sets import SetVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator


class IteratorVariable(BuiltinObject):
    """Base of all iterators. Subclasses define `step`."""

    # How often the real iterator was advanced through this value (EXISTING ones).
    attempts = 0
    # Whether an existing iterator that goes over this one is replayed instead.
    is_owned = False

    def iter(self, tx: Translator) -> VariableTracker:
        return self

    def next(self, tx: Translator) -> VariableTracker | None:
        self.mutate(tx)
        self.attempts += 1
        return self.step(tx)

    def mutate(self, tx: Translator) -> None:
        if self.is_owned:
            unsupported("iterator", repr(self), "it is advanced by two existing iterators")
        tx.output.side_effects.mutate(self)

    def step(self, tx: Translator) -> VariableTracker | None:
        """Advance: the next value, or None at the end."""
        raise NotImplementedError

    def truth(self, tx: Translator) -> bool:
        return True

    def hash_key(self, tx: Translator) -> Any:
        return self.identity()

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        if name == "__next__" and not args and not kwargs:
            value = self.next(tx)
            if value is None:
                raise ObservedException(self.stop_iteration())
            return value
        if name == "__iter__" and not args and not kwargs:
            return self
        if name == "__length_hint__" and not args and not kwargs:
            left = self.remaining()
            if left is not None and hasattr(self.cls, name):
                return ConstantVariable(left)
        position = self.position(tx, name, args, kwargs)
        if position is not None:
            self.mutate(tx)
            self.move(position)
            return NONE
        return super().call_method(tx, name, args, kwargs)

    def position(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> int | None:
        """What `__setstate__` is given, where it is traced."""
        if name != "__setstate__" or not self.has_index or len(args) != 1 or kwargs:
            return None
        index = args[0].realize().specialized(tx)
        value = index.value if isinstance(index, ConstantVariable) else None
        if not isinstance(value, int) or value not in _INDICES:
            return None
        return _INDICES[-1] if value < 0 and self.cls is _OVER_BELOW else int(value)

    has_index = False

    def move(self, index: int) -> None:
        """`__setstate__`."""
        raise NotImplementedError

    def remaining(self) -> int | None:
        """How many items are left, where it tells."""
        return None

    def call_builtin(
        self,
        tx: Translator,
        raw: Any,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        """`iterator.__next__` as a bound method."""
        name = raw.__name__
        if (
            name in ("__next__", "__iter__")
            or name == "__length_hint__"
            and self.tells_length()
        ):
            if args or kwargs:
                call = None if name == "__length_hint__" else getattr(iter([]), name)
                refuse(tx, name, args, kwargs, call)
            return self.call_method(tx, name, args, kwargs)
        if self.position(tx, name, args, kwargs) is not None:
            return self.call_method(tx, name, args, kwargs)
        return super().call_builtin(tx, raw, args, kwargs)

    def tells_length(self) -> bool:
        """Whether `__length_hint__` is known to give a number, or to raise."""
        return self.remaining() is not None

    def returned_value(self, tx: Translator) -> VariableTracker:
        """What `yield from` gives at the end."""
        return NONE

    def stop_iteration(self) -> VariableTracker:
        """The exception at the end."""
        return ExceptionVariable(StopIteration, [])

    replay_rank = 0  # before the containers change that it goes over

    def push_contents(self, codegen: PyCodegen) -> None:
        """Nothing: the number of advances is known."""

    def apply_contents(self, codegen: PyCodegen) -> None:
        construct(
            codegen,
            advance,
            lambda: codegen.emit("LOAD_FAST", codegen.preload(self)),
            self.attempts,
        )
        codegen.emit("POP_TOP")


def advance(iterator: Iterator[Any], attempts: int) -> None:
    """Run by generated code: advance as often as the traced code did."""
    for _ in range(attempts):
        next(iterator, None)


_INDICES = range(-(1 << 31), 1 << 31)
# Iterators of lists are over, in newer Pythons, when they are set to a negative index.
_ONES: Any = iter([1])
_ONES.__setstate__(-1)
_OVER_BELOW = None if list(_ONES) else type(_ONES)

# -- over items that are at hand ----------------------------------------------------------------


class SequenceIterator(IteratorVariable):
    """Over a list or tuple, which may change meanwhile; `index` is that of the next item."""

    def __init__(
        self,
        sequence: SequenceVariable,
        *,
        backwards: bool = False,
        index: int | None = None,
    ) -> None:
        cls = SEQUENCE_ITERATOR_TYPES[issubclass(sequence.cls, list), backwards]
        super().__init__(cls, mutation=Mutation.NEW)
        self.sequence = sequence
        self.backwards = backwards
        first = len(sequence.items) - 1 if backwards else 0
        self.index = first if index is None else index
        self.exhausted = False

    def step(self, tx: Translator) -> VariableTracker | None:
        items = self.sequence.items
        if self.exhausted or not 0 <= self.index < len(items):
            self.exhausted = True
            return None
        item = items[self.index]
        self.index += -1 if self.backwards else 1
        return item

    has_index = True

    def move(self, index: int) -> None:
        if not self.exhausted:
            length = len(self.sequence.items)
            lowest = -1 if self.backwards else 0
            highest = length - 1 if self.backwards else length
            is_list = issubclass(self.sequence.cls, list) and not self.backwards
            self.index = max(lowest, index if is_list else min(index, highest))

    def remaining(self) -> int:
        if self.exhausted:
            return 0
        left = self.index + 1 if self.backwards else len(self.sequence.items) - self.index
        return max(left, 0)

    def reconstruct(self, codegen: PyCodegen) -> None:
        index = None if self.exhausted else self.index
        construct(codegen, _sequence_iterator, self.sequence, self.backwards, index)

    @property
    def replay_rank(self) -> int:  # type: ignore[override]
        """The position is set when the sequence is as it will be; exhausting it comes first."""
        return 0 if self.exhausted else 2

    def apply_contents(self, codegen: PyCodegen) -> None:
        position = None if self.exhausted else self.index
        real = codegen.preload(self)
        construct(codegen, _set_position, lambda: codegen.emit("LOAD_FAST", real), position)
        codegen.emit("POP_TOP")


SEQUENCE_ITERATOR_TYPES: dict[tuple[bool, bool], type] = {
    (True, False): type(iter([])),
    (False, False): type(iter(())),
    (True, True): type(reversed([])),
    (False, True): reversed,
}


def _sequence_iterator(sequence: Any, backwards: bool, index: int | None) -> Any:
    iterator = reversed(sequence) if backwards else iter(sequence)
    _set_position(iterator, index)
    return iterator


def _set_position(iterator: Any, index: int | None) -> None:
    if index is None:
        collections.deque(iterator, maxlen=0)
        return
    length = len(sequence := iterator.__reduce__()[1][0])
    is_over = type(iterator) is _OVER_BELOW and index == _INDICES[-1]
    if is_over or index < length or not isinstance(sequence, list):
        iterator.__setstate__(-1 if is_over else index)
        return
    # The list gets its items later, and positions end where it does.
    list.extend(sequence, [None] * (index + 1 - length))
    iterator.__setstate__(index)
    list.__delitem__(sequence, slice(length, None))


_ANY_ITERATOR = type(iter(()))


class ItemsIterator(IteratorVariable):
    """Over a fixed list of values: of constants, and of sets."""

    def __init__(self, items: list[VariableTracker], cls: type = _ANY_ITERATOR) -> None:
        super().__init__(cls, mutation=Mutation.NEW)
        self.items = items
        self.index = 0

    def step(self, tx: Translator) -> VariableTracker | None:
        if self.index >= len(self.items):
            return None
        self.index += 1
        return self.items[self.index - 1]

    def remaining(self) -> int:
        return len(self.items) - self.index

    def reconstruct(self, codegen: PyCodegen) -> None:
        def push() -> None:
            rest = self.items[self.index :]
            codegen.sequence(rest)
            codegen.emit("BUILD_TUPLE", len(rest))

        construct(codegen, iter, push)


class ConstantIterator(IteratorVariable):
    """Over a constant sequence: str, bytes, range, tuple of constants."""

    def __init__(self, sequence: Any, cls: type | None = None) -> None:
        super().__init__(cls or type(iter(sequence)), mutation=Mutation.NEW)
        self.sequence = sequence
        self.count = _length(sequence)
        self.index = 0
        self.exhausted = False

    def step(self, tx: Translator) -> VariableTracker | None:
        if self.index >= self.count:
            self.exhausted = type(self.sequence) is not range  # which can be set back
            return None
        self.index += 1
        return tx.wrap_constant(self.sequence[self.index - 1])

    @property
    def has_index(self) -> bool:  # type: ignore[override]
        return self.mutation is Mutation.NEW

    def move(self, index: int) -> None:
        if not self.exhausted:
            iterator = _constant_iterator(self.sequence, self.index)
            iterator.__setstate__(index)
            self.index = self.count - iterator.__length_hint__()

    def remaining(self) -> int:
        return self.count - self.index

    def reconstruct(self, codegen: PyCodegen) -> None:
        if self.exhausted:
            construct(codegen, iter, lambda: codegen.load_const(self.sequence[:0]))
            return
        construct(codegen, _constant_iterator, ConstantVariable(self.sequence), self.index)


def _constant_iterator(sequence: Any, index: int) -> Any:
    iterator: Any = iter(sequence)
    if index:
        iterator.__setstate__(index)
    return iterator


def _length(sequence: Any) -> int:
    """`len`, which refuses ranges longer than memory could be."""
    if type(sequence) is not range:
        return len(sequence)
    return max(0, -((sequence.start - sequence.stop) // sequence.step))


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


SEQUENCE_BUILDERS["constant"] = lambda tx, sequence: ConstantIterator(sequence)
SEQUENCE_BUILDERS["live"] = lambda tx, sequence, backwards: SequenceIterator(
    sequence, backwards=backwards
)
SEQUENCE_BUILDERS["elements"] = SetIterator
SEQUENCE_BUILDERS[iter] = lambda tx, type_, items: ItemsIterator(items)


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

# -- over what functions give -----


class CallableIterator(IteratorVariable):
    """`iter(function, sentinel)`."""

    def __init__(self, function: VariableTracker, sentinel: VariableTracker) -> None:
        super().__init__(type(iter(int, 1)), mutation=Mutation.NEW)
        self.function = function
        self.sentinel = sentinel
        self.exhausted = False

    def step(self, tx: Translator) -> VariableTracker | None:
        if self.exhausted:
            return None
        try:
            value = tx.call_function(self.function, [], {})
        except ObservedException as error:
            if not issubclass(error.value.python_type(), StopIteration):
                raise
            self.exhausted = True
        if self.exhausted:  # the function may have done it
            return None
        found = tx.wrap_items(list, [self.sentinel]).contains(tx, value.realize())
        self.exhausted = found.truth(tx)
        return None if self.exhausted else value

    def reconstruct(self, codegen: PyCodegen) -> None:
        if self.exhausted:
            construct(codegen, iter, ConstantVariable(()))
        else:
            construct(codegen, iter, self.function, self.sentinel)
