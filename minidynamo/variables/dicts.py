"""dict and its kin: OrderedDict, defaultdict, Counter, Python subclasses, mappingproxy, views.

A key is stored under its `hash_key`, a Python object that is equal and hashes alike exactly when
the traced keys do, so a Python dict keeps order and lookup. Of an existing dict only the keys
that were asked for are guarded, until something looks at all of them.
"""

from __future__ import annotations

import collections
import types
from typing import TYPE_CHECKING, Any, NoReturn

from ..side_effects import Mutation
from ..source import AttrSource, DictItemSource, DictKeySource, DictValueSource
from .base import NotConstant, ObservedException, VariableTracker
from .builder import builds
from .builtin_object import (
    NONE,
    NOT_IMPLEMENTED,
    BuiltinObject,
    apply_with,
    builtin_method,
    construct,
    follows_base,
    rich_equal,
)
from .constant import ConstantVariable, is_value
from .exceptions import ExceptionVariable
from .lists import constant_of
from .registry import wraps, wraps_instances
from .services import SEQUENCE_BUILDERS

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator

Entries = dict[Any, tuple[VariableTracker, VariableTracker]]
_MISSING = object()


def key_of(tx: Translator, key: VariableTracker) -> Any:
    """The hashable that stands for a traced key; TypeError as the program sees it."""
    key = key.realize()
    value = key.value if isinstance(key, ConstantVariable) else None
    try:
        hash(value)
    except TypeError as error:
        raise ObservedException(tx.wrap_exception(error)) from None
    found = key.hash_key(tx)
    if key.source is not None and not isinstance(key, ConstantVariable):
        _guard_identity(tx, key)
    return found


def _guard_identity(tx: Translator, key: VariableTracker) -> None:
    """What is hashed by identity has to be the same object in each call."""
    real = tx.output.side_effects.real_of(key)
    if real is not None and key.source is not None:
        tx.guard(key.source, "ID_IS", real)


