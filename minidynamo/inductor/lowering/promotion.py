"""torch's type promotion for tensor values and numbers.

The rule (documented at torch.result_type): operands form three groups, tensors with dimensions,
tensors without, and Python numbers. The first group that is not empty decides, unless a later one
has a higher category (bool < integer < floating), which then contributes its dtype.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, reduce

import torch

from minidynamo.inductor import config
from minidynamo.inductor.ir import Inner, TensorValue
from minidynamo.inductor.loop_body import LOW_PRECISION
from minidynamo.inductor.symbolic import Expr

Operand = TensorValue | bool | int | float | Expr


def category(dtype: torch.dtype) -> int:
    if dtype == torch.bool:
        return 0
    return 1 if not (dtype.is_floating_point or dtype.is_complex) else 2


@lru_cache(maxsize=256)
def _promote(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    return torch.promote_types(a, b)


def _number_dtype(value: bool | int | float | Expr) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    return torch.int64 if isinstance(value, (int, Expr)) else torch.get_default_dtype()


def result_type(operands: Iterable[Operand | None]) -> torch.dtype:
    """The common dtype of tensor values and numbers; None is skipped."""
    groups: tuple[list[torch.dtype], ...] = ([], [], [])
    for value in operands:
        if isinstance(value, TensorValue):
            groups[0 if value.size else 1].append(value.dtype)
        elif value is not None:
            groups[2].append(_number_dtype(value))
    result: torch.dtype | None = None
    for group in groups:
        if group:
            dtype = reduce(_promote, group)
            if result is None:
                result = dtype
            elif category(dtype) > category(result):
                result = _promote(dtype, result)
    assert result is not None
    return result


def float_type(dtype: torch.dtype) -> torch.dtype:
    """What an operator that gives floating point computes in: integers become the default dtype."""
    return dtype if category(dtype) == 2 else torch.get_default_dtype()


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """The dtype that a kernel computes in for results of `dtype`."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def as_stored(inner: Inner, dtype: torch.dtype) -> Inner:
    """`inner`, rounded to `dtype` as eager's memory has it where the flag wants that."""
    if dtype not in LOW_PRECISION or not config.emulate_precision_casts:
        return inner
    return lambda b, index: b.cast(inner(b, index), dtype)
