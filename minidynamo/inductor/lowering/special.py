"""Special functions, as formulas in double precision: digamma, Bessel functions.

Results of float32 are then right to half a unit in the last place, beside zeros to two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import TensorValue
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

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
# Bernoulli numbers B(2k) over 2k: the asymptotic series of digamma.
_ASYMPTOTIC = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def _polynomial(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    total = x.const(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


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


# -- modified Bessel functions of the first kind ---------------------------------------------------

BORDER = 8.0  # one expansion up to here, one in 1 / x beyond
NODES = 64  # points that the expansions are computed from


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

    angles = [math.pi * (j + 0.5) / NODES for j in range(NODES)]

    def coefficients(function: Callable[[float], float], terms: int) -> tuple[float, ...]:
        values = [function(math.cos(angle)) for angle in angles]
        pairs = list(zip(values, angles, strict=True))
        sums = [math.fsum(v * math.cos(k * angle) for v, angle in pairs) for k in range(terms)]
        return (sums[0] / NODES, *(2 / NODES * total for total in sums[1:]))

    return coefficients(low, 21), coefficients(high, 10)


def _chebyshev(t: Scalar, coefficients: Sequence[float]) -> Scalar:
    """The sum of a Chebyshev expansion (Clenshaw's recurrence)."""
    double = t + t
    last, before = t.const(coefficients[-1]), t.const(0.0)
    for coefficient in reversed(coefficients[1:-1]):
        last, before = double * last - before + coefficient, last
    return t * last - before + coefficients[0]


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
    aten.i0.default: _bessel(0, False),
    aten.special_i0e.default: _bessel(0, True),
    aten.special_i1.default: _bessel(1, False),
    aten.special_i1e.default: _bessel(1, True),
}


def _register(op: Any, formula: Callable[[Scalar], Scalar]) -> None:
    def lower(g: GraphLowering, x: TensorValue) -> Any:
        if g.meta.dtype == torch.float64:
            return DECLINED  # torch's own is as accurate, and the same
        return g.pointwise(formula, (x,), torch.float64, cost=100)

    register(op)(lower)


for _op, _formula in _FORMULAS.items():
    _register(_op, _formula)
