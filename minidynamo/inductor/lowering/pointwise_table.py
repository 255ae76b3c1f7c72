"""Pointwise operators that are one formula: rows of (operator, formula, promotion, cost).

Promotion, for the operands that are tensors or numbers:
    SAME   computed in the common dtype of the operands
    FLOAT  the same, integers become the default floating dtype
    BOOL   operands are converted to bool
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.loop_body import LOW_PRECISION
from minidynamo.inductor.lowering.promotion import Operand, float_type, result_type
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.lowering.scalar import Operand as Term
from minidynamo.inductor.lowering.scalar import (
    Scalar,
    erf,
    exp,
    expm1,
    floor,
    function,
    isinf,
    isnan,
    log,
    log1p,
    maximum,
    minimum,
    rsqrt,
    sigmoid,
    sqrt,
    tanh,
    trunc,
    where,
)
from minidynamo.inductor.ops import OPS

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
SAME, FLOAT, BOOL = "same", "float", "bool"
INF = float("inf")


@dataclass(frozen=True, slots=True)
class Row:
    """One operator; `formula(*operands)` gets a Scalar for every tensor or number, other arguments
    as they are.
    """

    op: Any
    formula: Callable[..., Scalar]
    promotion: str = SAME
    cost: int = 1


def compute_dtype(promotion: str, operands: tuple[Any, ...]) -> torch.dtype:
    """What a row computes in."""
    if promotion == BOOL:
        return torch.bool
    common = result_type(v for v in operands if isinstance(v, Operand))
    return float_type(common) if promotion == FLOAT else common


def register_row(row: Row) -> None:
    def lower(g: GraphLowering, *operands: Any) -> Any:
        if any(isinstance(value, complex) for value in operands):
            return DECLINED
        compute = compute_dtype(row.promotion, operands)
        formula = row.formula
        if row.op.__name__ in _COMPARISONS and compute in LOW_PRECISION:
            operands = tuple(stored(value, compute) for value in operands)
            formula = _of_rounded(formula, compute)
        elif row.op is aten.atan2:
            return of_stored(g, formula, operands, compute, row.cost)
        return g.pointwise(formula, operands, compute, cost=row.cost)

    lower.__name__ = f"lower_{row.op}"
    register(row.op)(lower)


def _of_rounded(
    formula: Callable[..., Scalar],
    dtype: torch.dtype,
) -> Callable[..., Scalar]:
    """A comparison of what would be stored: `x == x.amax()` has to find the rounded largest."""

    def rounded(x: Scalar) -> Scalar:
        known = x.builder.node(x.value).op == "constant"
        return x if known else x.to(dtype).to(torch.float32)

    return lambda *args: formula(*map(rounded, args))


def stored(value: Any, dtype: torch.dtype) -> Any:
    """A number as a tensor of that dtype, if it is one of 16 bits, holds it."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if dtype not in LOW_PRECISION or not is_number:
        return value
    return torch.tensor(value, dtype=dtype).item()


def of_stored(
    g: GraphLowering,
    formula: Callable[..., Scalar],
    operands: tuple[Any, ...],
    dtype: torch.dtype,
    cost: int = 1,
) -> Any:
    """`formula` of operands as eager converts them on CPU: numbers and tensors of other dtypes are
    first rounded to `dtype`, which for products and quotients is not so.
    """
    if dtype not in LOW_PRECISION or g.meta_device().type != "cpu":
        return g.pointwise(formula, operands, dtype, cost=cost)
    operands = tuple(stored(value, dtype) for value in operands)
    is_kept = [
        isinstance(v, (int, float)) or getattr(v, "dtype", None) == dtype for v in operands
    ]

    def rounded(*args: Scalar) -> Scalar:
        pairs = zip(args, is_kept, strict=True)
        return formula(*(x if kept else x.to(dtype).to(torch.float32) for x, kept in pairs))

    return g.pointwise(formula if all(is_kept) else rounded, operands, dtype, cost=cost)


# -- formulas of more than one operation -----------------------------------------------------------


def _is_float(x: Scalar) -> bool:
    return x.dtype.is_floating_point


def _if_float(name: str) -> Callable[[Scalar], Scalar]:
    """An operation that leaves integers alone."""
    return lambda x: x.op(name) if _is_float(x) else x


def sign(x: Scalar) -> Scalar:
    if x.dtype == torch.bool:
        return x
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


def relu(x: Scalar) -> Scalar:
    return at_least(x, 0)


def negate(x: Scalar) -> Scalar:
    return -x


def absolute(x: Scalar) -> Scalar:
    return x if x.dtype in (torch.bool, torch.uint8) else abs(x)


