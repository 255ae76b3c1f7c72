"""Functions of torch that are no operation of the graph: questions about tensors, constructors, ...

What is an operation needs no row: `trace_rules` knows it, and the call becomes one node.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._python_dispatch
from torch._library.custom_ops import CustomOpDef
from torch.fx.experimental.symbolic_shapes import expect_true, free_unbacked_symbols
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.fx.node import map_aggregate, map_arg

from .. import markers
from ..output_graph import example_value
from ..trace_rules import NUMPY_SCALARS, numpy
from ..variables.base import VariableTracker
from ..variables.builtin_object import index_of
from ..variables.constant import ConstantVariable
from ..variables.expectations import expect
from ..variables.functions import UserFunctionVariable
from ..variables.ndarray import NdarrayVariable
from ..variables.number_tensors import tensor_of_items
from ..variables.registry import handles
from ..variables.symint import SymVariable
from ..variables.tensor import TensorVariable, tensor_method
from ..variables.tensor_subclass import TensorSubclassVariable
from ..variables.torch_overrides import call_overrides, overriding
from .numpy_ import sharing_tensor

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
NONE = ConstantVariable(None)


@markers.force_inline
def _map_aggregate(a: Any, fn: Callable[[Any], Any]) -> Any:
    """torch.fx.node.map_aggregate, which is written in C."""
    if isinstance(a, tuple):
        items = [_map_aggregate(item, fn) for item in a]
        return type(a)(*items) if hasattr(a, "_fields") else tuple(items)
    if isinstance(a, list):
        return immutable_list([_map_aggregate(item, fn) for item in a])
    if isinstance(a, dict):
        return immutable_dict({key: _map_aggregate(item, fn) for key, item in a.items()})
    if isinstance(a, slice):
        return slice(*(_map_aggregate(item, fn) for item in (a.start, a.stop, a.step)))
    return fn(a)


@handles(map_aggregate)
def fx_map_aggregate(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    return tx.call_function(tx.wrap_constant(_map_aggregate), args, kwargs)


# Answered from the fake tensors, without a node.
_METADATA = (
    torch.is_floating_point,
    torch.is_complex,
    torch.is_signed,
    torch.is_conj,
    torch.is_neg,
    torch.is_inference,
    torch.is_same_size,
    torch.is_distributed,
    torch.numel,
    torch.result_type,
    torch.get_device,
    torch.broadcast_shapes,
)


def _metadata(function: Callable[..., Any]) -> None:
    def handler(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> VariableTracker:
        proxies = [tx.as_proxy(arg) for arg in args]
        named = {name: tx.as_proxy(value) for name, value in kwargs.items()}
        fakes, fake_kwargs = map_arg((tuple(proxies), named), example_value)
        return tx.fold(function, fakes, fake_kwargs)

    handles(function)(handler)


for _function in _METADATA:
    _metadata(_function)


def _have_other_sizes(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """torch.equal of tensors whose sizes differ is False whatever they hold; else it needs data."""
    tensors = [*args, *kwargs.values()]
    if len(tensors) != 2 or not kwargs.keys() <= {"input", "other"}:
        return NotImplemented
    if any(type(tensor) is not TensorVariable for tensor in tensors):
        return NotImplemented
    fakes = [tensor.fake for tensor in tensors]  # type: ignore[attr-defined]
    if any(fake.layout is not torch.strided or free_unbacked_symbols(fake) for fake in fakes):
        return NotImplemented
    if fakes[0].device != fakes[1].device:  # which is an error
        return NotImplemented
    same = tx.fold(torch.is_same_size, fakes, {})
    return NotImplemented if same.truth(tx) else ConstantVariable(False)


@handles(torch.equal)
def equal(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    return _have_other_sizes(tx, args, kwargs)


@tensor_method("equal")
def tensor_equal(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
    return _have_other_sizes(tx, [self, *args], kwargs)


@handles(torch.is_tensor)
def is_tensor(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    return ConstantVariable(issubclass(args[0].python_type(), torch.Tensor))


@handles(torch.is_storage)
def is_storage(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    kinds = (torch.UntypedStorage, torch.TypedStorage)
    return ConstantVariable(issubclass(args[0].python_type(), kinds))


# -- __torch_function__ ----------------------------------------------------------------------------


@handles(torch.overrides.has_torch_function)
def has_torch_function(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    return ConstantVariable(tx.is_overridden(args[0].unpack(tx)))


@handles(torch.overrides.has_torch_function_unary, torch.overrides.has_torch_function_variadic)
def has_torch_function_variadic(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    return ConstantVariable(tx.is_overridden(args))


@handles(torch.overrides.handle_torch_function)
def handle_torch_function(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """`(function, relevant arguments, *args, **kwargs)`."""
    function, relevant, *given = args
    instances = overriding(relevant.unpack(tx))
    return call_overrides(tx, function, instances, tx.wrap_items(tuple, given), kwargs)


@handles(torch.overrides.is_tensor_like)
def is_tensor_like(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    kind = args[0].python_type()
    return ConstantVariable(kind is torch.Tensor or hasattr(kind, "__torch_function__"))


@handles(torch.utils._python_dispatch._get_current_dispatch_mode_stack)
def dispatch_mode_stack(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """While compiling there is none: the dispatch keys of the inputs are guarded."""
    return tx.wrap_items(list, [])


# -- assertions and annotations --------------------------------------------------------------------


@handles(torch._assert)
def torch_assert(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """A condition on a tensor's data is checked by the graph; others are decided now."""
    if not expect(tx, args[0], True) and not args[0].truth(tx):
        message = args[1].as_python_constant() if len(args) > 1 else ""
        tx.raise_observed(AssertionError, message)
    return NONE


