"""Tensor subclasses that wrap other tensors: a `__torch_dispatch__` with `__tensor_flatten__`.

An instance is a tensor of the graph like any other: its class runs below autograd, on fake inner
tensors while tracing and in the backend (AOTAutograd takes it apart) afterwards.
"""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nested._internal import nested_tensor
from torch.utils._python_dispatch import (
    is_traceable_wrapper_subclass,
    is_traceable_wrapper_subclass_type,
)

from .. import _C
from ..exc import InternalError
from ..guards import Predicate
from ..side_effects import Mutation
from ..source import AttrSource, ConstSource
from ..symbolic_contexts import (
    nested_context,
    of_wrapper,
    static_context,
    wrapped_tensors,
)
from ..utils import is_distributed
from .base import VariableTracker, unsupported
from .classes import CONSTRUCTORS, call_type
from .constant import is_value
from .descriptors import bind, class_lookup, guard_class
from .device_meshes import placement_guard
from .registry import handles
from .tensor import TENSOR_CLASS, TensorVariable

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import StatelessSymbolicContext

    from ..source import Source
    from ..symbolic_convert import Translator
    from .classes import ClassVariable

_TORCH_FUNCTIONS = (
    torch.Tensor.__torch_function__.__func__,
    torch._C._disabled_torch_function_impl,
)
_COLLECTIVES = "torch.distributed._functional_collectives"
_LOOKUP = ("__getattribute__", "__getattr__", "__setattr__")
_NOTHING = object()


def is_wrapper(value: torch.Tensor) -> bool:
    """Whether it is an instance that graphs can take. Of torch.distributed these are DTensors,
    and what collectives give.
    """
    cls = type(value)
    bases = cls.__mro__[: cls.__mro__.index(torch.Tensor)]
    return (
        is_traceable_wrapper_subclass(value)
        and (
            is_distributed(cls)
            or _is_of_collective(cls)
            or not str(cls.__module__).startswith("torch.distributed.")
        )
        and not any(name in vars(base) for name in _LOOKUP for base in bases)
        and value.layout in (torch.strided, torch.jagged)
    )


def _is_of_collective(cls: type) -> bool:
    """Whether it is the result of a collective that runs still; operators wait for it."""
    return cls.__name__ == "AsyncCollectiveTensor" and cls.__module__ == _COLLECTIVES


def has_own_function(value: VariableTracker) -> bool:
    """Whether it is an instance with a `__torch_function__` of its own, which nodes call."""
    value = value.realize()
    if not isinstance(value, WrapperTensorVariable):
        items = getattr(value, "items", None)
        return type(items) is list and any(map(has_own_function, items))
    return _overrides(type(value.fake))


def _overrides(cls: type) -> bool:
    function = inspect.getattr_static(cls, "__torch_function__")
    function = getattr(function, "__func__", function)
    return all(function is not known for known in _TORCH_FUNCTIONS)


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
            if not isinstance(found.raw, types.MemberDescriptorType):
                return self._of_class(tx, found, name)
            guard_class(tx, cls)
            value = getattr(self.fake, name, _NOTHING)  # what the slot holds
            if value is _NOTHING:
                unsupported("tensor subclass", f"{self.describe()}.{name}", "the slot is empty")
        elif found is not None or name not in vars(self.fake):
            return super().getattr(tx, name)
        else:
            value = vars(self.fake)[name]
        if isinstance(value, torch.Tensor):
            followed = self._followed_part(tx, name)
            if followed is not None:
                return followed
            return tx.add_node("call_function", getattr, (self.node, name), {})
        if is_value(value):
            return tx.wrap_constant(value)
        if isinstance(value, tuple) and all(map(is_value, value)):  # a named one
            return tx.wrap_items(type(value), [tx.wrap_constant(item) for item in value])
        unsupported(
            "tensor subclass", f"{self.describe()}.{name}", "it is no tensor or constant"
        )

    def _followed_part(self, tx: Translator, name: str) -> VariableTracker | None:
        """The tensor inside of an input, if autograd follows it, as an input of its own.

        As part of the wrapper its gradient would be the wrapper's: AOTAutograd knows
        of one gradient for all that an input wraps.
        """
        item = next((i for i in tx.output.inputs if i.node is self.node), None)
        part = getattr(item.value, name) if item is not None else None
        if part is None or not part.requires_grad or not torch.is_grad_enabled():
            return None
        assert item is not None
        if item.is_mutated:
            text = f"{self.describe()}.{name}"
            unsupported("tensor subclass", text, "autograd follows it, and it was written to")
        return tx.wrap(part, AttrSource(item.source, name))

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
        if self._has_own(name):
            return tx.call_function(self.getattr(tx, name), args, kwargs)
        return super().call_method(tx, name, args, kwargs)

    def _has_own(self, name: str) -> bool:
        return getattr(torch.Tensor, name, None) is not getattr(type(self.fake), name, None)

    def length(self, tx: Translator) -> VariableTracker:
        if self._has_own("__len__"):
            return self.call_method(tx, "__len__", [], {})
        return super().length(tx)

    def iter(self, tx: Translator) -> VariableTracker:
        if self._has_own("__iter__"):
            return self.call_method(tx, "__iter__", [], {})
        return super().iter(tx)

    def unpack(self, tx: Translator) -> list[VariableTracker]:
        if self._has_own("__iter__"):
            return self.iter(tx).unpack(tx)
        return super().unpack(tx)

    def setattr(self, tx: Translator, name: str, value: VariableTracker) -> None:
        unsupported("tensor subclass", f"{self.describe()}.{name} = ...", "it is not traced")

    def delattr(self, tx: Translator, name: str) -> None:
        unsupported("tensor subclass", f"del {self.describe()}.{name}", "it is not traced")


