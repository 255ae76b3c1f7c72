"""The instruction record every part of the compiler works on.

A listing is a plain ``list[Instruction]`` in layout order.  Jump targets and exception handlers
point at instruction *objects*, so instructions may be inserted, removed and moved freely; byte
offsets exist only in code objects.  What the operations mean is in ``canonical.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

#: (lineno, end_lineno, col_offset, end_col_offset) as given by ``code.co_positions()``.
Positions = tuple[int | None, int | None, int | None, int | None]


class BytecodeError(Exception):
    """A code object that cannot be decoded, or a listing that cannot be assembled."""


@dataclass(slots=True, eq=False)
class Handler:
    """An exception table entry: where control goes when a covered instruction raises.

    The stack is cut to ``depth`` items, then the offset of the raising instruction is pushed if
    ``lasti`` is set, then the exception.
    """

    target: Instruction
    depth: int
    lasti: bool = False

    def __repr__(self) -> str:
        return f"<Handler to {self.target.opname} depth={self.depth} lasti={self.lasti}>"


@dataclass(frozen=True, slots=True)
class CallArg:
    """Operand of CALL: ``nargs`` counts all arguments, the last ``len(kwnames)`` are keywords."""

    nargs: int
    kwnames: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Instruction:
    """One canonical instruction; compared by identity.

    ``handler`` is the innermost exception table entry that covers the instruction, ``offset`` the
    byte offset in the code object it was decoded from (what ``frame.f_lasti`` shows while it runs;
    -1 for instructions that were made), ``origin`` the decoded instruction it is a copy of.
    """

    opname: str
    arg: Any = None
    target: Instruction | None = None
    positions: Positions | None = None
    handler: Handler | None = None
    offset: int = -1
    origin: Instruction | None = None

    @property
    def lineno(self) -> int | None:
        return self.positions[0] if self.positions is not None else None

    def __repr__(self) -> str:
        parts = [self.opname]
        if self.arg is not None or self.opname == "LOAD_CONST":
            parts.append(_arg_text(self.arg))
        if self.target is not None:
            parts.append(f"-> {self.target.opname}@{self.target.offset}")
        return f"<{' '.join(parts)} @{self.offset}>"


def same_handler(left: Handler | None, right: Handler | None) -> bool:
    """Whether two exception table entries mean the same."""
    if left is right:
        return True
    if left is None or right is None:
        return False
    return (
        left.target is right.target and left.depth == right.depth and left.lasti == right.lasti
    )


def copy_instructions(instructions: Sequence[Instruction]) -> list[Instruction]:
    """A deep copy: targets and handlers point into the copy, ``origin`` at the first original.

    Every target must lie in ``instructions`` (copy a whole listing, then remove what is not
    wanted); raises BytecodeError otherwise.  Operands are shared, not copied.
    """
    copies = [
        Instruction(i.opname, i.arg, None, i.positions, None, i.offset, i.origin or i)
        for i in instructions
    ]
    mapped = dict(zip(instructions, copies, strict=True))
    handlers: dict[Handler, Handler] = {}
    try:
        for source, copy in zip(instructions, copies, strict=True):
            if source.target is not None:
                copy.target = mapped[source.target]
            if (old := source.handler) is not None:
                if old not in handlers:
                    handlers[old] = Handler(mapped[old.target], old.depth, old.lasti)
                copy.handler = handlers[old]
    except KeyError as error:
        raise BytecodeError(
            f"target outside of the copied listing: {error.args[0]!r}"
        ) from None
    return copies


def dump(instructions: Iterable[Instruction]) -> str:
    """The listing as text, one line an instruction, jump targets marked ``>>`` with an index."""
    listing = list(instructions)
    index = {inst: i for i, inst in enumerate(listing)}
    targets = {inst.target for inst in listing if inst.target is not None}
    targets.update(inst.handler.target for inst in listing if inst.handler is not None)
    lines = []
    previous: int | None = None
    for i, inst in enumerate(listing):
        line = inst.lineno
        shown = "" if line is None or line == previous else str(line)
        previous = line if line is not None else previous
        text = f"{shown:>5} {'>>' if inst in targets else '  '} {i:>4} {inst.opname:<22}"
        if inst.arg is not None or inst.opname == "LOAD_CONST":
            text += f" {_arg_text(inst.arg)}"
        if inst.target is not None:
            text += f" to {index.get(inst.target, '?')}"
        if inst.handler is not None:
            text += (
                f"  [except {index.get(inst.handler.target, '?')} depth {inst.handler.depth}]"
            )
        lines.append(text.rstrip())
    return "\n".join(lines)


def _arg_text(arg: Any) -> str:
    """A short text for an operand that never runs code of user classes."""
    if isinstance(arg, CallArg):
        return f"{arg.nargs} {arg.kwnames}" if arg.kwnames else str(arg.nargs)
    if arg is None or type(arg) in (str, int, bool, float):
        return repr(arg)
    if type(arg) is tuple:
        return f"({', '.join(map(_arg_text, arg))})"
    name = getattr(arg, "co_name", "") if type(arg).__name__ == "code" else ""
    return f"<{type(arg).__name__}{' ' if name else ''}{name}>"
