"""What a CPython version's bytecode looks like: the tables that ``py3xx.py`` fill in.

A Dialect maps the version's operations ("raw" here) to canonical ones and back.  Most are one to
one with the same operand and need no row; the others are rows of data (jumps, expansions, fusions)
or small functions.  Opcode numbers and inline cache sizes come from the running interpreter's
``opcode`` module through ``bind``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .canonical import (
    COMPARISON,
    COMPARISONS,
    CONST,
    CONVERSION,
    DEREF,
    FAST,
    FLAG,
    INT,
    INTRINSIC_1,
    INTRINSIC_2,
    NAME,
    NONE,
    OPERATOR,
    OPS,
)
from .instruction import Instruction

#: Operand kinds that decode by indexing a table; the order is that of ``Decoder.tables``.
TABLES = (
    NONE,
    INT,
    CONST,
    NAME,
    FAST,
    DEREF,
    OPERATOR,
    COMPARISON,
    FLAG,
    INTRINSIC_1,
    INTRINSIC_2,
    CONVERSION,
)

#: (decoder, code unit, operand): reads one raw instruction; true when that is only a prefix of the
#: next one.  Decoder and Emitter are classes of the modules above this one.
DecodeRule = Callable[[Any, int, int], "bool | None"]
#: (canonical name, index in TABLES), or a function, or None for EXTENDED_ARG.
Rule = tuple[str, int] | DecodeRule | None
EncodeRule = Callable[[Any, Instruction], None]
#: Writes several adjacent instructions as one; false when their operands do not allow it.
Fusion = Callable[[Any, Sequence[Instruction]], bool]


@dataclass
class Dialect:
    """One CPython version.  See the fields; ``bind`` completes it on the interpreter that runs."""

    version: tuple[int, int]
    #: PUSH_NULL goes below the callable (3.11, 3.12) or above it (3.13).
    null_first: bool
    #: POP_JUMP_IF_TRUE/FALSE and UNARY_NOT need an exact bool.
    exact_bool: bool
    #: LOAD_FAST of an unbound local is undefined behaviour; LOAD_FAST_CHECK exists.
    unchecked_fast: bool
    #: What has to stand where a FOR_ITER jumps to, skipped when the iterator is exhausted.
    end_for: tuple[str, ...]
    #: SEND leaves the receiver on the stack when it jumps, for an END_SEND.
    end_send: bool
    #: locals() gives a function the same dict each time, brought up to date.
    one_locals_dict: bool
    #: Raw instructions that may run a Python function in the same interpreter loop, on a version
    #: that looks for the handler of its exceptions one code unit before the instruction: that has
    #: to be covered alike.
    early_lookup: tuple[str, ...]
    #: Raw COMPARE_OP operands of COMPARISONS.
    comparisons: tuple[int, ...]
    #: Names by number, without prefix.
    intrinsics_1: tuple[str, ...]
    intrinsics_2: tuple[str, ...]
    #: raw name -> (canonical name, +1 forwards or -1 backwards).
    jumps: Mapping[str, tuple[str, int]]
    #: raw name without operand -> the canonical instructions it stands for.
    expansions: Mapping[str, Sequence[tuple[str, Any]]]
    #: raw name -> function, for the rest.
    decoders: Mapping[str, DecodeRule]
    #: canonical name -> function, where the raw name or the operand differs.
    encoders: Mapping[str, EncodeRule]
    #: canonical names in a row -> function that writes them as one raw instruction.
    fusions: Mapping[tuple[str, ...], Fusion]
    #: LOAD_FAST also loads cells: how to decode the local loads of code that has some.
    cell_decoders: Mapping[str, DecodeRule] = field(default_factory=dict)

    # Set by bind().
    opmap: Mapping[str, int] = field(default_factory=dict)
    caches: Sequence[int] = ()
    early: frozenset[int] = frozenset()
    rules: Sequence[Rule] = ()
    cell_rules: Sequence[Rule] = ()
    encode: Mapping[str, tuple[int, str] | EncodeRule] = field(default_factory=dict)
    fusions_at: Mapping[str, Sequence[tuple[tuple[str, ...], Fusion]]] = field(
        default_factory=dict
    )
    comparison_table: Sequence[str] = ()

    def bind(
        self,
        opmap: Mapping[str, int],
        caches: Sequence[int],
    ) -> Dialect:
        """Fill in opcode numbers and inline cache sizes (in code units, by opcode)."""
        self.opmap = opmap
        self.caches = caches
        self.early = frozenset(opmap[raw] for raw in self.early_lookup)
        rules: list[Rule] = [_unknown] * 256
        for raw, number in opmap.items():
            if number < 256:
                rules[number] = self._decode_rule(raw, caches[number])
        self.rules = tuple(rules)
        for raw, rule in self.cell_decoders.items():
            rules[opmap[raw]] = rule
        self.cell_rules = tuple(rules)
        found = {name: self._encode_rule(name) for name in OPS}
        self.encode = {name: encode for name, encode in found.items() if encode is not None}
        at: dict[str, list[tuple[tuple[str, ...], Fusion]]] = {}
        for names, fuse in self.fusions.items():
            at.setdefault(names[0], []).append((names, fuse))
        self.fusions_at = at
        table = ["?"] * 256
        for comparison, number in zip(COMPARISONS, self.comparisons, strict=True):
            table[number] = comparison
        self.comparison_table = tuple(table)
        return self

    def _decode_rule(
        self,
        raw: str,
        caches: int,
    ) -> Rule:
        if raw in self.decoders:
            return self.decoders[raw]
        if raw in self.jumps:
            name, sign = self.jumps[raw]
            skipped = len(self.end_for) if name == "FOR_ITER" else 0
            return _decode_jump(name, sign, 1 + caches + skipped)
        if raw in self.expansions:
            return _decode_expansion(self.expansions[raw])
        if raw == "EXTENDED_ARG":
            return None
        if raw in OPS and OPS[raw].operand in TABLES:
            return raw, TABLES.index(OPS[raw].operand)
        return _unknown

    def _encode_rule(self, name: str) -> tuple[int, str] | EncodeRule | None:
        if name in self.encoders:
            return self.encoders[name]
        if name in self.opmap and name not in self.expansions:
            return self.opmap[name], OPS[name].operand
        return None


def _unknown(
    decoder: Any,
    unit: int,
    oparg: int,
) -> None:
    decoder.fail(unit)


def _decode_jump(
    name: str,
    sign: int,
    base: int,
) -> DecodeRule:
    def decode(
        decoder: Any,
        unit: int,
        oparg: int,
    ) -> None:
        decoder.jump(unit, name, unit + base + sign * oparg)

    return decode


def _decode_expansion(expansion: Sequence[tuple[str, Any]]) -> DecodeRule:
    def decode(
        decoder: Any,
        unit: int,
        oparg: int,
    ) -> None:
        for name, arg in expansion:
            decoder.emit(unit, name, arg)

    return decode
