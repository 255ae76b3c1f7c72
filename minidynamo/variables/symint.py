"""Numbers that are symbols of the graph: `SymVariable` stands for an int, float or bool.

The value is torch's SymInt, SymFloat or SymBool over the ShapeEnv of the attempt: arithmetic makes
expressions, a branch is decided for the values of this call and becomes a guard. `FUNCTIONS` says
which functions are computed on symbols; everything else gets a constant, which is a guard too.

A value is rebuilt outside of the graph from the places where its symbols come from (a size, an
argument), by the operations that the program did; what depends on data comes out of the graph.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    sym_and,
    sym_or,
)
from torch.fx.node import map_arg

from ..exc import DataDependentError, MinidynamoError, Unsupported
from ..joined_sources import JoinedSource, part_of
from ..output_graph import example_value
from ..shape_env import constant_of
from ..shapes import WIDEST
from ..source import AttrSource, CallSource
from ..symbolic_contexts import is_ragged
from .base import LazyVariable, NotConstant, VariableTracker, unsupported
from .builder import builds
from .constant import ConstantVariable, is_negative
from .expectations import expect_nonzero
from .functions import MethodOfVariable

if TYPE_CHECKING:
    from torch.fx.node import Node

    from ..codegen import PyCodegen
    from ..output_graph import OutputGraph
    from ..source import Source
    from ..symbolic_convert import Translator

SYM_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PYTHON_TYPES: dict[type, type] = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
}
_NUMBERS = (int, float, bool)


class SymVariable(VariableTracker):
    """A symbolic number.

    made: how the program computed it, (function, operands); None for what has a source, for sizes
    of tensors and for results of the graph.
    """

    def __init__(
        self,
        output: OutputGraph,
        value: Any,
        *,
        source: Source | None = None,
        made: tuple[Callable[..., Any], list[VariableTracker]] | None = None,
        node: Node | None = None,
    ) -> None:
        super().__init__(source=source)
        self.output = output
        self.value = value
        self.made = made
        self._node = node

    def describe(self) -> str:
        return super().describe() or str(self.value)

    def python_type(self) -> type:
        return _PYTHON_TYPES[type(self.value)]

    def as_python_constant(self) -> Any:
        """Its value, once something made it a constant."""
        value = constant_of(self.value)
        if value is None:
            raise NotConstant(self)
        return self.python_type()(value)

    def specialized(self, tx: Translator) -> ConstantVariable:
        """The value of this call, which becomes a guard."""
        if tx.output.shapes.has_nested and is_ragged(self.value):
            unsupported("symbolic number", repr(self), "a ragged size is no constant")
        node = self.value.node
        if tx.output.options.fullgraph and not isinstance(node.expr, sympy.Symbol):
            # What a float is does not say what the numbers are that it was computed from. Where
            # the graph may end, that leaves them symbolic.
            for symbol in sorted(node.expr.free_symbols, key=str):
                decide(tx, partial(tx.output.shapes.fix, symbol), self)
        value = decide(tx, lambda: self.python_type()(self.value), self)
        return ConstantVariable(value)

    def truth(self, tx: Translator) -> bool:
        if isinstance(self.value, torch.SymFloat):
            return decide(tx, lambda: bool(self.value != 0), self)
        return decide(tx, lambda: bool(self.value), self)

    def hash_key(self, tx: Translator) -> Any:
        return self.specialized(tx).value

    def check_hashable(self, tx: Translator) -> None:
        pass

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if name in _ITSELF:
            return self
        if name == "__class__":
            return tx.wrap_constant(self.python_type())
        found = getattr(self.python_type(), name, None)
        if callable(found):
            return MethodOfVariable(self, name)
        return self.specialized(tx).getattr(tx, name)

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        function = _METHODS.get(name)
        if function is not None and not kwargs:
            operands = [self, *args] if not name.startswith("__r") else [*args, self]
            result = compute(tx, function, operands)
            if result is not None:
                return result
        if name == "as_integer_ratio" and self.python_type() is int and not (args or kwargs):
            return tx.wrap_items(tuple, [self, ConstantVariable(1)])
        return self.specialized(tx).call_method(tx, name, args, kwargs)

    # -- leaving the trace ----------------------------------------------------------------------

    def as_proxy(self) -> Any:
        if self.is_python_constant():
            return self.as_python_constant()
        if self._node is not None and not self._node._erased:
            return self._node
        if self.made is None:
            node = self.output.number_node(self.value)
        else:
            function, operands = self.made
            args = tuple(operand.realize().as_proxy() for operand in operands)
            node = self.output.add_number_node(function, args, self.value)
        if self.output.body is None:
            self._node = node
        return node

    def reconstruct(self, codegen: PyCodegen) -> None:
        if self.made is not None:
            function, operands = self.made
            codegen.begin_call(function)
            codegen.sequence(operands)
            codegen.end_call(len(operands))
            return
        compute_it, sources = self.output.computed_from(self.value)
        # A graph without operations, which is not called, moves nothing.
        moved = not self.output.is_empty() and any(map(_is_moved, sources))
        if compute_it is None or moved:
            codegen.graph_output(self.as_proxy())
            return
        if isinstance(self.value.node.expr, sympy.Symbol):
            codegen.load_source(sources[0])
            return
        codegen.begin_call(compute_it)
        for source in sources:
            codegen.load_source(source)
        codegen.end_call(len(sources))


def _is_moved(source: Source) -> bool:
    """Whether the graph may change what is there: versions of tensors, which writes count up."""
    return isinstance(source, AttrSource) and source.attribute == "_version"


def wrap_number(tx: Translator, value: Any, **made: Any) -> VariableTracker:
    """The traced value of a SymInt, SymFloat or SymBool; a constant where it is one."""
    variable = SymVariable(tx.output, value, **made)
    if variable.is_python_constant() and variable.source is None:
        return ConstantVariable(variable.as_python_constant())
    return variable


@builds(torch.SymInt, torch.SymFloat, torch.SymBool)
def _build_number(tx: Translator, value: Any) -> VariableTracker:
    return wrap_number(tx, value)


@builds(torch.Size)
def _build_size(tx: Translator, value: torch.Size) -> VariableTracker:
    return tx.wrap_items(torch.Size, [tx.wrap_constant(size) for size in value])


def decide(tx: Translator, question: Callable[[], Any], about: Any) -> Any:
    """The answer for the values of this call; the ShapeEnv makes a guard of it."""
    try:
        return question()
    except GuardOnDataDependentSymNode as error:
        raise DataDependentError(
            "data-dependent branch",
            f"{about!r}",
            f"the program needs to know {error.cond}, which depends on a tensor's data",
            ["say what holds with torch._check(...), or use torch.where or torch.cond"],
        ) from error
    except AssertionError as error:
        if "NaN" not in str(error):  # torch computed with infinite bounds
            raise
        raise Unsupported("symbolic number", repr(about), "torch does not bound it") from error
    finally:
        tx.output.shapes.note_guards(tx.user_stack)


def with_truths(tx: Translator, given: Any, failure: Unsupported) -> Any:
    """Arguments of a node with the truths of this call for SymBools; `failure` where none is."""
    flags: list[Node] = []
    map_arg(given, flags.append)
    flags = [node for node in flags if isinstance(example_value(node), torch.SymBool)]
    if not flags:
        raise failure
    truths = {node: decide(tx, partial(bool, example_value(node)), node) for node in flags}
    return map_arg(given, lambda node: truths.get(node, node))


# -- computing ----------------------------------------------------------------------------------


def _is_number(value: VariableTracker) -> bool:
    if isinstance(value, SymVariable):
        return True
    return isinstance(value, ConstantVariable) and type(value.value) in _NUMBERS


def compute(
    tx: Translator, function: Callable[..., Any], args: list[VariableTracker]
) -> VariableTracker | None:
    """`function(*args)` on symbolic numbers; None where that is not computed on symbols."""
    row = FUNCTIONS.get(function)
    if not all(map(_is_number, args)):
        return None
    if function is divmod:
        parts = [compute(tx, f, args) for f in (operator.floordiv, operator.mod)]
        return None if None in parts else tx.wrap_items(tuple, parts)  # type: ignore[arg-type]
    if row is None or (function is round and len(args) > 1):
        return _computed_outside(tx, function, args)
    if function in _INTEGERS_ONLY and any(arg.python_type() is float for arg in args):
        found = _computed_outside(tx, function, args)
        return _float_power(tx, args) if found is None and row is operator.pow else found
    if function in _ROUNDINGS and _is_of_floats(tx, args[0]):
        number = _computed_outside(tx, function, args)
        if number is not None:  # else plans, which compute with integers, run by operators
            return number
    if function in _DIVISIONS and isinstance(args[1], SymVariable):
        divisor = args[1].value
        relied_upon = expect_nonzero(tx, args[1], divisor)
        if not relied_upon and decide(tx, lambda: bool(divisor == 0), args[1]):
            return None
    if row is operator.pow and is_negative(args[0]):
        return None  # the ShapeEnv bounds no such powers, and graphs print them as `-2 ** n`
    if function in _EXTREMES and len({arg.python_type() for arg in args}) > 1:
        return None
    if function in (min, max) and len(args) != 2:
        return _fold_extreme(tx, function, args)
    values = [arg.value for arg in args]  # type: ignore[attr-defined]
    if row in _COMPARISONS and any(isinstance(value, torch.SymBool) for value in values):
        return None  # the ShapeEnv subtracts what it compares
    if not any(isinstance(value, torch.SymBool) for value in values):
        # To arithmetic on numbers, True is 1.
        values = [int(value) if type(value) is bool else value for value in values]
    try:
        result = decide(tx, lambda: row(*values), args)
        if isinstance(result, torch.SymInt) and not _fits(tx, result, function):
            return None
    except MinidynamoError:
        raise
    except (
        TypeError,
        AttributeError,
        RuntimeError,
        ValueError,
        ArithmeticError,
        AssertionError,
    ):
        return None  # constants then give the program's own error, if it is one
    if isinstance(result, SYM_TYPES):
        if _cancels(values, result):
            return _computed_outside(tx, row, args)
        return wrap_number(tx, result, made=(row, args))
    return tx.wrap_constant(result) if type(result) in _NUMBERS else None


def _cancels(operands: list[Any], result: Any) -> bool:
    """Whether sympy took terms away: sums of floats are rounded where those stand, no NaN equals
    itself, and infinities are neither 0 where they are subtracted nor 1 where they are divided.
    """
    parts = [value.node.expr for value in operands if isinstance(value, torch.SymFloat)]
    symbols = {symbol for part in parts for symbol in part.free_symbols}
    return bool(symbols) and not symbols <= result.node.expr.free_symbols


def _fits(tx: Translator, number: torch.SymInt, function: Callable[..., Any]) -> bool:
    """Whether guards, graphs and kernels can compute the number that `function` gave, in 64 bits;
    those of other values of the program's integers, too: that is a guard.
    """
    hint, expr, shapes = number.node.hint, number.node.expr, tx.output.shapes
    is_wide = type(hint) is int and abs(hint) >= WIDEST
    if is_wide or expr is sympy.nan or not shapes.narrow(expr):  # infinite bounds make NaNs
        return False
    if function not in _GROWING or shapes.narrowed.isdisjoint(expr.free_symbols):
        return True
    bounds = shapes.env.bound_sympy(expr)
    if bounds.lower > -WIDEST and bounds.upper < WIDEST:
        return True
    asked = (number < WIDEST, number > -WIDEST)
    return all(decide(tx, partial(bool, answer), number) for answer in asked)


# What knows the calls that make texts of numbers (`symbolic_text`).
TEXT_CALLS: list[Callable[..., VariableTracker | None]] = []


def symbolic_call(
    tx: Translator,
    function: Any,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker | None:
    """A call that is computed on symbolic numbers, or makes a text of them; None for others."""
    if not kwargs and any(isinstance(arg, SymVariable) for arg in args):
        number = compute(tx, function, args)
        if number is not None:
            return number
    return TEXT_CALLS[0](tx, function, args, kwargs)


def _is_of_floats(tx: Translator, value: VariableTracker) -> bool:
    """Whether a number is made of floats of the frame, or that were computed outside."""
    if not isinstance(value, SymVariable):
        return False
    symbols, known = value.value.node.expr.free_symbols, tx.output.shapes.sources
    return any(not s.is_integer for s in symbols) and all(s in known for s in symbols)


def _computed_outside(
    tx: Translator, function: Callable[..., Any], args: list[VariableTracker]
) -> VariableTracker | None:
    """A new symbol for what a function gives that the ShapeEnv does not compute as Python does:
    its place is the function of the places of the symbols in `args`.
    """
    if function not in _OUTSIDE:
        return None
    places: dict[Source, int] = {}
    parts = [_function_of_places(arg, places) for arg in args]
    if not places or None in parts:
        return None
    hints = [arg.value if type(arg.value) in _NUMBERS else arg.value.node.hint for arg in args]  # type: ignore[attr-defined]
    try:
        value = function(*hints)
    except (ArithmeticError, ValueError, TypeError):
        return None  # constants then give the program's own error
    if type(value) not in _NUMBERS:
        return None
    label = f"{function.__name__}({', '.join(arg.describe() or repr(arg) for arg in args)})"
    source = _computed_source(tuple(places), partial(_call_at, function, parts), label)
    if type(value) is bool:
        return tx.wrap(value, source)  # an answer, which is guarded in place of the number
    number = tx.output.shapes.computed_number(value, source, tx.user_stack())
    return tx.wrap(value, source) if number is None else tx.wrap_number(number, source=source)


def float_power(base: Any, exponent: Any) -> Any:
    """`base ** exponent`, of which one is a float. torch's SymFloats refuse negative bases."""
    if isinstance(base, torch.SymFloat):
        return base.__float_pow__(exponent)
    symbolic = isinstance(exponent, torch.SymFloat)
    return exponent.__rfloat_pow__(base) if symbolic else base**exponent


