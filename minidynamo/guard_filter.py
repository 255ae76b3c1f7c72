"""`options={"guard_filter_fn": f}`: the program chooses which guards are kept.

`f` gets one `GuardFilterEntry` for each guard and returns as many bools. Without a guard compiled
code also runs where it does not fit: that is the caller's promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .exc import UserError
from .guards import Check, Guard, GuardSet
from .source import (
    BuiltinSource,
    BuiltinsSource,
    CallSource,
    GlobalSource,
    GlobalsSource,
    Source,
)

__all__ = ["GuardFilterEntry", "GuardFilterFn", "filter_guards"]

GuardFilterFn = Callable[[Sequence["GuardFilterEntry"]], Sequence[bool]]

# The names that torch has for these kinds; others go by their own.
_TORCH_NAMES = {
    Check.TYPE_IS: "TYPE_MATCH",
    Check.ID_IS: "ID_MATCH",
    Check.CONST_EQ: "EQUALS_MATCH",
    Check.IS_NONE: "CONSTANT_MATCH",
    Check.BOOL_IS: "CONSTANT_MATCH",
    Check.LEN_EQ: "SEQUENCE_LENGTH",
    Check.DICT_KEYS: "DICT_KEYS_MATCH",
    Check.HAS_ATTR: "HASATTR",
    Check.ALIAS: "DUPLICATE_INPUT",
    Check.EXPR: "SHAPE_ENV",
}
_GLOBAL_ROOTS = (GlobalsSource, GlobalSource, BuiltinsSource, BuiltinSource)


def _routes(source: Source | None) -> Iterator[Source]:
    """The source, what it is reached from, and so on to its root."""
    while source is not None:
        yield source
        source = getattr(source, "base", None)


@dataclass(frozen=True)
class FilteredSource:
    """Where the object of a guard comes from. nn_module: class of the module that it is part of."""

    name: str
    nn_module: type | None

    def is_unspecialized_nn_module(self) -> bool:
        return self.nn_module is not None

    def is_unspecialized_builtin_nn_module(self) -> bool:
        return self.nn_module is not None and self.nn_module.__module__.startswith("torch.nn.")


@dataclass(frozen=True)
class FilteredGuard:
    """A guard as `GuardFilterEntry.orig_guard`."""

    name: str
    source: FilteredSource


@dataclass(frozen=True)
class GuardFilterEntry:
    """A guard. name: the program's expression for the object, "" if there is none. value: the
    object, if has_value. guard_type: the kind, by torch's name. is_global: reached from a module's
    globals.
    """

    name: str
    has_value: bool
    value: object
    guard_type: str
    derived_guard_types: tuple[str, ...]
    is_global: bool
    orig_guard: FilteredGuard


def _entry(guard: Guard, values: Mapping[Source, Any]) -> GuardFilterEntry:
    routes = list(_routes(guard.source))
    objects = (values.get(route) for route in routes)
    modules = (type(value) for value in objects if isinstance(value, torch.nn.Module))
    is_address = isinstance(guard.source, CallSource) and guard.source.function is id
    return GuardFilterEntry(
        name=guard.name,
        has_value=guard.source in values,
        value=None if guard.source is None else values.get(guard.source),
        guard_type="ID_MATCH" if is_address else _TORCH_NAMES.get(guard.kind, str(guard.kind)),
        derived_guard_types=(),
        is_global=bool(routes) and isinstance(routes[-1], _GLOBAL_ROOTS),
        orig_guard=FilteredGuard(guard.name, FilteredSource(guard.name, next(modules, None))),
    )


def filter_guards(
    guards: GuardSet, choose: GuardFilterFn, values: Mapping[Source, Any]
) -> None:
    """Keep the guards that `choose` wants. values: the objects of sources, as far as known.

    Raises UserError if it does not return a bool for each.
    """
    entries = [_entry(guard, values) for guard in guards]
    chosen = list(choose(entries))
    if len(chosen) != len(entries) or not all(isinstance(keep, bool) for keep in chosen):
        raise UserError(
            f"guard_filter_fn returns a bool for each of {len(entries)} guards, not {chosen!r}"
        )
    guards.keep(chosen)
