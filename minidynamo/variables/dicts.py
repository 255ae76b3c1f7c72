"""dict and its kin: OrderedDict, defaultdict, Counter, Python subclasses, mappingproxy, views.

A key is stored under its `hash_key`, a Python object that is equal and hashes alike exactly when
the traced keys do, so a Python dict keeps order and lookup. Of an existing dict only the keys
that were asked for are guarded, until something looks at all of them.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ..side_effects import Mutation
from ..source import AttrSource, ConstSource, DictItemSource, DictKeySource, DictValueSource
from ..source_calls import instance_dict
from .base import NotConstant, ObservedException, VariableTracker, is_same, unsupported
from .builder import builds
from .builtin_object import (
    NONE,
    BuiltinObject,
    apply_with,
    construct,
    follows_base,
)
from .constant import ConstantVariable, is_value
from .exceptions import ExceptionVariable
from .globals_ import is_globals, wrap_globals
from .lists import constants_of
from .registry import wraps, wraps_instances
from .services import SEQUENCE_BUILDERS
from .user_keys import UserKey, check_hashed_keys, check_rebuilt_keys

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
    if not isinstance(key, ConstantVariable):
        note_identity(tx, key)
    return found


def are_hashable(tx: Translator, items: list[VariableTracker]) -> bool:
    """Whether all of these can be keys."""
    try:
        for item in items:
            key_of(tx, item)
    except ObservedException:
        return False
    return True


def note_identity(tx: Translator, key: VariableTracker) -> None:
    """Objects that were hashed by identity have to be different ones in each call."""
    if tx.output.side_effects.real_of(key) is not None and key.source is not None:
        tx.output.hashed[key.source] = None


class OwnDicts(NamedTuple):
    """Dicts that are their own instance dicts (see own_dicts.py, which is above this file)."""

    kind: type[DictVariable]
    check: Callable[[Translator, DictVariable], None]
    adopt: Callable[[Translator, DictVariable], None]


OWN_DICTS: list[OwnDicts] = []
_DICT_MUTATORS = frozenset(
    "__setitem__ __delitem__ clear pop popitem setdefault update __ior__".split()
)


_FACTORY = collections.defaultdict.default_factory  # type: ignore[misc]


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
        # The keys that were removed (some may have come again).
        self._removed: set[Any] = set()
        # How often a key came or went (`od_state` of OrderedDict).
        self.key_changes = 0
        # Whether `clear` was called: all entries are newer.
        self.is_cleared = False
        # Of an OrderedDict: keys that methods of dict added, which its order lacks, and whether
        # they removed some that it still has.
        self._hidden: set[Any] = set()
        self._order_is_lost = False
        self._is_bypassed = False  # while one of them is called
        self._keys_are_guarded = not is_real

    def call_builtin(
        self,
        tx: Translator,
        raw: Any,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        if not issubclass(self.cls, collections.OrderedDict):
            return super().call_builtin(tx, raw, args, kwargs)
        is_direct = raw.__objclass__ is dict and raw.__name__ in _DICT_MUTATORS
        if not is_direct or self._keeps_keys(tx, raw.__name__, args):
            return super().call_builtin(tx, raw, args, kwargs)
        is_ordered_else = raw.__name__ == "popitem" and bool(self._removed)
        if self.source is not None or is_ordered_else or self.overrides("__setitem__"):
            unsupported("dict method", f"dict.{raw.__name__}", "it bypasses an OrderedDict")
        before = set(self.entries)
        self._is_bypassed = True
        try:
            return super().call_builtin(tx, raw, args, kwargs)
        finally:
            self._is_bypassed = False
            gone = before - set(self.entries)
            self._order_is_lost |= bool(gone - self._hidden)
            self._hidden = self._hidden - gone | set(self.entries) - before

    def _keeps_keys(self, tx: Translator, name: str, args: list[VariableTracker]) -> bool:
        """Whether a method of dict only sets what is there, which an OrderedDict shows too."""
        return (
            name == "__setitem__"
            and len(args) == 2
            and self.find(tx, key_of(tx, args[0])) is not None
        )

    # -- guards ----------------------------------------------------------------------------------

    def is_ordered(self) -> bool:
        """Whether it is an OrderedDict, whose order is kept elsewhere."""
        return issubclass(self.cls, collections.OrderedDict)

    def is_in_order(self) -> bool:
        """Whether its order is that of its entries."""
        return not self._hidden and not self._order_is_lost

    def in_order(self, tx: Translator) -> list[tuple[VariableTracker, VariableTracker]]:
        """The pairs that an OrderedDict shows. Where methods of dict removed keys that its order
        still has, that raises.
        """
        self.guard_keys(tx, any_order=True)
        if self._order_is_lost and self.entries:
            self._refuse_order()
        return [pair for key, pair in self.entries.items() if key not in self._hidden]

    def _refuse_order(self) -> NoReturn:
        unsupported("dict method", "OrderedDict", "dict's own methods changed it")

    def guard_keys(self, tx: Translator, *, any_order: bool = False) -> None:
        """From now on the trace depends on exactly these keys in this order."""
        if not any_order and not self.is_in_order():
            self._refuse_order()
        if not self._keys_are_guarded and self.source is not None:
            ordered = isinstance(self.real, collections.OrderedDict)
            keys = (
                collections.OrderedDict.__iter__(self.real) if ordered else dict.keys(self.real)
            )
            tx.guard(self.source, "DICT_KEYS", tuple(keys))
            self._keys_are_guarded = True

    def find(self, tx: Translator, key: Any) -> VariableTracker | None:
        """The value under a hash key, or None."""
        found = self.entries.get(key)
        self._guard_key(tx, key)
        return None if found is None else found[1]

    def _guard_key(self, tx: Translator, key: Any) -> None:
        if self._keys_are_guarded or key in self._touched or self.source is None:
            return
        if not (is_value(key) or _is_known_by_identity(key)):
            self.guard_keys(tx, any_order=True)
            return
        tx.guard(self.source, "DICT_HAS" if key in self.original else "DICT_LACKS", key)

    def guard_length(self, tx: Translator) -> None:
        """From now on the trace depends on how many keys there are."""
        if not self._keys_are_guarded and self.source is not None:
            tx.guard(self.source, "LEN_EQ", len(self.original))

    # -- changing --------------------------------------------------------------------------------

    def put(
        self,
        tx: Translator,
        key: VariableTracker,
        value: VariableTracker,
    ) -> None:
        hash_key = key_of(tx, key)
        self._guard_key(tx, hash_key)
        tx.output.side_effects.mutate(self)
        self._touched[hash_key] = None
        known = self.entries.get(hash_key)
        if hash_key in self._hidden:
            self._order_is_lost = True
        self.key_changes += known is None
        self.entries[hash_key] = (key if known is None else known[0], value)

    def put_item(
        self,
        tx: Translator,
        key: VariableTracker,
        value: VariableTracker,
    ) -> None:
        """A store by `update`: OrderedDict goes through `__setitem__`, dict does not."""
        store = self.setitem if issubclass(self.cls, collections.OrderedDict) else self.put
        store(tx, key, value)

    def take(self, tx: Translator, hash_key: Any) -> VariableTracker:
        """Remove an entry that exists."""
        if not self._is_bypassed and not self.is_in_order():
            self._refuse_order()
        self._guard_key(tx, hash_key)
        tx.output.side_effects.mutate(self)
        self._touched[hash_key] = None
        self._removed.add(hash_key)
        self.key_changes += 1
        return self.entries.pop(hash_key)[1]

    def move_to_end(self, tx: Translator, hash_key: Any) -> None:
        """Make an entry that exists the last one."""
        self.guard_keys(tx)
        tx.output.side_effects.mutate(self)
        self._touched[hash_key] = None
        self._removed.add(hash_key)
        self.key_changes += 1
        self.entries[hash_key] = self.entries.pop(hash_key)

    def replace(self, tx: Translator, entries: Entries, removed: Iterable[Any]) -> None:
        """Give the dict these entries in this order; `removed` keys went, and may come again."""
        self.guard_keys(tx, any_order=not entries)
        if not self._is_bypassed:
            self._hidden, self._order_is_lost = set(), False
        tx.output.side_effects.mutate(self)
        self._touched.update(dict.fromkeys([*self.entries, *entries]))
        self._removed.update(removed)
        self.key_changes += 1
        self.entries = entries

    def snapshot(self) -> Any:
        return (
            dict(self.entries),
            dict(self._touched),
            set(self._removed),
            self.key_changes,
            self.is_cleared,
            set(self._hidden),
            self._order_is_lost,
        )

    def put_back(self, tx: Translator, snapshot: Any) -> bool:
        entries, *log = snapshot
        is_again = list(entries) == list(self.entries) and all(
            is_same(before, after)
            for (_, before), (_, after) in zip(
                entries.values(), self.entries.values(), strict=True
            )
        )
        if is_again:
            self.entries = entries
            self._touched, self._removed, self.key_changes, self.is_cleared = log[:4]
            self._hidden, self._order_is_lost = log[4:]
        return is_again

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
        keys = constants_of(self, [key for key, _ in self.entries.values()])
        values = constants_of(self, [value for _, value in self.entries.values()])
        return dict(zip(keys, values, strict=True))

    def as_proxy(self) -> Any:
        return {
            key.realize().as_python_constant(): value.realize().as_proxy()
            for key, value in self.entries.values()
        }

    def load_slot(self, tx: Translator, descriptor: Any) -> VariableTracker:
        if descriptor is not _FACTORY:
            return super().load_slot(tx, descriptor)
        return NONE if self.default_factory is None else self.default_factory

    def store_in_c(
        self,
        tx: Translator,
        descriptor: Any,
        value: VariableTracker | None,
    ) -> None:
        if value is not None and value.realize() is self and descriptor.__name__ == "__dict__":
            OWN_DICTS[0].adopt(tx, self)
            return
        if descriptor is not _FACTORY or value is None:
            super().store_in_c(tx, descriptor, value)
            return
        tx.output.side_effects.store_attr(self, "default_factory", value)
        self.default_factory = value

    # -- leaving the trace -----------------------------------------------------------------------

    def reconstruct(self, codegen: PyCodegen) -> None:
        if not self.is_in_order():
            self._refuse_order()
        if self.cls is dict:
            self._push_pairs(codegen, self.entries.items())
            return

        def push() -> None:
            self._push_pairs(codegen, self.entries.items())

        def push_factory() -> None:
            codegen(self.default_factory or NONE)

        construct(codegen, _new_dict, lambda: codegen.load_const(self.cls), push, push_factory)
        self.reconstruct_attributes(codegen)

    is_fillable = True

    def push_empty(self, codegen: PyCodegen) -> None:
        check_rebuilt_keys(self.entries)
        factory = self.default_factory or NONE
        construct(
            codegen,
            _new_dict,
            lambda: codegen.load_const(self.cls),
            lambda: codegen.emit("BUILD_MAP", 0),
            lambda: codegen(factory),
        )

    def _push_pairs(self, codegen: PyCodegen, entries: Collection[tuple[Any, Any]]) -> None:
        check_rebuilt_keys(key for key, _ in entries)
        for _, pair in entries:
            codegen.sequence(pair)
        codegen.emit("BUILD_MAP", len(entries))

    def changes(self) -> tuple[list[VariableTracker], list[tuple[Any, Any]]]:
        """(keys to delete, entries to store in order) that turn the original into this dict.

        The entries that stay are the longest start of the new order that is in the old order.
        """
        if any(isinstance(key, UserKey) for key in (*self.original, *self.entries)):
            return self._changes_by_identity()
        kept: set[Any] = set()
        old = iter(self.original)
        for key in self.entries:
            if key in self._removed or not any(key == candidate for candidate in old):
                break
            kept.add(key)
        deleted = [variable for key, variable in self.original.items() if key not in kept]
        touched = self._touched
        stored = [
            item for item in self.entries.items() if item[0] not in kept or item[0] in touched
        ]
        return deleted, stored

    def _changes_by_identity(self) -> tuple[list[VariableTracker], list[tuple[Any, Any]]]:
        """`changes` of a dict whose keys are not compared any more: the program's `__eq__`
        would run. What stays is not deleted first, since iterators of the dict stand at it.
        """
        kept: set[int] = set()
        old = iter(self.original)
        for key in self.entries:
            if not any(key is candidate for candidate in old):
                break
            kept.add(id(key))
        deleted = [variable for key, variable in self.original.items() if id(key) not in kept]
        return deleted, list(self.entries.items())

    def push_contents(self, codegen: PyCodegen) -> None:
        deleted, stored = self.changes()
        if self.is_cleared:
            stored = list(self.entries.items())
        check_hashed_keys(key for key, _ in stored)
        for _, pair in stored:
            codegen.sequence(pair)
        codegen.emit("BUILD_TUPLE", 2 * len(stored))
        if self.is_cleared:
            codegen.load_const(None)
        else:
            codegen.sequence(deleted)
            codegen.emit("BUILD_TUPLE", len(deleted))
        codegen.emit("BUILD_TUPLE", 2)

    def apply_contents(self, codegen: PyCodegen) -> None:
        ordered = issubclass(self.cls, collections.OrderedDict)
        apply_with(codegen, self, _change_ordered_dict if ordered else _change_dict)


def _new_dict(cls: type, entries: dict[Any, Any], factory: Any) -> Any:
    result: Any = dict.__new__(cls)
    store = collections.OrderedDict if issubclass(cls, collections.OrderedDict) else dict
    if issubclass(cls, collections.defaultdict):
        result.default_factory = factory
    for key, value in entries.items():
        store.__setitem__(result, key, value)
    return result


_Change = tuple[tuple[Any, ...], tuple[Any, ...] | None]


def _change_dict(real: dict[Any, Any], change: _Change) -> None:
    """change: keys and values to store by turns, and keys to delete, or None for all. They are
    hashed here, when the attributes of objects are what they are to be. Whoever is looking a key
    up in the dict, or merging it, sees whether it was cleared: its table is another.
    """
    _change(dict, real, change)


def _change_ordered_dict(real: dict[Any, Any], change: _Change) -> None:
    _change(collections.OrderedDict, real, change)


def _change(kind: Any, real: dict[Any, Any], change: _Change) -> None:
    if change[1] is None:
        kind.clear(real)
    else:
        for key in change[1]:
            kind.__delitem__(real, key)
    stored = change[0].__iter__()  # the program may have hidden builtins
    for key in stored:
        kind.__setitem__(real, key, stored.__next__())


def raise_key_error(key: VariableTracker) -> NoReturn:
    """Raise the program's KeyError for a missing key."""
    raise ObservedException(ExceptionVariable(KeyError, [key]))


