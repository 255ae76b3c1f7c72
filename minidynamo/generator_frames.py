"""Generators of the traced code that live on after the graph.

One that did not start is made by calling its function. One that is suspended is made from a copy of
its code that begins at the yield: it is given stack and locals, and advanced once to be suspended
there, inside of the same handlers.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from ._C import skip_code
from .bytecode import Instruction, argument_count, copy_instructions, decode, remove_unreachable
from .resume_execution import (
    VALUE,
    ContinuationKey,
    closure_names,
    entered_at,
    make_function_code,
)
from .stopped_frames import StoppedFrame
from .variables.base import unsupported
from .variables.constant import ConstantVariable
from .variables.generators import GeneratorVariable

if TYPE_CHECKING:
    from .codegen import PyCodegen
    from .symbolic_convert import InliningTranslator

_VARARGS, _VARKEYWORDS = 0x04, 0x08


def rebuild(codegen: PyCodegen, generator: GeneratorVariable) -> None:
    """Push the real generator, in the state in which the traced code left it."""
    frame = generator.frame
    if not generator.started:
        _call(codegen, frame)
    elif frame.exc_info:
        unsupported("generator leaves the graph", repr(generator), "it handles an exception")
    else:
        _resume(codegen, frame)


def _call(codegen: PyCodegen, frame: InliningTranslator) -> None:
    code = frame.code
    n_keyword = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[: argument_count(n_keyword, 0, code.co_flags)]
    rest = list(names[n_keyword:])
    codegen.begin_call(_called)
    codegen(frame.function)
    codegen.sequence([frame.locals[name] for name in names[: code.co_argcount]])
    codegen.emit("BUILD_TUPLE", code.co_argcount)
    for name in names[code.co_argcount : n_keyword]:
        codegen.load_const(name)
        codegen(frame.locals[name])
    codegen.emit("BUILD_MAP", code.co_kwonlyargcount)
    for flag, empty in ((_VARARGS, ()), (_VARKEYWORDS, None)):
        if code.co_flags & flag:
            codegen(frame.locals[rest.pop(0)])
        else:
            codegen.load_const(empty)
    codegen.end_call(5)


def _called(
    function: Any,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    more: tuple[Any, ...],
    more_keywords: dict[str, Any] | None,
) -> Any:
    """Run by generated code: call the generator function."""
    return function(*args, *more, **keywords, **(more_keywords or {}))


def _resume(codegen: PyCodegen, frame: InliningTranslator) -> None:
    stopped = StoppedFrame(frame)
    key = stopped.key(stopped.index, stopped.slots + VALUE)
    values = stopped.values()
    # What the yield gives to the one who advances the copy to it comes on top of the stack.
    n_front = len(key.arguments()) - len(key.names)
    values.insert(n_front - 1, ConstantVariable(None))
    code = _suspended_code(stopped.base, key)
    skip_code(code, False)
    codegen.begin_call(_suspended)
    codegen.load_const(code)
    codegen.load_const(frame.globals)
    codegen.sequence([frame.cells[name] for name in closure_names(stopped.base)])
    codegen.emit("BUILD_TUPLE", len(closure_names(stopped.base)))
    codegen.sequence(values)
    codegen.emit("BUILD_TUPLE", len(values))
    codegen.end_call(4)


def _suspended_code(base: types.CodeType, key: ContinuationKey) -> types.CodeType:
    """A generator function of `key.arguments()` that is at the yield when it is advanced once."""
    copies = copy_instructions(decode(base))
    instructions = entered_at(copies, base, key)
    start = next(i for i, inst in enumerate(instructions) if inst.opname == "RESUME")
    enter = [Instruction("RETURN_GENERATOR"), Instruction("POP_TOP")]
    for inst in enter:
        inst.positions = instructions[start].positions
    instructions[start:start] = enter
    return make_function_code(remove_unreachable(instructions), base, key.arguments())


def _suspended(
    code: types.CodeType,
    globals_: dict[str, Any],
    cells: tuple[types.CellType, ...],
    arguments: tuple[Any, ...],
) -> Any:
    """Run by generated code: the generator, suspended at its yield."""
    generator = types.FunctionType(code, globals_, code.co_name, None, cells or None)(
        *arguments
    )
    next(generator)
    return generator
