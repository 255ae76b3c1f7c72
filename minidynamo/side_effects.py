"""The log of mutations that the traced code made, to be replayed on the real objects.

Reading goes through the log first: `load_attr` gives what was stored last. A mutable value is known
by
its `VariableTracker`; `variable_of` finds the one that stands for a real object, so that an object
reached by two routes is one value. `version` grows with each mutation: equal versions mean that
nothing has to be undone.
"""

from __future__ import annotations

import enum
import types
from typing import TYPE_CHECKING, Any

from .exc import Unsupported
from .finalizers import ends_with_code, leads_to
from .utils import class_dict

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


def _attribute(real: Any, variable: Any, name: str) -> Any:
    """What an attribute of an object of the frame holds, if it is stored there as it is; no code of
    the program is run.
    """
    if type(real) is types.CellType:
        return real.cell_contents if name == "cell_contents" and is_full(real) else None
    table: Any = getattr(variable, "dict", None)
    if issubclass(type(real), type):
        table = class_dict(real)
    if name == "__dict__":
        return table
    if table is not None and name in table:
        return table[name]
    slots = (class_dict(base).get(name) for base in type(real).__mro__)
    slot = next((raw for raw in slots if type(raw) is types.MemberDescriptorType), None)
    try:
        return None if slot is None else slot.__get__(real)
    except AttributeError:
        return None


