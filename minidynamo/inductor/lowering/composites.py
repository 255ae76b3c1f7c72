"""Operators that are a small program of reductions and pointwise work: normalisations, their
gradients, the cross product.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Index, TensorValue
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.gather import broadcast_index
from minidynamo.inductor.lowering.promotion import category, compute_type
from minidynamo.inductor.lowering.reductions import count
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.lowering.scalar import Scalar, real, rsqrt
from minidynamo.inductor.lowering.variance import mean_and_squares
from minidynamo.inductor.lowering.views import wrap
from minidynamo.inductor.symbolic import ZERO

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten


def _scalar(
    b: BodyBuilder,
    x: TensorValue,
    index: Index,
    compute: torch.dtype,
) -> Scalar:
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
    g: GraphLowering,
    squares: TensorValue,
    total: float,
    eps: float,
    compute: torch.dtype,
) -> TensorValue:
    """1 / sqrt(squares / total + eps), in memory: it is used once for each element of the input."""
    value = g.computed(lambda s: rsqrt(s / total + eps), (squares,), compute, squares.size)
    g.realize(value)
    return value


def _like(
    g: GraphLowering,
    x: TensorValue,
    fake: torch.Tensor,
) -> TensorValue:
    """`x` in the shape (extents of 1 aside) and dtype of `fake`."""
    return g.drop_dims(x, [d for d in range(x.ndim) if d >= fake.dim()], None, fake)


def takes_parameters(x: Any, *parameters: Any) -> bool:
    """Eager normalises with those of the input's dtype, and on the CPU float32 ones for 16 bits."""
    return _of_dtype(x, parameters, x.device.type == "cpu")


