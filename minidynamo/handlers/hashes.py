"""`hash`, `id`, and the texts of integers by base."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..variables import identity
from ..variables.base import unsupported
from ..variables.builtin_object import BuiltinObject
from ..variables.constant import ConstantVariable
from ..variables.descriptors import lookup_special
from ..variables.functions import BaseFunctionVariable, BoundMethodVariable
from ..variables.unions import TypingVariable
from ..variables.user_keys import as_hash, has_known_hash, hash_of_identity
from ..variables.user_values import UserValueVariable
from .builtins import Values, builtin, index_of
from .constant_slots import fixed_object

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

_VALUE_HASHES = (int.__hash__, float.__hash__, str.__hash__)


def _number_text(function: Callable[[int], str]) -> None:
    """Of an object with `__index__`; constants are folded before."""

    @builtin(function)
    def convert(tx: Translator, value: Values, /) -> Values:
        return tx.fold(function, (index_of(tx, value),), {})


for _function in (bin, chr, hex, oct):
    _number_text(_function)


_CONTAINERS = (list, tuple, dict, set)


@builtin(id)
def _id(tx: Translator, value: Values, /) -> Values:
    if value.python_type() in (int, float, bool):
        return identity.id_of_number(tx, value)
    real = tx.output.side_effects.real_of(value)
    if value.source is None or real is None or issubclass(type(real), _CONTAINERS):
        identity.guard_distinct(tx, value)
        return identity.IdVariable(value)
    identity.guard_address(tx, value.source, real)
    return ConstantVariable(id(real))


def _is_of_addresses(key: Any) -> bool:
    """Whether what is not known of the hash with this hash key are addresses of objects."""
    if isinstance(key, tuple):
        return all(map(_is_of_addresses, key))
    return isinstance(key, identity.IdentityKey) or has_known_hash(key)


@builtin(hash)
def _hash(tx: Translator, value: Values, /) -> Values:
    value = value.hashed_as(tx)
    if isinstance(value, (identity.IdVariable, BoundMethodVariable)):
        return hash_of_identity(tx, value)
    if value.python_type().__hash__ is torch.Tensor.__hash__:  # its `id`
        return _id(tx, value)
    if isinstance(value, TypingVariable):
        return ConstantVariable(hash(value.as_python_constant()))
    function = lookup_special(tx, value, "__hash__")
    if isinstance(function, BoundMethodVariable) and isinstance(
        function.function, BaseFunctionVariable
    ):
        result = tx.call_function(function, [], {}).realize()
        if isinstance(result, identity.IdVariable):
            return result
        return ConstantVariable(as_hash(tx, result))
    if value.python_type().__hash__ is object.__hash__:
        return hash_of_identity(tx, value)
    if isinstance(value, BuiltinObject) or value.python_type().__hash__ is None:
        key = value.hash_key(tx)
        if isinstance(key, (tuple, frozenset)) and has_known_hash(key):
            return ConstantVariable(hash(key))
        if isinstance(key, tuple) and _is_of_addresses(key):  # one for the same objects
            return identity.IdVariable(None, ("hash", key))
    if isinstance(value, UserValueVariable) and value.python_type().__hash__ in _VALUE_HASHES:
        return ConstantVariable(hash(value.base.as_python_constant()))
    if value.is_python_constant():
        constant = value.as_python_constant()
        if isinstance(type(constant).__hash__, types.WrapperDescriptorType):
            return ConstantVariable(hash(constant))
    real = fixed_object(tx, value)
    if real is not None:
        return tx.fold(hash, (real,), {})
    unsupported("hash()", repr(value), "the hash of this object is not known while tracing")