def at_least(x: Scalar, low: Term) -> Scalar:
    """The larger one; x where they are equal, which zeros may be."""
    low = low if isinstance(low, Scalar) else x.const(low)
    return low.op("maximum", x)


def at_most(x: Scalar, high: Term) -> Scalar:
    """The smaller one; x where they are equal."""
    high = high if isinstance(high, Scalar) else x.const(high)
    return high.op("minimum", x)


def square(x: Scalar) -> Scalar:
    return x & x if x.dtype == torch.bool else x * x


def silu(x: Scalar) -> Scalar:
    return x / (1 + exp(-x))


def mish(x: Scalar) -> Scalar:
    return x * tanh(softplus_unit(x))


def softplus_unit(x: Scalar) -> Scalar:
    """log(1 + exp(x)) without overflow."""
    return maximum(x, 0) + log1p(exp(-abs(x)))


def hardsigmoid(x: Scalar) -> Scalar:
    return minimum(maximum(x + 3, 0), 6) / 6


def hardswish(x: Scalar) -> Scalar:
    return x * minimum(maximum(x + 3, 0), 6) / 6


def sinc(x: Scalar) -> Scalar:
    angle = x * math.pi
    return where(x.eq(0), 1, angle.op("sin") / angle)


def scaled_by(y: Scalar, alpha: bool | int | float) -> Scalar:
    """y * alpha."""
    return y if alpha == 1 and not isinstance(alpha, bool) else y * alpha


def add(x: Scalar, y: Scalar) -> Scalar:
    return x | y if x.dtype == torch.bool else x + y


def mul(x: Scalar, y: Scalar) -> Scalar:
    return x & y if x.dtype == torch.bool else x * y


def logical_not(x: Scalar) -> Scalar:
    return ~x.bool()


def is_special(
    test: Callable[[Scalar], Scalar], for_integers: bool
) -> Callable[[Scalar], Scalar]:
    """A test of floating-point values; integers always answer `for_integers`."""
    return lambda x: test(x) if _is_float(x) else x.const(for_integers, torch.bool)


def signbit(x: Scalar) -> Scalar:
    if _is_float(x):
        return x.op("signbit")
    return x.const(False) if x.dtype == torch.bool else x < 0


def fmax(x: Scalar, y: Scalar) -> Scalar:
    if not _is_float(x):
        return maximum(x, y)
    return where(isnan(x), y, where(isnan(y), x, maximum(y, x)))  # x of equal ones


def fmin(x: Scalar, y: Scalar) -> Scalar:
    if not _is_float(x):
        return minimum(x, y)
    return where(isnan(x), y, where(isnan(y), x, minimum(y, x)))


def xlogy(x: Scalar, y: Scalar) -> Scalar:
    return where(isnan(y), y, where(x.eq(0), 0.0, x * log(y)))


def xlog1py(x: Scalar, y: Scalar) -> Scalar:
    return where(isnan(y), y, where(x.eq(0), 0.0, x * log1p(y)))


def logaddexp(x: Scalar, y: Scalar) -> Scalar:
    largest = maximum(x, y)
    total = largest + log1p(exp(-abs(x - y)))
    return where(isinf(x) & x.eq(y), x, total)


def logaddexp2(x: Scalar, y: Scalar) -> Scalar:
    largest = maximum(x, y)
    total = largest + log1p((-abs(x - y)).op("exp2")) * (1 / math.log(2))
    return where(isinf(x) & x.eq(y), x, total)


def heaviside(x: Scalar, y: Scalar) -> Scalar:
    return where(x.eq(0), y, (x > 0).to(x.dtype))


def sigmoid_backward(grad: Scalar, y: Scalar) -> Scalar:
    return grad * ((1 - y) * y)


def tanh_backward(grad: Scalar, y: Scalar) -> Scalar:
    return grad * (1 - y * y)


def silu_backward(grad: Scalar, x: Scalar) -> Scalar:
    s = sigmoid(x)
    return grad * s * (1 + x * (1 - s))


def log_sigmoid_backward(grad: Scalar, x: Scalar, _buffer: Scalar) -> Scalar:
    return grad * where(x < 0, 1 - sigmoid(x), sigmoid(-x))


def hardsigmoid_backward(grad: Scalar, x: Scalar) -> Scalar:
    sixth = torch.tensor(1 / 6).item() if grad.dtype == torch.float64 else 1 / 6
    return where((x > -3) & (x < 3), grad * sixth, 0)  # of float32 in eager


def hardswish_backward(grad: Scalar, x: Scalar) -> Scalar:
    return where(x <= -3, 0, where(x < 3, grad * (x / 3 + 0.5), grad))


