"""The errors that minidynamo raises by itself; all are `MinidynamoError`, a RuntimeError.

    Unsupported              what cannot be captured: kind, context, explanation, hints
    UserError                a wrong use of the public interface
    InvalidBackend           no backend of that name: name
    BackendCompilerFailed    the backend raised: backend_name, inner_exception
    TorchRuntimeError        an operator cannot run on these (fake) inputs
    DataDependentError       the same of a branch on data: also a UserError
    RecompileLimitExceeded   config.recompile_limit, with fullgraph or fail_on_recompile_limit_hit
    RecompileError           config.error_on_recompile
    VerificationFailed       config.verify_correctness found other results
    CppCompileError          the C++ compiler refused a kernel: command, output, source_path
    NoCompiler               there is none (a CppCompileError)
    TritonCompileError       the same of Triton
    InternalError            a bug of minidynamo

`TorchDynamoException`, `InternalTorchDynamoError`, `FailOnRecompileLimitHit` and
`UncapturedHigherOrderOpError` are torch's names of the same.
Every one has `user_stack`, the user's frames, outermost first; the text ends with them.
An error of the user's own program is raised as it is, never wrapped.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from typing import Any

from . import config
from .utils import warn_once

__all__ = [
    "BackendCompilerFailed",
    "CppCompileError",
    "DataDependentError",
    "FailOnRecompileLimitHit",
    "InternalError",
    "InternalTorchDynamoError",
    "InvalidBackend",
    "KernelCompileError",
    "MinidynamoError",
    "NoCompiler",
    "RecompileError",
    "RecompileLimitExceeded",
    "TorchDynamoException",
    "TorchRuntimeError",
    "TritonCompileError",
    "UncapturedHigherOrderOpError",
    "Unsupported",
    "UserError",
    "VerificationFailed",
    "format_user_stack",
    "plain_stack",
]

UserStack = Sequence[traceback.FrameSummary]


def format_user_stack(stack: Iterable[traceback.FrameSummary]) -> str:
    """`stack` as Python prints a traceback, without the heading; "" for none."""
    return "".join(traceback.StackSummary.from_list(list(stack)).format())


def plain_stack(stack: Iterable[traceback.FrameSummary]) -> str:
    """The same without marks below expressions, for which Python parses every line."""
    lines = []
    for frame in stack:
        lines.append(f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n')
        if frame.line:
            lines.append(f"    {frame.line.strip()}\n")
    return "".join(lines)


class MinidynamoError(RuntimeError):
    """Base of all. `user_stack` may be given when it is raised or set by whoever knows it later."""

    def __init__(self, message: str = "", *, user_stack: UserStack = ()) -> None:
        super().__init__(message)
        self.message = message
        self.user_stack: UserStack = user_stack

    @property
    def msg(self) -> str:
        """Torch's name of `message`."""
        return self.message

    def __str__(self) -> str:
        text = self.message
        if self.user_stack:
            text += f"\n\nfrom user code:\n{format_user_stack(self.user_stack)}"
        if config.verbose and self.__traceback__ is not None:
            stack = "".join(traceback.format_tb(self.__traceback__))
            text += f"\n\nfrom the compiler (config.verbose):\n{stack}"
        return text


class InternalError(MinidynamoError):
    """minidynamo contradicted itself; the program is not at fault."""


class UserError(MinidynamoError):
    """The public interface was used in a way that has no meaning."""


class TorchRuntimeError(MinidynamoError):
    """An operator raised while the graph was traced with fake tensors; the cause is `__cause__`."""


class RecompileError(MinidynamoError):
    """A frame had to be compiled again under `config.error_on_recompile`; names the guards."""


class VerificationFailed(MinidynamoError):
    """A compiled graph disagreed with eager under `config.verify_correctness`."""


