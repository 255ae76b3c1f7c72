"""`nn.Parameter` and `nn.Buffer` made by the traced code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._functorch.eager_transforms import enable_inplace_requires_grad

from ..new_parameters import NewParameter, fill, is_alone
from ..source import ConstSource
from ..symbolic_contexts import TorchSource
from ..variables.base import VariableTracker, unsupported
from ..variables.constant import ConstantVariable
from ..variables.registry import handles
from ..variables.tensor import TensorVariable
from ..variables.transforms import OpenLevel

if TYPE_CHECKING:
    from ..output_graph import GraphInput, OutputGraph
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


def _refuse(why: str) -> Any:
    unsupported(
        "new parameter",
        "nn.Parameter(...)",
        why,
        ["make the parameter outside of the compiled function"],
    )


def _given(tx: Translator, args: Args, kwargs: Kwargs, names: tuple[str, str]) -> Args:
    """The data, which is an empty tensor if there is none, and the flag behind it."""
    values = dict(zip(names, args, strict=False)) | kwargs
    if len(args) > 2 or not set(values) <= set(names):
        _refuse("eager will raise the error")
    data = values.get(names[0], ConstantVariable(None)).realize()
    if data.is_python_constant() and data.as_python_constant() is None:
        data = tx.call_function(tx.wrap_constant(torch.empty), [ConstantVariable(0)], {})
    flag = values.get(names[1], ConstantVariable(True)).realize()
    if type(data) is not TensorVariable or not isinstance(flag, ConstantVariable):
        _refuse("only tensors and constants are given to it")
    return [data, flag]


def _why_not(tx: Translator, data: TensorVariable, requires_grad: Any) -> str | None:
    """What keeps a parameter with this data from being made by the graph."""
    output, fake = tx.output, data.fake
    if output.body is not None or not _levels_let_through(tx, data):
        return "it is made in the body of an operator or a transform"
    if fake.is_inference() or torch.is_inference_mode_enabled():
        return "its data is of inference mode"
    if data.python_type() not in (torch.Tensor, torch.nn.Parameter):
        return "its data is of a subclass"
    if fake.layout is not torch.strided or fake.is_quantized or fake.is_conj() or fake.is_neg():
        return "its data is no plain tensor"
    if not all(type(size) is int for size in fake.shape):
        return "its size is symbolic"
    if not isinstance(requires_grad, bool):
        return "requires_grad is no bool"
    if requires_grad and not (fake.is_floating_point() or fake.is_complex()):
        return "eager will raise the error"
    return None if _input(tx, data) else _why_not_filled(output, fake, data)


def _levels_let_through(tx: Translator, data: TensorVariable) -> bool:
    """Whether the open transforms hand on a parameter that was made in front of them.

    vmap leaves alone what has no batch dimension, as the graph's inputs have none; other
    transforms wrap what is made inside of them.
    """
    if not tx.output.transform_levels:
        return True
    levels = [context for context in tx.output.open_contexts if isinstance(context, OpenLevel)]
    return all(level.kind.name == "vmap" for level in levels) and _input(tx, data) is not None


def _input(tx: Translator, data: TensorVariable) -> GraphInput | None:
    """The input of the graph that `data` is."""
    if data.node.op != "placeholder":
        return None
    return next((item for item in tx.output.inputs if item.node is data.node), None)


def _why_not_filled(
    output: OutputGraph, fake: torch.Tensor, data: TensorVariable
) -> str | None:
    """What keeps `fill` from giving a parameter the values of `data`, which the graph makes."""
    if fake.requires_grad or data.node.op == "placeholder":
        return "its data requires grad"
    size = fake.numel() * fake.itemsize
    if not fake.is_contiguous() or fake.untyped_storage().nbytes() != size:
        return "its data is not contiguous or a part of more"
    if not is_alone(output.graph, fake):
        return "its data is a view, or has views"
    return None


@handles(torch.nn.Parameter)
def make_parameter(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """An input that is made anew in each call; its data becomes a view of it."""
    data, flag = _given(tx, args, kwargs, ("data", "requires_grad"))
    assert isinstance(data, TensorVariable)
    requires_grad = flag.as_python_constant()
    why = _why_not(tx, data, requires_grad)
    if why is not None:
        _refuse(why)
    output, fake = tx.output, data.fake
    # Inside of a transform no fake tensor could be told to require grad.
    with output.fake_mode, enable_inplace_requires_grad(True):
        value = torch.nn.Parameter(fake, requires_grad)
    name = f"new_parameter_{len(output.made)}"
    node = output.graph.placeholder(name)
    node.meta["example_value"] = value
    given = _input(tx, data)
    base = None if given is None else given.node
    new = NewParameter(node, base, tuple(fake.shape), fake.dtype, fake.device, requires_grad)
    new.example = new.make(None if given is None else given.value)
    source = TorchSource(ConstSource(name))
    with enable_inplace_requires_grad(True):
        new.fake = output.fake_mode.from_tensor(new.example, static_shapes=True, source=source)
    output.made.append(new)
    if base is None:
        data.node = output.add_known_node(fill, (node, data.node), {}, fake, tx.user_stack())
    else:
        output.needed.add(base)
    output.side_effects.version += 1
    output.side_effects.lasting += 1
    return output.side_effects.track(value, TensorVariable(node))


@handles(torch.nn.Buffer)
def make_buffer(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """A detached tensor with two attributes."""
    data, flag = _given(tx, args, kwargs, ("data", "persistent"))
    assert isinstance(data, TensorVariable)
    if data.fake.requires_grad or data.python_type() is not torch.Tensor:
        _refuse("its data requires grad")
    buffer = tx.add_node("call_method", "detach", (data.node,), {})
    assert isinstance(buffer, TensorVariable)
    buffer.fake._is_buffer = True  # type: ignore[attr-defined]
    for name, value in (("persistent", flag), ("_is_buffer", ConstantVariable(True))):
        tx.output.side_effects.store_attr(buffer, name, value)
    return buffer
