"""Methods and attributes of tensors that are not simply a node of the graph."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .. import trace_rules
from ..guards import Predicate
from ..source import AttrSource
from ..variables.base import VariableTracker, unsupported
from ..variables.constant import ConstantVariable, is_value
from ..variables.descriptors import bind, class_lookup
from ..variables.dicts import DictVariable
from ..variables.functions import MethodOfVariable
from ..variables.identity import IdVariable, ImplVariable, guard_distinct
from ..variables.registry import handles
from ..variables.services import TENSOR_GETATTR
from ..variables.tensor import (
    TensorVariable,
    given_as,
    has_bounds_of_data,
    is_leaf,
    subscript_proxy,
    tensor_method,
)
from .backward_passes import new_leaf
from .torch_symbolic import data_truth, number_of

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
NONE = ConstantVariable(None)
_MISSING = object()


def real_tensor(tx: Translator, tensor: TensorVariable) -> torch.Tensor | None:
    """The tensor of the frame that a graph input stands for; None for what the graph computes."""
    node = tensor.origin or tensor.node
    for item in tx.output.inputs:
        if item.node is node:
            return item.value
    return None


# -- what ends the graph ---------------------------------------------------------------------------

_NEEDS_DATA = (
    "it needs the tensor's data, which is not known while tracing",
    ["keep the value a tensor, or accept the graph break"],
)
_SCALAR = (
    _NEEDS_DATA[0],
    [f"{_NEEDS_DATA[1][0]}; config.capture_scalar_outputs = True captures the number"],
)
_BREAKS: dict[str, tuple[str, str, list[str]]] = {
    **{
        name: ("data-dependent shape", "how much a sparse tensor holds depends on data", [])
        for name in "indices values _indices _values _nnz crow_indices col_indices"
        " ccol_indices row_indices".split()
    },
    **{
        name: ("data-dependent value", *_NEEDS_DATA)
        for name in "__complex__ __array__ __format__ __repr__ __str__".split()
        if hasattr(torch.Tensor, name)
    },
    **{
        name: ("data-dependent value", *_SCALAR)
        for name in "item tolist __int__ __float__ __index__".split()
    },
    **{
        name: ("autograd call", "the backward pass is run by eager", [])
        for name in ("retain_grad",)
    },
    **{
        name: ("tensor storage", "it works on the tensor's memory itself", [])
        for name in "data_ptr storage _typed_storage storage_type is_shared share_memory_"
        " set_ resize_ resize_as_ is_set_to pin_memory __dlpack__ __dlpack_device__"
        " __cuda_array_interface__ apply_ map_ map2_"
        " __reduce_ex__ module_load rename refine_names align_to".split()
        if hasattr(torch.Tensor, name)
    },
}


def _check_index(tx: Translator, fake: torch.Tensor) -> None:
    """TypeError of what can be no index, whatever its data are."""
    size = fake.numel()
    is_one = isinstance(size, torch.SymInt) or size == 1
    if not is_one or fake.dtype.is_floating_point or fake.dtype.is_complex:
        text = "only integer tensors of a single element can be converted to an index"
        tx.raise_observed(TypeError, text)


def _breaks(name: str) -> None:
    kind, why, hints = _BREAKS[name]

    def handler(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
        if name == "__index__" and not args and not kwargs:
            _check_index(tx, self.fake)
        number = number_of(tx, self, name)
        if number is None:
            unsupported(kind, f"{self.describe()}.{name}()", why, hints)
        return number

    tensor_method(name)(handler)


for _name in _BREAKS:
    _breaks(_name)


@tensor_method("is_nonzero")
def is_nonzero(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
    """`bool(self)`."""
    truth = tx.wrap_constant(bool)
    return NotImplemented if args or kwargs else tx.call_function(truth, [self], {})


@handles(torch.is_nonzero)
def function_is_nonzero(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
    tensor = args[0] if len(args) == 1 and not kwargs else None
    if not isinstance(tensor, TensorVariable):
        return NotImplemented
    return is_nonzero(tx, tensor, [], {})


@tensor_method("__contains__")
def contains(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
    """`item in self`, as a number of the graph; `(item == self).any().item()` in eager."""
    item = args[0].realize() if len(args) == 1 else None
    known = (bool, int, float, complex, torch.Tensor, torch.nn.Parameter)
    if item is not None and issubclass(item.python_type(), known):
        equal = tx.call_operator(operator.eq, [item, self]).realize()
        truth = data_truth(tx, equal.call_method(tx, "any", [], {}).realize())
        if truth is not None:
            return truth
    unsupported("data-dependent value", f"{self.describe()}.__contains__()", *_NEEDS_DATA)


def _owns_just_its_elements(tensor: torch.Tensor) -> bool:
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return whole and not vars(tensor) and tensor.grad is None


@tensor_method("__deepcopy__")
def deepcopy(
    tx: Translator,
    self: TensorVariable,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """A clone, for tensors that have neither a history nor memory or attributes beyond it."""
    fake, memo = self.fake, args[0].realize() if args else NONE
    simple = type(fake) is FakeTensor and self.python_type() is torch.Tensor
    simple = simple and not (fake.requires_grad or fake._is_view() or fake.is_conj())
    simple = simple and not (fake.is_neg() or fake.is_inference())
    simple = simple and not tx.output.side_effects.stored_attrs(self)
    is_new = isinstance(memo, DictVariable) and memo.source is None and not kwargs
    if not simple or not is_new or not torch.ops.aten.is_non_overlapping_and_dense(fake):
        unsupported(
            "tensor storage",
            f"{self.describe()}.__deepcopy__()",
            "it is more than its elements",
        )
    real = None if self.source is None else real_tensor(tx, self)
    if real is not None:
        if not _owns_just_its_elements(real):
            unsupported("tensor storage", self.describe(), "it is more than its elements")
        check = Predicate(_owns_just_its_elements, "it is not more than its elements")
        tx.guard(self.source, "PREDICATE", check)  # type: ignore[arg-type]
    guard_distinct(tx, self)
    key = IdVariable(self)
    if not memo.contains(tx, key).truth(tx):
        memo.setitem(tx, key, self.call_method(tx, "clone", [], {}))
    return memo.getitem(tx, key)


@tensor_method("__bool__")
def tensor_bool(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
    return ConstantVariable(self.truth(tx))


@tensor_method("requires_grad_")
def requires_grad_(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
    """On a tensor of the frame it would change what autograd sees of the input."""
    wanted = args[0] if args else kwargs.get("requires_grad", ConstantVariable(True))
    # A view made without gradients says what its base says, but has no gradient of its own.
    is_view_only = self.fake.is_leaf and self.fake._is_view()
    value = bool(wanted.as_python_constant())
    is_there = value == self.fake.requires_grad and not (value and is_view_only)
    if is_there and not tx.output.transform_levels:  # torch.func refuses it all the same
        return self
    if value and new_leaf(tx, self):
        return NotImplemented
    unsupported(
        "requires_grad_", self.describe(), "whether a tensor requires grad is fixed in a graph"
    )


@tensor_method("polygamma_")
def polygamma_(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
    """AOTAutograd has no functional form of it."""
    if not self.fake.is_floating_point():
        unsupported("tensor storage", self.describe(), "eager raises the error")
    # A gradient needs what it reads, which is written over.
    read = self.call_method(tx, "clone", [], {}) if self.fake.requires_grad else self
    return self.call_method(tx, "copy_", [read.call_method(tx, "polygamma", args, kwargs)], {})


@tensor_method("detach_")
def detach_(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
    """On a tensor of the frame it would change what autograd sees of the input."""
    if self.node.op != "placeholder":
        return NotImplemented
    unsupported(
        "requires_grad_", self.describe(), "whether a tensor requires grad is fixed in a graph"
    )


@tensor_method("new")
def tensor_new(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
    """`new(x.shape)` takes a size, other sequences are data; in a graph both would be tuples."""
    if len(args) != 1 or kwargs or not issubclass(args[0].python_type(), torch.Size):
        return NotImplemented
    return self.call_method(tx, "new_empty", args, {})


@tensor_method("type")
def tensor_type(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
    """Without a dtype it is the name of the legacy type."""
    if not args and not kwargs:
        return ConstantVariable(self.fake.type())
    kind = args[0].as_python_constant() if args and args[0].is_python_constant() else None
    if not isinstance(kind, type) or not hasattr(kind, "dtype"):
        return NotImplemented
    # A legacy class, such as torch.HalfTensor: no code of a graph can show it.
    name = ConstantVariable(f"{kind.__module__}.{kind.__name__}")
    return self.call_method(tx, "type", [name, *args[1:]], kwargs)


def _with_tensor_factor(name: str, keyword: str, combine: Any, join: Any) -> None:
    """`self.add_(x, alpha=tensor)` and the like: eager reads the number out of the tensor.

    In a graph the factor stays a tensor: the product is made first and then added.
    """

    def handler(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
        factor = kwargs.get(keyword)
        if not isinstance(factor, TensorVariable) or kwargs.keys() != {keyword}:
            return NotImplemented
        given = [arg.fake for arg in args if isinstance(arg, TensorVariable)]
        if not given or torch.result_type(given[0], factor.fake) != given[0].dtype:
            return NotImplemented  # a wider number than eager takes
        product = args[0] if combine is None else tx.call_operator(combine, args[:2])
        product = tx.call_operator(operator.mul, [product, factor])
        return self.call_method(tx, join, [product], {})

    def function(tx: Translator, args: Args, kwargs: Kwargs) -> Any:
        if not args or not isinstance(args[0], TensorVariable):
            return NotImplemented
        return handler(tx, args[0], args[1:], kwargs)

    tensor_method(name)(handler)
    if not name.endswith("_"):
        handles(getattr(torch, name))(function)


for _name, _keyword, _combine, _join in (
    ("addcdiv", "value", operator.truediv, "add"),
    ("addcmul", "value", operator.mul, "add"),
    ("add", "alpha", None, "add"),
    ("sub", "alpha", None, "sub"),
):
    for _end in ("", "_"):
        _with_tensor_factor(_name + _end, _keyword, _combine, _join + _end)


@tensor_method("__len__")
def tensor_len(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
    return self.length(tx)


@tensor_method("__iter__")
def tensor_iter(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
    return self.iter(tx)


@tensor_method("__hash__")
def tensor_hash(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
    unsupported("hash", f"hash({self.describe()})", "a tensor's hash is its address")


@tensor_method("__setitem__")
def tensor_setitem(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
    key, value = args
    proxy, value = subscript_proxy(tx, key), value.realize()
    if has_bounds_of_data(proxy):
        # Of how many items the part is, is a symbol that only a node of its own can define.
        part = self.part(tx, proxy)
        if not isinstance(value, TensorVariable):
            part.call_method(tx, "fill_", [value], {})
            return NONE
        if isinstance(part, TensorVariable) and value.fake.dim() <= part.fake.dim():
            part.call_method(tx, "copy_", [value], {})
            return NONE
    if _is_one_mask(key.realize()) and _set_where(tx, self, key.realize(), value):
        return NONE
    tx.add_node("call_function", operator.setitem, (self.node, proxy, tx.as_proxy(value)), {})
    return NONE


def _is_one_mask(key: VariableTracker) -> bool:
    """Whether an index is one bool of a tensor: all of the tensor, or nothing, is chosen."""
    if not isinstance(key, TensorVariable):
        return False
    return key.fake.dtype == torch.bool and key.fake.dim() == 0


def _set_where(
    tx: Translator, x: TensorVariable, mask: VariableTracker, value: VariableTracker
) -> bool:
    """`x[mask] = value` without asking for the mask's data; False: not for such a value."""
    if isinstance(value, TensorVariable):
        if value.fake.dim() > x.fake.dim() or value.fake.dtype != x.fake.dtype:
            return False
        chosen = value.call_method(tx, "where", [mask, x], {})
        x.call_method(tx, "copy_", [chosen], {})
        return True
    number = value.as_python_constant() if value.is_python_constant() else None
    is_kept = type(number) is int and x.fake.dtype != torch.bool
    if not is_kept and not (type(number) is float and x.fake.dtype.is_floating_point):
        return False
    x.call_method(tx, "masked_fill_", [mask, value], {})
    return True


