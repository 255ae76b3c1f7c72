"""The one table of scalar operations that a kernel body may contain.

A body (`loop_body.py`) is a list of nodes in SSA form; each names an operation of this table.
Lowering emits them through `BodyBuilder`, fusion and dependency analysis read them, a printer
(`codegen/cpp.py`, `codegen/triton.py`) is a dictionary from operation name to text. Everything that
can be said well in these operations is lowered to them (`sigmoid`, `relu`, `lerp`, `gelu` have no
row), so that a printer stays small.

dtype rules, given the operands' dtypes (which lowering has made equal, `where`'s condition and
shifts aside):

    same      the (last) operand's
    bool      torch.bool
    explicit  stated on the node (`cast`, `constant`, `index_expr`, `load`, `reduction`)

Arithmetic happens in float32, float64, bool or an integer type. float16 and bfloat16 values exist
only as the result of a `load` or a `cast` and as the operand of a `cast` or a `store`: the builder
widens them to float32.

Floating-point meaning is IEEE-754 and torch's: comparisons with NaN are false (`ne` true),
`maximum` and `minimum` propagate NaN, `round` is half to even, integer division by zero is
undefined.
"""

# ruff: noqa: E501  (one row, one line)

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Op:
    """One operation.

    Attributes:
        arity: number of SSA operands; None where it varies (see the class of the row). dtype: the
        dtype rule. doc: what it computes, for operands a, b, c. cost: rough number of machine
        operations for one element; what fusion and the row scratch decide by. kind: `memory`,
        `leaf` (no operands, no memory), `pointwise`, or `reduction`. domain: dtypes that the
        operands may have: `any`, `float`, `int` (bool included), `number` (not bool).
    """

    name: str
    arity: int | None
    dtype: str
    doc: str
    cost: int = 1
    kind: str = "pointwise"
    domain: str = "any"


