"""What eager refuses of the arguments of operators, and torch's rules for fake tensors let pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _check_dimension(x: torch.Tensor, dim: int) -> None:
    most = max(x.dim(), 1)
    if not -most <= dim < most:
        text = f"expected to be in range of [{-most}, {most - 1}], but got {dim}"
        raise IndexError(f"Dimension out of range ({text})")


def _softmax(x: torch.Tensor, dim: int, _half_to_float: bool) -> None:
    _check_dimension(x, dim)


def _sort(x: torch.Tensor, dim: int = -1, _descending: bool = False) -> None:
    _check_dimension(x, dim)


def _stable_sort(
    x: torch.Tensor, *, stable: Any, dim: int = -1, descending: bool = False
) -> None:
    _check_dimension(x, dim)


def _probability(x: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> None:
    if type(p) in (int, float) and not 0 <= p <= 1:
        raise RuntimeError(f"a probability is expected to be in [0, 1], but got p={p}")


def _check_interval(low: Any, high: Any, is_empty: bool) -> None:
    if all(type(bound) in (int, float) for bound in (low, high)) and is_empty:
        raise RuntimeError(
            f"'from' is expected to be less than 'to', but got from={low}, to={high}"
        )


def _uniform(x: torch.Tensor, low: Any = 0, high: Any = 1, *, generator: Any = None) -> None:
    _check_interval(low, high, low > high)


def _integers_below(x: torch.Tensor, high: Any, **_options: Any) -> None:
    _check_interval(0, high, high <= 0)


def _integers(x: torch.Tensor, low: Any, high: Any, **_options: Any) -> None:
    if high is not None:
        _check_interval(low, high, high <= low)


def _largest(name: str, x: torch.Tensor, dim: Any) -> None:
    """Where there are rows, but of no element, torch's rules raise."""
    is_given = type(dim) is int and -x.dim() <= dim < x.dim()
    if is_given and type(x.shape[dim]) is int and x.shape[dim] == 0:
        where = f"dim {dim % x.dim()} to have non-zero size."
        raise IndexError(f"{name}(): Expected reduction {where}")


# Operator -> a function of its arguments, which raises what eager would, if not in its words.
CHECKS: dict[Any, Callable[..., None]] = {
    aten._softmax.default: _softmax,
    aten.sort.default: _sort,
    aten.sort.stable: _stable_sort,
    aten.bernoulli.p: _probability,
    aten.bernoulli_.float: _probability,
    aten.uniform_.default: _uniform,
    aten.random_.to: _integers_below,
    getattr(aten.random_, "from"): _integers,
    aten.randint_like.default: _integers_below,
    aten.randint_like.low_dtype: _integers,
    aten.max.dim: lambda x, dim, *_rest: _largest("max", x, dim),
    aten.min.dim: lambda x, dim, *_rest: _largest("min", x, dim),
    aten.median.dim: lambda x, dim, *_rest: _largest("median", x, dim),
    aten.nanmedian.dim: lambda x, dim, *_rest: _largest("median", x, dim),
    aten.mode.default: lambda x, dim=-1, *_rest: _largest("mode", x, dim),
}
