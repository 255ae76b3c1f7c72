"""Iterators over iterators: enumerate, zip, map, filter."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ..exc import Unsupported
from ..side_effects import Mutation
from .base import ObservedException, VariableTracker, unsupported
from .builtin_object import construct
from .constant import ConstantVariable
from .iterators import IteratorVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

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

    def _check_strict(
        self,
        tx: Translator,
        position: int,
        direct: bool,
    ) -> None:
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


class ReversedVariable(IteratorVariable):
    """`reversed(sequence)` of an object whose class says its length and its items."""

    hints_length = True

    def __init__(self, tx: Translator, sequence: VariableTracker, count: int) -> None:
        super().__init__(reversed, mutation=Mutation.NEW)
        self.made_in = tx.last_step()
        self.sequence = sequence
        self.index = count - 1

    def step(self, tx: Translator) -> VariableTracker | None:
        index, self.index = self.index, -1
        if index < 0:
            return None
        try:
            item = self.sequence.getitem(tx, ConstantVariable(index))
        except ObservedException as error:
            if not issubclass(error.value.python_type(), (IndexError, StopIteration)):
                raise
            return None
        self.index = index - 1
        return item

    def length_hint(self, tx: Translator) -> VariableTracker:
        if self.index < 0:
            return ConstantVariable(0)
        count = tx.call_function(tx.wrap_constant(len), [self.sequence], {})
        is_short = count.realize().as_python_constant() <= self.index
        return ConstantVariable(0 if is_short else self.index + 1)

    def reconstruct(self, codegen: PyCodegen) -> None:
        """Making one asks the program for its length: let the graph end where it was made."""
        reason = Unsupported("iterator", repr(self), "it would ask for its length once more")
        reason.made_at = self.made_in  # type: ignore[attr-defined]
        raise reason


class FilterVariable(IteratorVariable):
    """`filter(function, iterator)`; keep: the truth of what stays (filterfalse: False)."""

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
