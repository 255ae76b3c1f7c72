"""The end of a captured region: the new bytecode of a frame.

`finish_return` is for a frame captured to its return value; `finish_break` for one that stops at an
instruction: the new code runs the graph, restores stack and locals, runs that instruction (a copy
of the
original's code with its exception handlers), and hands over to a continuation function.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._C import disabled, tail_call
from .bytecode import (
    OPS,
    Handler,
    Instruction,
    argument_count,
    assemble,
    copy_instructions,
    current,
    decode,
    instruction_index,
    live_locals,
    remove_unreachable,
)
from .codegen import OUT_NAME, PyCodegen
from .exc import Unsupported
from .resume_execution import (
    STACK_NAME,
    SUPER_NAME,
    ContinuationKey,
    base_code,
    closure_names,
    continuation,
)
from .source import LoadContext, LocalSource, Source
from .variables.base import NULL, VariableTracker

if TYPE_CHECKING:
    from .symbolic_convert import RootTranslator

INPUTS_NAME = "__md_inputs"


class SkipFrame(Exception):
    """The frame can't be replaced; it runs in eager."""


@dataclass(slots=True)
class CompiledFrame:
    """New code for a frame. `fetch`: the sources whose objects the hook puts into the inputs slot,
    or [].
    """

    code: types.CodeType
    fetch: list[Source]
    needs_hook: bool
    graph_module: Any


def finish_return(tx: RootTranslator, value: VariableTracker) -> CompiledFrame:
    """Code that runs the graph, replays side effects and returns `value`."""

    def restore(codegen: PyCodegen) -> None:
        codegen(value)
        codegen.apply_side_effects(codegen.push_side_effects())
        codegen.emit("RETURN_VALUE")

    return _Finisher(tx).finish(restore, [], needs_hook=False)


def finish_break(tx: RootTranslator, reason: Unsupported) -> CompiledFrame:
    """Code that stops at `tx.current`. Raises SkipFrame where the frame's state
    can't be restored.
    """
    return _BreakFinisher(tx, reason).run()


