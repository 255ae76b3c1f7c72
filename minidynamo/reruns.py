"""Frames that run in eager from their start when their graph raises.

An operator that raises in a native plan has done nothing yet that can be seen: the error then comes
with the program's own traceback. Where eager raises nothing, the plan is wrong, which has to be
told: what it called before it raised was called twice.
"""

from __future__ import annotations

import logging
import sys
import types
import weakref

from . import config
from ._C import disabled
from .bytecode import Handler, Instruction, copy_instructions, current, decode
from .exc import InternalError
from .interruptions import is_from_handler

log = logging.getLogger("minidynamo")
_MOST_RAISED = 1000
_raised: dict[int, str] = {}  # By frame, while it runs again; some never return.
_told: weakref.WeakSet[types.CodeType] = weakref.WeakSet()


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
        *(new for inst in copies for new in _telling(inst)),
    ]


def _telling(inst: Instruction) -> list[Instruction]:
    if inst.opname != "RETURN_VALUE":
        return [inst]
    inst.opname = "NOP"  # Jumps come to it.
    return [
        inst,
        *current.emit_call([Instruction("LOAD_CONST", disabled(_tell))], [], 0),
        Instruction("POP_TOP"),
        Instruction("RETURN_VALUE"),
    ]


def _is_taken() -> bool:
    """Whether the error that is handled is the graph's, and no signal handler's."""
    error = sys.exc_info()[1]
    if not isinstance(error, Exception) or is_from_handler(error):
        return False
    if not isinstance(error, CheckFailed):
        if len(_raised) >= _MOST_RAISED:
            _raised.clear()
        _raised[id(sys._getframe(1))] = repr(error)
    return True


def _tell() -> None:
    frame = sys._getframe(1)
    error = _raised.pop(id(frame), None)
    if error is None:
        return
    code = frame.f_code
    message = f"the graph of {code.co_qualname} raised {error}, where eager raises nothing"
    if config.raise_internal_errors:
        raise InternalError(message)
    if code not in _told:
        _told.add(code)
        log.warning("a bug of minidynamo: %s; it ran a second time, in eager", message)