# -- building and wrapping ----------------------------------------------------------------------


def _build_dict(
    tx: Any, type_: type, items: dict[str, VariableTracker] | list[VariableTracker]
) -> VariableTracker:
    assert isinstance(items, dict)
    entries: Entries = {name: (ConstantVariable(name), value) for name, value in items.items()}
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
    if cls is dict and is_globals(tx, value):
        return wrap_globals(tx, value, source)
    tx.guard(source, "TYPE_IS", cls)
    raw = cls.__getitem__ is not dict.__getitem__
    entries: Entries = {}
    by_key = all(is_value(key) or _is_known_by_identity(key) for key in dict.keys(value))
    for index, (key, item) in enumerate(_own_items(value)):
        if is_value(key):
            entries[key] = (
                ConstantVariable(key),
                tx.lazy(item, DictItemSource(source, key, raw)),
            )
        elif by_key:
            known = tx.lazy(key, ConstSource(key, getattr(key, "__name__", "")))
            entries[key] = known, tx.lazy(item, DictItemSource(source, key, raw))
        else:
            variable, hash_key = _wrap_key(tx, key, DictKeySource(source, index))
            entries[hash_key] = variable, tx.lazy(item, DictValueSource(source, index))
    if len(entries) != dict.__len__(value):
        unsupported("hash", source.name, "two of its keys are equal by now")
    factory = None
    if issubclass(cls, collections.defaultdict):
        found = value.default_factory  # type: ignore[attr-defined]
        factory = tx.lazy(found, AttrSource(source, "default_factory"))
    own = cls is not dict and instance_dict(value) is value
    result: DictVariable = (OWN_DICTS[0].kind if own else DictVariable)(
        entries,
        cls,
        source=source,
        mutation=Mutation.EXISTING,
        real=value,
        default_factory=factory,
    )
    if own:
        OWN_DICTS[0].check(tx, result)
    if not by_key:
        result.guard_keys(tx)
    return result


