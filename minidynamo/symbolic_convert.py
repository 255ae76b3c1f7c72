"""The symbolic interpreter: runs canonical bytecode over `VariableTracker`s.

`RootTranslator` interprets the frame that the hook offered; calls of Python functions are
interpreted by an `InliningTranslator` below it. What cannot be traced raises `Unsupported`; the
graph breaks at the innermost instruction from which the program can go on: in the root frame, or in
a function that was called there by an instruction whose result is the function's (`is_resumable`).
"""

from __future__ import annotations

import traceback
import types
from typing import Any, NoReturn

from . import config, handlers, trace_rules
from .bytecode import Instruction, current, decode, instruction_index
from .exc import MinidynamoError, SkipFrame, Unsupported
from .opcodes import OPCODES
from .output_graph import OutputGraph
from .resume_execution import base_code, breaks_often, is_continuation, is_stack_name
from .source import (
    AttrSource,
    CellSource,
    ClosureSource,
    ConstSource,
    GlobalsSource,
    LocalSource,
    Source,
)
from .variables import builder
from .variables.arguments import bind_arguments
from .variables.base import NULL, NotConstant, ObservedException, VariableTracker, unsupported
from .variables.constant import ConstantVariable
from .variables.exceptions import (
    ExceptionVariable,
    extend_traceback,
    first_raise,
    set_context,
    traceback_of,
)
from .variables.finalizers import check_dropped, find_mortal
from .variables.functions import (
    BaseFunctionVariable,
    CellVariable,
    UserFunctionVariable,
)
from .variables.generators import GeneratorVariable, cut_stack, end_on_stack, end_with_frame
from .variables.globals_ import GlobalsVariable, globals_of
from .variables.modules import imported
from .variables.protocol import Protocol

MAX_INLINE_DEPTH = 200
MAX_LOOP_VERSIONS = 3
# So many instructions without an operation on tensors are a computation that eager does sooner.
MAX_IDLE_INSTRUCTIONS = 500_000
# It is left at one of these, which every loop has: copies are entered only where errors can be.
_IDLE_STOPS = frozenset(
    "CALL CALL_FUNCTION_EX FOR_ITER JUMP POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE".split()
)
_GENERATOR_FLAG = 0x20
_NOT_INLINED_FLAGS = 0x80 | 0x100 | 0x200  # coroutines and async generators


# The operations that end by pushing what the function they call returns.
_WAITING = frozenset(("CALL", "CALL_FUNCTION_EX", "LOAD_ATTR", "BINARY_SUBSCR"))


# What the program does there, for the operations that are not traced.
_NOT_TRACED = dict.fromkeys(("CHECK_EG_MATCH", "PREP_RERAISE_STAR"), "except*")


class RestartTracing(BaseException):
    """The attempt has to start over with `breaks` extended by (step, reason)."""

    def __init__(self, step: int, reason: Unsupported) -> None:
        super().__init__(step)
        self.step = step
        self.reason = reason


class GraphBreak(BaseException):
    """The graph breaks in `frame`: stack, locals and `current` are as before that instruction,
    and those of its callers as they are while they wait for it.
    """

    def __init__(self, frame: Translator, reason: Unsupported) -> None:
        super().__init__(reason)
        self.frame = frame
        self.reason = reason