class Unsupported(MinidynamoError):
    """What the front end does not capture: a graph break, or an error with `fullgraph=True`.

    kind: the stable name of the reason, a row of the table of graph breaks.
    context: what it was about here. explanation: why it cannot be captured.
    hints: what the user may do.
    """

    # Symbolic numbers were made constants, which did not help: the graph should end without that.
    specialized_in_vain = False
    # The state from outside without which there is no break (source, check, value): a guard of
    # what was compiled up to here.
    because_of: tuple[Any, str, Any] | None = None

    def __init__(
        self,
        kind: str,
        context: str = "",
        explanation: str = "",
        hints: Sequence[str] = (),
        user_stack: UserStack = (),
    ) -> None:
        lines = [kind]
        lines += [f"  Explanation: {explanation}"] if explanation else []
        lines += [f"  Hint: {hint}" for hint in hints]
        lines += [f"  Context: {context}"] if context else []
        super().__init__("\n".join(lines), user_stack=user_stack)
        self.args = (kind, context, explanation, tuple(hints))
        self.kind = kind
        self.context = context
        self.explanation = explanation
        self.hints = tuple(hints)


class DataDependentError(Unsupported, UserError):
    """A branch on a number that depends on a tensor's data; for torch that is a UserError."""


class RecompileLimitExceeded(Unsupported):
    """`config.recompile_limit` versions of one code object; the context names the failing guard."""


class InvalidBackend(MinidynamoError):
    """No backend goes by `name`."""

    def __init__(self, name: object, known: str = "") -> None:
        super().__init__(f"unknown backend {name!r}" + (f"; {known}" if known else ""))
        self.args = (name, known)
        self.name = name


class SkipFrame(BaseException):
    """The frame can't be replaced, or is not to be; it runs in eager. No Exception: the tracer
    takes those of functions that it runs for the program's.
    """


class RunInEager(Exception):
    """Never seen by users: this call of the frame that is being captured, with everything below
    it, is to run in eager. The next call is captured anew.
    """


class BackendCompilerFailed(MinidynamoError):
    """The backend raised `inner_exception`, or returned what cannot be called."""

    def __init__(
        self, backend: Any, inner_exception: BaseException, *, user_stack: UserStack = ()
    ) -> None:
        name = (
            backend if isinstance(backend, str) else getattr(backend, "__name__", repr(backend))
        )
        cause = f"{type(inner_exception).__name__}: {inner_exception}"
        super().__init__(f"backend={name!r} raised:\n{cause}", user_stack=user_stack)
        self.args = (name, inner_exception)
        self.backend_name = name
        self.inner_exception = inner_exception


class KernelCompileError(MinidynamoError):
    """A native compiler refused generated code; `output` is all it printed, the message its end."""

    def __init__(self, command: Sequence[str], output: str, source_path: str = "") -> None:
        tail = "\n".join(output.splitlines()[-40:])
        where = f"\nsource: {source_path}" if source_path else ""
        super().__init__(f"compiler failed: {' '.join(command)}{where}\n{tail}")
        self.args = (tuple(command), output, source_path)
        self.command = tuple(command)
        self.output = output
        self.source_path = source_path


class CppCompileError(KernelCompileError):
    """The C++ compiler failed on a generated kernel, or is missing."""


class NoCompiler(CppCompileError):
    """There is no C++ compiler. Without `fullgraph=True` the frame then runs in eager."""

    def __init__(self, command: Sequence[str], output: str, source_path: str = "") -> None:
        super().__init__(command, output, source_path)
        self.message = output  # nothing was run

    def warn(self) -> None:
        """Say it once: what needs a compiler runs in eager."""
        warn_once(f"{self.output}. Until then programs run in eager", key="no-compiler")


class TritonCompileError(KernelCompileError):
    """Triton failed on a generated kernel."""


# torch._dynamo.exc's names.
TorchDynamoException = MinidynamoError
InternalTorchDynamoError = InternalError
FailOnRecompileLimitHit = RecompileLimitExceeded
UncapturedHigherOrderOpError = Unsupported
