"""Generators made by the traced code, advanced one yield at a time.

A generator that is dropped while it is suspended inside a `try` or `with` would run its cleanup
then; that moment is not traced, so the graph breaks where such a generator was made
(`pending_cleanup`).
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, NoReturn

from ..exc import Unsupported
from ..side_effects import Mutation
from .base import ObservedException, VariableTracker, unsupported
from .builtin_object import NONE, builtin_method, is_none
from .constant import ConstantVariable
from .exceptions import ExceptionVariable
from .iterators import IteratorVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import InliningTranslator, Translator

# The low bits of RESUME's operand behind a `yield from` or `await`.
_AFTER_YIELD_FROM = (2, 3)


class GeneratorVariable(IteratorVariable):
    """A generator: `frame` interprets its code from yield to yield."""

    def __init__(self, frame: InliningTranslator) -> None:
        super().__init__(types.GeneratorType, mutation=Mutation.NEW)
        self.frame = frame
        self.started = False
        self.finished = False
        self.running = False
        self.result: VariableTracker | None = None
        frame.output.generators.append(self)

    # -- advancing ------------------------------------------------------------------------------

    def step(self, tx: Translator) -> VariableTracker | None:
        return self.send(tx, NONE)

    def send(self, tx: Translator, value: VariableTracker) -> VariableTracker | None:
        """Go on with `value` as what the suspended yield gives: the next value, None at the end."""
        if self.finished:
            return None
        if self.started:
            self.frame.push(value)
        elif not is_none(value):
            tx.raise_observed(TypeError, "can't send non-None value to a just-started generator")
        return self._run(tx)

    def throw(self, tx: Translator, error: VariableTracker) -> VariableTracker | None:
        """Go on with an exception at the suspended yield."""
        if not self.started:
            self.finished = True
        if self.finished:
            raise ObservedException(error)
        frame = self.frame
        if self._delegates():
            receiver = frame.stack[-1].realize()
            if not issubclass(error.python_type(), GeneratorExit):
                unsupported("generator", "throw", "throw into a `yield from` is not traced")
            if isinstance(receiver, GeneratorVariable):
                receiver.close(tx)
        try:
            frame.unwind(frame.instructions[frame.ip - 1], ObservedException(error))
        except ObservedException as raised:
            self._fail(tx, raised)
        return self._run(tx)

    def _run(self, tx: Translator) -> VariableTracker | None:
        if self.running:
            tx.raise_observed(ValueError, "generator already executing")
        self.started = self.running = True
        try:
            value = self.frame.resume()
        except ObservedException as error:
            self._fail(tx, error)
        finally:
            self.running = False
        if value is None:
            self.finished = True
            self.result = self.frame.result
        return value

    def _fail(self, tx: Translator, error: ObservedException) -> NoReturn:
        """The frame ended with an exception; StopIteration becomes RuntimeError (PEP 479)."""
        self.finished = True
        if not issubclass(error.value.python_type(), StopIteration):
            raise error
        replaced = tx.wrap_exception(RuntimeError("generator raised StopIteration"))
        replaced.setattr(tx, "__cause__", error.value)
        raise ObservedException(replaced) from error

    def close(self, tx: Translator) -> None:
        """`generator.close()`."""
        tx.output.side_effects.mutate(self)
        if not self.started:
            self.finished = True
        if self.finished:
            return
        try:
            value = self.throw(tx, tx.wrap_exception(GeneratorExit()))
        except ObservedException as error:
            if not issubclass(error.value.python_type(), (GeneratorExit, StopIteration)):
                raise
            return
        if value is not None:
            tx.raise_observed(RuntimeError, "generator ignored GeneratorExit")

    def _delegates(self) -> bool:
        """Whether it is suspended in a `yield from`."""
        following = self.frame.instructions[self.frame.ip]
        return following.opname == "RESUME" and (following.arg or 0) & 3 in _AFTER_YIELD_FROM

    def pending_cleanup(self) -> bool:
        """Whether dropping the generator now would run code of it."""
        if self.finished or not self.started:
            return False
        handler = self.frame.instructions[self.frame.ip - 1].handler
        if handler is None:
            return False
        target = handler.target
        implicit = target.opname in ("CLEANUP_THROW", "CALL_INTRINSIC_1")
        return not implicit

    def closes_silently(self, tx: Translator) -> bool:
        """Run the cleanup that dropping it would run; whether that did nothing anybody can see.

        Then it does not matter when it happens. Otherwise the trace is not to be used.
        """
        effects, last = tx.output.side_effects, tx.output.checkpoint()[1]
        before = effects.version + 1  # closing counts as one mutation, of the generator itself
        try:
            self.close(tx)
        except (ObservedException, Unsupported):
            return False
        return effects.version == before and tx.output.checkpoint()[1] is last

    # -- the end --------------------------------------------------------------------------------

    def returned_value(self) -> VariableTracker:
        return self.result if self.result is not None else NONE

    def stop_iteration(self) -> VariableTracker:
        result, self.result = self.returned_value(), None
        return ExceptionVariable(StopIteration, [] if is_none(result) else [result])

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if name in ("__name__", "__qualname__"):
            return ConstantVariable(getattr(self.frame.code, name.replace("__", "co_", 1)[:-2]))
        return super().getattr(tx, name)

    def reconstruct(self, codegen: PyCodegen) -> None:
        unsupported(
            "generator leaves the graph",
            repr(self),
            "a generator that was made in the graph is still needed after it",
            ["turn it into a list before the graph breaks"],
        )


def _given(self: GeneratorVariable, value: VariableTracker | None) -> VariableTracker:
    if value is None:
        raise ObservedException(self.stop_iteration())
    return value


@builtin_method(types.GeneratorType, "send")
def _send(tx: Translator, self: GeneratorVariable, value: VariableTracker, /) -> Any:
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
        unsupported("exception attribute", "throw", "tracebacks are not traced")
    error = value if isinstance(value, ExceptionVariable) else type_
    if error is type_ and not is_none(value):
        error = tx.call_function(type_, [value], {})
    tx.output.side_effects.mutate(self)
    return _given(self, self.throw(tx, tx.make_exception(error.realize(), None)))


@builtin_method(types.GeneratorType, "close")
def _close(tx: Translator, self: GeneratorVariable, /) -> None:
    self.close(tx)
