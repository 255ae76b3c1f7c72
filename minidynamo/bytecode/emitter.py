"""The pass from canonical to raw instructions: operands, labels, jump sizes, side tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NoReturn

from .canonical import (
    COMPARISON,
    COMPARISONS,
    CONST,
    CONVERSION,
    CONVERSIONS,
    DEREF,
    FAST,
    FLAG,
    INT,
    INTRINSIC_1,
    INTRINSIC_2,
    NAME,
    NONE,
    OPERATOR,
    OPERATORS,
    OPS,
)
from .dialect import Dialect
from .instruction import BytecodeError, Handler, Instruction, Positions, same_handler
from .tables import Entry, exception_table, location_table


class Emitter:
    """One emission; the encode rules of the dialects call ``put``, ``put_jump`` and the like.

    Labels are any objects: an Instruction stands for its own position, other places get a fresh
    ``object()``.
    """

    def __init__(
        self,
        dialect: Dialect,
        instructions: Sequence[Instruction],
        local_slots: Mapping[str, int],
        deref_slots: Mapping[str, int],
        consts: Sequence[Any] = (),
        unproven: Set[Instruction] = frozenset(),
    ) -> None:
        self.dialect = dialect
        self.consts: list[Any] = list(consts)
        self.names: dict[str, int] = {}
        self.needed: dict[Instruction, int] = {}
        self._const_index = {id(value): i for i, value in enumerate(self.consts)}
        self._local_slots = local_slots
        self._deref_slots = deref_slots
        self._instructions = instructions
        self._unproven = unproven  # LOAD_FASTs that have to be checked
        self._index = {inst: i for i, inst in enumerate(instructions)}
        self._current = 0
        self._targets: set[Instruction] = set()
        for inst in instructions:
            if inst.target is not None:
                self._targets.add(inst.target)
            if inst.handler is not None:
                self._targets.add(inst.handler.target)
        self._labels: dict[object, int] = {}
        self._raw: list[tuple[int, int, object, Instruction]] = []
        self._pads: dict[Instruction, tuple[object, Instruction]] = {}
        self._after: dict[Instruction, object] = {}
        self._trampolines: list[tuple[object, Sequence[str], object, Instruction]] = []
        self._operands: dict[str, Callable[[Any], int]] = {
            NONE: lambda arg: 0,
            INT: lambda arg: arg,
            CONST: self.const,
            NAME: self.name,
            FAST: self.local,
            DEREF: self.deref,
            OPERATOR: OPERATORS.index,
            COMPARISON: lambda arg: dialect.comparisons[COMPARISONS.index(arg)],
            FLAG: int,
            INTRINSIC_1: dialect.intrinsics_1.index,
            INTRINSIC_2: dialect.intrinsics_2.index,
            CONVERSION: lambda arg: CONVERSIONS.index(arg) + 1,
        }

    # What encode rules use.

    def put(
        self,
        raw: str,
        oparg: int,
        inst: Instruction,
    ) -> None:
        """Append a raw instruction with the positions and the handler of ``inst``."""
        self._append(self.dialect.opmap[raw], oparg, None, inst)

    def put_jump(
        self,
        raw: str,
        label: object,
        inst: Instruction,
    ) -> None:
        """Append a raw jump to ``label``."""
        self._append(self.dialect.opmap[raw], 0, label, inst)

    def _append(
        self,
        opcode: int,
        oparg: int,
        label: object,
        inst: Instruction,
    ) -> None:
        raw = self._raw
        if opcode in self.dialect.early and not same_handler(raw[-1][3].handler, inst.handler):
            raw.append((self.dialect.opmap["NOP"], 0, None, inst))
        raw.append((opcode, oparg, label, inst))

    def need(
        self,
        items: int,
        inst: Instruction,
    ) -> None:
        """What is put for ``inst`` uses that many stack items above the height in front of it."""
        self.needed[inst] = items

    def label(self, label: object) -> None:
        """Put ``label`` in front of the next raw instruction."""
        self._labels[label] = len(self._raw)

    def encode(self, inst: Instruction) -> None:
        """Append what stands for ``inst``, by the dialect's rule."""
        opname = "LOAD_FAST_CHECK" if inst in self._unproven else inst.opname
        rule = self.dialect.encode.get(opname) or self.fail(inst)
        if isinstance(rule, tuple):
            opcode, operand = rule
            self._append(opcode, self._operands[operand](inst.arg), None, inst)
        else:
            rule(self, inst)

    def is_forward(self, inst: Instruction) -> bool:
        """Whether the jump being encoded goes forwards."""
        if inst.target not in self._index:
            raise BytecodeError(f"target of {inst!r} is not in the listing")
        return self._index[inst.target] > self._current

    def follower(self) -> Instruction | None:
        """The instruction after the one being encoded."""
        after = self._current + 1
        return self._instructions[after] if after < len(self._instructions) else None

    def only_reached_by(
        self,
        opname: str,
        inst: Instruction,
    ) -> bool:
        """Whether ``inst`` is reached by jumps of ``opname`` instructions and in no other way."""
        index = self._index[inst]
        if index and not OPS[self._instructions[index - 1].opname].ends:
            return False
        return all(
            (other.target is not inst or other.opname == opname)
            and (other.handler is None or other.handler.target is not inst)
            for other in self._instructions
        )

    def after(self, inst: Instruction) -> object:
        """The label behind ``inst``; the rule of ``inst`` has to place it."""
        return self._after.setdefault(inst, object())

    def trampoline(
        self, raws: Sequence[str], inst: Instruction, target: object = None
    ) -> object:
        """The label of a block at the end of the code: ``raws``, then a jump to the target."""
        label = object()
        self._trampolines.append((label, raws, target or inst.target, inst))
        return label

    def loop_end(self, inst: Instruction) -> object:
        """Where the FOR_ITER being encoded jumps to: the version's end of a loop.

        It goes in front of the target if nothing falls through into that, else in a trampoline.
        """
        target = inst.target
        if self.is_forward(inst):
            assert target is not None
            before = self._instructions[self._index[target] - 1]
            if OPS[before.opname].ends:
                return self._pads.setdefault(target, (object(), inst))[0]
        return self.trampoline(self.dialect.end_for, inst)

    def const(self, value: Any) -> int:
        """Index of the constant, by identity."""
        index = self._const_index.get(id(value))
        if index is None:
            index = self._const_index[id(value)] = len(self.consts)
            self.consts.append(value)
        return index

    def name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def local(self, name: str) -> int:
        return self._local_slots[name]

    def deref(self, name: str) -> int:
        if name not in self._deref_slots:
            raise BytecodeError(f"{name!r} is neither a cell nor a free variable")
        return self._deref_slots[name]

    def fail(self, inst: Instruction) -> NoReturn:
        version = ".".join(map(str, self.dialect.version))
        raise BytecodeError(f"{inst!r} cannot be expressed on {version}")

    # The passes.

    def emit(self) -> None:
        """Encode everything; afterwards ``code`` and the tables can be asked for."""
        skip = 0
        fusions_at = self.dialect.fusions_at
        for i, inst in enumerate(self._instructions):
            if skip:
                skip -= 1
                continue
            self._current = i
            if inst in self._pads:
                self._place_pad(inst)
            self._labels[inst] = len(self._raw)
            if inst.opname in fusions_at:
                skip = self._fuse(i, inst)
                if skip:
                    continue
            self.encode(inst)
        last = self._instructions[-1] if self._instructions else None
        if last is None or not OPS[last.opname].ends:
            raise BytecodeError(f"control runs off the end after {last!r}")
        for label, raws, target, inst in self._trampolines:
            self.label(label)
            for raw in raws:
                self.put(raw, 0, inst)
            self.put_jump("JUMP_BACKWARD_NO_INTERRUPT", target, inst)
        self._place_jumps()

    def _place_pad(self, inst: Instruction) -> None:
        label, for_iter = self._pads[inst]
        self.label(label)
        for raw in self.dialect.end_for:
            self.put(raw, 0, for_iter)

    def _fuse(
        self,
        i: int,
        first: Instruction,
    ) -> int:
        """Encode a row of instructions as one; the number of instructions to skip after this."""
        for names, fuse in self.dialect.fusions_at[first.opname]:
            row = self._instructions[i : i + len(names)]
            if (
                tuple(inst.opname for inst in row) == names
                and all(self._joins(first, inst) for inst in row[1:])
                and self._unproven.isdisjoint(row)
                and fuse(self, row)
            ):
                return len(names) - 1
        return 0

    def _joins(
        self,
        first: Instruction,
        inst: Instruction,
    ) -> bool:
        """Whether ``inst`` is only reached through ``first`` and shares its side tables."""
        return (
            inst not in self._targets
            and inst.positions == first.positions
            and same_handler(inst.handler, first.handler)
        )

    def _place_jumps(self) -> None:
        """Sizes, offsets and jump operands; sizes only grow until all operands fit."""
        caches, raw = self.dialect.caches, self._raw
        opnames = {number: name for name, number in self.dialect.opmap.items()}
        args = [entry[1] for entry in raw]
        prefixes = [_prefixes(arg) for arg in args]
        jumps: list[tuple[int, int, bool]] = []
        for i, (opcode, _, label, inst) in enumerate(raw):
            if label is not None:
                if label not in self._labels:
                    raise BytecodeError(f"target of {inst!r} is not in the listing")
                jumps.append((i, self._labels[label], "BACKWARD" in opnames[opcode]))
        while True:
            offsets = [0]
            offset = 0
            for entry, count in zip(raw, prefixes, strict=True):
                offset += 1 + count + caches[entry[0]]
                offsets.append(offset)
            grown = False
            for i, target, backward in jumps:
                distance = offsets[target] - offsets[i + 1]
                args[i] = distance = -distance if backward else distance
                assert distance >= 0, raw[i]
                if _prefixes(distance) > prefixes[i]:
                    prefixes[i] = _prefixes(distance)
                    grown = True
            if not grown:
                break
        self._args, self._prefixes, self._offsets = args, prefixes, offsets

    def code(self) -> bytes:
        out = bytearray()
        extended = self.dialect.opmap["EXTENDED_ARG"]
        caches = self.dialect.caches
        for entry, arg, prefixes in zip(self._raw, self._args, self._prefixes, strict=True):
            opcode = entry[0]
            for shift in range(prefixes * 8, 0, -8):
                out += bytes((extended, arg >> shift & 255))
            out += bytes((opcode, arg & 255))
            if caches[opcode]:
                out += bytes(2 * caches[opcode])
        return bytes(out)

    def location_table(self, first_line: int) -> bytes:
        runs: list[tuple[Positions | None, int]] = []
        current: Positions | None = None
        units = 0
        offsets = self._offsets
        for i, entry in enumerate(self._raw):
            positions = entry[3].positions
            size = offsets[i + 1] - offsets[i]
            if positions is current or positions == current:
                units += size
            else:
                runs.append((current, units))
                current, units = positions, size
        runs.append((current, units))
        return location_table(runs, first_line)

    def exception_table(self) -> bytes:
        entries: list[Entry] = []
        current: Handler | None = None
        start = 0
        for i, entry in enumerate([*self._raw, None]):
            handler = entry[3].handler if entry is not None else None
            if same_handler(handler, current):
                continue
            here = self._offsets[i]
            if current is not None:
                if current.target not in self._labels:
                    raise BytecodeError(f"target of {current!r} is not in the listing")
                target = self._offsets[self._labels[current.target]]
                entries.append((start, here, target, current.depth, current.lasti))
            current, start = handler, here
        return exception_table(entries)


def _prefixes(arg: int) -> int:
    """How many EXTENDED_ARGs the operand needs."""
    return (arg > 0xFF) + (arg > 0xFFFF) + (arg > 0xFFFFFF)