class _Finisher:
    """Assembles the new code of one frame."""

    def __init__(self, tx: RootTranslator) -> None:
        self.tx = tx
        self.output = tx.output
        self.context = LoadContext(frozenset(tx.code.co_cellvars))
        for generator in self.output.generators:
            if generator.pending_cleanup() and not generator.closes_silently(tx):
                # Not a break where it was made: a continuation would keep it alive for too long.
                raise Unsupported(
                    "generator left unfinished",
                    repr(generator),
                    "it is dropped inside of a try or with block, whose cleanup is not traced",
                )
        for manager in reversed(list(self.output.open_contexts)):
            manager.leave_for_break(tx)

    def finish(
        self,
        restore: Callable[[PyCodegen], None],
        tail: list[Instruction],
        *,
        needs_hook: bool,
    ) -> CompiledFrame:
        counting = PyCodegen(self.output.side_effects, self.context, None)
        restore(counting)
        emitting = PyCodegen(self.output.side_effects, self.context, counting.counts)
        emitting.outputs = dict(counting.outputs)
        restore(emitting)
        self.rerun: list[Instruction] = []
        call, fetch, module = self._graph_call(list(emitting.outputs))
        positions = self.tx.current.positions
        fresh = [*call, *emitting.instructions]
        for inst in fresh:
            if inst.positions is None:
                inst.positions = positions
        instructions = remove_unreachable([*self._prologue(), *fresh, *tail, *self.rerun])
        return CompiledFrame(self._assemble(instructions, bool(fetch)), fetch, needs_hook, module)

    def _prologue(self) -> list[Instruction]:
        """MAKE_CELL, COPY_FREE_VARS and RESUME of the frame's own code."""
        copies = copy_instructions(decode(self.tx.code))
        end = next(i for i, inst in enumerate(copies) if inst.opname == "RESUME")
        return copies[: end + 1]

    def _graph_call(self, outputs: list[Any]) -> tuple[list[Instruction], list[Source], Any]:
        if self.output.is_empty():
            return [], [], None
        module, inputs = self.output.finish(outputs)
        compiled = self.output.call_backend(module, inputs)
        sources = [item.source for item in inputs]
        function = compiled
        if not getattr(compiled, "runs_no_python", False):
            for manager in self.output.open_contexts:
                compiled = manager.protect(compiled)
            function = disabled(compiled)
        load_function = [Instruction("LOAD_CONST", function)]
        cells = self.tx.code.co_cellvars
        direct = all(isinstance(s, LocalSource) and s.local not in cells for s in sources)
        if direct:
            loads = [inst for source in sources for inst in source.emit_load(self.context)]
            call = current.emit_call(load_function, loads, len(sources))
            sources = []
        else:
            call = current.emit_call_ex(load_function, [Instruction("LOAD_FAST", INPUTS_NAME)])
        if function is compiled and not any(item.is_mutated for item in inputs):
            self._rerun_if_it_raises(call)
        return [*call, Instruction("STORE_FAST", OUT_NAME)], sources, module

    def _rerun_if_it_raises(self, call: list[Instruction]) -> None:
        """An operator that raises in a native plan has done nothing yet that can be seen: the frame
        then runs in eager from its start, and the error comes with the program's own traceback.
        """
        copies = copy_instructions(decode(self.tx.code))
        start = next(i for i, inst in enumerate(copies) if inst.opname == "RESUME") + 1
        raised = Instruction("PUSH_EXC_INFO")
        passed_on = Instruction("SWAP", 2)
        self.rerun = [
            raised,
            Instruction("LOAD_CONST", Exception),
            Instruction("CHECK_EXC_MATCH"),
            Instruction("POP_JUMP_IF_FALSE", target=passed_on),
            Instruction("POP_TOP"),
            Instruction("POP_EXCEPT"),
            Instruction("JUMP", target=copies[start]),
            passed_on,
            Instruction("POP_EXCEPT"),
            Instruction("RERAISE", 0),
            *copies,
        ]
        handler = Handler(raised, 0)
        for inst in call:
            inst.handler = handler

    def _assemble(self, instructions: list[Instruction], has_inputs: bool) -> types.CodeType:
        code = self.tx.code
        n_arguments = argument_count(code.co_argcount, code.co_kwonlyargcount, code.co_flags)
        extra = (INPUTS_NAME,) if has_inputs else ()
        return assemble(
            instructions,
            code,
            varnames=(*code.co_varnames[:n_arguments], *extra),
            cellvars=code.co_cellvars,
            freevars=code.co_freevars,
            bound=extra,
        )


