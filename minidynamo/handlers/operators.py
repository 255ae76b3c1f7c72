"""The functions of the operator module, hence every operator of the traced program.

Constants were folded before. A tensor operand makes a graph node; else the operands' types decide
as CPython's do: `binary_op1`, in-place slots, reflected comparisons, identity if there are none.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from .. import trace_rules
from ..variables.base import VariableTracker, unsupported
from ..variables.builtin_object import (
    NOT_IMPLEMENTED,
    BuiltinObject,
    checked,
    has_slot,
    type_name,
)
from ..variables.constant import ConstantVariable, is_inert, is_negative, is_numpy_bool
from ..variables.descriptors import lookup_special
from ..variables.functions import CallableVariable
from ..variables.lists import as_sequence
from ..variables.registry import handles
from ..variables.sequence_methods import takes_operand
from ..variables.symint import SymVariable
from ..variables.tensor import TensorVariable
from ..variables.tensor_subclass import TensorSubclassVariable
from ..variables.torch_overrides import dispatched
from ..variables.unions import TypingVariable
from ..variables.user_values import UserValueVariable
from .constant_slots import constant_slot, fixed_object, slot_with_value
from .operator_tables import BINARY, COMPARE, INPLACE, UNARY
from .percent import format_values

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


def special_method(tx: Translator, value: VariableTracker, name: str) -> VariableTracker | None:
    """The special method that the type of `value` gives, bound; None if it has none."""
    if isinstance(value, BuiltinObject):
        return value.getattr(tx, name) if value.lookup(name) is not None else None
    return lookup_special(tx, value, name)


def _normal(value: VariableTracker) -> VariableTracker:
    """Constant tuples beside traced ones are traced tuples."""
    return as_sequence(value, tuple) or value


def _call_special(
    tx: Translator,
    value: VariableTracker,
    name: str,
    args: list[VariableTracker],
) -> VariableTracker:
    """The special method's result; NotImplemented if there is none."""
    function = special_method(tx, value, name)
    if function is None or not takes_operand(value, name, args):
        return NOT_IMPLEMENTED
    return tx.call_function(function, args, {}).realize()


def _is_not_implemented(value: VariableTracker) -> bool:
    return isinstance(value, ConstantVariable) and value.value is NotImplemented


def _is_modelled(tx: Translator, value: VariableTracker, method: str) -> bool:
    """Whether it is known here what `method` of the value does, or that it has none."""
    if isinstance(value, (BuiltinObject, ConstantVariable)) or value.is_user_defined:
        return True
    return not has_slot(tx, value, method)


_TYPE_UNIONS = (type.__or__, types.GenericAlias.__or__, types.UnionType.__or__)


def _is_type_expression(value: VariableTracker) -> bool:
    """A class, `list[int]`, `int | str`, an object of typing, None: `|` makes a union of such."""
    if not value.is_python_constant():
        return False
    constant = value.as_python_constant()
    union = getattr(type(constant), "__or__", None)
    return constant is None or union in _TYPE_UNIONS or isinstance(value, TypingVariable)


def _tensor_node(
    tx: Translator, function: Callable[..., Any], args: list[VariableTracker]
) -> VariableTracker | None:
    """The operation as a graph node, if a tensor takes part and no user's class decides."""
    if not any(isinstance(arg, TensorVariable) for arg in args):
        return None
    args = [args[0], *(_number_of(arg) for arg in args[1:])]  # the left one is asked first
    for other in args:
        if other.is_user_defined and not isinstance(other, TensorVariable):
            return None
        if issubclass(other.python_type(), (str, bytes)):
            unsupported(
                "string formatting", repr(other), "it formats a tensor, whose data is not known"
            )
    base = args[0]
    if (
        function is operator.pow
        and isinstance(base, TensorVariable)
        and base.fake.requires_grad
    ):
        args = [base, args[1].specialized(tx)]  # autograd has no formula for symbolic exponents
    if function is operator.pow and is_negative(base):
        function = torch.pow  # graphs print the operator as `-2 ** x`, which is another number
    if tx.output.transform_levels and function in _ARITHMETIC:
        args = _without_sizes(tx, args)
    args = [_bool_as_float(arg) for arg in args]
    return tx.call_operation(function, args, {})


_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.truediv)


