"""Which objects run code when they come to their end: those with a `__del__`, those whose weak
references have callbacks, generators in a `try` or `with`, and whatever leads to such an object.
"""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Container
from typing import Any

import torch

from .bytecode import BytecodeError, decode
from .utils import class_dict

# Others know them by weak references, and their ends are torch's or Python's own business.
_COMMON = (
    torch.Tensor,
    torch.nn.Module,
    torch.UntypedStorage,
    torch.TypedStorage,
    types.FunctionType,
    types.CodeType,
    types.ModuleType,
    type,
)
# By id: metaclasses may hash and compare in their own way.
_PLAIN = frozenset(map(id, (int, float, complex, str, bytes, bool, type(None), torch.dtype)))
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
# More objects than this are not looked at.
_MAX_OBJECTS = 4096


def has_finalizer(value: Any) -> bool:
    """Whether the end of this very object runs code of the program."""
    cls = type(value)
    if cls is types.GeneratorType:
        return _cleans_up(value)
    if not cls.__flags__ & _HEAP_TYPE or issubclass(cls, _COMMON):
        return False
    if any(
        isinstance(class_dict(base).get("__del__"), types.FunctionType) for base in cls.__mro__
    ):
        return True
    if not weakref.getweakrefcount(value):
        return False
    return any(map(_has_callback, weakref.getweakrefs(value)))


# How handlers begin that the compiler makes around a `yield from`, and around a whole generator.
IMPLICIT_HANDLERS = ("CLEANUP_THROW", "CALL_INTRINSIC_1")


def _cleans_up(generator: types.GeneratorType[Any, Any, Any]) -> bool:
    """Whether it is suspended inside of a `try` or `with`."""
    frame = generator.gi_frame
    if frame is None or not generator.gi_suspended or not frame.f_code.co_exceptiontable:
        return False
    try:
        listing = decode(frame.f_code)
    except BytecodeError:
        return True
    last = next((inst for inst in listing if inst.offset == frame.f_lasti), None)
    handler = None if last is None else last.handler
    while handler is not None and handler.target.opname in IMPLICIT_HANDLERS:
        handler = handler.target.handler
    return handler is not None


def _has_callback(ref: Any) -> bool:
    """Of a proxy, whose attributes are its object's, only the collector knows it."""
    if type(ref) in weakref.ProxyTypes:
        return bool(gc.get_referents(ref))
    return ref.__callback__ is not None


def ends_with_code(
    value: Any,
    looked_at: Container[int] = (),
    settled: set[int] | None = None,
) -> bool:
    """Whether letting go of `value` runs code of the program: it has a finalizer, or all that
    leads to an object with one.

    looked_at: the ids of objects whose parts the tracer itself holds, too.
    settled: the ids of values that lead to most of the heap and whose end runs no code, as far as
    can be told: not looked at again. This one may be added.
    """
    if id(type(value)) in _PLAIN or issubclass(type(value), _COMMON):
        return False
    if settled is not None and id(value) in settled:
        return False
    reached = _Reached(value, looked_at, settled or ())
    found = {id(item) for item in reached.items if has_finalizer(item)}
    if found and not reached.is_held_elsewhere(found):
        return True
    if settled is not None and len(reached.items) >= _MAX_OBJECTS:
        settled.add(id(value))
    return False


def leads_to(value: Any, part: Any) -> bool:
    """Whether `value` holds `part`, directly or not."""
    return any(item is part for item in _Reached(value, ()).items)


class _Reached:
    """The objects that `value` leads to, itself first, and how often they lead to each other."""

    def __init__(
        self,
        value: Any,
        looked_at: Container[int],
        settled: Container[int] = (),
    ) -> None:
        self.items = [value]
        self.references: dict[int, int] = {id(value): 1}
        # Those that more may hold than is known, by id.
        self.exempt = {id(value)}
        for item in self.items:
            is_seen = item is value or id(item) in looked_at
            for part in gc.get_referents(item) if len(self.items) < _MAX_OBJECTS else ():
                if id(type(part)) in _PLAIN or issubclass(type(part), _COMMON):
                    continue
                count = self.references.get(id(part), 0)
                self.references[id(part)] = count + 1
                if count == 0 and id(part) not in settled:
                    self.items.append(part)
                if is_seen:
                    self.exempt.add(id(part))

    def is_held_elsewhere(self, wanted: set[int]) -> bool:
        """Whether something else holds all of `wanted`, by id, or what leads to them."""
        items = self.items
        left = set(wanted)
        alive: set[int] = set()
        for index in range(len(items)):
            # One reference more is that of `items`, one that of the call.
            outer = sys.getrefcount(items[index]) - self.references[id(items[index])] - 2
            todo = [items[index]] if outer > 0 and id(items[index]) not in self.exempt else []
            while todo and left:
                item = todo.pop()
                if id(item) in self.references and id(item) not in alive:
                    alive.add(id(item))
                    left.discard(id(item))
                    todo += gc.get_referents(item)
            if not left:
                return True
        return False


def collections_of_old() -> list[int]:
    """How often the garbage collector looked at objects that are not young."""
    return [generation["collections"] for generation in gc.get_stats()[1:]]


def collect_since(before: list[int]) -> None:
    """End the reference cycles made since `before`: they would put off the end of what they lead
    to. They are young as long as no other generation was collected.
    """
    gc.collect(1 if collections_of_old() == before else 2)
