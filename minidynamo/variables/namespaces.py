"""`locals()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import VariableTracker, unsupported
from .constant import ConstantVariable
from .dicts import DictVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


def locals_of(tx: Translator) -> VariableTracker:
    """The dict that `locals()` gives in a function. Some versions of CPython give the same one
    each time, brought up to date: here that is left to eager.
    """
    if tx.has_given_locals:
        unsupported("locals()", tx.code.co_name, "its dict may be the one that it gave before")
    tx.has_given_locals = True
    names = tx.visible_locals()
    return DictVariable({name: (ConstantVariable(name), v) for name, v in names.items()})
