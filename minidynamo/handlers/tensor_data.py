"""`tensor.data = other`: the tensor gets other memory and keeps what autograd knows of it.

Later operations of the graph use the new data; the real tensor is told after the graph. A leaf that
requires grad is from then on two inputs of the graph: its memory, and the leaf to which `with_data`
gives the gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx.node import Node

from ..output_graph import OutputGraph
from ..source import AttrSource
from ..variables.base import VariableTracker, unsupported
from ..variables.tensor import DATA_SETTER, TensorVariable, is_leaf

if TYPE_CHECKING:
    from ..symbolic_convert import Translator


class _WithData(torch.autograd.Function):
    """The data, with the gradient of the leaf."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
        return data.view_as(data)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return grad, None


def with_data(leaf: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """A node of the graph: what a leaf is after `leaf.data = data`."""
    return _WithData.apply(leaf, data)  # type: ignore[no-untyped-call, no-any-return]


class ReplacedLeaf(TensorVariable):
    """A leaf that requires grad and was given other data, which is the node `data`."""

    output: OutputGraph
    leaf: Node
    data: Node
    tracked: Node | None = None

    @property
    def node(self) -> Node:  # type: ignore[override]
        if not torch.is_grad_enabled():
            return self.data
        if self.tracked is None or self.tracked._erased:
            args = (self.leaf, self.data)
            self.tracked = self.output.create_node("call_function", with_data, args, {}, ())
        return self.tracked

    @property
    def fake(self) -> torch.Tensor:
        assert self.anchor is not None
        return self.anchor

    def getattr(self, tx: Translator, name: str) -> VariableTracker:
        if name != "data":
            return super().getattr(tx, name)
        return tx.add_node("call_method", "detach", (self.data,), {})


def _why_not(tx: Translator, tensor: TensorVariable, data: VariableTracker) -> str | None:
    if not isinstance(data, TensorVariable) or type(tensor) not in (
        TensorVariable,
        ReplacedLeaf,
    ):
        return "only plain tensors are given other data"
    old, new = tensor.fake, data.fake
    if type(data) not in (TensorVariable, ReplacedLeaf) or tx.output.body is not None:
        return "it happens in the body of an operator, or the data is no plain tensor"
    is_inference = torch.is_inference_mode_enabled() or old.is_inference() or new.is_inference()
    if tx.output.transform_levels or is_inference:
        return "it happens in a transform or to tensors of inference mode"
    if (old.dtype, old.device, old.layout) != (new.dtype, new.device, new.layout):
        return "the data has another dtype, device or layout"
    if tensor.source is None and (old.requires_grad or tensor.node.op == "placeholder"):
        return "the graph made the tensor, and it requires grad"
    if old.requires_grad and (not is_leaf(tx, tensor) or old._base is not None):
        return "it is no leaf"
    if old.requires_grad and (old.shape, old.stride()) != (new.shape, new.stride()):
        return "the gradient would have another shape"
    uses = tensor.node.users if isinstance(tensor, ReplacedLeaf) else _users(tensor)
    if any(_is_differentiated(node) for node in uses):
        return "the backward pass of what was computed before would see the new data"
    return None


def _users(tensor: TensorVariable) -> list[Node]:
    return [] if tensor.source is None else list(tensor.node.users)


def _is_differentiated(node: Node) -> bool:
    value = node.meta.get("example_value")
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(part, torch.Tensor) and part.requires_grad for part in parts)


def _is_its_own(tensor: TensorVariable, value: VariableTracker) -> bool:
    """Whether a tensor is given the memory that it has (`x.data *= 2` ends so)."""
    kinds = (TensorVariable, ReplacedLeaf)
    if (
        type(tensor) not in kinds
        or type(value) not in kinds
        or torch.is_inference_mode_enabled()
    ):
        return False
    assert isinstance(tensor, TensorVariable) and isinstance(value, TensorVariable)
    old, new = map(_memory_of, (tensor, value))
    return old is not None and old == new


def _memory_of(tensor: TensorVariable) -> Any:
    node = tensor.data if isinstance(tensor, ReplacedLeaf) else tensor.node
    fake = node.meta["example_value"]
    if fake.layout is not torch.strided or fake.is_inference():
        return None
    place = fake.untyped_storage()._cdata, fake.storage_offset()
    return *place, fake.shape, fake.stride(), fake.dtype, fake.is_conj(), fake.is_neg()


def set_data(tx: Translator, tensor: TensorVariable, value: VariableTracker) -> None:
    """`tensor.data = value`."""
    if _is_its_own(tensor, value):
        return
    why = _why_not(tx, tensor, value)
    if why is not None:
        unsupported("tensor attribute store", f"{tensor.describe()}.data", why)
    assert isinstance(value, TensorVariable)
    effects, anchor, real = tx.output.side_effects, tensor.fake, None
    source = value.data if isinstance(value, ReplacedLeaf) else value.node
    new = tx.add_node("call_method", "detach", (source,), {})
    assert isinstance(new, TensorVariable)
    if tensor.source is not None:
        real = effects.real_of(tensor)
        effects.store_attr(tensor, "data", TensorVariable(new.node))
    effects.note()
    if tensor.anchor is None and tensor.source is not None:
        tensor.origin = tensor.node
        _take_memory_only(tx, tensor)
    tensor.anchor = tensor.anchor if tensor.anchor is not None else anchor
    if isinstance(tensor, ReplacedLeaf):
        tensor.data, tensor.tracked = new.node, None
    else:
        tensor.node = new.node
    effects.track(new.fake, tensor)
    if real is not None:
        effects.track(real, tensor)


def _take_memory_only(tx: Translator, tensor: TensorVariable) -> None:
    """The graph is given `tensor.data` from now on: another tensor object with the memory, which
    does not change when the real tensor gets its new data.
    """
    assert tensor.source is not None
    output, fake = tx.output, tensor.fake
    (item,) = (item for item in output.inputs if item.node is tensor.node)
    real, item.value = item.value, item.value.detach()
    item.source = AttrSource(item.source, "data")
    if not fake.requires_grad:
        return
    with output.fake_mode:
        item.node.meta["example_value"] = fake.detach()
    node = tensor.node
    del tensor.node
    tensor.__class__ = ReplacedLeaf
    assert isinstance(tensor, ReplacedLeaf)
    tensor.output, tensor.data = output, node
    tensor.leaf = output.add_input(real, tensor.source)


DATA_SETTER.append(set_data)
