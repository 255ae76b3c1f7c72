"""Operations as C++ text, for one number and for a vector of N lanes.

Two dictionaries from operation to text, `SCALAR` and `VECTOR`, over the functions of
`cpp_prefix.h`. A row is a format string with the operands as `{0}`, `{1}`, ..., the C++ type of the
result as `{t}` and of the operands as `{a}`; or a function of the dtype that gives such a string.
bool values are `bool` and `V<i32, N>` with lanes 0 and -1; float16 and bfloat16 are their bits in
`u16`, which only conversions and stores take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from minidynamo.inductor.ops import OPS

Row = str | Callable[[torch.dtype], str]

CTYPE = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "u16",
    torch.bfloat16: "u16",
    torch.bool: "bool",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
}
# Elements in memory: a bool is a byte.
MEMORY_TYPE = CTYPE | {torch.bool: "u8"}
# Lanes: a bool is a mask.
LANE_TYPE = CTYPE | {torch.bool: "i32"}
# Reductions and scans -> the functions of `cpp_prefix.h` that combine two vectors.
COMBINE = {"sum": "Add", "prod": "Mul", "max": "Max", "min": "Min", "any": "Or", "all": "And"}
_HALVES = {torch.float16: "half", torch.bfloat16: "bfloat"}


def _by_kind(
    floating: str, integer: str, boolean: str | None = None
) -> Callable[[torch.dtype], str]:
    """A row that depends on the operands' dtype."""

    def row(dtype: torch.dtype) -> str:
        if dtype == torch.bool and boolean is not None:
            return boolean
        return floating if dtype.is_floating_point else integer

    return row


def _call(name: str) -> str:
    arity = OPS[name].arity
    assert arity is not None
    return f"{name}({', '.join(f'{{{i}}}' for i in range(arity))})"


_LIBRARY = [
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "sin", "cos", "tan", "asin",
    "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
    "lgamma", "hypot", "nextafter", "copysign", "logaddexp",
]  # fmt: skip
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "truncdiv": "/"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BITWISE = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
# Comparisons of masks, where true is -1.
_MASKED = {
    "eq": "~({0} ^ {1})",
    "ne": "{0} ^ {1}",
    "lt": "~{0} & {1}",
    "le": "~{0} | {1}",
    "gt": "{0} & ~{1}",
    "ge": "{0} | ~{1}",
}


def _compare(name: str) -> Callable[[torch.dtype], str]:
    text = f"mask({{0}} {_COMPARISONS[name]} {{1}})"
    return lambda dtype: _MASKED[name] if dtype == torch.bool else text


VECTOR: dict[str, Row] = {
    **{name: f"{{0}} {symbol} {{1}}" for name, symbol in (_OPERATORS | _BITWISE).items()},
    **{name: _compare(name) for name in _COMPARISONS},
    **{name: _call(name) for name in _LIBRARY},
    "neg": "-{0}",
    "abs": "abs({0})",
    "bitwise_not": "~{0}",
    "maximum": _by_kind("maximum({0}, {1})", "maximum({0}, {1})", "{0} | {1}"),
    "minimum": _by_kind("minimum({0}, {1})", "minimum({0}, {1})", "{0} & {1}"),
    "remainder": _by_kind("remainder({0}, {1})", "int_remainder({0}, {1})"),
    "fmod": _by_kind("fmod({0}, {1})", "{0} % {1}"),
    "floordiv": "floordiv({0}, {1})",
    "lshift": "lshift({0}, {1})",
    "rshift": "rshift({0}, {1})",
    "where": "select({0}, {1}, {2})",
    "isnan": "mask({0} != {0})",
    "signbit": "signbit({0})",
    "fma": "fma({0}, {1}, {2})",
    "sqrt": "sqrt({0})",
    "rsqrt": "1 / sqrt({0})",
    "floor": "floor({0})",
    "ceil": "ceil({0})",
    "trunc": "trunc({0})",
    "round": "round_even({0})",
    "bitcast": "({t}){0}",
}


def _builtin(name: str, arity: int = 1) -> Callable[[torch.dtype], str]:
    operands = ", ".join(f"{{{i}}}" for i in range(arity))
    return lambda dtype: f"__builtin_{name}{'f' if dtype == torch.float32 else ''}({operands})"


