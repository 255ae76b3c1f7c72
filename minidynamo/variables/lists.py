"""list, tuple, named tuples, torch.Size with traced items, and slices with traced parts.

`items` of a value holds the traced items (they may be lazy); for an existing list they are what
the list holds at this point of the trace. A mutated existing list is replayed by one slice
assignment.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..side_effects import Mutation
from ..source import ListItemSource, TupleItemSource
from .base import LazyVariable, NotConstant, VariableTracker, unsupported
from .builder import builds
from .builtin_object import (
    NOT_IMPLEMENTED,
    BuiltinObject,
    apply_with,
    builtin_method,
    construct,
    follows_base,
    index_of,
    observed,
    rich_equal,
)
from .constant import ConstantVariable, is_value
from .registry import wraps, wraps_instances
from .services import SEQUENCE_BUILDERS

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator

_CONTAINERS = (list, tuple, dict, set, frozenset)


def constant_of(item: VariableTracker) -> Any:
    """`as_python_constant` of an item, without looking at lazy objects that can't be constants."""
    if isinstance(item, LazyVariable) and not item.is_realized:
        value = item.value
        if not (is_value(value) or callable(value) or isinstance(value, _CONTAINERS)):
            raise NotConstant(item)
        if isinstance(value, torch.nn.Module):
            raise NotConstant(item)
    return item.realize().as_python_constant()


class SequenceVariable(BuiltinObject):
    """Ordered items, of a list or a tuple."""

    def __init__(
        self,
        items: list[VariableTracker],
        cls: type,
        *,
        source: Source | None = None,
        mutation: Mutation = Mutation.IMMUTABLE,
        real: Any = None,
    ) -> None:
        super().__init__(cls, source=source, mutation=mutation, real=real)
        self.items = items

    def unpack(self, tx: Translator) -> list[VariableTracker]:
        if self.overrides("__iter__"):
            return super().unpack(tx)
        return list(self.items)

    def as_proxy(self) -> Any:
        return self.cls(item.realize().as_proxy() for item in self.items)


class ListVariable(SequenceVariable):
    """A list, or a Python subclass of list."""

    def as_python_constant(self) -> Any:
        """A copy: whoever needs the list itself must not ask for a constant."""
        if self.cls is not list:
            raise NotConstant(self)
        return [constant_of(item) for item in self.items]

    def as_proxy(self) -> Any:
        return [item.realize().as_proxy() for item in self.items]

    def reconstruct(self, codegen: PyCodegen) -> None:
        if self.cls is list:
            codegen.sequence(self.items)
            codegen.emit("BUILD_LIST", len(self.items))
            return
        construct(
            codegen, _new_list, lambda: codegen.load_const(self.cls), self.push_items(codegen)
        )
        self.reconstruct_attributes(codegen)

    def push_items(self, codegen: PyCodegen) -> Callable[[], None]:
        """An emitter of a plain list of the items."""

        def push() -> None:
            codegen.sequence(self.items)
            codegen.emit("BUILD_LIST", len(self.items))

        return push

    def push_contents(self, codegen: PyCodegen) -> None:
        self.push_items(codegen)()

    def apply_contents(self, codegen: PyCodegen) -> None:
        if self.cls is not list:
            apply_with(codegen, self, _replace_items)
            return
        codegen.emit("LOAD_FAST", codegen.preload(self))
        codegen.load_const(slice(None))
        codegen.emit("STORE_SUBSCR")


def _new_list(cls: type, items: list[Any]) -> Any:
    result = cls.__new__(cls)
    list.extend(result, items)
    return result


def _replace_items(real: list[Any], items: list[Any]) -> None:
    list.__setitem__(real, slice(None), items)


