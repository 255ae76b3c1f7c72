"""Canonical listings to code objects."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType

from .analysis import stack_depths, unproven_loads
from .canonical import FAST, OPS
from .current import dialect
from .emitter import Emitter
from .instruction import BytecodeError, Instruction


def assemble(
    instructions: Sequence[Instruction],
    template: CodeType,
    *,
    argcount: int | None = None,
    posonlyargcount: int | None = None,
    kwonlyargcount: int | None = None,
    flags: int | None = None,
    varnames: Sequence[str] | None = None,
    cellvars: Sequence[str] | None = None,
    freevars: Sequence[str] | None = None,
    name: str | None = None,
    qualname: str | None = None,
    filename: str | None = None,
    firstlineno: int | None = None,
    bound: Iterable[str] = (),
) -> CodeType:
    """A code object that runs ``instructions``; what is not given is as in ``template``.

    ``varnames`` are the names of the local slots, arguments first (positional, keyword-only,
    ``*args``, ``**kwargs``); locals that instructions use but it does not name get slots after
    them.  A cell variable that is also in ``varnames`` shares that slot.  The listing has to do
    its own prologue (``current.emit_prologue``); without a RESUME CPython takes the frame for one
    that never started.

    Constants are kept by identity and never compared or hashed (CPython itself interns strings
    that look like identifiers).  The first constant stays the template's, since functions take
    their docstring from it.  Stack size and exception table are computed; instructions without
    positions get none.  Where unbound locals are not checked for by LOAD_FAST (3.12 on), loads
    that cannot be proven safe from the arguments and ``bound`` (slots somebody fills before the
    code starts) are checked.

    Raises BytecodeError if the listing is not consistent or not expressible on this version.
    """
    counts = (
        template.co_argcount if argcount is None else argcount,
        template.co_posonlyargcount if posonlyargcount is None else posonlyargcount,
        template.co_kwonlyargcount if kwonlyargcount is None else kwonlyargcount,
    )
    flags = template.co_flags if flags is None else flags
    cells = template.co_cellvars if cellvars is None else tuple(cellvars)
    free = template.co_freevars if freevars is None else tuple(freevars)
    if set(cells).intersection(free):
        raise BytecodeError("a name is both a cell and a free variable")
    given = template.co_varnames if varnames is None else varnames
    names = _local_names(instructions, given, cells)
    arguments = names[: argument_count(counts[0], counts[2], flags)]
    unproven: set[Instruction] = set()
    if dialect.unchecked_fast:
        found = unproven_loads(instructions, [*arguments, *bound])
        unproven.update(instructions[i] for i in found)
    emitter = Emitter(
        dialect,
        instructions,
        *_slots(names, cells, free),
        consts=template.co_consts[:1],
        unproven=unproven,
    )
    emitter.emit()
    line = template.co_firstlineno if firstlineno is None else firstlineno
    return CodeType(
        *counts,
        len(names),
        _stack_size(instructions, emitter.needed),
        flags,
        emitter.code(),
        tuple(emitter.consts),
        tuple(emitter.names),
        names,
        template.co_filename if filename is None else filename,
        template.co_name if name is None else name,
        template.co_qualname if qualname is None else qualname,
        line,
        emitter.location_table(line),
        emitter.exception_table(),
        free,
        cells,
    )


def argument_count(argcount: int, kwonlyargcount: int, flags: int) -> int:
    """How many of the first local slots are arguments, ``*args`` and ``**kwargs`` included."""
    has_varargs = bool(flags & inspect.CO_VARARGS)
    has_varkeywords = bool(flags & inspect.CO_VARKEYWORDS)
    return argcount + kwonlyargcount + has_varargs + has_varkeywords


def _local_names(
    instructions: Sequence[Instruction], given: Sequence[str], cells: Sequence[str]
) -> tuple[str, ...]:
    names = dict.fromkeys(given)
    if len(names) != len(given):
        raise BytecodeError(f"a name occurs twice in {given!r}")
    for inst in instructions:
        if OPS[inst.opname].operand == FAST and inst.arg not in names and inst.arg not in cells:
            names[inst.arg] = None
    return tuple(names)


def _slots(
    names: Sequence[str], cells: Sequence[str], free: Sequence[str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Slot numbers for the *_FAST operations and for those on cells."""
    local = {name: i for i, name in enumerate(names)}
    both = dict(local)
    for name in cells:
        both.setdefault(name, len(both))
    deref = {name: both[name] for name in cells}
    deref.update((name, len(both) + i) for i, name in enumerate(free))
    return both, deref


def _stack_size(instructions: Sequence[Instruction], needed: Mapping[Instruction, int]) -> int:
    size = 1
    for inst, depth in zip(instructions, stack_depths(instructions), strict=True):
        pops, pushes = OPS[inst.opname].io(inst.arg)
        size = max(size, depth + max(needed.get(inst, 0), pushes - pops))
    return size
