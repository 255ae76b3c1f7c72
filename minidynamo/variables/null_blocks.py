"""The context manager, and decorator, that torch's managers without an effect on results become."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..markers import Decision, set_decision
from .base import VariableTracker

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


class NullBlock:
    """Does nothing around a block, or around the calls of what it decorates."""

    def __enter__(self) -> None:
        """There is nothing to set up."""

    def __exit__(self, *exc: object) -> None:
        """Nor to undo: exceptions pass."""

    def __call__(self, function: Any) -> Any:
        return function


for _method in (NullBlock.__enter__, NullBlock.__exit__, NullBlock.__call__):
    set_decision(_method, Decision.INLINE)


def null_block(tx: Translator) -> VariableTracker:
    """A new one, in the traced program."""
    return tx.call_function(tx.wrap_constant(NullBlock), [], {})
