"""What torch.distributions asks of tensors' data, said without a branch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.distributions import constraints

from .. import markers
from ..variables.base import VariableTracker
from ..variables.registry import handles

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


def _is_symmetric(
    constraint: Any,
    value: torch.Tensor,
) -> torch.Tensor:
    """`_Symmetric.check`, where whether matrices are square is known from the shape."""
    if value.shape[-2] != value.shape[-1]:
        return constraints._Square.check(constraint, value)
    return torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)


def _is_positive_definite(
    constraint: Any,
    value: torch.Tensor,
) -> torch.Tensor:
    """`_PositiveDefinite.check`, which returns early where a matrix is not symmetric."""
    symmetric = _is_symmetric(constraint, value)
    if value.shape[-2] != value.shape[-1]:
        return symmetric
    definite = torch.linalg.cholesky_ex(value).info.eq(0)
    return torch.where(symmetric.all(), definite, symmetric)


def _instead(
    original: Callable[..., Any],
    function: Callable[..., Any],
) -> None:
    markers.set_decision(function, markers.Decision.INLINE)

    def handler(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> VariableTracker:
        return tx.call_function(tx.wrap_constant(function), args, kwargs)

    handles(original)(handler)


_instead(constraints._Symmetric.check, _is_symmetric)
_instead(constraints._PositiveDefinite.check, _is_positive_definite)
