"""Numbers of numpy in the frame that changed between two calls: a symbol and numpy's type.

Like Python's numbers they are constants until they change. With tensors the symbol takes part, as
torch takes a number of numpy; in arithmetic of doubles the symbol is computed with; anything else
makes a constant of it, which is a guard.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import trace_rules
from ..source import CallSource
from .base import VariableTracker
from .constant import ConstantVariable
from .functions import MethodOfVariable
from .registry import wraps
from .symint import SymVariable, compute
from .tensor import TensorVariable

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator

numpy = trace_rules.numpy
_OF_KIND = frozenset("dtype ndim shape size itemsize nbytes".split())
_PLAIN = {"__float__": float, "__int__": int, "__index__": int}


class NumpyNumberVariable(VariableTracker):
    """A number of numpy. symbol: the Python number that equals it; kind: numpy's type."""

    owns_operators = True

    def __init__(
        self, symbol: SymVariable, kind: type, *, source: Source | None = None
    ) -> None:
        super().__init__(source=source)
        self.symbol = symbol
        self.kind = kind

    def describe(self) -> str:
        return super().describe() or f"{self.kind.__name__}({self.symbol.describe()})"

    def python_type(self) -> type:
        return self.kind

    def as_python_constant(self) -> Any:
        return self.kind(self.symbol.as_python_constant())

    def specialized(
        self,
        tx: Translator,
    ) -> ConstantVariable:
        """The value of this call, which becomes a guard."""
        return ConstantVariable(self.kind(self.symbol.specialized(tx).value))

    def truth(
        self,
        tx: Translator,
    ) -> bool:
        return self.symbol.truth(tx)

    def hash_key(
        self,
        tx: Translator,
    ) -> Any:
        return self.specialized(tx).value

    def check_hashable(
        self,
        tx: Translator,
    ) -> None:
        pass

    def getattr(
        self,
        tx: Translator,
        name: str,
    ) -> VariableTracker:
        if name == "item" or name in _PLAIN:
            return MethodOfVariable(self, name)
        if name in _OF_KIND:
            return tx.wrap_constant(getattr(self.kind(1), name))
        return self.specialized(tx).getattr(tx, name)

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        same = name == "item" or _PLAIN.get(name) is self.symbol.python_type()
        if same and not args and not kwargs:
            return self.symbol
        return self.specialized(tx).call_method(tx, name, args, kwargs)

    def operate(
        self, tx: Translator, function: Callable[..., Any], args: list[VariableTracker]
    ) -> VariableTracker:
        """An operator of Python with this number as one operand."""
        called = tx.wrap_constant(function)
        for arg in args:
            if arg.owns_operators and not isinstance(arg, NumpyNumberVariable):
                return arg.operate(tx, function, args)
        if any(isinstance(arg, TensorVariable) for arg in args):
            return tx.call_function(called, [_plain(arg) for arg in args], {})
        if function in _COMPUTED and all(map(_is_double, args)):
            result = compute(tx, function, [_as_double(arg) for arg in args])
            if isinstance(result, SymVariable) and result.python_type() is float:
                return NumpyNumberVariable(result, self.kind)
        if function in _COMPARED and all(map(_is_double, args)):
            result = compute(tx, function, [_as_double(arg) for arg in args])
            if result is not None:
                return ConstantVariable(numpy.bool_(result.truth(tx)))
        if function in _EXACT | _COMPARED and all(_is_exact(tx, arg) for arg in args):
            result = compute(tx, function, [_plain(arg) for arg in args])
            if result is not None and function in _COMPARED:
                return ConstantVariable(numpy.bool_(result.truth(tx)))
            if isinstance(result, SymVariable) and result.python_type() in (int, float):
                is_whole = result.python_type() is int
                return NumpyNumberVariable(result, numpy.int64 if is_whole else numpy.float64)
        return tx.call_function(called, [arg.specialized(tx) for arg in args], {})

    # -- leaving the trace ----------------------------------------------------------------------

    def as_proxy(self) -> Any:
        return self.symbol.as_proxy()

    def reconstruct(
        self,
        codegen: PyCodegen,
    ) -> None:
        codegen.begin_call(self.kind)
        codegen(self.symbol)
        codegen.end_call(1)


_COMPUTED = frozenset(
    {operator.add, operator.sub, operator.mul, operator.truediv, operator.neg}
    | {operator.iadd, operator.isub, operator.imul, operator.itruediv}
)
_COMPARED = frozenset(getattr(operator, name) for name in "lt le gt ge eq ne".split())
# Of int64 that are small, where nothing overflows and doubles are exact, what Python computes.
_EXACT = _COMPUTED | {operator.floordiv, operator.mod, operator.ifloordiv, operator.imod}
_SMALL = 2**31
_DOUBLES = (float, numpy.float64) if numpy is not None else ()


def _is_double(value: VariableTracker) -> bool:
    if isinstance(value, ConstantVariable) and type(value.value) is int:
        return abs(value.value) <= 2**53
    return value.python_type() in _DOUBLES


def _is_exact(
    tx: Translator,
    value: VariableTracker,
) -> bool:
    """Whether it is an integer that is small (a guard), or a double."""
    if isinstance(value, ConstantVariable) and type(value.value) in (int, numpy.int64):
        return abs(int(value.value)) < _SMALL
    if value.python_type() not in (int, numpy.int64):
        return value.python_type() in _DOUBLES
    bounds = (
        (operator.lt, _SMALL),
        (operator.gt, -_SMALL),
    )
    found = [compute(tx, f, [_plain(value), ConstantVariable(bound)]) for f, bound in bounds]
    return all(answer is not None and answer.truth(tx) for answer in found)


def _plain(value: VariableTracker) -> VariableTracker:
    if isinstance(value, NumpyNumberVariable):
        return value.symbol
    return value


def _as_double(value: VariableTracker) -> VariableTracker:
    plain = _plain(value)
    return (
        ConstantVariable(float(plain.value)) if isinstance(plain, ConstantVariable) else plain
    )


def wrap_numpy_number(
    tx: Translator,
    value: Any,
    source: Source,
) -> VariableTracker:
    """A constant at first; a symbol from the second value on."""
    plain = float if isinstance(value, numpy.floating) else int
    inner = CallSource(source, plain, f"{plain.__name__}({{base}})")
    number = tx.output.shapes.number(plain(value), inner, tx.user_stack)
    tx.guard(source, "TYPE_IS", type(value))
    if number is None:
        tx.guard(inner, "CONST_EQ", plain(value))  # tells 0.0 from -0.0
        return ConstantVariable(value, source=source)
    symbol = tx.wrap_number(number, source=inner)
    assert isinstance(symbol, SymVariable)
    return NumpyNumberVariable(symbol, type(value), source=source)


wraps(*trace_rules.NUMPY_NUMBERS)(wrap_numpy_number)