def _parts(value: torch.Tensor, source: Source) -> Iterator[tuple[str, torch.Tensor, Source]]:
    """The names, the tensors that it wraps, and their sources."""
    for name, part in wrapped_tensors(value):
        yield name, part, AttrSource(source, name)


def _context(
    tx: Translator,
    value: torch.Tensor,
    source: Source,
    *,
    static: bool,
) -> StatelessSymbolicContext[..., Any] | None:
    """Which sizes of an instance and of the tensors inside are symbolic; None if none is.

    Those of views of wrappers are constants: how they were made is replayed with their numbers. So
    are those of DTensors in torch 2.11, whose metadata hold the sizes.
    """
    if value._base is not None and is_wrapper(value._base):
        return None
    if is_distributed(type(value)) and "device_mesh" not in value.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
        return None
    if value.layout is torch.jagged:
        outer = nested_context(value)
    else:
        outer = tx.output.shapes.tensor_context(value, source, static=static)
    if not is_wrapper(value):
        return outer
    inner = {
        name: (part, _context(tx, part, at, static=static))
        for name, part, at in _parts(value, source)
    }
    if outer is None and all(context is None for _, context in inner.values()):
        return None
    outer = outer or static_context(value, outer_only=True)
    known = {name: context or static_context(part) for name, (part, context) in inner.items()}
    if value.layout is torch.jagged:
        outer = nested_context(value, known["_values"].dynamic_sizes)
    return of_wrapper(outer, known, source)


def _guard_metadata(tx: Translator, value: torch.Tensor, source: Source) -> None:
    """Its class, the names of what it wraps, and what else `__tensor_flatten__` tells."""
    guard_class(tx, type(value))
    if is_distributed(type(value)):
        tx.guard(source, "PREDICATE", placement_guard(value, source))
        return
    names, context = value.__tensor_flatten__()  # type: ignore[attr-defined]
    context = _kept(context, source)
    own = _metadata_guard(type(value))
    tensors = {name for name, _ in wrapped_tensors(value)}
    objects = [(name, getattr(value, name)) for name in names if name not in tensors]

    def check(now: Any) -> bool:
        names_now, context_now = now.__tensor_flatten__()
        if list(names_now) != list(names):
            return False
        same = own(context, context_now) if own is not None else bool(context == context_now)
        return same and all(getattr(now, name) == part for name, part in objects)

    text = f"{source.name} has the same inner tensors and metadata"
    tx.guard(source, "PREDICATE", Predicate(check, text))


def _guard_parts(
    tx: Translator,
    value: torch.Tensor,
    fake: Any,
    source: Source,
    *,
    tracked: bool,
) -> None:
    """An instance and all that it wraps are as they are. tracked: sizes are symbolic."""
    if value.layout is torch.jagged:
        guard_nested(tx, value, source)
    elif tracked:
        tx.output.shapes.track_tensor(source, value, fake, tx.user_stack())
    else:
        tx.guard(source, "TENSOR_MATCH", value)
    if not is_wrapper(value):
        return
    _guard_metadata(tx, value, source)
    for name, part, at in _parts(value, source):
        _guard_parts(tx, part, getattr(fake, name), at, tracked=tracked)


