"""CPython 3.12; see ``dialect.py``."""

from __future__ import annotations

from typing import Any

from . import rules as r
from .dialect import DecodeRule, Dialect, EncodeRule, Fusion
from .emitter import Emitter
from .instruction import Instruction

#: COMPARE_OP carries in its low bits what makes it true: unordered 1, less 2, greater 4, equal 8.
OUTCOMES = {"<": 2, "<=": 2 | 8, "==": 8, "!=": 1 | 2 | 4, ">": 4, ">=": 4 | 8}

INTRINSICS_1 = (
    "1_INVALID",
    "PRINT",
    "IMPORT_STAR",
    "STOPITERATION_ERROR",
    "ASYNC_GEN_WRAP",
    "UNARY_POSITIVE",
    "LIST_TO_TUPLE",
    "TYPEVAR",
    "PARAMSPEC",
    "TYPEVARTUPLE",
    "SUBSCRIPT_GENERIC",
    "TYPEALIAS",
)
INTRINSICS_2 = (
    "2_INVALID",
    "PREP_RERAISE_STAR",
    "TYPEVAR_WITH_BOUND",
    "TYPEVAR_WITH_CONSTRAINTS",
    "SET_FUNCTION_TYPE_PARAMS",
)

#: Slices are built as objects in the canonical set.
EXPANSIONS: dict[str, list[tuple[str, Any]]] = {
    "BINARY_SLICE": [("BUILD_SLICE", 2), ("BINARY_SUBSCR", None)],
    "STORE_SLICE": [("BUILD_SLICE", 2), ("STORE_SUBSCR", None)],
}

JUMPS = {
    "JUMP_FORWARD": ("JUMP", 1),
    "JUMP_BACKWARD": ("JUMP", -1),
    "JUMP_BACKWARD_NO_INTERRUPT": ("JUMP_NO_INTERRUPT", -1),
    "POP_JUMP_IF_TRUE": ("POP_JUMP_IF_TRUE", 1),
    "POP_JUMP_IF_FALSE": ("POP_JUMP_IF_FALSE", 1),
    "POP_JUMP_IF_NONE": ("POP_JUMP_IF_NONE", 1),
    "POP_JUMP_IF_NOT_NONE": ("POP_JUMP_IF_NOT_NONE", 1),
    "FOR_ITER": ("FOR_ITER", 1),
    "SEND": ("SEND", 1),
}

DECODERS: dict[str, DecodeRule] = {
    "LOAD_ATTR": r.decode_load_attr,
    "LOAD_SUPER_ATTR": r.decode_load_super_attr,
    "CALL": r.decode_call,
    "UNPACK_EX": r.decode_unpack_ex,
    "RETURN_CONST": r.decode_return_const,
    "END_FOR": r.decode_end_for,
}

ENCODERS: dict[str, EncodeRule] = {
    "JUMP": r.encode_jump,
    "JUMP_NO_INTERRUPT": r.encode_jump_no_interrupt,
    "JUMP_IF_TRUE_OR_POP": r.encode_jump_or_pop,
    "JUMP_IF_FALSE_OR_POP": r.encode_jump_or_pop,
    "POP_JUMP_IF_TRUE": r.encode_forward_condition,
    "POP_JUMP_IF_FALSE": r.encode_forward_condition,
    "POP_JUMP_IF_NONE": r.encode_forward_condition,
    "POP_JUMP_IF_NOT_NONE": r.encode_forward_condition,
    "FOR_ITER": r.encode_for_iter,
    "SEND": r.encode_send,
    "LOAD_ATTR": r.encode_load_attr,
    "LOAD_METHOD": r.encode_load_method,
    "LOAD_SUPER_ATTR": r.encode_load_super_attr,
    "LOAD_GLOBAL": r.encode_load_global,
    "UNPACK_EX": r.encode_unpack_ex,
}

FUSIONS: dict[tuple[str, ...], Fusion] = {
    ("LOAD_CONST", "RETURN_VALUE"): r.fuse_return_const,
    ("BUILD_SLICE", "BINARY_SUBSCR"): r.fuse_slice("BINARY_SLICE"),
    ("BUILD_SLICE", "STORE_SUBSCR"): r.fuse_slice("STORE_SLICE"),
}


def _encode_call(emitter: Emitter, inst: Instruction) -> None:
    if inst.arg.kwnames:
        emitter.put("KW_NAMES", emitter.const(inst.arg.kwnames), inst)
    emitter.put("CALL", inst.arg.nargs, inst)


DIALECT = Dialect(
    version=(3, 12),
    null_first=True,
    exact_bool=False,
    unchecked_fast=True,
    end_for=("END_FOR",),
    end_send=True,
    one_locals_dict=True,
    early_lookup=(),
    comparisons=tuple(i << 4 | mask for i, mask in enumerate(OUTCOMES.values())),
    intrinsics_1=INTRINSICS_1,
    intrinsics_2=INTRINSICS_2,
    jumps=JUMPS,
    expansions=EXPANSIONS,
    decoders={
        **DECODERS,
        "LOAD_GLOBAL": r.decode_null_load_global,
        "KW_NAMES": r.decode_kw_names,
        "MAKE_FUNCTION": r.decode_make_function,
        "FORMAT_VALUE": r.decode_format_value,
    },
    encoders={
        **ENCODERS,
        "CALL": _encode_call,
        "MAKE_FUNCTION": r.encode_make_function,
        "CONVERT_VALUE": r.encode_convert_value,
        "FORMAT_SIMPLE": r.encode_format_simple,
        "FORMAT_WITH_SPEC": r.encode_format_with_spec,
        "TO_BOOL": r.encode_to_bool,
    },
    fusions={
        **FUSIONS,
        ("PUSH_NULL", "LOAD_GLOBAL"): r.fuse_null_load_global,
        ("CONVERT_VALUE", "FORMAT_SIMPLE"): r.fuse_format,
        ("SWAP", "CONVERT_VALUE", "SWAP", "FORMAT_WITH_SPEC"): r.fuse_format_with_spec,
    },
)
