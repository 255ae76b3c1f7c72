"""Iterators: over sequences, dicts and sets, and the lazy ones (enumerate, zip, map, filter, generators).

`step` advances without a record; `next` records the advance first. An iterator that existed
before the frame is replayed by advancing the real one as often (attempts that found it exhausted
count too), or by setting its position. Iterators that only combine others (zip, map) need no
replay of their own.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..side_effects import Mutation
from .base import ObservedException, VariableTracker, unsupported
from .builtin_object import NONE, NOT_IMPLEMENTED, BuiltinObject, builtin_method, construct
from .constant import ConstantVariable
from .deques import DequeVariable
from .dicts import DictVariable
from .exceptions import ExceptionVariable
from .lists import SequenceVariable
from .services import SEQUENCE_BUILDERS
from .sets import SetVariable, collect, set_like

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import InliningTranslator, Translator


class IteratorVariable(BuiltinObject):
    """Base of all iterators. Subclasses define `step`."""

    # How often the real iterator was advanced through this value (EXISTING ones).
    attempts = 0

    def iter(self, tx: Translator) -> VariableTracker:
        return self

    def next(self, tx: Translator) -> VariableTracker | None:
        tx.output.side_effects.mutate(self)
        self.attempts += 1
        return self.step(tx)

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
        return super().call_method(tx, name, args, kwargs)

    def stop_iteration(self) -> VariableTracker:
        """The exception at the end."""
        return ExceptionVariable(StopIteration, [])

    replay_rank = 0

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


# -- over items that are at hand ----------------------------------------------------------------


class SequenceIterator(IteratorVariable):
    """Over a list or tuple, which may change meanwhile; `index` counts from the front or the back."""

    def __init__(
        self, sequence: SequenceVariable, *, backwards: bool = False, index: int | None = None
    ) -> None:
        cls = _ITERATOR_TYPES[issubclass(sequence.cls, list), backwards]
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

    def remaining(self) -> int:
        if self.exhausted:
            return 0
        left = self.index + 1 if self.backwards else len(self.sequence.items) - self.index
        return max(left, 0)

    def reconstruct(self, codegen: PyCodegen) -> None:
        index = None if self.exhausted else self.index
        construct(codegen, _sequence_iterator, self.sequence, self.backwards, index)

    def apply_contents(self, codegen: PyCodegen) -> None:
        if self.exhausted:
            super().apply_contents(codegen)
            return
        construct(
            codegen,
            _set_position,
            lambda: codegen.emit("LOAD_FAST", codegen.preload(self)),
            self.index,
        )
        codegen.emit("POP_TOP")


_ITERATOR_TYPES: dict[tuple[bool, bool], type] = {
    (True, False): type(iter([])),
    (False, False): type(iter(())),
    (True, True): type(reversed([])),
    (False, True): reversed,
}


def _sequence_iterator(sequence: Any, backwards: bool, index: int | None) -> Any:
    iterator = reversed(sequence) if backwards else iter(sequence)
    if index is None:
        collections.deque(iterator, maxlen=0)
    else:
        iterator.__setstate__(index)  # type: ignore[union-attr]
    return iterator


def _set_position(iterator: Any, index: int) -> None:
    iterator.__setstate__(index)


class ItemsIterator(IteratorVariable):
    """Over a fixed list of values: of constants, and of sets."""

    def __init__(self, items: list[VariableTracker], cls: type = type(iter(()))) -> None:
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


class SetIterator(ItemsIterator):
    """Over a set, which must not change its size meanwhile."""

    def __init__(self, tx: Translator, container: SetVariable) -> None:
        super().__init__(container.unpack(tx), type(iter(set())))
        self.container = container

    def step(self, tx: Translator) -> VariableTracker | None:
        if self.index < len(self.items) and len(self.container.table) != len(self.items):
            tx.raise_observed(RuntimeError, "Set changed size during iteration")
        return super().step(tx)


class DictIterator(IteratorVariable):
    """Over a dict's keys, values or items, forwards or backwards."""

    def __init__(self, mapping: DictVariable, kind: str, backwards: bool) -> None:
        super().__init__(_DICT_ITERATOR_TYPES[kind, backwards], mutation=Mutation.NEW)
        self.mapping = mapping
        self.kind = kind
        self.backwards = backwards
        keys = list(mapping.entries)
        self.keys = keys[::-1] if backwards else keys
        self.index = 0
        self.exhausted = False

    def step(self, tx: Translator) -> VariableTracker | None:
        if self.exhausted:
            return None
        if len(self.mapping.entries) != len(self.keys):
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
        return 0 if self.exhausted else len(self.keys) - self.index

    def reconstruct(self, codegen: PyCodegen) -> None:
        count = self.index + self.exhausted
        construct(codegen, _dict_iterator, self.mapping, self.kind, self.backwards, count)


