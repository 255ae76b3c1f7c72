"""Levels of torch.func (vmap, grad, jvp) and of forward-mode AD that the traced code opened.

A level is opened for real while tracing, so the fake tensors inside are wrapped as the real ones
will be, and by a node of the graph at run time. Levels close where they were opened: the graph
never ends inside of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _functorch

from ..exc import Unsupported
from ..transform_levels import close_transforms
from .base import VariableTracker, unsupported
from .constant import ConstantVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


@dataclass(frozen=True)
class LevelKind:
    """How levels of one kind are opened and closed."""

    name: str
    enter: Callable[..., Any]
    leave: Callable[..., Any]

    @property
    def is_forward(self) -> bool:
        """Whether derivatives are computed along with the values."""
        return self.name in ("jvp", "forward-mode AD")


class OpenLevel:
    """One open level, as the list of open contexts of an `OutputGraph` holds it."""

    def __init__(self, kind: LevelKind, step: int) -> None:
        self.kind = kind
        self.step = step

    def leave_for_break(self, tx: Translator) -> None:
        reason = Unsupported(
            "break inside of a transform",
            self.kind.name,
            f"the graph would have to end inside of {self.kind.name}",
            ["keep what is not traced out of functions given to torch.func transforms"],
        )
        reason.made_at = self.step  # type: ignore[attr-defined]
        raise reason

    def abandon(self) -> None:
        """`TransformStack` closes all levels."""


_dual_levels = [0]


def enter_dual(level: int = 0) -> int:
    """A node of the graph: begin forward-mode AD."""
    number = torch._C._enter_dual_level()
    _dual_levels[0] += 1
    return number


def leave_dual() -> None:
    """A node of the graph: the end of forward-mode AD."""
    torch._C._exit_dual_level(level=0)
    _dual_levels[0] -= 1


class TransformStack:
    """The levels as they were before a graph opened some: what an error has to bring back."""

    def __init__(self) -> None:
        self.depth = _functorch.get_dynamic_layer_stack_depth()
        self.duals = _dual_levels[0]

    def leave_for_break(self, tx: Translator) -> None:
        """Nothing: levels that are still open refuse."""

    def abandon(self) -> None:
        """Close for real what was opened since."""
        while _dual_levels[0] > self.duals:
            leave_dual()
        close_transforms(self.depth)

    def protect(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """A graph that raises in the middle of a transform leaves no level open."""

        def call(*args: Any) -> Any:
            before = TransformStack()
            try:
                return compiled(*args)
            except BaseException:
                before.abandon()
                raise

        return call


def open_kinds(tx: Translator) -> list[LevelKind]:
    """The kinds of the levels that the traced code is inside of."""
    contexts = tx.output.open_contexts
    return [context.kind for context in contexts if isinstance(context, OpenLevel)]


def open_level(tx: Translator, kind: LevelKind, args: tuple[Any, ...]) -> VariableTracker:
    """Open a level; the value is its number. args: constants and symbolic sizes."""
    output = tx.output
    # What was opened cannot be undone by erasing nodes.
    output.side_effects.version += 1
    if not any(isinstance(context, TransformStack) for context in output.open_contexts):
        output.open_contexts.insert(0, TransformStack())
    sized = [output.number_node(a) if isinstance(a, torch.SymInt) else a for a in args]
    output.add_state_node(kind.enter, *sized)
    level = kind.enter(*args)
    output.open_contexts.append(OpenLevel(kind, tx.root.n_steps))
    output.transform_levels += 1
    return ConstantVariable(level)


def close_level(tx: Translator, kind: LevelKind) -> VariableTracker:
    """Close the innermost level, which has to be of this kind."""
    output = tx.output
    innermost = output.open_contexts[-1] if output.open_contexts else None
    if not isinstance(innermost, OpenLevel) or innermost.kind is not kind:
        unsupported("transform level", kind.name, "it is not the innermost open context")
    output.side_effects.version += 1
    output.add_state_node(kind.leave)
    result = kind.leave()
    output.open_contexts.pop()
    output.transform_levels -= 1
    return ConstantVariable(result)
