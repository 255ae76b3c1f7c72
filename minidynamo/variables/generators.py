"""Generators made by the traced code, advanced one yield at a time.

One that is needed after the graph is rebuilt (generator_frames). A generator that is dropped while
it is suspended inside a `try` or `with` runs its cleanup then: at the end of the frame whose
variable led to it, at the end of the loop over it, or where the variable gets another value. Where
the moment is another one, the frame is left to eager in which such a generator was made
(`pending_cleanup`).
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..exc import Unsupported
from ..finalizers import IMPLICIT_HANDLERS
from ..side_effects import Mutation
from ..source import AttrSource
from .base import ObservedException, VariableTracker, unsupported
from .builtin_object import NONE, builtin_method, is_none
from .exceptions import ExceptionVariable, set_context, stop_iteration_error
from .iterators import IteratorVariable
from .reach import is_held
from .user_defined import UserDefinedObjectVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import InliningTranslator, Translator

# The low bits of RESUME's operand behind a `yield from` or `await`.
_AFTER_YIELD_FROM = (2, 3)
# How generated code makes the real generator: (codegen, generator); see generator_frames.
REBUILD: list[Callable[[PyCodegen, GeneratorVariable], None]] = []


def _finished_generator(name: str, qualname: str) -> Any:
    """Run by generated code: a generator that is exhausted."""
    nothing: tuple[Any, ...] = ()
    generator = (item for item in nothing)
    generator.__name__ = name  # type: ignore[attr-defined]
    generator.__qualname__ = qualname  # type: ignore[attr-defined]
    generator.close()
    return generator


def _returns_at_its_end() -> Any:
    try:
        yield
    finally:
        return True  # noqa: B012


_PROBE: Any = _returns_at_its_end()
next(_PROBE)
_CLOSE_RETURNS = _PROBE.close() is True  # what newer Pythons return


class GeneratorVariable(IteratorVariable):
    """A generator: `frame` interprets its code from yield to yield."""

    def __init__(self, frame: InliningTranslator) -> None:
        super().__init__(types.GeneratorType, mutation=Mutation.NEW)
        self.frame = frame
        self.started = False
        self.finished = False
        self.running = False
        # Whether the real generator is needed after the graph.
        self.escapes = False
        self.result: VariableTracker | None = None
        frame.output.generators.append(self)

    # -- advancing ------------------------------------------------------------------------------

    def step(self, tx: Translator) -> VariableTracker | None:
        return self.send(tx, NONE)

    def send(self, tx: Translator, value: VariableTracker) -> VariableTracker | None:
        """Go on with `value` as what the suspended yield gives: the next value, None at the end."""
        if self.finished:
            return None
        self._check_idle(tx)
        if self.started:
            self.frame.push(value)
        elif not is_none(value):
            tx.raise_observed(
                TypeError, "can't send non-None value to a just-started generator"
            )
        return self._run(tx)

    def throw(self, tx: Translator, error: VariableTracker) -> VariableTracker | None:
        """Go on with an exception at the suspended yield (`_gen_throw`)."""
        self._check_idle(tx)
        is_chained = True
        if error.raised_at is None and error.source is None:
            error.raised_at = tx.last_step()
        if not self.started and not self._replaces_stop_iteration():
            raise self._failure(tx, error)
        if not self.started or self.finished:
            self.finished = True
            raise ObservedException(error, is_chained=True)
        if self._delegates():
            self.running = True
            try:
                answer = self._throw_into(tx, self.frame.stack[-1].realize(), error)
            except ObservedException as other:
                answer, error, is_chained = None, other.value, other.is_chained
            finally:
                self.running = False
            if answer is not None:
                is_yielded, value = answer
                return value if is_yielded else self._leave_delegation(tx, value)
        frame = self.frame
        frame.caller = tx
        # Its context is what the generator handles, not what its caller does.
        if frame.exc_info:
            set_context(tx, error, frame.exc_info[-1].realize())
        frame.push(NONE)
        self.running = True  # unwinding drops, and thereby ends, other generators
        try:
            is_handled = frame.unwind(frame.instructions[frame.ip - 1], error)
        except ObservedException as uncaught:
            raise self._failure(tx, uncaught.value, uncaught.is_chained) from uncaught
        finally:
            self.running = False
        if not is_handled:
            raise self._failure(tx, error, is_chained)
        return self._run(tx)

    def _throw_into(
        self, tx: Translator, receiver: VariableTracker, error: VariableTracker
    ) -> tuple[bool, VariableTracker] | None:
        """Throw into what a `yield from` goes over: (True, what it yields), (False, what it
        returned), or None where the exception is due in this frame.
        """
        if issubclass(error.python_type(), GeneratorExit):
            close = _optional(tx, receiver, "close")
            if close is not None:
                tx.call_function(close, [], {})
            return None
        throw = _optional(tx, receiver, "throw")
        if throw is None:
            return None
        try:
            return True, tx.call_function(throw, [error], {})
        except ObservedException as stop:
            if not issubclass(stop.value.python_type(), StopIteration):
                raise
            return False, stop.value.getattr(tx, "value")

    def _leave_delegation(
        self, tx: Translator, value: VariableTracker
    ) -> VariableTracker | None:
        """Go on behind the `yield from`, which gives `value`."""
        frame = self.frame
        frame.push(value)
        frame.jump(frame.instructions[frame.ip - 2].target)
        return self._run(tx)

    def _check_idle(self, tx: Translator) -> None:
        if self.running:
            tx.raise_observed(ValueError, "generator already executing")

    def _run(self, tx: Translator) -> VariableTracker | None:
        self.started = self.running = True
        self.frame.caller = tx
        try:
            value = self.frame.resume()
        except ObservedException as error:
            raise self._failure(tx, error.value, error.is_chained) from error
        finally:
            self.running = False
        if value is None:
            self.finished = True
            self.result = self.frame.result
        return value

    def _failure(
        self, tx: Translator, error: VariableTracker, is_chained: bool = True
    ) -> ObservedException:
        """What the caller gets of an exception that ended the frame: RuntimeError for StopIteration
        (PEP 479).
        """
        self.finished = True
        if issubclass(error.python_type(), StopIteration):
            error, is_chained = stop_iteration_error(tx, error), True
        return ObservedException(error, is_chained=is_chained)

    def _replaces_stop_iteration(self) -> bool:
        """Whether the body itself does what PEP 479 says, as it does from 3.12 on."""
        return any(
            inst.opname == "CALL_INTRINSIC_1" and inst.arg == "STOPITERATION_ERROR"
            for inst in self.frame.instructions
        )

    def close(self, tx: Translator) -> VariableTracker:
        """`generator.close()`: from Python 3.13 on, what the body returns then."""
        tx.output.side_effects.mutate(self)
        if not self.started:
            self.finished = True
        if self.finished:
            return NONE
        try:
            value = self.throw(tx, tx.wrap_exception(GeneratorExit()))
        except ObservedException as error:
            if not issubclass(error.value.python_type(), (GeneratorExit, StopIteration)):
                raise
            return NONE
        if value is not None:
            tx.raise_observed(RuntimeError, "generator ignored GeneratorExit")
        result, self.result = self.returned_value(tx), None
        return result if _CLOSE_RETURNS else NONE

    def _delegates(self) -> bool:
        """Whether it is suspended in a `yield from`."""
        following = self.frame.instructions[self.frame.ip]
        return following.opname == "RESUME" and (following.arg or 0) & 3 in _AFTER_YIELD_FROM

    def pending_cleanup(self) -> bool:
        """Whether dropping the generator now would run code of it."""
        if self.finished or not self.started:
            return False
        handler = self.frame.instructions[self.frame.ip - 1].handler
        while handler is not None and handler.target.opname in IMPLICIT_HANDLERS:
            handler = handler.target.handler
        return handler is not None or (self._delegates() and self._closes_iterator())

    def _closes_iterator(self) -> bool:
        """Whether what a `yield from` goes over has a `close` of the program. (A generator is
        dropped with this one.)
        """
        iterator = self.frame.stack[-1].realize()
        return isinstance(iterator, UserDefinedObjectVariable) and hasattr(
            iterator.python_type(), "close"
        )

    def end(self, tx: Translator) -> None:
        """Nothing leads to it any more: run its cleanup (`_PyGen_Finalize`)."""
        try:
            self.close(tx)
        except ObservedException:
            what = "its cleanup raises where nobody can catch it"
            unsupported("generator left unfinished", repr(self), what)

    def closes_silently(self, tx: Translator) -> bool:
        """Run the cleanup that dropping it would run; whether that did nothing anybody can see.

        Then it does not matter when it happens. Otherwise the trace is not to be used.
        """
        effects, last = tx.output.side_effects, tx.output.checkpoint()[1]
        # Mutations that closing is: of the generator, and of GeneratorExit, which gets a context.
        handled = [value.realize() for value in self.frame.exc_info[-1:]]
        before = effects.version + 1
        before += any(isinstance(value, ExceptionVariable) for value in handled)
        try:
            self.close(tx)
        except (ObservedException, Unsupported):
            return False
        return effects.version == before and tx.output.checkpoint()[1] is last

    # -- the end --------------------------------------------------------------------------------

    def returned_value(self, tx: Translator) -> VariableTracker:
        return self.result if self.result is not None else NONE

    def stop_iteration(self) -> VariableTracker:
        result = self.result
        self.result = None
        if result is None or is_none(result.realize()):
            return ExceptionVariable(StopIteration, [])
        return ExceptionVariable(StopIteration, [result])

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if name in ("__name__", "__qualname__"):
            return self.frame.function.getattr(tx, name)
        return super().getattr(tx, name)

    def reconstruct(self, codegen: PyCodegen) -> None:
        self.escapes = True
        if self.running:
            unsupported("generator leaves the graph", repr(self), "it is being executed")
        if self.finished:
            codegen.begin_call(_finished_generator)
            codegen.load_const(self.frame.code.co_name)
            codegen.load_const(self.frame.code.co_qualname)
            codegen.end_call(2)
        else:
            REBUILD[0](codegen, self)


def _optional(
    tx: Translator,
    value: VariableTracker,
    name: str,
) -> VariableTracker | None:
    """An attribute, or None where there is none."""
    try:
        return tx.getattr(value, name)
    except ObservedException as error:
        if not issubclass(error.value.python_type(), AttributeError):
            raise
        return None


def _given(self: GeneratorVariable, value: VariableTracker | None) -> VariableTracker:
    if value is None:
        raise ObservedException(self.stop_iteration())
    return value


@builtin_method(types.GeneratorType, "send")
def _send(
    tx: Translator,
    self: GeneratorVariable,
    value: VariableTracker,
    /,
) -> Any:
    tx.output.side_effects.mutate(self)
    return _given(self, self.send(tx, value))


@builtin_method(types.GeneratorType, "throw")
def _throw(
    tx: Translator,
    self: GeneratorVariable,
    type_: VariableTracker,
    value: VariableTracker = NONE,
    traceback: VariableTracker = NONE,
    /,
) -> Any:
    if not is_none(traceback):
        is_traceback = traceback.python_type() is types.TracebackType
        if not isinstance(value, ExceptionVariable) or not is_traceback:
            unsupported("exception attribute", "throw", "tracebacks are not traced")
        own = value.source is not None and AttrSource(value.source, "__traceback__")
        if traceback.source is None or traceback.source != own:
            value.set_traceback(tx, traceback)
    if isinstance(type_.realize(), ExceptionVariable) and not is_none(value):
        tx.raise_observed(TypeError, "instance exception may not have a separate value")
    error = value if isinstance(value, ExceptionVariable) else type_
    if error is type_ and not is_none(value):
        error = tx.call_function(type_, [value], {})
    error = error.realize()
    kind = error.python_type()
    if issubclass(kind, type):
        kind = error.as_python_constant()
    if not issubclass(kind, BaseException):
        if self.started and not self.finished and self._delegates():
            unsupported("generator method", "throw", "what it delegates to gets no exception")
        name = error.python_type().__name__
        text = (
            f"exceptions must be classes or instances deriving from BaseException, not {name}"
        )
        tx.raise_observed(TypeError, text)
    tx.output.side_effects.mutate(self)
    return _given(self, self.throw(tx, tx.make_exception(error, None)))


@builtin_method(types.GeneratorType, "close")
def _close(
    tx: Translator,
    self: GeneratorVariable,
    /,
) -> VariableTracker:
    return self.close(tx)


# -- dropping --------------------------------------------------------------------------------------


def end_dropped(tx: Translator) -> None:
    """To be called after an iterator left the stack: generators that only it led to are closed."""
    for generator in list(tx.output.generators):
        if (
            not generator.running
            and generator.pending_cleanup()
            and not is_held(tx, (generator,))
        ):
            generator.end(tx)


def cut_stack(
    frame: Translator,
    depth: int,
) -> None:
    """What an exception does to the frame's stack, in front of the handler."""
    dropped = frame.stack[depth:]
    del frame.stack[depth:]
    if frame.output.generators and any(isinstance(v, GeneratorVariable) for v in dropped):
        end_dropped(frame)


def end_on_stack(frame: Translator) -> None:
    """To be called where an exception leaves the frame: its stack is dropped, unlike its variables,
    which the traceback leads to.
    """
    if frame.parent is not None and any(
        isinstance(v, GeneratorVariable) and v.pending_cleanup() for v in frame.stack
    ):
        cut_stack(frame, 0)


def end_with_frame(frame: Translator, value: VariableTracker) -> None:
    """To be called when `frame` has returned `value`: generators that only its variables led to
    are closed, in the order of these.
    """
    generators = frame.output.generators
    if not generators:
        return
    generators[:] = [g for g in generators if not g.finished]
    pending = [g for g in generators if g.pending_cleanup()]
    if not pending or any(g.running for g in generators):
        return
    order = frame.code.co_varnames
    names = [name for name, item in frame.locals.items() if item in pending]
    ended = dict.fromkeys(frame.locals[n] for n in sorted(names, key=order.index))
    if frame.parent is None and not ended and len(pending) == 1:
        ended = dict.fromkeys(pending if is_held(frame, pending) else ())
    for generator in ended:
        assert isinstance(generator, GeneratorVariable)
        if not is_held(frame, (generator,), [frame.parent, value]):
            generator.end(frame)
