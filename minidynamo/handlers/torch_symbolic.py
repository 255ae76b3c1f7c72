"""Numbers out of tensors as symbols of the graph, and what the program says of them.

With `fullgraph=True` or `config.capture_scalar_outputs`, `x.item()` and the like are operations of
the graph whose result is an unbacked symbol: a number that nothing is known of while tracing.
`torch._check` adds to what is known; the graph checks it when it runs.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental import symbolic_shapes

from .. import config
from ..exc import MinidynamoError
from ..output_graph import example_value
from ..variables.base import ObservedException, VariableTracker, unsupported
from ..variables.constant import ConstantVariable
from ..variables.ndarray import NdarrayVariable
from ..variables.number_tensors import known_number
from ..variables.registry import handles
from ..variables.symint import SymVariable, compute, decide
from ..variables.tensor import TensorVariable, tensor_method

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
_CONVERSIONS: dict[str, Any] = {"__int__": int, "__float__": float, "__index__": int}


def number_of(
    tx: Translator,
    tensor: TensorVariable,
    name: str,
) -> VariableTracker | None:
    """The result of method `name` ("item", "tolist", "__int__", ...); None where the graph has to
    break.
    """
    known = known_number(tx, tensor.node) if name in ("item", *_CONVERSIONS) else None
    if known is not None:
        return known if name == "item" else _converted(tx, name, known)
    if not (tx.output.options.fullgraph or config.capture_scalar_outputs):
        return None
    if name == "item":
        return tx.add_node("call_method", "item", (tensor.node,), {})
    if name == "tolist":
        return _tolist(tx, tensor)
    if name not in _CONVERSIONS:
        return None
    return _converted(tx, name, tx.add_node("call_method", "item", (tensor.node,), {}))


def number_holder(value: VariableTracker) -> VariableTracker:
    """The tensor of an array without dimensions, which knows its number; others as they are."""
    if not isinstance(value, NdarrayVariable) or value.dtype().kind == "c":
        return value
    return value if value.tensor.fake.dim() else value.tensor


def data_truth(
    tx: Translator,
    value: VariableTracker,
) -> VariableTracker | None:
    """`bool(value)` of a number that depends on data; None where it is known while tracing, or
    where the graph has to break.
    """
    value = number_holder(value)
    if isinstance(value, TensorVariable) and value.fake.numel() == 1:
        value = number_of(tx, value, "item") or value
    if not isinstance(value, SymVariable):
        return None
    if not symbolic_shapes.free_unbacked_symbols(value.value):
        return None
    if value.python_type() is bool:
        return value
    return compute(tx, operator.ne, [value, ConstantVariable(0)])


def _converted(
    tx: Translator,
    name: str,
    number: VariableTracker,
) -> VariableTracker:
    return tx.call_function(tx.wrap_constant(_CONVERSIONS[name]), [number], {})


def _clamps(name: str) -> None:
    """`clamp(x, 0, bound)`: beside a number, a bound that is a tensor is taken as its number."""

    def bounded(
        tx: Translator,
        self: TensorVariable,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        bounds = [*args, *kwargs.values()]
        if not any(type(bound) in (ConstantVariable, SymVariable) for bound in bounds):
            return NotImplemented
        args = [_as_number(tx, arg) for arg in args]
        kwargs = {key: _as_number(tx, value) for key, value in kwargs.items()}
        return self.node_method(tx, name, args, kwargs)

    def function(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        if not args or not isinstance(args[0], TensorVariable) or "out" in kwargs:
            return NotImplemented
        return bounded(tx, args[0], args[1:], kwargs)

    tensor_method(name)(bounded)
    handles(getattr(torch, name))(function)


def _as_number(
    tx: Translator,
    value: VariableTracker,
) -> VariableTracker:
    number = known_number(tx, value.node) if isinstance(value, TensorVariable) else None
    return number or value


for _name in ("clamp", "clip"):
    _clamps(_name)


def _tolist(
    tx: Translator,
    tensor: TensorVariable,
) -> VariableTracker:
    if not tensor.fake.dim():
        return tx.add_node("call_method", "item", (tensor.node,), {})
    rows = [row.realize() for row in tensor.unpack(tx)]
    return tx.wrap_items(list, [_tolist(tx, row) for row in rows])  # type: ignore[arg-type]


def _checks(function: Any) -> None:
    """`torch._check(condition, message)` and its relatives on symbolic numbers."""

    def check(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        if not args:
            return NotImplemented
        subject = args[0]
        bounds = {key: value for key, value in kwargs.items() if key in ("min", "max")}
        known = all(value.is_python_constant() for value in bounds.values())
        if not known or not isinstance(subject, (SymVariable, ConstantVariable)):
            unsupported(
                "data-dependent check",
                f"{function.__name__}({subject!r})",
                "the condition is not a number that is known while tracing",
                ["make it a condition on sizes or on numbers that .item() gave"],
            )
        limits = {key: value.as_python_constant() for key, value in bounds.items()}
        try:
            decide(tx, lambda: function(subject.value, **limits), subject)
        except MinidynamoError:
            raise
        except Exception as error:
            text = _message(tx, [*args[1:], *_named_message(kwargs)])
            failure = type(error)(text) if text is not None else error
            raise ObservedException(tx.wrap_exception(failure)) from error
        return ConstantVariable(None)

    handles(function)(check)


def _named_message(kwargs: Kwargs) -> list[VariableTracker]:
    return [kwargs["message"]] if "message" in kwargs else []


def _message(
    tx: Translator,
    given: list[VariableTracker],
) -> str | None:
    """What the program's function for the message gives; None without one."""
    if not given or given[0].python_type() is type(None):
        return None
    text = tx.call_function(given[0], [], {})
    shown = tx.call_function(tx.wrap_constant(str), [text], {})
    if shown.is_symbolic_text:
        shown = shown.specialized(tx)  # type: ignore[attr-defined]
    return str(shown.as_python_constant())


