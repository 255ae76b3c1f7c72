"""Pointwise operators with extra arguments: factors, rounding modes, bounds, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import OVERWRITTEN, Index, TensorValue
from minidynamo.inductor.loop_body import LOW_PRECISION, BodyBuilder, Value
from minidynamo.inductor.lowering.factory import may_overflow
from minidynamo.inductor.lowering.gather import broadcast_index
from minidynamo.inductor.lowering.pointwise_table import (
    FLOAT,
    SAME,
    add,
    at_least,
    at_most,
    compute_dtype,
    heaviside,
    of_stored,
    scaled_by,
    stored,
)
from minidynamo.inductor.lowering.promotion import compute_type, float_type, result_type
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.lowering.scalar import (
    Scalar,
    isnan,
    maximum,
    minimum,
    sqrt,
    trunc,
    where,
)
from minidynamo.inductor.symbolic import product
from minidynamo.inductor.targets import uses_triton

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
Number = bool | int | float


def _plus(
    x: Scalar,
    y: Scalar,
    alpha: Number,
) -> Scalar:
    """x + alpha * y; of floats rounded once, as eager's vectors have it."""
    if alpha in (1, -1):
        return x + y if alpha == 1 else x - y
    return y.op("fma", alpha, x) if x.dtype.is_floating_point else x + y * alpha


def _sum(
    g: GraphLowering,
    x: Any,
    y: Any,
    alpha: Number,
) -> Any:
    compute = compute_dtype(SAME, (x, y))
    alpha = stored(alpha, compute)
    return of_stored(g, lambda a, b: _plus(a, b, alpha), (x, y), compute)


@register(aten.add)
def lower_add(
    g: GraphLowering,
    x: Any,
    y: Any,
    alpha: Number = 1,
) -> Any:
    if any(isinstance(v, complex) for v in (x, y, alpha)):
        return DECLINED
    compute = compute_dtype(SAME, (x, y))
    if compute == torch.bool:
        return DECLINED if alpha not in (1, True) else g.pointwise(add, (x, y), compute)
    return _sum(g, x, y, alpha)


@register(aten.sub)
def lower_sub(
    g: GraphLowering,
    x: Any,
    y: Any,
    alpha: Number = 1,
) -> Any:
    if any(isinstance(v, complex) for v in (x, y, alpha)):
        return DECLINED
    return _sum(g, x, y, -alpha)


@register(aten.rsub)
def lower_rsub(
    g: GraphLowering,
    x: Any,
    y: Any,
    alpha: Number = 1,
) -> Any:
    return _sum(g, y, x, -alpha)


# -- division --------------------------------------------------------------------------------------


def divide(x: Scalar, y: Scalar) -> Scalar:
    return x / y


def _floor_divide(x: Scalar, y: Scalar, over: Callable[[Scalar, Scalar], Scalar]) -> Scalar:
    """Python's // on floats, as torch defines it (c10::div_floor_floating); `over`: a quotient."""
    rest = x.op("fmod", y)
    quotient = over(x - rest, y)
    differ = rest.ne(0) & ((y < 0) ^ (rest < 0))
    quotient = where(differ, quotient - 1, quotient)
    nearest = quotient.op("floor")
    nearest = where(quotient - nearest > 0.5, nearest + 1, nearest)
    zero = x.const(0.0).op("copysign", over(x, y))
    return where(y.eq(0), over(x, y), where(quotient.eq(0), zero, nearest))


_OF_INTEGERS = {"floor": "floordiv", "trunc": "truncdiv"}


def _quotient(g: GraphLowering, y: Any, compute: torch.dtype) -> Callable[..., Scalar]:
    """x / y, computed in this dtype. On GPUs eager multiplies by the inverse of a number
    (ATen's BinaryDivTrueKernel.cu, BinaryDivFloorKernel.cu, BinaryDivTruncKernel.cu).
    """
    if not isinstance(y, int | float) or not compute.is_floating_point:
        return divide
    if not uses_triton(g.meta_device().type):
        return divide
    inverse = (1 / torch.tensor(y, dtype=compute_type(compute))).item()
    return lambda a, _: a * inverse


