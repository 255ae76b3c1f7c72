"""What the running frames and the log lead to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .base import VariableTracker
from .functions import CellVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

# Of values: real objects, which hold no traced ones; who looked at it, and what else was looked at.
_REAL = frozenset(("real", "value", "source", "_log", "_tx"))


def is_held(tx: Translator, wanted: Sequence[VariableTracker], frames: Any = None) -> bool:
    """Whether the running frames (`frames`, by default `tx` and its callers) or the log lead to one
    of `wanted`, by whatever way.
    """
    effects = tx.output.side_effects
    start = tx if frames is None else frames
    starts = [start, *effects.attributes.values(), *effects.contents, *effects.made]
    return any(item is value for item in reached(tx, starts) for value in wanted)


def reached(tx: Translator, starts: Sequence[Any]) -> Iterator[Any]:
    """The traced values, and what is between them, that `starts` lead to."""
    effects = tx.output.side_effects
    todo = list(starts)
    seen: set[int] = set()
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, dict):
            todo += [*item, *item.values()]
        elif isinstance(item, (list, tuple, set, frozenset)):
            todo += item
        elif isinstance(item, VariableTracker):
            stored = effects.stored_attrs(item)
            skipped = "initial" if stored and isinstance(item, CellVariable) else ""
            todo += [part for name, part in vars(item).items() if name not in (*_REAL, skipped)]
            todo.append(stored)
        elif hasattr(item, "step_number"):  # a frame
            todo += [item.stack, item.locals, item.cells, item.exc_info, item.parent]
