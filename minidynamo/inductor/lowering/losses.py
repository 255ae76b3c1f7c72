"""Losses that look at their arguments' values in eager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import TensorValue
from minidynamo.inductor.lowering.promotion import compute_type
from minidynamo.inductor.lowering.reductions import lower_mean, lower_sum
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.lowering.scalar import Scalar, log, log1p, maximum

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
_REDUCTIONS = {1: lower_mean, 2: lower_sum}
# Of a logarithm, so that the loss is finite.
_LEAST = -100.0


def _checked(x: Scalar, name: str) -> Scalar:
    text = f"RuntimeError: all elements of {name} should be between 0 and 1"
    return Scalar(x.builder, x.builder.check(x.value, ((x >= 0) & (x <= 1)).value, text))


def _cross_entropy(x: Scalar, y: Scalar, *weight: Scalar) -> Scalar:
    x, y = _checked(x, "input"), _checked(y, "target")
    loss = (y - 1) * maximum(log1p(-x), _LEAST) - y * maximum(log(x), _LEAST)
    return loss * weight[0] if weight else loss


@register(aten.binary_cross_entropy.default)
def lower_binary_cross_entropy(
    g: GraphLowering,
    x: TensorValue,
    y: TensorValue,
    weight: TensorValue | None = None,
    reduction: int = 1,
) -> Any:
    operands = [v for v in (x, y, weight) if v is not None]
    if any((v.size, v.dtype) != (x.size, x.dtype) for v in operands):
        return DECLINED
    if reduction not in _REDUCTIONS:
        return g.pointwise(_cross_entropy, operands, x.dtype, cost=40)
    losses = g.computed(_cross_entropy, operands, compute_type(x.dtype), x.size)
    return _REDUCTIONS[reduction](g, losses)
