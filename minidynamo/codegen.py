"""Emission of the bytecode that rebuilds traced values as real objects.

`PyCodegen(tx...)` is run twice over the same values: the first pass counts how often each value is
needed and which graph outputs; the second pass emits. A value needed more than once is built once
and
kept in a local of the generated code, so identity and aliasing survive.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

from .bytecode import CallArg, Instruction, current
from .exc import Unsupported
from .side_effects import DELETED, Mutation, SideEffects
from .source import CallSource
from .variables.base import NULL, LazyVariable, NotConstant, VariableTracker, unsupported
from .variables.constant import is_value

if TYPE_CHECKING:
    from torch.fx.node import Node

    from .source import Source

OUT_NAME = "__md_out"
TEMPORARY_NAME = "__md_tmp{}"


def is_temporary(name: str) -> bool:
    """Whether a local of the generated code is only needed to rebuild values."""
    return name == OUT_NAME or name.startswith(TEMPORARY_NAME.format(""))


class PyCodegen:
    """Appends instructions; `__call__` pushes a value."""

    def __init__(
        self,
        side_effects: SideEffects,
        load_context: Any,
        uses: dict[int, int] | None,
        *,
        only_state: bool = False,
        can_break: bool = False,
        cyclic: set[int] | None = None,
    ):
        """only_state: of the side effects, replay only those on torch's global state.
        cyclic: the containers that the counting pass found to contain themselves.
        can_break: what is not rebuilt as it was may end the graph where it was made.
        """
        self.can_break = can_break
        self.side_effects = side_effects
        self.only_state = only_state
        self.load_context = load_context
        self.instructions: list[Instruction] = []
        # None in the counting pass, else the counts that it found.
        self._uses = uses
        self.counts: dict[int, int] = {}
        self.outputs: dict[Node, int] = {}
        self._temps: dict[int, str] = {}
        self._keep: list[Any] = []
        # The constant that stands for each value that equals one, so that it is one object.
        self._constants: dict[int, Any] = {}
        self._building: set[int] = set()
        self.cyclic: set[int] = set() if cyclic is None else cyclic
        self._n_temps = 0

    # -- instructions -----------------------------------------------------------------------------

    def emit(self, opname: str, arg: Any = None) -> None:
        self.instructions.append(Instruction(opname, arg))

    def extend(self, instructions: Sequence[Instruction]) -> None:
        self.instructions.extend(instructions)

    def load_const(self, value: Any) -> None:
        """Push `value` itself (by identity) from the constants of the new code. There CPython puts
        its one copy of a text that looks like a name, also in tuples and in frozensets (which it
        makes anew, in another order), but not into a list.
        """
        if _is_interned(value):
            self.emit("LOAD_CONST", [value])
            self.emit("LOAD_CONST", 0)
            self.emit("BINARY_SUBSCR")
            return
        self.emit("LOAD_CONST", value)

    def new_local(self) -> str:
        """A fresh local name of the generated code."""
        self._n_temps += 1
        return TEMPORARY_NAME.format(self._n_temps)

    def begin_call(self, function: Any) -> None:
        """Push `function` (a real object) ready to be called; `end_call` follows the arguments."""
        self.extend(current.emit_callable([Instruction("LOAD_CONST", function)]))

    def end_call(self, nargs: int, kwnames: tuple[str, ...] = ()) -> None:
        """Call what `begin_call` pushed, with `nargs` arguments (keyword ones
        last, counted too).
        """
        self.emit("CALL", CallArg(nargs, kwnames))

    def load_source(self, source: Source) -> None:
        self.extend(source.emit_load(self.load_context))

    # -- values -----------------------------------------------------------------------------------

    def __call__(self, value: VariableTracker) -> None:
        """Push the real object that `value` stands for."""
        if value is NULL:
            self.emit("PUSH_NULL")
            return
        if isinstance(value, LazyVariable):
            if not value.is_realized:
                assert value.source is not None
                self.load_source(value.source)
                return
            value = value.realize()
        key = id(value.identity())
        self._keep.append(value)
        self.counts[key] = self.counts.get(key, 0) + 1
        if key in self._temps:
            self.emit("LOAD_FAST", self._temps[key])
            return
        if self._push_simple(value):
            if isinstance(value.source, CallSource) and self._uses_again(key):
                self.save_temp(value)  # a source that makes another object each time
            return
        if key in self._building:
            self._meet_again(value)
            return
        self._building.add(key)
        try:
            if key in self.cyclic:
                value.reconstruct_filled(self)
            else:
                value.reconstruct(self)
        except Unsupported as reason:
            if value.made_at is not None:
                reason.made_at = value.made_at  # type: ignore[attr-defined]
            raise
        self._building.discard(key)
        if key not in self._temps and self._uses_again(key):
            self.save_temp(value)

    def _meet_again(self, value: VariableTracker) -> None:
        """A container is met inside of itself: when it is emitted, it is in a local by then."""
        if not value.is_fillable:
            unsupported(
                "cyclic object",
                repr(value),
                "of what contains itself, only lists, dicts and deques are rebuilt",
            )
        self.cyclic.add(id(value.identity()))
        self.load_const(None)

    def _uses_again(self, key: int) -> bool:
        if self._uses is None:
            return True
        return self._uses.get(key, 0) > 1

    def _push_simple(self, value: VariableTracker) -> bool:
        if value.source is not None and value.mutation is not Mutation.NEW:
            self.load_source(value.source)
            return True
        try:
            constant = value.as_python_constant()
        except NotConstant:
            return False
        if value.mutation is Mutation.NEW or not _is_shareable(constant):
            return False
        self.load_const(self._constants.setdefault(id(value.identity()), constant))
        return True

    def save_temp(self, value: VariableTracker) -> None:
        """The object of `value` is on top of the stack: keep it in a local,
        leave it on the stack.
        """
        name = self.new_local()
        self._temps[id(value.identity())] = name
        self.extend(current.emit_copy(1))
        self.emit("STORE_FAST", name)

    def preload(self, value: VariableTracker) -> str:
        """Make sure that the object of `value` is in a local and return the local's name."""
        key = id(value.identity())
        if key not in self._temps:
            self(value)
            if key not in self._temps:
                self.save_temp(value)
            self.emit("POP_TOP")
        return self._temps[key]

    def sequence(self, values: Sequence[VariableTracker]) -> None:
        for value in values:
            self(value)

    def graph_output(self, node: Node) -> None:
        """Push the compiled graph's output for `node`."""
        index = self.outputs.setdefault(node, len(self.outputs))
        self.emit("LOAD_FAST", OUT_NAME)
        self.load_const(index)
        self.emit("BINARY_SUBSCR")

    # -- side effects -----------------------------------------------------------------------------

    def side_effects_values(self) -> list[tuple[VariableTracker, str | None, Any]]:
        """All (object, attribute or None for contents, value) that have to be written, in order."""
        effects = self.side_effects
        stores: list[tuple[VariableTracker, str | None, Any]] = [
            (variable, name, value)
            for variable, attributes in effects.pending_attributes()
            for name, value in attributes.items()
        ]
        stores += [(variable, None, None) for variable in effects.pending_contents()]
        return [s for s in stores if s[0].is_global_state] if self.only_state else stores

    def push_side_effects(
        self,
        unseen: Container[VariableTracker] = (),
    ) -> list[tuple[VariableTracker, str | None, Any]]:
        """Push every value to be written, the first one on top. Nothing is written yet.

        unseen: objects that nobody has any more, whose attributes are left as they are.
        """
        stores = [store for store in self.side_effects_values() if store[0] not in unseen]
        for variable, _, _ in stores:
            if variable.source is not None and variable.needs_preload:
                self.preload(variable)
        for variable, name, value in reversed(stores):
            if name is None:
                variable.push_contents(self)
            elif value is not DELETED:
                self(value)
        return stores

    def apply_side_effects(self, stores: list[tuple[VariableTracker, str | None, Any]]) -> None:
        """Write what `push_side_effects` pushed, in program order."""
        for variable, name, value in stores:
            if name is None:
                variable.apply_contents(self)
            elif value is DELETED:
                variable.apply_delattr(self, name)
            else:
                if (variable, name) in self.side_effects.recreated:
                    variable.apply_delattr(self, name)
                variable.apply_setattr(self, name)


def _is_shareable(constant: Any) -> bool:
    """Whether all calls may have the same object: not so for a tuple with a list in it."""
    return is_value(constant) or not isinstance(constant, (tuple, frozenset))


def _is_interned(constant: Any) -> bool:
    """Whether `intern_constants` of codeobject.c replaces it, or a part of it."""
    kind = type(constant)
    if kind is str:
        is_name = constant.isascii() and constant.replace("_", "a").isalnum()
        return is_name and sys.intern(constant) is not constant
    return kind in (tuple, frozenset) and any(map(_is_interned, constant))
