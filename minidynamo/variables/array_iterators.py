"""Iterators over numpy arrays, which take an item when it is its turn: writes meanwhile show."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ..side_effects import Mutation
from .base import VariableTracker
from .builtin_object import construct
from .constant import ConstantVariable
from .iterators import IteratorVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator


class Array(Protocol):
    """What is iterated: an array of the trace."""

    def getitem(self, tx: Translator, key: VariableTracker) -> VariableTracker: ...


class _Sequence:
    def __getitem__(
        self,
        index: int,
    ) -> Any:
        raise IndexError


_KIND = type(iter(_Sequence()))


class ArrayIterator(IteratorVariable):
    """count: of items. Its real iterator is Python's for what has a `__getitem__` only."""

    def __init__(
        self,
        array: Array,
        count: int,
    ) -> None:
        super().__init__(_KIND, mutation=Mutation.NEW)
        self.array = array
        self.count = count
        self.index: int | None = 0  # None: it is exhausted

    def step(
        self,
        tx: Translator,
    ) -> VariableTracker | None:
        if self.index is None or self.index == self.count:
            self.index = None
            return None
        item = self.array.getitem(tx, ConstantVariable(self.index))
        self.index += 1
        return item

    def remaining(self) -> int:
        return 0 if self.index is None else self.count - self.index

    def reconstruct(
        self,
        codegen: PyCodegen,
    ) -> None:
        construct(codegen, _iterator_at, self.array, self.index)


def _iterator_at(
    array: Any,
    index: int | None,
) -> Iterator[Any]:
    """Run by generated code: an iterator that gave `index` items."""
    iterator: Any = iter(array)
    if index is None:
        collections.deque(iterator, maxlen=0)
    else:
        iterator.__setstate__(index)
    return iterator  # type: ignore[no-any-return]
