"""One program, run in eager and compiled: everything that can be seen has to agree."""

from __future__ import annotations

import contextlib
import io
import signal
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from builder import Builder, Scope
from compare import Snapshot
from grammar import PRELUDE, SIGNATURE

import minidynamo

# Arguments of one call, as expressions in the program's namespace; `node` and `items` exist before.
CALLS: list[dict[str, str]] = [
    {},
    {"a": "5", "b": "-1"},
    {"items": "[]", "text": "''", "table": "{}", "group": "set()"},
    {"other": "node", "node": "Node(2, items)"},
    {"node": "Child(3, items)", "other": "Child(9, [])", "source": "upto(2)"},
    {"x": "torch.arange(4.0)", "items": "[1, 2]", "source": "iter([])"},
    {"a": "True", "b": "2.5", "table": "{'b': 3, 'a': 2}"},
    {"items": "[3, 1, 2, 0]", "group": "{3, 5}", "table": "TABLE", "text": "'3'"},
    {"source": "map(abs, items)", "items": "LOG"},
]
PLAIN = {
    "items": "[1, 2, 3]",
    "node": "Node(2, [4, 1])",
    "x": "torch.ones(3)",
    "a": "1",
    "b": "2",
    "text": "'ab'",
    "table": "{'a': 1, 'b': 2}",
    "other": "Child(1, [7])",
    "group": "{1, 2}",
    "source": "iter([5, 6])",
}
EAGER_SECONDS, COMPILED_SECONDS = 1.0, 30.0


class TooSlow(BaseException):
    """A run took longer than it may."""


@dataclass(frozen=True)
class Program:
    """Source text of `fn`, and which rows of `CALLS` it is called with."""

    text: str
    calls: tuple[int, ...]

    def __str__(self) -> str:
        shown = [{**CALLS[index]} for index in self.calls]
        return f"{self.text}\n# calls: {shown}\n"


def make_program(choose: Callable[[int], int]) -> Program:
    """A random program; `choose(n)` gives a number below n."""
    builder = Builder(choose)
    scope = Scope(dict(SIGNATURE), set(SIGNATURE), in_function=True)
    lines = builder.statements(scope, 0)
    result = [builder.expression(kind, scope) for kind in ("TENSOR", "ANY")]
    body = "\n    ".join([*lines, f"return {', '.join(result)}"])
    calls = tuple(choose(len(CALLS)) for _ in range(3))
    return Program(f"def fn({', '.join(SIGNATURE)}):\n    {body}\n", calls)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def stop(_signal: int, _frame: Any) -> None:
        raise TooSlow

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def run(program: Program, compile_: Callable[[Any], Any]) -> list[Any]:
    """The snapshot of each call: outcome, arguments, the program's globals."""
    namespace: dict[str, Any] = {"__name__": "program"}
    exec(compile(PRELUDE, "<prelude>", "exec"), namespace)
    exec(compile(program.text, "<program>", "exec"), namespace)
    function = compile_(namespace["fn"])
    snapshots = []
    for index in program.calls:
        arguments = make_arguments(namespace, CALLS[index])
        namespace["FUEL"][0] = 0
        with contextlib.redirect_stdout(io.StringIO()):
            outcome = call(function, arguments)
        snapshot = Snapshot()
        visible = {name: namespace[name] for name in ("TOTAL", "LOG", "TABLE", "FUEL")}
        snapshots.append([snapshot.take(part) for part in (outcome, arguments, visible)])
    return snapshots


def make_arguments(namespace: dict[str, Any], changes: dict[str, str]) -> list[Any]:
    made: dict[str, Any] = {}
    for name, text in {**PLAIN, **changes}.items():
        made[name] = eval(text, namespace, made)
    return [made[name] for name in SIGNATURE]


def call(function: Any, arguments: list[Any]) -> Any:
    try:
        return "value", function(*arguments)
    except Exception as error:
        if isinstance(error, NameError) and str(error).startswith("cannot access"):
            # An unbound cell is a free variable behind a graph break: the words differ. CPython
            # 3.11 gives the line of the instruction before.
            return "unbound"
        return "raised", error, str(error), traceback_lines(error.__traceback__)


def traceback_lines(traceback: types.TracebackType | None) -> list[tuple[str, int]]:
    """Where in the program the exception went through."""
    lines = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename == "<program>":
            lines.append((code.co_name, traceback.tb_lineno))
        traceback = traceback.tb_next
    return lines


def eager_result(program: Program) -> list[Any] | None:
    """None if the program is not worth running: not valid, too slow or too large."""
    try:
        with time_limit(EAGER_SECONDS):
            return run(program, lambda function: function)
    except (TooSlow, MemoryError, RecursionError, SyntaxError):
        return None


def compiled_result(program: Program) -> list[Any]:
    minidynamo.reset()
    torch.manual_seed(0)
    with time_limit(COMPILED_SECONDS):
        return run(program, lambda fn: minidynamo.compile(fn, backend="eager"))


def difference(program: Program) -> str | None:
    """None where both runs agree (or the program is of no use), else what differs."""
    expected = eager_result(program)
    if expected is None:
        return None
    try:
        found = compiled_result(program)
    except TooSlow:
        return "the compiled run does not end"
    for index, (left, right) in enumerate(zip(expected, found, strict=True)):
        for what, a, b in zip(("outcome", "arguments", "globals"), left, right, strict=True):
            if a != b:
                return f"{what} of call {index}:\n  eager:    {a}\n  compiled: {b}"
    return None
