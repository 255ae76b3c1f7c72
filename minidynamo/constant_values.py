"""What sources and guards take for a constant: how constants are told apart, and shown."""

from __future__ import annotations

import types
import weakref
from dataclasses import dataclass
from typing import Any

CONSTANT_TYPES = frozenset(
    {bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented)}
)


def constant_key(value: Any) -> Any:
    """A hashable that is equal for equal constants of the same types, else for the same object.

    Floats are told apart as far as repr shows them: -0.0 is not 0.0, NaN is NaN.
    """
    kind = type(value)
    if kind in (float, complex):
        return kind, repr(value)
    if kind in CONSTANT_TYPES:
        return kind, value
    if kind is tuple:
        return kind, tuple(constant_key(item) for item in value)
    return "object", id(value)


@dataclass(frozen=True, slots=True)
class Shown:
    """Stands for an object of which only the text is kept."""

    text: str


@dataclass(frozen=True, slots=True)
class HeldWeakly(Shown):
    """Stands for an object that may die."""

    reference: weakref.ref[Any]


def constant_text(value: Any) -> str:
    """repr of a constant, else a short description: no repr of the user is run."""
    kind = type(value)
    if issubclass(kind, Shown):
        return value.text
    if kind is tuple:
        items = ", ".join(constant_text(item) for item in value)
        return f"({items},)" if len(value) == 1 else f"({items})"
    if kind in CONSTANT_TYPES:
        # Python refuses to write out integers of more than 4,300 digits, but in base 16.
        text = hex(value) if kind is int and value.bit_length() > 4_000 else repr(value)
        return text if len(text) <= 80 else f"{text[:77]}..."
    if issubclass(kind, (type, types.FunctionType, types.BuiltinFunctionType)):
        return value.__qualname__
    return f"<{kind.__qualname__} object>"
