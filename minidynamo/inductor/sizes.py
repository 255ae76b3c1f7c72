"""Symbolic sizes of fake tensors as the compiler's own expressions.

    sizes = SizeTable()
    sizes.convert(fake.shape[0])        # an int, or an Expr over size symbols
    meta = Meta(fake, sizes)            # shape, strides and offset of a fake tensor, converted

Polynomials, floor divisions and remainders become structure that indexing can simplify. Everything
else (`Max`, say) is a symbol of its own, which plans compute from the text of the expression.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import sympy
import torch
import torch.fx
from sympy.printing.str import StrPrinter
from torch.utils._sympy.functions import CleanDiv
from torch.utils._sympy.functions import FloorDiv as FloorDivision
from torch.utils._sympy.symbol import SymT, symbol_is_type

from minidynamo.inductor.size_hints import UNKNOWN_SIZE
from minidynamo.inductor.symbolic import (
    Expr,
    FloorDiv,
    IntLike,
    Mod,
    Symbol,
    Undecided,
    as_expr,
    floordiv,
    is_nonneg,
    mod,
    product,
    symbol_expr,
    upper,
)
from minidynamo.shape_env import checked_guards, keeping_quotients

# Functions that plans can compute (csrc/plan_expr.cpp), by the names that sympy prints.
_OF_INTEGERS = frozenset(
    "PowByNatural FloorDiv CleanDiv Mod PythonMod Abs Min Max CeilDiv IntTrueDiv".split()
)
_OF_FLOATS = frozenset(
    "ToFloat FloatTrueDiv FloatPow OpaqueUnaryFn_sqrt OpaqueUnaryFn_log OpaqueUnaryFn_log2".split()
)
_KEPT = frozenset("FloatTrueDiv FloatPow".split())  # which sympy leaves where they stand
_ROUNDING = frozenset("TruncToInt FloorToInt CeilToInt RoundToInt".split())


class _Printer(StrPrinter):  # type: ignore[misc]
    """Floats with all their digits."""

    def _print_Float(self, expr: Any) -> str:
        return repr(float(expr))


def exact_text(e: Any) -> str:
    """An expression as sympy prints it, floats as Python does."""
    return str(_Printer().doprint(e))


class SizeTable:
    """The size symbols of one graph. is_closed: all inputs were seen, which give their values.

    A size made of floats that an input tells is taken from there: sympy's order of operations may
    not be the program's. told: those that inputs tell alone, not as parts of others (None: all).
    extents: the symbols that are sizes of tensors among the inputs.
    """

    def __init__(
        self, told: Collection[Any] | None = None, extents: Collection[Any] = ()
    ) -> None:
        _forget_proofs()
        self.is_closed = False
        self._told = told
        self._extents = extents
        self._computed: list[Any] = []  # where inputs tell them in parts of others only
        self._symbols: dict[Any, Symbol] = {}
        self._known: dict[Any, IntLike] = {}
        self._facts: Facts | None = None

    @classmethod
    def of(cls, gm: torch.fx.GraphModule) -> SizeTable:
        """For a graph, whose inputs have such sizes."""
        told: set[Any] = set()
        extents: set[Any] = set()
        for node in gm.graph.find_nodes(op="placeholder"):
            value = node.meta["val"]
            is_strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
            for number in (*value.shape, *value.stride()) if is_strided else (value,):
                if isinstance(number, torch.SymInt) and has_floats(number.node.expr):
                    told.add(simplified(number))
            if is_strided:
                extents.update(n.node.expr for n in value.shape if isinstance(n, torch.SymInt))
        return cls(told, extents)

    def close(self) -> None:
        """All inputs were seen. Raises Undecided for a symbol of theirs that none gives."""
        self.is_closed = True
        for e in self._computed:
            for symbol in e.free_symbols:
                self._symbol(symbol, None)
        self._computed.clear()

    def convert(self, value: Any) -> IntLike:
        """An int stays; a SymInt becomes an Expr, or an int where it is one.

        Raises Undecided for what plans cannot compute.
        """
        if not isinstance(value, torch.SymInt):
            return value
        node = value.node
        found = self._known.get(node.expr)
        if found is None:
            converted = self._expr(simplified(value), node.shape_env)
            found = converted.const if converted.is_const else converted
            self._known[node.expr] = found
        return found

    def all(self, values: Sequence[Any]) -> tuple[IntLike, ...]:
        """Every one converted."""
        return tuple(map(self.convert, values))

    def map(self, value: Any) -> Any:
        """SymInts in nested lists, tuples and slices converted."""
        if isinstance(value, torch.SymInt):
            return self.convert(value)
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            raise Undecided(f"a symbolic {type(value).__name__} in a kernel")
        if isinstance(value, (tuple, list)):
            return type(value)(map(self.map, value))
        if isinstance(value, dict):
            return {key: self.map(item) for key, item in value.items()}
        return value

    def _expr(self, e: Any, env: Any) -> Expr:
        if e.is_Integer or e in self._known:
            return as_expr(int(e) if e.is_Integer else self._known[e])
        if self._facts is None:
            self._facts = Facts.of(env)
        value = self._facts.values.get(_with_floors(e))
        if value is not None:
            return as_expr(value)
        if e.is_Symbol:
            symbol = self._symbol(e, env)
            return symbol_expr(symbol) * (symbol.whole[1] if symbol.whole else 1)
        if isinstance(e, sympy.Add):
            total = as_expr(0)
            for arg in e.args:
                total = total + self._expr(arg, env)
            return total
        if isinstance(e, sympy.Mul) and all(arg.is_integer for arg in e.args):
            return as_expr(product(self._expr(arg, env) for arg in e.args))
        name = type(e).__name__
        if name in ("Pow", "PowByNatural") and e.args[1].is_Integer and e.args[1] > 0:
            return as_expr(product([self._expr(e.args[0], env)] * int(e.args[1])))
        if name in ("FloorDiv", "CleanDiv", "Mod", "PythonMod"):
            num, den = (self._expr(arg, env) for arg in e.args)
            if is_nonneg(den - 1):
                return mod(num, den) if name.endswith("Mod") else floordiv(num, den)
        if name == "Max" and len(e.args) == 2 and not has_floats(e):
            one, other = (self._expr(arg, env) for arg in e.args)
            for larger, smaller in (one, other), (other, one):
                if is_nonneg(larger - smaller):
                    return larger
        return symbol_expr(self._opaque(e, env))

    def _symbol(self, e: Any, env: Any) -> Symbol:
        if e not in self._symbols and self.is_closed:
            raise Undecided(f"no input gives the value of {e}")
        if e not in self._symbols:
            lower = env.var_to_range[e].lower if e in env.var_to_range else None
            hint = env.backed_var_to_val.get(e)
            if hint is not None and not hint.is_Integer:
                raise Undecided(f"{e} is the ragged size of a nested tensor")
            factor = 1 if self._facts is None else self._facts.factors.get(e, 1)
            least = int(lower) if lower is not None and lower.is_Integer else None
            self._symbols[e] = Symbol(
                f"{e}_{factor}" if factor > 1 else str(e),
                lower=-1 if least is None else -(-least // factor),
                hint=None if hint is None else int(hint) // factor,
                text=f"({e} // {factor})" if factor > 1 else "",
                is_extent=e in self._extents,
                whole=(str(e), factor) if factor > 1 else None,
            )
        return self._symbols[e]

    def _opaque(self, e: Any, env: Any) -> Symbol:
        if e not in self._symbols:
            is_given = has_floats(e) and not self.is_closed
            is_maximum = is_given and type(e).__name__ == "Max"
            is_given = is_given and (is_maximum or self._told is None or e in self._told)
            text = "" if is_given else f"({exact_text(e)})"
            if is_maximum:  # of a stride, which no input tells alone
                parts = (plan_size(self._expr(arg, env)) for arg in e.args)
                text = f"Max({', '.join(map(str, parts))})"
            elif not is_given:
                self._check(e, env)
                if not self.is_closed:
                    self._computed.append(e)
            bound = env.bound_sympy(e).lower
            # Hints of unbacked symbols agree with those of the expressions that they are in.
            values = dict.fromkeys(e.free_symbols, sympy.Integer(UNKNOWN_SIZE))
            hint = e.xreplace(values | dict(env.backed_var_to_val))
            self._symbols[e] = Symbol(
                f"e{len(self._symbols)}",
                lower=int(bound) if bound.is_Integer else -1,
                hint=int(hint) if hint.is_Integer else None,
                text=text,
            )
        return self._symbols[e]

    def _check(self, e: Any, env: Any) -> None:
        """Raises Undecided for an expression that plans do not compute."""
        if not all(map(_is_computed, sympy.preorder_traversal(e))):
            raise Undecided(f"{e} in a plan")
        for symbol in e.free_symbols if self.is_closed else ():
            self._symbol(symbol, env)


def _forget_proofs() -> None:
    """Of another graph, whose symbols have the same names."""
    for proven in (floordiv, mod, is_nonneg, upper):
        proven.cache_clear()


def has_floats(e: Any) -> bool:
    """Whether an expression is computed from other numbers than integers."""
    return not all(map(_is_integer, sympy.preorder_traversal(e)))


def _is_integer(part: Any) -> bool:
    return bool(getattr(part, "is_integer", False))  # booleans have no such property


def _is_computed(part: Any) -> bool:
    """Whether plans can compute this part of an expression from its arguments, as Python does:
    sympy reorders sums and products of several floats, so there may be one on a converted
    integer.
    """
    name, args = type(part).__name__, part.args
    if not args:
        return _is_integer(part) or bool(getattr(part, "is_Float", False))
    if name == "Pow":
        return bool(args[1].is_nonnegative)
    if name in _OF_INTEGERS or _is_integer(part) and name in ("Add", "Mul"):
        return all(map(_is_integer, args))
    if name in _ROUNDING or name in _KEPT:
        return True
    plain = all(_is_integer(a) or a.is_Float or type(a).__name__ == "ToFloat" for a in args)
    return plain and len(args) <= 2 and (name in _OF_FLOATS or name in ("Add", "Mul"))


def is_composed(value: Any, operands: Iterable[Any]) -> bool:
    """Whether a value is a symbolic float made of others than converted integers, in another way
    than its expression says.
    """
    floats = [x.node.expr for x in operands if isinstance(x, torch.SymFloat)]
    if not isinstance(value, torch.SymFloat):
        return False
    expr = value.node.expr
    if type(expr).__name__ in _KEPT and set(floats) <= set(expr.args):
        return False
    return any(type(e).__name__ != "ToFloat" for e in floats)


@dataclass
class Facts:
    """What the guards of a ShapeEnv say of sizes: patches fill an image.

    factors: symbols that are multiples of a number. values: expressions that are a number.
    """

    factors: dict[Any, int]
    values: dict[Any, int]

    @classmethod
    def of(cls, env: Any) -> Facts:
        """As they were noted last: a plan may rely on no others than those that its key names."""
        return _facts[env] if env in _facts else cls.noted(env)

    @classmethod
    def noted(cls, env: Any) -> Facts:
        """By the guards so far."""
        facts = _facts[env] = cls({}, {})
        conditions = [guard.expr for guard in checked_guards(env)]
        equal = [e.args for e in conditions if isinstance(e, sympy.Eq)]
        for expr, number in equal:
            if number.is_Integer and number > 0 and not expr.is_Symbol:
                facts.values[_with_floors(expr)] = int(number)
        for one, other in [*equal, *((b, a) for a, b in equal)]:
            if other.is_Mul and len(other.args) == 2 and one.is_Symbol:
                factor, part = other.args
                if type(part).__name__ == "FloorDiv" and part.args == (one, factor):
                    facts._note_multiple(one, factor, env)
        for expr, number in equal:
            if number == 0 and type(expr).__name__ in ("Mod", "PythonMod"):
                symbol, factor = expr.args
                facts._note_multiple(symbol, factor, env)
        return facts

    def _note_multiple(self, symbol: Any, factor: Any, env: Any) -> None:
        """Of a number, or of `symbol // number`, where that is known to fit so many times."""
        if type(factor).__name__ == "FloorDiv" and factor.args[0] == symbol:
            part, factor = factor, factor.args[1]
            times = [n for e, n in self.values.items() if e.args == (symbol, part)]
            if factor not in times:
                return
        if factor.is_Integer and factor > 1 and symbol in env.backed_var_to_val:
            self.factors[symbol] = math.lcm(self.factors.get(symbol, 1), int(factor))

    def text(self, expr: Any) -> str:
        """What they say of an expression."""
        parts = list(sympy.preorder_traversal(_with_floors(expr)))
        found = {e: n for known in (self.factors, self.values) for e, n in known.items()}
        return ", ".join(sorted({f"{e}: {found[e]}" for e in parts if e in found}))


_facts: WeakKeyDictionary[Any, Facts] = WeakKeyDictionary()


def _with_floors(e: Any) -> Any:
    """An expression without the divisions that torch notes as leaving no rest."""
    return e.replace(CleanDiv, FloorDivision) if e.has(CleanDiv) else e


class Meta:
    """A fake tensor's properties, with sizes, strides and offset converted."""

    def __init__(self, fake: torch.Tensor, sizes: SizeTable) -> None:
        self.fake = fake
        self.dtype = fake.dtype
        self.device = fake.device
        self.layout = fake.layout
        self.shape = sizes.all(fake.shape)
        self._sizes = sizes

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> IntLike:
        return product(self.shape)

    def stride(self, dim: int | None = None) -> Any:
        if dim is not None:
            return self._sizes.convert(self.fake.stride(dim))
        return self._sizes.all(self.fake.stride())

    def storage_offset(self) -> IntLike:
        return self._sizes.convert(self.fake.storage_offset())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fake, name)


