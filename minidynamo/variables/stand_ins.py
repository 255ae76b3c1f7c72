"""Real objects that stand for what the traced code makes: its classes, and functions in them.

Layout, order of bases and slots of a class are the work of `type`: a class that the traced code
defines is made for real, once for all calls of what is compiled, of stand-ins for its functions.
So it must not be seen outside: code that would load one lets the graph end where it was made.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..exc import Unsupported
from .base import VariableTracker
from .nested_functions import NestedFunctionVariable

if TYPE_CHECKING:
    from ..bytecode import Instruction
    from ..side_effects import SideEffects
    from ..symbolic_convert import Translator

_DISPLAYS = (list, tuple, dict)
_ABSTRACT = "__isabstractmethod__"  # `abc` asks functions for it when a class is made


def note_made(tx: Translator, real: Any) -> Any:
    """Let `real` be known as made while tracing."""
    tx.output.side_effects.stand_ins[id(real)] = (real, tx.last_step())
    return real


def stand_in(tx: Translator, value: VariableTracker) -> Any:
    """The real object that stands for `value` in a class. Raises NotConstant if there is none."""
    value = value.realize()
    effects = tx.output.side_effects
    known = effects.real_of(value)
    if is_made(tx, known):
        return known
    if not isinstance(value, NestedFunctionVariable):
        return value.as_python_constant()
    if known is None:
        cells = tuple(types.CellType() for _ in value.cells)
        known = types.FunctionType(value.code, value.globals, value.name, None, cells or None)
        mark = effects.stored_attrs(value).get(_ABSTRACT)
        if isinstance(mark, VariableTracker):
            setattr(known, _ABSTRACT, mark.as_python_constant())
        effects.track(note_made(tx, known), value)
    return known


def display_of(tx: Translator, value: VariableTracker) -> Any:
    """The same for lists, tuples and dicts too, where only what is in them matters."""
    value = value.realize()
    kind = value.python_type()
    if kind not in _DISPLAYS or value.is_python_constant():
        return stand_in(tx, value)
    if kind is not dict:
        return kind(display_of(tx, item) for item in value.unpack(tx))
    items = value.call_method(tx, "items", [], {}).unpack(tx)
    return dict(tuple(display_of(tx, part) for part in item.unpack(tx)) for item in items)


def _parts(value: Any) -> Iterator[Any]:
    """What a constant of generated code leads to, as far as such constants are made of others."""
    yield value
    yield type(value)
    held: Iterable[Any] = ()
    if isinstance(value, (list, tuple, frozenset)):
        held = value
    elif isinstance(value, types.MethodType):
        held = (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        held = (value.func, *value.args, *value.keywords.values())
    for item in held:
        yield from _parts(item)


def check_unseen(effects: SideEffects, instructions: list[Instruction]) -> None:
    """Raise Unsupported, with the step that made it, if one of them is loaded."""
    made = effects.stand_ins
    for inst in instructions if made else ():
        if inst.opname != "LOAD_CONST":
            continue
        for part in _parts(inst.arg):
            if id(part) in made and made[id(part)][0] is part:
                why = "what is made while tracing, once for all calls, would be seen outside"
                reason = Unsupported("class made while tracing", repr(part), why)
                reason.made_at = made[id(part)][1]  # type: ignore[attr-defined]
                raise reason


def is_made(tx: Translator, value: Any) -> bool:
    """Whether the class or function was made while tracing."""
    return id(value) in tx.output.side_effects.stand_ins