def mish_backward(grad: Scalar, x: Scalar) -> Scalar:
    t = tanh(softplus_unit(x))
    return grad * (t + x * sigmoid(x) * (1 - t * t))


_FLOAT_UNARY = [
    "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
]  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_INTEGER_BINARY = {
    "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
    "bitwise_left_shift": "lshift",
    "bitwise_right_shift": "rshift",
    "__lshift__": "lshift",
    "__rshift__": "rshift",
}
_LOGICAL = {
    "logical_and": "bitwise_and",
    "logical_or": "bitwise_or",
    "logical_xor": "bitwise_xor",
}

ROWS = [
    *(Row(getattr(aten, name), function(name), FLOAT, OPS[name].cost) for name in _FLOAT_UNARY),
    *(Row(getattr(aten, name), function(name)) for name in _COMPARISONS),
    *(Row(getattr(aten, name), function(op)) for name, op in _INTEGER_BINARY.items()),
    *(Row(getattr(aten, name), function(op), BOOL) for name, op in _LOGICAL.items()),
    Row(aten.floor, _if_float("floor")),
    Row(aten.ceil, _if_float("ceil")),
    Row(aten.trunc, _if_float("trunc")),
    Row(aten.round.default, _if_float("round")),
    Row(aten.frac, lambda x: x - trunc(x)),
    Row(aten.abs, absolute),
    Row(aten.neg, negate),
    Row(aten.sign, sign, SAME, 3),
    Row(aten.sgn, sign, SAME, 3),
    Row(
        aten.angle, lambda x: where(isnan(x), x, where(x < 0, x.const(math.pi), 0.0)), FLOAT, 3
    ),
    Row(aten.relu, relu),
    Row(aten.reciprocal, lambda x: 1 / x, FLOAT, 4),
    Row(aten.square, square),
    Row(aten.sigmoid, sigmoid, FLOAT, 18),
    Row(aten.silu, silu, FLOAT, 18),
    Row(aten.mish, mish, FLOAT, 50),
    Row(aten.hardsigmoid, hardsigmoid, FLOAT, 6),
    Row(aten.hardswish, hardswish, FLOAT, 7),
    Row(aten.sinc, sinc, FLOAT, 22),
    Row(aten.deg2rad, lambda x: x * (math.pi / 180), FLOAT),
    Row(aten.rad2deg, lambda x: x * (180 / math.pi), FLOAT),
    Row(aten.isnan, is_special(isnan, False)),
    Row(aten.isinf, is_special(isinf, False), SAME, 2),
    Row(aten.isposinf, is_special(lambda x: x.eq(INF), False)),
    Row(aten.isneginf, is_special(lambda x: x.eq(-INF), False)),
    Row(aten.signbit, signbit),
    Row(aten.logical_not, logical_not),
    Row(aten.bitwise_not, function("bitwise_not")),
    Row(aten.mul, mul),
    Row(aten.maximum, maximum, SAME, 2),
    Row(aten.minimum, minimum, SAME, 2),
    Row(aten.fmax, fmax, SAME, 4),
    Row(aten.fmin, fmin, SAME, 4),
    Row(aten.atan2, function("atan2"), FLOAT, OPS["atan2"].cost),
    Row(aten.hypot, function("hypot"), SAME, OPS["hypot"].cost),
    Row(aten.copysign, function("copysign"), FLOAT, 2),
    Row(aten.xlogy, xlogy, FLOAT, 18),
    Row(aten.special_xlog1py, xlog1py, FLOAT, 22),
    Row(aten.logaddexp, logaddexp, FLOAT, 36),
    Row(aten.logaddexp2, logaddexp2, FLOAT, 36),
    Row(aten.sigmoid_backward.default, sigmoid_backward, FLOAT, 3),
    Row(aten.tanh_backward.default, tanh_backward, FLOAT, 3),
    Row(aten.silu_backward.default, silu_backward, FLOAT, 22),
    Row(aten.log_sigmoid_backward.default, log_sigmoid_backward, FLOAT, 36),
    Row(aten.hardsigmoid_backward.default, hardsigmoid_backward, FLOAT, 4),
    Row(aten.hardswish_backward.default, hardswish_backward, FLOAT, 6),
    Row(aten.mish_backward.default, mish_backward, FLOAT, 60),
]

for _row in ROWS:
    register_row(_row)

__all__ = [
    "BOOL",
    "FLOAT",
    "SAME",
    "Row",
    "add",
    "compute_dtype",
    "erf",
    "expm1",
    "floor",
    "heaviside",
    "of_stored",
    "rsqrt",
    "sqrt",
    "stored",
]
