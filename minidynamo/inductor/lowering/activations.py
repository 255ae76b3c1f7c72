"""Activations with parameters, and their gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import TensorValue
from minidynamo.inductor.lowering.pointwise_table import scaled_by
from minidynamo.inductor.lowering.promotion import float_type
from minidynamo.inductor.lowering.registry import register
from minidynamo.inductor.lowering.scalar import (
    Scalar,
    erf,
    exp,
    expm1,
    log1p,
    minimum,
    sigmoid,
    tanh,
    where,
)

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
Number = bool | int | float


def gelu_erf(x: Scalar) -> Scalar:
    return x * 0.5 * (1 + erf(x * math.sqrt(0.5)))


def gelu_tanh(x: Scalar) -> Scalar:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (1 + tanh(inner))


@register(aten.gelu)
def lower_gelu(
    g: GraphLowering,
    x: TensorValue,
    approximate: str = "none",
) -> Any:
    return g.pointwise(gelu_tanh if approximate == "tanh" else gelu_erf, (x,), x.dtype, cost=30)


def _gelu_erf_backward(grad: Scalar, x: Scalar) -> Scalar:
    cdf = 0.5 * (1 + erf(x * math.sqrt(0.5)))
    pdf = exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return grad * (cdf + x * pdf)


def _gelu_tanh_backward(grad: Scalar, x: Scalar) -> Scalar:
    scale = math.sqrt(2 / math.pi)
    t = tanh(scale * (x + 0.044715 * (x * x * x)))
    slope = scale * (1 + 3 * 0.044715 * (x * x))
    return grad * (0.5 * (1 + t) + 0.5 * x * ((1 - t * t) * slope))


@register(aten.gelu_backward)
def lower_gelu_backward(
    g: GraphLowering,
    grad: TensorValue,
    x: TensorValue,
    approximate: str = "none",
) -> Any:
    fn = _gelu_tanh_backward if approximate == "tanh" else _gelu_erf_backward
    return g.pointwise(fn, (grad, x), x.dtype, cost=48)


@register(aten.leaky_relu)
def lower_leaky_relu(
    g: GraphLowering,
    x: TensorValue,
    slope: Number = 0.01,
) -> Any:
    return g.pointwise(lambda a: where(a > 0, a, a * slope), (x,), x.dtype, cost=3)


@register(aten.leaky_relu_backward.default)
def lower_leaky_relu_backward(
    g: GraphLowering,
    grad: TensorValue,
    x: TensorValue,
    slope: Number,
    is_result: bool,
) -> Any:
    return g.pointwise(lambda d, a: where(a > 0, d, d * slope), (grad, x), x.dtype, cost=3)


@register(aten.elu)
def lower_elu(
    g: GraphLowering,
    x: TensorValue,
    alpha: Number = 1,
    scale: Number = 1,
    input_scale: Number = 1,
) -> Any:
    def fn(a: Scalar) -> Scalar:
        negative = expm1(scaled_by(a, input_scale)) * (alpha * scale)
        return where(a > 0, scaled_by(a, scale), negative)

    return g.pointwise(fn, (x,), x.dtype, cost=20)


@register(aten.elu_backward.default)
def lower_elu_backward(
    g: GraphLowering,
    grad: TensorValue,
    alpha: Number,
    scale: Number,
    input_scale: Number,
    is_result: bool,
    x: TensorValue,
) -> Any:
    def fn(d: Scalar, a: Scalar) -> Scalar:
        if is_result:
            slope = (a + alpha * scale) * input_scale
        else:
            slope = exp(scaled_by(a, input_scale)) * (alpha * scale * input_scale)
        return where(a <= 0, d * slope, scaled_by(d, scale))

    return g.pointwise(fn, (grad, x), x.dtype, cost=18)


@register(aten.softplus)
def lower_softplus(
    g: GraphLowering,
    x: TensorValue,
    beta: Number = 1,
    threshold: Number = 20,
) -> Any:
    def fn(a: Scalar) -> Scalar:
        scaled = scaled_by(a, beta)
        return where(scaled > threshold, a, log1p(exp(scaled)) / beta)

    return g.pointwise(fn, (x,), x.dtype, cost=34)


@register(aten.softplus_backward.default)
def lower_softplus_backward(
    g: GraphLowering,
    grad: TensorValue,
    x: TensorValue,
    beta: Number,
    threshold: Number,
) -> Any:
    def fn(d: Scalar, a: Scalar) -> Scalar:
        scaled = scaled_by(a, beta)
        return where(scaled > threshold, d, d * sigmoid(scaled))

    return g.pointwise(fn, (grad, x), x.dtype, cost=20)


@register(aten.log_sigmoid_forward.default)
def lower_log_sigmoid(g: GraphLowering, x: TensorValue) -> Any:
    """The value, and what eager keeps for the gradient (which our gradient does not read)."""
    value, buffer = g.meta
    result = g.pointwise(
        lambda a: minimum(a, 0) - log1p(exp(-abs(a))), (x,), x.dtype, cost=32, meta=value
    )
    if tuple(buffer.shape) != x.size:
        return result, g.lazy(lambda b, index: b.constant(0, buffer.dtype), meta=buffer)
    return result, g.pointwise(lambda a: exp(-abs(a)), (x,), x.dtype, cost=14, meta=buffer)


@register(aten.logit)
def lower_logit(
    g: GraphLowering,
    x: TensorValue,
    eps: float | None = None,
) -> Any:
    def fn(a: Scalar) -> Scalar:
        bounded = a
        if eps is not None:  # the lower bound counts first, also where it is the greater one
            bounded = where(a < eps, a.const(eps), where(a > 1 - eps, a.const(1 - eps), a))
        return (bounded / (1 - bounded)).op("log")

    return g.pointwise(fn, (x,), float_type(x.dtype), cost=20)


@register(aten.softshrink.default)
def lower_softshrink(
    g: GraphLowering,
    x: TensorValue,
    limit: Number = 0.5,
) -> Any:
    def fn(a: Scalar) -> Scalar:
        return where(a > limit, a - limit, where(a < -limit, a + limit, a * 0))

    return g.pointwise(fn, (x,), x.dtype, cost=5)
