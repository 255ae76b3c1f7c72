"""Functions that are called when a compilation starts and ends, as `torch._dynamo.callback`.

@minidynamo.callback.on_compile_start
def started(args): print(args.compile_id)
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .events import FrameEvent, Subscription, subscribe

__all__ = [
    "CallbackArgs",
    "CallbackTrigger",
    "CompilationCallbackHandler",
    "callback_handler",
    "on_compile_end",
    "on_compile_start",
]

Callback = Callable[["CallbackArgs"], Any]
F = TypeVar("F", bound=Callback)


class CallbackTrigger(enum.Enum):
    """What began a compilation. It is always a frame: all else is a part of that."""

    DYNAMO = 1


@dataclass(frozen=True)
class CallbackArgs:
    """What is compiled: the name of a function and where it begins."""

    callback_trigger: CallbackTrigger
    compile_id: str


@dataclass
class CompilationCallbackHandler:
    """The registered functions. They listen to the events while there are any."""

    start_callbacks: list[Callback] = field(default_factory=list)
    end_callbacks: list[Callback] = field(default_factory=list)
    _subscription: Subscription | None = None
    _has_started: bool = False

    def register_start_callback(self, callback: F) -> F:
        self._add(self.start_callbacks, callback)
        return callback

    def register_end_callback(self, callback: F) -> F:
        self._add(self.end_callbacks, callback)
        return callback

    def remove_start_callback(self, callback: Callback) -> None:
        """Raises ValueError if it is not registered."""
        self.start_callbacks.remove(callback)

    def remove_end_callback(self, callback: Callback) -> None:
        """Raises ValueError if it is not registered."""
        self.end_callbacks.remove(callback)

    def clear(self) -> None:
        self.start_callbacks.clear()
        self.end_callbacks.clear()
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    def _add(self, callbacks: list[Callback], callback: Callback) -> None:
        if not callable(callback):
            raise TypeError(f"a callback is callable, not {type(callback).__name__}")
        callbacks.append(callback)
        if self._subscription is None:
            self._subscription = subscribe(self._note, FrameEvent)

    def _note(self, event: Any) -> None:
        code = event.code
        where = f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
        args = CallbackArgs(CallbackTrigger.DYNAMO, where)
        is_start = event.outcome == "start"
        if not (is_start or self._has_started):
            return  # a frame that nobody tried to compile
        self._has_started = is_start
        for callback in list(self.start_callbacks if is_start else self.end_callbacks):
            callback(args)


callback_handler = CompilationCallbackHandler()


def on_compile_start(callback: F) -> F:
    """Call `callback(args: CallbackArgs)` before each compilation."""
    return callback_handler.register_start_callback(callback)


def on_compile_end(callback: F) -> F:
    """Call `callback(args: CallbackArgs)` after each compilation, also one that failed."""
    return callback_handler.register_end_callback(callback)
