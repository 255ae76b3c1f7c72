"""The methods of list and tuple, by CPython's listobject.c and tupleobject.c."""

from __future__ import annotations

import operator
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..exc import MinidynamoError
from .base import MAX_ITEMS, ObservedException, VariableTracker, unsupported
from .builtin_object import (
    NOT_IMPLEMENTED,
    builtin_method,
    has_slot,
    index_of,
    is_none,
    observed,
    rich_equal,
    type_name,
)
from .constant import ConstantVariable
from .lists import ListVariable, SequenceVariable, SliceVariable, TupleVariable, as_sequence
from .postponed import joined_texts
from .services import SEQUENCE_BUILDERS

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

# -- methods of both ----------------------------------------------------------------------------

_BOTH = (list, tuple)
_MOST_ITEMS = sys.maxsize // struct.calcsize("P")  # what there may be memory for


@builtin_method(_BOTH, "__len__")
def _seq_len(tx: Translator, self: SequenceVariable, /) -> VariableTracker:
    return ConstantVariable(self.count())


@builtin_method(_BOTH, "__iter__")
def _seq_iter(tx: Translator, self: SequenceVariable, /) -> VariableTracker:
    return SEQUENCE_BUILDERS["live"](tx, self, False)


@builtin_method(_BOTH, "__getitem__")
def _seq_getitem(
    tx: Translator,
    self: SequenceVariable,
    key: VariableTracker,
    /,
) -> VariableTracker:
    index = sequence_key(tx, self, key)
    with observed(tx):
        family = list if issubclass(self.cls, list) else tuple
        if not isinstance(index, slice):
            return family(self.items)[index]
        found = list(self.items[index])
    if self.cls is tuple and index.step in (None, 1) and len(found) == len(self.items):
        return self
    return tx.wrap_items(self.cls if self.cls is torch.Size else family, found)


def sequence_key(
    tx: Translator,
    self: SequenceVariable,
    key: VariableTracker,
) -> int | slice:
    """What a subscript of a list or tuple means: an int, or a slice of ints and None."""
    if not issubclass(key.python_type(), slice):
        if not _has_index(tx, key):
            family = "list" if issubclass(self.cls, list) else "tuple"
            tx.raise_observed(
                TypeError,
                f"{family} indices must be integers or slices, not {type_name(key.python_type())}",
            )
        return index_of(tx, key)
    if isinstance(key, SliceVariable):
        return slice(*(_slice_part(tx, part) for part in key.parts))
    return key.as_python_constant()


def _slice_part(tx: Translator, part: VariableTracker) -> int | None:
    part = part.realize()
    if is_none(part):
        return None
    if not has_slot(tx, part, "__index__"):
        text = "slice indices must be integers or None or have an __index__ method"
        tx.raise_observed(TypeError, text)
    return index_of(tx, part)


def _has_index(tx: Translator, key: VariableTracker) -> bool:
    return hasattr(key.python_type(), "__index__")


@builtin_method(_BOTH, "__contains__")
def _seq_contains(
    tx: Translator,
    self: SequenceVariable,
    item: VariableTracker,
    /,
) -> VariableTracker:
    return ConstantVariable(find_item(tx, self, item) is not None)


def find_item(
    tx: Translator,
    self: SequenceVariable,
    item: VariableTracker,
    start: int = 0,
    stop: int = -1,
) -> int | None:
    """The index of the first item that equals `item`. Comparing may change the sequence."""
    index = start
    while index < len(self.items) and (stop < 0 or index < stop):
        if rich_equal(tx, self.items[index], item):
            return index
        index += 1
    return None


@builtin_method(_BOTH, "count")
def _seq_count(
    tx: Translator,
    self: SequenceVariable,
    item: VariableTracker,
    /,
) -> VariableTracker:
    count = index = 0
    while index < len(self.items):
        count += rich_equal(tx, self.items[index], item)
        index += 1
    return ConstantVariable(count)


