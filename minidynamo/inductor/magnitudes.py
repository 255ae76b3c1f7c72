"""How large a number may come up when an index is computed."""

from __future__ import annotations

from minidynamo.inductor.atoms import Atom, FloorDiv, Mod, Symbol, ValueRef
from minidynamo.inductor.symbolic import Expr

__all__ = ["magnitude"]


def magnitude(expr: Expr, limit: int, longest: int | None = None) -> int | None:
    """A bound of what comes up when `expr` is computed; None where it may not be below `limit`.

    Values of nodes count as 0. longest: what is assumed of a loop whose size is not a constant, and
    of a size that is an extent of a tensor; None: nothing.
    """
    total = abs(expr.const)
    for monomial, coeff in expr.terms.items():
        term = abs(coeff)
        for atom in monomial:
            bound = _atom_magnitude(atom, limit, longest)
            if bound is None:
                return None
            term *= bound
        total += term
    return total if total < limit else None


def _atom_magnitude(atom: Atom, limit: int, longest: int | None) -> int | None:
    if isinstance(atom, ValueRef):
        return 0
    if isinstance(atom, Symbol):
        if isinstance(atom.size, int):
            return atom.size - 1
        return longest if atom.size is not None or atom.is_extent else None
    assert isinstance(atom, (FloorDiv, Mod))
    inner = magnitude(atom.num, limit, longest)
    if inner is None or not atom.den.is_const or atom.den.const >= limit:
        return None
    return inner if isinstance(atom, FloorDiv) else atom.den.const - 1
