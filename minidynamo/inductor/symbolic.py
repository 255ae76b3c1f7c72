"""Integer expressions for loop indices and sizes.

An `Expr` is a polynomial with integer coefficients over *atoms*. An atom is a `Symbol` (a loop
variable, with the number of values it takes, or a size known only at run time), a `FloorDiv`, a
`Mod`, or a `ValueRef` (a number that the kernel computes or loads: indirect indexing). Almost every
index that occurs is affine, so the class is a plain dictionary from monomial to coefficient:
building, adding and substituting cost microseconds.

Everything is immutable, hashable and compared structurally. Python's operators work on expressions
and ints: `x * 4 + 1`, `x // 4`, `x % 4`; the last two simplify with the ranges of the symbols (`(x
* 4 + y) // 4 == x` when `0 <= y < 4`). `Expr.subs` substitutes, `Expr.render` prints through a
printer's own functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from math import gcd
from typing import Union

from minidynamo.inductor.atoms import Atom, FloorDiv, Mod, Symbol, Undecided, ValueRef

Monomial = tuple[Atom, ...]
IntLike = Union[int, "Expr"]


class Expr:
    """`const` plus the sum of coefficient times monomial; `terms` holds no zero coefficient."""

    __slots__ = ("_hash", "_text", "const", "terms")

    def __init__(self, const: int, terms: dict[Monomial, int]) -> None:
        self.const = const
        self.terms = terms
        self._hash: int | None = None
        self._text: str | None = None

    # -- basic protocol ----------------------------------------------------------------------------
    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = (
                hash(self.const)
                if not self.terms
                else hash((self.const, frozenset(self.terms.items())))
            )
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, int):
            return not self.terms and self.const == other
        return (
            isinstance(other, Expr) and self.const == other.const and self.terms == other.terms
        )

    def __repr__(self) -> str:
        if self._text is None:
            self._text = self.render(
                lambda atom: atom.key if not isinstance(atom, Symbol) else atom.name,
            )
        return self._text

    @property
    def is_const(self) -> bool:
        return not self.terms

    def __int__(self) -> int:
        if self.terms:
            raise Undecided(f"not a constant: {self}")
        return self.const

    __index__ = __int__

    def __lt__(self, other: IntLike) -> bool:
        """Where it is proven or refuted for all values of the sizes; else Undecided is raised."""
        bound = as_expr(other)
        if is_nonneg(bound - self - 1):
            return True
        if is_nonneg(self - bound):
            return False
        raise Undecided(f"{self} < {other}")

    def __gt__(self, other: IntLike) -> bool:
        return as_expr(other) < self

    def __le__(self, other: IntLike) -> bool:
        return not self > other

    def __ge__(self, other: IntLike) -> bool:
        return not self < other

    def sorted_terms(self) -> list[tuple[Monomial, int]]:
        return sorted(self.terms.items(), key=lambda item: tuple(atom.key for atom in item[0]))

    def render(self, atom_text: Callable[[Atom], str]) -> str:
        """Text of the expression with operators and parentheses, atoms printed by `atom_text`."""
        out = ""
        for monomial, coeff in self.sorted_terms():
            text = "*".join(atom_text(atom) for atom in monomial)
            if abs(coeff) != 1:
                text = f"{abs(coeff)}*{text}"
            if out:
                out += f" + {text}" if coeff > 0 else f" - {text}"
            else:
                out = text if coeff > 0 else f"-{text}"
        if not out:
            return str(self.const)
        if self.const:
            out += f" + {self.const}" if self.const > 0 else f" - {-self.const}"
        return f"({out})" if len(self.terms) > 1 or self.const else out

    def render_divisor(self, atom_text: Callable[[Atom], str]) -> str:
        """`render`, for the right side of a division: products are in parentheses too."""
        text = self.render(atom_text)
        is_sum = len(self.terms) > 1 or (self.terms and self.const)
        return text if is_sum or text.isalnum() else f"({text})"

    # -- arithmetic --------------------------------------------------------------------------------
    def __add__(self, other: IntLike) -> Expr:
        if isinstance(other, int):
            return self if other == 0 else Expr(self.const + other, self.terms)
        if not isinstance(other, Expr):
            raise Undecided(f"{self} + {other!r}")
        if not other.terms:
            return self if other.const == 0 else Expr(self.const + other.const, self.terms)
        if not self.terms:
            return other if self.const == 0 else Expr(self.const + other.const, other.terms)
        return _recombine(_sum(self.const + other.const, self.terms, other.terms.items()))

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return Expr(-self.const, {m: -c for m, c in self.terms.items()})

    def __sub__(self, other: IntLike) -> Expr:
        return self + (-other)

    def __rsub__(self, other: IntLike) -> Expr:
        return -self + other

    def __mul__(self, other: IntLike) -> Expr:
        if isinstance(other, Expr):
            if other.terms and self.terms:
                return _product(self, other)
            if self.terms:
                other = other.const
            else:
                return other * self.const
        if not isinstance(other, int):
            raise Undecided(f"{self} * {other!r}")
        if other == 0:
            return ZERO
        if other == 1:
            return self
        return Expr(self.const * other, {m: c * other for m, c in self.terms.items()})

    __rmul__ = __mul__

    def __floordiv__(self, den: IntLike) -> Expr:
        return floordiv(self, as_expr(den))

    def __mod__(self, den: IntLike) -> Expr:
        return mod(self, as_expr(den))

    def __rfloordiv__(self, num: IntLike) -> Expr:
        return floordiv(as_expr(num), self)

    def __rmod__(self, num: IntLike) -> Expr:
        return mod(as_expr(num), self)

    def __truediv__(self, den: object) -> Expr:
        raise Undecided(f"{self} / {den}")

    __rtruediv__ = __truediv__

    # -- structure ---------------------------------------------------------------------------------
    def atoms(self) -> Iterator[Atom]:
        """Every atom, those inside FloorDiv and Mod included."""
        for monomial in self.terms:
            for atom in monomial:
                yield atom
                if isinstance(atom, (FloorDiv, Mod)):
                    yield from atom.num.atoms()
                    yield from atom.den.atoms()

    def symbols(self) -> set[Symbol]:
        return {atom for atom in self.atoms() if isinstance(atom, Symbol)}

    def is_uniform(self) -> bool:
        """Whether it is made of numbers and size symbols alone."""
        return not self.value_refs() and all(symbol.size is None for symbol in self.symbols())

    def value_refs(self) -> set[int]:
        return {atom.node for atom in self.atoms() if isinstance(atom, ValueRef)}

    def uses(self, symbols: Iterable[Symbol]) -> bool:
        wanted = symbols if isinstance(symbols, (set, frozenset)) else set(symbols)
        return any(atom in wanted for atom in self.atoms())

    def coeff(self, symbol: Symbol) -> Expr | None:
        """The factor of `symbol` if the expression is linear in it, else None (0 where it does not
        occur).
        """
        out: dict[Monomial, int] = {}
        const = 0
        for monomial, coeff in self.terms.items():
            count = monomial.count(symbol)
            if count > 1:
                return None
            if count == 1:
                rest = tuple(atom for atom in monomial if atom != symbol)
                if any(_mentions(atom, symbol) for atom in rest):
                    return None
                if rest:
                    out[rest] = out.get(rest, 0) + coeff
                else:
                    const += coeff
            elif any(_mentions(atom, symbol) for atom in monomial):
                return None
        return Expr(const, out)

    def subs(self, mapping: Mapping[Atom, IntLike]) -> Expr:
        """Replace atoms by expressions; FloorDiv and Mod simplify again."""
        total = as_expr(self.const)
        changed = False
        for monomial, coeff in self.terms.items():
            new = as_expr(coeff)
            for atom in monomial:
                value = _subs_atom(atom, mapping)
                changed = changed or value is not None
                new = new * (value if value is not None else Expr(0, {(atom,): 1}))
            total = total + new
        return total if changed else self


def _mentions(atom: Atom, symbol: Symbol) -> bool:
    if isinstance(atom, (FloorDiv, Mod)):
        return any(inner == symbol for inner in (*atom.num.atoms(), *atom.den.atoms()))
    return atom == symbol


def _subs_atom(atom: Atom, mapping: Mapping[Atom, IntLike]) -> Expr | None:
    if atom in mapping:
        return as_expr(mapping[atom])
    if isinstance(atom, (FloorDiv, Mod)):
        num, den = atom.num.subs(mapping), atom.den.subs(mapping)
        if num is atom.num and den is atom.den:
            return None
        return floordiv(num, den) if isinstance(atom, FloorDiv) else mod(num, den)
    return None


def _sum(
    const: int, terms: Mapping[Monomial, int], more: Iterable[tuple[Monomial, int]]
) -> Expr:
    out = dict(terms)
    for monomial, coeff in more:
        value = out.get(monomial, 0) + coeff
        if value:
            out[monomial] = value
        else:
            del out[monomial]
    return Expr(const, out)


def _product(a: Expr, b: Expr) -> Expr:
    total = b * a.const
    for left, coeff in a.terms.items():
        terms = {
            tuple(sorted(left + right, key=lambda atom: atom.key)): coeff * c
            for right, c in b.terms.items()
        }
        if b.const:
            terms[left] = terms.get(left, 0) + coeff * b.const
        total = total + Expr(0, {m: c for m, c in terms.items() if c})
    return total


def _recombine(e: Expr) -> Expr:
    """Rewrite `c * (a % d) + c * d * (a // d)` to `c * a`."""
    mods = [(m, n, a) for m in e.terms for n, a in enumerate(m) if isinstance(a, Mod)]
    for monomial, place, atom in mods:
        others = monomial[:place] + monomial[place + 1 :]
        times = Expr(0, {others: e.terms[monomial]}) if others else as_expr(e.terms[monomial])
        quotient = floordiv(atom.num, atom.den) * atom.den * times
        if len(quotient.terms) != 1 or quotient.const:
            continue
        ((whole, factor),) = quotient.terms.items()
        if e.terms.get(whole) == factor:
            rest = {m: c for m, c in e.terms.items() if m not in (monomial, whole)}
            return Expr(e.const, rest) + atom.num * times
    return e


ZERO = Expr(0, {})
ONE = Expr(1, {})
_SMALL = [Expr(i, {}) for i in range(-16, 1025)]


def as_expr(value: IntLike) -> Expr:
    """An int or expression as expression."""
    if isinstance(value, Expr):
        return value
    return _SMALL[value + 16] if -16 <= value <= 1024 else Expr(value, {})


def symbol_expr(symbol: Atom) -> Expr:
    """The expression that is just this atom."""
    return Expr(0, {(symbol,): 1})


def loop_symbol(name: str, size: IntLike) -> Symbol:
    """The loop variable `name` with 0 <= name < size; the same object for equal names and ints."""
    return _loop_symbol(name, size) if isinstance(size, int) else Symbol(name, size)


@lru_cache(maxsize=4096)
def _loop_symbol(name: str, size: int) -> Symbol:
    return Symbol(name, size)


# -- ranges ----------------------------------------------------------------------------------------


def _atom_size(atom: Atom) -> Expr | None:
    """An exclusive upper bound of an atom that is known to be >= 0; None where there is none."""
    if isinstance(atom, (Symbol, ValueRef)):
        return None if atom.size is None else as_expr(atom.size)
    if isinstance(atom, Mod):
        return atom.den
    if isinstance(atom, FloorDiv):
        top = upper(atom.num)
        if top is not None and is_nonneg(atom.num):
            return floordiv(top, atom.den) + 1
    return None


def _is_loop_atom(atom: Atom) -> bool:
    return not (isinstance(atom, Symbol) and atom.size is None)


def _extreme(e: Expr, largest: bool) -> Expr | None:
    """The largest or smallest value over the loop variables, as an expression in size symbols."""
    total = as_expr(e.const)
    for monomial, coeff in e.terms.items():
        loops = [atom for atom in monomial if _is_loop_atom(atom)]
        if not loops:
            total = total + Expr(0, {monomial: coeff})
            continue
        if not all(_is_nonneg_atom(atom) for atom in monomial if atom not in loops):
            return None
        if (coeff > 0) == largest:
            term = as_expr(coeff)
            for atom in monomial:
                size = _atom_size(atom) if _is_loop_atom(atom) else symbol_expr(atom)
                if size is None:
                    return None
                term = term * (size - 1 if _is_loop_atom(atom) else size)
            total = total + term
        elif any(not _is_nonneg_atom(atom) for atom in loops):
            return None
    return total


@lru_cache(maxsize=1 << 15)
def upper(e: Expr) -> Expr | None:
    """The largest value of `e` over its loop variables, in size symbols; None if unknown."""
    return _extreme(e, True)


def _is_nonneg_atom(atom: Atom) -> bool:
    if isinstance(atom, FloorDiv):
        return is_nonneg(atom.num)
    if isinstance(atom, ValueRef):
        return atom.size is not None
    return not isinstance(atom, Symbol) or atom.size is not None or atom.lower >= 0


def _is_nonneg_sum(low: Expr) -> bool:
    """`is_nonneg` of what has size symbols alone."""
    total = low.const
    for monomial, coeff in low.terms.items():
        if coeff < 0 or not all(map(_is_nonneg_atom, monomial)):
            return False
        for atom in monomial:
            coeff *= atom.lower if isinstance(atom, Symbol) else 0
        total += coeff
    return total >= 0


def _without_floors(e: Expr) -> Expr:
    """`e`, or what it is not below: 2 * (n // 2), where that is taken off, is at most n."""
    low = e
    for monomial, coeff in e.terms.items():
        for place, atom in enumerate(monomial):
            if coeff > 0 or not isinstance(atom, FloorDiv):
                continue
            others = monomial[:place] + monomial[place + 1 :]
            own = Expr(0, {others: coeff}) if others else as_expr(coeff)
            times, rest = _split(own, atom.den)
            if rest == 0 and all(map(_is_nonneg_atom, others)):
                low = low - Expr(0, {monomial: coeff}) + atom.num * times
                break
    return low


@lru_cache(maxsize=1 << 15)
def is_nonneg(e: Expr) -> bool:
    """True where `e` is proven to be >= 0."""
    if not e.terms:
        return e.const >= 0
    has_loops = any(_is_loop_atom(atom) for monomial in e.terms for atom in monomial)
    smallest = _extreme(e, False) if has_loops else e
    if smallest is not None and _is_nonneg_sum(smallest):
        return True
    for low in (e,) if smallest is None else (e, smallest):
        if (lower := _without_floors(low)) is not low and is_nonneg(lower):
            return True
    return False


def is_less(e: Expr, bound: Expr) -> bool:
    """True where `e < bound` is proven for all values of the loop variables."""
    top = upper(e)
    return top is not None and is_nonneg(bound - top - 1)


# -- division --------------------------------------------------------------------------------------


def _divide_term(
    monomial: Monomial, coeff: int, den_monomial: Monomial, den_coeff: int
) -> tuple[Monomial, int] | None:
    if coeff % den_coeff:
        return None
    rest = list(monomial)
    for atom in den_monomial:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest), coeff // den_coeff