@register(aten.div, aten.true_divide)
def lower_div(
    g: GraphLowering,
    x: Any,
    y: Any,
    rounding_mode: str | None = None,
) -> Any:
    if isinstance(y, complex):
        return DECLINED
    if rounding_mode is None:
        compute = compute_dtype(FLOAT, (x, y))
        return g.pointwise(_quotient(g, y, compute), (x, y), compute, cost=4)
    compute = result_type((x, y))
    if not compute.is_floating_point:
        name = _OF_INTEGERS[rounding_mode]
        return _divided(g, lambda a, b: a.op(name, b), x, y, lambda a: -a)
    over = _quotient(g, y, compute)
    if rounding_mode == "floor":
        return g.pointwise(lambda a, b: _floor_divide(a, b, over), (x, y), compute, cost=12)
    is_one = not isinstance(y, TensorValue) or product(y.size) == 1
    rounded = compute if compute in LOW_PRECISION and not is_one else compute_type(compute)

    def fn(a: Scalar, b: Scalar) -> Scalar:  # eager truncates what it rounded
        return trunc(over(a, b).to(rounded).to(a.dtype))

    return g.pointwise(fn, (x, y), compute, cost=12)


def _divided(
    g: GraphLowering,
    fn: Callable[[Scalar, Scalar], Scalar],
    x: Any,
    y: Any,
    by_minus_one: Callable[[Scalar], Scalar],
) -> Any:
    """fn(x, y) in the operands' common dtype; of integers, a zero divisor raises what eager raises.

    Machines trap on lowest / -1 too, where eager gives `by_minus_one(x)`.
    """
    compute = result_type((x, y))
    if compute == torch.bool:
        return DECLINED
    if not compute.is_floating_point and not isinstance(y, int):
        if g.meta_device().type != "cpu":
            return DECLINED
        fn = _checked_division(fn, by_minus_one)
    elif not compute.is_floating_point and y in (0, -1):
        return DECLINED
    return of_stored(g, fn, (x, y), compute, cost=12)


def _checked_division(
    fn: Callable[[Scalar, Scalar], Scalar], by_minus_one: Callable[[Scalar], Scalar]
) -> Callable[[Scalar, Scalar], Scalar]:
    def divide_integers(a: Scalar, b: Scalar) -> Scalar:
        text = "RuntimeError: ZeroDivisionError"
        b = Scalar(b.builder, b.builder.check(b.value, b.ne(0).value, text))
        if b.dtype == torch.uint8:
            return fn(a, where(b.eq(0), 1, b))
        odd = b.eq(0) | b.eq(-1)
        return where(b.eq(-1), by_minus_one(a), fn(a, where(odd, 1, b)))

    return divide_integers


@register(aten.heaviside)
def lower_heaviside(
    g: GraphLowering,
    x: TensorValue,
    y: TensorValue,
) -> Any:
    if x.dtype != y.dtype:
        return DECLINED
    return g.pointwise(heaviside, (x, y), x.dtype, cost=4)


@register(aten.remainder)
def lower_remainder(
    g: GraphLowering,
    x: Any,
    y: Any,
) -> Any:
    return _divided(g, lambda a, b: a.op("remainder", b), x, y, lambda a: a - a)


@register(aten.fmod)
def lower_fmod(
    g: GraphLowering,
    x: Any,
    y: Any,
) -> Any:
    return _divided(g, lambda a, b: a.op("fmod", b), x, y, lambda a: a - a)


@register(aten.round.decimals)
def lower_round_decimals(
    g: GraphLowering,
    x: TensorValue,
    *,
    decimals: int = 0,
) -> Any:
    if not x.dtype.is_floating_point or abs(decimals) > 30:
        return DECLINED if x.dtype.is_floating_point else x
    scale = 10.0 ** abs(decimals)

    def fn(a: Scalar) -> Scalar:
        if decimals < 0:
            return (a / scale).op("round") * scale
        return (a * scale).op("round") / scale

    return g.pointwise(fn, (x,), x.dtype, cost=8)


@register(aten.nextafter)
def lower_nextafter(
    g: GraphLowering,
    x: Any,
    y: Any,
) -> Any:
    compute = result_type((x, y))
    if compute not in (torch.float32, torch.float64):
        return DECLINED
    return g.pointwise(lambda a, b: a.op("nextafter", b), (x, y), compute, cost=6)


@register(aten.floor_divide)
def lower_floor_divide(
    g: GraphLowering,
    x: Any,
    y: Any,
) -> Any:
    return lower_div(g, x, y, "floor")


# -- powers ----------------------------------------------------------------------------------------


def _integer_power(x: Scalar, exponent: int) -> Scalar:
    """x ** exponent by repeated squaring, exponent > 0."""
    result: Scalar | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else result * x
        exponent >>= 1
        if exponent:
            x = x * x
    assert result is not None
    return result


