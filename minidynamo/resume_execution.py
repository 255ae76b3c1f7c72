"""Continuation functions: the rest of a frame after a graph break, as a code object of its own.

A continuation takes what was on the stack and the live locals as arguments, pushes the stack and
jumps
into a copy of the original's instructions. Its free variables are the original's cell and free
variables, so cells stay shared. Continuations are made once for each point and stack shape; a
continuation of a continuation is made from the first original.
"""

from __future__ import annotations

import types
import weakref
from dataclasses import dataclass, field

from .bytecode import (
    Instruction,
    assemble,
    copy_instructions,
    decode,
    prime_cache,
    remove_unreachable,
)

STACK_NAME = "__md_stack{}"
SUPER_NAME = "__md_self"
_CO_VARARGS, _CO_VARKEYWORDS, _CO_NESTED = 0x04, 0x08, 0x10


@dataclass(frozen=True, slots=True)
class ContinuationKey:
    """Where a continuation starts (index in the base code) and what it is given."""

    index: int
    nulls: tuple[bool, ...]
    names: tuple[str, ...]
    # The local that has to be in slot 0, where `super()` looks for its object; None: none has to.
    first: str | None = None


@dataclass(slots=True)
class _Family:
    """What is known of one base code: its continuations, kept as long as the code lives."""

    continuations: dict[ContinuationKey, types.CodeType] = field(default_factory=dict)


# By id, because code objects compare by value; a weak reference removes the row.
_families: dict[int, tuple[weakref.ref[types.CodeType], _Family]] = {}
_bases: dict[int, tuple[weakref.ref[types.CodeType], weakref.ref[types.CodeType]]] = {}


def is_stack_name(name: str) -> bool:
    """Whether an argument of a continuation holds an item of the stack."""
    return name.startswith(STACK_NAME.format(""))


def is_continuation(code: types.CodeType) -> bool:
    """Whether `code` was made here."""
    return id(code) in _bases


def base_code(code: types.CodeType) -> types.CodeType:
    """The code that the user wrote, for a continuation; else `code` itself."""
    row = _bases.get(id(code))
    if row is None:
        return code
    base = row[1]()
    assert base is not None, "a continuation outlived its function's code"
    return base


def closure_names(base: types.CodeType) -> tuple[str, ...]:
    """The free variables of continuations of `base`, in order."""
    return (*base.co_cellvars, *base.co_freevars)


def _family(base: types.CodeType) -> _Family:
    row = _families.get(id(base))
    if row is None:
        key = id(base)
        row = (weakref.ref(base, lambda _dead: _families.pop(key, None)), _Family())
        _families[key] = row
    return row[1]


def continuation(base: types.CodeType, key: ContinuationKey) -> types.CodeType:
    """The code object that goes on at `key.index` of `base`. Arguments: the first, stack items that
    are not NULL, then names.
    """
    known = _family(base).continuations
    if key not in known:
        known[key] = _make(base, key)
    return known[key]


def _make(base: types.CodeType, key: ContinuationKey) -> types.CodeType:
    copies = copy_instructions(decode(base))
    target = copies[key.index]
    free = closure_names(base)
    stack_names = [STACK_NAME.format(i) for i, null in enumerate(key.nulls) if not null]
    prelude: list[Instruction] = []
    if free:
        prelude.append(Instruction("COPY_FREE_VARS", len(free)))
    prelude.append(Instruction("RESUME", 0))
    for index, null in enumerate(key.nulls):
        if null:
            prelude.append(Instruction("PUSH_NULL"))
        else:
            prelude.append(Instruction("LOAD_FAST", STACK_NAME.format(index)))
    prelude.append(Instruction("JUMP", target=target))
    for inst in prelude:
        inst.positions = target.positions
    instructions = remove_unreachable([*prelude, *copies])
    leading = () if key.first is None else (key.first,)
    arguments = (*leading, *stack_names, *key.names)
    flags = base.co_flags & ~(_CO_VARARGS | _CO_VARKEYWORDS)
    code = assemble(
        instructions,
        base,
        argcount=len(arguments),
        posonlyargcount=0,
        kwonlyargcount=0,
        varnames=arguments,
        cellvars=(),
        freevars=free,
        flags=flags | (_CO_NESTED if free else 0),
    )
    prime_cache(code, instructions)
    key_of_code = id(code)
    _bases[key_of_code] = (
        weakref.ref(code, lambda _dead: _bases.pop(key_of_code, None)),
        weakref.ref(base),
    )
    return code
