"""Special functions, as formulas in double precision: gamma, error and Bessel functions.

Results of float32 are then right to half a unit in the last place, beside zeros to two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import TensorValue
from minidynamo.inductor.lowering.promotion import float_type
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.lowering.scalar import (
    Scalar,
    exp,
    log,
    maximum,
    minimum,
    sqrt,
    where,
)
from minidynamo.inductor.targets import uses_triton

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
# Bernoulli numbers B(2k) over 2k: the asymptotic series of digamma.
_ASYMPTOTIC = (
    1 / 12,
    -1 / 120,
    1 / 252,
    -1 / 240,
    1 / 132,
    -691 / 32760,
    1 / 12,
)

NODES = 64  # points that expansions are computed from


def _polynomial(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    total = x.const(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total.op("fma", x, coefficient)
    return total


@cache
def _coefficients(
    function: Callable[[float], float],
    terms: int,
) -> tuple[float, ...]:
    """The first coefficients of the function's Chebyshev expansion over [-1, 1]."""
    angles = [math.pi * (j + 0.5) / NODES for j in range(NODES)]
    pairs = [(function(math.cos(angle)), angle) for angle in angles]
    sums = [math.fsum(v * math.cos(k * angle) for v, angle in pairs) for k in range(terms)]
    return (sums[0] / NODES, *(2 / NODES * total for total in sums[1:]))


def _chebyshev(t: Scalar, coefficients: tuple[float, ...]) -> Scalar:
    """The sum of a Chebyshev expansion: even and odd powers, which do not wait for each other."""
    powers, square = _powers(coefficients), t * t
    return _polynomial(square, powers[1::2]).op("fma", t, _polynomial(square, powers[::2]))


@cache
def _powers(coefficients: tuple[float, ...]) -> tuple[float, ...]:
    """The same expansion in powers of t."""
    before, last = [1], [0, 1]
    terms: list[list[float]] = [[] for _ in coefficients]
    for coefficient in coefficients:
        for place, factor in enumerate(before):
            terms[place].append(coefficient * factor)
        twice = [0, *(2 * factor for factor in last)]
        padded = [*before, *[0] * (len(twice) - len(before))]
        before, last = last, [x - y for x, y in zip(twice, padded, strict=True)]
    return tuple(map(math.fsum, terms))


def digamma(x: Scalar) -> Scalar:
    """The recurrence up to x + 10, the asymptotic series there; negative x by reflection."""
    positive = where(x < 0, 1 - x, x)
    near = minimum(positive, 1e17)  # what is added below is nothing beyond
    total = x.const(0.0)
    for k in range(0, 10, 2):
        a, b = near + k, near + (k + 1)
        total = total + (a + b) / (a * b)
    z = positive + 10
    inverse = 1 / (z * z)
    value = log(z) - 0.5 / z - inverse * _polynomial(inverse, _ASYMPTOTIC) - total
    rest = x - x.op("round")
    reflected = where(rest.eq(0), math.nan, value - math.pi / (rest * math.pi).op("tan"))
    pole = x.const(math.inf).op("copysign", -x)
    return where(x.eq(0), pole, where(x < 0, reflected, value))


# Bernoulli numbers B(2k) over 2k (2k - 1): Stirling's series of the logarithm.
_STIRLING = (
    1 / 12,
    -1 / 360,
    1 / 1260,
    -1 / 1680,
    1 / 1188,
    -691 / 360360,
    1 / 156,
    -3617 / 122400,
)
# Those of sin(x) / x over x * x.
_SINE = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(12))
_FAR = 1e5  # from here Stirling's series needs no recurrence, and floats are not cancelled


def lgamma(x: Scalar) -> Scalar:
    """Stirling's series at |x| + 8, less the logarithm of |x| (|x| + 1) ... (|x| + 7); negative x
    by reflection, which only changes what the logarithm is of.
    """
    a = abs(x)
    is_near = a < _FAR
    near = minimum(a, _FAR)
    ends = near * (near + 7)
    product = (ends * (ends + 6)) * ((ends + 10) * (ends + 12))
    z = where(is_near, a + 8, a)
    inverse = 1 / z
    series = inverse * _polynomial(inverse * inverse, _STIRLING)
    stirling = (z - 0.5) * (log(z) - 1) + (series + (0.5 * math.log(2 * math.pi) - 0.5))
    product = where(is_near, product, 1)
    angle = (a - a.op("round")) * math.pi
    sine = abs(angle * _polynomial(angle * angle, _SINE))
    of = log(where(x < 0, product * math.pi / (a * sine), product))
    value = where(x < 0, of - stirling, stirling - of)
    value = where(x.eq(1) | x.eq(2), 0.0, value)
    return where(a.eq(math.inf), math.inf, value)


# -- the error function's kin ----------------------------------------------------------------------

LARGEST_ROOT = 4.0  # of log(1 / (1 - x * x)), for the float32 next to 1