_SPECIAL_POWERS: dict[float, Callable[[Scalar], Scalar]] = {
    0.5: sqrt,
    -0.5: lambda x: x.op("rsqrt"),
    -1.0: lambda x: 1 / x,
    -2.0: lambda x: 1 / (x * x),
}


@register(aten.pow.Tensor_Scalar)
def lower_pow_scalar(
    g: GraphLowering,
    x: TensorValue,
    exponent: Any,
) -> Any:
    if isinstance(exponent, complex):
        return DECLINED
    compute = compute_dtype(SAME, (x, exponent))
    is_integer = float(exponent).is_integer()
    if exponent == 0:
        return g.pointwise(lambda a: a.const(1), (x,), compute)
    if is_integer and 0 < exponent <= (3 if compute.is_floating_point else 64):
        if compute == torch.bool:
            return DECLINED
        return g.pointwise(lambda a: _integer_power(a, int(exponent)), (x,), compute, cost=3)
    if not compute.is_floating_point:
        return DECLINED
    special = None if compute == torch.float16 else _SPECIAL_POWERS.get(float(exponent))
    if special is not None:
        return g.pointwise(special, (x,), compute, cost=6)
    exponent = stored(exponent, compute)
    return g.pointwise(lambda a: a.op("pow", exponent), (x,), compute, cost=40)