def _without_sizes(tx: Translator, args: list[VariableTracker]) -> list[VariableTracker]:
    """Symbolic ints beside a tensor without dimensions as tensors of its dtype: vmap's rules for
    such tensors take no symbols.
    """
    fakes = [arg.fake for arg in args if isinstance(arg, TensorVariable)]
    dtype = fakes[0].dtype
    if fakes[0].dim() or not (dtype.is_floating_point or dtype == torch.int64):
        return args
    kwargs: dict[str, VariableTracker] = {"dtype": ConstantVariable(dtype)}
    return [
        tx.call_operation(torch.scalar_tensor, [arg], kwargs)
        if isinstance(arg, SymVariable) and arg.python_type() is int
        else arg
        for arg in args
    ]


def _number_of(value: VariableTracker) -> VariableTracker:
    """The number in an object of a subclass of int or float, as tensors take it."""
    is_number = isinstance(value, UserValueVariable) and value.family is not str
    return value.base if is_number else value  # type: ignore[attr-defined]


def _bool_as_float(value: VariableTracker) -> VariableTracker:
    """To torch's operators a bool of numpy is the number 1.0 or 0.0."""
    if is_numpy_bool(value):
        return ConstantVariable(float(value.as_python_constant()))
    return value


# -- binary -------------------------------------------------------------------------------------


