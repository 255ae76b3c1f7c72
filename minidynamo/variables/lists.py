"""list, tuple, named tuples, torch.Size with traced items, and slices with traced parts.

`items` of a value holds the traced items (they may be lazy); for an existing list they are what
the list holds at this point of the trace. A mutated existing list is replayed by one slice
assignment.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..side_effects import Mutation
from ..source import AttrSource, ListItemSource, TupleItemSource
from .base import LazyVariable, NotConstant, VariableTracker
from .builder import builds
from .builtin_object import (
    BuiltinObject,
    apply_with,
    construct,
    follows_base,
    observed,
)
from .constant import ConstantVariable, is_value
from .descriptors import TUPLE_GETTER, class_lookup
from .registry import wraps, wraps_instances
from .services import SEQUENCE_BUILDERS
from .user_defined import OpaqueVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator

_CONTAINERS = (list, tuple, dict, set, frozenset)


def constant_of(item: VariableTracker) -> Any:
    """`as_python_constant` of an item, without looking at lazy objects that can't be constants."""
    if isinstance(item, LazyVariable) and not item.is_realized:
        value = item.value
        if not (is_value(value) or callable(value) or issubclass(type(value), _CONTAINERS)):
            raise NotConstant(item)
        if issubclass(type(value), torch.nn.Module):
            raise NotConstant(item)
    return item.realize().as_python_constant()


def constants_of(owner: BuiltinObject, items: Iterable[VariableTracker]) -> list[Any]:
    """`constant_of` each item; NotConstant if the container contains itself."""
    if owner.is_visited:
        raise NotConstant(owner)
    owner.is_visited = True
    try:
        return [constant_of(item) for item in items]
    finally:
        owner.is_visited = False


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

    def count(self) -> int:
        """The number of items."""
        return len(self.items)

    def unpack(self, tx: Translator) -> list[VariableTracker]:
        if self.overrides("__iter__"):
            return super().unpack(tx)
        return list(self.items)

    def as_proxy(self) -> Any:
        return self.cls(item.realize().as_proxy() for item in self.items)


class ListVariable(SequenceVariable):
    """A list, or a Python subclass of list."""

    def append(self, item: VariableTracker) -> None:
        """`list.append`; the mutation is in the log already."""
        self.items.append(item)

    def as_python_constant(self) -> Any:
        """A copy: whoever needs the list itself must not ask for a constant."""
        if self.cls is not list:
            raise NotConstant(self)
        return constants_of(self, self.items)

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

    is_fillable = True

    def push_empty(self, codegen: PyCodegen) -> None:
        construct(codegen, _new_list, lambda: codegen.load_const(self.cls), ())

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


class ExistingListVariable(ListVariable):
    """A list of the frame. Its length is guarded when its items are asked for; it can be appended
    to without. If nothing but appending happened to it, that is what is replayed.
    """

    _items: list[VariableTracker]

    def __init__(self, tx: Translator, value: list[Any], source: Source) -> None:
        self._tx = tx
        self._given: list[VariableTracker] | None = None
        super().__init__([], type(value), source=source, mutation=Mutation.EXISTING, real=value)

    def _first_items(self) -> list[VariableTracker]:
        tx, source, value = self._tx, self.source, self.real
        assert source is not None
        tx.guard(source, "LEN_EQ", list.__len__(value))
        raw = type(value).__getitem__ is not list.__getitem__
        return [
            tx.lazy(item, ListItemSource(source, index, raw))
            for index, item in enumerate(list.__iter__(value))
        ]

    @property
    def items(self) -> list[VariableTracker]:  # type: ignore[override]
        """The items; from now on their number is guarded."""
        if self._given is None:
            self._given = self._first_items()
            self._items = [*self._given, *self._items]
        return self._items

    @items.setter
    def items(self, items: list[VariableTracker]) -> None:
        self._items = items

    def count(self) -> int:
        if self._given is not None or self.source is None:
            return len(self.items)
        given = list.__len__(self.real)  # a million values are not made to be counted
        self._tx.guard(self.source, "LEN_EQ", given)
        return given + len(self._items)

    def append(self, item: VariableTracker) -> None:
        self._items.append(item)

    def _appended(self) -> list[VariableTracker] | None:
        """What was appended, if nothing else was changed."""
        given = self._given or []
        if any(a is not b for a, b in zip(self._items, given, strict=False)):
            return None
        return self._items[len(given) :] if len(self._items) >= len(given) else None

    def push_contents(self, codegen: PyCodegen) -> None:
        appended = self._appended()
        codegen.sequence(self._items if appended is None else appended)
        codegen.emit("BUILD_LIST", len(self._items if appended is None else appended))

    def apply_contents(self, codegen: PyCodegen) -> None:
        if self._appended() is None:
            super().apply_contents(codegen)
        else:
            apply_with(codegen, self, list.extend)


def _new_list(cls: type, items: list[Any]) -> Any:
    result: Any = list.__new__(cls)
    list.extend(result, items)
    return result


def _replace_items(real: list[Any], items: list[Any]) -> None:
    list.__setitem__(real, slice(None), items)


