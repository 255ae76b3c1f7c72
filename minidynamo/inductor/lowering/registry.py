"""The table from aten operator to lowering.

A lowering is `fn(g, *args, **kwargs)` with `g` the `GraphLowering`: the operator's arguments with
`TensorValue` for tensors. It returns what the operator returns, or `DECLINED` for arguments that it
does not handle: the operator is then called through the dispatcher, like every operator without a
lowering.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LOWERINGS: dict[Any, Callable[..., Any]] = {}
DECLINED = object()


def overloads(op: Any) -> list[Any]:
    """The functional overloads of an operator (`torch.ops.aten.add`), or the one overload that was
    given.
    """
    if isinstance(op, torch._ops.OpOverload):
        return [op]
    found = [getattr(op, name) for name in op.overloads()]
    return [o for o in found if not o._schema.is_mutable]


def register(*ops: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function lowers these operators (each with all its functional overloads)."""

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            for overload in overloads(op):
                assert overload not in LOWERINGS, f"{overload} has two lowerings"
                LOWERINGS[overload] = fn
        return fn

    return decorate
