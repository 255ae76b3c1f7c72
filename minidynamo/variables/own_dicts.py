"""Dicts that are their own instance dicts, as `self.__dict__ = self` in `__init__` makes them:
their items are attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..guards import Predicate
from ..source_calls import instance_dict
from .base import VariableTracker, unsupported
from .constant import ConstantVariable
from .dicts import OWN_DICTS, DictVariable, OwnDicts

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..symbolic_convert import Translator


class OwnDictVariable(DictVariable):
    """Such a dict. The log has no attributes of it, but slots."""

    def load_getset(self, tx: Translator, descriptor: Any) -> VariableTracker:
        if descriptor.__name__ == "__dict__":
            return self
        return super().load_getset(tx, descriptor)

    def load_instance(self, tx: Translator, name: str) -> VariableTracker | None:
        return self.find(tx, name)

    def store_instance(self, tx: Translator, name: str, value: VariableTracker) -> None:
        self.put(tx, ConstantVariable(name), value)

    def delete_item(self, tx: Translator, name: str) -> None:
        self.take(tx, name)

    def has_stored(self, tx: Translator, name: str) -> bool:
        return self.find(tx, name) is not None

    def instance_names(self, tx: Translator) -> Iterator[str]:
        self.guard_keys(tx)
        return (key for key in list(self.entries) if isinstance(key, str))

    def reconstruct_attributes(self, codegen: PyCodegen) -> None:
        """The object is on top of the stack."""
        super().reconstruct_attributes(codegen)
        codegen.save_temp(self)
        codegen.begin_call(_hold_attributes)
        codegen.emit("LOAD_FAST", codegen.preload(self))
        codegen.end_call(1)
        codegen.emit("POP_TOP")


def _hold_attributes(own: dict[str, Any]) -> None:
    object.__setattr__(own, "__dict__", own)


def _check(tx: Translator, value: DictVariable) -> None:
    """Guard that an object of the frame, which is its own instance dict, is so again."""
    if value.is_ordered():
        unsupported("instance dict", value.describe(), "an OrderedDict has an order besides")
    check = Predicate(lambda held: instance_dict(held) is held, "it is its own instance dict")
    assert value.source is not None
    tx.guard(value.source, "PREDICATE", check)


def _adopt(tx: Translator, value: DictVariable) -> None:
    """`value.__dict__ = value`, where nobody else can have its old instance dict."""
    is_new = value.source is None and not value.is_ordered()
    if not is_new or tx.output.side_effects.stored_attrs(value):
        unsupported("instance dict", value.describe(), "what it held may be seen elsewhere")
    tx.output.side_effects.mutate(value)
    value.__class__ = OwnDictVariable


OWN_DICTS.append(OwnDicts(OwnDictVariable, _check, _adopt))
