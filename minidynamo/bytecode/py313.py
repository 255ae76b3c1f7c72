"""CPython 3.13: 3.12 with superinstructions, exact bools and another order of call slots."""

from __future__ import annotations

from collections.abc import Sequence

from . import py312
from . import rules as r
from .canonical import COMPARISONS, FUNCTION_ATTRIBUTES
from .decoder import Decoder
from .dialect import DecodeRule, Dialect, Fusion
from .emitter import Emitter
from .instruction import CallArg, Instruction

_COMPARISONS = tuple(i << 5 | mask for i, mask in enumerate(py312.OUTCOMES.values()))
_TO_BOOL = 16  #: COMPARE_OP flag: convert the outcome to a bool


def _decode_load_global(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> None:
    decoder.emit(unit, "LOAD_GLOBAL", decoder.code.co_names[oparg >> 1])
    if oparg & 1:
        decoder.emit(unit, "PUSH_NULL")


def _decode_compare(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> None:
    decoder.emit(unit, "COMPARE_OP", COMPARISONS[oparg >> 5])
    if oparg & _TO_BOOL:
        decoder.emit(unit, "TO_BOOL")


def _decode_call_kw(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> None:
    names = decoder.take_last("LOAD_CONST")
    if names is None:
        decoder.emit(unit, "CALL_KW", oparg)
    else:
        decoder.emit(unit, "CALL", CallArg(oparg, names.arg))


def _decode_pair(first: str, second: str) -> DecodeRule:
    def decode(
        decoder: Decoder,
        unit: int,
        oparg: int,
    ) -> None:
        _emit_fast(decoder, unit, first, oparg >> 4)
        _emit_fast(decoder, unit, second, oparg & 15)

    return decode


def _decode_load_fast(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> None:
    _emit_fast(decoder, unit, "LOAD_FAST", oparg)


def _emit_fast(
    decoder: Decoder,
    unit: int,
    opname: str,
    slot: int,
) -> None:
    """LOAD_FAST of a slot that holds a cell is what LOAD_CLOSURE was before."""
    if opname == "LOAD_FAST" and slot in decoder.cell_slots:
        opname = "LOAD_CLOSURE"
    decoder.emit(unit, opname, decoder.slots[slot])


def _decode_make_function(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> None:
    decoder.emit(unit, "MAKE_FUNCTION", ())


def _decode_set_function_attribute(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> None:
    """Folded into the MAKE_FUNCTION in front; the compiler sets attributes from the top down."""
    attribute = FUNCTION_ATTRIBUTES[oparg.bit_length() - 1]
    make = decoder.last("MAKE_FUNCTION")
    if make is None or (
        make.arg and FUNCTION_ATTRIBUTES.index(make.arg[0]) < oparg.bit_length()
    ):
        decoder.emit(unit, "SET_FUNCTION_ATTRIBUTE", attribute)
    else:
        make.arg = (attribute, *make.arg)


def _encode_call(emitter: Emitter, inst: Instruction) -> None:
    nargs, kwnames = inst.arg.nargs, inst.arg.kwnames
    if kwnames:
        emitter.need(1, inst)
        emitter.put("LOAD_CONST", emitter.const(kwnames), inst)
        emitter.put("CALL_KW", nargs, inst)
    else:
        emitter.put("CALL", nargs, inst)


def _encode_make_function(emitter: Emitter, inst: Instruction) -> None:
    emitter.put("MAKE_FUNCTION", 0, inst)
    for attribute in reversed(inst.arg):
        emitter.put("SET_FUNCTION_ATTRIBUTE", r.flags_of((attribute,)), inst)


def _encode_set_function_attribute(emitter: Emitter, inst: Instruction) -> None:
    emitter.put("SET_FUNCTION_ATTRIBUTE", r.flags_of((inst.arg,)), inst)


def _encode_load_closure(emitter: Emitter, inst: Instruction) -> None:
    emitter.put("LOAD_FAST", emitter.deref(inst.arg), inst)


def _fuse_compare(emitter: Emitter, row: Sequence[Instruction]) -> bool:
    number = _COMPARISONS[COMPARISONS.index(row[0].arg)]
    emitter.put("COMPARE_OP", number | _TO_BOOL, row[0])
    return True


def _fuse_pair(raw: str) -> Fusion:
    def fuse(emitter: Emitter, row: Sequence[Instruction]) -> bool:
        first, second = emitter.local(row[0].arg), emitter.local(row[1].arg)
        if first > 15 or second > 15:
            return False
        emitter.put(raw, first << 4 | second, row[0])
        return True

    return fuse


DIALECT = Dialect(
    version=(3, 13),
    null_first=False,
    exact_bool=True,
    unchecked_fast=True,
    end_for=("END_FOR", "POP_TOP"),
    end_send=True,
    one_locals_dict=False,
    early_lookup=(
        "CALL",
        "CALL_KW",
        "CALL_FUNCTION_EX",
        "LOAD_ATTR",
        "BINARY_SUBSCR",
        "FOR_ITER",
        "SEND",
    ),
    comparisons=_COMPARISONS,
    intrinsics_1=py312.INTRINSICS_1,
    intrinsics_2=(*py312.INTRINSICS_2, "SET_TYPEPARAM_DEFAULT"),
    jumps=py312.JUMPS,
    expansions=py312.EXPANSIONS,
    decoders={
        **py312.DECODERS,
        "LOAD_GLOBAL": _decode_load_global,
        "COMPARE_OP": _decode_compare,
        "CALL_KW": _decode_call_kw,
        "LOAD_FAST_LOAD_FAST": _decode_pair("LOAD_FAST", "LOAD_FAST"),
        "STORE_FAST_LOAD_FAST": _decode_pair("STORE_FAST", "LOAD_FAST"),
        "STORE_FAST_STORE_FAST": _decode_pair("STORE_FAST", "STORE_FAST"),
        "MAKE_FUNCTION": _decode_make_function,
        "SET_FUNCTION_ATTRIBUTE": _decode_set_function_attribute,
    },
    cell_decoders={"LOAD_FAST": _decode_load_fast},
    encoders={
        **py312.ENCODERS,
        "CALL": _encode_call,
        "MAKE_FUNCTION": _encode_make_function,
        "SET_FUNCTION_ATTRIBUTE": _encode_set_function_attribute,
        "LOAD_CLOSURE": _encode_load_closure,
    },
    fusions={
        **py312.FUSIONS,
        ("LOAD_GLOBAL", "PUSH_NULL"): r.fuse_null_load_global,
        ("COMPARE_OP", "TO_BOOL"): _fuse_compare,
        ("LOAD_FAST", "LOAD_FAST"): _fuse_pair("LOAD_FAST_LOAD_FAST"),
        ("STORE_FAST", "LOAD_FAST"): _fuse_pair("STORE_FAST_LOAD_FAST"),
        ("STORE_FAST", "STORE_FAST"): _fuse_pair("STORE_FAST_STORE_FAST"),
    },
)
