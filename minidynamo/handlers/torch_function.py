"""`torch.Tensor.__torch_function__`: what `super().__torch_function__` does in subclasses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import get_default_nowrap_functions

from ..variables.base import VariableTracker, unsupported
from ..variables.registry import handles
from ..variables.tensor import TensorVariable
from ..variables.tensor_subclass import TensorSubclassVariable
from ..variables.torch_overrides import overriding

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


@handles(torch.Tensor.__torch_function__.__func__)
def default_torch_function(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """`func(*args, **kwargs)` on plain tensors; tensors that it gives are of class `cls`."""
    given = dict(zip(("cls", "func", "types", "args", "kwargs"), args, strict=False)) | kwargs
    cls = given["cls"].as_python_constant()
    func = given["func"]
    if not func.is_python_constant():
        unsupported("torch function override", repr(func), "the function is not known")
    items = given["args"].unpack(tx) if "args" in given else []
    values = [_plain(tx, item) for item in items]
    named: Kwargs = {}
    extra = given.get("kwargs")
    if extra is not None and not extra.is_python_constant():
        keywords = tx.unpack_keywords(extra)
        named = {name: _plain(tx, item) for name, item in keywords.items()}
        items = [*items, *keywords.values()]
    result = tx.call_function(func, values, named).realize()
    real = func.as_python_constant()
    if real in get_default_nowrap_functions():
        return result
    instances = {instance.plain: instance for instance in _subclasses(items)}
    return _convert(tx, result, cls, instances)


@handles(torch._C._disabled_torch_function_impl)
def disabled_torch_function(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """`func(*args, **kwargs)` on plain tensors, which stay plain but for arguments given back."""
    given = dict(zip(("func", "types", "args", "kwargs"), args, strict=False)) | kwargs
    result = default_torch_function(tx, [tx.wrap_constant(torch.Tensor)], given).realize()
    items = given["args"].unpack(tx) if "args" in given else []
    instances = {instance.plain: instance for instance in _subclasses(items)}
    return instances.get(result, result)


def _subclasses(values: Args) -> list[TensorSubclassVariable]:
    return [value for value in overriding(values) if isinstance(value, TensorSubclassVariable)]


def _plain(tx: Translator, value: VariableTracker) -> VariableTracker:
    value = value.realize()
    if isinstance(value, TensorSubclassVariable):
        return value.plain
    if _subclasses([value]):
        return tx.wrap_items(value.python_type(), [_plain(tx, v) for v in value.unpack(tx)])
    return value


def _convert(
    tx: Translator,
    value: VariableTracker,
    cls: type,
    instances: dict[TensorVariable, TensorSubclassVariable],
) -> VariableTracker:
    """Tensors of the result as instances of `cls`; an argument stays the object that it is."""
    value = value.realize()
    if cls is torch.Tensor:
        return value
    if isinstance(value, TensorVariable):
        known = instances.get(value)
        if known is None and value.source is not None:
            unsupported("tensor subclass", repr(value), "an input is returned as it is")
        return known if known is not None else TensorSubclassVariable(value, cls)
    kind = value.python_type()
    if issubclass(kind, (list, tuple)) and not value.is_python_constant():
        parts = [_convert(tx, part, cls, instances) for part in value.unpack(tx)]
        return tx.wrap_items(kind, parts)
    return value