def _extreme(symbol: str) -> Callable[[torch.dtype], str]:
    text = f"({{0}} {symbol} {{1}} ? {{0}} : {{1}})"
    return lambda dtype: (
        f"({{0}} == {{0}} ? {text} : {{0}})" if dtype.is_floating_point else text
    )


SCALAR: dict[str, Row] = {
    **{
        name: f"{{0}} {symbol} {{1}}"
        for name, symbol in (_OPERATORS | _BITWISE | _COMPARISONS).items()
    },
    **{name: _call(name) for name in _LIBRARY},
    "neg": "-{0}",
    "abs": _by_kind("abs({0})", "({0} < 0 ? -{0} : {0})"),
    "bitwise_not": _by_kind("~{0}", "~{0}", "!{0}"),
    "maximum": _extreme(">"),
    "minimum": _extreme("<"),
    "remainder": _by_kind("remainder({0}, {1})", "int_remainder_s<{t}>({0}, {1})"),
    "fmod": _by_kind("fmod({0}, {1})", "{0} % {1}"),
    "floordiv": "floordiv_s<{t}>({0}, {1})",
    "lshift": "lshift_s<{t}>({0}, {1})",
    "rshift": "rshift_s<{t}>({0}, {1})",
    "where": "({0} ? {1} : {2})",
    "isnan": "{0} != {0}",
    "signbit": "(bool)__builtin_signbit({0})",
    "fma": _builtin("fma", 3),
    "sqrt": _builtin("sqrt"),
    "floor": _builtin("floor"),
    "ceil": _builtin("ceil"),
    "trunc": _builtin("trunc"),
    "round": _builtin("rint"),
    "bitcast": "bitcast<{t}>({0})",
}
SCALAR["rsqrt"] = lambda dtype: f"1 / {_builtin('sqrt')(dtype)}"


def literal(value: bool | float, dtype: torch.dtype) -> str:
    """A constant as C++ text of exactly this value and type."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        number = int(value)
        if dtype == torch.int64:
            return (
                f"(i64){number}LL"
                if number > -(1 << 63)
                else "(i64)(-0x7fffffffffffffffLL - 1)"
            )
        return f"({CTYPE[dtype]})({number})"
    suffix = "f" if dtype == torch.float32 else ""
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if dtype == torch.float32 and math.isfinite(value):
        value = torch.tensor(value, dtype=torch.float32).item()
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    return f"{float(value).hex()}{suffix}"


def scalar_cast(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """The text of a number in another dtype."""
    if source in _HALVES:
        value, source = f"from_{_HALVES[source]}({value})", torch.float32
    if target in _HALVES:
        return f"to_{_HALVES[target]}((float){value})"
    if target == torch.bool:
        return f"{value} != 0"
    if target == torch.uint8 and source.is_floating_point:
        return f"(u8)(i64){value}"
    return f"({CTYPE[target]}){value}"


def vector_cast(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """The text of a vector in another dtype."""
    if source in _HALVES:
        value, source = f"from_{_HALVES[source]}({value})", torch.float32
    if target in _HALVES:
        as_float = (
            value if source == torch.float32 else vector_cast(value, source, torch.float32)
        )
        return f"to_{_HALVES[target]}({as_float})"
    if target == torch.bool:
        return value if source == torch.bool else f"mask({value} != 0)"
    if source == torch.bool and target.is_floating_point:
        ctype = CTYPE[target]
        return f"select({value}, splat<N>(({ctype})1), splat<N>(({ctype})0))"
    if source == torch.bool:
        return f"convert<{CTYPE[target]}>({value} & 1)"
    floating, narrow = (target, source) if target.is_floating_point else (source, target)
    if floating.is_floating_point and narrow in (torch.uint8, torch.int8, torch.int16):
        # The machine converts these by way of 32 bits; left to itself GCC goes lane by lane.
        return f"convert<{CTYPE[target]}>(convert<i32>({value}))"
    return value if source == target else f"convert<{CTYPE[target]}>({value})"


def operation(
    table: dict[str, Row],
    name: str,
    args: Sequence[str],
    operand_dtype: torch.dtype,
    result: str,
) -> str:
    """The text of one pointwise operation."""
    row = table[name]
    text = row if isinstance(row, str) else row(operand_dtype)
    return text.format(*args, t=result)
