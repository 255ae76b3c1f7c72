"""torch's ShapeEnv, which takes `trunc(a / b)` for `a // b`, also where a is negative, and `a < a`
for true where sympy does not know that a is a real number (`a = n | 1`); here not. sympy sorts the
terms of a sum: what is computed of floats that are known by now is what Python computed.

`decomposing` is how operators run on fake tensors of symbolic sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import sympy
import torch
import torch.nn.functional as F
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP, ShapeEnv
from torch.utils._sympy.functions import FloatTrueDiv, IntTrueDiv, ToFloat, TruncToInt
from torch.utils._sympy.printers import PythonPrinter

from .remembered_sizes import remembering

__all__ = [
    "ExactShapeEnv",
    "checked_guards",
    "constant_of",
    "decomposing",
    "keeping_quotients",
    "note_checked",
]

_DROPOUTS = (
    F.dropout,
    torch.dropout,
    torch.ops.aten.dropout,
    torch.ops.aten.dropout.default,
)
_HOLDS_OF_EQUALS = (sympy.Eq, sympy.Le, sympy.Ge)


_AS_CONSTANT = {
    torch.SymInt: "maybe_as_int",
    torch.SymFloat: "maybe_as_float",
    torch.SymBool: "maybe_as_bool",
}


def constant_of(number: Any) -> Any:
    """The value of a symbolic number that is a constant by now, else None."""
    # A node gives what it is as any of the three: an int of a float, say.
    value = getattr(number.node, _AS_CONSTANT[type(number)])()
    return value if value is None else _computed(number.node, value)


def _computed(node: SymNode, constant: Any) -> Any:
    """What Python computed, where sympy, whose sums are in another order, says `constant`."""
    return node.hint if node.pytype is float and node.has_hint() else constant


def note_checked(env: ShapeEnv) -> None:
    """Checks were made of all guards so far."""
    if isinstance(env, ExactShapeEnv):
        env.n_checked = len(env.guards)


def checked_guards(env: ShapeEnv) -> list[Any]:
    """The guards that hold whenever compiled code is called: not those that compiling a backward
    pass adds later.
    """
    last = env.n_checked if isinstance(env, ExactShapeEnv) else None
    return list(env.guards[:last])


def decomposing(
    target: Any, args: Any, kwargs: dict[str, Any], is_static: bool
) -> AbstractContextManager[None]:
    """With symbolic sizes, composite operators run as torch's decompositions: symbolic. Not a
    dropout that hands back its input: the decomposition copies that. `istft` always does, since
    the operator looks at its window.
    """
    if target in (torch.istft, "istft"):
        return enable_python_dispatcher()
    if is_static or (target in _DROPOUTS and not _drops(*args, **kwargs)):
        return nullcontext()
    return enable_python_dispatcher()


def _drops(
    input: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    train: bool = True,
) -> bool:
    return bool(p and training and train)


def keeping_quotients(expr: Any, env: ShapeEnv) -> Any:
    """The expression with quotients that `ShapeEnv.simplify` would round down, not to zero, written
    as those of floats, which it leaves as they are.
    """
    if not expr.has(TruncToInt):
        return expr
    kept = {}
    for rounded in expr.atoms(TruncToInt):
        quotient = rounded.args[0]
        if isinstance(quotient, IntTrueDiv) and not all(
            _is_counted(a, env) for a in quotient.args
        ):
            kept[rounded] = TruncToInt(FloatTrueDiv(*map(ToFloat, quotient.args)))
    return expr.xreplace(kept)


def _is_counted(expr: Any, env: ShapeEnv) -> bool:
    return bool(env.bound_sympy(expr).lower >= 0)


@functools.lru_cache(512)
def deciding_equal(expr: Any) -> Any:
    """The expression with comparisons of equal values decided."""
    if not isinstance(expr, Boolean):
        return expr
    decided = {
        relation: sympy.true if isinstance(relation, _HOLDS_OF_EQUALS) else sympy.false
        for relation in expr.atoms(Relational)
        if isinstance(relation.lhs, sympy.Expr) and isinstance(relation.rhs, sympy.Expr)
        if not relation.lhs.is_real and relation.lhs - relation.rhs == 0
    }
    return expr.xreplace(decided) if decided else expr


class ExactShapeEnv(ShapeEnv):
    """Simplifies nothing to another value than Python gives.

    results, numbers: what `remembered_sizes` keeps here. n_checked: how many of the guards the
    checks before a call were made of (None: these are still to be made).
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.results: dict[Any, tuple[Any, type, bool]] = {}
        self.numbers: dict[int, SymNode] = {}
        self.n_checked: int | None = None

    def create_symintnode(self, sym: Any, **options: Any) -> int | torch.SymInt:
        number = super().create_symintnode(sym, **options)
        if isinstance(number, torch.SymInt):
            remembering(number.node)
        return number

    def evaluate_sym_node(self, sym_node: SymNode, *args: Any, **kwargs: Any) -> Any:
        if sym_node.pytype is float and sym_node.expr.is_number:
            return _computed(sym_node, sym_node.expr)
        return super().evaluate_sym_node(sym_node, *args, **kwargs)

    def simplify(self, expr: Any, *args: Any, **kwargs: Any) -> Any:
        return super().simplify(keeping_quotients(expr, self), *args, **kwargs)

    def _maybe_evaluate_static(self, expr: Any, *args: Any, **kwargs: Any) -> Any:
        known = deciding_equal(expr)
        if known.is_Boolean and known in (sympy.true, sympy.false):
            return known
        return super()._maybe_evaluate_static(known, *args, **kwargs)

    # ShapeEnv keeps the answers of its own, until something is learnt.
    _maybe_evaluate_static.cache_clear = (  # type: ignore[attr-defined]
        ShapeEnv._maybe_evaluate_static.cache_clear
    )


@functools.lru_cache(maxsize=1024)
def expr_function(expr: Any, symbols: tuple[sympy.Symbol, ...]) -> Callable[..., Any]:
    """A Python function of the symbols' values that computes a sympy expression."""
    names = {symbol: sympy.Symbol(f"v{i}") for i, symbol in enumerate(symbols)}
    text = PythonPrinter().doprint(expr.xreplace(names))
    header = ", ".join(f"v{i}" for i in range(len(symbols)))
    return eval(f"lambda {header}: {text}", {"__builtins__": __builtins__, **SYMPY_INTERP})
