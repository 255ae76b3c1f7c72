"""Looking at a program while it is compiled, by the names of `torch._dynamo.comptime`.

    from minidynamo.comptime import comptime

    comptime.print(x)            # in a compiled function: what the compiler knows about x
    comptime.print_locals()
    comptime.print_graph()       # the FX graph as far as it is captured
    comptime(lambda ctx: ...)    # your own function of a `ComptimeContext` (handlers/comptime_.py)

Nothing of it becomes part of what is compiled. A frame may be traced more than once (after a graph
break, say): then it is printed more than once. In eager all but `comptime.print` do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Comptime", "comptime"]


def _nothing() -> None:
    return None


class Comptime:
    """The type of `comptime`; its methods are known to the tracer by identity."""

    @staticmethod
    def __call__(
        fn: Callable[[Any], Any],
        fallback_fn: Callable[[], Any] = _nothing,
    ) -> None:
        """Call `fn(context)` while compiling, and `fallback_fn()` in eager.

        fn: a function without variables of the compiled function in its closure.
        """
        fallback_fn()

    @staticmethod
    def print(e: Any) -> None:
        """What is known about a value: type, dtype, sizes, or the constant itself."""
        print(e)

    @staticmethod
    def print_locals(*, stacklevel: int = 0) -> None:
        """The same of all local variables; stacklevel: of that many callers further out."""

    @staticmethod
    def print_value_stack(*, stacklevel: int = 0) -> None:
        """The same of what lies on the interpreter's stack."""

    @staticmethod
    def print_value_stack_and_return(e: Any, *, stacklevel: int = 0) -> Any:
        """The same within an expression, whose value `e` is given back."""
        return e

    @staticmethod
    def print_graph() -> None:
        """The FX graph as far as it is captured, as Python code."""

    @staticmethod
    def print_guards() -> None:
        """The guards so far, one line each."""

    @staticmethod
    def print_bt(*, stacklevel: int = 0) -> None:
        """The user's frames, from the frame that is captured inwards."""

    @staticmethod
    def print_disas(*, stacklevel: int = 0) -> None:
        """The bytecode of the function, with an arrow at the running instruction."""

    @staticmethod
    def graph_break() -> None:
        """End the graph here."""

    @staticmethod
    def assert_static(val: Any) -> None:
        """Raise AssertionError while compiling where `val` is a symbolic number."""

    @staticmethod
    def force_static(val: Any) -> None:
        """Make a symbolic number a constant, with a guard."""

    @staticmethod
    def breakpoint() -> None:
        """Open the debugger in the compiler; the local `ctx` is the `ComptimeContext`."""

    @staticmethod
    def sleep(sec: float) -> None:
        """Let the compiler wait, for a debugger or profiler to be attached."""


comptime = Comptime()
