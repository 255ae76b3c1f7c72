"""Names of a class's body: they lie in a mapping, not in locals."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from ..variables.base import VariableTracker, unsupported
from .loads import lookup_global
from .registry import op

if TYPE_CHECKING:
    from ..bytecode import Instruction
    from ..symbolic_convert import Translator


def _names(tx: Translator) -> dict[str, VariableTracker]:
    if tx.namespace is None:
        what = tx.current.opname
        unsupported("opcode", what, f"{what} is not traced")
    return tx.namespace


@op("LOAD_BUILD_CLASS")
def load_build_class(tx: Translator, inst: Instruction) -> None:
    tx.push(tx.wrap_constant(builtins.__build_class__))


@op("LOAD_NAME")
def load_name(tx: Translator, inst: Instruction) -> None:
    found = _names(tx).get(inst.arg)
    tx.push(lookup_global(tx, inst.arg) if found is None else found)


@op("STORE_NAME")
def store_name(tx: Translator, inst: Instruction) -> None:
    _names(tx)[inst.arg] = tx.pop_raw()


@op("DELETE_NAME")
def delete_name(tx: Translator, inst: Instruction) -> None:
    if _names(tx).pop(inst.arg, None) is None:
        tx.raise_observed(NameError, f"name '{inst.arg}' is not defined")


@op("SETUP_ANNOTATIONS")
def setup_annotations(tx: Translator, inst: Instruction) -> None:
    _names(tx).setdefault("__annotations__", tx.wrap_keywords({}))


@op("LOAD_LOCALS")
def load_locals(tx: Translator, inst: Instruction) -> None:
    """Only for the two below, which know where the names are."""
    _names(tx)
    tx.push(tx.wrap_constant(None))


@op("LOAD_FROM_DICT_OR_DEREF")
def load_from_names_or_cell(tx: Translator, inst: Instruction) -> None:
    tx.pop()
    found = _names(tx).get(inst.arg) or tx.cells[inst.arg].load_if_any(tx)
    if found is None:
        where = "where it is not associated with a value in enclosing scope"
        tx.raise_observed(NameError, f"cannot access free variable '{inst.arg}' {where}")
    tx.push(found)


@op("LOAD_FROM_DICT_OR_GLOBALS")
def load_from_names_or_globals(tx: Translator, inst: Instruction) -> None:
    tx.pop()
    load_name(tx, inst)