class TupleVariable(SequenceVariable):
    """A tuple, a named tuple, a structseq (torch.return_types), torch.Size, or a subclass of tuple."""

    def as_python_constant(self) -> Any:
        values = [constant_of(item) for item in self.items]
        if self.cls is tuple or self.cls is torch.Size:
            return self.cls(values)
        if not is_namedtuple(self.cls):
            raise NotConstant(self)
        return tuple.__new__(self.cls, values)

    def as_proxy(self) -> Any:
        values = [item.realize().as_proxy() for item in self.items]
        if is_structseq(self.cls):
            return self.cls(values)
        if self.cls is tuple or self.cls is torch.Size:
            return tuple(values)
        return tuple.__new__(self.cls, values)

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        index = _field_index(self.cls, name)
        if index is not None:
            return self.items[index]
        return super().getattr(tx, name)

    def hash_key(self, tx: Translator) -> Any:
        if self.overrides("__hash__"):
            return super().hash_key(tx)
        return tuple(item.realize().hash_key(tx) for item in self.items)

    def reconstruct(self, codegen: PyCodegen) -> None:
        if self.cls is tuple:
            codegen.sequence(self.items)
            codegen.emit("BUILD_TUPLE", len(self.items))
            return

        def push() -> None:
            codegen.sequence(self.items)
            codegen.emit("BUILD_TUPLE", len(self.items))

        if is_structseq(self.cls) or self.cls is torch.Size:
            construct(codegen, self.cls, push)
        else:
            construct(codegen, tuple.__new__, lambda: codegen.load_const(self.cls), push)
            self.reconstruct_attributes(codegen)


def is_namedtuple(cls: type) -> bool:
    """Whether `cls` was made by collections.namedtuple or typing.NamedTuple, or derives from one."""
    fields = getattr(cls, "_fields", None)
    return issubclass(cls, tuple) and isinstance(fields, tuple) and hasattr(cls, "_make")


def is_structseq(cls: type) -> bool:
    """Whether `cls` is a C struct sequence, such as torch.return_types.max."""
    return issubclass(cls, tuple) and hasattr(cls, "n_sequence_fields")


def _field_index(cls: type, name: str) -> int | None:
    """The position of the item that attribute `name` of a named tuple or structseq gives."""
    if is_structseq(cls):
        if name not in vars(cls) or name.startswith(("_", "n_")):
            return None
        index = getattr(cls(range(cls.n_sequence_fields)), name, None)  # type: ignore[attr-defined]
        return index if isinstance(index, int) else None
    if is_namedtuple(cls) and name in cls._fields:  # type: ignore[attr-defined]
        for class_ in cls.__mro__:
            if name in vars(class_):
                getter = vars(class_)[name]
                is_field = type(getter).__name__ == "_tuplegetter"
                return getter.__reduce__()[1][0] if is_field else None
    return None


class SliceVariable(BuiltinObject):
    """slice(start, stop, step) of which a part is no constant."""

    def __init__(self, parts: list[VariableTracker], *, source: Source | None = None) -> None:
        super().__init__(slice, source=source)
        none = ConstantVariable(None)
        if len(parts) == 1:
            parts = [none, parts[0]]
        self.parts = [*parts, none][:3]

    def as_python_constant(self) -> Any:
        return slice(*(part.realize().as_python_constant() for part in self.parts))

    def as_proxy(self) -> Any:
        return slice(*(part.realize().as_proxy() for part in self.parts))

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        names = ("start", "stop", "step")
        return self.parts[names.index(name)] if name in names else super().getattr(tx, name)

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.sequence(self.parts)
        codegen.emit("BUILD_SLICE", 3)


# -- building and wrapping ----------------------------------------------------------------------


def _build_list(tx: Any, type_: type, items: list[VariableTracker]) -> VariableTracker:
    return ListVariable(items, type_, mutation=Mutation.NEW)


def _build_tuple(tx: Any, type_: type, items: list[VariableTracker]) -> VariableTracker:
    return TupleVariable(items, type_, mutation=tuple_mutation(type_, Mutation.NEW))


def tuple_mutation(type_: type, otherwise: Mutation) -> Mutation:
    """Tuples can't be mutated, but subclasses may have an instance dict."""
    return otherwise if type_.__dictoffset__ else Mutation.IMMUTABLE