_ROWS = [
    # memory and leaves
    Op("load", None, "explicit", "buffer[index]; with one operand (a bool mask): 0 where the mask is false, without reading", 1, "memory"),
    Op("store", 1, "same", "buffer[index] = a, converted to the buffer's dtype", 1, "memory"),
    Op("scatter", 1, "same", "combine a with buffer[index] as `value` says (a name in SCATTERS), also where several iterations meet at one index", 8, "memory"),
    Op("constant", 0, "explicit", "the number `value`", 0, "leaf"),
    Op("index_expr", 0, "explicit", "the integer expression `index` as a value of the node's dtype", 1, "leaf"),
    Op("reduction", 1, "explicit", "reduction of a over all reduction symbols; `value` is its name in REDUCTIONS", 1, "reduction"),
    Op("check", 2, "explicit", "a if b (bool); else 0, and the kernel fails with `value` (`Exception: text`, {} for a)", 3, "memory"),
    Op("scan", 1, "explicit", "the reduction `value` (a name in SCANS) of a over the reduction symbols up to and with this point, in row-major order", 4, "reduction"),
    # conversions and selection
    Op("cast", 1, "explicit", "a converted to the node's dtype as torch's .to() does (float to int truncates)", 1),
    Op("bitcast", 1, "explicit", "the bits of a, as the node's dtype of the same width", 0),
    Op("where", 3, "same", "b if a (bool) else c", 1),
    # comparisons
    Op("eq", 2, "bool", "a == b"),
    Op("ne", 2, "bool", "a != b"),
    Op("lt", 2, "bool", "a < b"),
    Op("le", 2, "bool", "a <= b"),
    Op("gt", 2, "bool", "a > b"),
    Op("ge", 2, "bool", "a >= b"),
    Op("isnan", 1, "bool", "a is NaN", 1, domain="float"),
    Op("signbit", 1, "bool", "the sign bit of a (true for -0.0)", 1, domain="float"),
    # arithmetic on any number
    Op("add", 2, "same", "a + b", 1, domain="number"),
    Op("sub", 2, "same", "a - b", 1, domain="number"),
    Op("mul", 2, "same", "a * b", 1, domain="number"),
    Op("neg", 1, "same", "-a", 1, domain="number"),
    Op("abs", 1, "same", "|a|", 1, domain="number"),
    Op("maximum", 2, "same", "the larger; NaN if either is NaN", 2),
    Op("minimum", 2, "same", "the smaller; NaN if either is NaN", 2),
    Op("remainder", 2, "same", "a - floor(a / b) * b with the sign of b (Python's %)", 8, domain="number"),
    Op("fmod", 2, "same", "a - trunc(a / b) * b with the sign of a (C's fmod and %)", 8, domain="number"),
    # integers and bool
    Op("floordiv", 2, "same", "floor(a / b)", 6, domain="int"),
    Op("truncdiv", 2, "same", "a / b rounded to zero", 5, domain="int"),
    Op("bitwise_and", 2, "same", "a & b (and of bools)", domain="int"),
    Op("bitwise_or", 2, "same", "a | b (or of bools)", domain="int"),
    Op("bitwise_xor", 2, "same", "a ^ b", domain="int"),
    Op("bitwise_not", 1, "same", "~a (not of a bool)", domain="int"),
    Op("lshift", 2, "same", "a << b; 0 for b outside [0, bits)", domain="int"),
    Op("rshift", 2, "same", "a >> b, arithmetic where there is a sign; for b outside [0, bits) what is left is the sign", domain="int"),
    Op("philox", 2, "explicit", "32 random bits as int32: word `value` (0 to 3) of Philox 4x32-10 with key a and counter b (int64)", 30, "memory"),
    # floating point
    Op("truediv", 2, "same", "a / b, correctly rounded", 4, domain="float"),
    Op("fma", 3, "same", "a * b + c, rounded once where the machine can", 1, domain="float"),
    Op("sqrt", 1, "same", "square root, correctly rounded", 5, domain="float"),
    Op("rsqrt", 1, "same", "1 / sqrt(a)", 6, domain="float"),
    Op("floor", 1, "same", "largest integer <= a", 1, domain="float"),
    Op("ceil", 1, "same", "smallest integer >= a", 1, domain="float"),
    Op("trunc", 1, "same", "a rounded to zero", 1, domain="float"),
    Op("round", 1, "same", "a rounded to an integer, half to even", 1, domain="float"),
    Op("copysign", 2, "same", "|a| with the sign of b", 2, domain="float"),
    Op("nextafter", 2, "same", "the float after a towards b", 6, domain="float"),
    Op("exp", 1, "same", "e ** a", 12, domain="float"),
    Op("exp2", 1, "same", "2 ** a", 12, domain="float"),
    Op("expm1", 1, "same", "e ** a - 1, accurate near 0", 16, domain="float"),
    Op("log", 1, "same", "natural logarithm", 14, domain="float"),
    Op("log2", 1, "same", "logarithm to base 2", 14, domain="float"),
    Op("log10", 1, "same", "logarithm to base 10", 14, domain="float"),
    Op("log1p", 1, "same", "log(1 + a), accurate near 0", 18, domain="float"),
    Op("pow", 2, "same", "a ** b as C's pow", 40, domain="float"),
    Op("sin", 1, "same", "sine", 16, domain="float"),
    Op("cos", 1, "same", "cosine", 16, domain="float"),
    Op("tan", 1, "same", "tangent", 22, domain="float"),
    Op("asin", 1, "same", "arc sine", 20, domain="float"),
    Op("acos", 1, "same", "arc cosine", 20, domain="float"),
    Op("atan", 1, "same", "arc tangent", 20, domain="float"),
    Op("atan2", 2, "same", "angle of the point (b, a)", 26, domain="float"),
    Op("sinh", 1, "same", "hyperbolic sine", 24, domain="float"),
    Op("cosh", 1, "same", "hyperbolic cosine", 24, domain="float"),
    Op("tanh", 1, "same", "hyperbolic tangent", 18, domain="float"),
    Op("asinh", 1, "same", "inverse hyperbolic sine", 30, domain="float"),
    Op("acosh", 1, "same", "inverse hyperbolic cosine", 30, domain="float"),
    Op("atanh", 1, "same", "inverse hyperbolic tangent", 24, domain="float"),
    Op("erf", 1, "same", "error function", 24, domain="float"),
    Op("erfc", 1, "same", "1 - erf(a), accurate for large a", 30, domain="float"),
    Op("lgamma", 1, "same", "log |gamma(a)|", 60, domain="float"),
    Op("logaddexp", 2, "same", "log(e ** a + e ** b) without overflow", 40, domain="float"),
    Op("hypot", 2, "same", "sqrt(a*a + b*b) without overflow", 12, domain="float"),
]  # fmt: skip

OPS: dict[str, Op] = {row.name: row for row in _ROWS}
assert len(OPS) == len(_ROWS), "an operation has two rows"


@dataclass(frozen=True, slots=True)
class Reduction:
    """One way to reduce. `identity` is the value of the empty reduction: a number, or -inf/inf for
    "the dtype's smallest/largest value", or None where torch raises.

    `argmax`/`argmin` give the int64 row-major position over the reduction symbols of the first
    extreme element; a NaN counts as extreme. `max`/`min` propagate NaN.
    """

    name: str
    identity: float | None
    combine: str | None
    doc: str


# What a scan may accumulate -> its identity (infinities as in `Reduction`).
SCANS: dict[str, float] = {
    "sum": 0,
    "prod": 1,
    "max": float("-inf"),
    "min": float("inf"),
    "logaddexp": float("-inf"),
}

# The operation of a scan at each point, on the running value and the new one.
SCAN_STEPS = {
    "sum": "add",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
    "logaddexp": "logaddexp",
}

# How a value that is scattered is combined with the one in memory; None: it takes its place.
SCATTERS: dict[str, str | None] = {
    "sum": "add",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
    "set": None,
}

REDUCTIONS: dict[str, Reduction] = {
    row.name: row
    for row in [
        Reduction(
            "sum", 0, "add", "sum; accumulate so that the error does not grow with the length"
        ),
        Reduction("prod", 1, "mul", "product"),
        Reduction("max", float("-inf"), "maximum", "largest element"),
        Reduction("min", float("inf"), "minimum", "smallest element"),
        Reduction("any", 0, "bitwise_or", "or of bools"),
        Reduction("all", 1, "bitwise_and", "and of bools"),
        Reduction("argmax", None, None, "position of the first largest element"),
        Reduction("argmin", None, None, "position of the first smallest element"),
    ]
}
