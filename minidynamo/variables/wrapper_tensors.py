"""Tensor subclasses that wrap other tensors: a `__torch_dispatch__` with `__tensor_flatten__`.

An instance is a tensor of the graph like any other: its class runs below autograd, on fake inner
tensors while tracing and in the backend (AOTAutograd takes it apart) afterwards.
"""

from __future__ import annotations

import copy
import inspect
import types
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..exc import InternalError
from ..guards import Predicate
from ..side_effects import Mutation
from ..source import AttrSource
from .base import VariableTracker, unsupported
from .constant import is_value
from .descriptors import bind, class_lookup, guard_class
from .tensor import TENSOR_CLASS, TensorVariable

if TYPE_CHECKING:
    from ..source import Source
    from ..symbolic_convert import Translator

_TORCH_FUNCTIONS = (
    torch.Tensor.__torch_function__.__func__,
    torch._C._disabled_torch_function_impl,
)
_LOOKUP = ("__getattribute__", "__getattr__", "__setattr__")


def is_wrapper(value: torch.Tensor) -> bool:
    """Whether it is an instance that graphs can take. Those of torch's own libraries are not."""
    cls = type(value)
    module = str(cls.__module__)
    if module.startswith("torch.") and not module.startswith("torch.testing."):
        return False
    function = inspect.getattr_static(cls, "__torch_function__")
    function = getattr(function, "__func__", function)
    bases = cls.__mro__[: cls.__mro__.index(torch.Tensor)]
    return (
        any(function is known for known in _TORCH_FUNCTIONS)
        and not any(name in vars(base) for name in _LOOKUP for base in bases)
        and is_traceable_wrapper_subclass(value)
        and value.layout is torch.strided
    )


class WrapperTensorVariable(TensorVariable):
    """An instance of class `type(fake)`."""

    def python_type(self) -> type:
        return type(self.fake)

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        cls = type(self.fake)
        found = class_lookup(tx, cls, name)
        if (
            found is not None
            and found.owner not in torch.Tensor.__mro__
            and name != "__class__"
        ):
            return self._of_class(tx, found, name)
        if found is not None or name not in vars(self.fake):
            return super().getattr(tx, name)
        value = vars(self.fake)[name]
        if isinstance(value, torch.Tensor):
            return tx.add_node("call_function", getattr, (self.node, name), {})
        if is_value(value):
            return tx.wrap_constant(value)
        unsupported(
            "tensor subclass", f"{self.describe()}.{name}", "it is no tensor or constant"
        )

    def _of_class(self, tx: Translator, found: Any, name: str) -> VariableTracker:
        guard_class(tx, type(self.fake))
        kinds = (types.FunctionType, property, classmethod, staticmethod)
        if not isinstance(found.raw, kinds) and not is_value(found.raw):
            text = f"{self.describe()}.{name}"
            unsupported("tensor subclass", text, "this attribute of the class is not traced")
        return bind(tx, found, self, type(self.fake))

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        if getattr(torch.Tensor, name, None) is not getattr(type(self.fake), name, None):
            return tx.call_function(self.getattr(tx, name), args, kwargs)
        return super().call_method(tx, name, args, kwargs)

    def setattr(self, tx: Translator, name: str, value: VariableTracker) -> None:
        unsupported("tensor subclass", f"{self.describe()}.{name} = ...", "it is not traced")

    def delattr(self, tx: Translator, name: str) -> None:
        unsupported("tensor subclass", f"del {self.describe()}.{name}", "it is not traced")


def guard_wrapper(
    tx: Translator,
    value: torch.Tensor,
    source: Source,
) -> None:
    """The class, the tensors inside and what else `__tensor_flatten__` tells are as they are."""
    tx.guard(source, "TENSOR_MATCH", value)
    guard_class(tx, type(value))
    names, context = value.__tensor_flatten__()  # type: ignore[attr-defined]
    context = _kept(context, source)
    own = _metadata_guard(type(value))

    def check(now: Any) -> bool:
        names_now, context_now = now.__tensor_flatten__()
        same = own(context, context_now) if own is not None else bool(context == context_now)
        return list(names_now) == list(names) and same

    text = f"{source.name} has the same inner tensors and metadata"
    tx.guard(source, "PREDICATE", Predicate(check, text))
    for name in names:
        inner, inner_source = getattr(value, name), AttrSource(source, name)
        if is_wrapper(inner):
            guard_wrapper(tx, inner, inner_source)
        elif type(inner) in (torch.Tensor, torch.nn.Parameter):
            tx.guard(inner_source, "TENSOR_MATCH", inner)
        else:
            unsupported("tensor subclass", inner_source.name, f"it is a {type(inner).__name__}")


def _kept(context: Any, source: Source) -> Any:
    """Metadata as they are now: the program may change them in place."""
    try:
        copied = copy.deepcopy(context)
    except Exception as error:
        why = f"its metadata cannot be copied: {error}"
        unsupported("tensor subclass", source.name, why)
    # Objects without an order of their own are equal to themselves alone.
    return copied if bool(copied == context) else context


def _metadata_guard(cls: type) -> Any:
    """`cls.__metadata_guard__(metadata, others)`, None if it has none.

    Raises InternalError where it cannot be called so, as torch.compile does.
    """
    own = getattr(cls, "__metadata_guard__", None)
    if own is None:
        return None
    text = f"{cls.__name__}: Tensor subclass method __metadata_guard__ must"
    if getattr(own, "__self__", None) is not cls:
        raise InternalError(f"{text} be a classmethod")
    if len(inspect.signature(own).parameters) != 2:
        raise InternalError(f"{text} take exactly two subclass metadata arguments")
    return own


def wrap_wrapper(
    tx: Translator,
    value: torch.Tensor,
    source: Source,
) -> VariableTracker:
    """An instance of the frame as graph input."""
    guard_wrapper(tx, value, source)
    node = tx.output.add_input(value, source)
    variable = WrapperTensorVariable(node, source=source)
    variable.mutation = Mutation.EXISTING
    tx.output.side_effects.track(node.meta["example_value"], variable)
    return variable


def variable_class(fake: torch.Tensor) -> type[TensorVariable]:
    """The class of the variable for a tensor of the graph."""
    return WrapperTensorVariable if is_wrapper(fake) else TensorVariable


TENSOR_CLASS.append(variable_class)