_DICT_ITERATOR_TYPES: dict[tuple[str, bool], type] = {
    (kind, backwards): type(
        reversed(getattr({}, kind)()) if backwards else iter(getattr({}, kind)())
    )
    for kind in ("keys", "values", "items")
    for backwards in (False, True)
}


def _dict_iterator(mapping: Any, kind: str, backwards: bool, attempts: int) -> Any:
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


SEQUENCE_BUILDERS["live"] = lambda tx, sequence, backwards: SequenceIterator(
    sequence, backwards=backwards
)
SEQUENCE_BUILDERS["elements"] = SetIterator
SEQUENCE_BUILDERS[iter] = lambda tx, type_, items: ItemsIterator(items)


def _dict_iterator_of(
    tx: Translator, mapping: DictVariable, kind: str, backwards: bool
) -> VariableTracker:
    mapping.guard_keys(tx)
    return DictIterator(mapping, kind, backwards)


SEQUENCE_BUILDERS["view"] = _dict_iterator_of


class DequeIterator(IteratorVariable):
    """Over a deque, which must not change meanwhile."""

    def __init__(self, tx: Translator, container: DequeVariable, backwards: bool) -> None:
        empty: collections.deque[Any] = collections.deque()
        cls = type(reversed(empty)) if backwards else type(iter(empty))
        super().__init__(cls, mutation=Mutation.NEW)
        self.container = container
        self.items = list(container.items)[:: -1 if backwards else 1]
        self.index = 0
        self.version = container.version

    def step(self, tx: Translator) -> VariableTracker | None:
        if self.container.version != self.version:
            tx.raise_observed(RuntimeError, "deque mutated during iteration")
        if self.index >= len(self.items):
            return None
        self.index += 1
        return self.items[self.index - 1]

    def reconstruct(self, codegen: PyCodegen) -> None:
        construct(codegen, self.cls, self.container, self.index)


SEQUENCE_BUILDERS["deque"] = DequeIterator

# -- views of dicts ------------------------------------------------------------------------------


class DictViewVariable(BuiltinObject):
    """`mapping.keys()`, `.values()` or `.items()`."""

    def __init__(self, mapping: DictVariable, kind: str) -> None:
        ordered = issubclass(mapping.cls, collections.OrderedDict)
        empty = collections.OrderedDict() if ordered else {}
        super().__init__(type(getattr(empty, kind)()), mutation=Mutation.NEW)
        self.mapping = mapping
        self.kind = kind

    def unpack(self, tx: Translator) -> list[VariableTracker]:
        self.mapping.guard_keys(tx)
        return [entry_part(tx, self.kind, entry) for entry in self.mapping.entries.values()]

    def as_set(self, tx: Translator) -> SetVariable:
        """The view's items as a new set."""
        table, known = collect(tx, self.unpack(tx))
        return SetVariable(table, known, set)

    def reconstruct(self, codegen: PyCodegen) -> None:
        construct(codegen, _dict_view, self.mapping, self.kind)


def _dict_view(mapping: Any, kind: str) -> Any:
    return getattr(mapping, kind)()


def _register_views() -> None:
    for kind in ("keys", "values", "items"):
        plain, ordered = type(getattr({}, kind)()), type(getattr(collections.OrderedDict(), kind)())
        builtin_method(dict, kind)(_make_view(kind))
        follows_base_view(plain, ordered)


def _make_view(kind: str) -> Callable[..., VariableTracker]:
    def row(tx: Translator, self: DictVariable, /) -> VariableTracker:
        return DictViewVariable(self, kind)

    return row


def follows_base_view(plain: type, ordered: type) -> None:
    """The rows of one view type and of OrderedDict's."""
    types_ = (plain, ordered)

    def view_len(tx: Translator, self: DictViewVariable, /) -> VariableTracker:
        return self.mapping.length(tx)

    def view_iter(tx: Translator, self: DictViewVariable, /) -> VariableTracker:
        return _dict_iterator_of(tx, self.mapping, self.kind, False)

    def view_reversed(tx: Translator, self: DictViewVariable, /) -> VariableTracker:
        return _dict_iterator_of(tx, self.mapping, self.kind, True)

    builtin_method(types_, "__len__")(view_len)
    builtin_method(types_, "__iter__")(view_iter)
    builtin_method(types_, "__reversed__")(view_reversed)


