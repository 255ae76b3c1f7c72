"""The dialect of the running interpreter, and the helpers that emit what differs by version.

The only file that asks for Python's version.  Helpers return fresh lists of canonical instructions
without positions; the compiler concatenates them.
"""

from __future__ import annotations

import opcode
import sys
from collections.abc import Sequence
from types import CodeType
from typing import Any, TypeVar

from . import py311, py312, py313
from .dialect import Dialect
from .instruction import CallArg, Instruction


def _caches(opmap: dict[str, int]) -> list[int]:
    """Inline cache entries by opcode; ``opcode`` gives them by number, from 3.13 on by name."""
    table = opcode._inline_cache_entries  # type: ignore[attr-defined]
    if not isinstance(table, dict):
        return list(table)
    caches = [0] * 256
    for name, count in table.items():
        if name in opmap:
            caches[opmap[name]] = count
    return caches


def _find() -> Dialect:
    version = sys.version_info[:2]
    for module in (py311, py312, py313):
        if module.DIALECT.version == version:
            return module.DIALECT.bind(opcode.opmap, _caches(opcode.opmap))
    raise ImportError(f"CPython {version[0]}.{version[1]} is not supported")


dialect = _find()


def emit(
    opname: str,
    arg: Any = None,
    target: Instruction | None = None,
) -> list[Instruction]:
    """One canonical instruction."""
    return [Instruction(opname, arg, target)]


def emit_const(value: Any) -> list[Instruction]:
    """Push any object, put into the code's constants."""
    return [Instruction("LOAD_CONST", value)]


def emit_copy(depth: int = 1) -> list[Instruction]:
    """Push the item at ``depth`` (1: the top) again."""
    return [Instruction("COPY", depth)]


def emit_swap(depth: int = 2) -> list[Instruction]:
    """Exchange the top with the item at ``depth``; nothing for depth 1."""
    return [Instruction("SWAP", depth)] if depth > 1 else []


def emit_rot_n(depth: int) -> list[Instruction]:
    """Move the top down to ``depth``; what was above that comes up by one."""
    return [Instruction("SWAP", i) for i in range(depth, 1, -1)]


def emit_unrot_n(depth: int) -> list[Instruction]:
    """Bring the item at ``depth`` to the top; what was above it goes down by one."""
    return [Instruction("SWAP", i) for i in range(2, depth + 1)]


def emit_pop(count: int = 1) -> list[Instruction]:
    """Drop items."""
    return [Instruction("POP_TOP") for _ in range(count)]


def emit_call(
    load_callable: list[Instruction],
    load_args: list[Instruction],
    nargs: int,
    kwnames: tuple[str, ...] = (),
) -> list[Instruction]:
    """Call what ``load_callable`` pushes with the ``nargs`` items that ``load_args`` pushes."""
    return [
        *emit_callable(load_callable),
        *load_args,
        Instruction("CALL", CallArg(nargs, kwnames)),
    ]


def emit_call_ex(
    load_callable: list[Instruction], load_args: list[Instruction], has_kwargs: bool = False
) -> list[Instruction]:
    """The same with an argument tuple, and a dict above it if ``has_kwargs``."""
    return [
        *emit_callable(load_callable),
        *load_args,
        Instruction("CALL_FUNCTION_EX", has_kwargs),
    ]


def emit_callable(load_callable: Sequence[Instruction] = ()) -> list[Instruction]:
    """Both slots of a call, for a callable that is no method; the arguments go above them.

    Without ``load_callable`` the callable is on top of the stack already.
    """
    null = Instruction("PUSH_NULL")
    if not dialect.null_first:
        return [*load_callable, null]
    return [null, *load_callable] if load_callable else [null, *emit_swap(2)]


_T = TypeVar("_T")


def call_slots(function: _T, null: _T) -> tuple[_T, _T]:
    """What the two slots of a call hold, bottom first, for a callable that is no method."""
    return (null, function) if dialect.null_first else (function, null)


def emit_call_method(
    load_owner: list[Instruction],
    name: str,
    load_args: list[Instruction],
    nargs: int,
    kwnames: tuple[str, ...] = (),
) -> list[Instruction]:
    """``owner.name(*args)`` without making a bound method."""
    return [
        *load_owner,
        Instruction("LOAD_METHOD", name),
        *load_args,
        Instruction("CALL", CallArg(nargs, kwnames)),
    ]


#: Above this many arguments ``emit_call_on_stack`` packs them into a tuple.
_MOST_ARGUMENTS_TO_ROTATE = 6


def emit_call_on_stack(nargs: int, kwnames: tuple[str, ...] = ()) -> list[Instruction]:
    """Call with callable and arguments on the stack, ``callable, args[nargs]``, without a NULL."""
    if nargs > _MOST_ARGUMENTS_TO_ROTATE and not kwnames:
        packed = [Instruction("BUILD_TUPLE", nargs), Instruction("PUSH_NULL")]
        call = Instruction("CALL_FUNCTION_EX", False)
        return [*packed, *emit_rot_n(3 if dialect.null_first else 2), call]
    depth = nargs + 2 if dialect.null_first else nargs + 1
    call = Instruction("CALL", CallArg(nargs, kwnames))
    return [Instruction("PUSH_NULL"), *emit_rot_n(depth), call]


def emit_pop_jump(
    condition: str, target: Instruction, *, is_bool: bool = False
) -> list[Instruction]:
    """Pop, and jump on "TRUE", "FALSE", "NONE" or "NOT_NONE"; ``is_bool``: it is exactly a bool."""
    jump = Instruction(f"POP_JUMP_IF_{condition}", target=target)
    if dialect.exact_bool and not is_bool and condition in ("TRUE", "FALSE"):
        return [Instruction("TO_BOOL"), jump]
    return [jump]


def emit_make_function(
    code: CodeType, closure: Sequence[str] | None = None
) -> list[Instruction]:
    """Push a function of ``code``; ``closure`` names this code's cells for its free variables."""
    load = Instruction("LOAD_CONST", code)
    if not closure:
        return [load, Instruction("MAKE_FUNCTION", ())]
    cells = [Instruction("LOAD_CLOSURE", name) for name in closure]
    pack = Instruction("BUILD_TUPLE", len(cells))
    return [*cells, pack, load, Instruction("MAKE_FUNCTION", ("closure",))]


def emit_prologue(
    cellvars: Sequence[str] = (), freevars: Sequence[str] = ()
) -> list[Instruction]:
    """What every function starts with: its free variables, its cells, RESUME."""
    copy = [Instruction("COPY_FREE_VARS", len(freevars))] if freevars else []
    cells = [Instruction("MAKE_CELL", name) for name in cellvars]
    return [*copy, *cells, Instruction("RESUME", 0)]


def emit_return() -> list[Instruction]:
    """Return the top."""
    return [Instruction("RETURN_VALUE")]
