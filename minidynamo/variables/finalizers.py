"""Objects of the frame whose end runs code: `__del__`, callbacks of weak references.

That code is not traced. Where the traced code lets go of such an object, by a local or an
attribute, the graph breaks, so that eager does it at that moment.
"""

from __future__ import annotations

import types
import weakref
from typing import Any

import torch

from ..source import LocalSource
from .base import LazyVariable, VariableTracker, unsupported

# Others know them by weak references, and their ends are torch's or Python's own business.
_COMMON = (torch.Tensor, torch.nn.Module, types.FunctionType, type)


def _has_finalizer(value: Any) -> bool:
    cls = type(value)
    if not cls.__flags__ & _HEAP_TYPE or isinstance(value, _COMMON):
        return False
    if any(isinstance(vars(base).get("__del__"), types.FunctionType) for base in cls.__mro__):
        return True
    if not weakref.getweakrefcount(value):
        return False
    return any(ref.__callback__ is not None for ref in weakref.getweakrefs(value))


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def check_dropped(tx: Any, value: VariableTracker | None) -> None:
    """To be called before a local of the outermost frame lets go of `value`. What was found in
    another object is held there.
    """
    if value is None or not isinstance(value.source, LocalSource):
        return
    lazy = isinstance(value, LazyVariable)
    real = value.value if lazy else tx.output.side_effects.real_of(value)  # type: ignore[attr-defined]
    check_replaced(real, value.source.name)


def check_replaced(real: Any, where: str) -> None:
    """The same for an object that an attribute held."""
    if _has_finalizer(real):
        unsupported("finalizer", where, "the end of the object may run code")
