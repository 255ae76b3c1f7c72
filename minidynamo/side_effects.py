"""The log of mutations that the traced code made, to be replayed on the real objects.

Reading goes through the log first: `load_attr` gives what was stored last. A mutable value is known
by
its `VariableTracker`; `variable_of` finds the one that stands for a real object, so that an object
reached by two routes is one value. `version` grows with each mutation: equal versions mean that
nothing has to be undone.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from .exc import Unsupported

if TYPE_CHECKING:
    from .source import Source
    from .variables.base import VariableTracker


class Mutation(enum.Enum):
    """Whether a value can be mutated, and where it came from.

    IMMUTABLE: no mutation is possible (constants, tuples, tensors). NEW: made by the traced code,
    so
    it is rebuilt when it escapes. EXISTING: reached from the frame through a source, so mutations
    are
    replayed on the real object.
    """

    IMMUTABLE = 0
    NEW = 1
    EXISTING = 2


class _Deleted:
    """Marks an attribute that the traced code deleted."""

    def __repr__(self) -> str:
        return "<deleted>"


DELETED = _Deleted()


class SideEffects:
    """Mutations by object, in the order in which objects were first touched.

    `attributes[vt][name]` is the value stored last in attribute `name` (or DELETED), in order of
    first
    store; `contents` holds containers whose items changed.
    """

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[Any, VariableTracker]] = {}
        self._real: dict[VariableTracker, Any] = {}
        # The objects of the frame by the id of their instance dicts.
        self.owners: dict[int, Any] = {}
        self.attributes: dict[VariableTracker, dict[str, VariableTracker | _Deleted]] = {}
        self.contents: dict[VariableTracker, None] = {}
        self.recreated: set[tuple[VariableTracker, str]] = set()
        # Objects whose making is seen outside, in order of the program.
        self.made: list[VariableTracker] = []
        self.aliases: list[tuple[Source, Source]] = []
        self.version = 0
        # As `version`, without iterators that advance: what code leaves behind when it is done.
        self.lasting = 0
        # Values that were mutated, while somebody asks for them.
        self.mutated: set[VariableTracker] = set()
        # Tensors that stand for one of several, as (step that made it, fake, version).
        self.choices: list[tuple[int, Any, int]] = []

    # -- identity -------------------------------------------------------------------------------

    def variable_of(self, value: Any) -> VariableTracker | None:
        """The VariableTracker that stands for the real object `value`, if it was met before."""
        found = self._by_id.get(id(value))
        return found[1] if found is not None else None

    def track(self, value: Any, variable: VariableTracker) -> VariableTracker:
        """Let `variable` stand for the real object `value` (kept alive while tracing)."""
        self._by_id[id(value)] = (value, variable)
        self._real[variable] = value
        return variable

    def real_of(self, variable: VariableTracker) -> Any:
        """The real object that `variable` was tracked for last, or None."""
        return self._real.get(variable)

    def tracked(self) -> list[tuple[Any, VariableTracker]]:
        """All (real object, variable) pairs."""
        return list(self._by_id.values())

    def note(self) -> None:
        """To be called before a change that needs no replay, but that nothing undoes."""
        self.version += 1
        self.lasting += 1

    def make(self, variable: VariableTracker) -> None:
        """The object is made behind the graph also where nothing needs it: that is an effect."""
        self.note()
        self.made.append(variable)

    def check_choices(self) -> None:
        """To be called after a tensor was written to: it must not be one of `choices`."""
        for step, fake, version in self.choices:
            if fake._version != version:
                reason = Unsupported("choice of a tensor", "min() or max()", "it is written to")
                reason.made_at = step  # type: ignore[attr-defined]
                raise reason

    # -- containers -----------------------------------------------------------------------------

    def mutate(self, variable: VariableTracker) -> None:
        """To be called before the items of a list, dict, set, iterator ... change in place."""
        if variable.mutation is Mutation.IMMUTABLE:
            raise Unsupported(
                "mutation", repr(variable), f"{variable!r} can't be mutated while tracing"
            )
        self.mutated.add(variable)
        self.version += 1
        self.lasting += variable.replay_rank != 0
        if variable.mutation is Mutation.EXISTING:
            self.contents[variable] = None

    # -- attributes (of objects, modules' dicts, cells) -----------------------------------------

    def store_attr(self, variable: VariableTracker, name: str, value: VariableTracker) -> None:
        self.mutated.add(variable)
        self.version += 1
        self.lasting += 1
        stored = self.attributes.setdefault(variable, {})
        if stored.get(name) is DELETED:
            # Deleted and made again: it moves to the end of the instance dict.
            del stored[name]
            self.recreated.add((variable, name))
        stored[name] = value

    def delete_attr(
        self, variable: VariableTracker, name: str, *, existed: bool = True
    ) -> None:
        """existed: whether the real object has the attribute, so that it has to
        be deleted there.
        """
        self.mutated.add(variable)
        self.version += 1
        self.lasting += 1
        stored = self.attributes.setdefault(variable, {})
        if variable.mutation is Mutation.NEW or not existed:
            stored.pop(name, None)
        else:
            stored[name] = DELETED

    def load_attr(
        self, variable: VariableTracker, name: str
    ) -> VariableTracker | _Deleted | None:
        """What the traced code stored last: a value, DELETED, or None if it never stored."""
        stored = self.attributes.get(variable)
        return None if stored is None else stored.get(name)

    def stored_attrs(self, variable: VariableTracker) -> dict[str, VariableTracker | _Deleted]:
        """All pending stores of one object (empty if none)."""
        return self.attributes.get(variable, {})

    # -- what has to be replayed ----------------------------------------------------------------

    def pending_attributes(self) -> list[tuple[VariableTracker, dict[str, Any]]]:
        """(object, stores) of all objects that existed before the frame."""
        return [
            (variable, stores)
            for variable, stores in self.attributes.items()
            if variable.mutation is Mutation.EXISTING and stores
        ]

    def pending_contents(self) -> list[VariableTracker]:
        """Iterators that advanced, then containers whose items changed; all existed before."""
        return sorted(self.contents, key=lambda variable: variable.replay_rank)

    def is_empty(self) -> bool:
        return not (self.pending_attributes() or self.contents or self.made)