class DictVariable(BuiltinObject):
    """A dict. `entries`: hash key -> (key, value), in the dict's order.

    original: the hash keys of an existing dict as the frame found it.
    default_factory: of a defaultdict.
    """

    def __init__(
        self,
        entries: Entries,
        cls: type = dict,
        *,
        source: Source | None = None,
        mutation: Mutation = Mutation.NEW,
        real: Any = None,
        default_factory: VariableTracker | None = None,
    ) -> None:
        super().__init__(cls, source=source, mutation=mutation, real=real)
        self.entries = entries
        self.default_factory = default_factory
        is_real = mutation is Mutation.EXISTING
        self.original = {key: pair[0] for key, pair in entries.items()} if is_real else {}
        self._touched: dict[Any, None] = {}
        self._keys_are_guarded = not is_real

    # -- guards ----------------------------------------------------------------------------------

    def guard_keys(self, tx: Translator) -> None:
        """From now on the trace depends on exactly these keys in this order."""
        if not self._keys_are_guarded and self.source is not None:
            tx.guard(self.source, "DICT_KEYS", tuple(dict.keys(self.real)))
            self._keys_are_guarded = True

    def find(self, tx: Translator, key: Any) -> VariableTracker | None:
        """The value under a hash key, or None."""
        found = self.entries.get(key)
        self._guard_key(tx, key)
        return None if found is None else found[1]

    def _guard_key(self, tx: Translator, key: Any) -> None:
        if self._keys_are_guarded or key in self._touched or self.source is None:
            return
        if not is_value(key):
            self.guard_keys(tx)
            return
        tx.guard(self.source, "DICT_HAS" if key in self.original else "DICT_LACKS", key)

    def guard_length(self, tx: Translator) -> None:
        """From now on the trace depends on how many keys there are."""
        if not self._keys_are_guarded and self.source is not None:
            tx.guard(self.source, "LEN_EQ", len(self.original))

    # -- changing --------------------------------------------------------------------------------

    def put(self, tx: Translator, key: VariableTracker, value: VariableTracker) -> None:
        hash_key = key_of(tx, key)
        self._guard_key(tx, hash_key)
        tx.output.side_effects.mutate(self)
        self._touched[hash_key] = None
        known = self.entries.get(hash_key)
        self.entries[hash_key] = (key if known is None else known[0], value)

    def put_item(self, tx: Translator, key: VariableTracker, value: VariableTracker) -> None:
        """A store by `update`: OrderedDict goes through `__setitem__`, dict does not."""
        store = self.setitem if issubclass(self.cls, collections.OrderedDict) else self.put
        store(tx, key, value)

    def take(self, tx: Translator, hash_key: Any) -> VariableTracker:
        """Remove an entry that exists."""
        self._guard_key(tx, hash_key)
        tx.output.side_effects.mutate(self)
        self._touched[hash_key] = None
        return self.entries.pop(hash_key)[1]

    def replace(self, tx: Translator, entries: Entries) -> None:
        """Give the dict these entries in this order."""
        self.guard_keys(tx)
        tx.output.side_effects.mutate(self)
        self._touched.update(dict.fromkeys([*self.entries, *entries]))
        self.entries = entries

    # -- values ----------------------------------------------------------------------------------

    def unpack(self, tx: Translator) -> list[VariableTracker]:
        if self.overrides("__iter__"):
            return super().unpack(tx)
        self.guard_keys(tx)
        return [key for key, _ in self.entries.values()]

    def as_python_constant(self) -> Any:
        """A copy: whoever needs the dict itself must not ask for a constant."""
        if self.cls is not dict or not self._keys_are_guarded:
            raise NotConstant(self)
        return {constant_of(k): constant_of(v) for k, v in self.entries.values()}

    def as_proxy(self) -> Any:
        return {
            key.realize().as_python_constant(): value.realize().as_proxy()
            for key, value in self.entries.values()
        }

    def load_slot(self, tx: Translator, descriptor: Any) -> VariableTracker:
        if descriptor is not collections.defaultdict.default_factory:  # type: ignore[attr-defined]
            return super().load_slot(tx, descriptor)
        return NONE if self.default_factory is None else self.default_factory

    # -- leaving the trace -----------------------------------------------------------------------

    def reconstruct(self, codegen: PyCodegen) -> None:
        if self.cls is dict:
            self._push_pairs(codegen, list(self.entries))
            return

        def push() -> None:
            self._push_pairs(codegen, list(self.entries))

        def push_factory() -> None:
            codegen(self.default_factory or NONE)

        construct(codegen, _new_dict, lambda: codegen.load_const(self.cls), push, push_factory)
        self.reconstruct_attributes(codegen)

    def _push_pairs(self, codegen: PyCodegen, keys: list[Any]) -> None:
        for hash_key in keys:
            codegen.sequence(self.entries[hash_key])
        codegen.emit("BUILD_MAP", len(keys))

    def changes(self) -> tuple[list[Any], list[Any]]:
        """(hash keys to delete, hash keys to store in order) that turn the original into this dict.

        The entries that stay are the longest start of the new order that is in the old order.
        """
        kept: set[Any] = set()
        old = iter(self.original)
        for key in self.entries:
            if not any(key == candidate for candidate in old):
                break
            kept.add(key)
        deleted = [key for key in self.original if key not in kept]
        stored = [k for k in self.entries if k not in kept or k in self._touched]
        return deleted, stored

    def push_contents(self, codegen: PyCodegen) -> None:
        deleted, stored = self.changes()
        self._push_pairs(codegen, stored)
        codegen.sequence([self.original[key] for key in deleted])
        codegen.emit("BUILD_TUPLE", len(deleted))
        codegen.emit("BUILD_TUPLE", 2)

    def apply_contents(self, codegen: PyCodegen) -> None:
        ordered = issubclass(self.cls, collections.OrderedDict)
        apply_with(codegen, self, _change_ordered_dict if ordered else _change_dict)


def _new_dict(cls: type, entries: dict[Any, Any], factory: Any) -> Any:
    result = dict.__new__(cls)
    store = collections.OrderedDict if issubclass(cls, collections.OrderedDict) else dict
    if issubclass(cls, collections.defaultdict):
        result.default_factory = factory
    for key, value in entries.items():
        store.__setitem__(result, key, value)
    return result


def _change_dict(real: dict[Any, Any], change: tuple[dict[Any, Any], tuple[Any, ...]]) -> None:
    for key in change[1]:
        dict.__delitem__(real, key)
    for key, value in change[0].items():
        dict.__setitem__(real, key, value)


def _change_ordered_dict(real: Any, change: tuple[dict[Any, Any], tuple[Any, ...]]) -> None:
    for key in change[1]:
        collections.OrderedDict.__delitem__(real, key)
    for key, value in change[0].items():
        collections.OrderedDict.__setitem__(real, key, value)