def _binary_handler(function: Callable[..., Any]) -> Callable[..., Any]:
    name, reflected, symbol = BINARY[function]

    def handler(
        tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        if len(args) != 2 or kwargs:
            unsupported("call does not fit", f"{function.__name__} with {len(args)} arguments")
        return binary_op(tx, function, args[0], args[1], name, reflected, symbol)

    return handler


def binary_op(
    tx: Translator,
    function: Callable[..., Any],
    left: VariableTracker,
    right: VariableTracker,
    name: str,
    reflected: str,
    symbol: str,
) -> VariableTracker:
    """`binary_op1` and what `PyNumber_Add` and `PyNumber_Multiply` do for sequences after it."""
    result = binary_op1(tx, function, left, right, name, reflected)
    if not _is_not_implemented(result):
        return result
    refuse(tx, symbol, left, right)


def binary_op1(
    tx: Translator,
    function: Callable[..., Any],
    left: VariableTracker,
    right: VariableTracker,
    name: str,
    reflected: str,
) -> VariableTracker:
    """The result of the operands' slots, or NotImplemented."""
    if function is operator.or_ and _is_type_expression(left) and _is_type_expression(right):
        return tx.fold(function, (left.as_python_constant(), right.as_python_constant()), {})
    node = _tensor_node(tx, function, [left, right])
    if node is not None:
        return node
    union = _class_union(tx, function, left, right)
    if union is not None:
        return union
    left, right = _normal(left), _normal(right)
    sides = [(left, name, right), (right, reflected, left)]
    left_type, right_type = left.python_type(), right.python_type()
    own, theirs = (getattr(cls, reflected, None) for cls in (left_type, right_type))
    if left_type is right_type:
        sides = sides[:1]
    elif left_type in right_type.__mro__ and own is not theirs:  # `PyType_IsSubtype`
        sides.reverse()
    # Sequences concatenate and repeat only after both operands' number slots were asked.
    sides.sort(key=lambda side: _is_plain_sequence(side[0]) and function in _SEQUENCE_SLOTS)
    for operand, method, other in sides:
        result = _number_slot(tx, function, operand, method, other)
        if not _is_not_implemented(result):
            return result
    return NOT_IMPLEMENTED


_SEQUENCE_SLOTS = (operator.add, operator.mul)


def _is_plain_sequence(value: VariableTracker) -> bool:
    if isinstance(value, ConstantVariable):
        return isinstance(value.value, (str, bytes))
    if not isinstance(value, BuiltinObject) or value.cls is torch.Size:
        return False
    return issubclass(value.cls, (list, tuple))


def _class_union(
    tx: Translator,
    function: Callable[..., Any],
    left: VariableTracker,
    right: VariableTracker,
) -> VariableTracker | None:
    """`A | B` of classes: a types.UnionType."""
    if function is not operator.or_:
        return None
    values = [v.as_python_constant() for v in (left, right) if v.is_python_constant()]
    plain = [
        v for v in values if v is None or isinstance(v, types.UnionType) or _is_plain_class(v)
    ]
    if len(plain) < 2 or plain == [None, None]:
        return None
    return tx.fold(function, plain, {})


def _is_plain_class(value: Any) -> bool:
    return isinstance(value, type) and type(value).__or__ is type.__or__


# What the slots of ints and floats take.
_NUMBERS: tuple[type, ...] = (int, float, complex)


def _number_slot(
    tx: Translator,
    function: Callable[..., Any],
    operand: VariableTracker,
    method: str,
    other: VariableTracker,
) -> VariableTracker:
    if isinstance(operand, TensorSubclassVariable):
        return _slot_of_tensor(tx, operand, method, [other])
    if isinstance(operand, TensorVariable):
        return _tensor_slot(tx, operand, method, function, other)
    if isinstance(other, TensorSubclassVariable) and operand.is_python_constant():
        return NOT_IMPLEMENTED
    if isinstance(operand, SymVariable) and not issubclass(other.python_type(), _NUMBERS):
        return NOT_IMPLEMENTED
    if operand.overrides(method):
        return _call_special(tx, operand, method, [other])
    if isinstance(operand, ConstantVariable):
        if function is operator.mul and isinstance(other, SymVariable):  # of a text
            return tx.fold(function, (operand.value, other.specialized(tx).value), {})
        if isinstance(other, UserValueVariable):
            return slot_with_value(tx, operand, method, other)
        return constant_slot(tx, operand, method, other)
    if isinstance(operand, UserValueVariable) and operand.family is str and method == "__mod__":
        return operand.or_itself(tx, method, format_values(tx, operand.base, other))
    if not _is_modelled(tx, operand, method):
        unsupported(
            "operator", f"{function.__name__} on {operand!r}", "its operators are not traced"
        )
    return _call_special(tx, operand, method, [other])


def _tensor_slot(
    tx: Translator,
    operand: TensorVariable,
    method: str,
    function: Callable[..., Any],
    other: VariableTracker,
) -> VariableTracker:
    """Tensors do not know objects of user-defined classes, but numbers on their left."""
    number = _number_of(other)
    node = None if number is other else _tensor_node(tx, function, [number, operand])
    if node is not None:
        return node
    if isinstance(other, TensorSubclassVariable):
        return _slot_of_tensor(tx, operand, method, [other])
    if hasattr(other.python_type(), "__torch_function__"):
        unsupported(
            "operator", f"{function.__name__} on {other!r}", "it overrides torch functions"
        )
    return NOT_IMPLEMENTED


def refuse(
    tx: Translator,
    symbol: str,
    left: VariableTracker,
    right: VariableTracker,
) -> NoReturn:
    """The TypeError of operands that do not fit; `+` of sequences has words of its own."""
    kinds = type_name(left.python_type()), type_name(right.python_type())
    cls = left.python_type()
    family = next((t for t in (list, tuple, str) if issubclass(cls, t)), None)
    if family is not None and symbol in ("+", "+="):
        text = f'can only concatenate {family.__name__} (not "{kinds[1]}") to {family.__name__}'
        tx.raise_observed(TypeError, text)
    if symbol in ("*", "*="):
        for one, other in ((left, kinds[1]), (right, kinds[0])):
            if issubclass(one.python_type(), (list, tuple, str, bytes)):
                text = f"can't multiply sequence by non-int of type '{other}'"
                tx.raise_observed(TypeError, text)
    tx.raise_observed(
        TypeError, f"unsupported operand type(s) for {symbol}: '{kinds[0]}' and '{kinds[1]}'"
    )


# -- in place -----------------------------------------------------------------------------------


def _inplace_handler(function: Callable[..., Any]) -> Callable[..., Any]:
    name, plain, symbol = INPLACE[function]
    in_place = hasattr(torch.Tensor, name)

    def inplace_op(tx: Translator, left: VariableTracker, right: VariableTracker, /) -> Any:
        """`binary_iop1`."""
        if isinstance(left, TensorVariable):
            # `@=` of a tensor makes a new one, as of whatever has no such method.
            node = _tensor_node(tx, function, [left, right]) if in_place else None
            if node is not None:
                return node
            if in_place and isinstance(right, TensorSubclassVariable):
                return _slot_of_tensor(tx, left, name, [right])
        elif isinstance(left, ConstantVariable):
            if right.is_python_constant() and is_inert(right.as_python_constant()):
                return tx.fold(function, (left.value, right.as_python_constant()), {})
        elif in_place or not isinstance(left, TensorSubclassVariable) or left.has_own(tx, name):
            result = _call_special(tx, left, name, [right])
            if not _is_not_implemented(result):
                return result
        forward, reflected, _ = BINARY[plain]
        return binary_op(tx, plain, left, right, forward, reflected, symbol)

    return checked(inplace_op, function.__name__)


# -- comparison ---------------------------------------------------------------------------------


def _compare_handler(function: Callable[..., Any]) -> Callable[..., Any]:
    def compare(tx: Translator, left: VariableTracker, right: VariableTracker, /) -> Any:
        return rich_compare(tx, function, left, right)

    return checked(compare, function.__name__)


def rich_compare(
    tx: Translator,
    function: Callable[..., Any],
    left: VariableTracker,
    right: VariableTracker,
) -> VariableTracker:
    """`do_richcompare`."""
    node = _tensor_comparison(tx, function, left, right)
    if node is not None:
        return node
    left, right = _normal(left), _normal(right)
    name, swapped, symbol = COMPARE[function]
    sides = [(left, name, right), (right, COMPARE[swapped][0], left)]
    left_type, right_type = left.python_type(), right.python_type()
    if right_type is not left_type and left_type in right_type.__mro__:
        sides.reverse()
    for operand, method, other in sides:
        if isinstance(operand, TensorSubclassVariable) or (
            isinstance(operand, TensorVariable) and isinstance(other, TensorSubclassVariable)
        ):
            result = _slot_of_tensor(tx, operand, method, [other])
        else:
            result = _comparison_slot(tx, operand, method, other)
        if not _is_not_implemented(result):
            return result
    if function in (operator.eq, operator.ne):
        return ConstantVariable(tx.is_same(left, right) is (function is operator.eq))
    tx.raise_observed(
        TypeError,
        f"'{symbol}' not supported between instances of"
        f" '{type_name(left_type)}' and '{type_name(right_type)}'",
    )


_NUMPY = trace_rules.numpy
_OF_NUMPY = (_NUMPY.number, _NUMPY.bool_) if _NUMPY else ()
_COMPARED: tuple[type, ...] = (int, float, complex, *_OF_NUMPY)


def _tensor_comparison(
    tx: Translator,
    function: Callable[..., Any],
    left: VariableTracker,
    right: VariableTracker,
) -> VariableTracker | None:
    """A node; but of what is no number nor tensor, tensors know nothing."""
    if isinstance(left, UserValueVariable) and isinstance(right, TensorVariable):
        if any(map(left.overrides, (row[0] for row in COMPARE.values()))):
            unsupported("comparison", f"{left!r} and a tensor", "its class compares itself")
        left = _number_of(left)
    elif isinstance(left, TensorVariable):
        right = _number_of(right)
    operands = [left, right]
    tensors = [value for value in operands if isinstance(value, TensorVariable)]
    if not tensors:
        return None
    others = [value for value in operands if not isinstance(value, TensorVariable)]
    if others and isinstance(others[0], TensorSubclassVariable):
        return None
    if others and hasattr(others[0].python_type(), "__torch_function__"):
        name, swapped, _ = COMPARE[function]
        if left is others[0]:
            if getattr(left.python_type(), name) is not getattr(object, name):
                return None  # its own comparison comes first
            function = swapped
        return dispatched(tx, function, [*tensors, *others])
    if others:
        other = others[0]
        is_own = other.is_user_defined or other.overrides(COMPARE[function][0])
        if is_own or not issubclass(other.python_type(), _COMPARED):
            return None
    return tx.call_operation(function, list(map(_bool_as_float, operands)), {})


def _comparison_slot(
    tx: Translator,
    operand: VariableTracker,
    method: str,
    other: VariableTracker,
) -> VariableTracker:
    """The operand's rich comparison; NotImplemented for types that only have object's."""
    inverts = getattr(operand.python_type(), method, None) is object.__ne__
    is_own = operand.overrides("__eq__" if inverts else method)
    if is_own or isinstance(operand, BuiltinObject) or operand.is_user_defined:
        if getattr(operand.python_type(), method, None) is getattr(object, method):
            return _object_comparison(tx, operand, method, other)
        found = special_method(tx, operand, method)
        if found is None:
            return NOT_IMPLEMENTED
        return tx.call_function(found, [other], {}).realize()
    if isinstance(operand, TensorVariable):
        return NOT_IMPLEMENTED
    if isinstance(operand, ConstantVariable) and isinstance(other, UserValueVariable):
        compare = getattr(type(operand.value), method)
        return tx.fold(compare, (operand.value, other.base.value), {})
    slot = getattr(operand.python_type(), method, None)
    if operand.is_compared_by_identity(other) or slot is getattr(object, method):
        return NOT_IMPLEMENTED
    result = operand.compare(tx, method, other)
    if result is not None:
        return result
    if operand.is_python_constant() and other.is_python_constant():
        values = operand.as_python_constant(), other.as_python_constant()
        return tx.fold(getattr(type(values[0]), method), values, {})
    if isinstance(operand, CallableVariable) and not other.is_python_constant():
        return NOT_IMPLEMENTED
    fixed, compared = fixed_object(tx, operand), fixed_object(tx, other)
    is_plain = isinstance(other, ConstantVariable) and is_inert(other.value)
    if fixed is not None and (is_plain or compared is not None):
        value = other.as_python_constant() if is_plain else compared
        return tx.fold(getattr(type(fixed), method), (fixed, value), {})
    unsupported(
        "comparison", f"{operand!r} {method} {other!r}", "this comparison is not traced"
    )


def _object_comparison(
    tx: Translator,
    operand: VariableTracker,
    method: str,
    other: VariableTracker,
) -> VariableTracker:
    """`object_richcompare`: identity, and `!=` by way of `==`."""
    if method == "__eq__":
        return ConstantVariable(True) if tx.is_same(operand, other) else NOT_IMPLEMENTED
    if method != "__ne__":
        return NOT_IMPLEMENTED
    if getattr(operand.python_type(), "__eq__", None) is object.__eq__:
        equal = _object_comparison(tx, operand, "__eq__", other)
    else:
        equal = _call_special(tx, operand, "__eq__", [other])
    return equal if _is_not_implemented(equal) else ConstantVariable(not equal.truth(tx))


# -- unary --------------------------------------------------------------------------------------


def _unary_handler(function: Callable[..., Any]) -> Callable[..., Any]:
    name, symbol = UNARY[function]

    def unary(tx: Translator, value: VariableTracker, /) -> Any:
        if isinstance(value, TensorVariable):
            return tx.call_operation(function, [value], {})
        if isinstance(value, TensorSubclassVariable):
            return _slot_of_tensor(tx, value, name, [])
        result = _call_special(tx, value, name, [])
        if not _is_not_implemented(result):
            return result
        if not _is_modelled(tx, value, name):
            unsupported("operator", f"{symbol} {value!r}", "its operators are not traced")
        kind = type_name(value.python_type())
        tx.raise_observed(TypeError, f"bad operand type for {symbol}: '{kind}'")

    return checked(unary, function.__name__)


def _overridable(function: Callable[..., Any], handler: Any) -> Callable[..., Any]:
    """Operands that own their operators come first."""

    def call(
        tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> Any:
        for arg in args:
            if _has_own_operator(tx, arg, function):
                return handler(tx, args, kwargs)
        for arg in args:
            if arg.owns_operators:
                return arg.operate(tx, function, args)
        if tx.output.overrides.has_modes and any(
            isinstance(arg, TensorVariable) for arg in args
        ):
            return dispatched(tx, function, args)
        return handler(tx, args, kwargs)

    return call


def _has_own_operator(
    tx: Translator, value: VariableTracker, function: Callable[..., Any]
) -> bool:
    """Whether a tensor's class has a special method of its own that Python may ask."""
    if not isinstance(value, TensorSubclassVariable):
        return False
    tables: list[dict[Any, tuple[Any, ...]]] = [BINARY, INPLACE, COMPARE, UNARY]
    row = next(table[function] for table in tables if function in table)
    names = [name for name in row if isinstance(name, str)]
    for other in row:
        if callable(other):
            names += BINARY.get(other, ())
            names += COMPARE[other][:1] if other in COMPARE else []
    return any(value.has_own(tx, name) for name in names)


def _slot_of_tensor(
    tx: Translator, operand: VariableTracker, method: str, args: list[VariableTracker]
) -> VariableTracker:
    """The special method of a tensor, beside one whose class has operators of its own."""
    if isinstance(operand, TensorSubclassVariable):
        return operand.call_method(tx, method, args, {}).realize()
    return dispatched(tx, lambda probe, *rest: getattr(probe, method)(*rest), [operand, *args])


for _function in BINARY:
    handles(_function)(_overridable(_function, _binary_handler(_function)))
for _function in INPLACE:
    handles(_function)(_overridable(_function, _inplace_handler(_function)))
for _function in COMPARE:
    handles(_function)(_overridable(_function, _compare_handler(_function)))
for _function in UNARY:
    handles(_function)(_overridable(_function, _unary_handler(_function)))
