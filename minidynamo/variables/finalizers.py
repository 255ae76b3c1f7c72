"""Arguments of the frame whose end runs code: `__del__`, callbacks of weak references.

That code is not traced. The graph breaks at the instruction behind which nothing leads to such an
argument any more, so that eager does it at that moment. Where a container or an attribute lets go
of such an object, the log of side effects breaks the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exc import Unsupported
from ..finalizers import ends_with_code
from .base import LazyVariable, VariableTracker
from .reach import first_not_held

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


def find_mortal(values: dict[str, VariableTracker]) -> dict[str, LazyVariable]:
    """Those of the frame's arguments, by name, whose end may run code."""
    settled: set[int] = set()
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, LazyVariable) and ends_with_code(value.value, settled=settled)
    }


def check_dropped(tx: Translator, mortal: dict[str, LazyVariable]) -> None:
    """To be called behind an instruction of `tx` at which the graph may break."""
    frame: Any = tx if tx.result is None else [tx.parent, tx.result]
    if tx.result is not None and tx.parent is None:
        return
    # Most are where a running frame has them: nothing else is walked for these.
    near: set[int] = set()
    holder = tx if tx.result is None else tx.parent
    while holder is not None:
        near.update(map(id, holder.stack))
        near.update(map(id, holder.locals.values()))
        holder = holder.parent
    groups = {
        name: (value, value.realize()) if value.is_realized else (value,)
        for name, value in mortal.items()
        if id(value) not in near
    }
    name = first_not_held(tx, groups, frame) if groups else None
    if name is not None:
        reason = Unsupported("finalizer", name, "the end of the object may run code")
        reason.user_stack = tx.user_stack()
        raise reason
