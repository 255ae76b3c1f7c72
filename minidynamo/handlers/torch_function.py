"""`torch.Tensor.__torch_function__`: what `super().__torch_function__` does in subclasses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import get_default_nowrap_functions

from ..variables.base import VariableTracker, unsupported
from ..variables.builtin_object import is_none
from ..variables.registry import handles
from ..variables.tensor import TensorVariable, tensor_method
from ..variables.tensor_subclass import TensorSubclassVariable, of_class
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
    """`func(*args, **kwargs)` on plain tensors; tensors that it gives are of class `cls`, which has
    to be a subclass of all `types`.
    """
    given = dict(zip(("cls", "func", "types", "args", "kwargs"), args, strict=False)) | kwargs
    cls = given["cls"].as_python_constant()
    func = given["func"]
    kinds = given["types"].unpack(tx) if "types" in given else []
    if not all(issubclass(cls, kind.realize().as_python_constant()) for kind in kinds):
        return tx.wrap_constant(NotImplemented)
    if not func.is_python_constant():
        unsupported("torch function override", repr(func), "the function is not known")
    items = given["args"].unpack(tx) if "args" in given else []
    values = [_plain(tx, item) for item in items]
    named: Kwargs = {}
    extra = given.get("kwargs")
    if extra is not None and not is_none(extra.realize()):
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
    given.pop("types", None)
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
            return _alias(tx, value, tx.wrap_constant(cls))  # an input stays as it is
        return known if known is not None else TensorSubclassVariable(value, cls)
    kind = value.python_type()
    if issubclass(kind, (list, tuple)) and not value.is_python_constant():
        parts = [_convert(tx, part, cls, instances) for part in value.unpack(tx)]
        return tx.wrap_items(kind, parts)
    return value


def _int_of(tx: Translator, size: VariableTracker) -> VariableTracker:
    """The number without a class of the program's, an enum's say."""
    if not size.is_python_constant():
        return size
    return tx.wrap_constant(int(size.as_python_constant()))


# -- making instances ------------------------------------------------------------------------------


def _plain_of(value: VariableTracker) -> TensorVariable:
    value = value.realize()
    plain = value.plain if isinstance(value, TensorSubclassVariable) else value
    if type(plain) is not TensorVariable:
        unsupported("tensor subclass", repr(value), "it is no tensor of the graph")
    return plain


def _alias(
    tx: Translator,
    value: VariableTracker,
    cls: VariableTracker,
) -> VariableTracker:
    """The same memory and history as a new tensor of a class."""
    kind = cls.as_python_constant()
    if not issubclass(kind, torch.Tensor):
        unsupported("tensor subclass", repr(cls), "it is no class of tensors")
    plain = _plain_of(value)
    return of_class(
        tx,
        tx.add_node("call_function", torch.ops.aten.alias.default, (plain.node,), {}),
        kind,
    )


@tensor_method("as_subclass")
def as_subclass(
    tx: Translator,
    self: TensorVariable,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    return _alias(tx, self, *args, **kwargs)


@handles(torch.Tensor.__new__)
def tensor_new(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """`Class(tensor)` shares memory and history; `Class(*sizes)` is a new tensor."""
    cls = args[0].as_python_constant()
    if cls is torch.Tensor or len(args) < 2 or kwargs:
        return NotImplemented
    if len(args) == 2 and issubclass(args[1].python_type(), torch.Tensor):
        return _alias(tx, args[1], args[0])
    if not all(issubclass(size.python_type(), int) for size in args[1:]):
        return NotImplemented
    sizes = [_int_of(tx, size) for size in args[1:]]
    return of_class(tx, tx.call_operation(torch.Tensor, sizes, {}), cls)


@handles(torch.Tensor._make_subclass)
def make_subclass(
    tx: Translator,
    args: Args,
    kwargs: Kwargs,
) -> VariableTracker:
    """`(cls, data, require_grad=False)`: the same memory without history."""
    given = dict(zip(("cls", "data", "require_grad"), args, strict=False)) | kwargs
    wanted = given.pop("require_grad", None)
    if len(given) > 2 or (wanted is not None and wanted.truth(tx)):
        unsupported("tensor subclass", "_make_subclass", "a leaf that requires grad")
    plain = _plain_of(given["data"])
    detached = tx.add_node("call_method", "detach", (plain.node,), {})
    return of_class(tx, detached, given["cls"].as_python_constant())
