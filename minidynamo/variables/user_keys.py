"""Keys of dicts and sets whose class defines `__hash__` or `__eq__` in Python."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from ..exc import Unsupported
from .base import VariableTracker, unsupported
from .builtin_object import USER_KEY, rich_equal
from .code_reach import CodeReach
from .constant import ENUM_KEY, ConstantVariable, is_value
from .descriptors import lookup_special
from .identity import IdVariable, guard_address
from .reach import reached

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


def _call_hash(tx: Translator, variable: VariableTracker) -> VariableTracker:
    function = lookup_special(tx, variable, "__hash__")
    if function is None:
        return variable.call_method(tx, "__hash__", [], {}).realize()
    return tx.call_function(function, [], {}).realize()


def as_hash(tx: Translator, result: VariableTracker) -> int:
    """`slot_tp_hash`: the hash that a `__hash__` which returned `result` gives."""
    if not issubclass(result.python_type(), int):
        tx.raise_observed(TypeError, "__hash__ method should return an integer")
    number = int(result.as_python_constant())
    fits = -sys.maxsize - 1 <= number <= sys.maxsize
    return hash(number) if not fits or number == -1 else number


def hash_of_identity(tx: Translator, value: VariableTracker) -> VariableTracker:
    """`object.__hash__`: of an object made inside it is only known that it stays the same. So it is
    with bound methods; addresses are small enough to be their own hashes.
    """
    if isinstance(value, IdVariable):
        return value
    if value.python_type() is types.MethodType:
        return IdVariable(None, ("hash", value.hash_key(tx)))
    if value.source is None:
        return IdVariable(None, ("hash", value.identity()))
    real = tx.output.side_effects.real_of(value)
    if real is None:
        unsupported("hash()", repr(value), "the hash of this object is not known while tracing")
    guard_address(tx, value.source, real)
    return ConstantVariable(hash(real))


class UserKey:
    """A dict key or set element whose class defines `__hash__` or `__eq__`: both are traced.

    How often CPython calls them is not modelled, so they may not change anything.
    """

    def __init__(self, tx: Translator, variable: VariableTracker) -> None:
        self.tx = tx
        self.variable = variable
        self.step = tx.last_step()
        effects = tx.output.side_effects
        before = effects.lasting
        result = _call_hash(tx, variable)
        if effects.lasting != before:
            unsupported("hash", repr(variable), "its __hash__ has side effects")
        self.is_known = not isinstance(result, IdVariable)
        self.hash = as_hash(tx, result) if self.is_known else hash(result.hash_key(tx))
        self._state = dict(effects.stored_attrs(variable))

    def is_stale(self) -> bool:
        """Whether the object changed since it was hashed: hashing it again may give another."""
        return self._state != self.tx.output.side_effects.stored_attrs(self.variable)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        right = self._variable_of(other)
        if self.variable is right:
            return True
        effects = self.tx.output.side_effects
        before = effects.lasting
        result = rich_equal(self.tx, self.variable, right)
        if effects.lasting != before:
            unsupported("comparison", repr(self.variable), "its __eq__ has side effects")
        return result

    def _variable_of(self, key: object) -> VariableTracker:
        """The value that another hash key stands for."""
        if isinstance(key, UserKey):
            return key.variable
        if isinstance(key, VariableTracker):
            return key
        if is_value(key):
            return ConstantVariable(key)
        known = self.tx.output.side_effects.variable_of(key)
        if known is None:
            unsupported(
                "comparison", repr(self.variable), "what it is compared with is not known"
            )
        return known


USER_KEY.append(UserKey)
ENUM_KEY.append(UserKey)


def has_known_hash(key: Any) -> bool:
    """Whether the hash of this hash key is what hashing the value itself gives."""
    if isinstance(key, (tuple, frozenset)):
        return all(map(has_known_hash, key))
    return key.is_known if isinstance(key, UserKey) else is_value(key)


def check_hashed_keys(keys: Iterable[Any]) -> list[UserKey]:
    """These hash keys are going to be hashed again, when the log is being replayed; those of the
    program's classes.
    """
    user_keys = [key for key in keys if isinstance(key, UserKey)]
    for key in user_keys:
        if key.is_stale():
            _refuse(key, "it was changed after it was hashed")
    for cls, key in {key.variable.python_type(): key for key in user_keys}.items():
        effects = key.tx.output.side_effects
        stores = effects.pending_attributes()
        if stores or effects.contents:
            found = CodeReach([cls.__hash__, cls.__eq__]).first_read(effects, stores)
            if found is not None:
                _refuse(key, f"hashing it may read what is stored later: {found}")
    return user_keys


def check_rebuilt_keys(keys: Iterable[Any]) -> None:
    """A dict or set with these hash keys is going to be built anew, which hashes them before the
    log is replayed.
    """
    for key in check_hashed_keys(keys):
        effects = key.tx.output.side_effects
        pending = {variable for variable, _ in effects.pending_attributes()} | {
            *effects.contents
        }
        if any(item in pending for item in _values(reached(key.tx, [key.variable]))):
            _refuse(key, "hashing it may read what is stored later")


def _refuse(key: UserKey, why: str) -> NoReturn:
    reason = Unsupported("hash", repr(key.variable), why)
    reason.made_at = key.step  # type: ignore[attr-defined]
    raise reason


def _values(items: Iterable[Any]) -> Iterable[VariableTracker]:
    return (item for item in items if isinstance(item, VariableTracker))
