"""`warnings.catch_warnings`: a graph warns of nothing, so the block has no effect in it.

Whatever warns ends the graph; it then ends in front of the block, which runs in eager.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ..exc import Unsupported
from ..side_effects import Mutation
from ..variables.base import VariableTracker, unsupported
from ..variables.constant import ConstantVariable
from ..variables.functions import MethodOfVariable
from ..variables.registry import handles

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
NONE = ConstantVariable(None)


class CatchWarningsVariable(VariableTracker):
    """`catch_warnings(...)` with constants."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(mutation=Mutation.NEW)
        self.options = options
        self.step: int | None = None

    def python_type(self) -> type:
        return warnings.catch_warnings

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if name in ("__enter__", "__exit__"):
            return MethodOfVariable(self, name)
        return super().getattr(tx, name)

    def call_method(
        self, tx: Translator, name: str, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        tx.output.side_effects.version += 1
        if name == "__enter__" and self.step is None:
            self.step = tx.last_step()
            tx.output.open_contexts.append(self)
            return tx.wrap_items(list, []) if self.options.get("record") else NONE
        if name == "__exit__" and self in tx.output.open_contexts:
            tx.output.open_contexts.remove(self)
            return NONE
        unsupported("warnings", name, "the filters are used in another way")

    def leave_for_break(self, tx: Translator) -> None:
        reason = Unsupported(
            "warnings", "catch_warnings", "the graph would have to end inside of the block"
        )
        reason.made_at = self.step  # type: ignore[attr-defined]
        raise reason

    def abandon(self) -> None:
        """Nothing was changed for real."""

    def protect(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        return compiled

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.begin_call(warnings.catch_warnings)
        for value in self.options.values():
            codegen.load_const(value)
        codegen.end_call(len(self.options), tuple(self.options))


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
        is_inside = any(isinstance(c, CatchWarningsVariable) for c in tx.output.open_contexts)
        if not is_inside or found is None:
            return NotImplemented
        values, named = found
        if "error" in (*values[:1], named.get("action")):
            return NotImplemented
        with warnings.catch_warnings():
            return tx.fold(function, values, named)

    handles(function)(handler)


for _function in (warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings):
    _changes_filters(_function)
