"""What traced code changes and puts back: `torch.func.functional_call` swaps parameters so.

with Changes(tx) as changes:
    ...                             # trace a function
    changes.lasting()               # the objects from before that are no longer what they were
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..side_effects import Mutation
from .base import VariableTracker, is_same
from .contexts import GlobalStateVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


class Changes:
    """Notes what existed before (before `outer`, if given) and is mutated inside."""

    def __init__(self, tx: Translator, outer: Changes | None = None) -> None:
        self._tx = tx
        self._effects = tx.output.side_effects
        first: int = VariableTracker(mutation=Mutation.NEW).number
        self._number: int = first if outer is None else outer._number

    def __enter__(self) -> Changes:
        effects = self._effects
        self._contents = dict(effects.contents)
        self._attributes = {v: dict(stores) for v, stores in effects.attributes.items()}
        self._outer = effects.mutated, effects.snapshots
        effects.mutated, effects.snapshots = set(), {}
        return self

    def __exit__(self, *error: object) -> None:
        mutated, snapshots = self._outer
        effects = self._effects
        effects.mutated |= mutated
        effects.snapshots = None if snapshots is None else effects.snapshots | snapshots  # type: ignore[operator]

    def lasting(self) -> list[VariableTracker]:
        """What is changed. The log forgets the changes that were put back."""
        return [
            variable
            for variable in self._effects.mutated
            if variable.mutation is Mutation.EXISTING or variable.number < self._number
            if not self._is_put_back(variable)
        ]

    def _is_put_back(self, variable: VariableTracker) -> bool:
        """Whether attributes, or items, of an object are again what they were."""
        if isinstance(variable, GlobalStateVariable):
            return False
        assert self._effects.snapshots is not None
        if variable in self._effects.snapshots and not self._has_items_again(variable):
            return False
        before = self._attributes.get(variable, {})
        after = self._effects.attributes.get(variable, {})
        return before == after == {} or self._has_attributes_again(variable, before, after)

    def _has_items_again(self, variable: VariableTracker) -> bool:
        assert self._effects.snapshots is not None
        snapshot = self._effects.snapshots[variable]
        if snapshot is None or not variable.put_back(self._tx, snapshot):
            return False
        if variable not in self._contents:
            self._effects.contents.pop(variable, None)
        return True

    def _has_attributes_again(
        self, variable: VariableTracker, before: dict[str, Any], after: dict[str, Any]
    ) -> bool:
        effects = self._effects
        if not after.keys() >= before.keys():
            return False
        if any((variable, name) in effects.recreated for name in after):
            return False
        effects.attributes[variable] = before
        if all(self._is_again(variable, name, value) for name, value in after.items()):
            return True
        effects.attributes[variable] = after
        return False

    def _is_again(self, variable: VariableTracker, name: str, value: Any) -> bool:
        """Whether `value` is what the attribute was."""
        stored = self._effects.load_attr(variable, name)
        if stored is None and hasattr(self._effects.real_of(variable), name):
            stored = variable.getattr(self._tx, name)
        if not isinstance(stored, VariableTracker) or not isinstance(value, VariableTracker):
            return stored is value and stored is not None
        return is_same(stored, value)