def distance(view: Any, base: Any) -> IntLike:
    """How far a tensor begins behind another one in its memory, also where no input tells where
    that is.
    """
    if isinstance(view, Meta) and isinstance(base, Meta):
        return view._sizes.convert(view.fake.storage_offset() - base.fake.storage_offset())
    offset: IntLike = view.storage_offset() - base.storage_offset()
    return offset


def simplified(size: torch.SymInt) -> Any:
    """The expression of a size, by what the guards say. Broadcasting makes a guard of every size
    being 1 or not, which torch's own simplification leaves out for `s // 4`. What depends on data
    stays a symbol also where assertions leave one value to it.
    """
    env, expr = size.node.shape_env, size.node.expr
    expr = env.simplify(keeping_quotients(expr, env))
    if expr.is_number:
        return expr
    if not size.node.has_hint():
        bounds = env.bound_sympy(expr)
        if bounds.is_singleton():
            return bounds.lower
        if not (bounds.lower <= 1 <= bounds.upper):
            return expr
    elif expr.is_Atom or size.node.hint != 1:
        return expr
    known = env._maybe_evaluate_static(sympy.Eq(expr, 1))
    return sympy.S.One if known is not None and bool(known) else expr


def meta_of(value: Any, sizes: SizeTable) -> Any:
    """`Meta` for a fake tensor, or for each of a list."""
    if isinstance(value, torch.Tensor):
        return Meta(value, sizes)
    if isinstance(value, (tuple, list)):
        return [meta_of(item, sizes) for item in value]
    return sizes.map(value)


