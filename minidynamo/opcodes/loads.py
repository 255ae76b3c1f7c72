"""Loads, stores and deletes of locals, cells, globals, attributes and items; stack shuffling;
imports.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, NoReturn

from ..resume_execution import base_code
from ..side_effects import DELETED
from ..source import (
    BuiltinSource,
    ConstSource,
    DictItemSource,
    Source,
)
from ..variables.base import (
    NULL,
    AttributeOf,
    ObservedException,
    VariableTracker,
    unsupported,
)
from ..variables.functions import BoundMethodVariable, CellVariable
from ..variables.generators import GeneratorVariable, end_dropped
from ..variables.iterators import IteratorVariable
from ..variables.slots import put, take_out
from .registry import op

if TYPE_CHECKING:
    from ..bytecode import Instruction
    from ..symbolic_convert import Translator


@op("NOP", "RESUME", "COPY_FREE_VARS", "CACHE")
def nop(tx: Translator, inst: Instruction) -> None:
    """No effect on the traced state: free variables are set up before the first instruction."""


@op("MAKE_CELL")
def make_cell(tx: Translator, inst: Instruction) -> None:
    tx.make_cell(inst.arg)


@op("LOAD_CONST")
def load_const(tx: Translator, inst: Instruction) -> None:
    tx.push(tx.wrap_code_constant(inst.arg))


@op("LOAD_FAST", "LOAD_FAST_CHECK")
def load_fast(tx: Translator, inst: Instruction) -> None:
    value = tx.locals.get(inst.arg)
    if value is None:
        message = (
            f"cannot access local variable '{inst.arg}' where it is not associated with a value"
        )
        tx.raise_observed(UnboundLocalError, message)
    tx.push(value)


@op("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(tx: Translator, inst: Instruction) -> None:
    tx.push(take_out(tx, inst.arg))


@op("STORE_FAST")
def store_fast(tx: Translator, inst: Instruction) -> None:
    before = tx.locals.get(inst.arg)
    put(tx, inst.arg, tx.pop_raw())
    if isinstance(before, GeneratorVariable):
        end_dropped(tx)


@op("DELETE_FAST")
def delete_fast(tx: Translator, inst: Instruction) -> None:
    before = tx.locals.pop(inst.arg, None)
    if isinstance(before, GeneratorVariable):
        end_dropped(tx)
    if before is None:
        message = (
            f"cannot access local variable '{inst.arg}' where it is not associated with a value"
        )
        tx.raise_observed(UnboundLocalError, message)


@op("LOAD_CLOSURE")
def load_closure(tx: Translator, inst: Instruction) -> None:
    if inst.arg in tx.locals:  # a variable of a comprehension, in a slot that held a cell
        tx.push(tx.locals[inst.arg])
        return
    tx.push(tx.cells[inst.arg])


@op("LOAD_DEREF")
def load_deref(tx: Translator, inst: Instruction) -> None:
    cell = tx.cells[inst.arg]
    value = cell.load_if_any(tx) if _may_go_on(tx) else cell.load(tx)
    if value is None:
        _raise_unbound_cell(tx, inst.arg)
    tx.push(value)


def _may_go_on(tx: Translator) -> bool:
    """Whether a block of the frame, or of one that called it, sees an exception raised here."""
    frame: Any = tx
    while frame is not None and frame.current.handler is None:
        frame = frame.parent
    return frame is not None


def _raise_unbound_cell(tx: Translator, name: str) -> NoReturn:
    """`format_exc_unbound`: other words for the cells of functions around."""
    where = "where it is not associated with a value"
    if name in base_code(tx.code).co_freevars:
        text = f"cannot access free variable '{name}' {where} in enclosing scope"
        tx.raise_observed(NameError, text)
    tx.raise_observed(UnboundLocalError, f"cannot access local variable '{name}' {where}")


@op("STORE_DEREF")
def store_deref(tx: Translator, inst: Instruction) -> None:
    tx.cells[inst.arg].store(tx, tx.pop_raw())


@op("DELETE_DEREF")
def delete_deref(tx: Translator, inst: Instruction) -> None:
    cell = tx.cells[inst.arg]
    assert isinstance(cell, CellVariable)
    if cell.load_if_any(tx) is None:
        _raise_unbound_cell(tx, inst.arg)
    cell.delete(tx)


@op("LOAD_GLOBAL")
def load_global(tx: Translator, inst: Instruction) -> None:
    tx.push(lookup_global(tx, inst.arg))


def lookup_global(tx: Translator, name: str) -> VariableTracker:
    """A name of the function's globals, else of its builtins; NameError as the program sees it."""
    holder = tx.globals_variable()
    stored = tx.output.side_effects.load_attr(holder, name)
    if isinstance(stored, VariableTracker):
        return stored
    names = tx.globals
    if stored is DELETED or name not in names:
        table = names.get("__builtins__", builtins)
        names = table if isinstance(table, dict) else vars(table)
        changed = tx.output.globals_variables.get(id(names))
        stored = None if changed is None else tx.output.side_effects.load_attr(changed, name)
        if isinstance(stored, VariableTracker):
            return stored
        if stored is DELETED or name not in names:
            _guard_absent(tx, names, name)
            tx.raise_observed(NameError, f"name '{name}' is not defined")
    known = holder.loaded.get(name)
    if known is None or known[0] is not names[name]:
        is_builtin = names is not tx.globals
        source = _builtin_source(tx, names, name) if is_builtin else holder.item_source(name)
        known = holder.loaded[name] = (names[name], tx.lazy(names[name], source))
    return known[1]


