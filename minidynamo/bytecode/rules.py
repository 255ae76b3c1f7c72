"""Decoding and encoding rules that several versions share, for the tables of ``py3xx.py``."""

from __future__ import annotations

from collections.abc import Sequence

from .canonical import CONVERSIONS, FUNCTION_ATTRIBUTES
from .decoder import Decoder
from .dialect import Fusion
from .emitter import Emitter
from .instruction import CallArg, Instruction

_CALLS = tuple(CallArg(n) for n in range(256))


def decode_call(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> None:
    """CALL, with the names of a KW_NAMES in front."""
    kwnames = decoder.kwnames
    decoder.kwnames = ()
    decoder.emit(unit, "CALL", CallArg(oparg, kwnames) if kwnames else _CALLS[oparg & 255])


def decode_kw_names(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> bool:
    """A prefix of CALL."""
    decoder.kwnames = decoder.code.co_consts[oparg]
    return True


def decode_unpack_ex(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> None:
    """Low byte: items before the starred one; the rest: after it."""
    decoder.emit(unit, "UNPACK_EX", (oparg & 255, oparg >> 8))


def decode_return_const(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> None:
    """LOAD_CONST and RETURN_VALUE in one."""
    decoder.emit(unit, "LOAD_CONST", decoder.code.co_consts[oparg])
    decoder.emit(unit, "RETURN_VALUE")


def decode_load_attr(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> None:
    """Bit 0: as LOAD_METHOD."""
    name = decoder.code.co_names[oparg >> 1]
    decoder.emit(unit, "LOAD_METHOD" if oparg & 1 else "LOAD_ATTR", name)


def decode_load_super_attr(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> None:
    """Bit 0: as LOAD_METHOD; bit 1: with two arguments."""
    name = decoder.code.co_names[oparg >> 2]
    decoder.emit(unit, "LOAD_SUPER_ATTR", (name, bool(oparg & 1), bool(oparg & 2)))


def decode_end_for(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> None:
    """Dropped: FOR_ITER continues behind it."""
    decoder.end_for(unit)


def decode_make_function(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> None:
    """3.11 and 3.12: a flag for each attribute."""
    decoder.emit(unit, "MAKE_FUNCTION", attributes_of(oparg))


def decode_null_load_global(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> None:
    """3.11 and 3.12, bit 0: a NULL below."""
    if oparg & 1:
        decoder.emit(unit, "PUSH_NULL")
    decoder.emit(unit, "LOAD_GLOBAL", decoder.code.co_names[oparg >> 1])


def decode_format_value(decoder: Decoder, unit: int, oparg: int) -> None:
    """3.11 and 3.12: bits 0-1 conversion (applied to the value below the spec), bit 2 a spec."""
    conversion = CONVERSIONS[(oparg & 3) - 1] if oparg & 3 else None
    if oparg & 4:
        if conversion is not None:
            decoder.emit(unit, "SWAP", 2)
            decoder.emit(unit, "CONVERT_VALUE", conversion)
            decoder.emit(unit, "SWAP", 2)
        decoder.emit(unit, "FORMAT_WITH_SPEC")
        return
    if conversion is not None:
        decoder.emit(unit, "CONVERT_VALUE", conversion)
    decoder.emit(unit, "FORMAT_SIMPLE")


def attributes_of(flags: int) -> tuple[str, ...]:
    """FUNCTION_ATTRIBUTES by flags."""
    return tuple(name for i, name in enumerate(FUNCTION_ATTRIBUTES) if flags >> i & 1)


def flags_of(attributes: Sequence[str]) -> int:
    """The inverse of ``attributes_of``."""
    return sum(1 << FUNCTION_ATTRIBUTES.index(name) for name in attributes)


def encode_unpack_ex(emitter: Emitter, inst: Instruction) -> None:
    """See ``decode_unpack_ex``."""
    emitter.put("UNPACK_EX", inst.arg[0] | inst.arg[1] << 8, inst)


def encode_jump(emitter: Emitter, inst: Instruction) -> None:
    """By direction."""
    raw = "JUMP_FORWARD" if emitter.is_forward(inst) else "JUMP_BACKWARD"
    emitter.put_jump(raw, inst.target, inst)


def encode_jump_no_interrupt(emitter: Emitter, inst: Instruction) -> None:
    """By direction; a forward jump never checks for signals."""
    raw = "JUMP_FORWARD" if emitter.is_forward(inst) else "JUMP_BACKWARD_NO_INTERRUPT"
    emitter.put_jump(raw, inst.target, inst)


def encode_send(emitter: Emitter, inst: Instruction) -> None:
    """Forwards only."""
    label: object = inst.target
    if not emitter.is_forward(inst):
        label = emitter.trampoline((), inst)
    emitter.put_jump("SEND", label, inst)


_INVERTED = {"TRUE": "FALSE", "FALSE": "TRUE", "NONE": "NOT_NONE", "NOT_NONE": "NONE"}


def encode_forward_condition(emitter: Emitter, inst: Instruction) -> None:
    """3.12 on: conditional jumps go forwards only."""
    if emitter.is_forward(inst):
        emitter.put_jump(inst.opname, inst.target, inst)
        return
    skip = object()
    condition = inst.opname.removeprefix("POP_JUMP_IF_")
    emitter.put_jump(f"POP_JUMP_IF_{_INVERTED[condition]}", skip, inst)
    emitter.put_jump("JUMP_BACKWARD", inst.target, inst)
    emitter.label(skip)


def encode_jump_or_pop(emitter: Emitter, inst: Instruction) -> None:
    """JUMP_IF_TRUE_OR_POP and its sibling, where the version has none."""
    condition = "TRUE" if inst.opname == "JUMP_IF_TRUE_OR_POP" else "FALSE"
    emitter.need(1, inst)
    emitter.put("COPY", 1, inst)
    if emitter.dialect.exact_bool:
        emitter.put("TO_BOOL", 0, inst)
    jump = Instruction(f"POP_JUMP_IF_{condition}", target=inst.target, positions=inst.positions)
    jump.handler = inst.handler
    emitter.encode(jump)
    emitter.put("POP_TOP", 0, inst)


def encode_for_iter(emitter: Emitter, inst: Instruction) -> None:
    """To the END_FOR that 3.12 and 3.13 want to see."""
    emitter.put_jump("FOR_ITER", emitter.loop_end(inst), inst)


def encode_load_attr(emitter: Emitter, inst: Instruction) -> None:
    """See ``decode_load_attr``."""
    emitter.put("LOAD_ATTR", emitter.name(inst.arg) << 1, inst)


def encode_load_method(emitter: Emitter, inst: Instruction) -> None:
    """See ``decode_load_attr``."""
    emitter.put("LOAD_ATTR", emitter.name(inst.arg) << 1 | 1, inst)


def encode_load_super_attr(emitter: Emitter, inst: Instruction) -> None:
    """See ``decode_load_super_attr``."""
    name, is_method, has_two_args = inst.arg
    oparg = emitter.name(name) << 2 | has_two_args << 1 | is_method
    emitter.put("LOAD_SUPER_ATTR", oparg, inst)


def encode_load_global(emitter: Emitter, inst: Instruction) -> None:
    """Without NULL."""
    emitter.put("LOAD_GLOBAL", emitter.name(inst.arg) << 1, inst)


def fuse_null_load_global(emitter: Emitter, row: Sequence[Instruction]) -> bool:
    """LOAD_GLOBAL and PUSH_NULL, in the order of the version."""
    load = next(inst for inst in row if inst.opname == "LOAD_GLOBAL")
    emitter.put("LOAD_GLOBAL", emitter.name(load.arg) << 1 | 1, load)
    return True


def fuse_return_const(emitter: Emitter, row: Sequence[Instruction]) -> bool:
    """RETURN_CONST."""
    emitter.put("RETURN_CONST", emitter.const(row[0].arg), row[0])
    return True


def fuse_slice(raw: str) -> Fusion:
    """BINARY_SLICE and STORE_SLICE."""

    def fuse(emitter: Emitter, row: Sequence[Instruction]) -> bool:
        if row[0].arg != 2:
            return False
        emitter.put(raw, 0, row[0])
        return True

    return fuse


def fuse_format(emitter: Emitter, row: Sequence[Instruction]) -> bool:
    """3.11 and 3.12: conversion and format."""
    emitter.put("FORMAT_VALUE", 1 + CONVERSIONS.index(row[0].arg), row[0])
    return True


def fuse_format_with_spec(emitter: Emitter, row: Sequence[Instruction]) -> bool:
    """See ``decode_format_value``."""
    if row[0].arg != 2 or row[2].arg != 2:
        return False
    emitter.put("FORMAT_VALUE", 5 + CONVERSIONS.index(row[1].arg), row[0])
    return True


def encode_format_simple(emitter: Emitter, inst: Instruction) -> None:
    """3.11 and 3.12."""
    emitter.put("FORMAT_VALUE", 0, inst)


def encode_format_with_spec(emitter: Emitter, inst: Instruction) -> None:
    """3.11 and 3.12."""
    emitter.put("FORMAT_VALUE", 4, inst)


_CONVERTERS = {"str": str, "repr": repr, "ascii": ascii}


def encode_convert_value(emitter: Emitter, inst: Instruction) -> None:
    """3.11 and 3.12, apart from the formatting it belonged to: a call of str, repr or ascii."""
    emitter.need(2, inst)
    emitter.put("PUSH_NULL", 0, inst)
    emitter.put("SWAP", 2, inst)
    emitter.put("LOAD_CONST", emitter.const(_CONVERTERS[inst.arg]), inst)
    emitter.put("SWAP", 2, inst)
    emitter.encode(Instruction("CALL", _CALLS[1], None, inst.positions, inst.handler))


def encode_to_bool(emitter: Emitter, inst: Instruction) -> None:
    """3.11 and 3.12: nothing in front of an instruction that tests truth itself."""
    follower = emitter.follower()
    tests = ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT")
    if follower is not None and follower.opname in tests:
        return
    emitter.put("UNARY_NOT", 0, inst)
    emitter.put("UNARY_NOT", 0, inst)


def encode_make_function(emitter: Emitter, inst: Instruction) -> None:
    """See ``decode_make_function``."""
    emitter.put("MAKE_FUNCTION", flags_of(inst.arg), inst)
