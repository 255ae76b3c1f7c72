"""Tensors of the graph: `TensorVariable`, an FX node with a fake value.

Metadata (shape, dtype, ...) is answered from the fake tensor while tracing; everything else becomes
a
node. Rows: `ATTRIBUTES` (name -> how the attribute is answered) and `METHODS_` by `tensor_method`.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import increment_version
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.immutable_collections import immutable_list
from torch.fx.node import Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .. import config, markers, trace_rules
from ..exc import RunInEager
from ..output_graph import example_value
from ..side_effects import DELETED, Mutation
from ..source import AttrSource, InstanceDictSource
from ..subgraphs import has_unknown_layout
from .base import ObservedException, VariableTracker, unsupported
from .constant import ConstantVariable, is_value
from .drawn_tensors import decided
from .identity import IdentityKey
from .number_tensors import known_number

if TYPE_CHECKING:
    from ..codegen import PyCodegen
    from ..output_graph import GraphInput
    from ..source import Source
    from ..symbolic_convert import Translator

TensorMethod = Callable[["Translator", "TensorVariable", list[Any], dict[str, Any]], Any]
TENSOR_METHODS: dict[str, TensorMethod] = {}

# Attributes read from the fake tensor and known while tracing.
METADATA = frozenset(
    name
    for name in "shape dtype device layout ndim requires_grad is_leaf is_sparse is_sparse_csr"
    " is_quantized is_cuda"
    " is_cpu is_mps is_xpu is_meta is_nested is_mkldnn is_mtia is_vulkan is_ipu"
    " is_xla is_maia itemsize"
    " nbytes name names _version output_nr is_inference retains_grad".split()
    if hasattr(torch.Tensor, name)  # names of dimensions are gone in newer torch
)
# Attributes that are operations of the graph.
GRAPH_ATTRIBUTES = frozenset("T mT H mH real imag data".split())
# Methods answered from the fake tensor: their results are constants.
METADATA_METHODS = frozenset(
    "size stride dim ndimension numel nelement element_size is_contiguous"
    " is_floating_point is_complex"
    " is_signed storage_offset get_device is_conj is_neg is_pinned is_inference"
    " dense_dim sparse_dim has_names".split()
)
_LAYOUT_METHODS = frozenset({"stride", "is_contiguous", "storage_offset"})


def tensor_method(*names: str) -> Callable[[TensorMethod], TensorMethod]:
    """Register what a tensor method does while tracing, where it is not simply a node."""

    def register(function: TensorMethod) -> TensorMethod:
        for name in names:
            assert name not in TENSOR_METHODS, f"tensor method {name} is registered twice"
            assert hasattr(torch.Tensor, name), name
            TENSOR_METHODS[name] = function
        return function

    return register


# Where a tensor of no dimensions is a position; uint8 is a mask.
_INDEX = {torch.int8, torch.int16, torch.int32, torch.int64}
# Attributes of torch's with two names.
_SAME = {"_grad": "grad"}


class TensorVariable(VariableTracker):
    """A tensor. `node` computes it; `fake` is its fake value, read afresh since in-place operations
    change it.
    """

    # Behind `x.data = y`: the fake of before, which stays its identity, and its graph input.
    anchor: torch.Tensor | None = None
    origin: Node | None = None
    # Of one of two objects: what decides, then the first, else the second.
    choice: list[VariableTracker] | None = None

    def __init__(self, node: Node, *, source: Source | None = None) -> None:
        super().__init__(source=source)
        self.node = node

    @property
    def fake(self) -> torch.Tensor:
        return example_value(self.node)

    def describe(self) -> str:
        return super().describe() or str(self.node)

    def python_type(self) -> type:
        return torch.nn.Parameter if isinstance(self.fake, torch.nn.Parameter) else torch.Tensor

    def as_proxy(self) -> Node:
        return self.node

    def identity(self) -> Any:
        return self.fake if self.anchor is None else self.anchor

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        name = _SAME.get(name, name)
        stored = tx.output.side_effects.load_attr(self, name)
        if isinstance(stored, VariableTracker):
            return stored
        if stored is DELETED:
            kind = self.python_type().__name__
            tx.raise_observed(AttributeError, f"'{kind}' object has no attribute '{name}'")
        if tx.output.overrides.has_modes and _is_computed(name):
            return TENSOR_ACCESS[0](tx, self, name, [], {})
        if name == "nbytes":
            return tx.wrap_constant(self.fake.numel() * self.fake.itemsize)
        if name in METADATA:
            if name == "_version":
                return _version(tx, self)
            if name == "output_nr":
                return _output_number(tx, self)
            if name == "is_leaf":
                return tx.wrap_constant(is_leaf(tx, self))
            if name == "retains_grad":
                return _retains_grad(tx, self)
            if name == "names":  # tensors that have some are not captured
                return tx.wrap_constant((None,) * self.fake.dim())
            return tx.wrap_constant(getattr(self.fake, name))
        if name in GRAPH_ATTRIBUTES:
            return tx.add_node("call_function", getattr, (self.node, name), {})
        if self.choice is not None and not hasattr(torch.Tensor, name):
            unsupported("choice of a tensor", f"{self.describe()}.{name}", "it depends on data")
        return tx.tensor_getattr(self, name)

    def setattr(self, tx: Translator, name: str, value: VariableTracker) -> None:
        """Attributes of the program's own are kept in the log; of torch's only
        `grad` can be set.
        """
        value = value.realize()
        name = _SAME.get(name, name)
        if tx.output.overrides.has_modes and hasattr(torch.Tensor, name):
            unsupported("function mode", f"{self.describe()}.{name} = ...", "a mode sees it")
        if name == "data":
            DATA_SETTER[0](tx, self, value)
            return
        if name == "grad":
            self._check_grad(value)
        elif name == "requires_grad" and self._has_flag(value):
            return
        elif _is_stored_by_torch(name):
            unsupported(
                "tensor attribute store",
                f"{self.describe()}.{name}",
                f"setting {name} changes the tensor itself",
            )
        else:
            self.know_dict(tx)
        tx.output.side_effects.store_attr(self, name, value)

    def dict_source(self) -> Source:
        assert self.source is not None
        return InstanceDictSource(self.source)

    def know_dict(self, tx: Translator) -> None:
        """Where the program's own attributes are used, the frame may reach their dict as well."""
        real = tx.output.side_effects.real_of(self)
        if self.source is not None and real is not None:
            tx.output.side_effects.know_dict(self, vars(real))

    def _has_flag(self, value: VariableTracker) -> bool:
        """Whether setting `requires_grad` to this leaves the tensor as it is."""
        if not (value.is_python_constant() and self.fake.is_leaf):
            return False  # the setter refuses any value where there is a gradient function
        flag = value.as_python_constant()
        return flag is self.fake.requires_grad and not (flag and self.fake._is_view())

    def _check_grad(self, value: VariableTracker) -> None:
        """What the setter demands."""
        if isinstance(value, TensorVariable):
            mine, other = self.fake, value.fake
            kinds = [(t.shape, t.dtype, t.device, t.layout) for t in (mine, other)]
            if kinds[0] == kinds[1]:
                return
        elif value.is_python_constant() and value.as_python_constant() is None:
            return
        unsupported(
            "tensor attribute store", f"{self.describe()}.grad", "eager will raise the error"
        )

    def delattr(self, tx: Translator, name: str) -> None:
        self.getattr(tx, name)
        if hasattr(torch.Tensor, name):
            unsupported(
                "tensor attribute delete", f"{self.describe()}.{name}", "it is torch's own"
            )
        self.know_dict(tx)
        real = tx.output.side_effects.real_of(self)
        existed = self.source is not None and name in vars(real)
        tx.output.side_effects.delete_attr(self, name, existed=existed)

    def call_method(
        self,
        tx: Translator,
        name: str,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        is_method = not trace_rules.is_added_to_tensors(name) and hasattr(torch.Tensor, name)
        if is_method and tx.is_overridden([*args, *kwargs.values()]):
            return TENSOR_ACCESS[0](tx, self, name, args, kwargs)
        handler = TENSOR_METHODS.get(name)
        if is_method and handler is not None:
            result = handler(tx, self, args, kwargs)
            if result is not NotImplemented:
                return result
        if is_method and name in METADATA_METHODS:
            return self._metadata_method(tx, name, args, kwargs)
        hidden = tx.output.side_effects.load_attr(self, name)
        if isinstance(hidden, VariableTracker) or not is_method:
            return self.getattr(tx, name).call(tx, args, kwargs)
        return self.node_method(tx, name, args, kwargs)

    def node_method(
        self, tx: Translator, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> VariableTracker:
        """`self.name(*args, **kwargs)` as a node of the graph."""
        if "from" in kwargs and not args:
            # A graph's code cannot write it as a name; wherever there is one, it comes first.
            args = [kwargs["from"]]
            kwargs = {key: value for key, value in kwargs.items() if key != "from"}
        proxies = tuple(tx.as_proxy(arg) for arg in args)
        named = {key: tx.as_proxy(value) for key, value in kwargs.items()}
        return tx.add_node("call_method", name, (self.node, *proxies), named)

    def _metadata_method(
        self, tx: Translator, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> VariableTracker:
        if name in _LAYOUT_METHODS and has_unknown_layout(tx.output.body, self.node):
            what = "the layout of a gradient is known when the backward pass runs"
            unsupported("autograd call", f"{self.describe()}.{name}()", what)
        values = [arg.as_python_constant() for arg in args]
        named = {key: arg.as_python_constant() for key, arg in kwargs.items()}
        return tx.fold(lambda *a, **k: getattr(self.fake, name)(*a, **k), tuple(values), named)

    def getitem(self, tx: Translator, key: VariableTracker) -> VariableTracker:
        if tx.output.overrides.has_modes:
            return self.call_method(tx, "__getitem__", [key], {})
        return self.part(tx, subscript_proxy(tx, key))

    def part(self, tx: Translator, proxy: Any) -> VariableTracker:
        """The part at a subscript, as a node takes it."""
        if not tx.output.shapes.is_empty:
            selected = self._select(tx, proxy)
            if selected is not None:
                return selected
        return tx.add_node("call_function", operator.getitem, (self.node, proxy), {})

    def _select(self, tx: Translator, key: Any) -> VariableTracker | None:
        """A subscript with symbolic ints, by `select`: torch's own subscript makes them constants.
        None for other subscripts.
        """
        parts = key if isinstance(key, tuple) else (key,)
        if not any(_is_symbolic(part) for part in parts):
            return None
        plain = (int, slice, type(None), type(Ellipsis))
        if any(
            isinstance(p, bool) or not (isinstance(p, plain) or _is_symbolic(p)) for p in parts
        ):
            return None
        kept = [slice(None) if _is_symbolic(part) else part for part in parts]
        result = tx.add_node("call_function", operator.getitem, (self.node, tuple(kept)), {})
        after = self.fake.dim() - sum(p is not None and p is not Ellipsis for p in parts)
        at, dims = 0, []
        for part in parts:
            if _is_symbolic(part):
                dims.append((at, part))
            at += after if part is Ellipsis else not isinstance(part, int)
        for dim, index in reversed(dims):
            args = (result.as_proxy(), dim, index)
            result = tx.add_node("call_function", torch.select, args, {})
        return result

    def length(self, tx: Translator) -> VariableTracker:
        if tx.output.overrides.has_modes:
            return self.call_method(tx, "__len__", [], {})
        if not self.fake.dim():
            return tx.fold(len, (self.fake,), {})
        return tx.wrap_constant(self.fake.shape[0])

    def iter(self, tx: Translator) -> VariableTracker:
        if tx.output.overrides.has_modes:
            return self.call_method(tx, "__iter__", [], {})
        return tx.sequence_iterator(self.unpack(tx))

    def unpack(self, tx: Translator) -> list[VariableTracker]:
        if tx.output.overrides.has_modes:
            return self.iter(tx).unpack(tx)
        if self.fake.dim() == 0:
            error = TypeError("iteration over a 0-d tensor")
            raise ObservedException(tx.wrap_exception(error))
        items = tx.add_node("call_method", "unbind", (self.node, 0), {}).unpack(tx)
        if items and type(self) is TensorVariable and self.fake.layout is torch.strided:
            items[0].as_proxy().args[0].meta["is_iteration"] = True
        return items

    def truth(self, tx: Translator) -> bool:
        known = decided(self.node) if self.fake.numel() == 1 else None
        if known is not None and not tx.output.overrides.has_modes:
            return known
        unsupported(
            "data-dependent branch",
            f"bool({self.describe()})",
            "the branch depends on a tensor's data, which is not known while tracing",
            ["use torch.where or torch.cond to keep the choice inside the graph"],
        )

    def hash_key(self, tx: Translator) -> Any:
        return IdentityKey(id(self.identity()))

    def reconstruct(self, codegen: PyCodegen) -> None:
        if self.choice is None:
            if codegen.side_effects.picked and self.fake.layout is torch.strided:
                codegen.side_effects.check_view(self.fake.untyped_storage()._cdata)
            codegen.graph_output(self.node)
        else:
            codegen.begin_call(_pick)
            codegen.sequence(self.choice)
            codegen.end_call(3)
        stored = codegen.side_effects.stored_attrs(self)
        if stored:
            codegen.save_temp(self)
        for name, value in stored.items():
            if isinstance(value, VariableTracker):
                codegen(value)
                self.apply_setattr(codegen, name)


def _pick(test: Any, first: Any, second: Any) -> Any:
    return first if test else second


def _version(tx: Translator, tensor: TensorVariable) -> VariableTracker:
    """How often it was written to: what an input counts as the frame starts, and the writes of the
    graph. `x.data` counts for itself, its fake together with that of `x`.
    """
    if any(node.target is getattr and "data" in node.args for node in tx.output.graph.nodes):
        unsupported("attribute", f"{tensor.describe()}._version", "behind a use of x.data")
    fake = tensor.fake
    given = next(
        (i for i in tx.output.inputs if _count_together(example_value(i.node), fake)), None
    )
    if given is None:
        return tx.wrap_constant(fake._version)
    source = AttrSource(given.source, "_version")
    before = tx.wrap_number(
        tx.output.shapes.computed_number(given.value._version, source, tx.user_stack())
    )
    return tx.call_operator(operator.add, [before, ConstantVariable(given.writes)])


def _output_number(tx: Translator, tensor: TensorVariable) -> VariableTracker:
    """The fake of an input has no history."""
    given = next((item for item in tx.output.inputs if item.node is tensor.node), None)
    if given is None or given.writes:
        return tx.wrap_constant(tensor.fake.output_nr)
    return tx.wrap(given.value.output_nr, AttrSource(given.source, "output_nr"))


def _retains_grad(tx: Translator, tensor: TensorVariable) -> VariableTracker:
    """`retain_grad()` is eager's: what the graph makes does not keep its gradient."""
    given = given_as(tx, tensor.fake)
    if given is None or not given.value.requires_grad:
        return ConstantVariable(False)
    return tx.wrap(given.value.retains_grad, AttrSource(given.source, "retains_grad"))


def is_leaf(tx: Translator, tensor: TensorVariable) -> bool:
    """Whether autograd knows of no operation that made it. What requires grad may be either,
    which no other guard looks at.
    """
    given = given_as(tx, tensor.fake)
    if given is not None and given.value.requires_grad:
        tx.wrap(given.value.is_leaf, AttrSource(given.source, "is_leaf")).realize()
    return tensor.fake.is_leaf


def given_as(tx: Translator, fake: torch.Tensor) -> GraphInput | None:
    """The graph input that `fake` stands for: operations may return what they are given."""
    return next((i for i in tx.output.inputs if example_value(i.node) is fake), None)


def _count_together(first: Any, second: torch.Tensor) -> bool:
    """Whether a write to one is one to the other: views and detached tensors share the counter."""
    if not isinstance(first, torch.Tensor) or first.is_inference() or second.is_inference():
        return first is second
    before, others = first._version, second._version
    increment_version(first)
    together = second._version != others
    torch._C._autograd._unsafe_set_version_counter((first,), (before,))
    return together


def _is_computed(name: str) -> bool:
    """Whether it is an attribute of torch's own, no method."""
    found = getattr(torch.Tensor, name, None)
    return isinstance(found, (types.GetSetDescriptorType, property))


def _is_stored_by_torch(name: str) -> bool:
    """Whether the class has a data descriptor of that name; a method is only hidden."""
    return hasattr(type(getattr(torch.Tensor, name, None)), "__set__")


def subscript_proxy(tx: Translator, key: VariableTracker) -> Any:
    """What a node takes as a subscript: tensors used as numbers are numbers, where known."""
    key = key.realize().as_index
    if key.python_type() is tuple and not key.is_python_constant():
        key = tx.wrap_items(tuple, [item.realize().as_index for item in key.unpack(tx)])
    proxy = tx.as_proxy(key)
    if isinstance(proxy, tuple):
        return tuple(_with_numbers(tx, part) for part in proxy)
    return _with_numbers(tx, proxy)


def _with_numbers(tx: Translator, part: Any) -> Any:
    if isinstance(part, slice):
        return slice(*(_bound(tx, end) for end in (part.start, part.stop, part.step)))
    if not isinstance(part, Node) or getattr(example_value(part), "dtype", None) not in _INDEX:
        return part
    number = known_number(tx, part)
    return part if number is None else tx.as_proxy(number)


def _bound(tx: Translator, end: Any) -> Any:
    """An end of a slice: operators ask a tensor that is one for its number."""
    end = _with_numbers(tx, end)
    if not isinstance(end, Node) or getattr(example_value(end), "dtype", None) not in _INDEX:
        return end
    if example_value(end).numel() != 1:
        return end
    if not (tx.output.options.fullgraph or config.capture_scalar_outputs):
        return end
    return tx.as_proxy(tx.add_node("call_method", "item", (end,), {}))


def has_bounds_of_data(key: Any) -> bool:
    """Whether the subscript of a node is of slices, ints and the like, with slices whose ends
    depend on data.
    """
    parts = key if isinstance(key, tuple) else (key,)
    plain = (int, slice, type(None), type(Ellipsis))
    if not all(isinstance(p, plain) or _is_symbolic(p) for p in parts):
        return False
    if any(isinstance(part, bool) for part in parts):
        return False
    ends = [
        e for p in parts if isinstance(p, slice) for e in (p.start, p.stop) if _is_symbolic(e)
    ]
    return any(free_unbacked_symbols(example_value(end)) for end in ends)


def _is_symbolic(part: Any) -> bool:
    return isinstance(part, Node) and isinstance(example_value(part), torch.SymInt)


def wrap_node(tx: Translator, node: Node) -> VariableTracker:
    """The value of a new node, by the type of its fake value (tensor, constant,
    or nest of them).
    """
    value = example_value(node)
    if isinstance(value, torch.Tensor):
        known = tx.output.side_effects.variable_of(value)
        if known is not None:
            return known
        return new_variable(tx, node)
    if is_value(value):
        return ConstantVariable(value)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return tx.wrap_number(value, node=node)
    if isinstance(value, (tuple, list)):
        return _wrap_sequence(tx, node, value)
    unsupported(
        "graph value",
        f"{node}: {type(value).__name__}",
        "the operation's result is not a tensor",
    )


def new_variable(tx: Translator, node: Node) -> TensorVariable:
    """The value of a tensor that has none yet."""
    value = example_value(node)
    kind = TensorVariable if type(value) in _FAKE else TENSOR_CLASS[0](value)
    variable = kind(node)
    tx.output.shapes.has_nested |= value.layout is torch.jagged
    tx.output.side_effects.track(value, variable)
    return variable


def _wrap_sequence(tx: Translator, node: Node, value: Any) -> VariableTracker:
    items: list[VariableTracker] = []
    for index, item in enumerate(value):
        if is_value(item):
            items.append(ConstantVariable(item))
            continue
        child = tx.output.graph.create_node(
            "call_function", operator.getitem, (node, index), {}
        )
        child.meta["example_value"] = item
        items.append(wrap_node(tx, child))
    # A list of arguments, as nodes keep them, that the operation gives back.
    kind = list if type(value) is immutable_list else type(value)
    return tx.wrap_items(kind, items)


def _refuse_kinds(value: torch.Tensor, source: Source) -> None:
    if value.layout is torch.jagged and is_traceable_wrapper_subclass(value):
        return
    if value.layout is not torch.strided or value.is_nested or value.is_quantized:
        unsupported(
            "tensor kind", f"{source.name}: {value.layout}", "only strided tensors are captured"
        )
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        unsupported("tensor kind", source.name, "it belongs to a transform of torch.func")
    base = value._base
    if base is not None and base.layout is not torch.strided:
        unsupported("tensor kind", f"{source.name}: a view", "it is a part of a sparse tensor")
    if base is not None and base.is_inference() != value.is_inference():
        unsupported("tensor kind", f"{source.name}: a view", "its data is not that of its base")
    try:
        is_leaf = value.is_leaf
    except RuntimeError as error:  # a view that autograd refuses since its base was written
        raise RunInEager(f"{source.name}: {error}") from None
    if is_leaf and value.grad is not None and value.grad.shape != value.shape:
        # FSDP's are, until they are reduced. Fake tensors have gradients, too.
        raise RunInEager(f"{source.name} has a gradient of another size")


def _refuse_late_view(tx: Translator, value: torch.Tensor, source: Source) -> None:
    base = value._base
    if base is None or value.requires_grad:
        return
    for item in tx.output.inputs:
        other = item.value
        shared = isinstance(other, torch.Tensor) and (other is base or other._base is base)
        if shared and not other.requires_grad and example_value(item.node).requires_grad:
            # The fake of the base has a history that the tensor does not have yet.
            unsupported(
                "tensor kind", f"{source.name}: a view", "what it shows was given a gradient"
            )


def wrap_tensor(tx: Translator, value: torch.Tensor, source: Source) -> VariableTracker:
    """A tensor of the frame as graph input, with its guard."""
    with torch._C.DisableTorchFunctionSubclass():  # the program's own would see these reads
        _refuse_kinds(value, source)
    if isinstance(value, torch.nn.parameter.UninitializedTensorMixin):
        unsupported(
            "tensor kind",
            f"{source.name}: {type(value).__name__}",
            "a lazy module makes its parameters in the first call, which runs in eager",
        )
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return SUBCLASS_WRAPPER[0](tx, value, source)
    if markers.is_address_guarded(value):
        tx.guard(source, "ID_IS", value)
    _refuse_late_view(tx, value, source)
    static = tx.output.shapes.is_static(value, source)
    context = tx.output.shapes.tensor_context(value, source, static=static)
    if context is None:
        tx.guard(source, "TENSOR_MATCH", value)
    node = tx.output.add_input(value, source, context, tx.user_stack() if context else ())
    variable = TensorVariable(node, source=source)
    variable.mutation = Mutation.EXISTING
    tx.output.side_effects.track(example_value(node), variable)
    return variable


_FAKE = (FakeTensor, torch.nn.Parameter)
# The variable class for a tensor of another class; filled where wrapper tensors are.
TENSOR_CLASS: list[Callable[[torch.Tensor], type[TensorVariable]]] = []
# A method or an attribute under torch function modes; filled where these are.
TENSOR_ACCESS: list[Callable[..., VariableTracker]] = []
# `tensor.data = value`; filled where that is done.
DATA_SETTER: list[Callable[..., None]] = []
# How instances of subclasses are wrapped; filled where these are.
SUBCLASS_WRAPPER: list[Callable[..., VariableTracker]] = []
