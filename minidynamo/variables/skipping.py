"""Whether functions of libraries that are left to eager are traced for once (dont_skip_tracing)."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import markers, trace_rules
from ..trace_rules import Rule

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


def rule_of(
    tx: Translator,
    fn: Callable[..., Any],
) -> Rule:
    """`trace_rules.lookup` of a callable that the traced code calls."""
    rule = trace_rules.lookup(fn)
    is_python = isinstance(fn, types.FunctionType) and markers.decision(fn) is None
    if rule is Rule.BREAK and is_python and _is_traced_through(tx):
        return Rule.INLINE
    return rule


def _is_traced_through(tx: Translator) -> bool:
    traced: Any = tx.output.side_effects.variable_of(markers.traced_blocks)
    if markers.traced_blocks if traced is None else traced.items:
        return True
    frame: Translator | None = tx
    while frame is not None and frame.code not in markers.traced_codes:
        frame = frame.parent
    return frame is not None
