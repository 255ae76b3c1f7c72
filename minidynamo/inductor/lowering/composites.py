"""Operators that are a small program of reductions and pointwise work: normalisations and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Index, TensorValue
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.promotion import compute_type
from minidynamo.inductor.lowering.reductions import mean_and_squares
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.lowering.scalar import Scalar, rsqrt
from minidynamo.inductor.symbolic import ZERO

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten


def _scalar(b: BodyBuilder, x: TensorValue, index: Index, compute: torch.dtype) -> Scalar:
    return Scalar(b, b.cast(x.load(b, index), compute))


def _affine(
    b: BodyBuilder,
    value: Scalar,
    weight: TensorValue | None,
    bias: TensorValue | None,
    index: Index,
) -> Scalar:
    if weight is not None:
        value = value * _scalar(b, weight, index, value.dtype)
    if bias is not None:
        value = value + _scalar(b, bias, index, value.dtype)
    return value


def _inverse_root(
    g: GraphLowering, squares: TensorValue, total: float, eps: float, compute: torch.dtype
) -> TensorValue:
    """1 / sqrt(squares / total + eps), in memory: it is used once for each element of the input."""
    value = g.computed(lambda s: rsqrt(s / total + eps), (squares,), compute, squares.size)
    g.realize(value)
    return value


def _like(g: GraphLowering, x: TensorValue, fake: torch.Tensor) -> TensorValue:
    """`x` in the shape (extents of 1 aside) and dtype of `fake`."""
    return g.drop_dims(x, [d for d in range(x.ndim) if d >= fake.dim()], None, fake)


@register(aten.native_layer_norm.default)
def lower_layer_norm(
    g: GraphLowering,
    x: TensorValue,
    shape: Sequence[int],
    weight: TensorValue | None,
    bias: TensorValue | None,
    eps: float,
) -> Any:
    out, mean_fake, rstd_fake = g.meta
    if x.numel() == 0:
        return DECLINED
    first = x.ndim - len(shape)
    dims = list(range(first, x.ndim))
    compute = compute_type(x.dtype)
    g.keep(x)
    mean, squares = mean_and_squares(g, x, dims, compute)
    total = 1
    for extent in shape:
        total *= extent
    rstd = _inverse_root(g, squares, float(total), eps, compute)

    def inner(b: BodyBuilder, index: Index) -> Value:
        row = [*index[:first], *(ZERO for _ in dims)]
        centred = _scalar(b, x, index, compute) - _scalar(b, mean, row, compute)
        value = centred * _scalar(b, rstd, row, compute)
        return _affine(b, value, weight, bias, index[first:]).value

    operands = [v for v in (x, mean, rstd, weight, bias) if v is not None]
    result = g.lazy(inner, operands, cost=5, meta=out)
    return result, _like(g, mean, mean_fake), _like(g, rstd, rstd_fake)


@register(aten._fused_rms_norm.default)
def lower_rms_norm(
    g: GraphLowering,
    x: TensorValue,
    shape: Sequence[int],
    weight: TensorValue | None,
    eps: float | None,
) -> Any:
    out, rstd_fake = g.meta
    if x.numel() == 0:
        return DECLINED
    first = x.ndim - len(shape)
    dims = list(range(first, x.ndim))
    compute = compute_type(x.dtype)
    eps = torch.finfo(compute).eps if eps is None else eps
    g.keep(x)

    def square(b: BodyBuilder, index: Index) -> Value:
        value = _scalar(b, x, index, compute)
        return (value * value).value

    squares = g.reduce("sum", square, x.size, dims, compute, origins=x.origins)
    total = 1
    for extent in shape:
        total *= extent
    rstd = _inverse_root(g, squares, float(total), eps, compute)

    def inner(b: BodyBuilder, index: Index) -> Value:
        row = [*index[:first], *(ZERO for _ in dims)]
        value = _scalar(b, x, index, compute) * _scalar(b, rstd, row, compute)
        return _affine(b, value, weight, None, index[first:]).value

    operands = [v for v in (x, rstd, weight) if v is not None]
    return g.lazy(inner, operands, cost=4, meta=out), _like(g, rstd, rstd_fake)


@register(aten._native_batch_norm_legit_no_training.default)
def lower_batch_norm_inference(
    g: GraphLowering,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue,
    running_var: TensorValue,
    momentum: float,
    eps: float,
) -> Any:
    compute = compute_type(running_var.dtype)

    def inner(b: BodyBuilder, index: Index) -> Value:
        channel = [index[1]]
        scale = rsqrt(_scalar(b, running_var, channel, compute) + eps)
        centred = _scalar(b, x, index, compute) - _scalar(b, running_mean, channel, compute)
        value = _affine(b, centred * scale, weight, bias, channel)
        return b.cast(value.value, compute_type(x.dtype))

    operands = [v for v in (x, weight, bias, running_mean, running_var) if v is not None]
    result = g.lazy(inner, operands, cost=10, meta=g.meta[0])
    empty = [g.lazy(lambda b, index: b.constant(0, fake.dtype), meta=fake) for fake in g.meta[1:]]
    return result, *empty


@register(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def lower_batch_norm(
    g: GraphLowering,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue | None,
    running_var: TensorValue | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """With statistics to update it mutates, and such graphs come as the functional operator below."""
    if not training and running_mean is not None and running_var is not None:
        return lower_batch_norm_inference(
            g, x, weight, bias, running_mean, running_var, momentum, eps
        )
    if training and running_mean is None:
        return _batch_norm(g, x, weight, bias, eps)[:3]
    return DECLINED


@register(aten._native_batch_norm_legit.no_stats)
def lower_batch_norm_no_stats(
    g: GraphLowering,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    return _batch_norm(g, x, weight, bias, eps)[:3]


@register(aten._native_batch_norm_legit_functional.default)
def lower_batch_norm_training(
    g: GraphLowering,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue,
    running_var: TensorValue,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if not training:
        return DECLINED
    out, save_mean, save_rstd, mean, squares = _batch_norm(g, x, weight, bias, eps)
    channels = running_mean.size[0]
    total = x.numel() // channels if channels else 0  # type: ignore[operator]
    compute = compute_type(running_mean.dtype)

    def update(new: Callable[[Scalar], Scalar]) -> Callable[[Scalar, Scalar], Scalar]:
        return lambda old, value: old * (1 - momentum) + new(value) * momentum

    flat = [d for d in range(x.ndim) if d != 1]
    new_mean = g.pointwise(
        update(lambda m: m),
        (running_mean, g.drop_dims(mean, flat, None, g.meta[3])),
        compute,
        cost=3,
        meta=g.meta[3],
    )
    unbiased = g.drop_dims(squares, flat, lambda s: s / float(max(total - 1, 1)), g.meta[4])
    new_var = g.pointwise(
        update(lambda v: v), (running_var, unbiased), compute, cost=3, meta=g.meta[4]
    )
    return out, save_mean, save_rstd, new_mean, new_var


def _batch_norm(
    g: GraphLowering,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    eps: float,
) -> tuple[Any, ...]:
    """(out, mean, 1/std, mean with kept dims, sum of squared distances) of training-mode batch norm."""
    compute = compute_type(x.dtype)
    dims = [d for d in range(x.ndim) if d != 1]
    g.keep(x)
    mean, squares = mean_and_squares(g, x, dims, compute)
    total = 1.0
    for d in dims:
        total *= x.size[d]  # type: ignore[assignment,operator]
    rstd = _inverse_root(g, squares, total, eps, compute)

    def inner(b: BodyBuilder, index: Index) -> Value:
        row = [i if d == 1 else ZERO for d, i in enumerate(index)]
        centred = _scalar(b, x, index, compute) - _scalar(b, mean, row, compute)
        value = centred * _scalar(b, rstd, row, compute)
        return _affine(b, value, weight, bias, [index[1]]).value

    operands = [v for v in (x, mean, rstd, weight, bias) if v is not None]
    out = g.lazy(inner, operands, cost=5, meta=g.meta[0])
    save_mean = g.drop_dims(mean, dims, None, g.meta[1])
    save_rstd = g.drop_dims(rstd, dims, None, g.meta[2])
    return out, save_mean, save_rstd, mean, squares


@register(aten.native_group_norm.default)
def lower_group_norm(
    g: GraphLowering,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    n: int,
    channels: int,
    spatial: int,
    groups: int,
    eps: float,
) -> Any:
    out, mean_fake, rstd_fake = g.meta
    if x.numel() == 0:
        return DECLINED
    compute = compute_type(x.dtype)
    each = channels // groups
    grouped = (n, groups, each, *x.size[2:])
    dims = list(range(2, len(grouped)))
    g.keep(x)

    def merged(index: Index) -> Index:
        return [index[0], index[1] * each + index[2], *index[3:]]

    view = g.reindexed(x, grouped, merged)
    mean, squares = mean_and_squares(g, view, dims, compute)
    rstd = _inverse_root(g, squares, float(each * spatial), eps, compute)

    def inner(b: BodyBuilder, index: Index) -> Value:
        row = [index[0], index[1] // each, *(ZERO for _ in dims)]
        centred = _scalar(b, x, index, compute) - _scalar(b, mean, row, compute)
        value = centred * _scalar(b, rstd, row, compute)
        return _affine(b, value, weight, bias, [index[1]]).value

    operands = [v for v in (x, mean, rstd, weight, bias) if v is not None]
    result = g.lazy(inner, operands, cost=6, meta=out)
    return (
        result,
        g.drop_dims(mean, dims, None, mean_fake),
        g.drop_dims(rstd, dims, None, rstd_fake),
    )


@register(aten.native_layer_norm_backward.default)
def lower_layer_norm_backward(
    g: GraphLowering,
    grad: TensorValue,
    x: TensorValue,
    shape: Sequence[int],
    mean: TensorValue,
    rstd: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    mask: Sequence[bool],
) -> Any:
    if x.numel() == 0:
        return DECLINED
    first = x.ndim - len(shape)
    inner_dims, outer_dims = list(range(first, x.ndim)), list(range(first))
    compute = compute_type(x.dtype)
    total = 1.0
    for extent in shape:
        total *= extent
    g.keep(grad)
    g.keep(x)

    def row(index: Index) -> Index:
        return [*index[:first], *(ZERO for _ in range(mean.ndim - first))]

    def parts(b: BodyBuilder, index: Index) -> tuple[Scalar, Scalar, Scalar]:
        """(gradient, gradient times weight, normalised x)."""
        d = _scalar(b, grad, index, compute)
        own = row(index)
        normal = _scalar(b, x, index, compute) - _scalar(b, mean, own, compute)
        normal = normal * _scalar(b, rstd, own, compute)
        return d, _affine(b, d, weight, None, index[first:]), normal

    results: list[Any] = [None, None, None]
    origins = (*grad.origins, *x.origins)
    if mask[0]:
        plain = g.reduce(
            "sum", lambda b, i: parts(b, i)[1].value, x.size, inner_dims, compute, origins=origins
        )
        dotted = g.reduce(
            "sum",
            lambda b, i: (parts(b, i)[1] * parts(b, i)[2]).value,
            x.size,
            inner_dims,
            compute,
            origins=origins,
        )

        def inner(b: BodyBuilder, index: Index) -> Value:
            _, scaled, normal = parts(b, index)
            own = [*index[:first], *(ZERO for _ in inner_dims)]
            shift = _scalar(b, plain, own, compute) / total
            tilt = _scalar(b, dotted, own, compute) / total
            value = scaled - shift - normal * tilt
            return (value * _scalar(b, rstd, row(index), compute)).value

        operands = [v for v in (grad, x, mean, rstd, weight, plain, dotted) if v is not None]
        results[0] = g.lazy(inner, operands, cost=12, meta=g.meta[0])
    if mask[1] and weight is not None:
        kept = g.reduce(
            "sum",
            lambda b, i: (parts(b, i)[0] * parts(b, i)[2]).value,
            x.size,
            outer_dims,
            compute,
            origins=origins,
        )
        results[1] = g.drop_dims(kept, outer_dims, None, g.meta[1])
    if mask[2] and bias is not None:
        kept = g.reduce(
            "sum", lambda b, i: parts(b, i)[0].value, x.size, outer_dims, compute, origins=origins
        )
        results[2] = g.drop_dims(kept, outer_dims, None, g.meta[2])
    return tuple(results)
