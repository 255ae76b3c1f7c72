"""Operations as Triton text: one dictionary from operation to text, `TABLE`.

A row is a format string with the operands as `{0}`, `{1}`, ..., or a function of the operands'
dtype that gives one. Functions that Triton's language lacks come from CUDA's libdevice, the
library that eager kernels use too; the interpreter is given a stand-in of the same names
(`runtime/triton_interpret.py`), so there is one text for both. Names without a prefix
(`floor_mod`, `reduce_max`) are functions of `triton_prefix.py`.

Where Triton and IEEE differ the row says it in full: Triton's `-x` is `0 - x` (wrong for 0.0), `/`
and `sqrt` of float32 are approximate, `//` and `%` of integers truncate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidynamo.inductor.loop_body import LOW_PRECISION
from minidynamo.inductor.ops import OPS

Row = str | Callable[[torch.dtype], str]

TYPE = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.bool: "tl.int1",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.uint8: "tl.uint8",
}
# What a pointer to such elements is called in a signature.
POINTER = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.bool: "*i1",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}
ATOMIC = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64}


def _by_kind(
    floating: str, integer: str, boolean: str | None = None
) -> Callable[[torch.dtype], str]:
    """A row that depends on the operands' dtype."""

    def row(dtype: torch.dtype) -> str:
        if dtype == torch.bool and boolean is not None:
            return boolean
        return floating if dtype.is_floating_point else integer

    return row


def _float_width(single: str, double: str) -> Callable[[torch.dtype], str]:
    return lambda dtype: double if dtype == torch.float64 else single


def _libdevice(name: str, function: str | None = None) -> str:
    arity = OPS[name].arity
    assert arity is not None
    return f"libdevice.{function or name}({', '.join(f'{{{i}}}' for i in range(arity))})"


def _shift(inside: str, outside: str) -> Callable[[torch.dtype], str]:
    """A shift whose count is only good in [0, bits)."""

    def row(dtype: torch.dtype) -> str:
        bits = 8 * dtype.itemsize
        good = f"({{1}} >= 0) & ({{1}} < {bits})"
        shifted = inside.replace("COUNT", f"({{1}} & {bits - 1})")
        if outside == "0" or dtype == torch.uint8:
            return f"tl.where({good}, {shifted}, tl.full([], 0, {TYPE[dtype]}))"
        return f"tl.where({good}, {shifted}, {{0}} >> {bits - 1})"

    return row


_LIBRARY = [
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "sin", "cos", "tan", "asin",
    "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
    "lgamma", "hypot", "nextafter", "copysign", "trunc",
]  # fmt: skip
_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "truncdiv": "//",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip


def _bitwise_not(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "{0} == 0"
    return "{0} ^ 255" if dtype == torch.uint8 else "~{0}"  # Triton 3.6 interprets ~ as ^ -1


def _extreme(name: str, of_bools: str) -> Callable[[torch.dtype], str]:
    nan = f"tl.{name}({{0}}, {{1}}, propagate_nan=tl.PropagateNan.ALL)"
    return _by_kind(nan, f"tl.{name}({{0}}, {{1}})", of_bools)


TABLE: dict[str, Row] = {
    **{name: f"{{0}} {symbol} {{1}}" for name, symbol in _OPERATORS.items()},
    **{name: _libdevice(name) for name in _LIBRARY},
    "neg": _by_kind("{0} * -1.0", "-{0}"),
    "abs": "tl.abs({0})",
    "bitwise_not": _bitwise_not,
    "maximum": _extreme("maximum", "{0} | {1}"),
    "minimum": _extreme("minimum", "{0} & {1}"),
    "remainder": _by_kind("float_mod({0}, {1})", "floor_mod({0}, {1})"),
    "fmod": _by_kind("libdevice.fmod({0}, {1})", "{0} % {1}"),
    "floordiv": "floor_div({0}, {1})",
    "lshift": _shift("{0} << COUNT", "0"),
    "rshift": _shift("{0} >> COUNT", "sign"),
    "where": "tl.where({0}, {1}, {2})",
    "isnan": "{0} != {0}",
    "signbit": _float_width(
        "{0}.to(tl.int32, bitcast=True) < 0", "{0}.to(tl.int64, bitcast=True) < 0"
    ),
    "truediv": _float_width("tl.div_rn({0}, {1})", "{0} / {1}"),
    "fma": "tl.fma({0}, {1}, {2})",
    "sqrt": _float_width("tl.sqrt_rn({0})", "tl.sqrt({0})"),
    "rsqrt": "tl.rsqrt({0})",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "logaddexp": "logaddexp({0}, {1})",
    "round": _libdevice("round", "rint"),
}


def literal(value: bool | float, dtype: torch.dtype) -> str:
    """A constant as a Python expression of exactly this value; integers wrap around."""
    if dtype == torch.bool:
        return str(bool(value))
    if not dtype.is_floating_point:
        low, count = torch.iinfo(dtype).min, 1 << torch.iinfo(dtype).bits
        return str((int(value) - low) % count + low)
    if not math.isfinite(value):
        return f'float("{value}")'
    if dtype == torch.float32:
        value = torch.tensor(value, dtype=torch.float32).item()
    return repr(float(value))


def has_exact_inverse(value: Any, dtype: torch.dtype) -> bool:
    """Whether to divide by `value` is to multiply by 1 / value: for not too large powers of two."""
    parts = math.frexp(value)
    return abs(parts[0]) == 0.5 and abs(parts[1]) < (1000 if dtype == torch.float64 else 120)


def constant(value: bool | float, dtype: torch.dtype, shape: str) -> str:
    """A constant as a tile of this shape and dtype. Triton makes every zero a positive one."""
    if value == 0 and dtype.is_floating_point and math.copysign(1.0, value) < 0:
        return f"tl.full({shape}, 0.0, {TYPE[dtype]}) * -1.0"
    return f"tl.full({shape}, {literal(value, dtype)}, {TYPE[dtype]})"


def cast(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """`value` converted as torch does; floats become narrow integers by way of wide ones."""
    if source == target:
        return value
    if source == torch.bfloat16:
        return cast(f"from_bfloat16({value})", torch.float32, target)
    if target == torch.bool:
        return f"{value} != 0"
    if target == torch.bfloat16:
        value = value if source == torch.float32 else f"{value}.to(tl.float32)"
        return f"to_bfloat16({value})"
    if target in LOW_PRECISION and source == torch.float64:
        value = f"{value}.to(tl.float32)"
    if source.is_floating_point and target in (torch.uint8, torch.int8, torch.int16):
        value = f"{value}.to({'tl.int64' if target == torch.uint8 else 'tl.int32'})"
    return f"{value}.to({TYPE[target]})"


def operation(name: str, args: Sequence[str], operand: torch.dtype) -> str:
    """The text of one pointwise operation on operands of this dtype."""
    row = TABLE[name]
    return (row if isinstance(row, str) else row(operand)).format(*args)
