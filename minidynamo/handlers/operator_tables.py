"""The special methods of Python's operators."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

# Operator function -> (special method, reflected method, symbol in error messages).
BINARY: dict[Callable[..., Any], tuple[str, str, str]] = {
    operator.add: ("__add__", "__radd__", "+"),
    operator.sub: ("__sub__", "__rsub__", "-"),
    operator.mul: ("__mul__", "__rmul__", "*"),
    operator.matmul: ("__matmul__", "__rmatmul__", "@"),
    operator.truediv: ("__truediv__", "__rtruediv__", "/"),
    operator.floordiv: ("__floordiv__", "__rfloordiv__", "//"),
    operator.mod: ("__mod__", "__rmod__", "%"),
    operator.pow: ("__pow__", "__rpow__", "** or pow()"),
    operator.lshift: ("__lshift__", "__rlshift__", "<<"),
    operator.rshift: ("__rshift__", "__rrshift__", ">>"),
    operator.and_: ("__and__", "__rand__", "&"),
    operator.xor: ("__xor__", "__rxor__", "^"),
    operator.or_: ("__or__", "__ror__", "|"),
    divmod: ("__divmod__", "__rdivmod__", "divmod()"),
}
INPLACE: dict[Callable[..., Any], tuple[str, Callable[..., Any], str]] = {
    operator.iadd: ("__iadd__", operator.add, "+="),
    operator.isub: ("__isub__", operator.sub, "-="),
    operator.imul: ("__imul__", operator.mul, "*="),
    operator.imatmul: ("__imatmul__", operator.matmul, "@="),
    operator.itruediv: ("__itruediv__", operator.truediv, "/="),
    operator.ifloordiv: ("__ifloordiv__", operator.floordiv, "//="),
    operator.imod: ("__imod__", operator.mod, "%="),
    operator.ipow: ("__ipow__", operator.pow, "**="),
    operator.ilshift: ("__ilshift__", operator.lshift, "<<="),
    operator.irshift: ("__irshift__", operator.rshift, ">>="),
    operator.iand: ("__iand__", operator.and_, "&="),
    operator.ixor: ("__ixor__", operator.xor, "^="),
    operator.ior: ("__ior__", operator.or_, "|="),
}
# Comparison -> (special method, the comparison with operands swapped, symbol).
COMPARE: dict[Callable[..., Any], tuple[str, Callable[..., Any], str]] = {
    operator.lt: ("__lt__", operator.gt, "<"),
    operator.le: ("__le__", operator.ge, "<="),
    operator.gt: ("__gt__", operator.lt, ">"),
    operator.ge: ("__ge__", operator.le, ">="),
    operator.eq: ("__eq__", operator.eq, "=="),
    operator.ne: ("__ne__", operator.ne, "!="),
}
UNARY: dict[Callable[..., Any], tuple[str, str]] = {
    operator.neg: ("__neg__", "unary -"),
    operator.pos: ("__pos__", "unary +"),
    operator.invert: ("__invert__", "unary ~"),
    abs: ("__abs__", "abs()"),
}
