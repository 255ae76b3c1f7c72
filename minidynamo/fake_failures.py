"""What it means that an operation cannot be run on fake tensors."""

from __future__ import annotations

import logging
import math
import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_leaves, tree_map

from .exc import DataDependentError, RunInEager, Unsupported
from .interruptions import pass_on

# Errors of fake propagation that mean "cannot be known while tracing", with what the user is told.
_NOT_TRACEABLE: dict[type[Exception], tuple[str, str]] = {
    DataDependentOutputException: (
        "data-dependent value",
        "its result depends on a tensor's data",
    ),
    DynamicOutputShapeException: ("data-dependent shape", "its output size depends on data"),
    UnsupportedOperatorException: ("no fake implementation", "it has no meta function"),
    GuardOnDataDependentSymNode: ("data-dependent branch", "it branches on a tensor's data"),
}


# What torch says where a kernel asks for the memory of a fake tensor, and of a subscript that is a
# tensor of one number.
_NO_DATA = (
    "its data is not allocated yet",
    "Cannot access data pointer of Tensor",
    "(got SymInt)",
)


_LOGGED = ("failed while attempting to run meta", "fake tensor raised")


class _Quiet(logging.Filter):
    """Drops what torch logs where an operator refuses fake tensors: the error says it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (_running and record.msg.startswith(_LOGGED))


# Of nested runs on fake tensors, one True each.
_running: list[bool] = []
logging.getLogger(FakeTensorMode.__module__).addFilter(_Quiet())


@contextmanager
def quietly() -> Iterator[None]:
    """A run on fake tensors that may fail."""
    _running.append(True)
    try:
        yield
    finally:
        _running.pop()


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """A tensor of the program is made a fake one, which torch cannot do with all."""
    try:
        with quietly():
            yield
    except RuntimeError as error:
        if type(error) not in (RuntimeError, UnsupportedFakeTensorException):
            raise
        raise Unsupported("tensor kind", name, "torch makes no fake tensor of it") from error


def _operand(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def describe_failure(
    target: Any,
    error: Exception,
    operands: Sequence[Any] = (),
) -> Exception:
    """What to raise where a call of `target` with `operands` raised `error` on fake tensors."""
    pass_on(error)
    text = str(error)
    if isinstance(error, RuntimeError) and " view" in text and "place" in text:
        # Autograd refuses it; the results of a graph are not the same views as eager's.
        return RunInEager(text)
    name = getattr(target, "__name__", str(target))
    for kind_of_error, (kind, why) in _NOT_TRACEABLE.items():
        if isinstance(error, kind_of_error):
            is_branch = kind_of_error is GuardOnDataDependentSymNode
            kind_of_failure = DataDependentError if is_branch else Unsupported
            return kind_of_failure(kind, name, f"{name} cannot be traced: {why}")
    if any(phrase in text for phrase in _NO_DATA):
        return Unsupported("data-dependent value", name, f"{name} reads a tensor's data")
    return Unsupported(
        "operator raised",
        f"{name}({', '.join(map(_operand, operands))}): {type(error).__name__}: {error}",
        f"{name} raised {type(error).__name__} on these inputs while tracing; eager runs it",
    )


# -- what eager refuses though fake tensors do not -------------------------------------------------

# What is raised for such arguments, or None.
_on_ones: dict[tuple[Any, ...], Exception | None] = {}
_REFUSALS = (
    "not implemented for",
    "not supported",
    "only supported",
    "no longer supported",
    "does not support",
    "can't be cast",
    "may not be a boolean",
    "must not be a floating point number",
    "value cannot be converted to type",
)
# Kernels of recurrent layers trust that sizes fit: with others they read where nothing is.
_TRUSTING = frozenset("lstm gru rnn_tanh rnn_relu".split())
_OF_PYTHON = ("torch.nn.functional", "torch.masked._ops")
_FEW = 3
# Greater numbers may be sizes.
_LARGEST = 16
# Every dtype of numbers holds these.
_BYTE = 127
# Elements of a result that is made of no tensor.
_MOST = 1 << 16


def run_on_ones(
    target: Any,
    args: Any,
    kwargs: dict[str, Any],
    value: Any,
) -> None:
    """Raise what an operator of the CPU raises for the dtypes of its arguments: its kernel is
    written for few, which fake tensors do not know. The operator runs once on small tensors.

    value: its result on the fake arguments.
    """
    given = [*args, *kwargs.values()]
    items = tree_leaves(given) if _is_of_lists(target) else given
    tensors = [item for item in items if isinstance(item, torch.Tensor)]
    if not (_is_of_torch(target) and _are_on_cpu(tensors)):
        return
    if getattr(target, "__name__", "") in _TRUSTING:
        return
    exact = _has_large_number(given, value)
    if not (exact and _is_short(value) if not tensors else _is_checked(target, given, value)):
        return
    key = tuple(_kind(item, exact) for item in given)
    if None in key or torch.is_autocast_enabled("cpu"):
        return
    key = (target, len(args), *kwargs, *key)
    if key not in _on_ones:
        _on_ones[key] = _error_on_ones(target, args, kwargs)
    error = _on_ones[key]
    if error is not None:
        raise type(error)(*error.args)


def _is_of_torch(target: Any) -> bool:
    is_python = getattr(target, "__module__", None) in _OF_PYTHON
    return is_python or isinstance(target, (str, types.BuiltinFunctionType))


def _has_large_number(given: list[Any], value: Any) -> bool:
    """Whether a dtype at hand does not hold one of the numbers: some operators refuse those, others
    wrap them around.
    """
    plain = [item for item in given if type(item) in (int, float)]
    numbers = [number for number in plain if not -_BYTE <= number <= _BYTE]
    numbers += [item for item in given if type(item) is complex]
    if not numbers:
        return False
    leaves = [*tree_leaves(given), *tree_leaves(value)]
    dtypes = {item.dtype for item in leaves if isinstance(item, torch.Tensor)}
    return any(not _holds(dtype, number) for dtype in dtypes for number in numbers)


def _holds(dtype: torch.dtype, number: complex) -> bool:
    if isinstance(number, complex):
        return dtype.is_complex
    if dtype == torch.bool or dtype.is_complex:
        return True
    if dtype.is_floating_point:
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    limits = torch.iinfo(dtype)
    return limits.min <= number <= limits.max


def _is_short(value: Any) -> bool:
    """Whether a call without tensors made one that costs nothing to make once more."""
    if not (isinstance(value, torch.Tensor) and _are_on_cpu([value])):
        return False
    return all(type(size) is int for size in value.shape) and value.numel() <= _MOST


def _is_checked(target: Any, given: list[Any], value: Any) -> bool:
    """Whether an operator is of a kind whose kernels test sizes, which may not fit here: one of few
    tensors, or whose result is as large as an argument.
    """
    if _is_of_lists(target):
        return True
    if not _are_on_cpu(tree_leaves(value)):
        return False
    tensors = [item for item in given if isinstance(item, torch.Tensor)]
    everything = [item for item in tree_leaves(given) if isinstance(item, torch.Tensor)]
    if len(everything) == len(tensors) <= _FEW:
        return True
    if not tensors:
        return False
    largest = max(tensor.dim() for tensor in tensors)
    return isinstance(value, torch.Tensor) and value.dim() == largest


def _are_on_cpu(values: Sequence[Any]) -> bool:
    return all(type(t) is FakeTensor and t.device.type == "cpu" for t in values)


def _is_of_lists(
    target: Any,
) -> bool:
    return getattr(target, "__name__", "").startswith("_foreach_")


def _number(item: Any) -> Any:
    """Of a symbolic number this call's; everything else as it is."""
    is_symbolic = isinstance(item, (torch.SymInt, torch.SymFloat)) and item.node.has_hint()
    return item.node.hint if is_symbolic else item