# -- building and wrapping ----------------------------------------------------------------------


def _build_dict(
    tx: Any, type_: type, items: dict[str, VariableTracker] | list[VariableTracker]
) -> VariableTracker:
    assert isinstance(items, dict)
    entries = {name: (ConstantVariable(name), value) for name, value in items.items()}
    return DictVariable(entries, type_)


SEQUENCE_BUILDERS[dict] = _build_dict
follows_base(collections.OrderedDict, collections.defaultdict)


@builds(dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
def _from_python_dict(tx: Translator, value: dict[Any, Any]) -> VariableTracker:
    entries: Entries = {}
    for key, item in value.items():
        variable = tx.wrap_constant(key)
        entries[key_of(tx, variable)] = variable, tx.wrap_constant(item)
    factory = getattr(value, "default_factory", None)
    default_factory = None if factory is None else tx.wrap_constant(factory)
    return DictVariable(entries, type(value), default_factory=default_factory)


@wraps(dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
@wraps_instances(dict)
def _wrap_dict(tx: Translator, value: dict[Any, Any], source: Source) -> VariableTracker:
    cls = type(value)
    tx.guard(source, "TYPE_IS", cls)
    raw = cls.__getitem__ is not dict.__getitem__
    entries: Entries = {}
    all_values = all(is_value(key) for key in dict.keys(value))
    for index, (key, item) in enumerate(dict.items(value)):
        if is_value(key):
            entries[key] = ConstantVariable(key), tx.lazy(item, DictItemSource(source, key, raw))
        else:
            variable, hash_key = _wrap_key(tx, key, DictKeySource(source, index))
            entries[hash_key] = variable, tx.lazy(item, DictValueSource(source, index))
    factory = None
    if issubclass(cls, collections.defaultdict):
        found = value.default_factory  # type: ignore[attr-defined]
        factory = tx.lazy(found, AttrSource(source, "default_factory"))
    result = DictVariable(
        entries, cls, source=source, mutation=Mutation.EXISTING, real=value, default_factory=factory
    )
    if not all_values:
        result.guard_keys(tx)
    return result


def _wrap_key(tx: Translator, key: Any, source: Source) -> tuple[VariableTracker, Any]:
    """(key, hash key) of a key that is no plain value; DICT_KEYS guards its identity."""
    by_identity = isinstance(key, (type, types.FunctionType, types.BuiltinFunctionType))
    if by_identity and type(key).__hash__ in (type.__hash__, object.__hash__):
        return tx.lazy(key, source), key
    variable = tx.wrap(key, source)
    return variable, variable.hash_key(tx)


# -- the methods of dict ------------------------------------------------------------------------


def raise_key_error(key: VariableTracker) -> NoReturn:
    """Raise the program's KeyError for a missing key."""
    raise ObservedException(ExceptionVariable(KeyError, [key]))


@builtin_method(dict, "__len__")
def _dict_len(tx: Translator, self: DictVariable, /) -> VariableTracker:
    self.guard_length(tx)
    return ConstantVariable(len(self.entries))


@builtin_method(dict, "__iter__")
def _dict_iter(tx: Translator, self: DictVariable, /) -> VariableTracker:
    return SEQUENCE_BUILDERS["view"](tx, self, "keys", False)


@builtin_method(dict, "__reversed__")
def _dict_reversed(tx: Translator, self: DictVariable, /) -> VariableTracker:
    return SEQUENCE_BUILDERS["view"](tx, self, "keys", True)


@builtin_method(dict, "__contains__")
def _dict_contains(tx: Translator, self: DictVariable, key: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(self.find(tx, key_of(tx, key)) is not None)


@builtin_method(dict, "__getitem__")
def _dict_getitem(tx: Translator, self: DictVariable, key: VariableTracker, /) -> VariableTracker:
    found = self.find(tx, key_of(tx, key))
    if found is not None:
        return found
    if self.cls is not dict and self.lookup("__missing__") is not None:
        return self.call_method(tx, "__missing__", [key], {})
    raise_key_error(key)


@builtin_method(collections.defaultdict, "__missing__")
def _defaultdict_missing(
    tx: Translator, self: DictVariable, key: VariableTracker, /
) -> VariableTracker:
    factory = self.default_factory.realize() if self.default_factory is not None else NONE
    if isinstance(factory, ConstantVariable) and factory.value is None:
        raise_key_error(key)
    value = tx.call_function(factory, [], {})
    self.setitem(tx, key, value)
    return value


@builtin_method(dict, "__setitem__", lazy=True)
def _dict_setitem(
    tx: Translator, self: DictVariable, key: VariableTracker, value: VariableTracker, /
) -> None:
    self.put(tx, key.realize(), value)


@builtin_method(dict, "__delitem__")
def _dict_delitem(tx: Translator, self: DictVariable, key: VariableTracker, /) -> None:
    hash_key = key_of(tx, key)
    if self.find(tx, hash_key) is None:
        raise_key_error(key)
    self.take(tx, hash_key)


@builtin_method(dict, "get", lazy=True)
def _dict_get(
    tx: Translator, self: DictVariable, key: VariableTracker, default: VariableTracker = NONE, /
) -> VariableTracker:
    found = self.find(tx, key_of(tx, key))
    return default if found is None else found


@builtin_method(dict, "setdefault", lazy=True)
def _dict_setdefault(
    tx: Translator, self: DictVariable, key: VariableTracker, default: VariableTracker = NONE, /
) -> VariableTracker:
    found = self.find(tx, key_of(tx, key))
    if found is not None:
        return found
    self.put(tx, key.realize(), default)
    return default


@builtin_method(dict, "pop", lazy=True)
def _dict_pop(
    tx: Translator,
    self: DictVariable,
    key: VariableTracker,
    default: VariableTracker | None = None,
    /,
) -> VariableTracker:
    hash_key = key_of(tx, key)
    if self.find(tx, hash_key) is not None:
        return self.take(tx, hash_key)
    if default is None:
        raise_key_error(key.realize())
    return default


@builtin_method(dict, "popitem")
def _dict_popitem(tx: Translator, self: DictVariable, /) -> VariableTracker:
    return pop_end(tx, self, last=True)


def pop_end(tx: Translator, self: DictVariable, *, last: bool) -> VariableTracker:
    """Remove and return the last or first item."""
    self.guard_keys(tx)
    if not self.entries:
        tx.raise_observed(KeyError, "popitem(): dictionary is empty")
    hash_key = next(reversed(self.entries) if last else iter(self.entries))
    key = self.entries[hash_key][0]
    return tx.wrap_items(tuple, [key, self.take(tx, hash_key)])


@builtin_method(dict, "clear")
def _dict_clear(tx: Translator, self: DictVariable, /) -> None:
    self.replace(tx, {})


@builtin_method(dict, "copy")
def _dict_copy(tx: Translator, self: DictVariable, /) -> VariableTracker:
    return copy_of(tx, self, dict)


def copy_of(tx: Translator, self: DictVariable, cls: type) -> DictVariable:
    """A new dict of type `cls` with the same items."""
    self.guard_keys(tx)
    return DictVariable(dict(self.entries), cls, default_factory=self.default_factory)


@builtin_method(dict, "update")
def _dict_update(
    tx: Translator, self: DictVariable, other: VariableTracker | None = None, /, **named: Any
) -> None:
    if other is not None:
        merge(tx, self, other)
    for name, value in named.items():
        self.put_item(tx, ConstantVariable(name), value)


def merge(tx: Translator, self: DictVariable, other: VariableTracker) -> None:
    """`dict.update(self, other)`: another dict, something with `keys`, or pairs."""
    if isinstance(other, DictVariable) and not other.overrides("__iter__"):
        other.guard_keys(tx)
        for key, value in list(other.entries.values()):
            self.put_item(tx, key, value)
    elif has_keys(tx, other):
        for key in other.call_method(tx, "keys", [], {}).realize().unpack(tx):
            self.put_item(tx, key, other.getitem(tx, key.realize()))
    else:
        for number, pair in enumerate(other.unpack(tx)):
            items = _pair_items(tx, number, pair.realize())
            if len(items) != 2:
                tx.raise_observed(
                    ValueError,
                    f"dictionary update sequence element #{number} has length {len(items)};"
                    " 2 is required",
                )
            self.put_item(tx, *items)


def _pair_items(tx: Translator, number: int, pair: VariableTracker) -> list[VariableTracker]:
    try:
        return pair.unpack(tx)
    except ObservedException as error:
        if not issubclass(error.value.python_type(), TypeError):
            raise
        text = f"cannot convert dictionary update sequence element #{number} to a sequence"
        tx.raise_observed(TypeError, text)


def has_keys(tx: Translator, value: VariableTracker) -> bool:
    """Whether `dict.update` takes `value` for a mapping."""
    return hasattr(value.python_type(), "keys")


@builtin_method(dict, "__init__")
def _dict_init(
    tx: Translator, self: DictVariable, other: VariableTracker | None = None, /, **named: Any
) -> None:
    _dict_update(tx, self, other, **named)


@builtin_method(collections.defaultdict, "__init__")
def _defaultdict_init(
    tx: Translator,
    self: DictVariable,
    factory: VariableTracker = NONE,
    other: VariableTracker | None = None,
    /,
    **named: Any,
) -> None:
    tx.output.side_effects.mutate(self)
    self.default_factory = factory
    _dict_update(tx, self, other, **named)


@builtin_method(collections.defaultdict, "copy")
def _defaultdict_copy(tx: Translator, self: DictVariable, /) -> VariableTracker:
    return copy_of(tx, self, self.cls)


# -- comparison and union -----------------------------------------------------------------------


@builtin_method(dict, "__eq__")
def _dict_eq(tx: Translator, self: DictVariable, other: VariableTracker, /) -> VariableTracker:
    if not isinstance(other, DictVariable):
        return NOT_IMPLEMENTED
    self.guard_keys(tx)
    other.guard_keys(tx)
    if len(self.entries) != len(other.entries):
        return ConstantVariable(False)
    ordered = (collections.OrderedDict,) * 2
    both_ordered = issubclass(self.cls, ordered) and issubclass(other.cls, ordered)
    if both_ordered and list(self.entries) != list(other.entries):
        return ConstantVariable(False)
    for hash_key, (_, value) in list(self.entries.items()):
        right = other.entries.get(hash_key)
        if right is None or not rich_equal(tx, value, right[1]):
            return ConstantVariable(False)
    return ConstantVariable(True)


@builtin_method(dict, "__ne__")
def _dict_ne(tx: Translator, self: DictVariable, other: VariableTracker, /) -> VariableTracker:
    equal = self.call_method(tx, "__eq__", [other], {})
    return equal if equal is NOT_IMPLEMENTED else ConstantVariable(not equal.truth(tx))


@builtin_method(dict, "__or__")
def _dict_or(tx: Translator, self: DictVariable, other: VariableTracker, /) -> VariableTracker:
    if not isinstance(other, DictVariable):
        return NOT_IMPLEMENTED
    result = copy_of(tx, self, union_type(self.cls))
    merge(tx, result, other)
    return result


@builtin_method(dict, "__ror__")
def _dict_ror(tx: Translator, self: DictVariable, other: VariableTracker, /) -> VariableTracker:
    if not isinstance(other, DictVariable):
        return NOT_IMPLEMENTED
    result = copy_of(tx, other, union_type(self.cls))
    merge(tx, result, self)
    return result


def union_type(cls: type) -> type:
    """The type of `a | b`: dict, except for the types of collections that keep theirs."""
    keep = issubclass(cls, (collections.OrderedDict, collections.defaultdict))
    return cls if keep else dict


@builtin_method(dict, "__ior__")
def _dict_ior(tx: Translator, self: DictVariable, other: VariableTracker, /) -> VariableTracker:
    merge(tx, self, other)
    return self


# -- OrderedDict --------------------------------------------------------------------------------


@builtin_method(collections.OrderedDict, "popitem")
def _ordered_popitem(
    tx: Translator, self: DictVariable, /, last: VariableTracker | None = None
) -> VariableTracker:
    if not self.entries:
        tx.raise_observed(KeyError, "dictionary is empty")
    return pop_end(tx, self, last=last is None or last.truth(tx))


@builtin_method(collections.OrderedDict, "move_to_end")
def _ordered_move_to_end(
    tx: Translator, self: DictVariable, /, key: VariableTracker, last: VariableTracker | None = None
) -> None:
    hash_key = key_of(tx, key)
    if self.find(tx, hash_key) is None:
        raise_key_error(key)
    moved = {hash_key: self.entries[hash_key]}
    rest = {k: pair for k, pair in self.entries.items() if k != hash_key}
    self.replace(tx, {**rest, **moved} if last is None or last.truth(tx) else {**moved, **rest})


@builtin_method(collections.OrderedDict, "copy")
def _ordered_copy(tx: Translator, self: DictVariable, /) -> VariableTracker:
    return copy_of(tx, self, self.cls)
