"""What copy.copy and copy.deepcopy rebuild containers from: `__reduce_ex__` of lists, tuples, dicts
and sets, and of subclasses (`reduce_newobj` of typeobject.c, and the types' own `__reduce__`).
"""

from __future__ import annotations

import collections
import copyreg
from typing import TYPE_CHECKING, Any

from .base import ObservedException, VariableTracker, unsupported
from .builtin_object import NONE, BuiltinObject, builtin_method, is_none
from .descriptors import bind, class_lookup, class_variable
from .instance_state import slot_names

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

_SETS = (set, frozenset)


def default_state(tx: Translator, value: Any, has_dict: bool) -> VariableTracker:
    """`object.__getstate__`: the instance dict, and the slots if there are any."""
    table: VariableTracker = NONE
    if has_dict and any(True for _ in value.instance_names(tx)):
        table = value.getattr(tx, "__dict__")
    slots: dict[str, VariableTracker] = {}
    for name in slot_names(value.python_type()):
        try:
            slots[name] = value.getattr(tx, name)
        except ObservedException:
            continue
    if not slots:
        return table
    return tx.wrap_items(tuple, [table, tx.wrap_keywords(slots)])


def _hook(tx: Translator, self: BuiltinObject, name: str) -> VariableTracker | None:
    """A method of the program's for copying, bound."""
    if not self.overrides(name):
        return None
    found = class_lookup(tx, self.cls, name)
    return None if found is None else bind(tx, found, self, self.cls)


def _parts(
    tx: Translator,
    self: BuiltinObject,
    protocol: VariableTracker,
) -> tuple[VariableTracker | None, VariableTracker]:
    """What the program's own `__reduce__` gives, or None; and the state."""
    kind = protocol.as_python_constant()
    if not isinstance(kind, int) or kind < 2:
        unsupported("builtin method", "__reduce_ex__", f"of the protocol {kind!r}")
    reduce, getstate = _hook(tx, self, "__reduce__"), _hook(tx, self, "__getstate__")
    if reduce is not None:
        return tx.call_function(reduce, [], {}), NONE
    if getstate is not None:
        return None, tx.call_function(getstate, [], {})
    return None, default_state(tx, self, self.cls.__dictoffset__ != 0)


def _made(tx: Translator, *parts: VariableTracker) -> VariableTracker:
    return tx.wrap_items(tuple, list(parts))


def _new_object(
    tx: Translator,
    self: BuiltinObject,
    protocol: VariableTracker,
    *given: VariableTracker,
) -> list[VariableTracker] | VariableTracker:
    """`copyreg.__newobj__`, its arguments and the state; or all that the class itself gives."""
    whole, state = _parts(tx, self, protocol)
    if whole is not None:
        return whole
    if self.overrides("__getnewargs_ex__"):
        unsupported("builtin method", "__reduce_ex__", "its class has __getnewargs_ex__")
    getnewargs = _hook(tx, self, "__getnewargs__")
    if getnewargs is not None:
        given = tuple(tx.call_function(getnewargs, [], {}).realize().unpack(tx))
    make = tx.wrap_constant(copyreg.__newobj__)  # type: ignore[attr-defined]
    return [make, _made(tx, class_variable(tx, self.cls), *given), state]


@builtin_method(list, "__reduce_ex__")
def _list(
    tx: Translator,
    self: BuiltinObject,
    protocol: VariableTracker,
    /,
) -> VariableTracker:
    head = _new_object(tx, self, protocol)
    return _made(tx, *head, self.iter(tx), NONE) if isinstance(head, list) else head


@builtin_method(tuple, "__reduce_ex__")
def _tuple(
    tx: Translator,
    self: BuiltinObject,
    protocol: VariableTracker,
    /,
) -> VariableTracker:
    """The items are an argument of `__new__` (`tuple.__getnewargs__`)."""
    items = tx.wrap_items(tuple, self.unpack(tx))
    head = _new_object(tx, self, protocol, items)
    return _made(tx, *head, NONE, NONE) if isinstance(head, list) else head


@builtin_method(dict, "__reduce_ex__")
def _dict(
    tx: Translator,
    self: BuiltinObject,
    protocol: VariableTracker,
    /,
) -> VariableTracker:
    """Of the types of collections: `odict_reduce` and `defdict_reduce`."""
    is_default = issubclass(self.cls, collections.defaultdict)
    if not (is_default or issubclass(self.cls, collections.OrderedDict)):
        head = _new_object(tx, self, protocol)
        if not isinstance(head, list):
            return head
        return _made(tx, *head, NONE, self.call_method(tx, "items", [], {}).iter(tx))
    whole, state = _parts(tx, self, protocol)
    if whole is not None:
        return whole
    factory: VariableTracker = getattr(self, "default_factory", None) or NONE
    arguments = [] if is_none(factory) else [factory]
    items = self.call_method(tx, "items", [], {}).iter(tx)
    head = [class_variable(tx, self.cls), tx.wrap_items(tuple, arguments)]
    return _made(tx, *head, NONE if is_default else state, NONE, items)


@builtin_method(_SETS, "__reduce_ex__")
def _set(
    tx: Translator,
    self: BuiltinObject,
    protocol: VariableTracker,
    /,
) -> VariableTracker:
    """`set_reduce`: the items are an argument of the class."""
    whole, state = _parts(tx, self, protocol)
    if whole is not None:
        return whole
    items = tx.wrap_items(list, self.unpack(tx))
    return _made(tx, class_variable(tx, self.cls), tx.wrap_items(tuple, [items]), state)
