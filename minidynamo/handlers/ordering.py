"""`heapq` and `bisect`, whose C functions call the comparisons of the program."""

from __future__ import annotations

import bisect
import heapq
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..variables.base import VariableTracker, unsupported
from ..variables.builtin_object import index_of, is_none
from ..variables.constant import ConstantVariable
from ..variables.lists import ListVariable
from .builtins import Values, builtin

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

# -- heapq: as _heapqmodule.c, item by item, so that an exception leaves the same list -------------

# Longer lists are made heaps in another order of comparisons.
_LONG_HEAP = 2500


class _Heap:
    """A list under the operations of a heap. before(a, b): whether `a` belongs above `b`."""

    def __init__(self, tx: Translator, value: VariableTracker, largest: bool = False) -> None:
        if not isinstance(value, ListVariable):
            unsupported("call does not fit", "heapq", "eager will raise the TypeError")
        self.tx = tx
        self.list = value
        self.largest = largest
        tx.output.side_effects.mutate(value)

    def is_before(self, left: int, right: int) -> bool:
        """Compare two items, in the order of operands that C has."""
        items = self.list.items
        count = len(items)
        pair = (items[right], items[left]) if self.largest else (items[left], items[right])
        result = self.tx.call_operator(operator.lt, [item.realize() for item in pair])
        truth = result.realize().truth(self.tx)
        if len(self.list.items) != count:
            self.tx.raise_observed(RuntimeError, "list changed size during iteration")
        return truth

    def swap(self, left: int, right: int) -> None:
        items = self.list.items
        items[left], items[right] = items[right], items[left]

    def rise(self, start: int, position: int) -> None:
        """`siftdown`: an item goes up towards `start` until its parent is before it."""
        while position > start:
            parent = (position - 1) >> 1
            if not self.is_before(position, parent):
                return
            self.swap(position, parent)
            position = parent

    def sink(self, start: int) -> None:
        """`siftup`: the item at `start` goes down to a leaf, and up again as far as it belongs."""
        position, end = start, len(self.list.items)
        while position < end >> 1:
            child = 2 * position + 1
            if child + 1 < end and not self.is_before(child, child + 1):
                child += 1
            self.swap(position, child)
            position = child
        self.rise(start, position)

    def replace_top(self, item: VariableTracker) -> VariableTracker:
        if not self.list.items:
            self.tx.raise_observed(IndexError, "index out of range")
        top = self.list.items[0]
        self.list.items[0] = item
        self.sink(0)
        return top

    def pop(self) -> VariableTracker:
        if not self.list.items:
            self.tx.raise_observed(IndexError, "index out of range")
        last = self.list.items.pop()
        return self.replace_top(last) if self.list.items else last


def _heap_functions(prefix: str, suffix: str, largest: bool) -> None:
    def named(name: str) -> Callable[..., Any]:
        return getattr(heapq, f"{prefix}{name}{suffix}")

    @builtin(named("heapify"))
    def heapify(tx: Translator, heap: Values, /) -> None:
        self = _Heap(tx, heap, largest)
        count = len(self.list.items)
        if count > _LONG_HEAP:
            unsupported("long sequence", repr(heap), "it is too long")
        for position in reversed(range(count // 2)):
            self.sink(position)

    @builtin(named("heappop"))
    def heappop(tx: Translator, heap: Values, /) -> Values:
        return _Heap(tx, heap, largest).pop()

    @builtin(named("heapreplace"))
    def heapreplace(tx: Translator, heap: Values, item: Values, /) -> Values:
        return _Heap(tx, heap, largest).replace_top(item)


_heap_functions("", "", False)
if hasattr(heapq, "_heapify_max"):
    _heap_functions("_", "_max", True)


@builtin(heapq.heappush)
def _heappush(tx: Translator, heap: Values, item: Values, /) -> None:
    self = _Heap(tx, heap)
    self.list.items.append(item)
    self.rise(0, len(self.list.items) - 1)


@builtin(heapq.heappushpop)
def _heappushpop(tx: Translator, heap: Values, item: Values, /) -> Values:
    self = _Heap(tx, heap)
    if not self.list.items:
        return item
    top = self.list.items[0].realize()
    if not tx.call_operator(operator.lt, [top, item]).realize().truth(tx):
        return item
    return self.replace_top(item)


# -- bisect ----------------------------------------------------------------------------------------


def _position(
    tx: Translator,
    sequence: Values,
    item: Values,
    bounds: tuple[Values | None, Values | None],
    key: Values | None,
    on_right: bool,
) -> int:
    """Where `item` goes into the sorted sequence: behind equal items, or in front of them."""
    if issubclass(sequence.python_type(), dict):
        unsupported("call does not fit", "bisect", "eager will raise the TypeError")
    low, high = (None if is_none(bound) else index_of(tx, bound) for bound in bounds)  # type: ignore[arg-type]
    low = low or 0
    if low < 0:
        tx.raise_observed(ValueError, "lo must be non-negative")
    if high is None or high == -1:
        high = index_of(tx, sequence.length(tx))
    while low < high:
        middle = (low + high) // 2
        found = sequence.getitem(tx, ConstantVariable(middle)).realize()
        if not is_none(key):
            found = tx.call_function(key, [found], {}).realize()  # type: ignore[arg-type]
        pair = [item, found] if on_right else [found, item]
        if tx.call_operator(operator.lt, pair).realize().truth(tx) == on_right:
            high = middle
        else:
            low = middle + 1
    return low


def _bisection(name: str, on_right: bool) -> None:
    @builtin(getattr(bisect, f"bisect_{name}"))
    def find(
        tx: Translator,
        a: Values,
        x: Values,
        lo: Values | None = None,
        hi: Values | None = None,
        *,
        key: Values | None = None,
    ) -> Values:
        return ConstantVariable(_position(tx, a, x, (lo, hi), key, on_right))

    @builtin(getattr(bisect, f"insort_{name}"))
    def insert(
        tx: Translator,
        a: Values,
        x: Values,
        lo: Values | None = None,
        hi: Values | None = None,
        *,
        key: Values | None = None,
    ) -> None:
        wanted = x if is_none(key) else tx.call_function(key, [x], {}).realize()  # type: ignore[arg-type]
        index = _position(tx, a, wanted, (lo, hi), key, on_right)
        a.call_method(tx, "insert", [ConstantVariable(index), x], {})


_bisection("left", False)
_bisection("right", True)
