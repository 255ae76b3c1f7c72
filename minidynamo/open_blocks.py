"""`with` blocks that a frame is in from its beginning, because the graph broke inside of them.

Their managers were entered for real. A graph that raises holds the rest of the frame, the ends of
the blocks included, so the new code leaves them where the graph's call raises. (Which block the
operation was in cannot be told: none is given the chance to swallow the error.)
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from ._C import disabled
from .bytecode import Handler, Instruction, current
from .resume_execution import is_continuation, open_exits


def leave_if_it_raises(call: list[Instruction], code: types.CodeType) -> list[Instruction]:
    """A handler for `call`, made in a frame of `code`; nothing if that begins in no block."""
    exits = open_exits(code) if is_continuation(code) else ()
    if not exits:
        return []
    raised = Instruction("PUSH_EXC_INFO")
    handler = Handler(raised, 0)
    for inst in call:
        inst.handler = handler
    loads = [Instruction("LOAD_FAST", name) for name in exits]
    return [
        raised,
        *current.emit_call([Instruction("LOAD_CONST", disabled(_leave))], loads, len(loads)),
        Instruction("SWAP", 2),
        Instruction("POP_TOP"),
        Instruction("SWAP", 2),
        Instruction("POP_EXCEPT"),
        Instruction("RERAISE", 0),
    ]


def _leave(*exits: Any) -> BaseException:
    """Call them with the error that is being handled; returns it, or what they raise in its place
    (raised here it would stay the handled one for good).
    """
    error = sys.exc_info()[1]
    assert error is not None
    for leave in exits:
        try:
            leave(type(error), error, error.__traceback__)
        except BaseException as raised:
            error = raised
    return error


def calls_program_for_saved(frame: Any) -> bool:
    """Whether the frame goes on in a block of its own in which the program's functions are called
    with what operators save for backward passes: in order, and with effects that the rest of the
    block may see. A graph calls them when it runs, and saves other tensors.
    """
    if not is_continuation(frame.code):
        return False
    exits = (frame.f_locals.get(name) for name in open_exits(frame.code))
    managers = (getattr(leave, "__self__", None) for leave in exits)
    return any(isinstance(m, torch.autograd.graph.saved_tensors_hooks) for m in managers)
