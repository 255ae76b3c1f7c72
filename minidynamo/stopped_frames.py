"""The frames of the program at the point where the graph ends, and the code that stops there.

When the graph breaks in an inlined function, the frame's new code calls a *stop function* for the
callee, in place of the instruction that called it, and that one calls the stop function of its own
callee, and so on: copies of the functions' codes, entered in the middle, so that the instruction
that breaks runs in frames like those of eager, with their exception handlers. Behind it the
innermost one returns its state as a `Suspended`, to which each caller adds its own; the outermost
frame hands everything to a continuation that begins by calling the callee's continuation.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._C import skip_code
from .bytecode import (
    OPS,
    CallArg,
    Instruction,
    copy_instructions,
    current,
    decode,
    instruction_index,
    live_names,
    remove_unreachable,
)
from .exc import SkipFrame
from .resume_execution import (
    HANDLED,
    INNER_FUNCTION,
    INNER_PREFIX,
    NULL_SLOT,
    RESULT_NAME,
    STACK_NAME,
    SUPER_NAME,
    VALUE,
    ContinuationKey,
    InnerCall,
    base_code,
    closure_names,
    continuation,
    drop_result,
    entered_at,
    is_made_name,
    make_function_code,
)
from .variables.base import HANDLED_EXCEPTION, NULL, LazyVariable, VariableTracker
from .variables.constant import ConstantVariable
from .variables.functions import CallableVariable
from .variables.lifetimes import kept_locals

if TYPE_CHECKING:
    from .codegen import PyCodegen
    from .symbolic_convert import Translator

NONE = ConstantVariable(None)
# Builtins that look at the caller's locals.
_LOOK_AT_LOCALS = (locals, vars, dir, eval, exec, sys._getframe)
_NAMES_OF_LOOKING = frozenset(function.__name__ for function in _LOOK_AT_LOCALS)
STOP_NAME = "__md_stop{}"


class Suspended(list[Any]):
    """What a stop function returns: the number of its exit, then the state of the innermost frame,
    of its caller, ... up to that of the first inlined function.
    """


@dataclass(frozen=True, slots=True)
class Exit:
    """A way to leave the stopped frames: frame `level` goes on at `index` with a stack of `slots`,
    those above it with the result of their callee.
    """

    level: int
    index: int
    slots: str


class StoppedFrame:
    """One of the frames: its code, where in it, the pattern of its stack, its live locals.

    calls: whether it waits for the next one; makes: which is the `__init__` of an object that is
    on its stack. goes_on: whether what follows is to be captured.
    """

    goes_on = True

    def __init__(self, tx: Translator, *, calls: bool = False) -> None:
        self.tx = tx
        self.waits = calls
        self.base = base_code(tx.code)
        self.instructions = decode(self.base)
        position = instruction_index(self.base).get(tx.current.origin or tx.current)
        if position is None:
            raise SkipFrame("it stops before its first instruction")
        self.index = position
        self.live = live_names(self.base)
        self.slots, self.stack = _describe_stack(tx)
        self.makes = (calls and tx.made is not None) or _goes_on_making(tx)
        if calls and tx.made is not None:
            self.slots += VALUE
            self.stack.append(tx.made)
        self.first = self._super_argument()
        # The program may see all of its locals, or their ends, also where it does not use them any
        # more.
        self.shows_all = (
            bool(tx.root.mortal)
            or _looks_at_locals(tx)
            or any(
                inst.opname == "LOAD_GLOBAL" and inst.arg in _NAMES_OF_LOOKING
                for inst in self.instructions
            )
        )
        self.held = kept_locals(tx)
        names = [name for name in tx.locals if name != self.first and not is_made_name(name)]
        # In the code's order: the program's differs where a loop came around.
        slots = {name: slot for slot, name in enumerate(self.base.co_varnames)}
        names.sort(key=lambda name: slots.get(name, len(slots)))
        self.names = self._used(names, self.index)

    def _used(self, names: Iterable[str], index: int) -> tuple[str, ...]:
        live, stopped = self.live[index], self.tx.current
        if index != self.index and stopped.opname == "DELETE_FAST":
            names = [name for name in names if name != stopped.arg]
        return tuple(n for n in names if self.shows_all or n in live or n in self.held)

    def _super_argument(self) -> str | None:
        """The argument that `super()` without arguments finds in slot 0, if it may be called."""
        base = self.base
        if "__class__" not in base.co_freevars or not (
            base.co_argcount or base.co_flags & 0x04
        ):
            return None
        name = base.co_varnames[0]
        if name in base.co_cellvars:
            return SUPER_NAME if self.tx.cells[name].load(self.tx) is not None else None
        return name if name in self.tx.locals else None

    def key(
        self,
        index: int,
        slots: str,
        inner: InnerCall | None = None,
    ) -> ContinuationKey:
        """The continuation at `index` with a stack of `slots`."""
        names = self.names if index == self.index else self._used(self.names, index)
        makes = self.makes and inner is not None
        return ContinuationKey(index, slots, names, self.first, inner, makes)

    def arguments(self) -> tuple[str, ...]:
        """The arguments of the stop function, without what it passes on."""
        return self.key(self.index, self.slots).arguments()

    def handed(self, level: int) -> dict[str, VariableTracker]:
        """What the root's continuation is given of this frame, `level` calls below: the locals,
        and of a frame that waits for a callee the stack, too.
        """
        given = dict(
            zip(self.key(self.index, self.slots).arguments(), self.values(), strict=True)
        )
        if not self.waits:
            given = {name: given[name] for name in self.names}
        return {INNER_PREFIX * level + name: value for name, value in given.items()}

    def give_up(self, names: Iterable[str]) -> list[Instruction]:
        """Push locals when the frame is left. A traceback may hold the frame, but what its locals
        were has an end that is the program's.
        """
        loads = load_locals(names)
        is_seen = bool(self.tx.root.mortal)
        return [*loads, *(Instruction("DELETE_FAST", load.arg) for load in loads if is_seen)]

    def values(self) -> list[VariableTracker]:
        """Their values."""
        tx = self.tx
        first = []
        if self.first == SUPER_NAME:
            content = tx.cells[self.base.co_varnames[0]].load(tx)
            assert content is not None
            first = [content]
        elif self.first is not None:
            first = [tx.locals[self.first]]
        stack = [value for value in self.stack if value is not NULL]
        return [*first, *stack, *(tx.locals[name] for name in self.names)]

    def returned(
        self,
        copies: list[Instruction],
        leave: Callable[[WayOn], list[Instruction]],
    ) -> list[Instruction]:
        """How to go on with what the callee returned, which is in RESULT_NAME."""
        load = [Instruction("LOAD_FAST", RESULT_NAME), Instruction("DELETE_FAST", RESULT_NAME)]
        if self.makes:
            way = WayOn([], self.index + 1, self.slots)
            return [*load, *drop_result(copies[self.index]), *leave(way)]
        return [*load, *leave(WayOn([], self.index + 1, self.slots + VALUE))]

    def push_stack(self, codegen: PyCodegen) -> None:
        """Rebuild the stack in the generated code, with the exceptions that are being handled."""
        for slot, value in zip(self.slots, self.stack, strict=True):
            codegen(value)
            if slot == HANDLED:
                codegen.emit("PUSH_EXC_INFO")
                codegen.emit("POP_TOP")

    def stopping_copy(self) -> tuple[list[Instruction], Instruction]:
        """A copy of the code, and the instruction in it at which the graph ends."""
        copies = copy_instructions(self.instructions)
        stopped = copies[self.index]
        running = self.tx.current
        if (running.opname, running.arg) != (stopped.opname, stopped.arg):
            # In a continuation the call of the callee's continuation stands in for it, once: from
            # its handlers on it is the code itself again.
            again = copy_instructions(self.instructions)
            stopped.opname, stopped.arg, stopped.target = running.opname, running.arg, None
            stopped.handler = again[self.index].handler
            copies += again
        return copies, stopped


def _goes_on_making(tx: Translator) -> bool:
    """Whether what a continuation calls first is the rest of an `__init__`."""
    index = tx.instructions.index(tx.current) + 1
    following = tx.instructions[index] if index < len(tx.instructions) else tx.current
    return (following.opname, following.arg) == ("STORE_FAST", RESULT_NAME)


def _looks_at_locals(tx: Translator) -> bool:
    """Whether the instruction may call a function that looks at the locals of its caller."""
    if tx.current.opname not in ("CALL", "CALL_FUNCTION_EX"):
        return False
    known = (v.value for v in tx.stack if isinstance(v, (CallableVariable, LazyVariable)))
    return any(value is function for value in known for function in _LOOK_AT_LOCALS)


def _describe_stack(tx: Translator) -> tuple[str, list[VariableTracker]]:
    """The kinds of the slots, and what has to be known to rebuild each."""
    slots, stack = "", []
    handled = iter(tx.exc_info)
    for value in tx.stack:
        slot = NULL_SLOT if value is NULL else VALUE
        if value is HANDLED_EXCEPTION:
            # Beyond the exceptions that are being handled it is what POP_EXCEPT has read already.
            error = next(handled, None)
            slot, value = (VALUE, NONE) if error is None else (HANDLED, error)
        slots += slot
        stack.append(value)
    return slots, stack


@dataclass(frozen=True, slots=True)
class WayOn:
    """How control leaves the instruction that stops: instructions that still belong to it, then
    the index of what follows, with a stack of `slots`.
    """

    after: list[Instruction]
    index: int
    slots: str


def patch_ways_on(
    frame: StoppedFrame,
    stopped: Instruction,
    copies: list[Instruction],
    listing: list[Instruction],
    leave: Callable[[WayOn], list[Instruction]],
) -> list[Instruction]:
    """`listing`, which holds `copies`, such that `leave` follows the instruction that stops."""
    if not frame.goes_on:
        return listing
    after = drop_result(stopped) if frame.makes else _method_as_attribute(stopped)
    op = OPS[stopped.opname]
    if not op.ends:
        slots = _after(frame.slots, *op.io(stopped.arg))
        slots = slots[:-1] if frame.makes else _with_nulls(slots, after)
        way = WayOn(after, frame.index + 1, slots)
        block = [*after, *leave(way)]
        set_positions(block, stopped)
        behind = len(listing) - len(copies) + frame.index + 1
        listing[behind:behind] = block
    if stopped.target is not None:
        slots = _after(frame.slots, *op.io(stopped.arg, True))
        block = leave(WayOn([], copies.index(stopped.target), slots))
        set_positions(block, stopped)
        stopped.target = block[0]
        listing += block
    patch_handler(frame, copies, listing, leave)
    return listing


def patch_handler(
    frame: StoppedFrame,
    copies: list[Instruction],
    listing: list[Instruction],
    leave: Callable[[WayOn], list[Instruction]],
) -> None:
    """Let `leave` follow the beginning of the handler that an exception of the stopping instruction
    goes to, so that what the handler does is captured too.
    """
    handler = copies[frame.index].handler
    if handler is None or handler.target.opname != "PUSH_EXC_INFO":
        return
    slots = frame.slots[: handler.depth] + VALUE * handler.lasti + HANDLED + VALUE
    index = copies.index(handler.target) % len(frame.instructions)
    block = leave(WayOn([], index + 1, slots))
    set_positions(block, handler.target)
    behind = listing.index(handler.target) + 1
    listing[behind:behind] = block


def set_positions(block: list[Instruction], like: Instruction) -> None:
    """Let tracebacks show the line of `like`."""
    for inst in block:
        inst.positions = like.positions


def _after(slots: str, pops: int, pushes: int) -> str:
    return slots[: len(slots) - pops] + VALUE * pushes


def _method_as_attribute(stopped: Instruction) -> list[Instruction]:
    """Turn a LOAD_METHOD that stops into LOAD_ATTR, and give what then fills the two call slots."""
    if stopped.opname == "LOAD_METHOD":
        stopped.opname = "LOAD_ATTR"
    elif stopped.opname == "LOAD_SUPER_ATTR" and stopped.arg[1]:
        name, _, two_args = stopped.arg
        stopped.arg = (name, False, two_args)
    else:
        return []
    return current.emit_callable([])


def _with_nulls(slots: str, after: list[Instruction]) -> str:
    """The stack behind `after` (nothing, or PUSH_NULL and perhaps SWAP)."""
    if not after:
        return slots
    swapped = any(inst.opname == "SWAP" for inst in after)
    return slots[:-1] + NULL_SLOT + VALUE if swapped else slots + NULL_SLOT


def store_stack(slots: str) -> list[Instruction]:
    """Empty the stack into the locals that `push_stack` reads, exceptions being handled too. No
    call asks for these: if it raised (RecursionError), they would stay the handled ones.
    """
    stores: list[Instruction] = []
    for index in reversed(range(len(slots))):
        store = Instruction("STORE_FAST", STACK_NAME.format(index))
        if slots[index] == HANDLED:
            swap = [Instruction("LOAD_CONST", None), Instruction("PUSH_EXC_INFO")]
            stores += [*swap, Instruction("POP_TOP"), store, Instruction("POP_EXCEPT")]
        else:
            stores.append(store)
    return stores


def load_locals(names: Iterable[str]) -> list[Instruction]:
    """Push locals."""
    return [Instruction("LOAD_FAST", name) for name in names]


# -- inlined functions ----------------------------------------------------------------------------


class StopFunctions:
    """The stop functions of the inlined frames, outermost first, and the exits that they have."""

    def __init__(self, frames: list[StoppedFrame]) -> None:
        self.frames = frames
        self.exits: list[Exit] = []
        self.calls: list[InnerCall] = []
        inner: InnerCall | None = None
        for level in range(len(frames), 0, -1):
            frame = frames[level - 1]
            key = frame.key(frame.index, frame.slots, inner)
            listing = self._stop(level, key) if inner is None else self._pass_on(level, key)
            code = make_function_code(remove_unreachable(listing), frame.base, key.arguments())
            skip_code(code, False)
            inner = InnerCall(code, key.arguments())
            self.calls.insert(0, inner)

    def _stop(self, level: int, key: ContinuationKey) -> list[Instruction]:
        """The listing of the innermost frame's: run the instruction, then give back the state."""
        frame = self.frames[level - 1]
        copies, stopped = frame.stopping_copy()
        listing = entered_at(copies, frame.base, key)
        return patch_ways_on(
            frame, stopped, copies, listing, lambda way: self._suspend(level, way)
        )

    def _pass_on(self, level: int, key: ContinuationKey) -> list[Instruction]:
        """The listing of a caller's: call, then add the own state to the callee's."""
        frame = self.frames[level - 1]
        copies = copy_instructions(frame.instructions)
        listing = entered_at(copies, frame.base, key)
        own = frame.arguments()
        plain = frame.returned(copies, lambda way: self._suspend(level, way))
        block = [
            *check_suspended(plain[0]),
            *store_stack(frame.slots),
            # A traceback may hold this frame.
            Instruction("LOAD_FAST", RESULT_NAME),
            Instruction("DELETE_FAST", RESULT_NAME),
            *frame.give_up(own),
            Instruction("BUILD_LIST", len(own)),
            Instruction("LIST_EXTEND", 1),
            Instruction("RETURN_VALUE"),
            *plain,
        ]
        set_positions(block, copies[frame.index])
        end = len(listing) - len(copies)
        ends = 1 + len(drop_result(copies[frame.index])) * frame.makes
        listing[end - ends : end] = block
        patch_handler(frame, copies, listing, lambda way: self._suspend(level, way))
        return listing

    def _suspend(self, level: int, way: WayOn) -> list[Instruction]:
        """Return the state behind the instruction that stopped, with the number of the exit."""
        number = len(self.exits)
        self.exits.append(Exit(level, way.index, way.slots))
        frame = self.frames[level - 1]
        own = frame.key(way.index, way.slots).arguments()
        state = [Instruction("LOAD_CONST", number), *frame.give_up(own)]
        state.append(Instruction("BUILD_LIST", len(own) + 1))
        make = current.emit_call([Instruction("LOAD_CONST", Suspended)], state, 1)
        return [*store_stack(way.slots), *make, Instruction("RETURN_VALUE")]

    # -- the outermost frame's part ---------------------------------------------------------------

    def push_functions(self, codegen: PyCodegen) -> None:
        """Put the stop functions into locals of the generated code."""
        for level, (frame, call) in enumerate(zip(self.frames, self.calls, strict=True), 1):
            closure = closure_names(frame.base)
            if closure:
                codegen.begin_call(_closure_function)
                codegen.load_const(call.code)
                codegen.load_const(frame.tx.globals)
                codegen.sequence([frame.tx.cells[name] for name in closure])
                codegen.end_call(2 + len(closure))
            else:
                codegen.load_const(_plain_function(call.code, frame))
            codegen.emit("STORE_FAST", STOP_NAME.format(level))

    def push_call(self, codegen: PyCodegen) -> None:
        """Push the first stop function and its arguments, all but the CALL."""
        for level, frame in enumerate(self.frames, 1):
            load = Instruction("LOAD_FAST", STOP_NAME.format(level))
            codegen.extend(current.emit_callable([load]) if level == 1 else [load])
            codegen.sequence(frame.values())

    def call(self) -> Instruction:
        """The CALL for that."""
        return Instruction("CALL", CallArg(len(self.calls[0].arguments)))

    def resume(self, exit_: Exit) -> tuple[InnerCall, list[Instruction]]:
        """How to go on from an exit: the call that the outermost frame's continuation makes first,
        and instructions that pop the Suspended into the locals that `names()` of the call names.
        """
        stores = [RESULT_NAME]
        functions: list[Instruction] = []
        index, slots = exit_.index, exit_.slots
        inner: InnerCall | None = None
        for level in range(exit_.level, 0, -1):
            frame = self.frames[level - 1]
            stores += [
                INNER_PREFIX * level + name for name in frame.key(index, slots).arguments()
            ]
            key = frame.key(index, slots, inner)
            inner = InnerCall(continuation(frame.base, key), key.arguments())
            name = INNER_PREFIX * (level - 1) + INNER_FUNCTION
            functions += [*_load_function(frame, inner.code, level), _store(name)]
            if level > 1:
                index, slots = self.frames[level - 2].index, self.frames[level - 2].slots
        assert inner is not None
        unpack = Instruction("UNPACK_SEQUENCE", len(stores))
        return inner, [unpack, *map(_store, stores), *functions]


