"""The factors of the monomials in `symbolic.Expr`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minidynamo.inductor.symbolic import Expr, IntLike


class Atom:
    """An indivisible factor of a monomial. `key` orders atoms and is unique for one meaning."""

    __slots__ = ("_hash", "key")
    key: str

    def _finish(self, key: str) -> None:
        self.key = key
        self._hash = hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self.key == other.key)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return self.key


class Undecided(TypeError):
    """A question about a symbolic size has no answer that holds for all its values."""


class Symbol(Atom):
    """A variable. A loop variable takes the values 0 <= s < `size`; a size symbol has `size` None,
    is >= `lower`, and is `hint` in the call that was compiled for.

    is_extent: whether it is the size of a tensor that is given, which memory bounds.
    text: how plans compute a size symbol (default: it is one of the plan's own symbols).
    whole: a symbol of the plan of which `text` is a part, and how many times it goes into that.
    """

    __slots__ = ("hint", "is_extent", "lower", "name", "size", "text", "whole")

    def __init__(
        self,
        name: str,
        size: IntLike | None = None,
        lower: int = 0,
        hint: int | None = None,
        text: str = "",
        is_extent: bool = False,
        whole: tuple[str, int] | None = None,
    ) -> None:
        self.name = name
        self.size = size
        self.whole = whole
        self.lower = lower
        self.is_extent = is_extent
        self.hint = hint
        self.text = text or name
        self._finish(name if size is None else f"{name}:{size}")

    @property
    def is_given(self) -> bool:
        """Whether it is a symbol of the plan itself."""
        return self.text == self.name


class ValueRef(Atom):
    """The integer that node `node` of the loop body computes; 0 <= value < `size` where `size` is
    given.
    """

    __slots__ = ("node", "size")

    def __init__(self, node: int, size: IntLike | None = None) -> None:
        self.node = node
        self.size = size
        self._finish(f"%{node}:{size}")


class _Division(Atom):
    """Of two expressions. Their texts are not all: loop variables of other sizes have the names."""

    __slots__ = ("den", "num")
    __hash__ = Atom.__hash__
    _sign: str

    def __init__(self, num: Expr, den: Expr) -> None:
        self.num = num
        self.den = den
        self._finish(f"({num} {self._sign} {den})")

    def __eq__(self, other: object) -> bool:
        if self is other or not super().__eq__(other):
            return self is other
        return self.num == other.num and self.den == other.den  # type: ignore[attr-defined]


class FloorDiv(_Division):
    """floor(num / den), den > 0, in a form that did not simplify."""

    __slots__ = ()
    _sign = "//"


class Mod(_Division):
    """num - den * floor(num / den), den > 0, in a form that did not simplify; 0 <= value < den."""

    __slots__ = ()
    _sign = "%"
