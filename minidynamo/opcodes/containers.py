"""Building, extending and unpacking containers."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from ..variables.base import VariableTracker, unsupported
from ..variables.builtin_object import has_slot, type_name
from ..variables.constant import ConstantVariable
from .control import LOOP_GOES_ON
from .registry import op

if TYPE_CHECKING:
    from ..bytecode import Instruction
    from ..symbolic_convert import Translator


@op("BUILD_TUPLE")
def build_tuple(tx: Translator, inst: Instruction) -> None:
    tx.push(tx.wrap_items(tuple, tx.popn_raw(inst.arg)))


@op("BUILD_LIST")
def build_list(tx: Translator, inst: Instruction) -> None:
    tx.push(tx.wrap_items(list, tx.popn_raw(inst.arg)))


@op("BUILD_SET")
def build_set(tx: Translator, inst: Instruction) -> None:
    tx.push(tx.wrap_items(set, tx.popn(inst.arg)))


@op("BUILD_MAP")
def build_map(tx: Translator, inst: Instruction) -> None:
    flat = tx.popn_raw(2 * inst.arg)
    tx.push(_new_dict(tx, flat[::2], flat[1::2]))


@op("BUILD_CONST_KEY_MAP")
def build_const_key_map(tx: Translator, inst: Instruction) -> None:
    keys: list[VariableTracker] = [
        ConstantVariable(key) for key in tx.pop().as_python_constant()
    ]
    tx.push(_new_dict(tx, keys, tx.popn_raw(inst.arg)))


def _new_dict(
    tx: Translator, keys: list[VariableTracker], values: list[VariableTracker]
) -> VariableTracker:
    result = tx.wrap_keywords({})
    for key, value in zip(keys, values, strict=True):
        result.setitem(tx, key.realize(), value)
    return result


@op("BUILD_SLICE")
def build_slice(tx: Translator, inst: Instruction) -> None:
    tx.push(tx.make_slice(tx.popn(inst.arg)))


def check_growing(tx: Translator, container: VariableTracker) -> None:
    """Stop if the container of a comprehension was on the stack when the graph broke: it grows
    with each iteration, and the code of one is to serve all.
    """
    if tx.is_loop_of_continuation(container):
        unsupported(
            LOOP_GOES_ON,
            container.describe(),
            "the graph broke inside this comprehension; its body is captured once, not once an"
            " iteration",
        )


def _add_to(method: str):
    """LIST_APPEND and its kin: the container lies `arg` below the value that is popped."""

    def handler(tx: Translator, inst: Instruction) -> None:
        check_growing(tx, tx.stack[-inst.arg - 1])
        value = tx.pop_raw()
        container = tx.stack[-inst.arg].realize()
        tx.call_function(tx.getattr(container, method), [value], {})

    return handler


op("LIST_APPEND")(_add_to("append"))
op("SET_ADD")(_add_to("add"))
op("SET_UPDATE")(_add_to("update"))


@op("LIST_EXTEND")
def list_extend(tx: Translator, inst: Instruction) -> None:
    value = tx.pop()
    if not (has_slot(tx, value, "__iter__") or has_slot(tx, value, "__getitem__")):
        kind = type_name(value.python_type())
        tx.raise_observed(TypeError, f"Value after * must be an iterable, not {kind}")
    tx.stack[-inst.arg].realize().call_method(tx, "extend", [value], {})


@op("DICT_UPDATE")
def dict_update(tx: Translator, inst: Instruction) -> None:
    value = tx.pop()
    if not has_slot(tx, value, "keys"):
        kind = type_name(value.python_type())
        tx.raise_observed(TypeError, f"'{kind}' object is not a mapping")
    tx.stack[-inst.arg].realize().call_method(tx, "update", [value], {})


@op("DICT_MERGE")
def dict_merge(tx: Translator, inst: Instruction) -> None:
    mapping = tx.pop()
    container = tx.stack[-inst.arg].realize()
    if not hasattr(mapping.python_type(), "keys"):
        unsupported("call does not fit", "**", "eager will raise the TypeError")
    for name in mapping.call_method(tx, "keys", [], {}).unpack(tx):
        key = name.realize()
        value = mapping.getitem(tx, key)
        if container.contains(tx, key).truth(tx):
            unsupported("call does not fit", f"**: {key!r}", "eager will raise the TypeError")
        container.setitem(tx, key, value)


@op("MAP_ADD")
def map_add(tx: Translator, inst: Instruction) -> None:
    check_growing(tx, tx.stack[-inst.arg - 2])
    key, value = tx.popn_raw(2)
    tx.stack[-inst.arg].realize().setitem(tx, key.realize(), value)


@op("UNPACK_SEQUENCE")
def unpack_sequence(tx: Translator, inst: Instruction) -> None:
    items = _unpack(tx, tx.pop(), inst.arg, exactly=True)
    for item in reversed(items):
        tx.push(item)


@op("UNPACK_EX")
def unpack_ex(tx: Translator, inst: Instruction) -> None:
    before, after = inst.arg
    items = _unpack(tx, tx.pop(), before + after, exactly=False)
    end = len(items) - after
    for item in reversed(items[end:]):
        tx.push(item)
    tx.push(tx.wrap_items(list, items[before:end]))
    for item in reversed(items[:before]):
        tx.push(item)


def _unpack(
    tx: Translator, value: VariableTracker, count: int, *, exactly: bool
) -> list[VariableTracker]:
    if not (has_slot(tx, value, "__iter__") or has_slot(tx, value, "__getitem__")):
        kind = type_name(value.python_type())
        tx.raise_observed(TypeError, f"cannot unpack non-iterable {kind} object")
    # One more than wanted is taken, and what is left is left.
    most = count + 1 if exactly else None
    items = list(itertools.islice(value.each(tx), most))
    if len(items) < count:
        least = "" if exactly else "at least "
        tx.raise_observed(
            ValueError,
            f"not enough values to unpack (expected {least}{count}, got {len(items)})",
        )
    if exactly and len(items) > count:
        tx.raise_observed(ValueError, f"too many values to unpack (expected {count})")
    return items


@op("GET_LEN")
def get_len(tx: Translator, inst: Instruction) -> None:
    tx.push(tx.stack[-1].realize().length(tx))
