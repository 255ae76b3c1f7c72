"""Iterators that existed before the frame: the position is guarded, the advance is replayed."""

from __future__ import annotations

import collections
import copy
import functools
import gc
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..side_effects import Mutation
from ..source import CallSource, iterator_index_source, iterator_sequence_source
from ..source_calls import iterator_index, iterator_sequence
from .base import VariableTracker, unsupported
from .container_iterators import (
    DICT_ITERATOR_TYPES,
    DequeIterator,
    DictIterator,
    SetIterator,
)
from .deques import DequeVariable
from .dicts import DictVariable
from .iterators import (
    SEQUENCE_ITERATOR_TYPES,
    ConstantIterator,
    IteratorVariable,
    SequenceIterator,
    advance,
)
from .itertools_ import CountIterator
from .lazy_iterators import EnumerateVariable, FilterVariable, MapVariable, ZipVariable
from .lists import SequenceVariable
from .registry import wraps
from .sets import SetVariable, set_like

if TYPE_CHECKING:
    from ..source import Source
    from ..symbolic_convert import Translator

_KINDS = {cls: key for key, cls in DICT_ITERATOR_TYPES.items()}


def _existing(iterator: IteratorVariable, source: Source) -> VariableTracker:
    iterator.source = source
    iterator.mutation = Mutation.EXISTING
    return iterator


def _guard_position(
    tx: Translator,
    value: Any,
    source: Source,
) -> int:
    tx.guard(source, "TYPE_IS", type(value))
    index = iterator_index(value)
    tx.guard(iterator_index_source(source), "CONST_EQ", index)
    return index


@wraps(*SEQUENCE_ITERATOR_TYPES.values())
def _wrap_sequence_iterator(
    tx: Translator,
    value: Any,
    source: Source,
) -> VariableTracker:
    index = _guard_position(tx, value, source)
    exhausted = ConstantIterator((), type(value))
    if index < 0:
        return _existing(exhausted, source)
    sequence = iterator_sequence(value)
    if not isinstance(sequence, (list, tuple)):
        unsupported("iterator", source.name, f"an iterator over a {type(sequence).__name__}")
    variable = tx.wrap(sequence, iterator_sequence_source(source))
    backwards = type(value) in (SEQUENCE_ITERATOR_TYPES[True, True], reversed)
    if not isinstance(variable, SequenceVariable):
        items = sequence[index::-1] if backwards else sequence[index:]
        return _existing(ConstantIterator(items, type(value)), source)
    return _existing(SequenceIterator(variable, backwards=backwards, index=index), source)


@wraps(
    type(iter("")),
    type(iter("é")),
    type(iter(b"")),
    type(iter(range(0))),
)
def _wrap_constant_iterator(
    tx: Translator,
    value: Any,
    source: Source,
) -> VariableTracker:
    index = _guard_position(tx, value, source)
    rest: Any = ()
    if index >= 0:
        sequence = iterator_sequence(value)
        tx.guard(iterator_sequence_source(source), "CONST_EQ", sequence)
        rest = sequence[index:]
    elif type(value) is type(iter(range(0))):
        rest = list(copy.copy(value))
    return _existing(ConstantIterator(rest, type(value)), source)


def _is_at_end(iterator: Any) -> bool:
    """Whether an iterator of a dict or a set gave all items, and its next step is to find that out.

    One whose container changed its size has no length, either, but its next step raises, and so
    does pickling it.
    """
    if iterator.__length_hint__() != 0:
        return False
    try:
        return not iterator.__reduce__()[1][0]
    except RuntimeError:
        return False


def _guard_end(
    tx: Translator,
    value: Any,
    source: Source,
) -> bool:
    at_end = _is_at_end(value)
    tx.guard(CallSource(source, _is_at_end, "<whether {base} gave all>"), "CONST_EQ", at_end)
    return at_end


@wraps(*DICT_ITERATOR_TYPES.values())
def _wrap_dict_iterator(
    tx: Translator,
    value: Any,
    source: Source,
) -> VariableTracker:
    index = _guard_position(tx, value, source)
    if index < 0:
        return _existing(ConstantIterator((), type(value)), source)
    if value.__length_hint__() == 0 and not _guard_end(tx, value, source):
        unsupported("iterator", source.name, "the dict changed its size while it was iterated")
    container = iterator_sequence(value)
    mapping = tx.wrap(container, iterator_sequence_source(source))
    if not isinstance(mapping, DictVariable):
        unsupported("iterator", source.name, "an iterator over this kind of dict is not traced")
    if len(mapping.entries) != len(mapping.original):
        unsupported("iterator", source.name, "the dict was changed before it was iterated")
    mapping.guard_keys(tx)
    iterator = DictIterator(tx, mapping, *_KINDS[type(value)])
    iterator.index = index
    advance(iterator.live, index)
    return _existing(iterator, source)


def _set_position(iterator: Any) -> int:
    """How many elements a set iterator handed out; -1 when it is exhausted."""
    container = iterator_sequence(iterator)
    return -1 if container is None else len(container) - iterator.__length_hint__()