def _erfinv_ratio(t: float) -> float:
    """erfinv(x) / x where (t + 1) / 2 of LARGEST_ROOT is sqrt(-log(1 - x * x))."""
    root = LARGEST_ROOT / 2 * (t + 1)
    x = math.sqrt(-math.expm1(-root * root))
    rest = math.exp(-root * root) / (1 + x)
    if x < 0.5:
        value = x * math.sqrt(math.pi) / 2
        for _ in range(12):
            value += (x - math.erf(value)) * math.sqrt(math.pi) / 2 * math.exp(value * value)
    else:
        value = -NormalDist().inv_cdf(rest / 2) / math.sqrt(2)
        for _ in range(3):
            slope = 2 / math.sqrt(math.pi) * math.exp(-value * value)
            value += (math.erfc(value) - rest) / slope
    return value / x


def erfinv(x: Scalar) -> Scalar:
    """x times an expansion in sqrt(-log(1 - x * x)), which float32 is enough for: an error there is
    a tenth of it in the logarithm of the result. To 4e-8 where x is a float32.
    """
    root = sqrt(-log(((1 - x) * (1 + x)).to(torch.float32))).to(torch.float64)
    value = x * _chebyshev(root * (2 / LARGEST_ROOT) - 1, _coefficients(_erfinv_ratio, 21))
    return where(abs(x).eq(1), x * math.inf, value)


_TURN = 3.0


def _scaled_erfcx(t: float) -> float:
    """(1 + x) erfcx(x) for x = _TURN * (1 + t) / (1 - t)."""
    x = _TURN * (1 + t) / (1 - t)
    if x < 12:
        return (1 + x) * math.exp(x * x) * math.erfc(x)
    term = total = 1.0
    for k in range(1, 30):
        term *= -(2 * k - 1) / (2 * x * x)
        total += term
    return (1 + x) * total / (x * math.sqrt(math.pi))


def erfcx(x: Scalar) -> Scalar:
    """exp(x * x) erfc(x)."""
    a = abs(x)
    value = _chebyshev(1 - 2 * _TURN / (a + _TURN), _coefficients(_scaled_erfcx, 16)) / (1 + a)
    return where(x < 0, 2 * exp(x * x) - value, value)


# -- modified Bessel functions of the first kind ---------------------------------------------------

BORDER = 8.0  # one expansion up to here, one in 1 / x beyond


def _scaled_bessel(order: int, x: float) -> float:
    """exp(-x) I(order, x) for x > 0, by the power series or the asymptotic one."""
    if x > 40:
        term = total = 1.0
        for k in range(1, 40):
            term *= ((2 * k - 1) ** 2 - 4 * order**2) / (8 * k * x)
            total += term
        return total / math.sqrt(2 * math.pi * x)
    term = total = (x / 2) ** order
    for k in range(1, 150):
        term *= x * x / (4 * k * (k + order))
        total += term
    return math.exp(-x) * total


@cache
def _expansions(order: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Chebyshev coefficients of exp(-x) I(order, x) / x**order over x / 4 - 1, and of
    sqrt(x) exp(-x) I(order, x) over 16 / x - 1.
    """

    def low(t: float) -> float:
        x = BORDER / 2 * (t + 1)
        return _scaled_bessel(order, x) / x**order

    def high(t: float) -> float:
        x = 2 * BORDER / (t + 1)
        return _scaled_bessel(order, x) * math.sqrt(x)

    return _coefficients(low, 21), _coefficients(high, 10)


def _bessel(order: int, is_scaled: bool) -> Callable[[Scalar], Scalar]:
    def formula(x: Scalar) -> Scalar:
        a = abs(x)
        inside, outside = _expansions(order)
        low = _chebyshev(minimum(a, BORDER) * (2 / BORDER) - 1, inside)
        low = low * a if order else low
        high = _chebyshev(2 * BORDER / maximum(a, BORDER) - 1, outside) / sqrt(a)
        value = where(a <= BORDER, low, high)
        value = value if is_scaled else exp(a) * value
        return value.op("copysign", x) if order else value

    return formula


_FORMULAS: dict[Any, Callable[[Scalar], Scalar]] = {
    aten.digamma.default: digamma,
    aten.erfinv.default: erfinv,
    aten.special_erfcx.default: erfcx,
    aten.i0.default: _bessel(0, False),
    aten.special_i0e.default: _bessel(0, True),
    aten.special_i1.default: _bessel(1, False),
    aten.special_i1e.default: _bessel(1, True),
    aten.special_modified_bessel_i0.default: _bessel(0, False),
    aten.special_modified_bessel_i1.default: _bessel(1, False),
}


def _register(op: Any, formula: Callable[[Scalar], Scalar]) -> None:
    def lower(g: GraphLowering, x: TensorValue) -> Any:
        if g.meta.dtype == torch.float64:
            return DECLINED  # torch's own is as accurate, and the same
        return g.pointwise(formula, (x,), torch.float64, cost=100)

    register(op)(lower)


@register(aten.lgamma)
def lower_lgamma(g: GraphLowering, x: TensorValue) -> Any:
    """Triton has one of its own."""
    if uses_triton(x.device.type):
        return g.pointwise(lambda a: a.op("lgamma"), (x,), float_type(x.dtype), cost=60)
    if g.meta.dtype == torch.float64:
        return DECLINED
    return g.pointwise(lgamma, (x,), torch.float64, cost=100)


for _op, _formula in _FORMULAS.items():
    _register(_op, _formula)
