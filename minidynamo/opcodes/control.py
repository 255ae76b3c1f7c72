"""Jumps, branches, loops, returns, exceptions and `with` blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..handlers.stdlib import nothing_handled
from ..variables.base import (
    HANDLED_EXCEPTION,
    ObservedException,
    VariableTracker,
    type_name,
    unsupported,
)
from ..variables.builtin_object import BuiltinObject
from ..variables.constant import ConstantVariable
from ..variables.descriptors import lookup_special
from ..variables.expectations import expected_truth
from .registry import op

if TYPE_CHECKING:
    from ..bytecode import Instruction
    from ..symbolic_convert import Translator

NONE = ConstantVariable(None)
_NO_EXCEPTION_CLASS = "catching classes that do not inherit from BaseException is not allowed"
# The kind of a stop that is not a graph break of the program's own: see `for_iter`.
LOOP_GOES_ON = "loop goes on"


@op("JUMP", "JUMP_NO_INTERRUPT")
def jump(tx: Translator, inst: Instruction) -> None:
    tx.jump(inst.target)


def _pop_jump_if(condition: bool):
    def handler(tx: Translator, inst: Instruction) -> None:
        value = tx.pop()
        truth = expected_truth(tx, value, inst)
        if (value.truth(tx) if truth is None else truth) is condition:
            tx.jump(inst.target)

    return handler


op("POP_JUMP_IF_TRUE")(_pop_jump_if(True))
op("POP_JUMP_IF_FALSE")(_pop_jump_if(False))


def _is_none(tx: Translator, value: VariableTracker) -> bool:
    return value.is_python_constant() and value.as_python_constant() is None


@op("POP_JUMP_IF_NONE")
def pop_jump_if_none(tx: Translator, inst: Instruction) -> None:
    if _is_none(tx, tx.pop()):
        tx.jump(inst.target)


@op("POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(tx: Translator, inst: Instruction) -> None:
    if not _is_none(tx, tx.pop()):
        tx.jump(inst.target)


def _jump_or_pop(condition: bool):
    def handler(tx: Translator, inst: Instruction) -> None:
        if tx.stack[-1].realize().truth(tx) is condition:
            tx.jump(inst.target)
        else:
            tx.pop_raw()

    return handler


op("JUMP_IF_TRUE_OR_POP")(_jump_or_pop(True))
op("JUMP_IF_FALSE_OR_POP")(_jump_or_pop(False))


@op("TO_BOOL")
def to_bool(tx: Translator, inst: Instruction) -> None:
    value, following = tx.pop(), tx.instructions[tx.ip]
    is_branch = following.opname in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE")
    truth = expected_truth(tx, value, following) if is_branch else None
    tx.push(ConstantVariable(value.truth(tx) if truth is None else truth))


@op("UNARY_NOT")
def unary_not(tx: Translator, inst: Instruction) -> None:
    tx.push(ConstantVariable(not tx.pop().truth(tx)))


@op("GET_ITER")
def get_iter(tx: Translator, inst: Instruction) -> None:
    tx.push(tx.pop().iter(tx))


@op("FOR_ITER")
def for_iter(tx: Translator, inst: Instruction) -> None:
    if tx.is_loop_of_continuation(tx.stack[-1]):
        unsupported(
            LOOP_GOES_ON,
            tx.stack[-1].describe(),
            "the graph broke inside this loop; its body is captured once, not once an iteration",
        )
    item = tx.stack[-1].realize().next(tx)
    if item is None:
        tx.pop_raw()
        tx.jump(inst.target)
    else:
        tx.push(item)


@op("RETURN_VALUE")
def return_value(tx: Translator, inst: Instruction) -> None:
    tx.return_value(tx.pop_raw())


@op("RETURN_GENERATOR")
def return_generator(tx: Translator, inst: Instruction) -> None:
    """Runs when the generator is first advanced: the value that the POP_TOP after it drops."""
    tx.push(NONE)


@op("YIELD_VALUE")
def yield_value(tx: Translator, inst: Instruction) -> None:
    tx.yield_value(tx.pop_raw())


# -- exceptions -----------------------------------------------------------------------------------


@op("RAISE_VARARGS")
def raise_varargs(tx: Translator, inst: Instruction) -> None:
    if inst.arg == 0:
        handled = tx.handled_exception()
        if handled is None:
            nothing_handled(tx)
            tx.raise_observed(RuntimeError, "No active exception to reraise")
        raise ObservedException(handled)
    cause = tx.pop() if inst.arg == 2 else None
    raise ObservedException(tx.make_exception(tx.pop(), cause))


@op("PUSH_EXC_INFO")
def push_exc_info(tx: Translator, inst: Instruction) -> None:
    value = tx.pop_raw()
    tx.push(HANDLED_EXCEPTION)
    tx.push(value)
    tx.exc_info.append(value)


@op("POP_EXCEPT")
def pop_except(tx: Translator, inst: Instruction) -> None:
    tx.pop_raw()
    tx.exc_info.pop()


@op("CHECK_EXC_MATCH")
def check_exc_match(tx: Translator, inst: Instruction) -> None:
    types = tx.pop()
    error = tx.stack[-1].realize()
    classes = types.as_python_constant()
    for class_ in classes if isinstance(classes, tuple) else (classes,):
        if not (isinstance(class_, type) and issubclass(class_, BaseException)):
            tx.raise_observed(TypeError, _NO_EXCEPTION_CLASS)
    bases = error.python_type().__mro__  # a metaclass is not asked
    wanted = classes if isinstance(classes, tuple) else (classes,)
    tx.push(ConstantVariable(any(base is class_ for base in bases for class_ in wanted)))


@op("RERAISE")
def reraise(tx: Translator, inst: Instruction) -> None:
    raise ObservedException(tx.pop(), is_chained=True)


@op("LOAD_ASSERTION_ERROR")
def load_assertion_error(tx: Translator, inst: Instruction) -> None:
    tx.push(tx.wrap_code_constant(AssertionError))


# -- with -----------------------------------------------------------------------------------------


@op("BEFORE_WITH")
def before_with(tx: Translator, inst: Instruction) -> None:
    manager = tx.pop()
    enter, leave = (_context_method(tx, manager, name) for name in ("__enter__", "__exit__"))
    result = tx.call_function(enter, [], {})
    tx.push(leave)
    tx.push(result)


def _context_method(tx: Translator, manager: VariableTracker, name: str) -> VariableTracker:
    """A special method, hence looked up on the manager's class."""
    if manager.is_user_defined:
        found = lookup_special(tx, manager, name)
    else:
        lacks = isinstance(manager, BuiltinObject) and manager.lookup(name) is None
        found = None if lacks or manager.lacks(name) else tx.getattr(manager, name)
    if found is None:
        missed = " (missed __exit__ method)" if name == "__exit__" else ""
        kind = type_name(manager.python_type())
        text = f"'{kind}' object does not support the context manager protocol{missed}"
        tx.raise_observed(TypeError, text)
    return found


@op("WITH_EXCEPT_START")
def with_except_start(tx: Translator, inst: Instruction) -> None:
    error = tx.stack[-1].realize()
    leave = tx.stack[-4].realize()
    type_ = tx.wrap_code_constant(error.python_type())
    tx.push(tx.call_function(leave, [type_, error, tx.traceback_of(error)], {}))