@builtin_method(_BOTH, "index")
def _seq_index(
    tx: Translator,
    self: SequenceVariable,
    item: VariableTracker,
    /,
    *bounds: VariableTracker,
) -> VariableTracker:
    ends = [index_of(tx, bound) for bound in bounds[:2]]
    start, stop, _ = slice(*[*ends, None, None][:2]).indices(len(self.items))
    found = find_item(tx, self, item, start, stop)
    if found is not None:
        return ConstantVariable(found)
    if not issubclass(self.cls, list):
        tx.raise_observed(ValueError, "tuple.index(x): x not in tuple")
    shown = tx.call_function(tx.wrap_constant(repr), [item], {})
    parts = [shown, ConstantVariable(" is not in list")]
    message = joined_texts(parts)
    if message is None:
        tx.raise_observed(ValueError, "".join(part.as_python_constant() for part in parts))
    raise ObservedException(tx.call_function(tx.wrap_constant(ValueError), [message], {}))


def takes_operand(value: VariableTracker, name: str, args: list[VariableTracker]) -> bool:
    """Whether an operator asks the method `name`: `+` and `*` see what a list or tuple joins and
    how often it can be repeated. The methods themselves raise a TypeError for anything else.
    """
    if not isinstance(value, SequenceVariable) or value.overrides(name):
        return True
    if name == "__add__" and value.cls is not torch.Size:
        return as_sequence(args[0], list if issubclass(value.cls, list) else tuple) is not None
    if name in ("__mul__", "__rmul__", "__imul__"):
        return hasattr(args[0].python_type(), "__index__")
    return True


def repeated(
    tx: Translator,
    self: SequenceVariable,
    count: VariableTracker,
) -> list[Any]:
    """The items `count` times."""
    times = index_of(tx, count)
    if not -sys.maxsize - 1 <= times <= sys.maxsize:
        kind = type_name(count.python_type())
        tx.raise_observed(OverflowError, f"cannot fit '{kind}' into an index-sized integer")
    if len(self.items) * times > _MOST_ITEMS:
        tx.raise_observed(MemoryError)
    if len(self.items) * times > MAX_ITEMS:
        unsupported("long sequence", f"{len(self.items)} items {times} times", "it is too long")
    return self.items * times


@builtin_method(_BOTH, "__mul__", "__rmul__")
def _seq_mul(
    tx: Translator,
    self: SequenceVariable,
    count: VariableTracker,
    /,
) -> VariableTracker:
    items = repeated(tx, self, count)
    is_same = self.cls is tuple and len(items) == len(self.items)
    return self if is_same else _joined(tx, _plain(self.cls), items)


def _joined(tx: Translator, family: type, items: list[VariableTracker]) -> VariableTracker:
    """A new sequence; torch.Size refuses items that are no ints, and takes their `__index__`."""
    result = tx.wrap_items(tuple if family is torch.Size else family, items)
    if family is not torch.Size:
        return result
    return tx.call_function(tx.wrap_constant(torch.Size), [result], {})


@builtin_method(_BOTH, "__add__")
def _seq_add(
    tx: Translator,
    self: SequenceVariable,
    other: VariableTracker,
    /,
) -> VariableTracker:
    family = _plain(self.cls)
    right = as_sequence(other, list if family is list else tuple)
    if right is None:
        kind = type_name(other.python_type())
        if family is torch.Size:
            text = f"can only concatenate tuple (not {kind}) to torch.Size"
            tx.raise_observed(TypeError, text)
        name = family.__name__
        tx.raise_observed(TypeError, f'can only concatenate {name} (not "{kind}") to {name}')
    if self.cls is tuple and not right.items:
        return self
    if family is tuple and other.python_type() is tuple and not self.items:
        return other
    return _joined(tx, family, [*self.items, *right.items])


def _plain(cls: type) -> type:
    """The type of results: operations on subclasses give plain lists and tuples."""
    return list if issubclass(cls, list) else torch.Size if cls is torch.Size else tuple


_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "__lt__": operator.lt,
    "__le__": operator.le,
    "__gt__": operator.gt,
    "__ge__": operator.ge,
    "__eq__": operator.eq,
    "__ne__": operator.ne,
}


def _sequence_compare(name: str) -> Callable[..., VariableTracker]:
    """`list_richcompare` and `tuplerichcompare`."""
    compare = _ORDER[name]

    def row(
        tx: Translator,
        self: SequenceVariable,
        other: VariableTracker,
        /,
    ) -> VariableTracker:
        right = as_sequence(other, list if issubclass(self.cls, list) else tuple)
        if right is None:
            return NOT_IMPLEMENTED
        sizes = len(self.items), len(right.items)
        if sizes[0] != sizes[1] and name in ("__eq__", "__ne__") and issubclass(self.cls, list):
            return ConstantVariable(name == "__ne__")
        index = 0
        # Comparing items may change the lists.
        while index < len(self.items) and index < len(right.items):
            if not rich_equal(tx, self.items[index], right.items[index]):
                break
            index += 1
        if index >= len(self.items) or index >= len(right.items):
            return ConstantVariable(compare(len(self.items), len(right.items)))
        if name in ("__eq__", "__ne__"):
            return ConstantVariable(name == "__ne__")
        items = [self.items[index].realize(), right.items[index].realize()]
        return tx.call_operator(compare, items)

    return row


