"""Functions of numpy on traced arrays: nodes that call their namesakes of `torch._numpy`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch._numpy as tnp

from .. import trace_rules
from ..variables.array_outputs import with_named_out
from ..variables.base import VariableTracker, unsupported
from ..variables.ndarray import NdarrayVariable, call_numpy, operands, with_tensors
from ..variables.registry import handler_of, handles
from ..variables.tensor import TensorVariable, tensor_method
from .numpy_statistics import angle, heaviside, median, percentile, quantile

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
numpy = trace_rules.numpy

# No functions of arrays, ones that read memory, or whose results differ between numpy and torch.
_NOT_TRACED = frozenset(
    "finfo iinfo dtype random ndarray can_cast result_type set_printoptions array_equal"
    " array_equiv from_dlpack save load cbrt fix modf isscalar logaddexp2"
    " fill_diagonal histogram histogram2d histogramdd".split()
)


def _sign(x: Any) -> Any:
    """`numpy.sign`: NaN of NaN."""
    return tnp.where(tnp.not_equal(x, x), x, tnp.sign(x))


def _unique(
    array: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
) -> Any:
    """`numpy.unique`: a NaN equals others, and indices are the first ones."""
    if axis is not None:
        if return_index or array.tensor.is_floating_point():
            raise NotImplementedError("numpy.unique along an axis")
        return tnp.unique(array, False, return_inverse, return_counts, axis)
    flat = array.tensor.flatten()
    order = torch.argsort(flat, stable=True)
    ordered = flat[order]
    left, right = ordered[:-1], ordered[1:]
    differs = left != right
    if equal_nan:
        differs = differs & ((left == left) | (right == right))
    is_first = torch.cat([torch.ones_like(ordered[:1], dtype=torch.bool), differs])
    places = is_first.nonzero().flatten()
    results = [ordered[places]]
    if return_index:
        results.append(order[places])
    if return_inverse:
        numbers = torch.cumsum(is_first, 0) - 1
        results.append(torch.empty_like(order).scatter(0, order, numbers).reshape(array.shape))
    if return_counts:
        results.append(torch.diff(places, append=places.new_tensor([flat.numel()])))
    arrays = tuple(map(tnp.ndarray, results))
    return arrays if len(arrays) > 1 else arrays[0]


def _divide(x: Any, y: Any) -> Any:
    """`numpy.divide`: integers are divided as numbers of 64 bits."""
    kinds = [torch.as_tensor(getattr(number, "tensor", number)).dtype for number in (x, y)]
    if any(kind.is_floating_point or kind.is_complex for kind in kinds):
        return tnp.divide(x, y)
    return tnp.divide(tnp.asarray(x).astype("float64"), y)


# Written here, where torch._numpy's gives other values.
_OWN = {
    "sign": _sign,
    "unique": _unique,
    "divide": _divide,
    "true_divide": _divide,
    "median": median,
    "quantile": quantile,
    "percentile": percentile,
    "angle": angle,
    "heaviside": heaviside,
}


def _has_array(
    value: VariableTracker,
) -> bool:
    value = value.realize()
    if isinstance(value, NdarrayVariable):
        return True
    return any(map(_has_array, getattr(value, "items", ()) or ())) if _is_nest(value) else False


def _is_nest(value: VariableTracker) -> bool:
    return not value.is_python_constant() and value.python_type() in (list, tuple)


def _function(
    name: str,
    real: Any,
    traced: Callable[..., Any],
    *,
    creates: bool,
) -> None:
    def handler(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        args, kwargs = with_named_out(real, args, kwargs)
        if name in _TAKES_TENSORS and args and isinstance(args[0], TensorVariable):
            args = [tensor_numpy(tx, args[0], [], {}), *args[1:]]
        if name in ("array", "asarray") and args and _is_nest(args[0]):
            args = [_stacked(tx, args[0]), *args[1:]]
        values = [*args, *kwargs.values()]
        has_tensor = any(isinstance(value, TensorVariable) for value in args)
        if has_tensor and not kwargs and isinstance(real, numpy.ufunc):
            return with_tensors(tx, real, args, on_arrays)
        if not creates and not any(map(_has_array, values)):
            fixed = [_fixed(tx, value) for value in args]
            made = _computed(real, fixed, kwargs)
            if isinstance(made, numpy.generic):
                return tx.fold(lambda: made, (), {})
            if not isinstance(made, numpy.ndarray):
                return NotImplemented
            args = [value for value in fixed if value is not None]
        if isinstance(real, numpy.ufunc):
            args = operands(tx, args)
        return call_numpy(tx, traced, name, args, kwargs, real)

    def on_arrays(
        tx: Translator,
        function: Any,
        arrays: Args,
    ) -> VariableTracker:
        return call_numpy(tx, traced, name, operands(tx, arrays), {}, function)

    if handler_of(real) is None:
        handles(real)(handler)


def _fixed(
    tx: Translator,
    value: VariableTracker,
) -> VariableTracker | None:
    """A number or a nest of numbers without symbols; None for others."""
    value = value.realize()
    if _is_nest(value):
        items = [_fixed(tx, item) for item in value.unpack(tx)]
        known = [item for item in items if item is not None]
        return tx.wrap_items(value.python_type(), known) if len(known) == len(items) else None
    value = value.specialized(tx)
    return value if value.is_python_constant() else None


def _computed(
    real: Callable[..., Any], args: list[VariableTracker | None], kwargs: Kwargs
) -> Any:
    """What a function gives for numbers and lists of numbers; None where they are not known."""
    try:
        constants = [value and value.as_python_constant() for value in args]
        named = {name: value.as_python_constant() for name, value in kwargs.items()}
        with numpy.errstate(all="ignore"):
            return None if None in args else real(*constants, **named)
    except Exception:  # NotConstant, or what numpy refuses
        return None


def _stacked(
    tx: Translator,
    value: VariableTracker,
) -> VariableTracker:
    """A list of arrays as the array of them; others as they are."""
    if not _is_nest(value):
        return value
    items = [_stacked(tx, item.realize()) for item in value.unpack(tx)]
    if not items or not all(isinstance(item, NdarrayVariable) for item in items):
        return value
    return call_numpy(tx, tnp.stack, "stack", [tx.wrap_items(list, items)], {}, numpy.stack)


# What asks a tensor for its array, and gives one.
_TAKES_TENSORS = frozenset("asarray array ones_like zeros_like full_like".split())
_CREATORS = frozenset(
    "array asarray empty zeros ones full arange linspace logspace eye identity tri"
    " geomspace".split()
)


def _register(
    prefix: str,
    real_home: Any,
    traced_home: Any,
) -> None:
    for name in dir(traced_home):
        traced = _OWN.get(prefix + name, getattr(traced_home, name))
        real = getattr(real_home, name, None)
        if name.startswith("_") or name in _NOT_TRACED or isinstance(real, type):
            continue
        if callable(traced) and callable(real):
            _function(prefix + name, real, traced, creates=name in _CREATORS)


if numpy is not None:
    _register("", numpy, tnp)
    _register("linalg.", numpy.linalg, tnp.linalg)
    _register("fft.", numpy.fft, tnp.fft)

    def _number_info(kind: type) -> None:
        """`iinfo` and `finfo`: what they tell of a type never changes."""

        def handler(
            tx: Translator,
            args: Args,
            kwargs: Kwargs,
        ) -> Any:
            if len(args) != 1 or kwargs or not args[0].is_python_constant():
                return NotImplemented
            made = kind(args[0].as_python_constant())
            return tx.wrap_held(made, f"{kind.__name__}(...)")

        handles(kind)(handler)

    _number_info(numpy.iinfo)
    _number_info(numpy.finfo)

    @handles(numpy.array_equal)
    def array_equal(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        """Of arrays, a number that depends on their data."""
        if len(args) != 2 or kwargs or not all(isinstance(a, NdarrayVariable) for a in args):
            return NotImplemented
        left, right = (a.tensor.fake.shape for a in args)  # type: ignore[attr-defined]
        if len(left) != len(right) or any(a != b for a, b in zip(left, right, strict=True)):
            return tx.wrap_constant(False)
        same = tx.call_operator(operator.eq, args).call_method(tx, "all", [], {})
        return tx.call_function(tx.wrap_constant(bool), [same], {})

    @handles(numpy.dtype)
    def dtype_of(
        tx: Translator,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        """One object for each of the plain types."""
        if len(args) != 1 or kwargs or not args[0].is_python_constant():
            return NotImplemented
        return tx.fold(numpy.dtype, [args[0].as_python_constant()], {})


# -- between arrays and tensors --------------------------------------------------------------------


@handles(torch.from_numpy)
def from_numpy(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """A tensor that shares the array's memory."""
    if not isinstance(args[0], NdarrayVariable) or args[0].is_scalar:
        return NotImplemented
    return sharing_tensor(tx, args[0])