@tensor_method("__getitem__")
def tensor_getitem(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
    return self.getitem(tx, args[0])


# -- attributes ------------------------------------------------------------------------------------


def _grad(tx: Translator, tensor: TensorVariable, real: torch.Tensor | None) -> VariableTracker:
    """The gradient of an input is an input of its own; what the graph made has none, since
    no backward pass is captured.
    """
    if real is not None:
        assert tensor.source is not None
        if tx.output.overrides.begins_below_modes:
            unsupported(
                "function mode", f"{tensor.describe()}.grad", "to look at it calls a mode"
            )
        return tx.wrap(real.grad, AttrSource(tensor.source, "grad"))
    return NONE


def _class(
    tx: Translator, tensor: TensorVariable, real: torch.Tensor | None
) -> VariableTracker:
    return tx.wrap_constant(tensor.python_type())


def _grad_fn(
    tx: Translator, tensor: TensorVariable, real: torch.Tensor | None
) -> VariableTracker:
    """Only whether there is one is known."""
    if is_leaf(tx, tensor) and tensor.fake.grad_fn is None:
        return NONE
    unsupported(
        "attribute", f"{tensor.describe()}.grad_fn", "autograd nodes exist only at run time"
    )


def _base(tx: Translator, tensor: TensorVariable, real: torch.Tensor | None) -> VariableTracker:
    """Not traced: under no_grad or inference mode eager differs in what it keeps."""
    if not _shows_another(tx, tensor):
        return NONE
    unsupported("attribute", f"{tensor.describe()}._base", "the base of a view is not traced")


def _shows_another(tx: Translator, tensor: TensorVariable) -> bool:
    """Whether it is a view; of an input that is guarded."""
    given = given_as(tx, tensor.fake)
    if given is not None:
        kind = "IS_NONE" if given.value._base is None else "NOT_NONE"
        tx.guard(AttrSource(given.source, "_base"), kind, None)
    return tensor.fake._is_view()


@tensor_method("_is_view")
def _is_view(tx: Translator, self: TensorVariable, args: Args, kwargs: Kwargs) -> Any:
    return tx.wrap_constant(_shows_another(tx, self))


def _cdata(
    tx: Translator, tensor: TensorVariable, real: torch.Tensor | None
) -> VariableTracker:
    """Only whether it is that of another tensor is known."""
    guard_distinct(tx, tensor)
    return ImplVariable(tensor)


_COMPUTED = {
    "grad": _grad,
    "__class__": _class,
    "grad_fn": _grad_fn,
    "_base": _base,
    "_cdata": _cdata,
}


def tensor_getattr(tx: Translator, tensor: TensorVariable, name: str) -> VariableTracker:
    """Attributes beyond metadata: methods, `grad`, what the program stored on the tensor."""
    real = real_tensor(tx, tensor)
    computed = _COMPUTED.get(name)
    if computed is not None:
        return computed(tx, tensor, real)
    known = getattr(torch.Tensor, name, _MISSING)
    if real is not None and name in real.__dict__:
        return _stored_on_real(tx, tensor, real, name)
    if trace_rules.is_added_to_tensors(name) or is_value(known):
        found = class_lookup(tx, torch.Tensor, name)
        assert found is not None
        return bind(tx, found, tensor, torch.Tensor)
    if callable(known):
        return MethodOfVariable(tensor, name)
    if known is not _MISSING:
        unsupported("attribute", f"{tensor.describe()}.{name}", f"tensor.{name} is not traced")
    if real is not None:
        return _stored_on_real(tx, tensor, real, name)
    class_lookup(tx, torch.Tensor, name)  # which guards that there is none
    tx.raise_observed(AttributeError, f"'Tensor' object has no attribute '{name}'")


def _stored_on_real(
    tx: Translator, tensor: TensorVariable, real: torch.Tensor, name: str
) -> VariableTracker:
    assert tensor.source is not None
    tensor.know_dict(tx)
    if name in real.__dict__:
        return tx.wrap(real.__dict__[name], AttrSource(tensor.source, name))
    tx.guard(tensor.source, "LACKS_ATTR", name)
    kind = type(real).__name__
    tx.raise_observed(AttributeError, f"'{kind}' object has no attribute '{name}'")


TENSOR_GETATTR.append(tensor_getattr)


@tensor_method("new_tensor")
def new_tensor(
    tx: Translator,
    self: TensorVariable,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """`torch.tensor` of numbers with this tensor's dtype and device."""
    if len(args) != 1 or args[0].python_type() not in (list, tuple, int, float, bool):
        return NotImplemented
    given = dict(kwargs)
    given.setdefault("dtype", tx.wrap_constant(self.fake.dtype))
    given.setdefault("device", tx.wrap_constant(self.fake.device))
    return tx.call_function(tx.wrap_constant(torch.tensor), list(args), given)
