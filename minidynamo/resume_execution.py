"""Continuation functions: the rest of a frame after a graph break, as a code object of its own.

A continuation takes what was on the stack and the live locals as arguments, pushes the stack and
jumps into a copy of the original's instructions. Its free variables are the original's cell and
free variables, so cells stay shared. Continuations are made once for each point and stack shape; a
continuation of a continuation is made from the first original.

When the graph broke in an inlined function, the continuation of its caller starts by calling the
continuation of the callee, in place of the instruction that called the callee.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import config
from .bytecode import (
    CallArg,
    Instruction,
    assemble,
    copy_instructions,
    current,
    decode,
    instruction_index,
    prime_cache,
    reachable,
    remove_unreachable,
)
from .utils import dropping

STACK_NAME = "__md_stack{}"
SUPER_NAME = "__md_self"
# In front of the names of what a continuation passes on to the callee's continuation.
INNER_PREFIX = "__md_in_"
INNER_FUNCTION = INNER_PREFIX + "__md_fn"
RESULT_NAME = "__md_result"
# What a slot of the stack holds: a value, a NULL, or what PUSH_EXC_INFO put there (in its place an
# argument has the exception that is being handled).
VALUE, NULL_SLOT, HANDLED = "v", "n", "e"
_LEAVES_BLOCK = ["PUSH_EXC_INFO", "WITH_EXCEPT_START"]
_BREAKS_OF_A_CALL = 8  # where there are more, they count as several calls
_CO_VARARGS, _CO_VARKEYWORDS, _CO_NESTED = 0x04, 0x08, 0x10


@dataclass(frozen=True, slots=True)
class InnerCall:
    """The call of a callee's continuation: its code, and what it is given."""

    code: types.CodeType
    arguments: tuple[str, ...]

    def names(self) -> tuple[str, ...]:
        """The arguments by which the caller's continuation gets function and arguments."""
        return (INNER_FUNCTION, *(INNER_PREFIX + name for name in self.arguments))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, InnerCall):
            return NotImplemented
        return self.code is other.code and self.arguments == other.arguments

    def __hash__(self) -> int:
        return id(self.code)


@dataclass(frozen=True, slots=True)
class ContinuationKey:
    """Where a continuation starts (index in the base code) and what it is given.

    With `inner` the instruction at `index` is being executed: it called the function that `inner`
    goes on with, and pushes what that returns; if it `makes` an object, that is on the stack, and
    the function its `__init__`.
    """

    index: int
    slots: str
    names: tuple[str, ...]
    # The local that has to be in slot 0, where `super()` looks for its object; None: none has to.
    first: str | None = None
    inner: InnerCall | None = None
    makes: bool = False

    def arguments(self) -> tuple[str, ...]:
        """The names of all arguments in order."""
        first = () if self.first is None else (self.first,)
        inner = () if self.inner is None else self.inner.names()
        return (*first, *stack_names(self.slots), *self.names, *inner)


def stack_names(slots: str) -> tuple[str, ...]:
    """The arguments that hold the stack."""
    return tuple(STACK_NAME.format(i) for i, slot in enumerate(slots) if slot != NULL_SLOT)


@dataclass(slots=True)
class _Family:
    """What is known of one base code: its continuations, kept as long as the code lives."""

    continuations: dict[ContinuationKey, types.CodeType] = field(default_factory=dict)
    has_captured: bool = False
    # The breaks of its graphs in functions that it calls, by id of these: how many, and the places
    # of the calls, as id of the caller's code and index.
    broken: dict[int, tuple[int, set[tuple[int, int]]]] = field(default_factory=dict)


# By id, because code objects compare by value; a weak reference removes the row.
_families: dict[int, tuple[weakref.ref[types.CodeType], _Family]] = {}
_bases: dict[int, tuple[weakref.ref[types.CodeType], weakref.ref[types.CodeType]]] = {}


def is_stack_name(name: str) -> bool:
    """Whether an argument of a continuation holds an item of the stack, of its own or a callee."""
    while name.startswith(INNER_PREFIX):
        name = name.removeprefix(INNER_PREFIX)
    return name.startswith(STACK_NAME.format(""))


def is_made_name(name: str) -> bool:
    """Whether an argument of a continuation is none of the program's own locals."""
    return name == SUPER_NAME or name.startswith(INNER_PREFIX) or is_stack_name(name)


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
        row = (weakref.ref(base, dropping(_families, key)), _Family())
        _families[key] = row
    return row[1]


