"""The methods of dict, OrderedDict and defaultdict, by CPython's dictobject.c and odictobject.c."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, NoReturn

from .base import ObservedException, VariableTracker, unsupported
from .builtin_object import (
    NONE,
    NOT_IMPLEMENTED,
    builtin_method,
    has_slot,
    is_none,
    rich_equal,
)
from .constant import ConstantVariable
from .dicts import DictVariable, key_of, raise_key_error
from .exceptions import ExceptionVariable
from .instance_dict import InstanceDictVariable
from .lists import TupleVariable
from .services import SEQUENCE_BUILDERS

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

# -- the methods of dict ------------------------------------------------------------------------


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
def _dict_contains(
    tx: Translator,
    self: DictVariable,
    key: VariableTracker,
    /,
) -> VariableTracker:
    return ConstantVariable(self.find(tx, key_of(tx, key)) is not None)


@builtin_method(dict, "__getitem__")
def _dict_getitem(
    tx: Translator,
    self: DictVariable,
    key: VariableTracker,
    /,
) -> VariableTracker:
    found = self.find(tx, key_of(tx, key))
    if found is not None:
        return found
    if self.cls is not dict and self.lookup("__missing__") is not None:
        return self.call_method(tx, "__missing__", [key], {})
    raise_key_error(key)


@builtin_method(collections.defaultdict, "__missing__")
def _defaultdict_missing(
    tx: Translator,
    self: DictVariable,
    key: VariableTracker,
    /,
) -> VariableTracker:
    factory = self.default_factory.realize() if self.default_factory is not None else NONE
    if isinstance(factory, ConstantVariable) and factory.value is None:
        raise_key_error(key)
    value = tx.call_function(factory, [], {})
    self.setitem(tx, key, value)
    return value


@builtin_method(dict, "__setitem__", lazy=True)
def _dict_setitem(
    tx: Translator,
    self: DictVariable,
    key: VariableTracker,
    value: VariableTracker,
    /,
) -> None:
    self.put(tx, key.realize(), value)


@builtin_method(dict, "__delitem__")
def _dict_delitem(
    tx: Translator,
    self: DictVariable,
    key: VariableTracker,
    /,
) -> None:
    hash_key = key_of(tx, key)
    if self.find(tx, hash_key) is None:
        raise_key_error(key)
    self.take(tx, hash_key)


@builtin_method(dict, "get", lazy=True)
def _dict_get(
    tx: Translator,
    self: DictVariable,
    key: VariableTracker,
    default: VariableTracker = NONE,
    /,
) -> VariableTracker:
    found = self.find(tx, key_of(tx, key))
    return default if found is None else found


@builtin_method(dict, "setdefault", lazy=True)
def _dict_setdefault(
    tx: Translator,
    self: DictVariable,
    key: VariableTracker,
    default: VariableTracker = NONE,
    /,
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
    return pop_end(tx, self, last=True, raw_order=True)


def pop_end(
    tx: Translator,
    self: DictVariable,
    *,
    last: bool,
    raw_order: bool = False,
) -> VariableTracker:
    """Remove and return the last or first item; raw_order: in the order of plain dicts."""
    self.guard_keys(tx, any_order=raw_order)
    if not self.entries:
        tx.raise_observed(KeyError, "popitem(): dictionary is empty")
    hash_key = next(reversed(self.entries) if last else iter(self.entries))
    key = self.entries[hash_key][0]
    return tx.wrap_items(tuple, [key, self.take(tx, hash_key)])


@builtin_method(dict, "clear")
def _dict_clear(tx: Translator, self: DictVariable, /) -> None:
    self.replace(tx, {}, list(self.entries))
    self.is_cleared = True


@builtin_method(dict, "copy")
def _dict_copy(tx: Translator, self: DictVariable, /) -> VariableTracker:
    return copy_of(tx, self, dict)


def copy_of(
    tx: Translator,
    self: DictVariable,
    cls: type,
) -> DictVariable:
    """A new dict of type `cls` with the same items (`PyDict_Copy`)."""
    if _asks(cls, self):
        result = DictVariable({}, cls, default_factory=self.default_factory)
        merge(tx, result, self)
        return result
    self.guard_keys(tx)
    return DictVariable(dict(self.entries), cls, default_factory=self.default_factory)


def _new_like(
    tx: Translator,
    self: DictVariable,
    items: DictVariable,
) -> DictVariable:
    """A dict for `a | b`, with the items of `a`: the types of collections keep subclasses."""
    if not issubclass(self.cls, (collections.OrderedDict, collections.defaultdict)):
        return copy_of(tx, items, dict)
    is_default = issubclass(self.cls, collections.defaultdict)
    if self.cls in (collections.OrderedDict, collections.defaultdict):
        result = copy_of(tx, items, self.cls)
        result.default_factory = self.default_factory
        return result
    args: list[VariableTracker] = [items]
    if is_default:
        args.insert(0, self.default_factory or NONE)
    made = tx.call_function(self.getattr(tx, "__class__"), args, {}).realize()
    if not isinstance(made, DictVariable):
        unsupported("dict method", repr(made), f"{self.cls.__qualname__} makes no dict")
    return made


@builtin_method(dict, "update")
def _dict_update(
    tx: Translator, self: DictVariable, other: VariableTracker | None = None, /, **named: Any
) -> None:
    if other is not None:
        merge(tx, self, other)
    for name, value in named.items():
        self.put_item(tx, ConstantVariable(name), value)


def _asks(cls: type, other: DictVariable) -> bool:
    """Whether a dict of type `cls` takes items by the methods of the class of `other`."""
    if not (other.overrides("keys") or other.overrides("__getitem__")):
        return False
    if other.overrides("__iter__"):
        return True
    return issubclass(cls, collections.OrderedDict) or issubclass(
        other.cls, collections.OrderedDict
    )


def merge(
    tx: Translator,
    self: DictVariable,
    other: VariableTracker,
) -> None:
    """`dict.update(self, other)`: another dict, something with `keys`, or pairs."""
    if isinstance(other, DictVariable) and not _asks(self.cls, other):
        other.guard_keys(tx)
        length = len(other.entries)
        for key, value in list(other.entries.values()):
            self.put_item(tx, key, value)
            is_changed = self is not other and len(other.entries) != length
            if is_changed and not issubclass(self.cls, collections.OrderedDict):
                tx.raise_observed(RuntimeError, "dict mutated during update")
    elif has_keys(tx, other):
        for key in other.call_method(tx, "keys", [], {}).realize().unpack(tx):
            self.put_item(tx, key, other.getitem(tx, key.realize()))
    else:
        for number, pair in enumerate(other.each(tx)):
            items = _pair_items(tx, self, number, pair.realize())
            self.put_item(tx, *items)


def _pair_items(
    tx: Translator,
    self: DictVariable,
    number: int,
    pair: VariableTracker,
) -> list[VariableTracker]:
    """One pair given to `update`; OrderedDict has words of its own for what is none."""
    ordered = issubclass(self.cls, collections.OrderedDict)
    try:
        items = pair.unpack(tx)
    except ObservedException as error:
        if ordered or not issubclass(error.value.python_type(), TypeError):
            raise
        text = f"cannot convert dictionary update sequence element #{number} to a sequence"
        tx.raise_observed(TypeError, text)
    if len(items) == 2:
        return items
    text = (
        f"dictionary update sequence element #{number} has length {len(items)}; 2 is required"
    )
    if ordered:
        few = f"need more than {len(items)} value{'s' * (len(items) != 1)} to unpack"
        text = few if len(items) < 2 else "too many values to unpack (expected 2)"
    tx.raise_observed(ValueError, text)


def has_keys(tx: Translator, value: VariableTracker) -> bool:
    """Whether `dict.update` takes `value` for a mapping."""
    cls = value.python_type()
    if hasattr(cls, "keys") or not cls.__dictoffset__:
        return hasattr(cls, "keys")
    asked = tx.call_function(tx.wrap_constant(hasattr), [value, ConstantVariable("keys")], {})
    return asked.truth(tx)


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
    if not is_none(factory.realize()) and not has_slot(tx, factory.realize(), "__call__"):
        tx.raise_observed(TypeError, "first argument must be callable or None")
    tx.output.side_effects.mutate(self)
    self.default_factory = factory
    _dict_update(tx, self, other, **named)


@builtin_method(collections.defaultdict, "copy", "__copy__")
def _defaultdict_copy(tx: Translator, self: DictVariable, /) -> VariableTracker:
    return _new_like(tx, self, self)


# -- comparison and union -----------------------------------------------------------------------


@builtin_method(dict, "__eq__")
def _dict_eq(
    tx: Translator,
    self: DictVariable,
    other: VariableTracker,
    /,
) -> VariableTracker:
    if isinstance(other, InstanceDictVariable):
        other = other.copy(tx)
    if not isinstance(other, DictVariable):
        return NOT_IMPLEMENTED
    ordered = (collections.OrderedDict,) * 2
    both_ordered = issubclass(self.cls, ordered) and issubclass(other.cls, ordered)
    self.guard_keys(tx, any_order=not both_ordered)
    other.guard_keys(tx, any_order=not both_ordered)
    if len(self.entries) != len(other.entries):
        return ConstantVariable(False)
    if both_ordered and list(self.entries) != list(other.entries):
        return ConstantVariable(False)
    for hash_key, (_, value) in list(self.entries.items()):
        right = other.entries.get(hash_key)
        if right is None or not rich_equal(tx, value, right[1]):
            return ConstantVariable(False)
    return ConstantVariable(True)


@builtin_method(dict, "__ne__")
def _dict_ne(
    tx: Translator,
    self: DictVariable,
    other: VariableTracker,
    /,
) -> VariableTracker:
    equal = self.call_method(tx, "__eq__", [other], {})
    return equal if equal is NOT_IMPLEMENTED else ConstantVariable(not equal.truth(tx))


@builtin_method(dict, "__lt__", "__le__", "__gt__", "__ge__")
def _dict_order(
    tx: Translator,
    self: DictVariable,
    other: VariableTracker,
    /,
) -> VariableTracker:
    return NOT_IMPLEMENTED


@builtin_method(dict, "__or__")
def _dict_or(
    tx: Translator,
    self: DictVariable,
    other: VariableTracker,
    /,
) -> VariableTracker:
    if not isinstance(other, DictVariable):
        return NOT_IMPLEMENTED
    result = _new_like(tx, self, self)
    merge(tx, result, other)
    return result


@builtin_method(dict, "__ror__")
def _dict_ror(
    tx: Translator,
    self: DictVariable,
    other: VariableTracker,
    /,
) -> VariableTracker:
    if not isinstance(other, DictVariable):
        return NOT_IMPLEMENTED
    result = _new_like(tx, self, other)
    merge(tx, result, self)
    return result


@builtin_method(dict, "__ior__")
def _dict_ior(
    tx: Translator,
    self: DictVariable,
    other: VariableTracker,
    /,
) -> VariableTracker:
    merge(tx, self, other)
    return self


# -- OrderedDict --------------------------------------------------------------------------------


@builtin_method(collections.OrderedDict, "popitem")
def _ordered_popitem(
    tx: Translator,
    self: DictVariable,
    /,
    last: VariableTracker | None = None,
) -> VariableTracker:
    if not self.entries:
        tx.raise_observed(KeyError, "dictionary is empty")
    return pop_end(tx, self, last=last is None or last.truth(tx))


def _raise_bare_key_error(key: VariableTracker) -> NoReturn:
    """`PyErr_SetObject(PyExc_KeyError, key)`: None and tuples are taken for the arguments."""
    args = [key]
    if isinstance(key, ConstantVariable) and key.value is None:
        args = []
    elif isinstance(key, TupleVariable):
        args = key.items
    elif isinstance(key, ConstantVariable) and isinstance(key.value, tuple):
        args = [ConstantVariable(item) for item in key.value]
    raise ObservedException(ExceptionVariable(KeyError, args))


@builtin_method(collections.OrderedDict, "pop", lazy=True)
def _ordered_pop(
    tx: Translator,
    self: DictVariable,
    /,
    key: VariableTracker,
    default: VariableTracker | None = None,
) -> VariableTracker:
    if default is None and self.find(tx, key_of(tx, key)) is None:
        _raise_bare_key_error(key.realize())
    return _dict_pop(tx, self, key, default)


@builtin_method(collections.OrderedDict, "move_to_end")
def _ordered_move_to_end(
    tx: Translator,
    self: DictVariable,
    /,
    key: VariableTracker,
    last: VariableTracker | None = None,
) -> None:
    hash_key = key_of(tx, key)
    if self.find(tx, hash_key) is None:
        _raise_bare_key_error(key)
    if last is None or last.truth(tx):
        self.move_to_end(tx, hash_key)
    else:
        self.replace(tx, {hash_key: self.entries[hash_key], **self.entries}, ())


@builtin_method(collections.OrderedDict, "copy")
def _ordered_copy(tx: Translator, self: DictVariable, /) -> VariableTracker:
    if self.cls is collections.OrderedDict:
        return copy_of(tx, self, self.cls)
    made = tx.call_function(self.getattr(tx, "__class__"), [], {}).realize()
    self.guard_keys(tx)
    for key, _ in list(self.entries.values()):
        made.setitem(tx, key, self.getitem(tx, key))
    return made