def _split(e: Expr, den: Expr) -> tuple[Expr, Expr]:
    """(q, r) with e == q * den + r, q as large as the terms allow."""
    if den.is_const:
        den_monomial: Monomial = ()
        den_coeff = den.const
    elif len(den.terms) == 1 and den.const == 0:
        ((den_monomial, den_coeff),) = den.terms.items()
    else:
        return _split_by_sum(e, den)
    quotient, rest = ZERO, ZERO
    for monomial, coeff in e.terms.items():
        divided = _divide_term(monomial, coeff, den_monomial, den_coeff)
        if divided is None:
            rest = rest + Expr(0, {monomial: coeff})
        elif divided[0]:
            quotient = quotient + Expr(0, {divided[0]: divided[1]})
        else:
            quotient = quotient + divided[1]
    if den_monomial:
        return quotient, rest + e.const
    return quotient + e.const // den_coeff, rest + e.const % den_coeff


def _split_by_sum(e: Expr, den: Expr) -> tuple[Expr, Expr]:
    """`_split` by several terms: multiples of all of them are taken out of `e`."""
    lead, lead_coeff = max(den.terms.items(), key=lambda item: len(item[0]))
    quotient, rest = ZERO, e
    for monomial, coeff in e.terms.items():
        divided = _divide_term(monomial, coeff, lead, lead_coeff)
        if divided is None:
            continue
        factor = Expr(0, {divided[0]: divided[1]}) if divided[0] else as_expr(divided[1])
        part = factor * den
        left = rest - part
        is_all = len(left.terms) == len(rest.terms) - len(part.terms)
        if is_all and (left.const >= 0 or rest.const < 0):
            quotient, rest = quotient + factor, left
    return quotient, rest


