"""`id(x)` of objects whose address is not known while tracing: good for keys of memo tables."""

from __future__ import annotations

import enum
import operator
from typing import TYPE_CHECKING, Any

import torch

from ..source import CallSource, Source
from .base import VariableTracker, unsupported
from .constant import ConstantVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator


class IdentityKey:
    """Stands for an object as dict key: equal to the key of the same object only."""

    def __init__(self, token: Any, what: VariableTracker | None = None) -> None:
        self.token = token
        self.what = what

    def __hash__(self) -> int:
        return hash(self.token)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.token == other.token


def _is_known_by_value(what: VariableTracker) -> bool:
    """Whether `id` takes it for one object with its equals. New containers are objects each."""
    if isinstance(what, ConstantVariable):
        return True
    is_given = what.source is not None and what.python_type() in (tuple, frozenset)
    return is_given and what.is_python_constant()


def _is_single(what: VariableTracker) -> bool:
    """Whether there is one object of this value in a process."""
    value = what.as_python_constant()
    is_singleton = isinstance(value, (type(None), bool, type(...), enum.Enum, torch.dtype))
    return is_singleton or value is NotImplemented


class IdVariable(VariableTracker):
    """`id(what)`. Without an object: an int that is the same wherever `token` is."""

    def __init__(self, what: VariableTracker | None, token: Any = None) -> None:
        super().__init__()
        if what is None:
            self.key = IdentityKey(token)
        elif _is_known_by_value(what):
            constant = what.as_python_constant()
            self.key = IdentityKey((type(constant).__qualname__, repr(constant)), what)
        else:
            self.key = IdentityKey(id(what.identity()), what)

    def describe(self) -> str:
        return f"id({self.key.what!r})"

    def python_type(self) -> type:
        return int

    def hash_key(self, tx: Translator) -> Any:
        return self.key

    def compare(
        self,
        tx: Translator,
        method: str,
        other: VariableTracker,
    ) -> VariableTracker | None:
        if not isinstance(other, IdVariable) or method not in ("__eq__", "__ne__"):
            return None
        return ConstantVariable((self.key == other.key) is (method == "__eq__"))

    def truth(self, tx: Translator) -> bool:
        return True

    def reconstruct(self, codegen: PyCodegen) -> None:
        what = self.key.what
        if what is None or (_is_known_by_value(what) and not _is_single(what)):
            unsupported("id()", self.describe(), "the address is not known while tracing")
        codegen.begin_call(id)
        codegen(what)
        codegen.end_call(1)


class ImplVariable(IdVariable):
    """`tensor._cdata`: the address of what the Python object stands for, one for each object."""

    def __init__(self, what: VariableTracker) -> None:
        super().__init__(None, ("_cdata", id(what.identity())))
        self.key.what = what

    def describe(self) -> str:
        return f"{self.key.what!r}._cdata"

    def reconstruct(self, codegen: PyCodegen) -> None:
        assert self.key.what is not None
        codegen(self.key.what)
        codegen.emit("LOAD_ATTR", "_cdata")


def guard_address(tx: Translator, source: Source, real: Any) -> None:
    """The object is `real`, or lies where it did: `id()` and `object.__hash__` show no more.

    No weak reference to a tensor is held: with one, `torch.utils.swap_tensors` refuses it.
    """
    if isinstance(real, torch.Tensor):
        tx.guard(CallSource(source, id, "id({base})"), "CONST_EQ", id(real))
    else:
        tx.guard(source, "ID_IS", real)


def guard_distinct(tx: Translator, value: VariableTracker) -> None:
    """Objects of the frame whose ids differ now must not be one object in another call.

    Equal constants have one key: what they are is guarded already.
    """
    if value.source is None or _is_known_by_value(value):
        return
    sources = tx.output.identified
    for other, kind in sources.items():
        if other != value.source and kind is value.python_type():
            tx.guard(value.source, "NOT_ALIAS", other)
    sources[value.source] = value.python_type()


def id_of_number(tx: Translator, value: VariableTracker) -> IdVariable:
    """`id(value)`: one for all numbers of a type that are equal, as constants have it. Where one is
    symbolic, it is guarded which numbers equal it.
    """
    constants, symbolic = tx.output.identified_numbers
    answer = IdVariable(value)
    if value.is_python_constant():
        others = symbolic if answer.key not in constants else []
        constants.setdefault(answer.key, value)
    else:
        others = [*constants.values(), *symbolic]
        symbolic.append(value)
    for other in others:
        if other.python_type() is value.python_type():
            same = tx.call_operator(operator.eq, [value, other]).realize()
            if same.truth(tx):  # type: ignore[arg-type]
                return IdVariable(other)
    return answer