@handles(torch._check_tensor_all)
def check_tensor_all(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """Checked by the graph too; where it fails, eager makes the error and its message."""
    if not args or not isinstance(args[0], TensorVariable):
        return NotImplemented
    if args[0].fake.dtype is not torch.bool:
        return NotImplemented
    held = args[0].call_method(tx, "_is_all_true", [], {})
    return NONE if expect(tx, held, True) else NotImplemented


@handles(torch._check_tensor_all_with)
def check_tensor_all_with(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """The same with a type of error before the tensor."""
    return check_tensor_all(tx, args[1:], kwargs)


@handles(expect_true)
def _expect_true(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """Conditions of `torch._check` on sizes that are known while tracing."""
    return ConstantVariable(args[0].truth(tx))


@handles(torch.jit.annotate)
def jit_annotate(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    return args[1]


@handles(torch.jit._unwrap_optional)
def jit_unwrap(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    if args[0].is_python_constant() and args[0].as_python_constant() is None:
        tx.raise_observed(AssertionError, "Unwrapping null optional")
    return args[0]


@handles(torch._C._log_api_usage_once)
def log_api_usage(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    return NONE


# -- construction ----------------------------------------------------------------------------------


def _is_computed(value: VariableTracker) -> bool:
    """Whether there are tensors or symbolic numbers in a nest."""
    value = value.realize()
    if value.is_python_constant():
        return False
    if value.python_type() in (list, tuple, torch.Size):
        return any(map(_is_computed, getattr(value, "items", ())))
    return isinstance(value, (TensorVariable, SymVariable))


def _has_numpy(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_numpy, value))
    return isinstance(value, NUMPY_SCALARS)


def _plain(value: Any, kinds: list[torch.dtype]) -> Any:
    """A nest with Python's numbers in place of numpy's; `kinds` gets the dtypes of its leaves."""
    if isinstance(value, (list, tuple)):
        return [_plain(item, kinds) for item in value]
    if not isinstance(value, NUMPY_SCALARS):
        kinds.append(torch.tensor(value).dtype)
        return value
    kinds.append(torch.from_numpy(numpy.array(value)).dtype)
    return value.item()  # type: ignore[attr-defined]


def _arrays_in(tx: Translator, value: VariableTracker, found: list[VariableTracker]) -> bool:
    """Whether a value is an array or a number, or a nest of these alone, which `found` gets."""
    value = value.realize()
    if isinstance(value, NdarrayVariable) or _is_number(value):
        found.append(value)
        return True
    if value.is_python_constant() or value.python_type() not in (list, tuple):
        return False
    items = value.unpack(tx)
    return bool(items) and all(_arrays_in(tx, item, found) for item in items)


def _is_number(value: VariableTracker) -> bool:
    return value.is_python_constant() and value.python_type() in (bool, int, float)


def _kinds_of_arrays(
    tx: Translator,
    data: VariableTracker,
    kwargs: Kwargs,
) -> list[torch.dtype]:
    """The dtypes in a nest of arrays, or of numpy's numbers and Python's, to be stacked; empty if
    it is none, or eager refuses to convert what is in it.
    """
    found: list[VariableTracker] = []
    if not _arrays_in(tx, data, found) or not set(kwargs) <= {"dtype", "device"}:
        return []
    arrays = [value for value in found if isinstance(value, NdarrayVariable)]
    if not arrays:
        return []
    kinds = [array.tensor.fake.dtype for array in arrays]
    numbers = [value.as_python_constant() for value in found if _is_number(value)]
    kinds += [torch.tensor(number).dtype for number in numbers]
    scalars = {array.is_scalar for array in arrays}
    if scalars == {False} and not numbers:
        return kinds
    wanted = functools.reduce(torch.promote_types, kinds)
    if "dtype" in kwargs:
        wanted = kwargs["dtype"].as_python_constant() or wanted
    refused = any(_refuses_numbers(array.tensor.fake.dtype, wanted) for array in arrays)
    return kinds if scalars == {True} and not refused else []


def _refuses_numbers(kind: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether torch.tensor raises for numpy's numbers: it asks them for an `__index__`."""
    is_integer = not (wanted.is_floating_point or wanted.is_complex)
    return is_integer and kind != wanted and kind in _WITHOUT_INDEX


_WITHOUT_INDEX = {torch.bool, torch.float16, torch.float32, torch.complex64, torch.complex128}


def _stacked(tx: Translator, value: VariableTracker, kind: VariableTracker) -> VariableTracker:
    """A nest of arrays and numbers as one tensor."""
    value = value.realize()
    if _is_number(value):
        number, dtype = value.as_python_constant(), kind.as_python_constant()
        return tx.add_node("call_function", torch.tensor, (number,), {"dtype": dtype})
    if isinstance(value, NdarrayVariable):
        return value.tensor.call_method(tx, "to", [kind], {})
    items = [_stacked(tx, item, kind) for item in value.unpack(tx)]
    return tx.call_operation(torch.stack, [tx.wrap_items(list, items)], {})


def _of_data(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """A nest of tensors and symbols is a node that stacks them; numpy's numbers tell the dtype."""
    data = args[0] if len(args) == 1 else NONE
    if data.python_type() in NUMPY_SCALARS:
        data = data.specialized(tx)
    kinds = _kinds_of_arrays(tx, data, kwargs)
    if kinds:
        promoted = tx.wrap_constant(functools.reduce(torch.promote_types, kinds))
        is_given = kwargs.get("dtype", NONE).as_python_constant() is not None
        made = _stacked(tx, data, kwargs["dtype"] if is_given else promoted)
        wanted = {"device": kwargs["device"]} if "device" in kwargs else {}
        return made.call_method(tx, "to", [], wanted) if wanted else made
    if data.is_python_constant() and _has_numpy(data.as_python_constant()):
        kinds = []
        numbers = _plain(data.as_python_constant(), kinds)
        promoted = tx.wrap_constant(functools.reduce(torch.promote_types, kinds))
        return tx.add_node(
            "call_function",
            torch.tensor,
            (numbers,),
            {name: tx.as_proxy(value) for name, value in {"dtype": promoted, **kwargs}.items()},
        )
    if len(args) != 1 or isinstance(args[0], TensorVariable) or not _is_computed(args[0]):
        return NotImplemented
    if not set(kwargs) <= {"dtype", "device"}:
        return NotImplemented
    return tx.call_operation(tensor_of_items, args, kwargs)


@handles(torch.as_tensor)
def as_tensor(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """An array's memory is shared where dtype and device stay, and a tensor is given back; a number
    has none.
    """
    if args and isinstance(args[0], TensorVariable | TensorSubclassVariable):
        return _of_tensor(tx, args, kwargs)
    if args and isinstance(args[0], NdarrayVariable):
        if args[0].is_scalar:
            return torch_tensor(tx, args, kwargs)
        tensor = sharing_tensor(tx, args[0])
        if len(args) == 1 and not kwargs:
            return tensor
        return tensor.call_method(tx, "to", args[1:], kwargs)
    return _of_data(tx, args, kwargs)


def _of_tensor(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    """`torch.as_tensor` of a tensor: no `__torch_function__` sees it."""
    plain = args[0].plain if isinstance(args[0], TensorSubclassVariable) else args[0]
    assert isinstance(plain, TensorVariable)
    wanted = {**dict(zip(("dtype", "device"), args[1:], strict=False)), **kwargs}
    is_known = all(value.is_python_constant() for value in wanted.values())
    if is_known and len(args) <= 3 and set(wanted) <= {"dtype", "device"}:
        values = {name: value.as_python_constant() for name, value in wanted.items()}
        if is_of_kind(plain.fake, **values):
            return args[0]
    if plain is args[0]:
        return NotImplemented
    return tx.call_operation(torch.as_tensor, [plain, *args[1:]], kwargs)


def is_of_kind(fake: torch.Tensor, dtype: Any = None, device: Any = None) -> bool:
    """Whether `as_tensor` has nothing to do."""
    return dtype in (None, fake.dtype) and str(device) in ("None", str(fake.device))


@handles(torch.tensor)
def torch_tensor(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """A copy of a tensor is `detach().clone()`; nested numbers are a node."""
    if len(args) == 1 and isinstance(args[0], NdarrayVariable):
        if args[0].is_scalar and kwargs and not _kinds_of_arrays(tx, args[0], kwargs):
            return NotImplemented
        args[0].check_write()
        copy = args[0].tensor.call_method(tx, "clone", [], {})
        return copy.call_method(tx, "to", [], kwargs) if kwargs else copy
    if len(args) == 1 and isinstance(args[0], TensorVariable) and not kwargs:
        detached = tx.add_node("call_method", "detach", (args[0].node,), {})
        return detached.call_method(tx, "clone", [], {})
    return _of_data(tx, args, kwargs)


@handles(torch.Size)
def make_size(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    items = [item.realize() for item in args[0].unpack(tx)] if args else []
    for index, item in enumerate(items):
        cls = item.python_type()
        if not hasattr(cls, "__index__"):
            text = f"takes an iterable of 'int' (item {index} is '{cls.__name__}')"
            tx.raise_observed(TypeError, f"torch.Size() {text}")
    sizes = [
        item if isinstance(item, SymVariable) else ConstantVariable(index_of(tx, item))
        for item in items
    ]
    return tx.wrap_items(torch.Size, sizes)


@handles(CustomOpDef.__call__)
def custom_op(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """A call of what `torch.library.custom_op` made is a call of its operator."""
    definition = args[0].identity()
    if not isinstance(definition, CustomOpDef):
        return NotImplemented
    return tx.call_operation(definition._opoverload, args[1:], kwargs)


def _of_the_firsts_dtype(function: Callable[..., Any]) -> None:
    """Results have the first argument's dtype, where the meta function promotes."""

    def handler(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> VariableTracker:
        result = tx.call_operation(function, args, kwargs)
        first = (args[0] if args else kwargs.get("input", result)).realize()
        if not isinstance(result, TensorVariable) or not isinstance(first, TensorVariable):
            return result
        if result.fake.dtype == first.fake.dtype:
            return result
        return result.call_method(tx, "to", [tx.wrap_constant(first.fake.dtype)], {})

    handles(function)(handler)


for _function in (torch.nn.functional.huber_loss, torch._C._nn.huber_loss):
    _of_the_firsts_dtype(_function)


@handles(torch.nn.functional.gaussian_nll_loss)
def _gaussian_nll_loss(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """It is traced: as one operation it could not branch on whether a variance is negative."""
    function = UserFunctionVariable(torch.nn.functional.gaussian_nll_loss)
    return tx.inline(function, args, kwargs)


# -- methods of Tensor written in Python -----------------------------------------------------------


def _tensor_function(name: str) -> Callable[..., Any]:
    def handler(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        if not args or not isinstance(args[0], TensorVariable):
            return NotImplemented
        return args[0].call_method(tx, name, args[1:], kwargs)

    return handler


# Some functions have several names.
_PYTHON_METHODS = {
    id(method): (name, method)
    for name, method in vars(torch.Tensor).items()
    if isinstance(method, types.FunctionType) and method.__qualname__.startswith("Tensor.")
}
for _name, _method in _PYTHON_METHODS.values():
    handles(_method)(_tensor_function(_name))