def is_full(cell: types.CellType) -> bool:
    """Whether a closure cell has contents."""
    try:
        return bool(cell.cell_contents is cell.cell_contents)
    except ValueError:
        return False


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
        # Values of which others are parts, that the log does not know as such.
        self.frozen: set[VariableTracker] = set()
        self.attributes: dict[VariableTracker, dict[str, VariableTracker | _Deleted]] = {}
        # Those of them that existed before the frame: few among many.
        self._changed: dict[VariableTracker, None] = {}
        self.contents: dict[VariableTracker, None] = {}
        self.recreated: set[tuple[VariableTracker, str]] = set()
        # Objects whose making is seen outside, in order of the program.
        self.made: list[VariableTracker] = []
        self.aliases: list[tuple[Source, Source]] = []
        # Objects made while tracing that stand for the program's, as (object, step), by id. Nobody
        # sees them later, nor what is stored to them.
        self.stand_ins: dict[int, tuple[Any, int]] = {}
        # What code reaches that was asked for it: by the id of a function, with it, a `CodeReach`.
        self.reaches: dict[int, tuple[Any, Any]] = {}
        self.version = 0
        # As `version`, without iterators that advance: what code leaves behind when it is done.
        self.lasting = 0
        # As `version`, of objects that existed before the frame alone.
        self.outside = 0
        # Values that were mutated, while somebody asks for them.
        self.mutated: set[VariableTracker] = set()
        # What those of them held whose items changed; None where nobody asks.
        self.snapshots: dict[VariableTracker, Any] | None = None
        # Whether there are objects whose end runs code.
        self.meets_finalizers = False
        # Objects whose end will run code, because of what the traced code made.
        self._ends: list[Any] = []
        # Tensors that stand for others (min() of several, say; the result of a function that is
        # called once), as (step that made it, fake, version).
        self.choices: list[tuple[int, Any, int]] = []
        # Those of them that are one of several, with their memory, as (step, address).
        self.picked: list[tuple[int, int]] = []

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
        self.outside += 1

    def make(self, variable: VariableTracker) -> None:
        """The object is made behind the graph also where nothing needs it: that is an effect."""
        self.note()
        self.made.append(variable)

    def check_choices(self) -> None:
        """To be called after a tensor was written to: it must not be one of `choices`."""
        for step, fake, version in self.choices:
            if fake._version != version:
                what = "min(), max() or a constant result"
                reason = Unsupported("choice of a tensor", what, "it is written to")
                reason.made_at = step  # type: ignore[attr-defined]
                raise reason

    def check_view(self, address: int) -> None:
        """To be called before a tensor leaves the graph: it must not be a view of a choice."""
        for step, memory in self.picked:
            if memory == address:
                reason = Unsupported("choice of a tensor", "min() or max()", "a view is kept")
                reason.made_at = step  # type: ignore[attr-defined]
                raise reason

    # -- containers -----------------------------------------------------------------------------

    def mutate(self, variable: VariableTracker) -> None:
        """To be called before the items of a list, dict, set, iterator ... change in place."""
        if variable.mutation is Mutation.IMMUTABLE:
            raise Unsupported(
                "mutation", repr(variable), f"{variable!r} can't be mutated while tracing"
            )
        self._check_dropped(variable)
        self.mutated.add(variable)
        if self.snapshots is not None and variable not in self.snapshots:
            self.snapshots[variable] = variable.snapshot()
        self.version += 1
        self.lasting += variable.replay_rank != 0
        if variable.mutation is Mutation.EXISTING:
            self.outside += 1
            self.contents[variable] = None

    def _check_dropped(self, variable: VariableTracker) -> None:
        """What a container holds may come to its end when its items change."""
        self._check_frozen(variable)
        is_first = variable.mutation is Mutation.EXISTING and variable not in self.contents
        real = self._real.get(variable) if is_first and variable.replay_rank else None
        if real is not None and self._ends_with_code(real):
            raise self._finalizer(variable.describe())

    def _check_replaced(self, variable: VariableTracker, name: str) -> None:
        """What an attribute held may come to its end when it is stored to."""
        self._check_frozen(variable)
        is_first = self.load_attr(variable, name) is None
        held = _attribute(self._real.get(variable), variable, name) if is_first else None
        if variable.mutation is Mutation.EXISTING and self._ends_with_code(held):
            raise self._finalizer(f"{variable.describe()}.{name}")

    def know_dict(self, variable: VariableTracker, own: dict[str, Any]) -> None:
        """`own` is the instance dict of an object of the frame, which may reach it as a dict."""
        known = self.variable_of(own) or self.owners.setdefault(id(own), variable)
        if known is variable:
            return
        # The log would keep two of them apart: they can be read, and written to in eager alone.
        if known in self.mutated:
            why = "the dict was changed before the frame reached it as that of this object"
            raise Unsupported("instance dict", variable.describe(), why)
        self.frozen.update((known, variable))

    def _check_frozen(self, variable: VariableTracker) -> None:
        if variable in self.frozen:
            why = "the frame reached it also as the instance dict of an object"
            raise Unsupported("instance dict", variable.describe(), why)

    def watch_end(self, real: Any) -> None:
        """Letting go of what leads to `real` breaks the graph from now on."""
        self._ends.append(real)
        self.meets_finalizers = True

    def _ends_with_code(self, real: Any) -> bool:
        if any(leads_to(real, end) for end in self._ends):
            return True
        return ends_with_code(real, self._by_id)

    def _finalizer(self, where: str) -> Unsupported:
        self.meets_finalizers = True
        return Unsupported("finalizer", where, "the end of the object may run code")

    # -- attributes (of objects, modules' dicts, cells) -----------------------------------------

    def store_attr(self, variable: VariableTracker, name: str, value: VariableTracker) -> None:
        stored = self._stores(variable, name)
        if stored.get(name) is DELETED:
            # Deleted and made again: it moves to the end of the instance dict.
            del stored[name]
            self.recreated.add((variable, name))
        stored[name] = value

    def _stores(
        self, variable: VariableTracker, name: str
    ) -> dict[str, VariableTracker | _Deleted]:
        """What is stored to an object, one attribute of which is about to change."""
        self._check_replaced(variable, name)
        self.mutated.add(variable)
        self.version += 1
        self.lasting += 1
        if variable.mutation is Mutation.EXISTING:
            self.outside += 1
            self._changed[variable] = None
        return self.attributes.setdefault(variable, {})

    def take_as_existing(self, variable: VariableTracker) -> None:
        """What was made counts from now on as an object that existed before the frame."""
        variable.mutation = Mutation.EXISTING
        if variable in self.attributes:
            self._changed[variable] = None

    def delete_attr(
        self, variable: VariableTracker, name: str, *, existed: bool = True
    ) -> None:
        """existed: whether the real object has the attribute, so that it has to
        be deleted there.
        """
        stored = self._stores(variable, name)
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

    def has_let_go(self, value: Any) -> bool:
        """Whether something of the frame held the real object `value` before it was changed."""
        held = [self._real.get(v) for v in self.contents if v.replay_rank]
        for variable, stores in self.pending_attributes():
            real = self._real.get(variable)
            held += [_attribute(real, variable, name) for name in stores]
        return any(leads_to(old, value) for old in held)

    # -- what has to be replayed ----------------------------------------------------------------

    def pending_attributes(self) -> list[tuple[VariableTracker, dict[str, Any]]]:
        """(object, stores) of all objects that existed before the frame."""
        pairs = ((variable, self.attributes[variable]) for variable in self._changed)
        found = [(variable, stores) for variable, stores in pairs if stores]
        if not self.stand_ins:
            return found
        return [pair for pair in found if id(self._real.get(pair[0])) not in self.stand_ins]

    def pending_contents(self) -> list[VariableTracker]:
        """Iterators that advanced, then containers whose items changed; all existed before."""
        return sorted(self.contents, key=lambda variable: variable.replay_rank)

    def is_empty(self) -> bool:
        return not (self.pending_attributes() or self.contents or self.made)
