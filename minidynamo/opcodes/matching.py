"""`match` statements, `yield from`, and what else needs a receiver's protocol."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from ..variables.base import ObservedException, VariableTracker
from ..variables.constant import ConstantVariable
from .registry import op

if TYPE_CHECKING:
    from ..bytecode import Instruction
    from ..symbolic_convert import Translator

NONE = ConstantVariable(None)
# Py_TPFLAGS_SEQUENCE and Py_TPFLAGS_MAPPING: what `match` takes for a sequence or mapping pattern.
_SEQUENCE_FLAG, _MAPPING_FLAG = 1 << 5, 1 << 6
# Types whose one positional pattern is the subject itself (PEP 634).
_MATCH_SELF = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


def _push_type_flag(tx: Translator, flag: int) -> None:
    type_ = tx.stack[-1].realize().python_type()
    tx.push(ConstantVariable(bool(type_.__flags__ & flag)))


@op("MATCH_MAPPING")
def match_mapping(tx: Translator, inst: Instruction) -> None:
    _push_type_flag(tx, _MAPPING_FLAG)


@op("MATCH_SEQUENCE")
def match_sequence(tx: Translator, inst: Instruction) -> None:
    _push_type_flag(tx, _SEQUENCE_FLAG)


@op("MATCH_KEYS")
def match_keys(tx: Translator, inst: Instruction) -> None:
    subject, keys = (value.realize() for value in tx.stack[-2:])
    values: list[VariableTracker] = []
    seen: list[VariableTracker] = []
    missing = tx.call_function(tx.wrap_constant(object), [], {}).realize()
    for key in keys.unpack(tx):
        key = key.realize()
        if any(tx.call_operator(operator.eq, [key, other]).truth(tx) for other in seen):
            text = f"mapping pattern checks duplicate key ({key.as_python_constant()!r})"
            tx.raise_observed(ValueError, text)
        seen.append(key)
        value = subject.call_method(tx, "get", [key, missing], {})
        if value.realize() is missing:
            tx.push(NONE)
            return
        values.append(value)
    tx.push(tx.wrap_items(tuple, values))


@op("MATCH_CLASS")
def match_class(tx: Translator, inst: Instruction) -> None:
    subject, class_, names = tx.popn(3)
    is_instance = tx.call_function(tx.wrap_constant(isinstance), [subject, class_], {})
    if not is_instance.truth(tx):
        tx.push(NONE)
        return
    real: Any = class_.as_python_constant()
    if inst.arg == 1 and real in _MATCH_SELF:
        values: list[VariableTracker] = [subject]
        attributes: list[str] = []
    else:
        values = []
        attributes = _positional_names(tx, real, inst.arg)
    attributes += names.as_python_constant()
    for index, name in enumerate(attributes):
        if name in attributes[:index]:
            text = f"{real.__name__}() got multiple sub-patterns for attribute {name!r}"
            tx.raise_observed(TypeError, text)
        try:
            values.append(tx.getattr(subject, name))
        except ObservedException as error:
            if not issubclass(error.value.python_type(), AttributeError):
                raise
            tx.push(NONE)
            return
    tx.push(tx.wrap_items(tuple, values))


def _positional_names(tx: Translator, class_: type, count: int) -> list[str]:
    if count == 0:
        return []
    names = getattr(class_, "__match_args__", ())
    if type(names) is not tuple:
        text = f"{class_.__name__}.__match_args__ must be a tuple (got {type(names).__name__})"
        tx.raise_observed(TypeError, text)
    if count > len(names):
        allowed = 1 if class_ in _MATCH_SELF else len(names)
        plural = "" if allowed == 1 else "s"
        text = f"accepts {allowed} positional sub-pattern{plural} ({count} given)"
        tx.raise_observed(TypeError, f"{class_.__name__}() {text}")
    for name in names[:count]:
        if not isinstance(name, str):
            kind = type(name).__name__
            text = f"__match_args__ elements must be strings (got {kind})"
            tx.raise_observed(TypeError, text)
    return list(names[:count])


@op("GET_YIELD_FROM_ITER")
def get_yield_from_iter(tx: Translator, inst: Instruction) -> None:
    tx.push(tx.pop().iter(tx))


@op("SEND")
def send(tx: Translator, inst: Instruction) -> None:
    """`yield from`: advance the receiver; when it returns, jump with its value on the stack."""
    value = tx.pop()
    receiver = tx.stack[-1].realize()
    if value.is_python_constant() and value.as_python_constant() is None:
        item = receiver.next(tx)
    else:
        item = receiver.send(tx, value)
    if item is not None:
        tx.push(item)
        return
    tx.push(receiver.returned_value(tx))
    tx.jump(inst.target)


@op("CLEANUP_THROW")
def cleanup_throw(tx: Translator, inst: Instruction) -> None:
    """What a `yield from` went over raised: StopIteration ends it, all else goes on."""
    error = tx.stack[-1].realize()
    if not issubclass(error.python_type(), StopIteration):
        raise ObservedException(error, is_chained=True)
    tx.popn_raw(3)
    tx.push(NONE)
    tx.push(tx.getattr(error, "value"))


@op("END_SEND")
def end_send(tx: Translator, inst: Instruction) -> None:
    result = tx.pop_raw()
    tx.pop_raw()
    tx.push(result)
