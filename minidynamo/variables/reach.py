"""What the running frames and the log lead to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .base import VariableTracker
from .functions import CellVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

# Of values: real objects, which hold no traced ones; what they refer to weakly; who looked at them,
# and what else was looked at.
_REAL = frozenset(("real", "value", "source", "referent", "_log", "_tx"))
# What containers hold. Their classes may be the program's, whose own methods are not called.
_PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    dict: lambda item: (*dict.__iter__(item), *dict.values(item)),
    list: list.__iter__,
    tuple: tuple.__iter__,
    set: set.__iter__,
    frozenset: frozenset.__iter__,
}


def is_held(tx: Translator, wanted: Sequence[VariableTracker], frames: Any = None) -> bool:
    """Whether the running frames (`frames`, by default `tx` and its callers) or the log lead to one
    of `wanted`, by whatever way.
    """
    return first_not_held(tx, {"": wanted}, frames) is None


def is_held_outside(tx: Translator, wanted: Sequence[VariableTracker]) -> bool:
    """`is_held`, but not because of an object made inside that nothing leads to any more."""
    effects = tx.output.side_effects
    owners = [owner for owner in (*effects.contents, *effects.attributes) if owner.source]
    starts = [tx, *(part for owner in owners for part in _written(tx, owner))]
    return not {id(value) for value in wanted}.isdisjoint(map(id, reached(tx, starts)))


def _written(
    tx: Translator,
    owner: VariableTracker,
) -> Sequence[Any]:
    effects = tx.output.side_effects
    stored = effects.stored_attrs(owner)
    return [stored, owner] if owner in effects.contents else [stored]


def first_not_held(
    tx: Translator, groups: Mapping[str, Sequence[VariableTracker]], frames: Any = None
) -> str | None:
    """The first name of which nothing leads to one of its values (see `is_held`)."""
    effects = tx.output.side_effects
    start = tx if frames is None else frames
    owners: dict[int, list[str]] = {}
    for name, values in groups.items():
        for value in values:
            owners.setdefault(id(value), []).append(name)
    missing = dict.fromkeys(groups)
    for item in reached(
        tx, [*effects.made, *effects.contents, *effects.attributes.values(), start]
    ):
        for name in owners.get(id(item), ()):
            missing.pop(name, None)
            if not missing:
                return None
    return next(iter(missing), None)


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
        cls = type(item)
        if issubclass(cls, VariableTracker):
            stored = effects.stored_attrs(item)
            skipped = "initial" if stored and isinstance(item, CellVariable) else ""
            todo += [part for name, part in vars(item).items() if name not in (*_REAL, skipped)]
            todo.append(stored)
        elif type(cls).__hash__ is None:  # a class of the program, which is in no table
            continue
        elif base := next((base for base in cls.__mro__ if base in _PARTS), None):
            todo += _PARTS[base](item)
        elif hasattr(cls, "stop_idling"):  # a frame
            todo += [item.stack, item.locals, item.cells, item.exc_info, item.parent]
