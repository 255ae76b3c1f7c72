"""`locals()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..bytecode import current, decode, loops
from ..exc import SkipFrame
from .base import VariableTracker
from .constant import ConstantVariable
from .dicts import DictVariable
from .reach import is_held

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

# What looks at all locals of the frame that calls it.
_READERS = frozenset(("locals", "vars", "dir", "eval", "exec"))


def locals_of(tx: Translator) -> VariableTracker:
    """The dict that `locals()` gives in a function: `PyFrame_FastToLocals`, where CPython has one
    dict for all calls in a frame.
    """
    given = tx.given_locals
    if not isinstance(given, DictVariable):
        given = DictVariable({})
        tx.given_locals = given if current.dialect.one_locals_dict else None
    for name, value in tx.visible_locals().items():
        if value is not None:
            given.put(tx, ConstantVariable(name), value)
        elif name in given.entries:
            given.take(tx, name)
    return given


def check_given_locals(frame: Translator) -> None:
    """To be called before the frame breaks. The rest of it runs in other frames, where `locals()`
    gives other dicts: that must not be seen.
    """
    given = frame.given_locals
    if given is None or not is_held(frame, [given]):
        return
    code = decode(frame.code)
    n_readers = sum(i.opname.startswith("LOAD") and i.arg in _READERS for i in code)
    if n_readers > 1 or loops(code):
        raise SkipFrame("locals() may be called again behind a graph break")