@wraps(type(iter(set())))
def _wrap_set_iterator(
    tx: Translator,
    value: Any,
    source: Source,
) -> VariableTracker:
    tx.guard(source, "TYPE_IS", type(value))
    index = _set_position(value)
    tx.guard(CallSource(source, _set_position, "<position of {base}>"), "CONST_EQ", index)
    if index < 0:
        return _existing(ConstantIterator((), type(value)), source)
    if value.__length_hint__() == 0 and not _guard_end(tx, value, source):
        unsupported("iterator", source.name, "the set changed its size while it was iterated")
    wrapped = tx.wrap(iterator_sequence(value), iterator_sequence_source(source))
    container = set_like(wrapped)
    if not isinstance(container, SetVariable) or len(container.table) != len(
        iterator_sequence(value)
    ):
        unsupported("iterator", source.name, "the set was changed before it was iterated")
    iterator = SetIterator(tx, container)
    iterator.index = index
    return _existing(iterator, source)


@wraps(type(iter(collections.deque())), type(reversed(collections.deque())))
def _wrap_deque_iterator(
    tx: Translator,
    value: Any,
    source: Source,
) -> VariableTracker:
    container, position = _parts(tx, value, source)
    backwards = type(value) is type(reversed(collections.deque()))
    if not isinstance(container, DequeVariable) or container.version:
        unsupported("iterator", source.name, "the deque was changed before it was iterated")
    index = position.specialized(tx).as_python_constant()
    if value.__length_hint__() != len(container.items) - index:
        unsupported("iterator", source.name, "a changed deque")
    iterator = DequeIterator(tx, container, backwards)
    iterator.index = index
    return _existing(iterator, source)


# -- iterators over iterators ----------------------------------------------------------------------


@functools.cache
def _part(index: int) -> Callable[[Any], Any]:
    return lambda iterator: iterator.__reduce__()[1][index]


def _shape(iterator: Any) -> tuple[int, bool]:
    """How many parts an iterator is made of, and whether it has a flag (zip's strict)."""
    reduced = iterator.__reduce__()
    return len(reduced[1]), len(reduced) > 2 and bool(reduced[2])


def _parts(
    tx: Translator,
    value: Any,
    source: Source,
) -> list[VariableTracker]:
    """What an enumerate, zip, map or filter object was made of."""
    tx.guard(source, "TYPE_IS", type(value))
    tx.guard(CallSource(source, _shape, "<parts of {base}>"), "CONST_EQ", _shape(value))
    parts = value.__reduce__()[1]
    return [
        tx.wrap(part, CallSource(source, _part(index), f"<part {index} of {{base}}>"))
        for index, part in enumerate(parts)
    ]


@wraps(enumerate)
def _wrap_enumerate(
    tx: Translator,
    value: Any,
    source: Source,
) -> VariableTracker:
    iterator, count = _parts(tx, value, source)
    own(iterator)
    start = count.specialized(tx).as_python_constant()
    return _existing(EnumerateVariable(iterator, start), source)


def own(iterator: VariableTracker) -> None:
    """From now on the iterator is advanced by its owner alone, which is what gets replayed."""
    plain = isinstance(iterator, (SequenceIterator, ConstantIterator, DictIterator))
    if isinstance(iterator, ZipVariable) and not iterator.strict:
        for inner in iterator.iterators:
            own(inner)
    elif not plain or iterator.attempts or iterator.is_owned:  # type: ignore[attr-defined]
        unsupported("iterator", repr(iterator), "an existing enumerate over it is not traced")
    else:
        iterator.is_owned = True  # type: ignore[attr-defined]


def _count_parts(counter: Any) -> tuple[Any, ...]:
    """The next value and the step of an itertools.count, where both are ints; else ()."""
    texts = repr(counter)[len("count(") : -1].split(", ")
    held = [part for part in gc.get_referents(counter) if part is not itertools.count]
    if not all(type(part) is int for part in held):
        return ()
    return tuple(map(int, texts)) if len(texts) > 1 else (int(texts[0]), 1)


def _next_count(counter: Any) -> Any:
    return _count_parts(counter)[0]


def _count_step(counter: Any) -> Any:
    parts = _count_parts(counter)
    return parts[1] if parts else None


@wraps(itertools.count)
def _wrap_count(
    tx: Translator,
    value: Any,
    source: Source,
) -> VariableTracker:
    """Its position is a number that may become symbolic."""
    tx.guard(source, "TYPE_IS", type(value))
    parts = _count_parts(value)
    if not parts:
        unsupported("iterator", source.name, "a count that does not count in ints")
    tx.guard(CallSource(source, _count_step, "<step of {base}>"), "CONST_EQ", parts[1])
    position = tx.wrap(parts[0], CallSource(source, _next_count, "<position of {base}>"))
    return _existing(CountIterator(position, tx.wrap_constant(parts[1])), source)


@wraps(zip)
def _wrap_zip(
    tx: Translator,
    value: Any,
    source: Source,
) -> VariableTracker:
    return _existing(ZipVariable(_parts(tx, value, source), _shape(value)[1]), source)


@wraps(map)
def _wrap_map(
    tx: Translator,
    value: Any,
    source: Source,
) -> VariableTracker:
    function, *iterators = _parts(tx, value, source)
    return _existing(MapVariable(function, iterators), source)


@wraps(filter)
def _wrap_filter(
    tx: Translator,
    value: Any,
    source: Source,
) -> VariableTracker:
    function, iterator = _parts(tx, value, source)
    return _existing(FilterVariable(function, iterator), source)
