"""Frames that run in eager from their start when their graph raises.

An operator that raises in a native plan has done nothing yet that can be seen: the error then comes
with the program's own traceback.
"""

from __future__ import annotations

import sys
import types

from ._C import disabled
from .bytecode import Handler, Instruction, copy_instructions, current, decode
from .interruptions import is_from_handler


class CheckFailed(Exception):
    """A condition that a graph relied on does not hold: the frame runs in eager instead."""


def rerun_if_it_raises(call: list[Instruction], code: types.CodeType) -> list[Instruction]:
    """A handler for `call`, made in a frame of `code`, with a copy of its instructions."""
    copies = copy_instructions(decode(code))
    start = next(i for i, inst in enumerate(copies) if inst.opname == "RESUME") + 1
    raised = Instruction("PUSH_EXC_INFO")
    passed_on = Instruction("SWAP", 2)
    handler = Handler(raised, 0)
    for inst in call:
        inst.handler = handler
    return [
        raised,
        *current.emit_call([Instruction("LOAD_CONST", disabled(_is_taken))], [], 0),
        Instruction("POP_JUMP_IF_FALSE", target=passed_on),
        Instruction("POP_TOP"),
        Instruction("POP_EXCEPT"),
        Instruction("JUMP", target=copies[start]),
        passed_on,
        Instruction("POP_EXCEPT"),
        Instruction("RERAISE", 0),
        *copies,
    ]


def _is_taken() -> bool:
    """Whether the error that is handled is the graph's, and no signal handler's."""
    error = sys.exc_info()[1]
    return isinstance(error, Exception) and not is_from_handler(error)