def _kind(item: Any, exact: bool) -> Any:
    """What of an argument tells whether the operator refuses it; None where that is not known.

    exact: numbers count, whatever they are.
    """
    if isinstance(item, torch.Tensor):
        return item.dtype, item.dim()
    item = _number(item)
    if exact and type(item) in (int, float):
        return type(item), repr(item)
    if type(item) in (float, complex):
        return type(item)
    if isinstance(item, (list, tuple)):
        kinds = tuple(_kind(part, exact) for part in item)
        return None if None in kinds else kinds
    is_small = type(item) is int and -_LARGEST <= item <= _LARGEST
    is_plain = is_small or type(item) in (bool, str, type(None), torch.dtype)
    return (type(item), item) if is_plain else None


def _error_on_ones(
    target: Any,
    args: Any,
    kwargs: dict[str, Any],
) -> Exception | None:
    def ones(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return _number(item)
        # Halves, places and classes of these are there.
        return torch.ones((2,) * item.dim(), dtype=item.dtype, device="cpu")

    real, named = tree_map(ones, (list(args), kwargs))
    function = getattr(torch.Tensor, target) if isinstance(target, str) else target
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*real, **named)
    except (RuntimeError, NotImplementedError) as error:
        text = str(error)
        return error.with_traceback(None) if any(part in text for part in _REFUSALS) else None
    except Exception:
        return None  # of these sizes, another error
    return None
