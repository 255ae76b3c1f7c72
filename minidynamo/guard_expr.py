"""Integer expressions over sizes, strides and ints of the frame, for guards on symbolic shapes.

An expression is an int, a source (of an int, or a TensorPropertySource), or a tuple
`(operator, *operands)` with an operator of OPERATORS:

    rows = TensorPropertySource(LocalSource("x"), "size", 0)
    ("==", ("%", rows, 8), 0)                                   # x.size(0) % 8 == 0
    from_sympy(sympy.Eq(s0 % 8, 0), {s0: rows})                 # the same

Guard programs evaluate them natively, in 64 bits; an overflow fails the guard. Division and
remainder round as in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from .source import Source, TensorPropertySource

Expr: TypeAlias = "int | Source | tuple[Any, ...]"

_INT64 = 2**63

# Operator -> how many operands it takes; None: two or more, folded from the left.
OPERATORS: dict[str, int | None] = {
    "+": None,
    "-": 2,
    "*": None,
    "//": 2,
    "%": 2,
    "**": 2,
    "min": None,
    "max": None,
    "==": 2,
    "!=": 2,
    "<": 2,
    "<=": 2,
    ">": 2,
    ">=": 2,
    "and": None,
    "or": None,
    "not": 1,
}

# Class name in sympy or torch.utils._sympy.functions -> operator of the same meaning.
_SYMPY_OPERATORS = {
    "Add": "+",
    "Mul": "*",
    "Pow": "**",
    "PowByNatural": "**",
    "FloorDiv": "//",
    "CleanDiv": "//",
    "Mod": "%",
    "PythonMod": "%",
    "Min": "min",
    "Max": "max",
    "Equality": "==",
    "Unequality": "!=",
    "StrictLessThan": "<",
    "LessThan": "<=",
    "StrictGreaterThan": ">",
    "GreaterThan": ">=",
    "And": "and",
    "Or": "or",
    "Not": "not",
}


def from_sympy(expression: Any, sources: Mapping[Any, Source | int]) -> Expr:
    """The expression for a sympy one over integer symbols; `sources` says what these stand for.

    Raises ValueError when a function, a rational or a symbol has no counterpart here.
    """
    if expression in sources:
        return sources[expression]
    if not expression.args and (expression.is_Integer or expression.is_Boolean):
        number = int(bool(expression)) if expression.is_Boolean else int(expression)
        if not -_INT64 <= number < _INT64:
            raise ValueError(f"no native guard for {number}, which has more than 64 bits")
        return number
    operator = _SYMPY_OPERATORS.get(type(expression).__name__)
    if operator is None:
        raise ValueError(f"no native guard for {expression} ({type(expression).__name__})")
    operands = tuple(from_sympy(arg, sources) for arg in expression.args)
    if operator == "**" and not (isinstance(operands[1], int) and operands[1] >= 0):
        raise ValueError(f"no native guard for {expression}: the exponent is no constant")
    return (operator, *operands)


def leaves(expression: Expr) -> Iterator[Source]:
    """The sources in an expression, from left to right, with repetitions."""
    if isinstance(expression, Source):
        yield expression
    elif isinstance(expression, tuple):
        for operand in expression[1:]:
            yield from leaves(operand)


def to_postfix(expression: Expr, members: Mapping[Source, int]) -> list[tuple[Any, ...]]:
    """What the guard program runs: ("int", value), ("tensor", member, prop, dim), ("load", member)
    and (operator,) in postfix order. `members` gives the position of each object read.

    Raises ValueError for an unknown operator or a wrong number of operands.
    """
    if isinstance(expression, TensorPropertySource):
        return [("tensor", members[expression.base], expression.prop, expression.dim or 0)]
    if isinstance(expression, Source):
        return [("load", members[expression])]
    if isinstance(expression, int):
        return [("int", int(expression))]
    operator, *operands = expression
    arity = OPERATORS.get(operator, 0)
    fits = len(operands) >= 2 if arity is None else len(operands) == arity > 0
    if not fits:
        raise ValueError(f"bad guard expression {operator!r} with {len(operands)} operands")
    postfix = to_postfix(operands[0], members)
    for operand in operands[1:]:
        postfix += [*to_postfix(operand, members), (operator,)]
    return [*postfix, (operator,)] if arity == 1 else postfix


def read_objects(expression: Expr) -> list[Source]:
    """The sources whose objects evaluation reads: tensors for their properties, and ints."""
    found = (x.base if isinstance(x, TensorPropertySource) else x for x in leaves(expression))
    return list(dict.fromkeys(found))


def expr_text(expression: Expr) -> str:
    """The expression as the user would write it."""
    if isinstance(expression, Source):
        return expression.name
    if isinstance(expression, int):
        return str(expression)
    operator, *operands = expression
    texts = [expr_text(operand) for operand in operands]
    if operator in ("min", "max"):
        return f"{operator}({', '.join(texts)})"
    if operator == "not":
        return f"not ({texts[0]})"
    nested = [
        f"({text})" if isinstance(operand, tuple) and operand[0] not in ("min", "max") else text
        for operand, text in zip(operands, texts, strict=True)
    ]
    return f" {operator} ".join(nested)