for _function in (
    torch._check,
    torch._check_is_size,
    torch._check_index,
    torch._check_value,
    torch._check_type,
    torch.sym_constrain_range,
    torch.sym_constrain_range_for_size,
):
    _checks(_function)


# Questions whose answer is a bool while tracing: what holds for every value of the symbols, or for
# those of this call (which is a guard), or a default where it depends on data.
_QUESTIONS = (
    "guard_or_false",
    "guard_or_true",
    "guard_size_oblivious",
    "has_static_value",
    "is_concrete_bool",
    "is_concrete_float",
    "is_concrete_int",
    "is_nested_int",
    "statically_known_false",
    "statically_known_true",
)


def _asks(function: Any) -> None:
    def ask(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        values = [arg.realize() for arg in args]
        if kwargs or not all(isinstance(v, (SymVariable, ConstantVariable)) for v in values):
            return NotImplemented
        given = [value.value for value in values]  # type: ignore[attr-defined]
        tx.output.is_told_apart = True
        return ConstantVariable(decide(tx, lambda: function(*given), values))

    handles(function)(ask)


for _name in _QUESTIONS:
    if hasattr(symbolic_shapes, _name):
        _asks(getattr(symbolic_shapes, _name))


def _specializes(function: Any) -> None:
    """A function that asks for a number's value, or for that of this call: it is guarded."""

    def value_of(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        number = args[0].realize() if args else None
        if len(args) != 1 or kwargs or not isinstance(number, (SymVariable, ConstantVariable)):
            return NotImplemented
        return tx.fold(function, [number.specialized(tx).as_python_constant()], {})

    handles(function)(value_of)


for _name in "guard_scalar guard_bool guard_int guard_float guarding_hint_or_throw".split():
    if hasattr(symbolic_shapes, _name):
        _specializes(getattr(symbolic_shapes, _name))


def _traced_as(
    tx: Translator,
    value: VariableTracker,
) -> Any:
    """What a trace has for a value: a fake tensor, a symbol, a constant, tuples of them."""
    value = value.realize()
    if isinstance(value, TensorVariable):
        return value.fake
    if isinstance(value, SymVariable) or value.is_python_constant():
        return value.value if isinstance(value, SymVariable) else value.as_python_constant()
    if value.python_type() in (tuple, list, torch.Size):
        return tuple(_traced_as(tx, item) for item in value.unpack(tx))
    return NotImplemented


def _asks_trace(function: Any) -> None:
    """A question about the trace: its answer is no fact of the program's, nothing is guarded."""

    def ask(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        given = NotImplemented if kwargs or len(args) != 1 else _traced_as(tx, args[0])
        if any(leaf is NotImplemented for leaf in torch.utils._pytree.tree_leaves(given)):
            return NotImplemented
        return ConstantVariable(function(given))

    handles(function)(ask)


_asks_trace(symbolic_shapes.has_free_symbols)
_asks_trace(symbolic_shapes.has_free_unbacked_symbols)


def _combines(function: Any) -> None:
    """A function on conditions, in the table of `symint`."""

    def combine(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        values = [arg.realize() for arg in args]
        if not kwargs and all(value.is_python_constant() for value in values):
            return tx.fold(function, [value.as_python_constant() for value in values], {})
        return (None if kwargs else compute(tx, function, values)) or NotImplemented

    handles(function)(combine)


_combines(symbolic_shapes.sym_and)
_combines(symbolic_shapes.sym_or)


@handles(torch._shape_as_tensor)
def shape_as_tensor(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """A tensor of the sizes: torch's operator reads them where fake tensors have no data."""
    if len(args) != 1 or kwargs or not isinstance(args[0], TensorVariable):
        return NotImplemented
    sizes = args[0].call_method(tx, "size", [], {})
    return tx.call_function(tx.wrap_constant(torch.tensor), [sizes], {})


# -- numbers that operations read out of tensors ---------------------------------------------------


def _reads(
    name: str,
    position: int,
    keyword: str,
    method: str,
) -> None:
    """A method and function of that name whose argument may be a tensor: it is read before."""

    def read(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> bool:
        """Puts the numbers in the tensor's place; whether there was one."""
        holder: Any = args if len(args) > position else kwargs
        key: Any = position if len(args) > position else keyword
        given = holder[key] if holder is args or key in kwargs else None
        number = None
        if given is not None and given.python_type() is torch.Tensor:
            number = number_of(tx, given, method)
        if number is None:
            return False
        holder[key] = number
        return True

    def called(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        args, kwargs = list(args), dict(kwargs)
        if not read(tx, args, kwargs):
            return NotImplemented
        return tx.call_operation(getattr(torch, name), args, kwargs)

    def of_tensor(
        tx: Translator,
        self: TensorVariable,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        return called(tx, [self, *args], kwargs)

    handles(getattr(torch, name))(called)
    tensor_method(name)(of_tensor)


for _row in (
    ("narrow", 2, "start", "item"),
    ("tensor_split", 1, "tensor_indices_or_sections", "tolist"),
):
    _reads(*_row)


# -- sizes that are asked for ----------------------------------------------------------------------


def _knows_its_kernel(function: Any) -> None:
    """The extents of a convolution's kernel are constants: products of sums of them and of the
    input's sizes are what the shapes of its result take minutes to be reasoned about in.
    """

    def convolve(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        if isinstance(weight, TensorVariable):
            for extent in example_value(weight.node).shape[2:]:
                if isinstance(extent, torch.SymInt):
                    SymVariable(tx.output, extent).specialized(tx)
        return NotImplemented

    handles(function)(convolve)


for _kind in ("conv", "conv_transpose"):
    for _dims in "123":
        _knows_its_kernel(getattr(torch, f"{_kind}{_dims}d"))
