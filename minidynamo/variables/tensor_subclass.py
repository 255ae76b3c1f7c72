"""Tensor subclasses with a `__torch_function__` of their own, which is traced.

A subclass instance is a plain tensor of the graph and a class; what is done with it goes by way of
`torch_overrides.dispatch`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..exc import RunInEager
from ..side_effects import Mutation
from ..source import CallSource
from .base import VariableTracker, unsupported
from .constant import ConstantVariable
from .descriptors import ClassAttribute, bind, class_lookup, guard_class
from .instance_dict import InstanceDictVariable
from .instance_state import InstanceState, instance_dict
from .tensor import SUBCLASS_WRAPPER, TensorVariable
from .torch_overrides import dispatch, dispatched, overriding
from .wrapper_tensors import is_wrapper, wrap_wrapper

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..source import Source
    from ..symbolic_convert import Translator


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """A source's function: the same tensor without its class."""
    with torch._C.DisableTorchFunction():
        return tensor.as_subclass(torch.Tensor)


def _as_subclass(tensor: torch.Tensor, cls: type) -> torch.Tensor:
    """Run by generated code: the tensor with a class again."""
    with torch._C.DisableTorchFunction():
        return tensor.as_subclass(cls)  # type: ignore[arg-type]


class TensorSubclassVariable(InstanceState):
    """A tensor of class `cls`; `plain` is the tensor of the graph."""

    owns_operators = True
    is_user_defined = True

    def __init__(
        self,
        plain: TensorVariable,
        cls: type,
        value: Any = None,
        *,
        source: Source | None = None,
    ) -> None:
        mutation = Mutation.NEW if source is None else Mutation.EXISTING
        super().__init__(source=source, mutation=mutation)
        self.plain = plain
        self.cls = cls
        self.value = value
        self.dict = None if value is None else instance_dict(value)

    def describe(self) -> str:
        return super().describe() or f"{self.cls.__name__} {self.plain.describe()}"

    def python_type(self) -> type:
        return self.cls

    def truth(self, tx: Translator) -> bool:
        if self.has_own(tx, "__bool__"):
            return self.call_method(tx, "__bool__", [], {}).truth(tx)
        return self.plain.truth(tx)

    def hash_key(self, tx: Translator) -> Any:
        if self.has_own(tx, "__hash__") or self.has_own(tx, "__eq__"):
            unsupported("hash", repr(self), "its __hash__ has side effects")
        return self

    def has_own(self, tx: Translator, name: str) -> bool:
        """Whether the class has another method of this name than torch.Tensor."""
        guard_class(tx, self.cls)
        class_lookup(tx, self.cls, name)  # guarded by name where the class often changes
        return getattr(self.cls, name, None) is not getattr(torch.Tensor, name, None)

    # -- attributes -----------------------------------------------------------------------------

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        guard_class(tx, self.cls)
        found = class_lookup(tx, self.cls, name)
        if found is None or not found.is_data_descriptor(tx):
            stored = self.load_instance(tx, name)
            if stored is not None:
                return stored.realize()
        if found is None:
            self._no_attribute(tx, name)
        if name == "__dict__":
            return InstanceDictVariable(self)
        if name == "__class__":
            return tx.wrap_constant(self.cls)
        if getattr(torch.Tensor, name, _MISSING) is not getattr(self.cls, name):
            return bind(tx, found, self, self.cls)
        if callable(getattr(torch.Tensor, name)):
            return SubclassMethodVariable(self, name)
        if name in ("grad", "is_leaf", "grad_fn", "_base", "_version"):
            unsupported("tensor subclass", f"{self!r}.{name}", "it is not traced")
        return dispatched(tx, lambda probe: getattr(probe, name), [self])

    def _no_attribute(self, tx: Translator, name: str) -> NoReturn:
        text = f"'{self.cls.__name__}' object has no attribute '{name}'"
        tx.raise_observed(AttributeError, text)

    def setattr(self, tx: Translator, name: str, value: VariableTracker) -> None:
        if not self._class_store(tx, name, value):
            tx.output.side_effects.store_attr(self, name, value)

    def delattr(self, tx: Translator, name: str) -> None:
        if self._class_store(tx, name, None):
            return
        if not self.has_stored(tx, name):
            self._no_attribute(tx, name)
        self.delete_item(tx, name)

    def _class_store(self, tx: Translator, name: str, value: VariableTracker | None) -> bool:
        """Store (or delete, if value is None) through a property, if the class has one."""
        guard_class(tx, self.cls)
        found = class_lookup(tx, self.cls, name)
        if found is not None and isinstance(found.raw, property):
            self._property_store(tx, found, value)
            return True
        if hasattr(torch.Tensor, name) or (found is not None and found.is_data_descriptor(tx)):
            unsupported("tensor subclass", f"{self!r}.{name} = ...", "it is not traced")
        return False

    def _property_store(
        self, tx: Translator, found: ClassAttribute, value: VariableTracker | None
    ) -> None:
        part = "fset" if value is not None else "fdel"
        function = getattr(found.raw, part)
        if function is None or getattr(torch.Tensor, found.name, None) is found.raw:
            unsupported("tensor subclass", f"{self!r}.{found.name} = ...", "it is not traced")
        from_class = found.part(tx, function, part)
        tx.call_function(from_class, [self, value] if value is not None else [self], {})

    def call_builtin(
        self,
        tx: Translator,
        raw: Any,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        """`super().method(...)`: what torch.Tensor has by that name."""
        return dispatched(tx, raw, [self, *args], kwargs)

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        return tx.call_function(self.getattr(tx, name), args, kwargs)

    # -- operators ------------------------------------------------------------------------------

    def operate(
        self, tx: Translator, function: Callable[..., Any], args: list[VariableTracker]
    ) -> VariableTracker:
        return dispatched(tx, function, args)

    def getitem(self, tx: Translator, key: VariableTracker) -> VariableTracker:
        if self.has_own(tx, "__getitem__"):
            return self.call_method(tx, "__getitem__", [key], {})
        return dispatched(tx, operator.getitem, [self, key])

    def setitem(self, tx: Translator, key: VariableTracker, value: VariableTracker) -> None:
        if self.has_own(tx, "__setitem__"):
            self.call_method(tx, "__setitem__", [key, value], {})
        else:
            dispatched(tx, operator.setitem, [self, key, value])

    def length(self, tx: Translator) -> VariableTracker:
        if self.has_own(tx, "__len__"):
            return self.call_method(tx, "__len__", [], {})
        return dispatched(tx, len, [self])

    def iter(self, tx: Translator) -> VariableTracker:
        """As `Tensor.__iter__`, which is no function that is handed on."""
        if self.has_own(tx, "__iter__"):
            return self.call_method(tx, "__iter__", [], {})
        if self.plain.fake.dim() == 0:
            unsupported(
                "tensor subclass", repr(self), "iteration over a tensor without dimensions"
            )
        return self.call_method(tx, "unbind", [ConstantVariable(0)], {}).iter(tx)

    # -- leaving the trace ----------------------------------------------------------------------

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen.begin_call(_as_subclass)
        codegen(self.plain)
        codegen.load_const(self.cls)
        codegen.end_call(2)
        stored = codegen.side_effects.stored_attrs(self)
        if stored:
            codegen.save_temp(self)
        for name, value in stored.items():
            if isinstance(value, VariableTracker):
                codegen(value)
                self.apply_setattr(codegen, name)


_MISSING = object()


class SubclassMethodVariable(VariableTracker):
    """A method of torch.Tensor on a subclass instance."""

    def __init__(self, receiver: TensorSubclassVariable, name: str) -> None:
        super().__init__()
        self.receiver = receiver
        self.name = name

    def python_type(self) -> type:
        return type(torch.Tensor().add)

    def call(
        self, tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        def method(probe: Any, *values: Any, **named: Any) -> Any:
            return getattr(probe, self.name)(*values, **named)

        overridden = dispatch(tx, method, [self.receiver, *args], kwargs)
        if overridden is None and not overriding([*args, *kwargs.values()]):
            return self.receiver.plain.call_method(tx, self.name, args, kwargs)
        if overridden is None:
            unsupported("tensor subclass", self.name, "it is not handed to __torch_function__")
        return overridden

    def reconstruct(self, codegen: PyCodegen) -> None:
        codegen(self.receiver)
        codegen.emit("LOAD_ATTR", self.name)


# -- wrapping --------------------------------------------------------------------------------------

_LOOKUP = frozenset({"__getattribute__", "__getattr__", "__setattr__"})


def refuse_class(cls: Any, name: str) -> None:
    """Raises Unsupported for classes with more than a `__torch_function__`."""
    plain_dispatch = cls.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    if not plain_dispatch or hasattr(cls, "__slots__"):
        unsupported("tensor subclass", f"{name}: {cls.__name__}", "it is not captured")
    bases = cls.__mro__[: cls.__mro__.index(torch.Tensor)]
    if any(_LOOKUP & set(vars(base)) for base in bases):
        unsupported("tensor subclass", f"{name}: {cls.__name__}", "it looks up attributes")


def of_class(tx: Translator, plain: VariableTracker, cls: type) -> VariableTracker:
    """A new tensor of the graph as an instance of `cls`."""
    if cls is torch.Tensor:
        return plain
    if issubclass(cls, torch.nn.Parameter) and cls.__module__.startswith("torch."):
        unsupported("tensor subclass", cls.__name__, "a parameter made inside")
    refuse_class(cls, "made inside")
    guard_class(tx, cls)
    assert isinstance(plain, TensorVariable)
    return TensorSubclassVariable(plain, cls)


def wrap_subclass(tx: Translator, value: torch.Tensor, source: Source) -> VariableTracker:
    """A subclass instance of the frame."""
    cls = type(value)
    if isinstance(value, FakeTensor):
        raise RunInEager("an argument is a tensor of torch's tracer")
    if is_wrapper(value):
        return wrap_wrapper(tx, value, source)
    refuse_class(cls, source.name)
    tx.guard(source, "TYPE_IS", cls)
    same = CallSource(source, as_plain, "{base}.as_subclass(Tensor)")
    with torch._C.DisableTorchFunctionSubclass():  # its base, the instance, is looked at
        plain = tx.wrap(as_plain(value), same)
    assert isinstance(plain, TensorVariable)
    return TensorSubclassVariable(plain, cls, value, source=source)


SUBCLASS_WRAPPER.append(wrap_subclass)