def _store(name: str) -> Instruction:
    return Instruction("STORE_FAST", name)


def check_suspended(otherwise: Instruction) -> list[Instruction]:
    """Pop what a stop function returned into RESULT_NAME; jump if that is what the program's own
    function returned.
    """
    load = Instruction("LOAD_FAST", RESULT_NAME)
    return [
        _store(RESULT_NAME),
        *current.emit_call([Instruction("LOAD_CONST", type)], [load], 1),
        Instruction("LOAD_CONST", Suspended),
        Instruction("IS_OP", False),
        Instruction("POP_JUMP_IF_FALSE", target=otherwise),
    ]


def _load_function(frame: StoppedFrame, code: types.CodeType, level: int) -> list[Instruction]:
    """Push a function of `code`; its closure is that of the frame's stop function."""
    load = Instruction("LOAD_CONST", code)
    if not code.co_freevars:
        return [Instruction("LOAD_CONST", _plain_function(code, frame))]
    stop = Instruction("LOAD_FAST", STOP_NAME.format(level))
    return current.emit_call([Instruction("LOAD_CONST", _with_code)], [stop, load], 2)


def _plain_function(code: types.CodeType, frame: StoppedFrame) -> types.FunctionType:
    return types.FunctionType(code, frame.tx.globals, frame.base.co_name)


def _closure_function(
    code: types.CodeType,
    globals_: dict[str, Any],
    *cells: types.CellType,
) -> types.FunctionType:
    """Run by generated code."""
    return types.FunctionType(code, globals_, code.co_name, None, cells)


def _with_code(function: types.FunctionType, code: types.CodeType) -> types.FunctionType:
    """Run by generated code: a function of `code` in the surroundings of `function`."""
    return _closure_function(code, function.__globals__, *(function.__closure__ or ()))
