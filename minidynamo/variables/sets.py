"""set and frozenset.

The hash keys of the elements are kept in a real Python set, on which the traced operations are
done too: its iteration order is the one that the program would see, if the hashes are those of the
real elements. Where they are not (tensors, new objects), iteration breaks the graph.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..side_effects import Mutation
from ..source import CallSource, TupleItemSource
from . import set_pasts
from .base import NotConstant, VariableTracker, unsupported
from .builder import builds
from .builtin_object import (
    NOT_IMPLEMENTED,
    BuiltinObject,
    apply_with,
    builtin_method,
    construct,
    observed,
)
from .constant import ConstantVariable, is_value
from .dicts import are_hashable, key_of, raise_key_error
from .lists import SequenceVariable
from .registry import wraps, wraps_instances
from .services import SEQUENCE_BUILDERS
from .set_fingers import upcoming
from .set_order import (
    ASKS_NO_MORE,
    NESTED,
    forget,
    has_known_order,
    has_real_hash,
    in_order,
    ordered_keys,
    others,
    popped,
    snapshot,
)
from .set_pasts import OWN, Past, is_alike, new_set, ordered_elements, plain_kind, replay_on
from .user_keys import UserKey, check_hashed_keys, check_rebuilt_keys

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator

Table = set[Any] | frozenset[Any]
_NOTHING = object()


class SetVariable(BuiltinObject):
    """A set or frozenset. table: the hash keys; known: the elements that are no plain values."""

    def __init__(
        self,
        table: Table,
        known: dict[Any, VariableTracker],
        cls: type,
        *,
        source: Source | None = None,
        mutation: Mutation | None = None,
        real: Any = None,
    ) -> None:
        if mutation is None:
            is_frozen = issubclass(cls, frozenset) and not cls.__dictoffset__
            mutation = Mutation.IMMUTABLE if is_frozen else Mutation.NEW
        super().__init__(cls, source=source, mutation=mutation, real=real)
        self.table = table
        self.known = known
        # Whether the table's iteration order is that of the real set.
        self.order_is_known = True
        # What was done to an existing set, to be done again: (method of set, argument).
        self.operations: list[tuple[str, VariableTracker | None]] = []
        # Of operations on one element, by their index: its hash key.
        self.touched: dict[int, Any] = {}
        self.original = table
        self.leaving: list[Any] | None = None  # in which order `pop` takes what was there
        # Of a new set: what made it of which operands, and what was done to it since; by index,
        # the argument of such a change that is a new set.
        way = table if isinstance(table, frozenset) else tuple(table)
        self.made_by: tuple[Any, tuple[Any, ...]] = (plain_kind(cls), (way,))
        self.changes: list[tuple[str, tuple[Any, ...]]] = []
        self.pasts: dict[int, Any] = {}
        # The hash keys that a new set was made of one by one, if so.
        self.inserted: list[Any] | None = None if table else []

    def element(self, key: Any) -> VariableTracker:
        if isinstance(key, UserKey):
            return key.variable
        is_plain = is_value(key) and not (isinstance(key, NESTED) and key in self.known)
        return ConstantVariable(key) if is_plain else self.known[key]

    def elements(self) -> list[VariableTracker]:
        """The elements in any order."""
        return [self.element(key) for key in self.table]

    def is_totally_ordered(self) -> bool:
        """Whether sorting the elements gives one result, in whatever order they come."""
        kinds = {type(key) for key in self.table}
        return len(kinds) <= 1 and kinds <= {int, str, bytes, bool}

    def unpack(self, tx: Translator) -> list[VariableTracker]:
        """The elements in iteration order."""
        if self.overrides("__iter__"):
            return super().unpack(tx)
        return [self.element(key) for key in ordered_keys(tx, self)]

    def as_python_constant(self) -> Any:
        """A copy that is iterated in the same order: whoever needs the set must not ask for it."""
        known = self.order_is_known and all(map(has_real_hash, self.table))
        if self.cls not in (set, frozenset) or not known or others(self):
            raise NotConstant(self)
        copy = self.cls(self.table)
        if list(copy) != list(self.table):
            raise NotConstant(self)
        return copy

    def hash_key(self, tx: Translator) -> Any:
        if issubclass(self.cls, frozenset) and not self.overrides("__hash__"):
            return frozenset(self.table)
        return super().hash_key(tx)

    def past(self) -> Any:
        """How a new set came about; of others a copy."""
        kind = plain_kind(self.cls)
        copy = Past(set, (frozenset(self.table),)) if kind is set else frozenset(self.table)
        if self.mutation is Mutation.EXISTING or self.source is not None:
            return copy
        steps = enumerate(self.changes)
        changes = [(name, self.pasts.get(index, given)) for index, (name, given) in steps]
        return Past.of(*self.made_by, changes) or copy

    def _in_order(self) -> list[Any] | Past:
        """What to insert one by one, or else how to make a set that is iterated in the same order
        now and after the next change.
        """
        keys = list(self.table)
        if not (self.order_is_known and all(map(has_real_hash, keys))):
            came = {**self.known, **dict.fromkeys(keys)}
            return [key for key in came if key in self.table]
        past = self.past()
        if not isinstance(past, Past) or past.only_grew():
            for way in (keys, keys[::-1], [key for key in self.known if key in self.table]):
                made = set(way)
                if is_alike(made if self.cls is set else set(made), self.table):
                    return way
        if isinstance(past, Past) and past.gives(self.cls, self.table, frozenset(others(self))):
            return past
        unsupported("order of a set", repr(self), "a new set is iterated in another order")

    def reconstruct(self, codegen: PyCodegen) -> None:
        check_rebuilt_keys(self.table)
        way = self._in_order()
        if isinstance(way, Past):
            parts = [self.element(key) for key in others(self)]
            construct(codegen, Past.made, way, lambda: codegen.load_const(self.cls), *parts)
        elif self.cls is set:
            self._push_set(codegen, way)
            return
        else:
            construct(
                codegen,
                new_set,
                lambda: codegen.load_const(self.cls),
                lambda: self._push_set(codegen, way),
            )
        self.reconstruct_attributes(codegen)

    def _push_set(self, codegen: PyCodegen, keys: list[Any]) -> None:
        codegen.sequence([self.element(key) for key in keys])
        codegen.emit("BUILD_SET", len(keys))

    def push_contents(self, codegen: PyCodegen) -> None:
        operations = self.lasting_operations()
        check_hashed_keys([*self.original, *self.touched.values(), *self.table])
        arguments = [argument for _, argument in operations if argument is not None]
        codegen.sequence(arguments)
        codegen.emit("BUILD_TUPLE", len(arguments))

    def lasting_operations(self) -> list[tuple[str, VariableTracker | None]]:
        """The operations without those on elements that came and went."""
        gone = {
            index
            for index, key in self.touched.items()
            if key not in self.original and key not in self.table
        }
        return [item for index, item in enumerate(self.operations) if index not in gone]

    def apply_contents(self, codegen: PyCodegen) -> None:
        operations = self.lasting_operations()
        names = tuple((name, argument is not None) for name, argument in operations)
        apply_with(codegen, self, functools.partial(replay_on, names))


# -- building and wrapping ----------------------------------------------------------------------


def collect(
    tx: Translator, items: list[VariableTracker]
) -> tuple[set[Any], dict[Any, VariableTracker]]:
    """(table, known elements) of a set of these items."""
    table: set[Any] = set()
    known: dict[Any, VariableTracker] = {}
    for item in items:
        key = key_of(tx, item)
        table.add(key)
        known.setdefault(key, item.realize())
    return table, known


def _build_set(tx: Any, type_: type, items: list[VariableTracker]) -> VariableTracker:
    table, known = collect(tx, items)
    inserted = list(known)
    made = SetVariable(
        frozenset(inserted) if issubclass(type_, frozenset) else table, known, type_
    )
    made.inserted = inserted
    made.made_by = plain_kind(type_), (tuple(inserted),)
    return made


SEQUENCE_BUILDERS[set] = _build_set
SEQUENCE_BUILDERS[frozenset] = _build_set
SEQUENCE_BUILDERS["constant set"] = lambda tx, value: SetVariable(value, {}, frozenset)


@builds(set, frozenset)
def _from_python_set(tx: Translator, value: Any) -> VariableTracker:
    known: dict[Any, VariableTracker] = {}
    table = set()
    for item in value:
        variable = tx.wrap_constant(item)
        key = key_of(tx, variable)
        known[key] = variable
        table.add(key)
    return SetVariable(value if table == value else table, known, type(value))


@wraps(set, frozenset)
@wraps_instances(set, frozenset)
def _wrap_set(tx: Translator, value: Any, source: Source) -> VariableTracker:
    tx.guard(source, "TYPE_IS", type(value))
    family = set if isinstance(value, set) else frozenset
    known: dict[Any, VariableTracker] = {}
    in_order = CallSource(source, ordered_elements, "tuple({base})")
    if all(is_value(item) for item in family.__iter__(value)):
        tx.guard(in_order, "CONST_EQ", ordered_elements(value))
        table = set_pasts.table_of(value, family, source)
    else:
        tx.guard(source, "LEN_EQ", family.__len__(value))
        elements = enumerate(ordered_elements(value))
        items = [tx.wrap(item, TupleItemSource(in_order, index)) for index, item in elements]
        table, known = collect(tx, items)
        if len(table) != len(items):
            unsupported("hash", source.name, "two of its elements are equal by now")
        if all(map(has_real_hash, table)):
            table = set_pasts.table_of(value, family, source)
    has_state = isinstance(value, set) or type(value).__dictoffset__ != 0
    mutation = Mutation.EXISTING if has_state else Mutation.IMMUTABLE
    return SetVariable(table, known, type(value), source=source, mutation=mutation, real=value)


# -- the algebra --------------------------------------------------------------------------------

_SETS = (set, frozenset)


def set_like(value: VariableTracker) -> SetVariable | None:
    """A set, frozenset or constant frozenset; None for anything else (operators want sets)."""
    if isinstance(value, SetVariable):
        return value
    if isinstance(value, ConstantVariable) and isinstance(value.value, frozenset):
        return SetVariable(value.value, {}, frozenset)
    return None


class Operand(NamedTuple):
    """An iterable as methods of sets take it. keys: the hash keys in a container of the kind that
    makes the same order of the result; past: what makes that container again.
    """

    keys: Any
    known: dict[Any, VariableTracker]
    is_ordered: bool
    past: Any


def operand(tx: Translator, value: VariableTracker) -> Operand:
    """`value`, as methods of sets take it."""
    found = set_like(value)
    if found is not None:
        return Operand(found.table, found.known, found.order_is_known, found.past())
    items = value.unpack(tx)
    keys = [key_of(tx, item) for item in items]
    known: dict[Any, VariableTracker] = {}
    for key, item in zip(keys, items, strict=True):
        known.setdefault(key, item.realize())
    given = dict.fromkeys(keys) if value.python_type() is dict else keys
    return Operand(given, known, True, given)


def made_of(cls: type, given: Operand) -> SetVariable:
    """`cls(given)`."""
    result = SetVariable(plain_kind(cls)(given.keys), dict(given.known), cls)
    result.order_is_known = given.is_ordered
    result.made_by = plain_kind(cls), (given.past,)
    return result


@builtin_method(_SETS, "__len__")
def _set_len(tx: Translator, self: SetVariable, /) -> VariableTracker:
    return ConstantVariable(len(self.table))


@builtin_method(_SETS, "__iter__")
def _set_iter(tx: Translator, self: SetVariable, /) -> VariableTracker:
    return SEQUENCE_BUILDERS["elements"](tx, self)


def _element_key(tx: Translator, item: VariableTracker) -> Any:
    """The key of what is looked for: a set finds the equal frozenset."""
    if isinstance(item, SetVariable) and issubclass(item.cls, set):
        return frozenset(item.table)
    return key_of(tx, item)


@builtin_method(_SETS, "__contains__")
def _set_contains(
    tx: Translator, self: SetVariable, item: VariableTracker, /
) -> VariableTracker:
    return ConstantVariable(_element_key(tx, item) in self.table)


def _combined(tx: Translator, name: str, left: SetVariable, *others: Operand) -> SetVariable:
    """A method of set that gives a new one."""
    cls = plain_kind(left.cls)
    with observed(tx):
        own = left.table if isinstance(left.table, cls) else cls(left.table)
        table = getattr(cls, name)(own, *(other.keys for other in others))
    known = dict(left.known)
    for other in others:
        known = in_order(name, known, other.known, len(own), other.keys)
    result = SetVariable(table, known, cls)
    result.order_is_known = left.order_is_known and all(other.is_ordered for other in others)
    past = left.past()  # of one set with itself, which methods treat in a way of its own
    pasts = (past if other.keys is left.table else other.past for other in others)
    result.made_by = getattr(cls, name), (past, *pasts)
    return result


def _change(
    tx: Translator,
    self: SetVariable,
    name: str,
    argument: Any = _NOTHING,
    replay: VariableTracker | None = None,
) -> Any:
    """Run an in-place method of `set` on the table; `replay` is the argument on the real set."""
    tx.output.side_effects.mutate(self)
    if self.mutation is Mutation.EXISTING:
        if not self.operations:
            self.table = set(self.table)
        if name in ("add", "discard", "remove"):
            self.touched[len(self.operations)] = argument
        self.operations.append((name, replay))
        self.order_is_known = False
    plain = argument
    if isinstance(argument, (set, list, dict)):
        plain = frozenset(argument) if isinstance(argument, set) else tuple(argument)
    self.changes.append((name, () if plain is _NOTHING else (plain,)))
    method = getattr(set, name)
    result = method(self.table) if argument is _NOTHING else method(self.table, argument)
    forget(self, name, argument)
    return result


def _merge(tx: Translator, self: SetVariable, name: str, other: VariableTracker) -> None:
    """An in-place method that takes an iterable."""
    given = other if set_like(other) is not None else None
    if given is None and other.python_type() is not dict:
        given = other = tx.wrap_items(list, other.unpack(tx))
    keys, known, is_ordered, past = operand(tx, other)
    if keys is self.table and name != "intersection_update":  # the set itself
        if name != "update":
            _change(tx, self, "clear")
        return
    if isinstance(other, SetVariable):
        given = snapshot(other)
    elif not isinstance(given, SequenceVariable):
        given = SetVariable(set(keys), known, set)
    is_known, count = self.order_is_known and is_ordered, len(self.table)
    self.pasts[len(self.changes)] = (OWN if keys is self.table else past,)
    with observed(tx):
        _change(tx, self, name, keys, given)
    self.known = in_order(name, self.known, known, count, keys)
    self.order_is_known = self.order_is_known and is_known


def _needed(tx: Translator, self: SetVariable, other: VariableTracker) -> VariableTracker:
    """What an intersection takes of an iterable: newer CPythons stop when all were found."""
    if not (ASKS_NO_MORE and other.runs_code()):
        return other
    items, found = [], set()
    for item in other.each(tx):
        items.append(item)
        key = key_of(tx, item)
        if key in self.table:
            found.add(key)
            if len(found) == len(self.table):
                break
    return tx.wrap_items(list, items)


# The operator's name -> the method, the in-place method.
_ALGEBRA = {
    "or": ("union", "update"),
    "and": ("intersection", "intersection_update"),
    "sub": ("difference", "difference_update"),
    "xor": ("symmetric_difference", "symmetric_difference_update"),
}


def _register_algebra(name: str, method: str, update: str) -> None:
    def operator_row(tx: Translator, self: SetVariable, other: VariableTracker, /) -> Any:
        right = set_like(other)
        if right is None:
            return NOT_IMPLEMENTED
        return _combined(tx, f"__{name}__", self, operand(tx, right))

    def reflected_row(tx: Translator, self: SetVariable, other: VariableTracker, /) -> Any:
        left = set_like(other)
        return NOT_IMPLEMENTED if left is None else operator_row(tx, left, self)

    def method_row(tx: Translator, self: SetVariable, /, *others: VariableTracker) -> Any:
        if method != "intersection":
            return _combined(tx, method, self, *(operand(tx, other) for other in others))
        result = _copy(self)
        for other in others:
            result = _combined(tx, method, result, operand(tx, _needed(tx, result, other)))
        return result

    def inplace_row(tx: Translator, self: SetVariable, other: VariableTracker, /) -> Any:
        if set_like(other) is None:
            return NOT_IMPLEMENTED
        update_row(tx, self, other)
        return self

    def update_row(tx: Translator, self: SetVariable, /, *others: VariableTracker) -> None:
        for other in others:
            is_whole = not other.runs_code() and are_hashable(tx, other.unpack(tx))
            if update in _ONE_BY_ONE and not is_whole:
                for item in other.each(tx):
                    _ONE_BY_ONE[update](tx, self, item)
            else:
                given = _needed(tx, self, other) if update == "intersection_update" else other
                _merge(tx, self, update, given)

    builtin_method(_SETS, f"__{name}__")(operator_row)
    builtin_method(_SETS, f"__r{name}__")(reflected_row)
    builtin_method(_SETS, method)(method_row)
    builtin_method(set, f"__i{name}__")(inplace_row)

    def update_by_one(tx: Translator, self: SetVariable, other: VariableTracker, /) -> None:
        update_row(tx, self, other)

    takes_one = method == "symmetric_difference"
    builtin_method(set, update)(update_by_one if takes_one else update_row)


for _name, (_method, _update) in _ALGEBRA.items():
    _register_algebra(_name, _method, _update)


def _set_compare(name: str) -> Callable[..., VariableTracker]:
    compare = getattr(operator, name)

    def row(tx: Translator, self: SetVariable, other: VariableTracker, /) -> VariableTracker:
        right = set_like(other)
        if right is None:
            return NOT_IMPLEMENTED
        return ConstantVariable(compare(self.table, right.table))

    return row


for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
    builtin_method(_SETS, _name)(_set_compare(_name))


def _set_question(name: str) -> Callable[..., VariableTracker]:
    question = getattr(frozenset, name)

    def row(tx: Translator, self: SetVariable, other: VariableTracker, /) -> VariableTracker:
        return ConstantVariable(question(frozenset(self.table), operand(tx, other)[0]))

    return row


@builtin_method(_SETS, "issubset")
def _set_issubset(
    tx: Translator, self: SetVariable, other: VariableTracker, /
) -> VariableTracker:
    return _set_question("issubset")(tx, self, _needed(tx, self, other))


def _each(name: str, answer: bool) -> Callable[..., VariableTracker]:
    """Questions that take no more items from an iterable once one has `answer`ed them."""
    question = _set_question(name)

    def row(tx: Translator, self: SetVariable, other: VariableTracker, /) -> VariableTracker:
        if set_like(other) is not None:
            return question(tx, self, other)
        iterator = other.iter(tx)
        while (item := iterator.next(tx)) is not None:
            if (key_of(tx, item) in self.table) is answer:
                return ConstantVariable(False)
        return ConstantVariable(True)

    return row


builtin_method(_SETS, "isdisjoint")(_each("isdisjoint", True))
builtin_method(_SETS, "issuperset")(_each("issuperset", False))


def _copy(self: SetVariable) -> SetVariable:
    given = Operand(self.table, self.known, self.order_is_known, self.past())
    return made_of(plain_kind(self.cls), given)


@builtin_method(_SETS, "copy")
def _set_copy(tx: Translator, self: SetVariable, /) -> VariableTracker:
    if self.cls is frozenset:
        return self
    return _copy(self)


@builtin_method(set, "add")
def _set_add(tx: Translator, self: SetVariable, item: VariableTracker, /) -> None:
    key = key_of(tx, item)
    _change(tx, self, "add", key, item)
    self.known.setdefault(key, item)


@builtin_method(set, "discard")
def _set_discard(tx: Translator, self: SetVariable, item: VariableTracker, /) -> None:
    _change(tx, self, "discard", _element_key(tx, item), item)


_ONE_BY_ONE = {"update": _set_add, "difference_update": _set_discard}


@builtin_method(set, "remove")
def _set_remove(tx: Translator, self: SetVariable, item: VariableTracker, /) -> None:
    key = _element_key(tx, item)
    if key not in self.table:
        raise_key_error(item)
    _change(tx, self, "remove", key, item)


@builtin_method(set, "pop")
def _set_pop(tx: Translator, self: SetVariable, /) -> VariableTracker:
    if not self.table:
        tx.raise_observed(KeyError, "pop from an empty set")
    is_hidden = self.mutation is Mutation.EXISTING and len(self.table) > 1
    if has_known_order(self) and not is_hidden:
        key = _change(tx, self, "pop")
        taken = self.element(key)
    else:
        key = upcoming(tx, self) if is_hidden else ordered_keys(tx, self, popped)[0]
        taken = self.element(key)
        _change(tx, self, "discard", key)
        self.changes[-1] = ("pop", ())
        if self.operations:
            self.operations[-1] = ("pop", None)
            self.touched.popitem()
    forget(self, "discard", key)
    return taken


@builtin_method(set, "clear")
def _set_clear(tx: Translator, self: SetVariable, /) -> None:
    _change(tx, self, "clear")


@builtin_method(set, "__init__")
def _set_init(
    tx: Translator, self: SetVariable, iterable: VariableTracker | None = None, /
) -> None:
    _set_clear(tx, self)
    if iterable is not None:
        _merge(tx, self, "update", iterable)
