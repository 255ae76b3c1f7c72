"""CPython's abstract operations on traced values, as the opcode handlers need them (`tx.getattr`,
`tx.is_same`, ...).
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .base import VariableTracker, unsupported
from .constant import ConstantVariable
from .functions import CallableVariable
from .services import SEQUENCE_BUILDERS, Services
from .symint import SymVariable

if TYPE_CHECKING:
    pass


class Protocol(Services):
    """Operations on values that do not depend on which frame is interpreted."""

    def getattr(self, value: VariableTracker, name: str) -> VariableTracker:
        return value.realize().getattr(self, name)  # type: ignore[arg-type]

    def setattr(self, target: VariableTracker, name: str, value: VariableTracker) -> None:
        target.realize().setattr(self, name, value)  # type: ignore[arg-type]

    def call_operator(
        self, function: Callable[..., Any], args: list[VariableTracker]
    ) -> VariableTracker:
        """A function of the `operator` module on traced operands."""
        return self.call_real_callable(CallableVariable(function), function, args, {})

    def is_same(self, left: VariableTracker, right: VariableTracker) -> bool:
        """`left is right`. That two objects of the frame differ is guarded."""
        if left.identity() is right.identity():
            return True
        if isinstance(left, SymVariable) or isinstance(right, SymVariable):
            return self._is_same_number(left, right)
        values = left.realize(), right.realize()
        shared = values[0].shares(self, values[1])  # type: ignore[arg-type]
        if shared is None:
            shared = values[1].shares(self, values[0])  # type: ignore[arg-type]
        if shared is not None:
            return shared
        is_choice = any(getattr(value, "choice", None) for value in (left, right))
        if is_choice and left.python_type() is right.python_type():
            unsupported("choice of a tensor", f"{left!r} is {right!r}", "it depends on data")
        sources = [v.source for v in (left, right) if not isinstance(v, ConstantVariable)]
        if len(sources) == 2 and sources[0] is not None and sources[1] is not None:
            self.guard(sources[0], "NOT_ALIAS", sources[1])
        return False

    def _is_same_number(self, left: VariableTracker, right: VariableTracker) -> bool:
        """Small ints and bools are one object each; of others only the interpreter knows."""
        if left.python_type() is not right.python_type():
            return False
        if not self.call_operator(operator.eq, [left, right]).realize().truth(self):  # type: ignore[arg-type]
            return False
        value = left.specialized(self).as_python_constant()  # type: ignore[arg-type]
        if type(value) is float or not -5 <= value <= 256:
            unsupported("comparison", f"{left!r} is {right!r}", "they are equal numbers")
        return True

    def make_slice(self, parts: list[VariableTracker]) -> VariableTracker:
        """`slice(*parts)`."""
        if all(isinstance(part, ConstantVariable) for part in parts):
            return ConstantVariable(slice(*(part.as_python_constant() for part in parts)))
        return SEQUENCE_BUILDERS[slice](self, slice, parts)

    def format_value(self, value: VariableTracker, spec: str) -> VariableTracker:
        """`format(value, spec)`, as f-strings do it."""
        args = [value, ConstantVariable(spec)]
        return self.call_real_callable(CallableVariable(format), format, args, {})

    def make_exception(
        self, value: VariableTracker, cause: VariableTracker | None
    ) -> VariableTracker:
        """What `raise value from cause` raises: classes are called without arguments."""
        if issubclass(value.python_type(), type):
            value = self.call_function(value, [], {})
        if not issubclass(value.python_type(), BaseException):
            self.raise_observed(TypeError, "exceptions must derive from BaseException")
        if cause is not None:
            is_class = issubclass(cause.python_type(), type)
            if is_class and issubclass(cause.as_python_constant(), BaseException):
                cause = self.call_function(cause, [], {})
            kind = cause.python_type()
            if kind is not type(None) and not issubclass(kind, BaseException):
                self.raise_observed(
                    TypeError, "exception causes must derive from BaseException"
                )
            value.setattr(self, "__cause__", cause)  # type: ignore[arg-type]
        return value

    def wrap_code_constant(self, value: Any) -> VariableTracker:
        """An object of a code object's constants."""
        if isinstance(value, types.CodeType):
            return ConstantVariable(value)
        return self.wrap_constant(value)


__all__ = ["Protocol", "unsupported"]
