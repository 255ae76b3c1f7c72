"""The end of a captured region: the new bytecode of a frame.

`finish_return` is for a frame captured to its return value; `finish_break` for one that stops at an
instruction: the new code runs the graph, restores stack and locals, runs that instruction (a copy
of the
original's code with its exception handlers), and hands over to a continuation function.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.fx import Node

from . import config
from ._C import disabled, tail_call
from .bytecode import (
    Instruction,
    argument_count,
    assemble,
    copy_instructions,
    current,
    decode,
    remove_unreachable,
)
from .codegen import OUT_NAME, PyCodegen, is_temporary
from .draws import is_drawn
from .exc import Unsupported
from .function_views import refuse_shared_views
from .generator_frames import rebuild
from .handed_sizes import note_handed
from .joined_sources import is_joined
from .markers import break_errors
from .new_parameters import making
from .open_blocks import leave_if_it_raises
from .output_graph import example_value
from .put_back import (
    can_be_put_back,
    checked,
    refuse_caught,
    refuse_checks,
    written_inputs,
)
from .reruns import rerun_if_it_raises
from .resume_execution import (
    HANDLED,
    SUPER_NAME,
    ContinuationKey,
    closure_names,
    continuation,
    is_continuation,
    is_made_name,
    note_break,
)
from .source import LoadContext, LocalSource, Source
from .stopped_frames import (
    RESULT_NAME,
    Exit,
    StopFunctions,
    StoppedFrame,
    WayOn,
    check_suspended,
    load_locals,
    patch_handler,
    patch_ways_on,
    set_positions,
    store_stack,
)
from .variables.base import VariableTracker
from .variables.exceptions import ExceptionVariable
from .variables.generators import REBUILD, end_with_frame
from .variables.namespaces import check_given_locals
from .variables.raising import Seen
from .variables.slots import settle
from .variables.stand_ins import check_unseen

if TYPE_CHECKING:
    from .output_graph import OutputGraph
    from .symbolic_convert import RootTranslator, Translator

INPUTS_NAME = "__md_inputs"
REBUILD.append(rebuild)
# Where torch's own error_on_graph_break says what is so, once a program has imported it.
_TORCH_SAYS = "torch._dynamo.utils", "_error_on_graph_break"


def are_breaks_errors(output: OutputGraph) -> bool:
    """With fullgraph, or as the traced code last set it (error_on_graph_break, ours or torch's)."""
    if output.options.fullgraph:
        return True
    traced: Any = output.side_effects.variable_of(break_errors)
    if traced is not None and traced.items:
        return bool(traced.items[-1].realize().as_python_constant())
    if traced is None and break_errors:
        return break_errors[-1]
    module, name = sys.modules.get(_TORCH_SAYS[0]), _TORCH_SAYS[1]
    holder = output.globals_variables.get(id(getattr(module, "__dict__", None)))
    stored = None if holder is None else output.side_effects.load_attr(holder, name)
    if isinstance(stored, VariableTracker):
        return bool(stored.realize().as_python_constant())
    return bool(getattr(module, name, False))


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

    end_with_frame(tx, value)
    finisher = _Finisher(tx)
    unseen = finisher.written_cells()

    def restore(codegen: PyCodegen) -> None:
        codegen(value)
        codegen.apply_side_effects(codegen.push_side_effects(unseen))
        codegen.emit("RETURN_VALUE")

    finisher.find_seen(unseen, restore)
    return finisher.finish(restore, [], needs_hook=False)


def finish_break(
    tx: RootTranslator, frame: Translator, *, goes_on: bool = True
) -> CompiledFrame:
    """Code that stops at `frame.current`; `frame` is `tx` or inlined below it, and every frame
    above it waits for a function that it called. goes_on: False leaves the rest of it to eager.

    Raises SkipFrame where the state can't be restored.
    """
    above: Translator | None = frame
    while above is not None:
        settle(above)
        check_given_locals(above)
        above = above.parent
    return _BreakFinisher(tx, frame, goes_on=goes_on).run()


def _restore(codegen: PyCodegen, restore: Callable[[PyCodegen], None]) -> None:
    if not codegen.only_state:
        for variable in codegen.side_effects.made:
            codegen.preload(variable)
    restore(codegen)


class _Finisher:
    """Assembles the new code of one frame."""

    def __init__(self, tx: RootTranslator) -> None:
        self.tx = tx
        self.output = tx.output
        self.context = LoadContext(frozenset(tx.code.co_cellvars))
        for manager in reversed(list(self.output.open_contexts)):
            manager.leave_for_break(tx)

    def written_cells(self) -> set[VariableTracker]:
        """Cells of the frame itself that were written to."""
        pending = self.output.side_effects.pending_attributes()
        cells = set(self.tx.cells.values())
        return {
            variable for variable, _ in pending if variable in cells and not variable.source
        }

    def find_seen(
        self,
        unseen: set[VariableTracker],
        restore: Callable[[PyCodegen], None],
    ) -> None:
        """Take out of `unseen` the cells that something holds when the frame is left: what is in
        the others need not leave the graph.
        """
        while unseen:
            probe = PyCodegen(self.output.side_effects, self.context, None)
            _restore(probe, restore)
            loaded = {i.arg for i in probe.instructions if i.opname == "LOAD_CLOSURE"}
            seen = {cell for cell in unseen if getattr(cell, "root_name", None) in loaded}
            if not seen:
                return
            unseen -= seen

    def finish(
        self,
        restore: Callable[[PyCodegen], None],
        tail: list[Instruction],
        *,
        needs_hook: bool,
    ) -> CompiledFrame:
        only_state = not (config.replay_side_effects or tail or is_continuation(self.tx.code))
        effects, context = self.output.side_effects, self.context
        can_break = not self.output.options.fullgraph
        for _, known in effects.tracked() if can_break else ():
            if isinstance(known, ExceptionVariable):
                known.check_traceback()
        counting = PyCodegen(effects, context, None, only_state=only_state, can_break=can_break)
        _restore(counting, restore)
        check_unseen(effects, counting.instructions)
        self._drop_generators()
        emitting = PyCodegen(
            effects, context, counting.counts, only_state=only_state, cyclic=counting.cyclic
        )
        emitting.outputs = dict(counting.outputs)
        _restore(emitting, restore)
        self.rerun: list[Instruction] = []
        call, fetch, module = self._graph_call(list(emitting.outputs))
        positions = self.tx.current.positions
        fresh = [*self.output.draws.emit(context), *call, *emitting.instructions]
        if tail:
            fresh[-1:-1] = _forget_temporaries(fresh, bool(fetch))
        for inst in fresh:
            if inst.positions is None:
                inst.positions = positions
        instructions = remove_unreachable([*self._prologue(), *fresh, *tail, *self.rerun])
        return CompiledFrame(
            self._assemble(instructions, bool(fetch)), fetch, needs_hook, module
        )

    def _drop_generators(self) -> None:
        for generator in self.output.generators:
            is_dropped = not generator.escapes and generator.pending_cleanup()
            if is_dropped and not generator.closes_silently(self.tx):
                # Not a break where it was made: a continuation would keep it alive for too long.
                raise Unsupported(
                    "generator left unfinished",
                    repr(generator),
                    "it is dropped inside of a try or with block, whose cleanup is not traced",
                )

    def _prologue(self) -> list[Instruction]:
        """MAKE_CELL, COPY_FREE_VARS and RESUME of the frame's own code."""
        copies = copy_instructions(decode(self.tx.code))
        end = next(i for i, inst in enumerate(copies) if inst.opname == "RESUME")
        return copies[: end + 1]

    def _graph_call(self, outputs: list[Any]) -> tuple[list[Instruction], list[Source], Any]:
        if self.output.is_empty():
            return [], [], None
        checks = self.output.standing_checks()
        made = list(self.output.made)
        new = {item.node for item in made}
        own = [node for node in outputs if node not in new]
        seen = [node for node in self.output.graph.nodes if "seen" in node.meta]
        caught = [node for node in seen if node.meta["seen"] > Seen.LEAVING]
        wanted = [*own, *(node for node, _ in checks), *self._unused(caught)]
        spoilt = self.output.captured_backward.spoilt(map(example_value, own))
        if spoilt is not None:
            _refuse_spoilt(spoilt)
        refuse_shared_views(own, [item.node for item in self.output.inputs])
        for node in reversed(self.output.graph.nodes):
            if "for_text" in node.meta and not (node.users or node in wanted):
                self.output.graph.erase_node(node)
        module, inputs = self.output.finish(wanted)
        written = written_inputs(module, inputs)
        draws = self.output.draws
        can_rerun = can_be_put_back([inputs[i] for i in written])
        can_rerun = can_rerun and not (draws.calls or self.output.restrided.geometry)
        if checks and not can_rerun:
            refuse_checks(checks[0][1])
        if caught and not can_rerun:
            if not self.output.options.fullgraph:
                refuse_caught(caught)
            caught = []
        draws.prepare(self.output)
        compiled = self.output.call_backend(module, inputs)
        sources = [item.source for item in inputs]
        function = compiled
        if not getattr(compiled, "runs_no_python", False):
            for manager in self.output.open_contexts:
                compiled = manager.protect(compiled)
            function = disabled(compiled)
        if checks or caught:
            truths = slice(len(own), len(own) + len(checks))
            function = disabled(checked(compiled, truths, written))
        if made:
            function = disabled(making(function, made, [item.node for item in inputs], outputs))
        load_function = [Instruction("LOAD_CONST", function)]
        cells = self.tx.code.co_cellvars
        direct = all(isinstance(s, LocalSource) and s.local not in cells for s in sources)
        if direct or any(is_drawn(s) or is_joined(s) for s in sources):
            loads = [inst for source in sources for inst in source.emit_load(self.context)]
            call = current.emit_call(load_function, loads, len(sources))
            sources = []
        else:
            call = current.emit_call_ex(load_function, [Instruction("LOAD_FAST", INPUTS_NAME)])
        is_native = function is compiled
        if checks or caught or ((is_native or seen) and not written and not draws.calls):
            self.rerun = rerun_if_it_raises(call, self.tx.code)
        else:
            self.rerun = leave_if_it_raises(call, self.tx.code)
        return [*call, Instruction("STORE_FAST", OUT_NAME)], sources, module

    def _unused(self, nodes: list[Node]) -> list[Node]:
        """Those whose results nothing uses, though they may raise: to be outputs, for backends drop
        others. Not the inputs that they write to: that is done in any case, and AOTAutograd takes
        such an output for one of the others.
        """
        inputs = {id(example_value(item.node)) for item in self.output.inputs}
        return [
            node
            for node in nodes
            if not node.users
            and isinstance(example_value(node), torch.Tensor)
            and id(example_value(node)) not in inputs
        ]

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
    """Stops at an instruction of the base code, or of a function called there, and goes on in
    continuations.
    """

    def __init__(self, tx: RootTranslator, innermost: Translator, *, goes_on: bool) -> None:
        super().__init__(tx)
        frames = [innermost]
        while frames[0].parent is not None:
            frames.insert(0, frames[0].parent)
        self.frame, *inlined = (StoppedFrame(f, calls=f is not innermost) for f in frames)
        for caller, callee in itertools.pairwise((self.frame, *inlined)):
            note_break(self.frame.base, callee.base, caller.base, caller.index)
        (inlined or [self.frame])[-1].goes_on = goes_on
        self.stops = StopFunctions(inlined) if inlined else None
        self.handed: dict[str, VariableTracker] = {}
        for level, stopped in enumerate((self.frame, *inlined)):
            self.handed |= stopped.handed(level)

    def run(self) -> CompiledFrame:
        tx, frame, stops = self.tx, self.frame, self.stops
        first = () if frame.first in (None, SUPER_NAME) else (frame.first,)
        names = [*first, *frame.names]
        changed = [name for name in names if not _is_argument(tx.locals[name], name)]
        tail, entry = self._tail()

        def restore(codegen: PyCodegen) -> None:
            if stops is not None:
                stops.push_functions(codegen)
            frame.push_stack(codegen)
            if stops is not None:
                stops.push_call(codegen)
            codegen.sequence([tx.locals[name] for name in changed])
            codegen.apply_side_effects(codegen.push_side_effects())
            for name in reversed(changed):
                codegen.emit("STORE_FAST", name)
            for name in self._dropped():
                codegen.emit("DELETE_FAST", name)
            codegen.instructions.append(Instruction("JUMP", target=entry))

        return self.finish(restore, tail, needs_hook=True)

    def _dropped(self) -> list[str]:
        """Arguments that the program's own frame would not hold here any more."""
        tx, code = self.tx, self.tx.code
        count = argument_count(code.co_argcount, code.co_kwonlyargcount, code.co_flags)
        kept = {*code.co_cellvars, *self.frame.names, self.frame.first}
        return [
            name
            for name in code.co_varnames[:count]
            if name not in kept
            and (is_made_name(name) or not _is_argument(tx.locals.get(name), name))
        ]

    def _tail(self) -> tuple[list[Instruction], Instruction]:
        """A copy of the base code that leaves behind the stopping instruction, and where to enter
        it.
        """
        frame = self.frame
        copies, stopped = frame.stopping_copy()
        if self.stops is None:
            tail = patch_ways_on(frame, stopped, copies, list(copies), self._leave)
            return tail, stopped
        call = self.stops.call()
        call.handler = stopped.handler
        plain = frame.returned(copies, self._leave)
        block = [call, *check_suspended(plain[0])]
        for number, exit_ in enumerate(self.stops.exits):
            following = Instruction("NOP")
            block += [
                Instruction("LOAD_FAST", RESULT_NAME),
                Instruction("LOAD_CONST", 0),
                Instruction("BINARY_SUBSCR"),
                Instruction("LOAD_CONST", number),
                Instruction("COMPARE_OP", "=="),
                *current.emit_pop_jump("FALSE", following, is_bool=True),
                *self._resume(exit_),
                following,
            ]
        block += plain
        set_positions(block, stopped)
        listing = [*block, *copies]
        patch_handler(frame, copies, listing, self._leave)
        return listing, call

    def _resume(self, exit_: Exit) -> list[Instruction]:
        assert self.stops is not None
        inner, unpack = self.stops.resume(exit_)
        key = self.frame.key(self.frame.index, self.frame.slots, inner)
        load = Instruction("LOAD_FAST", RESULT_NAME)
        return [load, *unpack, *store_stack(key.slots), *self._hand_over(key)]

    def _leave(self, way: WayOn) -> list[Instruction]:
        key = self.frame.key(way.index, way.slots)
        return [*store_stack(way.slots), *self._hand_over(key)]

    def _hand_over(self, key: ContinuationKey) -> list[Instruction]:
        """Tail-call a continuation; the stack is in locals already."""
        base = self.frame.base
        code = continuation(base, key)
        names = key.arguments()
        note_handed(code, {name: self.handed[name] for name in names if name in self.handed})
        loads = load_locals(names)
        if key.first == SUPER_NAME:
            loads[0] = Instruction("LOAD_DEREF", base.co_varnames[0])
        # A traceback may hold this frame, but not what its locals were.
        if self.tx.mortal or HANDLED in key.slots:
            loads += [
                Instruction("DELETE_FAST", load.arg)
                for load in loads
                if load.opname == "LOAD_FAST"
            ]
        call = current.emit_call(
            [Instruction("LOAD_CONST", tail_call)],
            [*self._load_continuation(code), *loads],
            1 + len(names),
        )
        return [*call, Instruction("RETURN_VALUE")]

    def _load_continuation(self, code: types.CodeType) -> list[Instruction]:
        closure = closure_names(self.frame.base)
        if closure:
            return current.emit_make_function(code, list(closure))
        function = types.FunctionType(code, self.tx.globals, self.frame.base.co_name)
        return [Instruction("LOAD_CONST", function)]


def _refuse_spoilt(step: int) -> NoReturn:
    reason = Unsupported(
        "autograd call",
        "a captured backward pass",
        "a result of the graph needs the history that the pass frees, or that begins in the graph",
        hints=["detach() what is returned or stored, or keep the history: retain_graph=True"],
    )
    reason.made_at = step  # type: ignore[attr-defined]
    raise reason


def _forget_temporaries(instructions: list[Instruction], has_inputs: bool) -> list[Instruction]:
    """Unbind the locals of the generated code, for the program's own frame has no such."""
    names = {INPUTS_NAME: None} if has_inputs else {}
    for inst in instructions:
        if inst.opname == "STORE_FAST" and is_temporary(inst.arg):
            names[inst.arg] = None
    return [Instruction("DELETE_FAST", name) for name in names]


def _is_argument(value: VariableTracker | None, name: str) -> bool:
    """Whether the local still is the argument of that name."""
    return value is not None and value.source == LocalSource(name)