def _build_slice(tx: Any, type_: type, parts: list[VariableTracker]) -> VariableTracker:
    return SliceVariable(parts)


SEQUENCE_BUILDERS[list] = _build_list
SEQUENCE_BUILDERS[tuple] = _build_tuple
SEQUENCE_BUILDERS[slice] = _build_slice
follows_base(torch.Size)


@builds(list, tuple)
def _from_python_sequence(tx: Translator, value: Any) -> VariableTracker:
    return tx.wrap_items(type(value), [tx.wrap_constant(item) for item in value])


@wraps(list)
@wraps_instances(list)
def _wrap_list(tx: Translator, value: list[Any], source: Source) -> VariableTracker:
    tx.guard(source, "TYPE_IS", type(value))
    tx.guard(source, "LEN_EQ", len(value))
    items = [
        tx.lazy(item, ListItemSource(source, index))
        for index, item in enumerate(list.__iter__(value))
    ]
    return ListVariable(items, type(value), source=source, mutation=Mutation.EXISTING, real=value)


@wraps(tuple)
@wraps_instances(tuple)
def _wrap_tuple(tx: Translator, value: tuple[Any, ...], source: Source) -> VariableTracker:
    tx.guard(source, "TYPE_IS", type(value))
    tx.guard(source, "LEN_EQ", len(value))
    items = [
        tx.lazy(item, TupleItemSource(source, index))
        for index, item in enumerate(tuple.__iter__(value))
    ]
    mutation = tuple_mutation(type(value), Mutation.EXISTING)
    return TupleVariable(items, type(value), source=source, mutation=mutation, real=value)


@wraps(slice)
def _wrap_slice(tx: Translator, value: slice, source: Source) -> VariableTracker:
    unsupported("slice", source.name, "slices of objects are not traced")


def as_sequence(value: VariableTracker, family: type) -> SequenceVariable | None:
    """The value as list or tuple (a constant tuple too); None if it is none of `family`."""
    value = value.realize()
    if isinstance(value, SequenceVariable):
        return value if issubclass(value.cls, family) else None
    if isinstance(value, ConstantVariable) and isinstance(value.value, tuple):
        if issubclass(tuple, family):
            items: list[VariableTracker] = [ConstantVariable(item) for item in value.value]
            return TupleVariable(items, type(value.value))
    return None


# -- methods of both ----------------------------------------------------------------------------

_BOTH = (list, tuple)


@builtin_method(_BOTH, "__len__")
def _seq_len(tx: Translator, self: SequenceVariable, /) -> VariableTracker:
    return ConstantVariable(len(self.items))


@builtin_method(_BOTH, "__iter__")
def _seq_iter(tx: Translator, self: SequenceVariable, /) -> VariableTracker:
    return SEQUENCE_BUILDERS["live"](tx, self, False)


@builtin_method(_BOTH, "__getitem__")
def _seq_getitem(
    tx: Translator, self: SequenceVariable, key: VariableTracker, /
) -> VariableTracker:
    index = sequence_key(tx, self, key)
    with observed(tx):
        family = list if issubclass(self.cls, list) else tuple
        found = family(self.items)[index]
    if isinstance(index, slice):
        return tx.wrap_items(self.cls if self.cls is torch.Size else family, list(found))
    return found


def sequence_key(tx: Translator, self: SequenceVariable, key: VariableTracker) -> int | slice:
    """What a subscript of a list or tuple means: an int, or a slice of ints and None."""
    if not issubclass(key.python_type(), slice):
        if not _has_index(tx, key):
            family = "list" if issubclass(self.cls, list) else "tuple"
            tx.raise_observed(
                TypeError,
                f"{family} indices must be integers or slices, not {key.python_type().__name__}",
            )
        return index_of(tx, key)
    if isinstance(key, SliceVariable):
        return slice(*(_slice_part(tx, part) for part in key.parts))
    return key.as_python_constant()