@builtin_method(slice, "indices")
def _slice_indices(
    tx: Translator, self: VariableTracker, length: VariableTracker, /
) -> VariableTracker:
    assert isinstance(self, SliceVariable)
    parts = slice(*(_slice_part(tx, part) for part in self.parts))
    return tx.fold(parts.indices, (index_of(tx, length),), {})


def _slice_compare(name: str) -> Callable[..., VariableTracker]:
    """`slice_richcompare`: as tuples of the parts."""

    def row(tx: Translator, self: SliceVariable, other: VariableTracker, /) -> VariableTracker:
        if other.python_type() is not slice:
            return NOT_IMPLEMENTED
        both = [self.parts, [tx.getattr(other, part) for part in ("start", "stop", "step")]]
        left, right = (tx.wrap_items(tuple, parts) for parts in both)
        return left.call_method(tx, name, [right], {})

    return row


for _name in _ORDER:
    builtin_method(_BOTH, _name)(_sequence_compare(_name))
    builtin_method(slice, _name)(_slice_compare(_name))


# -- lists only ---------------------------------------------------------------------------------


def _mutate(tx: Translator, self: VariableTracker) -> None:
    tx.output.side_effects.mutate(self)


@builtin_method(list, "append", lazy=True)
def _list_append(
    tx: Translator,
    self: ListVariable,
    item: VariableTracker,
    /,
) -> None:
    _mutate(tx, self)
    self.append(item)


@builtin_method(list, "extend")
def _list_extend(
    tx: Translator,
    self: ListVariable,
    iterable: VariableTracker,
    /,
) -> None:
    if iterable.runs_code():
        for item in iterable.each(tx, sized=True):
            _mutate(tx, self)
            self.items.append(item)
        return
    items = list(iterable.each(tx, sized=True))
    _mutate(tx, self)
    self.items.extend(items)


@builtin_method(list, "__iadd__")
def _list_iadd(
    tx: Translator,
    self: ListVariable,
    iterable: VariableTracker,
    /,
) -> VariableTracker:
    _list_extend(tx, self, iterable)
    return self


@builtin_method(list, "__imul__")
def _list_imul(
    tx: Translator,
    self: ListVariable,
    count: VariableTracker,
    /,
) -> VariableTracker:
    items = repeated(tx, self, count)
    _mutate(tx, self)
    self.items[:] = items
    return self


@builtin_method(list, "insert", lazy=True)
def _list_insert(
    tx: Translator,
    self: ListVariable,
    index: VariableTracker,
    item: VariableTracker,
    /,
) -> None:
    position = index_of(tx, index)
    _mutate(tx, self)
    self.items.insert(position, item)


@builtin_method(list, "pop")
def _list_pop(
    tx: Translator,
    self: ListVariable,
    index: VariableTracker | None = None,
    /,
) -> Any:
    position = -1 if index is None else index_of(tx, index)
    _mutate(tx, self)
    with observed(tx):
        return self.items.pop(position)


@builtin_method(list, "remove")
def _list_remove(
    tx: Translator,
    self: ListVariable,
    item: VariableTracker,
    /,
) -> None:
    index = find_item(tx, self, item)
    if index is not None:
        _mutate(tx, self)
        del self.items[index : index + 1]
        return
    tx.raise_observed(ValueError, "list.remove(x): x not in list")


@builtin_method(list, "clear")
def _list_clear(tx: Translator, self: ListVariable, /) -> None:
    _mutate(tx, self)
    self.items.clear()


@builtin_method(list, "copy")
def _list_copy(tx: Translator, self: ListVariable, /) -> VariableTracker:
    return tx.wrap_items(list, list(self.items))


@builtin_method(list, "reverse")
def _list_reverse(tx: Translator, self: ListVariable, /) -> None:
    _mutate(tx, self)
    self.items.reverse()


