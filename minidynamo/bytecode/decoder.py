"""The pass from raw to canonical instructions, driven by a dialect's rules."""

from __future__ import annotations

from types import CodeType
from typing import Any

from .canonical import CONVERSIONS, OPERATORS
from .dialect import Dialect
from .instruction import BytecodeError, Handler, Instruction, Positions
from .tables import exception_entries

_NONES = (None,) * 256
_NUMBERS = range(1 << 31)
_FLAGS = (False, True)
_CONVERSIONS = (None, *CONVERSIONS)


class Decoder:
    """One decoding; the decode rules of the dialects call ``emit``, ``jump`` and the like."""

    def __init__(
        self,
        code: CodeType,
        dialect: Dialect,
    ) -> None:
        self.code = code
        self.dialect = dialect
        cells, free = code.co_cellvars, code.co_freevars
        varnames = code.co_varnames
        #: Names of all slots: locals, cells that are no locals, free variables.
        self.slots: tuple[str, ...] = varnames
        #: Slots that hold cells.
        self.cell_slots: set[int] = set()
        if cells or free:
            both = set(cells).intersection(free)
            if both:
                raise BytecodeError(
                    f"{both} both cell and free variables of {code.co_qualname}"
                )
            self.slots += tuple(name for name in cells if name not in varnames) + free
            self.cell_slots.update(i for i, name in enumerate(varnames) if name in cells)
            self.cell_slots.update(range(len(varnames), len(self.slots)))
        #: Keyword names waiting for their CALL.
        self.kwnames: tuple[str, ...] = ()
        self._positions: list[Positions] = list(code.co_positions())
        self._out: list[Instruction] = []
        self._at: dict[int, int] = {}  # code unit -> index of what it was decoded to
        self._start = 0  # code unit where the instruction being read starts, prefixes included
        self._jumps: list[tuple[Instruction, int]] = []
        self._end_for: list[int] = []

    def run(self) -> list[Instruction]:
        self._read()
        self._resolve_jumps()
        self._resolve_handlers()
        if self._end_for:
            self._drop_end_for()
        if not self.dialect.end_send:
            self._add_end_send()
        return self._out

    def _read(self) -> None:
        code = self.code
        positions, at, out = self._positions, self._at, self._out
        rules = self.dialect.cell_rules if self.cell_slots else self.dialect.rules
        tables: tuple[Any, ...] = (
            _NONES,
            _NUMBERS,
            code.co_consts,
            code.co_names,
            self.slots,
            self.slots,
            OPERATORS,
            self.dialect.comparison_table,
            _FLAGS,
            self.dialect.intrinsics_1,
            self.dialect.intrinsics_2,
            _CONVERSIONS,
        )
        raw = code.co_code
        extended = 0
        start = -1
        for unit, (opcode, oparg) in enumerate(zip(raw[::2], raw[1::2], strict=True)):
            if not opcode:  # an inline cache entry: always zero in co_code
                continue
            rule = rules[opcode]
            if extended:
                oparg |= extended
                extended = 0
            if rule.__class__ is tuple:
                name, table = rule  # type: ignore[misc]
                at[unit if start < 0 else start] = len(out)
                out.append(
                    Instruction(
                        name, tables[table][oparg], None, positions[unit], None, unit * 2
                    )
                )
                start = -1
                continue
            if start < 0:
                start = unit
            if rule is None:
                extended = oparg << 8
                continue
            self._start = start
            if not rule(self, unit, oparg):  # type: ignore[operator]
                start = -1

    def emit(
        self,
        unit: int,
        opname: str,
        arg: Any = None,
    ) -> Instruction:
        """Append a canonical instruction for the raw one at ``unit``."""
        out = self._out
        self._at.setdefault(self._start, len(out))
        inst = Instruction(opname, arg, None, self._positions[unit], None, unit * 2)
        out.append(inst)
        return inst

    def jump(
        self,
        unit: int,
        opname: str,
        target: int,
    ) -> None:
        """Append a jump to the raw instruction that starts at ``target``."""
        self._jumps.append((self.emit(unit, opname), target))

    def last(self, opname: str) -> Instruction | None:
        """The instruction emitted last, if it is an ``opname``."""
        last = self._out[-1] if self._out else None
        return last if last is not None and last.opname == opname else None

    def take_last(self, opname: str) -> Instruction | None:
        """Remove the last instruction if it is an ``opname``; what follows takes its place."""
        last = self.last(opname)
        if last is not None:
            self._out.pop()
        return last

    def end_for(self, unit: int) -> None:
        """The end of a loop, where FOR_ITER continues behind; dropped once jumps are resolved."""
        self._end_for.append(len(self._out))
        self.emit(unit, "END_FOR")

    def fail(self, unit: int) -> None:
        opcode = self.code.co_code[unit * 2]
        raise BytecodeError(f"opcode {opcode} at {unit * 2} of {self.code.co_qualname}")

    def _instruction_at(self, unit: int) -> Instruction:
        index = self._at.get(unit)
        if index is None or index >= len(self._out):
            raise BytecodeError(f"jump into an instruction at {unit * 2} of {self.code!r}")
        return self._out[index]

    def _resolve_jumps(self) -> None:
        for inst, unit in self._jumps:
            inst.target = self._instruction_at(unit)

    def _resolve_handlers(self) -> None:
        table = self.code.co_exceptiontable
        if not table:
            return
        entries = iter(exception_entries(table))
        entry = next(entries, None)
        handler: Handler | None = None
        for inst in self._out:
            unit = inst.offset >> 1
            while entry is not None and entry[1] <= unit:
                entry, handler = next(entries, None), None
            if entry is None:
                return
            if entry[0] <= unit:
                if handler is None:
                    handler = Handler(self._instruction_at(entry[2]), entry[3], entry[4])
                inst.handler = handler

    def _drop_end_for(self) -> None:
        """Without END_FOR and the POP_TOP that belongs to it, which nothing else jumps to."""
        out, size = self._out, len(self.dialect.end_for)
        dropped = set()
        for index in self._end_for:
            row = out[index : index + size]
            if tuple(inst.opname for inst in row) != self.dialect.end_for:
                raise BytecodeError(f"unusual end of a loop in {self.code!r}")
            dropped.update(row)
        for inst in out:
            handler = inst.handler
            if inst.target in dropped or (handler is not None and handler.target in dropped):
                raise BytecodeError(f"jump to the end of a loop in {self.code!r}")
        self._out = [inst for inst in out if inst not in dropped]

    def _add_end_send(self) -> None:
        """3.11's SEND drops the receiver when it jumps: give it an END_SEND to jump to."""
        sends = [inst for inst, _ in self._jumps if inst.opname == "SEND"]
        for send in sends:
            target = send.target
            assert target is not None
            out = self._out
            index = out.index(target)
            end = Instruction(
                "END_SEND", None, None, send.positions, send.handler, target.offset
            )
            send.target = end
            before = out[index - 1]
            if before.opname == "JUMP_NO_INTERRUPT":
                out.insert(index, end)
            else:
                back = Instruction(
                    "JUMP", None, target, send.positions, send.handler, target.offset
                )
                out += [end, back]