def _in_range(e: Expr, den: Expr) -> bool:
    return is_nonneg(e) and is_less(e, den)


def _common(e: Expr, den: Expr) -> Iterator[Expr]:
    """What divides `den` and a term of `e`, the largest first; `den` has one term or none."""
    ((whole, times),) = den.terms.items() or [((), den.const)]
    found = set()
    for monomial, coeff in e.terms.items():
        rest, shared = list(monomial), []
        for atom in whole:
            if atom in rest:
                rest.remove(atom)
                shared.append(atom)
        found.add((len(shared), gcd(times, coeff), tuple(shared)))
    for count, factor, atoms in sorted(found, key=lambda one: one[:2], reverse=True):
        if count or factor > 1:
            yield Expr(0, {atoms: factor}) if atoms else as_expr(factor)


def _coarsen(e: Expr, den: Expr) -> tuple[Expr, Expr, Expr]:
    """(factor, coarse, fine): e == factor * coarse + fine, 0 <= fine < factor, a divisor of den."""
    if den.is_const or len(den.terms) == 1 and den.const == 0:
        for factor in _common(e, den):
            coarse, fine = _split(e, factor)
            if coarse.terms and factor != den and _in_range(fine, factor):
                return factor, coarse, fine
    return as_expr(1), e, ZERO


