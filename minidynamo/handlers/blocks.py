"""Blocks about what is traced in them: `warnings.catch_warnings`, `fx.traceback.annotate`.

What Python code warns of ends the graph; it then ends in front of the block, which runs in eager.
Operators warn where the graph runs, behind the block: one that records what they say runs in eager,
too.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from typing import TYPE_CHECKING, Any

from torch.fx.traceback import annotate

from ..variables.base import VariableTracker
from ..variables.constant import ConstantVariable
from ..variables.contexts import BlockVariable
from ..variables.registry import handles

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
NONE = ConstantVariable(None)


class CatchWarningsVariable(BlockVariable):
    """`catch_warnings(...)` with constants."""

    kind = "warnings"

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.options = options
        self.is_quiet = options.get("action") == "ignore"
        self.last_node: Any = None

    def describe(self) -> str:
        return "catch_warnings"

    def python_type(self) -> type:
        return warnings.catch_warnings

    def entered(self, tx: Translator) -> VariableTracker:
        self.last_node = _last_node(tx)
        is_dropped = tx.instructions[tx.ip].opname == "POP_TOP"
        # With fullgraph, what operators say is shown rather than thrown away.
        self.is_quiet |= is_dropped and tx.output.options.fullgraph
        return tx.wrap_items(list, []) if self.options.get("record") else NONE

    def left(self, tx: Translator) -> None:
        if not self.options.get("record") or self.is_quiet:
            return
        if _last_node(tx) is not self.last_node:
            self.leave_for_break(tx)

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.begin_call(warnings.catch_warnings)
        for value in self.options.values():
            codegen.load_const(value)
        codegen.end_call(len(self.options), tuple(self.options))


def _last_node(tx: Translator) -> Any:
    return next(iter(reversed(tx.output.graph.nodes)), None)


class AnnotationVariable(BlockVariable):
    """`torch.fx.traceback.annotate(notes)`: nodes of the block have them in `meta["custom"]`."""

    kind = "annotation"

    def __init__(self, notes: dict[str, Any]) -> None:
        super().__init__()
        self.notes = notes
        self.outside: dict[str, Any] = {}

    def describe(self) -> str:
        return f"annotate({self.notes})"

    def python_type(self) -> type:
        return contextlib._GeneratorContextManager

    def entered(self, tx: Translator) -> VariableTracker:
        self.outside = tx.output.annotations
        tx.output.annotations = {**self.outside, **self.notes}
        return NONE

    def left(self, tx: Translator) -> None:
        tx.output.annotations = self.outside

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.begin_call(annotate)
        codegen.load_const(self.notes)
        codegen.end_call(1)


@handles(annotate)
def annotated(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """With names and values that are constants."""
    given = [*args, *kwargs.values()]
    if len(given) != 1 or given[0].python_type() is not dict:
        return NotImplemented
    pairs = [item.realize().unpack(tx) for item in _pairs(tx, given[0])]
    values = [[part.realize() for part in pair] for pair in pairs]
    if not all(part.is_python_constant() for pair in values for part in pair):
        return NotImplemented
    notes = {name.as_python_constant(): v.as_python_constant() for name, v in values}
    return AnnotationVariable(notes)


@handles(contextlib._GeneratorContextManager._recreate_cm)  # type: ignore[attr-defined]
def recreated(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """What a function decorated with `annotate(notes)` enters at each call."""
    manager = args[0].realize()
    function = manager.getattr(tx, "func").realize()
    if not function.is_python_constant() or function.as_python_constant() is not _ANNOTATING:
        return NotImplemented
    named = tx.unpack_keywords(manager.getattr(tx, "kwds").realize())
    return annotated(tx, manager.getattr(tx, "args").realize().unpack(tx), named)


_ANNOTATING = inspect.unwrap(annotate)


def _pairs(tx: Translator, mapping: VariableTracker) -> Args:
    return mapping.call_method(tx, "items", [], {}).unpack(tx)


def _constants(args: Args, kwargs: Kwargs) -> tuple[list[Any], dict[str, Any]] | None:
    if not all(value.is_python_constant() for value in (*args, *kwargs.values())):
        return None
    named = {name: value.as_python_constant() for name, value in kwargs.items()}
    return [value.as_python_constant() for value in args], named


@handles(warnings.catch_warnings)
def catch_warnings(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """Warnings that become errors, or go to another module, are left to eager."""
    found = _constants(args, kwargs)
    options = found[1] if found is not None else {}
    if found is None or args or options.get("action") == "error" or options.get("module"):
        return NotImplemented
    return CatchWarningsVariable(options)


def _changes_filters(function: Any) -> None:
    def handler(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
        """Undone where the innermost block ends."""
        found = _constants(args, kwargs)
        around = [c for c in tx.output.open_contexts if isinstance(c, CatchWarningsVariable)]
        if not around or found is None:
            return NotImplemented
        values, named = found
        action = values[0] if values else named.get("action")
        if action == "error":
            return NotImplemented
        if action != "ignore" or function is warnings.simplefilter:
            around[-1].is_quiet = action == "ignore"
        with warnings.catch_warnings():
            return tx.fold(function, values, named)

    handles(function)(handler)


for _function in (warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings):
    _changes_filters(_function)