def continuation(base: types.CodeType, key: ContinuationKey) -> types.CodeType:
    """The code object that goes on at `key.index` of `base`; its arguments are `key.arguments()`.

    The free variables are `closure_names(base)`.
    """
    known = _family(base).continuations
    if key not in known:
        known[key] = _make(base, key)
    return known[key]


def note_capture(code: types.CodeType) -> None:
    """A graph with operations was captured in a frame of `code`."""
    _family(base_code(code)).has_captured = True


def has_captured(code: types.CodeType) -> bool:
    """Whether that happened to any part of the function that `code` belongs to."""
    return _family(base_code(code)).has_captured


def note_break(
    root: types.CodeType,
    callee: types.CodeType,
    caller: types.CodeType,
    index: int,
) -> None:
    """In a frame of `root` the graph broke in `callee`, called at `index` of `caller`. All are
    codes that the user wrote.
    """
    broken = _family(root).broken
    count, places = broken.get(id(callee), (0, set()))
    places.add((id(caller), index))
    broken[id(callee)] = count + 1, places


def breaks_often(root: types.CodeType, callee: types.CodeType) -> bool:
    """Whether graphs of `root` broke so often in `callee` that it is cheaper to let that run in
    frames of its own, whose code serves all calls: going on in the middle of it takes continuations
    of both for every break at every place that calls it.
    """
    row = _families.get(id(base_code(root)))
    known = None if row is None else row[1].broken.get(id(base_code(callee)))
    if known is None:
        return False
    count, places = known
    return max(len(places), count // _BREAKS_OF_A_CALL) >= config.recompile_limit


def forget_breaks() -> None:
    """As if no graph had broken."""
    for _, family in _families.values():
        family.broken.clear()


def push_stack(slots: str) -> list[Instruction]:
    """Push the stack that the arguments of a continuation hold."""
    pushes: list[Instruction] = []
    for index, slot in enumerate(slots):
        if slot == NULL_SLOT:
            pushes.append(Instruction("PUSH_NULL"))
            continue
        pushes.append(Instruction("LOAD_FAST", STACK_NAME.format(index)))
        if slot == HANDLED:
            pushes += [Instruction("PUSH_EXC_INFO"), Instruction("POP_TOP")]
    return pushes


@dataclass(frozen=True, slots=True)
class Failure:
    """What happens in place of going on: `error` is raised, or `callee` called, which raises it."""

    error: BaseException
    callee: types.FunctionType | None = None


def entered_at(
    copies: list[Instruction],
    base: types.CodeType,
    key: ContinuationKey,
    failure: Failure | None = None,
    at: int | None = None,
) -> list[Instruction]:
    """The instructions of a function that takes `key.arguments()` and goes on in `copies`, a copy
    of `base` or of those parts that it reaches, then with `key.index` at `at`; with `failure` it
    raises there, so that the handlers around see it.
    """
    at = key.index if at is None else at
    target = copies[at]
    free = closure_names(base)
    prelude = [Instruction("COPY_FREE_VARS", len(free))] if free else []
    prelude += [Instruction("RESUME", 0), *push_stack(key.slots)]
    # The frame is to have the program's own locals, and to keep nothing else alive.
    made = stack_names(key.slots) + (key.inner.names() if key.inner is not None else ())
    forget = [Instruction("DELETE_FAST", name) for name in made]
    if key.inner is None and failure is not None:
        raises = Instruction("RAISE_VARARGS", 1)
        raises.handler = target.handler
        prelude += [*forget, Instruction("LOAD_CONST", failure.error), raises]
    elif key.inner is None:
        prelude += [*forget, Instruction("JUMP", target=target)]
    else:
        function, *arguments = (Instruction("LOAD_FAST", n) for n in key.inner.names())
        if failure is not None:
            function = Instruction("LOAD_CONST", failure.callee)
        call = Instruction("CALL", CallArg(len(arguments)), origin=target.origin)
        call.handler = target.handler
        after = drop_result(target) if key.makes else []
        after.append(Instruction("JUMP", target=copies[at + 1]))
        prelude += [*current.emit_callable([function]), *arguments, *forget, call, *after]
    for inst in prelude:
        inst.positions = target.positions
    return [*prelude, *copies]


def drop_result(target: Instruction) -> list[Instruction]:
    """Pop what the `__init__` returned that the instruction called, as `type.__call__` does."""
    load = Instruction("LOAD_FAST", RESULT_NAME)
    forget = Instruction("DELETE_FAST", RESULT_NAME)
    error = current.emit_call([Instruction("LOAD_CONST", init_error)], [load], 1)
    raises = Instruction("RAISE_VARARGS", 1)
    for inst in (*error, raises):
        inst.handler = target.handler
    return [
        Instruction("STORE_FAST", RESULT_NAME),
        Instruction("LOAD_FAST", RESULT_NAME),
        Instruction("LOAD_CONST", None),
        Instruction("IS_OP", False),
        Instruction("POP_JUMP_IF_TRUE", target=forget),
        *error,
        raises,
        forget,
    ]


def init_error(returned: Any) -> TypeError:
    """What is raised where `__init__` returned something."""
    return TypeError(f"__init__() should return None, not '{type(returned).__name__}'")


def make_function_code(
    instructions: list[Instruction], base: types.CodeType, arguments: tuple[str, ...]
) -> types.CodeType:
    """A code object with the name, file and line of `base`, and positional parameters only."""
    free = closure_names(base)
    flags = base.co_flags & ~(_CO_VARARGS | _CO_VARKEYWORDS)
    return assemble(
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


def _make(base: types.CodeType, key: ContinuationKey) -> types.CodeType:
    listing = decode(base)
    kept = sorted(reachable(listing, key.index, instruction_index(base)))
    copies = copy_instructions([listing[i] for i in kept])
    entered = entered_at(copies, base, key, at=kept.index(key.index))
    instructions = remove_unreachable(entered) if key.inner is not None else entered
    code = make_function_code(instructions, base, key.arguments())
    prime_cache(code, instructions)
    key_of_code = id(code)
    _bases[key_of_code] = (
        weakref.ref(code, dropping(_bases, key_of_code)),
        weakref.ref(base),
    )
    return code


def _key(base: types.CodeType, code: types.CodeType) -> ContinuationKey:
    return next(k for k, known in _family(base).continuations.items() if known is code)


def loop_item(code: types.CodeType) -> str | None:
    """The argument with what a loop's iterator gave, if that is where a continuation goes on."""
    if not is_continuation(code):
        return None
    base = base_code(code)
    key = _key(base, code)
    if key.inner is not None:
        item = loop_item(key.inner.code)
        return None if item is None else INNER_PREFIX + item
    is_first = key.index > 0 and decode(base)[key.index - 1].opname == "FOR_ITER"
    return STACK_NAME.format(len(key.slots) - 1) if is_first and key.slots else None


def open_exits(code: types.CodeType) -> tuple[str, ...]:
    """The arguments that hold the `__exit__` of each `with` block in which a continuation goes on,
    innermost first.
    """
    base = base_code(code)
    key = _key(base, code)
    inner = () if key.inner is None else open_exits(key.inner.code)
    known = () if key.inner is None else key.inner.arguments
    found = [INNER_PREFIX + name for name in inner if name in known]
    instructions = decode(base)
    handler = instructions[key.index].handler
    while handler is not None:
        start = instructions.index(handler.target)
        if [i.opname for i in instructions[start : start + 2]] == _LEAVES_BLOCK:
            found.append(STACK_NAME.format(handler.depth - 1))
        # That of the handler's own cleanup, then that of the block around.
        handler = handler.target.handler
    return tuple(found)


def failing(
    code: types.CodeType, error: BaseException, values: Mapping[str, Any]
) -> types.CodeType:
    """A continuation that could not be compiled, made to raise `error` where it should go on: its
    program's `finally` blocks and context managers are left as eager leaves them. values: its
    arguments.
    """
    base = base_code(code)
    key = _key(base, code)
    callee = None
    if key.inner is not None:
        function = values[INNER_FUNCTION]
        inner = {name: values.get(INNER_PREFIX + name) for name in key.inner.arguments}
        callee = types.FunctionType(
            failing(key.inner.code, error, inner),
            function.__globals__,
            closure=function.__closure__,
        )
    copies = copy_instructions(decode(base))
    instructions = remove_unreachable(entered_at(copies, base, key, Failure(error, callee)))
    return make_function_code(instructions, base, key.arguments())
