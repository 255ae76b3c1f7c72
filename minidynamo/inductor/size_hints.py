"""Questions about size symbols: which are in an expression, and what they were when compiling."""

from __future__ import annotations

from collections.abc import Iterable

from minidynamo.inductor.symbolic import Atom, Expr, FloorDiv, IntLike, Mod, Symbol

# Stands for symbols without hint.
UNKNOWN_SIZE = 1 << 10


def is_size(atom: Atom) -> bool:
    """Whether the atom is a size symbol."""
    return isinstance(atom, Symbol) and atom.size is None


def size_symbols(values: Iterable[IntLike | None]) -> set[Symbol]:
    """The size symbols in expressions, and in the sizes of their loop variables."""
    found: set[Symbol] = set()
    for value in values:
        for atom in value.atoms() if isinstance(value, Expr) else ():
            inner = getattr(atom, "size", None)
            if isinstance(atom, Symbol) and atom.size is None:
                found.add(atom)
            elif isinstance(inner, Expr):
                found |= size_symbols([inner])
    return found


def hint_of(value: IntLike, default: int = UNKNOWN_SIZE) -> int:
    """The number in the call that was compiled for: to estimate costs, never to decide what is
    right. `default` stands for symbols without hint.
    """
    if isinstance(value, int):
        return value
    total = value.const
    for monomial, coeff in value.terms.items():
        for atom in monomial:
            coeff *= _atom_hint(atom, default)
        total += coeff
    return total


def _atom_hint(atom: Atom, default: int) -> int:
    if isinstance(atom, (FloorDiv, Mod)):
        num, den = hint_of(atom.num, default), hint_of(atom.den, default) or 1
        return num // den if isinstance(atom, FloorDiv) else num % den
    hint = getattr(atom, "hint", None)
    return default if hint is None else hint
