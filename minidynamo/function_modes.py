"""The thread's torch function modes, which lie on a stack. Default devices (`DeviceContext`) at its
bottom are a setting; those above are the program's own. These are taken off while a frame is traced
and while its graph runs: what they do is traced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode
from torch.utils._device import DeviceContext

__all__ = [
    "Overrides",
    "are_traceable",
    "default_devices",
    "has_modes",
    "is_next_call_skipped",
    "mode_at",
    "set_aside",
    "set_modes",
    "without_modes",
]


class Overrides:
    """Where the traced code's calls of torch go before they are operations: to modes, the innermost
    last, and to classes of tensors.
    """

    def __init__(self) -> None:
        self.modes: list[Any] = []  # as traced values
        # Whether the frame began below modes, which see what guards look at, too.
        self.begins_below_modes = False
        self.are_subclasses_disabled = not torch._C._is_torch_function_enabled()
        self.are_modes_disabled = torch._C._is_torch_function_all_disabled()

    @property
    def has_modes(self) -> bool:
        """Whether a call goes to a mode."""
        return bool(self.modes) and not self.are_modes_disabled


def mode_at(index: int) -> Any:
    """A source's function: the mode at a position of the stack, counted from its bottom."""
    return torch._C._get_function_stack_at(index)


def _stack() -> list[Any]:
    return [mode_at(i) for i in range(torch._C._len_torch_function_stack())]


def default_devices() -> int:
    """How many modes at the bottom are default devices."""
    stack = _stack()
    others = (i for i, mode in enumerate(stack) if type(mode) is not DeviceContext)
    return next(others, len(stack))


def are_traceable() -> bool:
    """Whether all modes above the default devices are of classes of the program. Those of torch's
    own tracers are not, and a default device above the program's modes is not told apart.
    """
    return all(map(_is_traceable, _stack()[default_devices() :]))


def is_next_call_skipped() -> bool:
    """Whether `redispatch_function` runs a function: its first question is not for overrides."""
    return _peek is not None and _peek()


_peek = getattr(torch._C, "_peek_should_skip_torch_function", None)


def _is_traceable(mode: Any) -> bool:
    cls = type(mode)
    is_own = cls is BaseTorchFunctionMode or not cls.__module__.startswith("torch.")
    return is_own and issubclass(cls, TorchFunctionMode)


def has_modes() -> bool:
    """Whether there are modes above the default devices."""
    return torch._C._len_torch_function_stack() > default_devices()


def set_modes(modes: tuple[Any, ...]) -> None:
    """Let `modes` be the stack above the default devices."""
    keep = default_devices()
    while torch._C._len_torch_function_stack() > keep:
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


@contextlib.contextmanager
def set_aside() -> Iterator[list[Any]]:
    """Without the program's modes; gives them, the innermost last."""
    modes = _stack()[default_devices() :]
    set_modes(())
    try:
        yield modes
    finally:
        set_modes(tuple(modes))


def without_modes(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A graph that runs without them: what they did is in the graph."""

    def call(*args: Any) -> Any:
        with set_aside():
            return compiled(*args)

    return call
