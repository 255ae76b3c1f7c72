"""Which locals live on behind a graph break though the code does not use them any more.

In eager a local lives until its function ends. Weak references, `__del__`, and addresses of memory
that were handed on tell the difference. So continuations keep what the instruction that breaks the
graph is given (where it makes a weak reference, what waits on the stack as well), objects of
classes (they may hold what is not seen), what leads to an object with a weak reference, and, while
the program holds an address or a weak reference, whatever existed before. All of these exist
outside of the graph anyway. Tensors are not kept otherwise: that would make more continuations of
loops.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import types
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.weak

from .. import trace_rules
from ..bytecode import OPS
from ..exc import Unsupported
from .base import LazyVariable, VariableTracker
from .constant import VALUE_TYPES, ConstantVariable
from .functions import CallableVariable, MethodOfVariable
from .reach import reached
from .symint import SymVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

# Others hold these, or nothing can know of their end.
_LASTING = frozenset(
    {*VALUE_TYPES, types.FunctionType, types.BuiltinFunctionType, types.ModuleType}
    | {types.CodeType, type}
)
_TENSORS = (torch.Tensor, *([trace_rules.numpy.ndarray] if trace_rules.numpy else []))
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
# Memory of the heap and of libraries lies above.
_LEAST_ADDRESS = 1 << 32
_C_DATA: Any = ctypes.c_int.__mro__[-2]
_POINTERS = (
    weakref.ReferenceType,
    *weakref.ProxyTypes,
    _C_DATA,
    torch._C._autograd.SavedTensor,  # a part of a node of autograd that it does not hold
    weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary,
    weakref.WeakSet,
    torch.utils.weak.WeakIdKeyDictionary,
)
_REFERENCES = (weakref.ReferenceType, *weakref.ProxyTypes)
_MAKERS: tuple[Any, ...] = (*_REFERENCES, weakref.finalize)
# Among so many values, and of an object at so many levels, weak references are looked for.
_MOST_PARTS = 512
_MOST_LEVELS = 3
# Modules whose objects give addresses: of arrays, and of what C made.
_MODULES = frozenset({"numpy.core._internal", "numpy._core._internal", "_cffi_backend"})


def kept_locals(tx: Translator) -> set[str]:
    """Their names, in the frame of `tx`, at whose instruction the graph ends."""
    inner = [
        frame for frame in tx.output.frames if frame.depth > tx.depth and frame.result is None
    ]
    frames = [tx, *inner]
    refers = any(_makes_reference(value) for value in _operands(frames[-1]))
    taken = [frame.stack if refers else _operands(frame) for frame in frames]
    given = {id(item) for item in reached(tx, taken)}
    held = [*tx.stack, *(v for f in inner for v in (*f.stack, *f.locals.values()))]
    below = {id(value.realize()) for value in held if not _is_lazy(value)}
    values = [v for frame in frames for v in (*frame.stack, *frame.locals.values())]
    parts = itertools.islice(reached(tx, values), _MOST_PARTS)
    holds_address = any(_may_be_address(p) for p in parts if isinstance(p, VariableTracker))
    return {
        name
        for name, value in tx.locals.items()
        if _exists(value, always=holds_address) or _is_known(tx, value, given, below)
    }


def _operands(frame: Translator) -> list[VariableTracker]:
    """What the running instruction takes from the stack."""
    pops, _ = OPS[frame.current.opname].io(frame.current.arg)
    return frame.stack[len(frame.stack) - pops :]


def _makes_reference(value: VariableTracker) -> bool:
    """Whether it is called for a weak reference, for which something waits on the stack."""
    made: Any = getattr(value, "value", None)
    return issubclass(type(made), type) and issubclass(made, _MAKERS)


def _is_lazy(value: VariableTracker) -> bool:
    return isinstance(value, LazyVariable) and not value.is_realized


def _may_be_address(value: VariableTracker) -> bool:
    """Whether it may tell of an object that it does not hold."""
    if isinstance(value, MethodOfVariable):
        value = value.receiver
    real: Any = getattr(value, "value", None)
    if isinstance(value, SymVariable):
        real = value.value.node.hint
    kind = type(real)
    if kind is int:
        return real >= _LEAST_ADDRESS
    if _is_unhashable(kind):
        return True
    if kind is tuple:
        return any(isinstance(item, torch._C._autograd.SavedTensor) for item in real)
    is_pointer = issubclass(kind, _POINTERS) or kind.__module__ in _MODULES
    if is_pointer or hasattr(kind, "_register_hook_dict"):  # nodes give saved tensors
        return True
    return not _is_opaque(kind) and _leads_to_reference(real)


def _lasts(kind: type) -> bool:
    return not _is_unhashable(kind) and kind in _LASTING


def _is_unhashable(kind: type) -> bool:
    """Whether it cannot be looked for in tables, as an ABC does, too."""
    return type(kind).__hash__ is None


def _is_opaque(kind: type) -> bool:
    """Whether what its objects hold is not looked at: for most there is nothing, or too much."""
    return _lasts(kind) or issubclass(kind, (*_TENSORS, torch.nn.Module, type))


def _leads_to_reference(real: Any) -> bool:
    """Whether an object of the program holds weak references, or what it consists of does."""
    level, seen = [real], {id(real)}
    for _ in range(_MOST_LEVELS):
        parts = gc.get_referents(*level)
        level = [p for p in parts if id(p) not in seen and not _is_opaque(type(p))]
        seen.update(map(id, level))
        if len(seen) > _MOST_PARTS:
            return False
        if any(type(part) in _REFERENCES for part in level):
            return True
    return False


def _exists(value: VariableTracker, *, always: bool) -> bool:
    """Whether it was there before the frame, and is kept for that."""
    if isinstance(value, LazyVariable):
        kind = type(value.value)
    elif value.source is None or isinstance(value, _CONSTANTS):
        return False
    else:
        try:
            kind = value.python_type()
        except Unsupported:
            return False
    if _lasts(kind):
        return False
    return always or not issubclass(kind, (*_TENSORS, *_CONTAINERS))


_CONSTANTS = (ConstantVariable, SymVariable, CallableVariable)


def _is_known(tx: Translator, value: VariableTracker, given: set[int], below: set[int]) -> bool:
    """Whether others get it now, or know it by a weak reference."""
    if _is_lazy(value):
        return id(value) in given and not _lasts(type(value.value))  # type: ignore[attr-defined]
    value = value.realize()
    if isinstance(value, _CONSTANTS):
        return False
    if id(value) in given or (value.is_user_defined and id(value) in below):
        return True
    watched = tx.output.watched
    parts = reached(tx, [value]) if watched else ()
    return any(isinstance(part, VariableTracker) and part in watched for part in parts)
