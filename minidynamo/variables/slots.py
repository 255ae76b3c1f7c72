"""Slots of variables that are cells while a comprehension borrows them (PEP 709, CPython 3.12).

A comprehension that is part of its function has its variables in the function's slots. Where such
a slot holds a cell, LOAD_FAST_AND_CLEAR takes the cell out; the comprehension puts plain values
in, or makes a cell of its own; a STORE_FAST behind it puts the first cell back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import NULL, VariableTracker, unsupported
from .functions import CellVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


def take_out(tx: Translator, name: str) -> VariableTracker:
    """LOAD_FAST_AND_CLEAR: what the slot holds, if anything."""
    cell = tx.cells.get(name)
    if cell is None or name in tx.locals:
        return tx.locals.pop(name, NULL)
    del tx.cells[name]
    tx.borrowed.setdefault(name, cell)
    return cell


def put(tx: Translator, name: str, value: VariableTracker) -> None:
    """STORE_FAST."""
    if name in tx.borrowed and isinstance(value, CellVariable):
        tx.locals.pop(name, None)
        tx.cells[name] = value
        if tx.borrowed[name] is value:
            del tx.borrowed[name]
    elif value is NULL:
        tx.locals.pop(name, None)
        if name in tx.borrowed:
            tx.cells.pop(name, None)
    else:
        tx.locals[name] = value


def settle(frame: Translator) -> None:
    """Before a graph break: a cell that only comprehensions use need not come back, so that of the
    comprehension takes its place. No code can be generated for two in one slot.
    """
    for name, cell in frame.borrowed.items():
        own = frame.cells.get(name)
        is_needed = own is None or cell.real is not None or _is_used_outside(frame, name)
        if is_needed or own is None or name in frame.locals:
            text = f"{name} is a cell, and the variable of the comprehension around"
            unsupported("comprehension", name, text)
        frame.stack[:] = [NULL if item is cell else item for item in frame.stack]
        if frame.parent is None:
            own.root_name, own.needs_preload = name, False
            frame.output.side_effects.take_as_existing(own)
    frame.borrowed.clear()


_USES = ("LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLOSURE")


def _is_used_outside(frame: Translator, name: str) -> bool:
    """Whether anything but one comprehension looks at the slot."""
    n_borrowed, is_inside = 0, False
    for inst in frame.instructions:
        if inst.arg != name:
            continue
        if inst.opname == "LOAD_FAST_AND_CLEAR":
            n_borrowed, is_inside = n_borrowed + 1, True
        elif inst.opname == "STORE_FAST":
            is_inside = False
        elif inst.opname in _USES and not is_inside:
            return True
    return n_borrowed != 1
