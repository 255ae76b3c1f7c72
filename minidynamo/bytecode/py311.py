"""CPython 3.11: the version furthest from the canonical set; see ``dialect.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import rules as r
from .decoder import Decoder
from .dialect import Dialect, EncodeRule, Fusion
from .emitter import Emitter
from .instruction import Instruction


def _prefix(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> bool:
    return True


def _conditional_jumps() -> dict[str, tuple[str, int]]:
    return {
        f"POP_JUMP_{direction}_IF_{condition}": (f"POP_JUMP_IF_{condition}", sign)
        for direction, sign in (("FORWARD", 1), ("BACKWARD", -1))
        for condition in ("TRUE", "FALSE", "NONE", "NOT_NONE")
    }


def _encode_condition(emitter: Emitter, inst: Instruction) -> None:
    direction = "FORWARD" if emitter.is_forward(inst) else "BACKWARD"
    condition = inst.opname.removeprefix("POP_JUMP_IF_")
    emitter.put_jump(f"POP_JUMP_{direction}_IF_{condition}", inst.target, inst)


def _encode_jump_or_pop(emitter: Emitter, inst: Instruction) -> None:
    if emitter.is_forward(inst):
        emitter.put_jump(inst.opname, inst.target, inst)
    else:
        r.encode_jump_or_pop(emitter, inst)


def _encode_call(emitter: Emitter, inst: Instruction) -> None:
    if inst.arg.kwnames:
        emitter.put("KW_NAMES", emitter.const(inst.arg.kwnames), inst)
    emitter.put("PRECALL", inst.arg.nargs, inst)
    emitter.put("CALL", inst.arg.nargs, inst)


def _encode_for_iter(emitter: Emitter, inst: Instruction) -> None:
    label: object = inst.target if emitter.is_forward(inst) else emitter.trampoline((), inst)
    emitter.put_jump("FOR_ITER", label, inst)


def _encode_send(emitter: Emitter, inst: Instruction) -> None:
    """SEND itself drops the receiver here: it jumps past the END_SEND."""
    assert inst.target is not None
    label = emitter.after(inst.target)
    if not emitter.is_forward(inst):
        label = emitter.trampoline((), inst, label)
    emitter.put_jump("SEND", label, inst)


def _encode_end_send(emitter: Emitter, inst: Instruction) -> None:
    if not emitter.only_reached_by("SEND", inst):
        emitter.put("SWAP", 2, inst)
        emitter.put("POP_TOP", 0, inst)
    emitter.label(emitter.after(inst))


def _intrinsic(raws: dict[str, str]) -> EncodeRule:
    def encode(emitter: Emitter, inst: Instruction) -> None:
        if inst.arg in _STATEMENTS:  # push nothing, while intrinsics push None
            emitter.put(_STATEMENTS[inst.arg], 0, inst)
            emitter.put("LOAD_CONST", emitter.const(None), inst)
        elif inst.arg in raws:
            emitter.put(raws[inst.arg], 0, inst)
        else:
            emitter.fail(inst)

    return encode


def _fuse_statement(raws: dict[str, str]) -> Fusion:
    def fuse(emitter: Emitter, row: Sequence[Instruction]) -> bool:
        raw = raws.get(row[0].arg)
        if raw is not None:
            emitter.put(raw, 0, row[0])
        return raw is not None

    return fuse


def _fuse_classderef(emitter: Emitter, row: Sequence[Instruction]) -> bool:
    emitter.put("LOAD_CLASSDEREF", emitter.deref(row[1].arg), row[0])
    return True


_VALUES = {
    "UNARY_POSITIVE": "UNARY_POSITIVE",
    "LIST_TO_TUPLE": "LIST_TO_TUPLE",
    "ASYNC_GEN_WRAP": "ASYNC_GEN_WRAP",
}
_STATEMENTS = {"PRINT": "PRINT_EXPR", "IMPORT_STAR": "IMPORT_STAR"}
_PAIRS = {"PREP_RERAISE_STAR": "PREP_RERAISE_STAR"}

_EXPANSIONS: dict[str, list[tuple[str, Any]]] = {
    **{raw: [("CALL_INTRINSIC_1", name)] for name, raw in _VALUES.items()},
    **{
        raw: [("CALL_INTRINSIC_1", name), ("POP_TOP", None)]
        for name, raw in _STATEMENTS.items()
    },
    **{raw: [("CALL_INTRINSIC_2", name)] for name, raw in _PAIRS.items()},
    "YIELD_VALUE": [("YIELD_VALUE", None)],
}


def _decode_classderef(
    decoder: Decoder,
    unit: int,
    oparg: int,
) -> None:
    decoder.emit(unit, "LOAD_LOCALS")
    decoder.emit(unit, "LOAD_FROM_DICT_OR_DEREF", decoder.slots[oparg])


def _encode_yield(emitter: Emitter, inst: Instruction) -> None:
    emitter.put("YIELD_VALUE", 0, inst)


def _load_fast(emitter: Emitter, inst: Instruction) -> None:
    emitter.put("LOAD_FAST", emitter.local(inst.arg), inst)


DIALECT = Dialect(
    version=(3, 11),
    null_first=True,
    exact_bool=False,
    unchecked_fast=False,
    end_for=(),
    end_send=False,
    one_locals_dict=True,
    early_lookup=(),
    comparisons=(0, 1, 2, 3, 4, 5),
    intrinsics_1=(),
    intrinsics_2=(),
    jumps={
        "JUMP_FORWARD": ("JUMP", 1),
        "JUMP_BACKWARD": ("JUMP", -1),
        "JUMP_BACKWARD_NO_INTERRUPT": ("JUMP_NO_INTERRUPT", -1),
        "JUMP_IF_TRUE_OR_POP": ("JUMP_IF_TRUE_OR_POP", 1),
        "JUMP_IF_FALSE_OR_POP": ("JUMP_IF_FALSE_OR_POP", 1),
        "FOR_ITER": ("FOR_ITER", 1),
        "SEND": ("SEND", 1),
        **_conditional_jumps(),
    },
    expansions=_EXPANSIONS,
    decoders={
        "PRECALL": _prefix,
        "KW_NAMES": r.decode_kw_names,
        "CALL": r.decode_call,
        "LOAD_GLOBAL": r.decode_null_load_global,
        "MAKE_FUNCTION": r.decode_make_function,
        "UNPACK_EX": r.decode_unpack_ex,
        "FORMAT_VALUE": r.decode_format_value,
        "LOAD_CLASSDEREF": _decode_classderef,
    },
    encoders={
        "JUMP": r.encode_jump,
        "JUMP_NO_INTERRUPT": r.encode_jump_no_interrupt,
        "JUMP_IF_TRUE_OR_POP": _encode_jump_or_pop,
        "JUMP_IF_FALSE_OR_POP": _encode_jump_or_pop,
        "POP_JUMP_IF_TRUE": _encode_condition,
        "POP_JUMP_IF_FALSE": _encode_condition,
        "POP_JUMP_IF_NONE": _encode_condition,
        "POP_JUMP_IF_NOT_NONE": _encode_condition,
        "FOR_ITER": _encode_for_iter,
        "SEND": _encode_send,
        "END_SEND": _encode_end_send,
        "YIELD_VALUE": _encode_yield,
        "CALL": _encode_call,
        "LOAD_FAST_CHECK": _load_fast,
        "LOAD_GLOBAL": r.encode_load_global,
        "MAKE_FUNCTION": r.encode_make_function,
        "UNPACK_EX": r.encode_unpack_ex,
        "CALL_INTRINSIC_1": _intrinsic(_VALUES),
        "CALL_INTRINSIC_2": _intrinsic(_PAIRS),
        "CONVERT_VALUE": r.encode_convert_value,
        "FORMAT_SIMPLE": r.encode_format_simple,
        "FORMAT_WITH_SPEC": r.encode_format_with_spec,
        "TO_BOOL": r.encode_to_bool,
    },
    fusions={
        ("PUSH_NULL", "LOAD_GLOBAL"): r.fuse_null_load_global,
        ("CALL_INTRINSIC_1", "POP_TOP"): _fuse_statement(_STATEMENTS),
        ("LOAD_LOCALS", "LOAD_FROM_DICT_OR_DEREF"): _fuse_classderef,
        ("CONVERT_VALUE", "FORMAT_SIMPLE"): r.fuse_format,
        ("SWAP", "CONVERT_VALUE", "SWAP", "FORMAT_WITH_SPEC"): r.fuse_format_with_spec,
    },
)