@lru_cache(maxsize=1 << 15)
def floordiv(num: Expr, den: Expr) -> Expr:
    """floor(num / den) for den > 0, simplified with what the ranges of the symbols tell."""
    if den == 1:
        return num
    if num.is_const and den.is_const:
        return as_expr(num.const // den.const)
    quotient, rest = _split(num, den)
    is_below = rest.const < 0 and _in_range(rest + den, den)
    if is_below or _in_range(rest, den):
        return quotient - int(is_below)
    if den.is_const:
        common = gcd(den.const, *rest.terms.values())
        if common > 1:
            rest = Expr(rest.const // common, {m: c // common for m, c in rest.terms.items()})
            return quotient + floordiv(rest, as_expr(den.const // common))
    factor, coarse, _ = _coarsen(rest, den)
    if factor != 1:
        return quotient + floordiv(coarse, _split(den, factor)[0])
    if len(rest.terms) == 1 and rest.const == 0:
        ((monomial, coeff),) = rest.terms.items()
        if len(monomial) == 1 and coeff == 1:
            atom = monomial[0]
            if isinstance(atom, FloorDiv):
                return quotient + floordiv(atom.num, atom.den * den)
            if isinstance(atom, Mod):
                inner, left = _split(atom.den, den)
                if left == 0:
                    return quotient + mod(floordiv(atom.num, den), inner)
    return quotient + symbol_expr(FloorDiv(rest, den))


@lru_cache(maxsize=1 << 15)
def mod(num: Expr, den: Expr) -> Expr:
    """num modulo den for den > 0, in [0, den), simplified with the ranges of the symbols."""
    if den == 1:
        return ZERO
    if num.is_const and den.is_const:
        return as_expr(num.const % den.const)
    _, rest = _split(num, den)
    if _in_range(rest, den):
        return rest
    if den.is_const:
        common = gcd(den.const, rest.const, *rest.terms.values())
        if common > 1:
            rest = Expr(rest.const // common, {m: c // common for m, c in rest.terms.items()})
            return mod(rest, as_expr(den.const // common)) * common
    factor, coarse, fine = _coarsen(rest, den)
    if factor != 1:
        return mod(coarse, _split(den, factor)[0]) * factor + fine
    if len(rest.terms) == 1 and rest.const == 0:
        ((monomial, coeff),) = rest.terms.items()
        if len(monomial) == 1 and coeff == 1 and isinstance(monomial[0], Mod):
            atom = monomial[0]
            if _split(atom.den, den)[1] == 0:
                return mod(atom.num, den)
    return symbol_expr(Mod(rest, den))


def product(values: Iterable[IntLike]) -> IntLike:
    """The product, an int where it is constant."""
    total: IntLike = 1
    for value in values:
        total = total * value
    return total


def contiguous_strides(size: Iterable[IntLike]) -> tuple[IntLike, ...]:
    """Row-major strides in elements; dimensions of size 0 count as 1, as torch does."""
    strides: list[IntLike] = []
    step: IntLike = 1
    for extent in reversed(tuple(size)):
        strides.append(step)
        step = step * (max(extent, 1) if isinstance(extent, int) else extent)
    return tuple(reversed(strides))


def dot(index: Iterable[IntLike], strides: Iterable[IntLike], offset: IntLike = 0) -> Expr:
    """offset + sum(index * stride)."""
    total = as_expr(offset)
    for i, stride in zip(index, strides, strict=True):
        total = total + as_expr(i) * stride
    return total
