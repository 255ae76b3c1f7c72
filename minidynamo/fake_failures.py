"""What it means that an operation cannot be run on fake tensors."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from .exc import DataDependentError, RunInEager, Unsupported

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


class _Quiet(logging.Filter):
    """Drops what torch logs where an operator refuses fake tensors: the error says it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (_running and record.msg.startswith("failed while attempting to run meta"))


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
    return Unsupported(
        "operator raised",
        f"{name}({', '.join(map(_operand, operands))}): {type(error).__name__}: {error}",
        f"{name} raised {type(error).__name__} on these inputs while tracing; eager runs it",
    )