class TupleVariable(SequenceVariable):
    """A tuple, named tuple, structseq (torch.return_types), torch.Size, or a subclass of tuple."""

    def identity(self) -> Any:
        """There is one empty tuple."""
        return self if self.items or self.cls is not tuple else ()

    def as_python_constant(self) -> Any:
        values = constants_of(self, self.items)
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

    def load_slot(self, tx: Translator, descriptor: Any) -> VariableTracker:
        if type(descriptor) is TUPLE_GETTER:
            index = _index_of_getter(descriptor)
            with observed(tx):
                return self.items[index]
        return super().load_slot(tx, descriptor)

    def store_in_c(
        self,
        tx: Translator,
        descriptor: Any,
        value: VariableTracker | None,
    ) -> None:
        """Fields of named tuples and structseqs can't be stored to: any such tuple says how."""
        if not is_structseq(self.cls) and type(descriptor) is not TUPLE_GETTER:
            super().store_in_c(tx, descriptor, value)
        items = [None] * len(self.items)
        sample = self.cls(items) if is_structseq(self.cls) else tuple.__new__(self.cls, items)
        with observed(tx):
            if value is None:
                descriptor.__delete__(sample)
            else:
                descriptor.__set__(sample, None)

    def delattr(self, tx: Translator, name: str) -> None:
        found = class_lookup(tx, self.cls, name)
        if found is not None and _field_index(self.cls, name) is not None:
            self.store_in_c(tx, found.raw, None)
        super().delattr(tx, name)

    def hash_key(self, tx: Translator) -> Any:
        if self.overrides("__hash__"):
            return super().hash_key(tx)
        return tuple(item.realize().hash_key(tx) for item in self.items)

    def check_hashable(self, tx: Translator) -> None:
        if self.overrides("__hash__"):
            super().check_hashable(tx)
            return
        for item in self.items:
            item.realize().check_hashable(tx)

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
    """Whether collections.namedtuple or typing.NamedTuple made `cls` or a base of it."""
    fields = getattr(cls, "_fields", None)
    return issubclass(cls, tuple) and isinstance(fields, tuple) and hasattr(cls, "_make")


def is_structseq(cls: type) -> bool:
    """Whether `cls` is a C struct sequence, such as torch.return_types.max."""
    return issubclass(cls, tuple) and hasattr(cls, "n_sequence_fields")


def _field_index(cls: type, name: str) -> int | None:
    """The position of the item that attribute `name` of a named tuple or structseq gives."""
    if is_structseq(cls):
        names: tuple[str, ...] = cls.__match_args__  # type: ignore[attr-defined]
        return names.index(name) if name in names else None
    if is_namedtuple(cls) and name in cls._fields:  # type: ignore[attr-defined]
        for class_ in cls.__mro__:
            if name in vars(class_):
                getter = vars(class_)[name]
                return _index_of_getter(getter) if type(getter) is TUPLE_GETTER else None
    return None


def _index_of_getter(getter: Any) -> int:
    index: int = getter.__reduce__()[1][0]
    return index


class SliceVariable(BuiltinObject):
    """slice(start, stop, step) of which a part is no constant."""

    def __init__(self, parts: list[VariableTracker], *, source: Source | None = None) -> None:
        super().__init__(slice, source=source)
        none = ConstantVariable(None)
        if len(parts) == 1:
            parts = [none, parts[0]]
        self.parts = [*parts, none][:3]

    def as_python_constant(self) -> Any:
        parts = [part.realize().as_python_constant() for part in self.parts]
        if not all(map(is_value, parts)):
            raise NotConstant(self)
        return slice(*parts)

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
    if value is _recorded_warnings():
        return OpaqueVariable(value, source=source)  # operators of the graph may warn
    return ExistingListVariable(tx, value, source)


def _recorded_warnings() -> Any:
    """The list of the `catch_warnings(record=True)` that is open in the program, or None."""
    show: Any = vars(warnings).get("_showwarnmsg_impl")
    return getattr(show, "__self__", None)


@wraps(tuple)
@wraps_instances(tuple)
def _wrap_tuple(tx: Translator, value: tuple[Any, ...], source: Source) -> VariableTracker:
    tx.guard(source, "TYPE_IS", type(value))
    tx.guard(source, "LEN_EQ", tuple.__len__(value))
    raw = type(value).__getitem__ is not tuple.__getitem__
    items = [
        tx.lazy(item, TupleItemSource(source, index, raw))
        for index, item in enumerate(tuple.__iter__(value))
    ]
    mutation = tuple_mutation(type(value), Mutation.EXISTING)
    return TupleVariable(items, type(value), source=source, mutation=mutation, real=value)


@wraps(slice)
def _wrap_slice(tx: Translator, value: slice, source: Source) -> VariableTracker:
    """One of objects: of plain values it is a constant."""
    tx.guard(source, "TYPE_IS", slice)
    names = ("start", "stop", "step")
    parts = [tx.lazy(getattr(value, name), AttrSource(source, name)) for name in names]
    return SliceVariable(parts, source=source)


def as_sequence(value: VariableTracker, family: type) -> SequenceVariable | None:
    """The value as list or tuple (a constant tuple too); None if it is none of `family`."""
    value = value.realize()
    if isinstance(value, SequenceVariable):
        return value if issubclass(value.cls, family) else None
    if not isinstance(value, ConstantVariable) or not isinstance(value.value, tuple):
        return None
    if family is not tuple:
        return None
    items: list[VariableTracker] = [ConstantVariable(item) for item in value.value]
    return TupleVariable(items, type(value.value))