class _BreakFinisher(_Finisher):
    """Stops at an instruction of the base code and goes on in continuations."""

    def __init__(self, tx: RootTranslator, reason: Unsupported) -> None:
        super().__init__(tx)
        self.reason = reason
        self.base = base_code(tx.code)
        self.base_instructions = decode(self.base)
        origin = tx.current.origin or tx.current
        position = instruction_index(self.base).get(origin)
        if position is None:
            raise SkipFrame("it stops before its first instruction")
        self.index = position
        if tx.exc_info:
            raise SkipFrame("the graph breaks while an exception is being handled")
        self.live = live_locals(self.base_instructions)
        self.nulls = [item is NULL for item in tx.stack]

    def run(self) -> CompiledFrame:
        tx = self.tx
        names = [name for name in tx.locals if name in self.live[self.index]]
        unchanged = [name for name in names if _is_argument(tx.locals[name], name)]
        changed = [name for name in names if name not in unchanged]
        tail, stopped = self._tail(names)

        def restore(codegen: PyCodegen) -> None:
            codegen.sequence(tx.stack)
            codegen.sequence([tx.locals[name] for name in changed])
            codegen.apply_side_effects(codegen.push_side_effects())
            for name in reversed(changed):
                codegen.emit("STORE_FAST", name)
            codegen.instructions.append(Instruction("JUMP", target=stopped))

        return self.finish(restore, tail, needs_hook=True)

    def _tail(self, names: list[str]) -> tuple[list[Instruction], Instruction]:
        """A copy of the base code in which the successors of the stopping instruction are
        continuations.
        """
        copies = copy_instructions(self.base_instructions)
        stopped = copies[self.index]
        after = _method_as_attribute(stopped)
        op = OPS[stopped.opname]
        tail = list(copies)
        if not op.ends:
            fallthrough = self._hand_over(stopped, False, after, self.index + 1, names)
            tail[self.index + 1 : self.index + 1] = fallthrough
        if stopped.target is not None:
            index = copies.index(stopped.target)
            block = self._hand_over(stopped, True, [], index, names)
            stopped.target = block[0]
            tail += block
        return tail, stopped

    def _hand_over(
        self,
        stopped: Instruction,
        jump: bool,
        after: list[Instruction],
        index: int,
        names: list[str],
    ) -> list[Instruction]:
        """Pack stack and locals and tail-call the continuation that starts at `index`."""
        pops, pushes = OPS[stopped.opname].io(stopped.arg, jump)
        nulls = [*self.nulls[: len(self.nulls) - pops], *[False] * pushes]
        nulls += _pushed_nulls(after, nulls)
        live = tuple(name for name in names if name in self.live[index])
        first, load_first = self._super_argument()
        live = tuple(name for name in live if name != first)
        key = ContinuationKey(index, tuple(nulls), live, first)
        code = continuation(self.base, key)
        stack_names = [STACK_NAME.format(i) for i in range(len(nulls))]
        stores = [Instruction("STORE_FAST", name) for name in reversed(stack_names)]
        given = [name for name, null in zip(stack_names, nulls, strict=True) if not null]
        arguments = [
            *load_first,
            *[Instruction("LOAD_FAST", name) for name in (*given, *live)],
        ]
        load_function = self._load_continuation(code)
        call = current.emit_call(
            [Instruction("LOAD_CONST", tail_call)],
            [*load_function, *arguments],
            1 + len(arguments),
        )
        block = [*after, *stores, *call, Instruction("RETURN_VALUE")]
        for inst in block:
            inst.positions = stopped.positions
        return block

    def _super_argument(self) -> tuple[str | None, list[Instruction]]:
        """Name and load of the argument that `super()` without arguments finds in slot 0, if it may
        be called.
        """
        base = self.base
        if "__class__" not in base.co_freevars or not (base.co_argcount or base.co_flags & 0x04):
            return None, []
        name = base.co_varnames[0]
        if name in base.co_cellvars:
            cell = self.tx.cells[name]
            known = cell.load(self.tx) is not None
            return (SUPER_NAME, [Instruction("LOAD_DEREF", name)]) if known else (None, [])
        if name in self.tx.locals:
            return name, [Instruction("LOAD_FAST", name)]
        return None, []

    def _load_continuation(self, code: types.CodeType) -> list[Instruction]:
        closure = closure_names(self.base)
        if closure:
            return current.emit_make_function(code, list(closure))
        function = types.FunctionType(code, self.tx.globals, self.base.co_name)
        return [Instruction("LOAD_CONST", function)]


def _is_argument(value: VariableTracker, name: str) -> bool:
    """Whether the local still is the argument of that name."""
    return value.source == LocalSource(name)


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


def _pushed_nulls(after: list[Instruction], nulls: list[bool]) -> list[bool]:
    """What `after` (PUSH_NULL, perhaps SWAP) does to the pattern of NULLs; `nulls` is changed in
    place.
    """
    if not after:
        return []
    swapped = any(inst.opname == "SWAP" for inst in after)
    if swapped:
        nulls[-1] = True
        return [False]
    return [True]