def _float_power(tx: Translator, args: list[VariableTracker]) -> VariableTracker | None:
    """A power of several symbols, where guards say that it is a float."""
    if len(args) != 2:
        return None
    base, exponent = values = [torch.sym_float(arg.value) for arg in args]  # type: ignore[attr-defined]
    never_complex = isinstance(exponent, float) and exponent.is_integer()
    if not (never_complex and exponent > 0):
        domain = partial(operator.ne if never_complex else operator.gt, base, 0)
        if not decide(tx, lambda: bool(domain()), args[0]):
            return None
    try:
        result = float_power(*values)
    except ArithmeticError:
        return None  # constants then give the program's own error
    return wrap_number(tx, result, made=(float_power, args))


def _computed_source(
    places: tuple[Source, ...], function: Callable[..., Any], label: str
) -> Source:
    if len(places) == 1:
        return CallSource(places[0], function, label.replace("{", "{{"))
    return JoinedSource(places, function, label)


def _call_at(function: Callable[..., Any], parts: list[Any], *values: Any) -> Any:
    return function(*[part(values) for part in parts])


def _function_of_places(
    value: VariableTracker, places: dict[Source, int]
) -> Callable[[Sequence[Any]], Any] | None:
    """How a number is computed from what is found at the places, to which its own are added."""
    if not isinstance(value, SymVariable):
        if not value.is_python_constant():  # the terms of a sum
            return None
        constant = value.as_python_constant()
        return lambda values: constant
    parts: list[Any]
    if value.made is not None:
        function, operands = value.made
        parts = [_function_of_places(operand.realize(), places) for operand in operands]
        return None if None in parts else lambda values: _call_at(function, parts, *values)
    compute_it, sources = value.output.computed_from(value.value)
    if compute_it is None:
        return None
    parts = [part_of(source, places) for source in sources]
    return lambda values: _call_at(compute_it, parts, *values)


