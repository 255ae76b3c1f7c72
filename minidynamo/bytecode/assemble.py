"""Canonical listings to code objects."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType
from typing import TypedDict, Unpack

from .analysis import index_of, stack_depths, unproven_loads
from .canonical import FAST, OPS
from .current import dialect
from .emitter import Emitter
from .instruction import BytecodeError, Instruction


class Changes(TypedDict, total=False):
    """What a new code object can have other than its template, under CPython's names less co_."""

    argcount: int
    posonlyargcount: int
    kwonlyargcount: int
    flags: int
    name: str
    qualname: str
    filename: str
    firstlineno: int


def assemble(
    instructions: Sequence[Instruction],
    template: CodeType,
    *,
    varnames: Sequence[str] | None = None,
    cellvars: Sequence[str] | None = None,
    freevars: Sequence[str] | None = None,
    bound: Iterable[str] = (),
    **changes: Unpack[Changes],
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
    positions get none.  Where LOAD_FAST does not check for unbound locals (3.12 on), loads that
    cannot be proven safe from the arguments and ``bound`` (slots somebody fills before the code
    starts) are emitted as LOAD_FAST_CHECK.

    Raises BytecodeError if the listing is not consistent or not expressible on this version.
    """
    cells = template.co_cellvars if cellvars is None else tuple(cellvars)
    free = template.co_freevars if freevars is None else tuple(freevars)
    names = _local_names(
        instructions, template.co_varnames if varnames is None else varnames, cells
    )
    n_arguments = argument_count(
        changes.get("argcount", template.co_argcount),
        changes.get("kwonlyargcount", template.co_kwonlyargcount),
        changes.get("flags", template.co_flags),
    )
    emitter = Emitter(
        dialect,
        instructions,
        *_slots(names, cells, free),
        consts=template.co_consts[:1],
        unproven=_unproven(instructions, [*names[:n_arguments], *bound]),
    )
    emitter.emit()
    first_line = changes.get("firstlineno", template.co_firstlineno)
    return template.replace(
        **{f"co_{field}": value for field, value in changes.items()},  # type: ignore[arg-type]
        co_nlocals=len(names),
        co_varnames=names,
        co_cellvars=cells,
        co_freevars=free,
        co_stacksize=_stack_size(instructions, emitter.needed),
        co_code=emitter.code(),
        co_consts=tuple(emitter.consts),
        co_names=tuple(emitter.names),
        co_linetable=emitter.location_table(first_line),
        co_exceptiontable=emitter.exception_table(),
    )


def argument_count(
    argcount: int,
    kwonlyargcount: int,
    flags: int,
) -> int:
    """How many of the first local slots are arguments, ``*args`` and ``**kwargs`` included."""
    has_varargs = bool(flags & inspect.CO_VARARGS)
    has_varkeywords = bool(flags & inspect.CO_VARKEYWORDS)
    return argcount + kwonlyargcount + has_varargs + has_varkeywords


def _unproven(instructions: Sequence[Instruction], bound: Sequence[str]) -> set[Instruction]:
    """The loads that have to check whether the variable is bound, if the version has such."""
    if not dialect.unchecked_fast:
        return set()
    return {instructions[i] for i in unproven_loads(instructions, bound)}


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
    if set(cells).intersection(free):
        raise BytecodeError("a name is both a cell and a free variable")
    local = {name: i for i, name in enumerate(names)}
    both = dict(local)
    for name in cells:
        both.setdefault(name, len(both))
    deref = {name: both[name] for name in cells}
    deref.update((name, len(both) + i) for i, name in enumerate(free))
    return both, deref


def _stack_size(instructions: Sequence[Instruction], needed: Mapping[Instruction, int]) -> int:
    """What an instruction leaves is there in front of the next or of its target."""
    depths = stack_depths(instructions)
    size = max(1, *depths)
    if needed:
        index = index_of(instructions)
        size = max(size, *(depths[index[inst]] + items for inst, items in needed.items()))
    return size
