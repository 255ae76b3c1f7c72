"""Iterators over sequences, dicts, sets and deques, of callables, and generators.

`step` advances without a record; `next` records the advance first. An iterator that existed
before the frame is replayed by advancing the real one as often (attempts that found it exhausted
count too), or by setting its position. Iterators that only combine others (zip, map) need no
replay of their own.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..side_effects import Mutation
from .arity import refuse
from .base import ObservedException, VariableTracker, unsupported
from .builtin_object import NONE, BuiltinObject, construct
from .constant import ConstantVariable
from .exceptions import ExceptionVariable
from .lists import SequenceVariable
from .services import SEQUENCE_BUILDERS

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
        return int(value)

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
# In newer Pythons an iterator of a list may be set to a negative index, gives nothing there, and
# lives again when it is set to another: a reversed one ends so.
_ONES: Any = iter([1])
_ONES.__setstate__(-1)
_LISTS_STAY_BELOW = not list(_ONES)

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
            self.exhausted |= self.index >= 0 or not self.stays_below
            return None
        item = items[self.index]
        self.index += -1 if self.backwards else 1
        return item

    has_index = True

    @property
    def stays_below(self) -> bool:
        """Whether it is not over where its index is negative."""
        return _LISTS_STAY_BELOW and issubclass(self.sequence.cls, list)

    def move(self, index: int) -> None:
        if not self.exhausted:
            lowest = -1 if self.backwards or self.stays_below else 0
            highest = len(self.sequence.items) - self.backwards
            self.index = max(lowest, min(index, highest))

    def remaining(self) -> int:
        if self.exhausted or self.index < 0:
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
    iterator: Any = reversed(sequence) if backwards else iter(sequence)
    _set_position(iterator, index)
    return iterator


def _set_position(iterator: Any, index: int | None) -> None:
    sequence = iterator.__reduce__()[1][0]
    length = len(sequence)
    is_reversed = isinstance(iterator, SEQUENCE_ITERATOR_TYPES[True, True])
    if index is None and is_reversed:
        # It is over for good when its list is found to end before its position.
        list.append(sequence, None)
        iterator.__setstate__(length)
        list.pop(sequence)
    if index is None:
        collections.deque(iterator, maxlen=0)
        return
    if index < length or not isinstance(sequence, list):
        iterator.__setstate__(index)
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


SEQUENCE_BUILDERS["constant"] = lambda tx, sequence: ConstantIterator(sequence)
SEQUENCE_BUILDERS["live"] = lambda tx, sequence, backwards: SequenceIterator(
    sequence, backwards=backwards
)
SEQUENCE_BUILDERS[iter] = lambda tx, type_, items: ItemsIterator(items)


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