@register(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def lower_pow(
    g: GraphLowering,
    x: Any,
    exponent: TensorValue,
) -> Any:
    compute = compute_dtype(SAME, (x, exponent))
    if not compute.is_floating_point or isinstance(x, complex):
        return DECLINED
    return of_stored(g, lambda a, b: a.op("pow", b), (x, exponent), compute, cost=40)


# -- selection and bounds --------------------------------------------------------------------------


@register(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def lower_where(
    g: GraphLowering,
    condition: TensorValue,
    x: Any,
    y: Any,
) -> Any:
    compute = compute_dtype(SAME, (x, y))
    return g.pointwise(where, (condition, x, y), (torch.bool, compute, compute))


@register(aten.masked_fill)
def lower_masked_fill(
    g: GraphLowering,
    x: TensorValue,
    mask: TensorValue,
    value: Any,
) -> Any:
    if isinstance(value, complex) or may_overflow(value, x.dtype):
        return DECLINED
    dtypes = (torch.bool, x.dtype, x.dtype)
    return g.pointwise(lambda m, a, v: where(m, v, a), (mask, x, value), dtypes)


def _bounded(value: Any, at: str) -> Callable[[Scalar, Scalar], Scalar]:
    """How eager takes the larger (smaller) one: zeros of either sign are those of a tensor that is
    the bound, and of x where it is a number.
    """
    if isinstance(value, TensorValue):
        return maximum if at == "least" else minimum
    return at_least if at == "least" else at_most


@register(aten.clamp)
def lower_clamp(
    g: GraphLowering,
    x: TensorValue,
    min: Any = None,
    max: Any = None,
) -> Any:
    least, most = _bounded(min, "least"), _bounded(max, "most")

    def fn(a: Scalar, low: Scalar | None, high: Scalar | None) -> Scalar:
        a = a if low is None else least(a, low)
        return a if high is None else most(a, high)

    return g.pointwise(fn, (x, min, max), compute_dtype(SAME, (x, min, max)), cost=3)


@register(aten.clamp_min)
def lower_clamp_min(
    g: GraphLowering,
    x: TensorValue,
    low: Any,
) -> Any:
    return lower_clamp(g, x, low)


@register(aten.clamp_max)
def lower_clamp_max(
    g: GraphLowering,
    x: TensorValue,
    high: Any,
) -> Any:
    return lower_clamp(g, x, None, high)


@register(aten.hardtanh)
def lower_hardtanh(
    g: GraphLowering,
    x: TensorValue,
    low: Number = -1,
    high: Number = 1,
) -> Any:
    return g.pointwise(lambda a: at_most(at_least(a, low), high), (x,), x.dtype, cost=3)


@register(aten.hardtanh_backward.default)
def lower_hardtanh_backward(
    g: GraphLowering,
    grad: TensorValue,
    x: TensorValue,
    low: Number,
    high: Number,
) -> Any:
    return g.pointwise(
        lambda d, a: where((a <= low) | (a >= high), 0, d), (grad, x), x.dtype, cost=4
    )


@register(aten.nan_to_num)
def lower_nan_to_num(
    g: GraphLowering,
    x: TensorValue,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Any:
    if not x.dtype.is_floating_point:
        return g.pointwise(lambda a: a, (x,), x.dtype)
    limits = torch.finfo(x.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf

    def fn(a: Scalar) -> Scalar:
        finite = where(a.eq(math.inf), high, where(a.eq(-math.inf), low, a))
        return where(isnan(a), nan or 0.0, finite)

    return g.pointwise(fn, (x,), x.dtype, cost=4)


@register(aten.threshold)
def lower_threshold(
    g: GraphLowering,
    x: TensorValue,
    threshold: Number,
    value: Number,
) -> Any:
    return g.pointwise(lambda a: where(a <= threshold, value, a), (x,), x.dtype, cost=2)


@register(aten.threshold_backward.default)
def lower_threshold_backward(
    g: GraphLowering,
    grad: TensorValue,
    x: TensorValue,
    threshold: Number,
) -> Any:
    compute = compute_dtype(SAME, (grad, x))
    return g.pointwise(lambda d, a: where(a <= threshold, 0, d), (grad, x), compute, cost=2)


# -- combinations ----------------------------------------------------------------------------------


@register(aten.addcmul)
def lower_addcmul(
    g: GraphLowering,
    x: Any,
    y: Any,
    z: Any,
    value: Number = 1,
) -> Any:
    compute = result_type((x, y, z))
    if compute == torch.bool:
        return DECLINED
    return g.pointwise(lambda a, b, c: a + scaled_by(b, value) * c, (x, y, z), compute, cost=3)


@register(aten.addcdiv)
def lower_addcdiv(
    g: GraphLowering,
    x: Any,
    y: Any,
    z: Any,
    value: Number = 1,
) -> Any:
    compute = float_type(result_type((x, y, z)))
    return g.pointwise(lambda a, b, c: a + scaled_by(b, value) / c, (x, y, z), compute, cost=6)


@register(aten.lerp)
def lower_lerp(
    g: GraphLowering,
    x: TensorValue,
    y: TensorValue,
    weight: Any,
) -> Any:
    def fn(a: Scalar, b: Scalar, w: Scalar) -> Scalar:
        near = a + w * (b - a)
        far = b - (b - a) * (1 - w)
        return where(abs(w) < 0.5, near, far)

    return g.pointwise(fn, (x, y, weight), x.dtype, cost=8)


# -- copies and conversions ------------------------------------------------------------------------


@register(aten.alias, aten.detach, aten.lift, aten.lift_fresh)
def lower_alias(g: GraphLowering, x: TensorValue) -> Any:
    return x


@register(aten.clone, aten.lift_fresh_copy, aten.alias_copy, aten.detach_copy)
def lower_clone(
    g: GraphLowering,
    x: TensorValue,
    memory_format: Any = None,
) -> Any:
    value = g.pointwise(lambda a: a, (x,), x.dtype, cost=0)
    if OVERWRITTEN in g.node.meta:
        value.data = g.eager_layout(value)
    return value


@register(aten._to_copy)
def lower_to_copy(
    g: GraphLowering,
    x: TensorValue | float,
    **options: Any,
) -> Any:
    if not isinstance(x, TensorValue):
        return DECLINED
    if options.get("layout") not in (None, torch.strided) or g.meta.device != x.device:
        return DECLINED
    return convert(g, x, g.meta.dtype)


@register(torch.ops.prims.convert_element_type.default)
def lower_convert_element_type(
    g: GraphLowering,
    x: TensorValue,
    dtype: torch.dtype,
) -> Any:
    return convert(g, x, dtype)


def convert(
    g: GraphLowering,
    x: TensorValue,
    dtype: torch.dtype,
) -> TensorValue:
    """x in `dtype`, broadcast; an explicit conversion to a 16-bit float rounds, unlike operators'
    results inside a kernel. Where several read a wider number, the narrower one gets memory.
    """
    is_wider = x.dtype.is_floating_point and dtype.itemsize > x.dtype.itemsize
    if is_wider and len(g.node.users) > 1:
        g.keep(x)

    def inner(b: BodyBuilder, index: Index) -> Value:
        value = b.cast(x.load(b, broadcast_index(x, index)), dtype)
        return b.compute(value)

    return g.lazy(inner, (x,), cost=1)


@register(aten.copy.default)
def lower_copy(
    g: GraphLowering,
    x: TensorValue,
    y: TensorValue | float,
    non_blocking: bool = False,
) -> Any:
    if isinstance(y, TensorValue) and x.device != y.device:
        return DECLINED
    if isinstance(y, TensorValue) and y.dtype != x.dtype:
        y = convert(g, y, x.dtype)
    return g.pointwise(lambda a: a, (y,), x.dtype, cost=0)
