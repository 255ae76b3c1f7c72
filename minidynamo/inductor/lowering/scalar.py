"""Scalars of a kernel body with Python's operators, so that a lowering reads like the formula.

    x * 0.5 * (1 + erf(x * 0.7071))

A number beside a `Scalar` becomes a constant of its dtype. `==` and `!=` are the methods `eq` and
`ne`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union

import torch

from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.symbolic import Expr, IntLike

Number = bool | int | float
Operand = Union["Scalar", bool, int, float]


def real(count: IntLike | float) -> Any:
    """A number of elements as a float, or a symbolic one as it is: an operand of `Scalar`s."""
    return count if isinstance(count, Expr) else float(count)


class Scalar:
    """One value of the body that `builder` traces."""

    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("builder", "value")

    def __init__(self, builder: BodyBuilder, value: Value) -> None:
        self.builder = builder
        self.value = value

    @property
    def dtype(self) -> torch.dtype:
        return self.builder.dtype(self.value)

    def op(self, name: str, *others: Operand) -> Scalar:
        """The operation `name` of the op table on this and `others`."""
        values = [self.const(o).value if not isinstance(o, Scalar) else o.value for o in others]
        return Scalar(self.builder, self.builder.op(name, self.value, *values))

    def const(self, number: Number, dtype: torch.dtype | None = None) -> Scalar:
        """A constant of this scalar's dtype, or of the given one."""
        return Scalar(self.builder, self.builder.constant(number, dtype or self.dtype))

    def to(self, dtype: torch.dtype) -> Scalar:
        return Scalar(self.builder, self.builder.cast(self.value, dtype))

    def bool(self) -> Scalar:
        return self.to(torch.bool)

    def _reflected(self, name: str, other: Number) -> Scalar:
        return self.const(other).op(name, self)

    def __add__(self, other: Operand) -> Scalar:
        return self.op("add", other)

    __radd__ = __add__

    def __sub__(self, other: Operand) -> Scalar:
        return self.op("sub", other)

    def __rsub__(self, other: Number) -> Scalar:
        return self._reflected("sub", other)

    def __mul__(self, other: Operand) -> Scalar:
        return self.op("mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Operand) -> Scalar:
        return self.op("truediv", other)

    def __rtruediv__(self, other: Number) -> Scalar:
        return self._reflected("truediv", other)

    def __neg__(self) -> Scalar:
        return self.op("neg")

    def __abs__(self) -> Scalar:
        return self.op("abs")

    def __lt__(self, other: Operand) -> Scalar:
        return self.op("lt", other)

    def __le__(self, other: Operand) -> Scalar:
        return self.op("le", other)

    def __gt__(self, other: Operand) -> Scalar:
        return self.op("gt", other)

    def __ge__(self, other: Operand) -> Scalar:
        return self.op("ge", other)

    def eq(self, other: Operand) -> Scalar:
        return self.op("eq", other)

    def ne(self, other: Operand) -> Scalar:
        return self.op("ne", other)

    def __and__(self, other: Operand) -> Scalar:
        return self.op("bitwise_and", other)

    def __or__(self, other: Operand) -> Scalar:
        return self.op("bitwise_or", other)

    def __xor__(self, other: Operand) -> Scalar:
        return self.op("bitwise_xor", other)

    def __invert__(self) -> Scalar:
        return self.op("bitwise_not")


def function(name: str) -> Callable[..., Scalar]:
    """The operation `name` as a function of scalars (the first must be one)."""

    def call(first: Scalar, *others: Operand) -> Scalar:
        return first.op(name, *others)

    call.__name__ = name
    return call


exp, exp2, expm1 = function("exp"), function("exp2"), function("expm1")
log, log1p, tanh, erf = function("log"), function("log1p"), function("tanh"), function("erf")
sqrt, rsqrt, floor, trunc = (
    function("sqrt"),
    function("rsqrt"),
    function("floor"),
    function("trunc"),
)
maximum, minimum, isnan = function("maximum"), function("minimum"), function("isnan")


def where(condition: Scalar, a: Operand, b: Operand) -> Scalar:
    """a where the condition (bool) holds, else b; at least one of a and b is a Scalar, they have
    one dtype.
    """
    like: Any = a if isinstance(a, Scalar) else b
    a = a if isinstance(a, Scalar) else like.const(a)
    b = b if isinstance(b, Scalar) else like.const(b)
    return condition.op("where", a, b)


def sigmoid(x: Scalar) -> Scalar:
    return 1 / (1 + exp(-x))


def isinf(x: Scalar) -> Scalar:
    return abs(x).eq(float("inf"))


def isfinite(x: Scalar) -> Scalar:
    return abs(x) < float("inf")