@builtin_method(list, "__reversed__")
def _list_reversed(tx: Translator, self: ListVariable, /) -> VariableTracker:
    return SEQUENCE_BUILDERS["live"](tx, self, True)


class _SortKey:
    """An item as list.sort sees it: compared with the traced program's `<`."""

    __slots__ = ("item", "key", "tx")

    def __init__(self, tx: Translator, item: VariableTracker, key: VariableTracker) -> None:
        self.tx = tx
        self.item = item
        self.key = key.realize()

    def __lt__(self, other: _SortKey) -> bool:
        less = self.tx.call_operator(operator.lt, [self.key, other.key])
        return less.realize().truth(self.tx)


def _asks_truth() -> bool:
    try:
        [].sort(reverse=None)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


_ASKS_TRUTH = _asks_truth()  # older versions of CPython take ints only


def _is_reversed(tx: Translator, reverse: VariableTracker) -> bool:
    return reverse.truth(tx) if _ASKS_TRUTH else bool(index_of(tx, reverse))


def sort_items(
    tx: Translator,
    items: list[VariableTracker],
    key: VariableTracker | None,
    reverse: VariableTracker | None,
) -> None:
    """Sort in place as `list.sort` does: the same comparisons in the same order; an exception
    leaves the items in the order that they were in.
    """
    descending = reverse is not None and _is_reversed(tx, reverse.realize())
    keys = items
    if key is not None and not is_none(key):
        keys = [tx.call_function(key, [item], {}) for item in items]
    order = [_SortKey(tx, *pair) for pair in zip(items, keys, strict=True)]
    try:
        order.sort(reverse=descending)
    finally:
        items[:] = [entry.item for entry in order]


@builtin_method(list, "sort")
def _list_sort(
    tx: Translator,
    self: ListVariable,
    /,
    *,
    key: VariableTracker | None = None,
    reverse: VariableTracker | None = None,
) -> None:
    former = list(self.items)
    items = list(former)
    self.items.clear()  # meanwhile the program sees an empty list
    mutated = tx.output.side_effects.mutated
    was_mutated = self in mutated
    mutated.discard(self)
    try:
        sort_items(tx, items, key, reverse)
    except MinidynamoError:
        self.items[:] = former
        raise
    except ObservedException:
        _mutate(tx, self)
        self.items[:] = items
        raise
    finally:
        is_modified = self in mutated
        if was_mutated:
            mutated.add(self)
    _mutate(tx, self)
    self.items[:] = items
    if is_modified:
        tx.raise_observed(ValueError, "list modified during sort")


@builtin_method(list, "__setitem__", lazy=True)
def _list_setitem(
    tx: Translator,
    self: ListVariable,
    key: VariableTracker,
    value: VariableTracker,
    /,
) -> None:
    index = sequence_key(tx, self, key.realize())
    new: Any = value
    if isinstance(index, slice):
        if not (has_slot(tx, value, "__iter__") or has_slot(tx, value, "__getitem__")):
            with observed(tx):
                [][index] = 0  # type: ignore[call-overload]  # raises in the interpreter's words
        new = value.realize().unpack(tx)
    _mutate(tx, self)
    with observed(tx):
        self.items[index] = new


@builtin_method(list, "__delitem__")
def _list_delitem(
    tx: Translator,
    self: ListVariable,
    key: VariableTracker,
    /,
) -> None:
    index = sequence_key(tx, self, key)
    _mutate(tx, self)
    with observed(tx):
        del self.items[index]


@builtin_method(list, "__init__")
def _list_init(
    tx: Translator,
    self: ListVariable,
    iterable: VariableTracker | None = None,
    /,
) -> None:
    _mutate(tx, self)
    self.items.clear()
    if iterable is not None:
        _list_extend(tx, self, iterable)


# -- named tuples and torch.Size ----------------------------------------------------------------


@builtin_method(torch.Size, "__radd__")
def _size_radd(
    tx: Translator, self: TupleVariable, other: VariableTracker, /
) -> VariableTracker:
    left = as_sequence(other, tuple)
    if left is None:
        return NOT_IMPLEMENTED
    return _joined(tx, torch.Size, [*left.items, *self.items])


@builtin_method(torch.Size, "numel")
def _size_numel(tx: Translator, self: TupleVariable, /) -> VariableTracker:
    result: VariableTracker = ConstantVariable(1)
    for item in self.items:
        result = tx.call_operator(operator.mul, [result, item.realize()])
    return result
