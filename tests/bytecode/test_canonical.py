"""The table of operations against what the interpreter says of itself."""

import dis
import opcode

import pytest

from minidynamo.bytecode import OPS, CallArg, Instruction, effect
from minidynamo.bytecode.canonical import COMPARISONS, OPERATORS
from minidynamo.bytecode.current import dialect

#: Raw operations that never occur in ``co_code``, or that decode without a row of their own.
NOT_DECODED = {
    "CACHE",
    "EXTENDED_ARG",
    "RESERVED",
    "INTERPRETER_EXIT",
    "ENTER_EXECUTOR",
    "EXIT_INIT_CHECK",
}
#: Effects that differ by design: the canonical operation is another cut.
OTHER_CUT = {"SEND", "END_SEND", "FOR_ITER", "RETURN_GENERATOR", "MAKE_FUNCTION", "CALL"}
OTHER_CUT |= {"LOAD_GLOBAL", "LOAD_ATTR", "LOAD_SUPER_ATTR", "UNPACK_EX", "COMPARE_OP"}


def raw_names():
    return [
        name
        for name, number in opcode.opmap.items()
        if number < 256 and not name.startswith("INSTRUMENTED") and name not in NOT_DECODED
    ]


@pytest.mark.parametrize("name", raw_names())
def test_every_operation_decodes(name):
    rule = dialect.rules[opcode.opmap[name]]
    assert getattr(rule, "__name__", "") != "_unknown", name


@pytest.mark.parametrize("name", sorted(set(raw_names()) & set(OPS) - OTHER_CUT))
def test_effect(name):
    number = opcode.opmap[name]
    arg = 3 if number >= dis.HAVE_ARGUMENT else None
    if name == "BUILD_SLICE":
        arg = 2
    flag = {"CALL_FUNCTION_EX": True}.get(name, arg)
    jumps = (False, True) if OPS[name].jump is not None else (False,)
    for jump in jumps:
        expected = dis.stack_effect(number, 1 if flag is True else arg, jump=jump)
        assert effect(Instruction(name, flag), jump) == expected


def test_effects_of_the_other_cut():
    assert effect(Instruction("CALL", CallArg(3))) == -4
    assert effect(Instruction("CALL", CallArg(3, ("a", "b")))) == -4
    assert effect(Instruction("CALL_FUNCTION_EX", False)) == -2
    assert effect(Instruction("LOAD_SUPER_ATTR", ("x", True, True))) == -1
    assert effect(Instruction("LOAD_SUPER_ATTR", ("x", False, True))) == -2
    assert effect(Instruction("MAKE_FUNCTION", ("defaults", "closure"))) == -2
    assert effect(Instruction("UNPACK_EX", (1, 2))) == 3
    assert effect(Instruction("FOR_ITER")) == 1 and effect(Instruction("FOR_ITER"), True) == -1
    assert effect(Instruction("SEND")) == 0 and effect(Instruction("SEND"), True) == 0
    with pytest.raises(ValueError, match="does not jump"):
        effect(Instruction("NOP"), True)


def test_operands_in_the_order_of_the_interpreter():
    assert tuple(symbol for _, symbol in opcode._nb_ops) == OPERATORS
    assert opcode.cmp_op == COMPARISONS


def test_intrinsics_in_the_order_of_the_interpreter():
    for mine, theirs in (
        (dialect.intrinsics_1, getattr(opcode, "_intrinsic_1_descs", ())),
        (dialect.intrinsics_2, getattr(opcode, "_intrinsic_2_descs", ())),
    ):
        assert [name.removeprefix("INTRINSIC_") for name in theirs] == list(mine)


def test_every_row_is_documented():
    for op in OPS.values():
        assert op.doc and "--" in op.stack, op.name