def sharing_tensor(
    tx: Translator,
    array: NdarrayVariable,
) -> VariableTracker:
    """Another tensor with the memory of an array; eager refuses negative strides."""
    array.check_write()  # which the tensor may be written to
    return tx.add_node("call_method", "detach", (array.tensor.node,), {})


@handles(torch.asarray)
def asarray(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """Of an array, `torch.as_tensor`, or a copy."""
    is_array = len(args) == 1 and isinstance(args[0], NdarrayVariable)
    copy = kwargs.get("copy")
    copies = copy is not None and copy.is_python_constant() and copy.as_python_constant()
    rest = {name: value for name, value in kwargs.items() if name != "copy" or not copies}
    if not is_array or not set(rest) <= {"dtype", "device"}:
        return NotImplemented
    made: Any = torch.tensor if copies else torch.as_tensor
    return tx.call_function(tx.wrap_constant(made), args, rest)


@tensor_method("numpy")
def tensor_numpy(
    tx: Translator,
    self: TensorVariable,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """An array that shares the tensor's memory; what eager refuses breaks the graph."""
    forced = args[0] if args else kwargs.get("force")
    if (
        forced is not None
        and len(args) + len(kwargs) == 1
        and forced.as_python_constant() is True
    ):
        steps = ["detach", "cpu", "resolve_conj", "resolve_neg"]
        args, kwargs = [], {}
    else:
        steps = ["detach"] if self.fake.requires_grad and not torch.is_grad_enabled() else []
    for step in steps:
        made = self.call_method(tx, step, [], {}).realize()
        assert isinstance(made, TensorVariable)
        self = made
    fake = self.fake
    is_plain = not (fake.requires_grad or fake.is_conj() or fake.is_neg())
    if args or kwargs or not is_plain or fake.device.type != "cpu" or _has_no_dtype(fake.dtype):
        unsupported("numpy array", f"{self.describe()}.numpy()", "it is no plain tensor")
    return NdarrayVariable(self)


def _has_no_dtype(dtype: torch.dtype) -> bool:
    return not hasattr(numpy, str(dtype).removeprefix("torch.")) and dtype is not torch.bool
