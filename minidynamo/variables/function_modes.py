"""The stack of torch function modes as the traced code sees it.

`output.overrides.modes` has the modes that a call of torch meets. What the traced code pushes and
pops is done for real after the graph, so a break inside of a `with` block goes on in the right
state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..function_modes import default_devices, mode_at, set_modes, without_modes
from ..side_effects import Mutation
from ..source import CallSource, ConstSource
from .base import VariableTracker, unsupported

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

_KEY = ("torch function modes",)


class FunctionModesVariable(VariableTracker):
    """The stack: `modes` now, `entry` when the frame began."""

    needs_preload = False
    is_global_state = True
    replay_rank = 2  # after the attributes of modes, which are reached by their place

    def __init__(self, modes: list[VariableTracker]) -> None:
        source = ConstSource(_KEY, "torch function modes")
        super().__init__(source=source, mutation=Mutation.EXISTING)
        self.modes = modes
        self.entry = list(modes)

    @staticmethod
    def of(tx: Translator) -> FunctionModesVariable:
        """The one of this graph."""
        effects = tx.output.side_effects
        known = effects.variable_of(_KEY)
        if known is None:
            known = effects.track(_KEY, FunctionModesVariable(tx.output.overrides.modes))
            tx.output.open_contexts.insert(0, known)
        assert isinstance(known, FunctionModesVariable)
        return known

    def push(self, tx: Translator, mode: VariableTracker) -> None:
        tx.output.side_effects.mutate(self)
        self.modes.append(mode.realize())

    def pop(self, tx: Translator) -> VariableTracker:
        if not self.modes:
            unsupported("function mode", "_pop_torch_function_stack", "the stack is empty")
        tx.output.side_effects.mutate(self)
        return self.modes.pop()

    def leave_for_break(self, tx: Translator) -> None:
        """Nothing: graphs do not change it."""

    def abandon(self) -> None:
        """Nothing was changed for real."""

    def protect(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        return without_modes(compiled) if self.entry else compiled

    def push_contents(self, codegen: PyCodegen) -> None:
        if self.modes != self.entry:
            codegen.begin_call(set_modes)
            codegen.sequence(self.modes)
            codegen.emit("BUILD_TUPLE", len(self.modes))

    def apply_contents(self, codegen: PyCodegen) -> None:
        if self.modes != self.entry:
            codegen.end_call(1)
            codegen.emit("POP_TOP")


def enter_modes(tx: Translator, modes: list[Any]) -> None:
    """The frame begins under `modes`; their classes are guarded with the global state."""
    if not modes:
        return
    first = default_devices()
    for index, mode in enumerate(modes):
        place = ConstSource(first + index, str(first + index))
        source = CallSource(place, mode_at, "<torch function mode {base}>")
        tx.output.overrides.modes.append(tx.wrap(mode, source).realize())
    FunctionModesVariable.of(tx)
    tx.output.overrides.begins_below_modes = True