def _own_items(value: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """Pairs in the dict's own order, whatever a subclass overrides."""
    if issubclass(type(value), collections.OrderedDict):
        try:
            return list(collections.OrderedDict.items(value))  # type: ignore[arg-type]
        except KeyError:
            unsupported("dict method", "OrderedDict", "dict's own methods changed it")
    return dict.items(value)


def _is_known_by_identity(key: Any) -> bool:
    """Whether it is a class or a function that lasts, found in dicts by what it is."""
    if isinstance(key, types.FunctionType):
        return key.__closure__ is None
    if isinstance(key, types.BuiltinFunctionType):
        return isinstance(key.__self__, (types.ModuleType, type, types.NoneType))
    return isinstance(key, type) and type(key).__hash__ is type.__hash__


def _wrap_key(tx: Translator, key: Any, source: Source) -> tuple[VariableTracker, Any]:
    """(key, hash key) of a key that is no plain value; DICT_KEYS guards its identity."""
    by_identity = isinstance(key, (type, types.FunctionType, types.BuiltinFunctionType))
    if by_identity and type(key).__hash__ in (type.__hash__, object.__hash__):
        return tx.lazy(key, source), key
    variable = tx.wrap(key, source)
    try:
        note_identity(tx, variable)
        return variable, variable.hash_key(tx)
    except ObservedException:
        # The program itself does not hash it here.
        unsupported("hash", repr(variable), "its __hash__ raises")