def plan_size(value: IntLike) -> int | str:
    """A size as plans spell it."""
    if isinstance(value, int):
        return value
    if value.is_const:
        return value.const

    def text(atom: Any) -> str:
        if isinstance(atom, (FloorDiv, Mod)):
            sign = "//" if isinstance(atom, FloorDiv) else "%"
            return f"({atom.num.render(text)} {sign} {atom.den.render_divisor(text)})"
        if not isinstance(atom, Symbol) or atom.size is not None:
            raise Undecided(f"{value} in a plan")
        return atom.text

    return value.render(text)


def has_symbols(values: Sequence[Any]) -> bool:
    """Whether a value, or the size of a tensor among them, is symbolic."""
    return any(True for value in values for _ in numbers_of(value))


def numbers_of(value: Any) -> Iterator[Any]:
    """The symbolic numbers in a value: itself, or those that describe a tensor."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from numbers_of(item)
    elif isinstance(value, torch.Tensor):
        yield from numbers_of(tuple(value.shape))
        if value.layout == torch.strided:
            yield from numbers_of((*value.stride(), value.storage_offset()))


def is_in_plans(value: Any) -> bool:
    """Whether a value is a symbolic size that plans can compute."""
    if not isinstance(value, torch.SymInt):
        return False
    return all(map(_is_computed, sympy.preorder_traversal(value.node.expr)))


def depends_on_data(symbol: Any) -> bool:
    """Whether a symbol of a ShapeEnv stands for what only running the graph gives."""
    return symbol_is_type(symbol, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT))