def guard_nested(tx: Translator, value: torch.Tensor, source: Source) -> None:
    """What the tensors inside do not tell. The ragged size is another int for each tensor of
    offsets: two are equal where these are one object, which `OutputGraph` guards.
    """
    kept = (type(value), value.requires_grad, _C.tensor_key_set(value))

    def check(now: Any) -> bool:
        return kept == (type(now), now.requires_grad, _C.tensor_key_set(now))

    tx.guard(source, "TYPE_IS", type(value))
    tx.guard(source, "PREDICATE", Predicate(check, f"{source.name} is as nested as before"))
    tx.output.shapes.nested.append(source)
    tx.output.shapes.has_nested = True


def _refuse_parts(value: torch.Tensor, source: Source) -> None:
    """Raises Unsupported where it wraps what no graph can take."""
    try:
        parts = list(_parts(value, source))
    except Exception as error:  # its `__init__` is not done, say
        why = f"it cannot be taken apart: {type(error).__name__}: {error}"
        unsupported("tensor subclass", source.name, why)
    hides = value.layout is not torch.jagged and _overrides(type(value))
    for _, part, at in parts:
        if hides and part.requires_grad:
            # Its function may compute with the part, whose gradient the graph would not give.
            unsupported("tensor subclass", at.name, "autograd follows it")
        if is_wrapper(part):
            _refuse_parts(part, at)
        elif type(part) not in (torch.Tensor, torch.nn.Parameter):
            unsupported("tensor subclass", at.name, f"it is a {type(part).__name__}")


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


@handles(nested_tensor._nt_view_dummy)
def _view_dummy(
    tx: Translator, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
) -> VariableTracker:
    """The tensor that torch makes for the first view of jagged layout and keeps."""
    dummy = nested_tensor._nt_view_dummy()
    return tx.wrap(dummy, ConstSource(dummy, "what views of jagged layout hold"))


def wrap_wrapper(
    tx: Translator,
    value: torch.Tensor,
    source: Source,
) -> VariableTracker:
    """An instance of the frame as graph input."""
    _refuse_parts(value, source)
    if _is_of_collective(type(value)) and value.requires_grad:
        # The operator that waits for it has no gradient: AOTAutograd would lose the input's.
        unsupported("tensor subclass", source.name, "a collective with a gradient gives it")
    if value._is_view() and value._base.is_nested and not is_wrapper(value._base):  # type: ignore[union-attr]
        unsupported("tensor kind", source.name, "it is a view of a tensor that has no sizes")
    if value.layout is torch.jagged and value is not nested_tensor._nt_view_dummy():
        # Views of jagged layout hold it: that it is an input must be known before.
        _view_dummy(tx, [], {})
    static = tx.output.shapes.is_static(value, source)
    context = _context(tx, value, source, static=static)
    node = tx.output.add_input(value, source, context)
    fake = node.meta["example_value"]
    _guard_parts(tx, value, fake, source, tracked=context is not None)
    if context is not None:
        tx.output.shapes.locate_symbols()
    variable = WrapperTensorVariable(node, source=source)
    variable.mutation = Mutation.EXISTING
    tx.output.side_effects.track(fake, variable)
    return variable


def variable_class(fake: torch.Tensor) -> type[TensorVariable]:
    """The class of the variable for a tensor of the graph."""
    return WrapperTensorVariable if is_wrapper(fake) else TensorVariable


def make_wrapper(
    tx: Translator,
    cls_variable: ClassVariable,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    """A call of a class of wrappers is a node, which runs its `__new__` and `__init__`."""
    cls = cls_variable.value
    if not is_traceable_wrapper_subclass_type(cls):
        return call_type(tx, cls_variable, args, kwargs)
    if str(cls.__module__).startswith("torch.distributed."):
        unsupported("tensor subclass", cls.__name__, "instances are not made inside")
    guard_class(tx, cls)
    made = tx.call_operation(cls, args, kwargs)
    fake = made.fake if isinstance(made, TensorVariable) else None
    if fake is None or made.python_type() is not cls:
        unsupported("tensor subclass", cls.__name__, "its call gives something else")
    if fake.requires_grad and fake.is_leaf and torch.is_grad_enabled():
        unsupported("tensor subclass", cls.__name__, "a leaf that requires grad")
    return made


CONSTRUCTORS.append((torch.Tensor, make_wrapper))
TENSOR_CLASS.append(variable_class)