_register_views()
_SET_VIEWS = (type({}.keys()), type({}.items()))


@builtin_method(type({}.keys()), "__contains__")
def _keys_contains(
    tx: Translator, self: DictViewVariable, key: VariableTracker, /
) -> VariableTracker:
    return self.mapping.contains(tx, key)


@builtin_method(type({}.items()), "__contains__")
def _items_contains(
    tx: Translator, self: DictViewVariable, item: VariableTracker, /
) -> VariableTracker:
    if not issubclass(item.python_type(), tuple):
        return ConstantVariable(False)
    parts = item.unpack(tx)
    if len(parts) != 2 or not self.mapping.contains(tx, parts[0].realize()).truth(tx):
        return ConstantVariable(False)
    value = self.mapping.getitem(tx, parts[0].realize())
    return tx.wrap_items(list, [value]).contains(tx, parts[1].realize())


def _register_view_algebra() -> None:
    names = [f"__{r}{name}__" for name in ("or", "and", "sub", "xor") for r in ("", "r")]
    for name in [*names, "__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "isdisjoint"]:
        builtin_method(_SET_VIEWS, name)(_as_sets(name))


def _as_sets(name: str) -> Callable[..., VariableTracker]:
    is_comparison = name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__")

    def row(tx: Translator, self: DictViewVariable, other: VariableTracker, /) -> VariableTracker:
        if isinstance(other, DictViewVariable) and other.kind != "values":
            other = other.as_set(tx)
        if set_like(other) is None:
            if is_comparison:
                return NOT_IMPLEMENTED
            table, known = collect(tx, other.unpack(tx))
            other = SetVariable(table, known, set)
        return self.as_set(tx).call_method(tx, name, [other], {})

    return row


_register_view_algebra()


# -- iterators over iterators -------------------------------------------------------------------


def step_of(tx: Translator, iterator: VariableTracker, direct: bool) -> VariableTracker | None:
    """Advance an inner iterator; `direct`: this advance is replayed on it, not on its owner."""
    iterator = iterator.realize()
    if direct or not isinstance(iterator, IteratorVariable):
        return iterator.next(tx)
    tx.output.side_effects.version += 1
    return iterator.step(tx)


class EnumerateVariable(IteratorVariable):
    """`enumerate(iterator, count)`. An existing one is replayed, and with it what it enumerates."""

    def __init__(self, iterator: VariableTracker, count: int, **common: Any) -> None:
        super().__init__(enumerate, **{"mutation": Mutation.NEW, **common})
        self.iterator = iterator
        self.count = count

    def step(self, tx: Translator) -> VariableTracker | None:
        item = step_of(tx, self.iterator, self.mutation is Mutation.NEW)
        if item is None:
            return None
        self.count += 1
        return tx.wrap_items(tuple, [ConstantVariable(self.count - 1), item])

    def reconstruct(self, codegen: PyCodegen) -> None:
        construct(codegen, enumerate, self.iterator, self.count)


class ZipVariable(IteratorVariable):
    """`zip(*iterators, strict=strict)`. All state is in the iterators."""

    def __init__(self, iterators: list[VariableTracker], strict: bool, **common: Any) -> None:
        super().__init__(zip, **{"mutation": Mutation.NEW, **common})
        self.iterators = iterators
        self.strict = strict

    def next(self, tx: Translator) -> VariableTracker | None:
        return self._advance(tx, True)

    def step(self, tx: Translator) -> VariableTracker | None:
        return self._advance(tx, False)

    def _advance(self, tx: Translator, direct: bool) -> VariableTracker | None:
        items: list[VariableTracker] = []
        for iterator in self.iterators:
            item = step_of(tx, iterator, direct)
            if item is None:
                if self.strict:
                    self._check_strict(tx, len(items), direct)
                return None
            items.append(item)
        return tx.wrap_items(tuple, items) if items else None

    def _check_strict(self, tx: Translator, position: int, direct: bool) -> None:
        """`zip_next` behind the label `check`."""
        if position:
            _zip_mismatch(tx, position, "shorter")
        for index, iterator in enumerate(self.iterators[1:], 1):
            if step_of(tx, iterator, direct) is not None:
                _zip_mismatch(tx, index, "longer")

    def reconstruct(self, codegen: PyCodegen) -> None:
        construct(codegen, _strict_zip if self.strict else zip, *self.iterators)


def _zip_mismatch(tx: Translator, position: int, which: str) -> None:
    others = "argument 1" if position == 1 else f"arguments 1-{position}"
    tx.raise_observed(ValueError, f"zip() argument {position + 1} is {which} than {others}")


def _strict_zip(*iterators: Any) -> Any:
    return zip(*iterators, strict=True)


class MapVariable(IteratorVariable):
    """`map(function, *iterators)`."""

    def __init__(
        self, function: VariableTracker, iterators: list[VariableTracker], **common: Any
    ) -> None:
        super().__init__(map, **{"mutation": Mutation.NEW, **common})
        self.function = function
        self.iterators = iterators

    def next(self, tx: Translator) -> VariableTracker | None:
        items: list[VariableTracker] = []
        for iterator in self.iterators:
            item = step_of(tx, iterator, True)
            if item is None:
                return None
            items.append(item)
        return tx.call_function(self.function, items, {})

    def step(self, tx: Translator) -> VariableTracker | None:
        unsupported("iterator", "map", "an existing iterator over a map is not traced")

    def reconstruct(self, codegen: PyCodegen) -> None:
        construct(codegen, map, self.function, *self.iterators)


class FilterVariable(IteratorVariable):
    """`filter(function, iterator)`; `keep` is the truth that keeps an item (itertools.filterfalse: False)."""

    def __init__(
        self,
        function: VariableTracker,
        iterator: VariableTracker,
        *,
        keep: bool = True,
        **common: Any,
    ) -> None:
        cls = filter if keep else itertools.filterfalse
        super().__init__(cls, **{"mutation": Mutation.NEW, **common})
        self.function = function
        self.iterator = iterator
        self.keep = keep

    def next(self, tx: Translator) -> VariableTracker | None:
        function = self.function.realize()
        is_none = isinstance(function, ConstantVariable) and function.value is None
        while (item := step_of(tx, self.iterator, True)) is not None:
            item = item.realize()
            verdict = item if is_none else tx.call_function(function, [item], {}).realize()
            if verdict.truth(tx) is self.keep:
                return item
        return None

    def step(self, tx: Translator) -> VariableTracker | None:
        unsupported("iterator", "filter", "an existing iterator over a filter is not traced")

    def reconstruct(self, codegen: PyCodegen) -> None:
        construct(codegen, self.cls, self.function, self.iterator)


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
        value = tx.call_function(self.function, [], {})
        found = tx.wrap_items(list, [self.sentinel]).contains(tx, value.realize())
        self.exhausted = found.truth(tx)
        return None if self.exhausted else value

    def reconstruct(self, codegen: PyCodegen) -> None:
        if self.exhausted:
            construct(codegen, iter, ConstantVariable(()))
        else:
            construct(codegen, iter, self.function, self.sentinel)


# -- generators ---------------------------------------------------------------------------------


class GeneratorVariable(IteratorVariable):
    """A generator made by the traced code: `frame` interprets it from yield to yield."""

    def __init__(self, frame: InliningTranslator) -> None:
        super().__init__(type(_ for _ in ()), mutation=Mutation.NEW)
        self.frame = frame
        self.started = False
        self.finished = False
        self.result: VariableTracker | None = None

    def step(self, tx: Translator) -> VariableTracker | None:
        if self.finished:
            return None
        if self.started:
            # What the suspended yield expression gives: nothing was sent.
            self.frame.push(NONE)
        self.started = True
        try:
            value = self.frame.resume()
        except ObservedException:
            self.finished = True
            raise
        if value is None:
            self.finished = True
            self.result = self.frame.result
        return value

    def stop_iteration(self) -> VariableTracker:
        result, self.result = self.result, None
        is_none = result is None or (isinstance(result, ConstantVariable) and result.value is None)
        return ExceptionVariable(StopIteration, [] if is_none else [result])  # type: ignore[list-item]

    def reconstruct(self, codegen: PyCodegen) -> None:
        unsupported(
            "generator leaves the graph",
            repr(self),
            "a generator that was made in the graph is still needed after it",
            ["turn it into a list before the graph breaks"],
        )
