"""Errors that a program's signal handlers raise while something is compiled.

A handler runs wherever the interpreter is: a time limit's TimeoutError, or KeyboardInterrupt, may
come up in the middle of the compiler. It is no failure of the compiler, which would run the code in
eager instead, and not for the compiled code to catch. And it may come up where a mode is entered
that nobody leaves then: all tensors that the program made from then on would be fake.
"""

from __future__ import annotations

import functools
import signal
import types
from typing import Any

import torch
from torch.utils._python_dispatch import _pop_mode


def is_from_handler(error: BaseException) -> bool:
    """Whether a Python function that is a signal's handler raised the error, or what it calls."""
    # By their ids: generated code may hold constants that cannot be hashed.
    codes = {id(_code_of(signal.getsignal(number))) for number in signal.valid_signals()}
    codes.discard(id(None))
    link = error.__traceback__
    while link is not None:
        if id(link.tb_frame.f_code) in codes:
            return True
        link = link.tb_next
    return False


def pass_on(error: BaseException) -> None:
    """Raises the error again if a signal's handler raised it: nobody in between is to take it."""
    if is_from_handler(error):
        raise error


def depth_of_modes() -> int:
    """How many dispatch modes are active."""
    return torch._C._len_torch_dispatch_stack()


def leave_modes(depth: int) -> None:
    """Leaves the dispatch modes above so many: they were left behind."""
    while depth_of_modes() > depth:
        _pop_mode()


def _code_of(handler: Any) -> types.CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not isinstance(handler, (types.FunctionType, types.MethodType)):
        handler = type(handler).__dict__.get("__call__")
    function = getattr(handler, "__func__", handler)
    return getattr(function, "__code__", None)