def _guard_absent(tx: Translator, builtin_names: dict[str, Any], name: str) -> None:
    """Neither the globals nor the builtins have the name, but for what traced code deleted."""
    source = ConstSource(builtin_names, "__builtins__")
    for names, where in ((tx.globals, tx.globals_source()), (builtin_names, source)):
        if name not in names:
            tx.guard(where, "DICT_LACKS", name)


def _builtin_source(tx: Translator, names: dict[str, Any], name: str) -> Source:
    if name in tx.globals:
        # The traced code deleted the global, and the real one is there until that is replayed.
        return DictItemSource(ConstSource(names, "__builtins__"), name)
    if tx.has_root_globals:
        return BuiltinSource(name)
    tx.guard(tx.globals_source(), "DICT_LACKS", name)
    return DictItemSource(ConstSource(names, "__builtins__"), name)


@op("STORE_GLOBAL")
def store_global(tx: Translator, inst: Instruction) -> None:
    tx.output.side_effects.store_attr(tx.globals_variable(), inst.arg, tx.pop_raw())


@op("DELETE_GLOBAL")
def delete_global(tx: Translator, inst: Instruction) -> None:
    holder = tx.globals_variable()
    if not holder.has_stored(tx, inst.arg):
        tx.raise_observed(NameError, f"name '{inst.arg}' is not defined")
    holder.delete_item(tx, inst.arg)


@op("LOAD_ATTR")
def load_attr(tx: Translator, inst: Instruction) -> None:
    owner = tx.pop()
    tx.in_tail = AttributeOf(owner)
    tx.push(tx.getattr(owner, inst.arg))


@op("LOAD_METHOD")
def load_method(tx: Translator, inst: Instruction) -> None:
    value = tx.getattr(tx.pop(), inst.arg)
    tx.push_callable(value)


@op("LOAD_SUPER_ATTR")
def load_super_attr(tx: Translator, inst: Instruction) -> None:
    name, is_method, two_args = inst.arg
    super_, class_, receiver = tx.popn(3)
    args = [class_, receiver] if two_args else []
    value = tx.getattr(tx.call_function(super_, args, {}), name)
    if is_method:
        tx.push_callable(value)
    else:
        tx.push(value)


@op("STORE_ATTR")
def store_attr(tx: Translator, inst: Instruction) -> None:
    target = tx.pop()
    tx.setattr(target, inst.arg, tx.pop())


@op("DELETE_ATTR")
def delete_attr(tx: Translator, inst: Instruction) -> None:
    tx.pop().delattr(tx, inst.arg)


@op("STORE_SUBSCR")
def store_subscr(tx: Translator, inst: Instruction) -> None:
    value, target, key = tx.popn(3)
    target.setitem(tx, key, value)


@op("DELETE_SUBSCR")
def delete_subscr(tx: Translator, inst: Instruction) -> None:
    target, key = tx.popn(2)
    target.delitem(tx, key)


@op("BINARY_SUBSCR")
def binary_subscr(tx: Translator, inst: Instruction) -> None:
    target, key = tx.popn(2)
    tx.push(target.getitem(tx, key))


# -- the stack ------------------------------------------------------------------------------------


@op("POP_TOP")
def pop_top(tx: Translator, inst: Instruction) -> None:
    if isinstance(tx.pop_raw(), IteratorVariable) and tx.output.generators:
        end_dropped(tx)


@op("PUSH_NULL")
def push_null(tx: Translator, inst: Instruction) -> None:
    tx.push(NULL)


@op("COPY")
def copy(tx: Translator, inst: Instruction) -> None:
    tx.push(tx.stack[-inst.arg])


@op("SWAP")
def swap(tx: Translator, inst: Instruction) -> None:
    tx.stack[-1], tx.stack[-inst.arg] = tx.stack[-inst.arg], tx.stack[-1]


# -- imports --------------------------------------------------------------------------------------


@op("IMPORT_NAME")
def import_name(tx: Translator, inst: Instruction) -> None:
    names = tx.pop().as_python_constant()
    level = tx.pop().as_python_constant()
    module = tx.import_name(inst.arg, level, names)
    package = module.as_python_constant()
    if names and hasattr(package, "__path__"):
        # What a package does not have is imported as its module.
        why = "a module of this name is imported for the first time here"
        for name in names:
            _attribute(tx, module, name, why)
    tx.push(module)


@op("IMPORT_FROM")
def import_from(tx: Translator, inst: Instruction) -> None:
    why = "eager looks for a module of this name, or raises the ImportError"
    tx.push(_attribute(tx, tx.stack[-1].realize(), inst.arg, why))


def _attribute(
    tx: Translator,
    module: VariableTracker,
    name: str,
    why: str,
) -> VariableTracker:
    try:
        return tx.getattr(module, name)
    except ObservedException as error:
        if not issubclass(error.value.python_type(), AttributeError):
            raise
        unsupported("import", name, why)


__all__ = ["BoundMethodVariable", "lookup_global", "unsupported"]