class Translator(Protocol):
    """One frame being interpreted: its code, stack, locals and cells."""

    def __init__(
        self,
        output: OutputGraph,
        code: types.CodeType,
        globals_: dict[str, Any],
        parent: Translator | None,
    ) -> None:
        self.output = output
        self.code = code
        self.globals = globals_
        self.parent = parent
        # Who runs the frame: of a generator, who resumed it.
        self.caller = parent
        self.instructions: list[Instruction] = decode(code)
        self.ip = 0
        self.current: Instruction = self.instructions[0]
        self.stack: list[VariableTracker] = []
        self.locals: dict[str, VariableTracker] = {}
        # The names of a class's body.
        self.namespace: dict[str, VariableTracker] | None = None
        self.cells: dict[str, CellVariable] = {}
        # Those that comprehensions took out of their slots.
        self.borrowed: dict[str, CellVariable] = {}
        self.exc_info: list[VariableTracker] = []
        self.result: VariableTracker | None = None
        self.yielded: VariableTracker | None = None
        self._stack_cache: tuple[Instruction, list[traceback.FrameSummary]] | None = None
        self.root: RootTranslator = parent.root if parent is not None else self  # type: ignore[assignment]
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.has_root_globals = parent is None or globals_ is self.root.globals
        # Whether the graph may break in this frame.
        self.is_resumable = False
        self.step_number = 0
        output.frames.append(self)

    # -- the stack ---------------------------------------------------------------------------------

    def push(self, value: VariableTracker) -> None:
        self.stack.append(value)

    def pop_raw(self) -> VariableTracker:
        """The top of the stack, not looked at (it may be lazy or NULL)."""
        return self.stack.pop()

    def pop(self) -> VariableTracker:
        return self.stack.pop().realize()

    def popn_raw(self, count: int) -> list[VariableTracker]:
        if count == 0:
            return []
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def popn(self, count: int) -> list[VariableTracker]:
        return [value.realize() for value in self.popn_raw(count)]

    def push_callable(self, value: VariableTracker) -> None:
        """The two slots that LOAD_METHOD fills, in the version's own order."""
        for slot in current.call_slots(value, NULL):
            self.push(slot)

    # -- control -----------------------------------------------------------------------------------

    def jump(self, target: Instruction | None) -> None:
        assert target is not None
        self.ip = instruction_index(self.code)[target]

    def return_value(self, value: VariableTracker) -> None:
        self.result = value

    def yield_value(self, value: VariableTracker) -> None:
        self.yielded = value

    def step(self) -> None:
        """Interpret one instruction. Raises `GraphBreak` or `RestartTracing` where the graph has to
        break in this frame.
        """
        if not self.is_resumable:
            self.execute()
            return
        root = self.root
        root.n_steps = self.step_number = root.n_steps + 1
        known = root.breaks.get(root.n_steps)
        if known is not None:
            self.current = self.instructions[self.ip]
            self.stop(known)
        saved = (list(self.stack), dict(self.locals), self.ip, list(self.exc_info))
        checkpoint = (self.output.checkpoint(), self.output.guards_mark())
        try:
            self.execute()
            if root.mortal:
                check_dropped(self, root.mortal)
        except Unsupported as reason:
            self.back_to(saved, checkpoint, reason)
        except ObservedException as error:
            if self.parent is not None:
                raise
            end = self.uncaught(error)
            raised_at = first_raise(self, error.value)
            if raised_at is not None and raised_at != self.step_number:
                # Raised for real, it has the traceback of eager.
                raise RestartTracing(raised_at, end) from error
            self.back_to(saved, checkpoint, end)
        except RecursionError:
            if self.parent is not None:
                raise
            self.back_to(saved, checkpoint, self.too_deep())

    def too_deep(self) -> Unsupported:
        """The reason to stop where the tracer needs more of the stack than the program itself."""
        context = f"{self.code.co_qualname}:{self.current.lineno}"
        why = "the tracer reached the recursion limit in a deep nest of calls or values"
        return Unsupported("recursion", context, why, user_stack=self.user_stack())

    def execute(self) -> None:
        """Interpret one instruction; an exception of the traced program goes to
        its handler here.
        """
        inst = self.current = self.instructions[self.ip]
        self.ip += 1
        self.in_tail = self.made = None
        self.output.idle_instructions += 1
        handler = OPCODES.get(inst.opname)
        try:
            idle = self.output.idle_instructions > MAX_IDLE_INSTRUCTIONS
            if idle and inst.opname in _IDLE_STOPS:
                self.stop_idling()
            if handler is None:
                what = _NOT_TRACED.get(inst.opname, inst.opname)
                unsupported("opcode", inst.opname, f"{what} is not traced")
            handler(self, inst)
        except ObservedException as error:
            self.chain(error)
            if not self.unwind(inst, error.value):
                raise
        except NotConstant as error:
            text = f"{error.args[0]!r} would have to be a constant here"
            reason = Unsupported("no constant", inst.opname, text, user_stack=self.user_stack())
            raise reason from error
        except MinidynamoError as error:
            if not error.user_stack:
                error.user_stack = self.user_stack()
            raise

    def stop_idling(self) -> None:
        """Leave a long computation on plain Python values to eager: the frame, or what is left of
        it where something was captured. With fullgraph it is traced to its end.
        """
        output = self.output
        output.idle_instructions = 0
        if output.options.fullgraph:
            return
        context = f"{self.code.co_qualname}:{self.current.lineno}"
        why = (
            f"{MAX_IDLE_INSTRUCTIONS} instructions were traced without an operation on tensors"
        )
        if output.is_empty():
            raise SkipFrame(f"{why}; the last in {context}")
        hint = "move the computation out of the compiled function"
        unsupported("long computation", context, why, [hint])

    def uncaught(self, error: ObservedException) -> Unsupported:
        """The reason to stop at an exception that ends the outermost function."""
        reason = Unsupported(
            "exception",
            f"{error.value!r}",
            "the function ends with this exception; eager raises it",
            user_stack=self.user_stack(),
        )
        reason.__cause__ = error
        return reason

    def back_to(self, saved: tuple[Any, ...], checkpoint: Any, reason: Unsupported) -> NoReturn:
        """Undo the instruction that failed and break the graph there; start over if it
        cannot be undone.
        """
        graph_point, guards_mark = checkpoint
        made_at = getattr(reason, "made_at", None)
        if made_at is not None and made_at != self.step_number:
            raise RestartTracing(made_at, reason)
        if reason.specialized_in_vain or not self.output.can_rollback(graph_point):
            raise RestartTracing(self.step_number, reason)
        self.output.rollback(graph_point)
        # The trace ends here: what only this instruction looked at is loaded again, whatever it is.
        self.output.withdraw_guards(guards_mark)
        self.output.guarded_classes.clear()
        self.stack, self.locals, self.ip, self.exc_info = saved
        self.current = self.instructions[self.ip]
        self.stop(reason)

    def stop(self, reason: Unsupported) -> NoReturn:
        """Break the graph here. Code that the tracer does not see may look at the exceptions that
        are being handled, and at their tracebacks: start over with a break where the outermost of
        them was raised, if there are some.
        """
        frame: Translator | None = self
        steps = []
        while frame is not None:
            steps += [
                error.raised_at for error in frame.exc_info if error.raised_at is not None
            ]
            frame = frame.parent
        if steps and min(steps) not in self.root.breaks:
            raise RestartTracing(min(steps), reason)
        if reason.because_of is not None:
            self.guard(*reason.because_of)
        raise GraphBreak(self, reason)

    def last_step(self) -> int:
        """The running step, of this frame or the nearest around it in which the graph may break."""
        frame: Translator = self
        while not frame.is_resumable:
            assert frame.parent is not None
            frame = frame.parent
        return frame.step_number

    def chain(self, error: ObservedException) -> None:
        """Give a new exception its `__context__`: the innermost one that is being handled."""
        if error.is_chained:
            return
        error.is_chained = True
        raises = self.current.opname == "RAISE_VARARGS" and self.current.arg > 0
        # One that was being handled in front of the graph was raised for real.
        if error.value.raised_at is None and (raises or error.value.source is None):
            error.value.raised_at = self.last_step()
        handled = self.handled_exception()
        if handled is not None:
            set_context(self, error.value, handled)

    def unwind(self, inst: Instruction, error: VariableTracker) -> bool:
        """Jump to the handler of `inst` as CPython's exception table says. False: there is none,
        and the exception leaves the frame.
        """
        handler = inst.handler
        extend_traceback(inst, error)
        if handler is None:
            end_on_stack(self)
            if self.parent is not None and error.raised_at is None:
                error.raised_at = self.last_step()  # the caller adds to its traceback
            return False
        cut_stack(self, handler.depth)
        if handler.lasti:
            self.push(ConstantVariable(self.ip - 1))
        self.push(error)
        self.jump(handler.target)
        return True

    def user_stack(self) -> list[traceback.FrameSummary]:
        """The user's frames at this point, outermost first. Not to be changed."""
        cached = self._stack_cache
        if cached is not None and cached[0] is self.current:
            return cached[1]
        code = self.code
        line = self.current.lineno or code.co_firstlineno
        _, last, column, end = self.current.positions or (None, None, None, None)
        frame = traceback.FrameSummary(
            code.co_filename,
            line,
            code.co_name,
            lookup_line=False,
            end_lineno=last,
            colno=column,
            end_colno=end,
        )
        frames = [*(self.parent.user_stack() if self.parent is not None else ()), frame]
        self._stack_cache = (self.current, frames)
        return frames

    def release(self) -> None:
        """Let go of the frame's objects, which reference cycles would keep until a collection."""
        for holder in (self.stack, self.locals, self.cells, self.exc_info):
            holder.clear()  # type: ignore[attr-defined]
        self.result = self.yielded = None

    # -- names -------------------------------------------------------------------------------------

    def globals_source(self) -> Source:
        if self.has_root_globals:
            return GlobalsSource()
        return ConstSource(self.globals, f"<globals of {self.globals.get('__name__')}>")

    def visible_locals(self) -> dict[str, VariableTracker | None]:
        """The locals in the order of `locals()`; None: not bound."""
        base = base_code(self.code)
        found = {}
        for name in (*base.co_varnames, *base.co_cellvars, *base.co_freevars):
            cell = self.cells.get(name)
            found[name] = self.locals.get(name) if cell is None else cell.load(self)
        return found

    def globals_variable(self) -> GlobalsVariable:
        return globals_of(self, self.globals, self.globals_source())

    def make_cell(self, name: str) -> None:
        """MAKE_CELL: a cell of this frame; an argument of that name moves into it."""
        cell = CellVariable()
        self.cells[name] = cell
        value = self.locals.pop(name, None)
        if value is not None:
            cell.store(self, value)

    def import_name(self, name: str, level: int, names: Any) -> VariableTracker:
        """IMPORT_NAME."""
        package = self.globals.get("__package__") or self.globals.get("__name__", "")
        found, path = imported(self, name, package if level else None, level, names)
        return self.wrap(found, ConstSource(found, path))

    def is_loop_of_continuation(self, iterator: VariableTracker) -> bool:
        """Whether the iterator was on the stack when the graph broke: then it belongs to a loop
        around the break. A loop whose items differ so much that the body does not serve all of
        them is unrolled.
        """
        source = iterator.source
        return (
            self.is_resumable
            and isinstance(source, LocalSource)
            and is_stack_name(source.local)
            and is_continuation(self.root.code)
            and len(self.root.frame.entries) < MAX_LOOP_VERSIONS
        )

    def wrap(self, value: Any, source: Source) -> VariableTracker:
        """The value of an object of the frame, with its guards. What was on the stack when the
        graph broke may be the item of a loop, such as `enumerate` gives.
        """
        on_stack = isinstance(source, LocalSource) and is_stack_name(source.local)
        return builder.wrap(self, value, source, itemwise=on_stack and type(value) is tuple)

    # -- calls -------------------------------------------------------------------------------------

    def inline(
        self,
        fn: BaseFunctionVariable,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        """Interpret a call of a Python function inside this graph."""
        code = fn.get_code()
        if code.co_flags & _NOT_INLINED_FLAGS:
            unsupported(
                "coroutine", code.co_name, "coroutines and async generators are not traced"
            )
        if self.depth >= MAX_INLINE_DEPTH:
            unsupported(
                "recursion", code.co_name, f"calls are nested more than {MAX_INLINE_DEPTH} deep"
            )
        is_tail, self.in_tail = self.in_tail is fn, None
        callee = InliningTranslator(self, fn, args, kwargs)
        if code.co_flags & _GENERATOR_FLAG:
            return self.make_generator(callee)
        callee.is_resumable = is_tail and self.is_resumable and self.can_wait(code)
        value = callee.run()
        end_with_frame(callee, value)
        return value

    def can_wait(self, code: types.CodeType) -> bool:
        """Whether the rest of the running instruction is to push what the function `code` returns;
        not in the functions of torch.func, which keep a state of torch open while they call.
        """
        if trace_rules.is_transform_file(self.code.co_filename) or code is trace_rules.DEEPCOPY:
            return False
        waits = config.nested_graph_breaks and self.current.opname in _WAITING
        return waits and not breaks_often(self.root.code, code)

    def call_python_function(
        self,
        fn: UserFunctionVariable,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        if is_continuation(fn.fn.__code__):
            return self.inline(fn, args, kwargs)
        return super().call_python_function(fn, args, kwargs)

    def handled_exception(self) -> VariableTracker | None:
        """The innermost exception that a traced frame handles."""
        frame: Translator | None = self
        while frame is not None:
            if frame.exc_info:
                return frame.exc_info[-1].realize()
            frame = frame.caller
        return None

    def traceback_of(self, error: VariableTracker) -> VariableTracker:
        """The traceback of an exception that is being handled."""
        is_real = isinstance(error, ExceptionVariable) and error.source is not None
        if is_real and error.raised_at is None:
            assert isinstance(error, ExceptionVariable) and error.source is not None
            traceback_ = AttrSource(error.source, "__traceback__")
            return self.lazy(error.real.__traceback__, traceback_)
        return traceback_of(error)

    def make_generator(self, callee: InliningTranslator) -> VariableTracker:
        """What calling a generator function gives: its frame, not started."""
        generator = GeneratorVariable(callee)
        generator.made_at = self.last_step()
        return generator


class InliningTranslator(Translator):
    """A called Python function, interpreted into the caller's graph."""

    def __init__(
        self,
        parent: Translator,
        fn: BaseFunctionVariable,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> None:
        super().__init__(parent.output, fn.get_code(), fn.get_globals(), parent)
        self.function = fn
        self.locals = bind_arguments(parent, fn, args, kwargs)  # type: ignore[arg-type]
        self.namespace = fn.namespace
        free = self.code.co_freevars
        if free:
            self.cells.update(zip(free, fn.closure(self), strict=True))

    def run(self) -> VariableTracker:
        while self.result is None:
            self.step()
        return self.result

    def resume(self) -> VariableTracker | None:
        """Run a generator to its next yield: the value, or None when it returned.

        Before it is resumed, what the suspended yield gives has to be pushed on its stack.
        """
        self.yielded = None
        while self.result is None:
            self.step()
            if self.yielded is not None:
                return self.yielded
        return None


class RootTranslator(Translator):
    """The outermost frame. `breaks[n]` says that the graph has to break before step n, counted over
    all frames in which it may."""

    def __init__(self, output: OutputGraph, frame: Any, breaks: dict[int, Unsupported]) -> None:
        super().__init__(output, frame.code, frame.globals, None)
        self.frame = frame
        self.breaks = breaks
        self.n_steps = 0
        self.is_resumable = True
        self.arguments: list[VariableTracker] = []
        # The exception in whose handler the frame runs.
        self.around: BaseException | None = None
        self.mortal: dict[str, Any] = {}
        output.modules.begin(frame.code, frame.f_locals)
        for name, value in frame.f_locals.items():
            self.locals[name] = self.lazy(value, LocalSource(name))
        self.arguments.extend(self.locals.values())
        for name, cell in zip(self.code.co_freevars, frame.closure or (), strict=True):
            variable = CellVariable(
                real=cell,
                source=CellSource(name),
                contents_source=ClosureSource(name),
                root_name=name,
            )
            output.side_effects.track(cell, variable)
            self.cells[name] = variable
        self.mortal = find_mortal(self.locals)
        output.side_effects.meets_finalizers = bool(self.mortal)

    def make_cell(self, name: str) -> None:
        """The generated code makes the cell too, with the argument in it, so only later stores
        count.
        """
        if name in self.borrowed:
            super().make_cell(name)
            return
        cell = CellVariable(root_name=name)
        cell.initial = self.locals.pop(name, None)
        self.cells[name] = cell

    def release(self) -> None:
        super().release()
        self.__dict__.pop("root", None)
        self.__dict__.pop("frame", None)
        self.mortal.clear()
        self.arguments.clear()

    def run(self) -> VariableTracker:
        """Interpret to the return value. Raises `GraphBreak` where the graph has to break."""
        while self.result is None:
            self.step()
        return self.result


__all__ = [
    "GraphBreak",
    "InliningTranslator",
    "RestartTracing",
    "RootTranslator",
    "Translator",
    "handlers",
]