def _slice_part(tx: Translator, part: VariableTracker) -> int | None:
    part = part.realize()
    is_none = isinstance(part, ConstantVariable) and part.value is None
    return None if is_none else index_of(tx, part)


def _has_index(tx: Translator, key: VariableTracker) -> bool:
    return hasattr(key.python_type(), "__index__")


@builtin_method(_BOTH, "__contains__")
def _seq_contains(
    tx: Translator, self: SequenceVariable, item: VariableTracker, /
) -> VariableTracker:
    return ConstantVariable(any(rich_equal(tx, own, item) for own in list(self.items)))


@builtin_method(_BOTH, "count")
def _seq_count(tx: Translator, self: SequenceVariable, item: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(sum(rich_equal(tx, own, item) for own in list(self.items)))


@builtin_method(_BOTH, "index")
def _seq_index(
    tx: Translator, self: SequenceVariable, item: VariableTracker, /, *bounds: VariableTracker
) -> VariableTracker:
    ends = [index_of(tx, bound) for bound in bounds[:2]]
    start, stop, _ = slice(*[*ends, None, None][:2]).indices(len(self.items))
    for index in range(start, stop):
        if rich_equal(tx, self.items[index], item):
            return ConstantVariable(index)
    if not issubclass(self.cls, list):
        tx.raise_observed(ValueError, "tuple.index(x): x not in tuple")
    shown = tx.call_function(tx.wrap_constant(repr), [item], {}).as_python_constant()
    tx.raise_observed(ValueError, f"{shown} is not in list")


def repeated(tx: Translator, self: SequenceVariable, count: VariableTracker) -> list[Any] | None:
    """The items `count` times, or None if `count` is no number of times."""
    if not _has_index(tx, count):
        return None
    return self.items * index_of(tx, count)


@builtin_method(_BOTH, "__mul__", "__rmul__")
def _seq_mul(tx: Translator, self: SequenceVariable, count: VariableTracker, /) -> VariableTracker:
    items = repeated(tx, self, count)
    return NOT_IMPLEMENTED if items is None else tx.wrap_items(_plain(self.cls), items)


@builtin_method(_BOTH, "__add__")
def _seq_add(tx: Translator, self: SequenceVariable, other: VariableTracker, /) -> VariableTracker:
    family = _plain(self.cls)
    right = as_sequence(other, list if family is list else tuple)
    if right is None:
        return NOT_IMPLEMENTED
    return tx.wrap_items(family, [*self.items, *right.items])


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

    def row(tx: Translator, self: SequenceVariable, other: VariableTracker, /) -> VariableTracker:
        right = as_sequence(other, list if issubclass(self.cls, list) else tuple)
        if right is None:
            return NOT_IMPLEMENTED
        sizes = len(self.items), len(right.items)
        if sizes[0] != sizes[1] and name in ("__eq__", "__ne__") and issubclass(self.cls, list):
            return ConstantVariable(name == "__ne__")
        for left_item, right_item in zip(list(self.items), list(right.items), strict=False):
            if rich_equal(tx, left_item, right_item):
                continue
            if name in ("__eq__", "__ne__"):
                return ConstantVariable(name == "__ne__")
            return tx.call_operator(compare, [left_item.realize(), right_item.realize()])
        return ConstantVariable(compare(*sizes))

    return row


for _name in _ORDER:
    builtin_method(_BOTH, _name)(_sequence_compare(_name))


# -- lists only ---------------------------------------------------------------------------------


def _mutate(tx: Translator, self: VariableTracker) -> None:
    tx.output.side_effects.mutate(self)


@builtin_method(list, "append", lazy=True)
def _list_append(tx: Translator, self: ListVariable, item: VariableTracker, /) -> None:
    _mutate(tx, self)
    self.items.append(item)


@builtin_method(list, "extend")
def _list_extend(tx: Translator, self: ListVariable, iterable: VariableTracker, /) -> None:
    items = iterable.unpack(tx)
    _mutate(tx, self)
    self.items.extend(items)


@builtin_method(list, "__iadd__")
def _list_iadd(tx: Translator, self: ListVariable, iterable: VariableTracker, /) -> VariableTracker:
    _list_extend(tx, self, iterable)
    return self


@builtin_method(list, "__imul__")
def _list_imul(tx: Translator, self: ListVariable, count: VariableTracker, /) -> VariableTracker:
    items = repeated(tx, self, count)
    if items is None:
        return NOT_IMPLEMENTED
    _mutate(tx, self)
    self.items[:] = items
    return self


@builtin_method(list, "insert", lazy=True)
def _list_insert(
    tx: Translator, self: ListVariable, index: VariableTracker, item: VariableTracker, /
) -> None:
    position = index_of(tx, index)
    _mutate(tx, self)
    self.items.insert(position, item)


@builtin_method(list, "pop")
def _list_pop(tx: Translator, self: ListVariable, index: VariableTracker | None = None, /) -> Any:
    position = -1 if index is None else index_of(tx, index)
    _mutate(tx, self)
    with observed(tx):
        return self.items.pop(position)


@builtin_method(list, "remove")
def _list_remove(tx: Translator, self: ListVariable, item: VariableTracker, /) -> None:
    for index, own in enumerate(list(self.items)):
        if rich_equal(tx, own, item):
            _mutate(tx, self)
            del self.items[index]
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

    __slots__ = ("key", "tx")

    def __init__(self, tx: Translator, key: VariableTracker) -> None:
        self.tx = tx
        self.key = key.realize()

    def __lt__(self, other: _SortKey) -> bool:
        less = self.tx.call_operator(operator.lt, [self.key, other.key])
        return less.realize().truth(self.tx)


def sorted_items(
    tx: Translator,
    items: list[VariableTracker],
    key: VariableTracker | None,
    reverse: VariableTracker | None,
) -> list[VariableTracker]:
    """The items in the order that `list.sort` gives: the same comparisons in the same order."""
    descending = reverse is not None and reverse.realize().truth(tx)
    plain = key is None or (isinstance(key, ConstantVariable) and key.value is None)
    keys = items if plain else [tx.call_function(key, [item], {}) for item in items]
    order = sorted(
        range(len(items)),
        key=[_SortKey(tx, key_value) for key_value in keys].__getitem__,
        reverse=descending,
    )
    return [items[index] for index in order]


@builtin_method(list, "sort")
def _list_sort(
    tx: Translator,
    self: ListVariable,
    /,
    *,
    key: VariableTracker | None = None,
    reverse: VariableTracker | None = None,
) -> None:
    items = sorted_items(tx, list(self.items), key, reverse)
    _mutate(tx, self)
    self.items[:] = items


@builtin_method(list, "__setitem__", lazy=True)
def _list_setitem(
    tx: Translator, self: ListVariable, key: VariableTracker, value: VariableTracker, /
) -> None:
    index = sequence_key(tx, self, key.realize())
    new: Any = value
    if isinstance(index, slice):
        new = value.realize().unpack(tx)
    _mutate(tx, self)
    with observed(tx):
        self.items[index] = new


@builtin_method(list, "__delitem__")
def _list_delitem(tx: Translator, self: ListVariable, key: VariableTracker, /) -> None:
    index = sequence_key(tx, self, key)
    _mutate(tx, self)
    with observed(tx):
        del self.items[index]


@builtin_method(list, "__init__")
def _list_init(
    tx: Translator, self: ListVariable, iterable: VariableTracker | None = None, /
) -> None:
    items = [] if iterable is None else iterable.unpack(tx)
    _mutate(tx, self)
    self.items[:] = items


# -- named tuples and torch.Size ----------------------------------------------------------------


@builtin_method(torch.Size, "numel")
def _size_numel(tx: Translator, self: TupleVariable, /) -> VariableTracker:
    result: VariableTracker = ConstantVariable(1)
    for item in self.items:
        result = tx.call_operator(operator.mul, [result, item.realize()])
    return result