def _fold_extreme(
    tx: Translator, function: Callable[..., Any], args: list[VariableTracker]
) -> VariableTracker | None:
    best: VariableTracker | None = args[0] if len(args) > 2 else None
    for arg in args[1:]:
        best = best and compute(tx, function, [best, arg])
    return best


_IN_PLACE = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod,
    operator.ipow: operator.pow,
    operator.ilshift: operator.lshift,
    operator.irshift: operator.rshift,
    operator.iand: operator.and_,
    operator.ior: operator.or_,
    operator.ixor: operator.xor,
}
_OPERATORS = (
    *set(_IN_PLACE.values()),
    operator.neg,
    operator.pos,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
)
# Function of the program -> the one that computes it on symbols, in the graph and on real numbers.
FUNCTIONS: dict[Any, Any] = {
    **{function: function for function in _OPERATORS},
    **_IN_PLACE,
    abs: abs,
    round: round,
    pow: operator.pow,
    divmod: divmod,
    int: torch.sym_int,
    float: torch.sym_float,
    min: torch.sym_min,
    max: torch.sym_max,
    math.floor: math.floor,
    math.ceil: math.ceil,
    math.trunc: math.trunc,
    math.sqrt: torch.sym_sqrt,  # type: ignore[attr-defined]
    operator.index: torch.sym_int,
    torch.sym_int: torch.sym_int,
    torch.sym_float: torch.sym_float,
    torch.sym_min: torch.sym_min,
    torch.sym_max: torch.sym_max,
    torch.sym_not: torch.sym_not,
    torch.sym_ite: torch.sym_ite,
    sym_and: sym_and,
    sym_or: sym_or,
    torch.sym_sqrt: torch.sym_sqrt,  # type: ignore[attr-defined]
    **{
        getattr(math, name): getattr(torch, f"_sym_{name}")
        for name in "cos cosh sin sinh tan tanh asin acos atan log2".split()
        if hasattr(torch, f"_sym_{name}")
    },
}
_DIVISIONS = frozenset(
    {operator.truediv, operator.floordiv, operator.mod, divmod}
    | {operator.itruediv, operator.ifloordiv, operator.imod}
)
_COMPARISONS: frozenset[Callable[..., Any]] = frozenset(
    {
        operator.eq,
        operator.ne,
        operator.lt,
        operator.le,
        operator.gt,
        operator.ge,
    }
)
# What the ShapeEnv does for integers, but not as Python does it for floats.
_INTEGERS_ONLY = frozenset(
    {
        operator.floordiv,
        operator.ifloordiv,
        operator.mod,
        operator.imod,
        operator.pow,
        operator.ipow,
        pow,
        divmod,
        round,
    }
)
# What makes large integers of small ones.
_GROWING = frozenset({operator.mul, operator.imul, operator.lshift, operator.ilshift})
_GROWING |= {operator.pow, operator.ipow, pow}
_ROUNDINGS = frozenset({int, torch.sym_int, math.floor, math.ceil, math.trunc})
# What has no effects and depends on its arguments alone.
_OUTSIDE = (
    _INTEGERS_ONLY
    | _ROUNDINGS
    | _COMPARISONS
    | {operator.add, operator.sub, operator.mul, operator.truediv}
    | {float.is_integer}
    | {
        function
        for name, function in vars(math).items()
        if callable(function) and not name.startswith("_")
    }
)
_EXTREMES = frozenset({min, max, torch.sym_min, torch.sym_max})
_ITSELF = frozenset({"real", "numerator"})
_METHODS: dict[str, Callable[..., Any]] = {
    **{
        f"__{prefix}{name.strip('_')}__": getattr(operator, name)
        for prefix in ("", "r")
        for name in "add sub mul truediv floordiv mod pow lshift rshift and_ or_ xor".split()
    },
    **{f"__{n}__": getattr(operator, n) for n in "neg pos lt le gt ge eq ne".split()},
    "__abs__": abs,
    "__int__": int,
    "__index__": operator.index,
    "__float__": float,
    "__round__": round,
    "__floor__": math.floor,
    "__ceil__": math.ceil,
    "__trunc__": math.trunc,
    "conjugate": operator.pos,
    "is_integer": float.is_integer,
}


def symbols_in(values: Iterable[VariableTracker]) -> list[SymVariable]:
    """The symbolic numbers among values, and in the lists, tuples and slices among them."""
    found: list[SymVariable] = []
    seen: set[int] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        if isinstance(value, LazyVariable) and not value.is_realized:
            continue
        value = value.realize()
        symbol = getattr(value, "symbol", None)  # of a number of numpy
        if isinstance(value, SymVariable):
            found.append(value)
        elif isinstance(symbol, SymVariable):
            found.append(symbol)
        elif id(value) not in seen:
            seen.add(id(value))
            for name in ("items", "parts"):
                inner = getattr(value, name, None)
                inner = inner if isinstance(inner, list) else ()
                todo += [each for each in inner if isinstance(each, VariableTracker)]
    return found
