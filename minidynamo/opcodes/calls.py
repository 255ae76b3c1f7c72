"""Calls, operators, functions made inside, and string formatting."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from ..variables.base import NULL, VariableTracker, unsupported
from ..variables.builtin_object import has_slot
from ..variables.constant import ConstantVariable
from ..variables.exceptions import stop_iteration_error
from ..variables.functions import CellVariable
from ..variables.nested_functions import NestedFunctionVariable
from ..variables.postponed import joined, postponed_text
from .registry import op

if TYPE_CHECKING:
    from ..bytecode import Instruction
    from ..symbolic_convert import Translator

BINARY: dict[str, Any] = {
    "+": operator.add,
    "&": operator.and_,
    "//": operator.floordiv,
    "<<": operator.lshift,
    "@": operator.matmul,
    "*": operator.mul,
    "%": operator.mod,
    "|": operator.or_,
    "**": operator.pow,
    ">>": operator.rshift,
    "-": operator.sub,
    "/": operator.truediv,
    "^": operator.xor,
    "+=": operator.iadd,
    "&=": operator.iand,
    "//=": operator.ifloordiv,
    "<<=": operator.ilshift,
    "@=": operator.imatmul,
    "*=": operator.imul,
    "%=": operator.imod,
    "|=": operator.ior,
    "**=": operator.ipow,
    ">>=": operator.irshift,
    "-=": operator.isub,
    "/=": operator.itruediv,
    "^=": operator.ixor,
}
COMPARE: dict[str, Any] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}
UNARY: dict[str, Any] = {"UNARY_NEGATIVE": operator.neg, "UNARY_INVERT": operator.invert}


@op("BINARY_OP")
def binary_op(tx: Translator, inst: Instruction) -> None:
    left, right = tx.popn(2)
    tx.push(tx.call_operator(BINARY[inst.arg], [left, right]))


@op("COMPARE_OP")
def compare_op(tx: Translator, inst: Instruction) -> None:
    left, right = tx.popn(2)
    tx.push(tx.call_operator(COMPARE[inst.arg], [left, right]))


@op("UNARY_NEGATIVE", "UNARY_INVERT")
def unary_op(tx: Translator, inst: Instruction) -> None:
    tx.push(tx.call_operator(UNARY[inst.opname], [tx.pop()]))


@op("IS_OP")
def is_op(tx: Translator, inst: Instruction) -> None:
    left, right = tx.popn(2)
    tx.push(ConstantVariable(tx.is_same(left, right) is not bool(inst.arg)))


@op("CONTAINS_OP")
def contains_op(tx: Translator, inst: Instruction) -> None:
    item, container = tx.popn(2)
    found = container.contains(tx, item)
    if inst.arg:
        found = ConstantVariable(not found.truth(tx))
    tx.push(found)


@op("CALL")
def call(tx: Translator, inst: Instruction) -> None:
    nargs, kwnames = inst.arg.nargs, inst.arg.kwnames
    values = tx.popn_raw(nargs)
    second, first = tx.pop_raw(), tx.pop_raw()
    positional = values[: nargs - len(kwnames)]
    kwargs = dict(zip(kwnames, values[nargs - len(kwnames) :], strict=True))
    fn = second if first is NULL else first
    if first is not NULL and second is not NULL:
        positional = [second, *positional]
    tx.push(_call_in_tail(tx, fn, positional, kwargs))


def _call_in_tail(
    tx: Translator,
    fn: VariableTracker,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    tx.in_tail = fn = fn.realize()
    return tx.call_function(fn, args, kwargs)


@op("CALL_FUNCTION_EX")
def call_function_ex(tx: Translator, inst: Instruction) -> None:
    kwargs = tx.unpack_keywords(tx.pop()) if inst.arg else {}
    given = tx.pop()
    if not (has_slot(tx, given, "__iter__") or has_slot(tx, given, "__getitem__")):
        unsupported("call does not fit", "*", "eager will raise the TypeError")
    args = list(given.each(tx, sized=True))
    second, first = tx.pop_raw(), tx.pop_raw()
    tx.push(_call_in_tail(tx, second if first is NULL else first, args, kwargs))


@op("CALL_INTRINSIC_1")
def call_intrinsic_1(tx: Translator, inst: Instruction) -> None:
    handler = INTRINSICS.get(str(inst.arg).removeprefix("INTRINSIC_"))
    if handler is None:
        unsupported("opcode", f"CALL_INTRINSIC_1 {inst.arg}")
    tx.push(handler(tx, tx.pop()))


INTRINSICS: dict[str, Any] = {
    "LIST_TO_TUPLE": lambda tx, value: tx.wrap_items(tuple, value.unpack(tx)),
    "UNARY_POSITIVE": lambda tx, value: tx.call_operator(operator.pos, [value]),
    "STOPITERATION_ERROR": stop_iteration_error,
}


# -- functions made inside -------------------------------------------------------------------------


@op("MAKE_FUNCTION")
def make_function(tx: Translator, inst: Instruction) -> None:
    code = tx.pop().as_python_constant()
    function = NestedFunctionVariable(code, tx.globals)
    for part in reversed(inst.arg or ()):
        _set_part(tx, function, part, tx.pop_raw())
    tx.push(function)


@op("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(tx: Translator, inst: Instruction) -> None:
    function = tx.pop()
    assert isinstance(function, NestedFunctionVariable)
    _set_part(tx, function, inst.arg, tx.pop_raw())
    tx.push(function)


def _set_part(
    tx: Translator, function: NestedFunctionVariable, part: str, value: VariableTracker
) -> None:
    if part == "closure":
        cells = value.unpack(tx)
        assert all(isinstance(cell, CellVariable) for cell in cells)
        function.cells = cells  # type: ignore[assignment]
    else:
        function.parts[part] = value.realize()


# -- strings --------------------------------------------------------------------------------------


@op("FORMAT_SIMPLE")
def format_simple(tx: Translator, inst: Instruction) -> None:
    value = tx.pop()
    tx.push(postponed_text(tx, value, "") or tx.format_value(value, ""))


@op("FORMAT_WITH_SPEC")
def format_with_spec(tx: Translator, inst: Instruction) -> None:
    value, spec = tx.popn(2)
    text = spec.specialized(tx).as_python_constant()
    tx.push(postponed_text(tx, value, text) or tx.format_value(value, text))


@op("CONVERT_VALUE")
def convert_value(tx: Translator, inst: Instruction) -> None:
    functions = {"str": str, "repr": repr, "ascii": ascii}
    tx.push(tx.call_function(tx.wrap_code_constant(functions[inst.arg]), [tx.pop()], {}))


@op("BUILD_STRING")
def build_string(tx: Translator, inst: Instruction) -> None:
    tx.push(joined(tx, tx.popn(inst.arg)))