def _of_matching_dtypes(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Batch norms take float32 parameters and statistics for 16 bits on every device; others stay
    calls, which raise what eager raises.
    """

    @functools.wraps(lower)
    def lowered(g: GraphLowering, x: TensorValue, *args: Any) -> Any:
        parameters = [arg for arg in args if isinstance(arg, TensorValue)]
        return lower(g, x, *args) if _of_dtype(x, parameters, True) else DECLINED

    return lowered


def _of_dtype(x: Any, parameters: Sequence[Any], wide: bool) -> bool:
    dtypes = {p.dtype for p in parameters if p is not None}
    wide = wide and x.dtype.itemsize == 2
    return dtypes <= {x.dtype} or (wide and dtypes == {torch.float32})


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
    if x.numel() == 0 or not takes_parameters(x, weight, bias):
        return DECLINED
    first = x.ndim - len(shape)
    dims = list(range(first, x.ndim))
    compute = compute_type(x.dtype)
    g.keep(x)
    mean, squares = mean_and_squares(g, x, dims, compute)
    g.realize(mean)
    rstd = _inverse_root(g, squares, real(math.prod(shape)), eps, compute)

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
    rstd = _inverse_root(g, squares, real(math.prod(shape)), eps, compute)

    def inner(b: BodyBuilder, index: Index) -> Value:
        row = [*index[:first], *(ZERO for _ in dims)]
        value = _scalar(b, x, index, compute) * _scalar(b, rstd, row, compute)
        return _affine(b, value, weight, None, index[first:]).value

    operands = [v for v in (x, rstd, weight) if v is not None]
    return g.lazy(inner, operands, cost=4, meta=out), _like(g, rstd, rstd_fake)


@register(aten._native_batch_norm_legit_no_training.default)
@_of_matching_dtypes
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
    empty = [g.lazy(lambda b, index: b.constant(0, compute), meta=fake) for fake in g.meta[1:]]
    return result, *empty


@register(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
@_of_matching_dtypes
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
    """With statistics to update it mutates; such graphs come as the functional operator below."""
    if not training and running_mean is not None and running_var is not None:
        return lower_batch_norm_inference(
            g, x, weight, bias, running_mean, running_var, momentum, eps
        )
    if training and running_mean is None:
        return _batch_norm(g, x, weight, bias, eps)[:3]
    return DECLINED


@register(aten._native_batch_norm_legit.no_stats)
@_of_matching_dtypes
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
@_of_matching_dtypes
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
    if training:
        return _updated(g, x, weight, bias, running_mean, running_var, momentum, eps)
    parts = lower_batch_norm_inference(
        g, x, weight, bias, running_mean, running_var, momentum, eps
    )
    return *parts[:3], _like(g, running_mean, g.meta[3]), _like(g, running_var, g.meta[4])


@register(aten._batch_norm_with_update_functional.default)
@_of_matching_dtypes
def lower_batch_norm_with_update(g: GraphLowering, *args: Any) -> Any:
    *parts, mean, var = _updated(g, *args)
    reserve = g.lazy(lambda b, index: b.constant(0, torch.uint8), meta=g.meta[3])
    return *parts, reserve, mean, var


def _updated(
    g: GraphLowering,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    running_mean: TensorValue,
    running_var: TensorValue,
    momentum: float,
    eps: float,
) -> Any:
    """Training-mode batch norm: result, mean, 1/std, and the two new running statistics."""
    out, save_mean, save_rstd, mean, squares = _batch_norm(g, x, weight, bias, eps)
    total = count(x, [d for d in range(x.ndim) if d != 1])
    compute = compute_type(running_mean.dtype)
    mean_fake, var_fake = g.meta[-2:]

    def update(new: Callable[[Scalar], Scalar]) -> Callable[[Scalar, Scalar], Scalar]:
        return lambda old, value: old * (1 - momentum) + new(value) * momentum

    flat = [d for d in range(x.ndim) if d != 1]
    new_mean = g.pointwise(
        update(lambda m: m),
        (running_mean, g.drop_dims(mean, flat, None, mean_fake)),
        compute,
        cost=3,
        meta=mean_fake,
    )
    degrees = real(total - 1 if total > 1 else 1)
    unbiased = g.drop_dims(squares, flat, lambda s: s / degrees, var_fake)
    new_var = g.pointwise(
        update(lambda v: v), (running_var, unbiased), compute, cost=3, meta=var_fake
    )
    return out, save_mean, save_rstd, new_mean, new_var


def _batch_norm(
    g: GraphLowering,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    eps: float,
) -> tuple[Any, ...]:
    """(out, mean, 1/std, mean with kept dims, sum of squared distances) of training-mode batch
    norm.
    """
    compute = compute_type(x.dtype)
    dims = [d for d in range(x.ndim) if d != 1]
    g.keep(x)
    mean, squares = mean_and_squares(g, x, dims, compute)
    g.realize(mean)
    rstd = _inverse_root(g, squares, real(count(x, dims)), eps, compute)

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


def _of_groups(
    g: GraphLowering,
    x: TensorValue,
    groups: int,
    each: int,
    compute: torch.dtype,
) -> tuple[TensorValue, TensorValue]:
    """Mean and sum of squared distances from it of `each` channels together, as (batch, groups, 1,
    ...). Where channels are innermost, from those of single channels (Chan, Golub and LeVeque's
    pairwise formula), so that channels are lanes.
    """

    def grouped(value: TensorValue) -> TensorValue:
        size = (value.size[0], groups, each, *value.size[2:])
        return g.reindexed(value, size, lambda i: [i[0], i[1] * each + i[2], *i[3:]])

    dims = list(range(2, x.ndim + 1))
    spatial = count(x, dims[:-1])
    if x.ndim < 3 or x.stride[1] != 1 or each == 1 or spatial == 1:
        return mean_and_squares(g, grouped(x), dims, compute)
    means, squares = mean_and_squares(g, x, dims[:-1], compute)
    g.realize(means)
    mean, apart = mean_and_squares(g, grouped(means), [2], compute)
    own = grouped(squares)
    inside = g.reduce("sum", own.load, own.size, [2], compute, origins=x.origins)
    total = real(spatial)
    return mean, g.computed(lambda s, d: s + d * total, (inside, apart), compute, mean.size)


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
    if x.numel() == 0 or not takes_parameters(x, weight, bias):
        return DECLINED
    compute = compute_type(x.dtype)
    each = channels // groups
    dims = list(range(2, x.ndim + 1))
    g.keep(x)
    mean, squares = _of_groups(g, x, groups, each, compute)
    rstd = _inverse_root(g, squares, real(each * spatial), eps, compute)

    def row(index: Index) -> Index:
        return [index[0], index[1] // each, *(ZERO for _ in dims)]

    centres, inverses = mean, rstd
    if x.stride[1] == 1 and x.ndim > 2:
        # For each channel: lanes that are channels find them side by side.
        size = (n, channels, *(1 for _ in x.size[2:]))
        centres, inverses = (g.reindexed(v, size, row) for v in (mean, rstd))
        g.realize(centres)
        g.realize(inverses)

    def inner(b: BodyBuilder, index: Index) -> Value:
        own = row(index) if centres is mean else [*index[:2], *(ZERO for _ in x.size[2:])]
        centred = _scalar(b, x, index, compute) - _scalar(b, centres, own, compute)
        value = centred * _scalar(b, inverses, own, compute)
        return _affine(b, value, weight, bias, [index[1]]).value

    operands = [v for v in (x, mean, rstd, weight, bias) if v is not None]
    result = g.lazy(inner, operands, cost=6, meta=out)
    return (
        result,
        g.drop_dims(mean, dims, None, mean_fake),
        g.drop_dims(rstd, dims, None, rstd_fake),
    )


class _LayerNormGradient:
    """The terms of layer norm's gradient at one element; `first` is the first normalised dim."""

    def __init__(
        self,
        grad: TensorValue,
        x: TensorValue,
        first: int,
        mean: TensorValue,
        rstd: TensorValue,
        weight: TensorValue | None,
    ) -> None:
        self.grad, self.x, self.first = grad, x, first
        self.mean, self.rstd, self.weight = mean, rstd, weight
        self.compute = compute_type(x.dtype)

    def row(self, index: Index) -> Index:
        """Index into the statistics."""
        return [*index[: self.first], *(ZERO for _ in range(self.mean.ndim - self.first))]

    def plain(
        self,
        b: BodyBuilder,
        index: Index,
    ) -> Scalar:
        """The gradient."""
        return _scalar(b, self.grad, index, self.compute)

    def scaled(
        self,
        b: BodyBuilder,
        index: Index,
    ) -> Scalar:
        """The gradient times the weight."""
        return _affine(b, self.plain(b, index), self.weight, None, index[self.first :])

    def inverse(
        self,
        b: BodyBuilder,
        index: Index,
    ) -> Scalar:
        """1 / std."""
        return _scalar(b, self.rstd, self.row(index), self.compute)

    def normal(
        self,
        b: BodyBuilder,
        index: Index,
    ) -> Scalar:
        """The normalised input."""
        centre = _scalar(b, self.mean, self.row(index), self.compute)
        return (_scalar(b, self.x, index, self.compute) - centre) * self.inverse(b, index)

    def sum(
        self,
        g: GraphLowering,
        dims: Sequence[int],
        *terms: Callable[[BodyBuilder, Index], Scalar],
    ) -> TensorValue:
        """The sum over `dims` of the product of some terms."""

        def inner(b: BodyBuilder, index: Index) -> Value:
            value = terms[0](b, index)
            for term in terms[1:]:
                value = value * term(b, index)
            return value.value

        origins = (*self.grad.origins, *self.x.origins)
        return g.reduce("sum", inner, self.x.size, dims, self.compute, origins=origins)


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
    g.keep(grad)
    g.keep(x)
    terms = _LayerNormGradient(grad, x, first, mean, rstd, weight)
    outer = list(range(first))
    results: list[Any] = [None, None, None]
    if mask[0]:
        results[0] = _layer_norm_input_gradient(g, terms, shape)
    if mask[1] and weight is not None:
        kept = terms.sum(g, outer, terms.plain, terms.normal)
        results[1] = g.drop_dims(kept, outer, None, g.meta[1])
    if mask[2] and bias is not None:
        results[2] = g.drop_dims(terms.sum(g, outer, terms.plain), outer, None, g.meta[2])
    return tuple(results)


def _layer_norm_input_gradient(
    g: GraphLowering,
    terms: _LayerNormGradient,
    shape: Sequence[int],
) -> TensorValue:
    dims = list(range(terms.first, terms.x.ndim))
    total = real(math.prod(shape))
    shift = terms.sum(g, dims, terms.scaled)
    tilt = terms.sum(g, dims, terms.scaled, terms.normal)

    def inner(b: BodyBuilder, index: Index) -> Value:
        own = [*index[: terms.first], *(ZERO for _ in dims)]
        mean_shift = _scalar(b, shift, own, terms.compute) / total
        mean_tilt = _scalar(b, tilt, own, terms.compute) / total
        value = terms.scaled(b, index) - mean_shift - terms.normal(b, index) * mean_tilt
        return (value * terms.inverse(b, index)).value

    operands = [terms.grad, terms.x, terms.mean, terms.rstd, terms.weight, shift, tilt]
    return g.lazy(inner, operands, cost=12, meta=g.meta[0])


@register(aten.linalg_cross.default)
def lower_cross(
    g: GraphLowering,
    a: TensorValue,
    other: TensorValue,
    *,
    dim: int = -1,
) -> Any:
    if a.dtype != other.dtype or category(a.dtype) == 0 or a.ndim != other.ndim:
        return DECLINED
    compute, at = compute_type(a.dtype), wrap(dim, a.ndim)

    def inner(b: BodyBuilder, index: Index) -> Value:
        def turned(x: TensorValue, by: int) -> Scalar:
            own = [*index[:at], (index[at] + by) % 3, *index[at + 1 :]]
            return _scalar(b, x, broadcast_index(x, own), compute)

        def product(first: int, second: int) -> Scalar:  # rounded, as eager's
            return (turned(a, first) * turned(other, second)).to(a.dtype).to(compute)

        return (product(1, 2) - product(2, 1)).value

    g.keep(a)
    g.keep(other)
    return g.lazy(inner, (a, other), cost=3)
