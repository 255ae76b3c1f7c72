"""Backward passes as operations of the graph, where config.trace_autograd_ops is on; otherwise
they break the graph, and eager runs them.

`torch.autograd.grad` is a node, `backward()` is one with what accumulates the gradients behind it.
The history that the pass walks has to be one of the graph: a pass that goes on behind an input, or
calls hooks, breaks the graph; and so does a pass whose history a result of the graph would need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from .. import config
from ..captured_backward import history, is_of_leaf
from ..guards import Predicate
from ..output_graph import example_value
from ..variables.base import VariableTracker, unsupported
from ..variables.builtin_object import NONE, is_none
from ..variables.constant import ConstantVariable
from ..variables.contexts import without_gradients
from ..variables.registry import handles
from ..variables.tensor import TensorVariable, tensor_method

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Values = list[VariableTracker]
Kwargs = dict[str, VariableTracker]

BY_EAGER = "the backward pass is run by eager"
_HINTS = ["config.trace_autograd_ops = True captures it"]
_FLAGS = ("retain_graph", "create_graph", "allow_unused", "materialize_grads")


def _refuse(
    context: str,
    why: str,
) -> NoReturn:
    unsupported("autograd call", context, why)


def is_captured(tx: Translator) -> bool:
    """Whether a pass, or `requires_grad_` for one, may become part of the graph here."""
    output = tx.output
    return config.trace_autograd_ops and output.body is None and not output.transform_levels


def _tensors(
    tx: Translator,
    value: VariableTracker | None,
    what: str,
) -> list[TensorVariable]:
    value = NONE if value is None else value.realize()
    items = [value] if isinstance(value, TensorVariable) else value.unpack(tx)
    found = [
        item for item in (item.realize() for item in items) if type(item) is TensorVariable
    ]
    if not found or len(found) != len(items):
        _refuse(what, "it takes other values than plain tensors")
    return found


def _flag(
    value: VariableTracker | None,
    otherwise: bool,
) -> bool:
    if value is None or is_none(value.realize()):
        return otherwise
    if not value.is_python_constant():
        _refuse("a flag", "it is no constant")
    return bool(value.as_python_constant())


def _has_hooks(tensor: torch.Tensor) -> bool:
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


def _has_none(tensor: torch.Tensor) -> bool:
    return not _has_hooks(tensor)


def _check_inputs(
    tx: Translator,
    nodes: list[Any],
    wanted: list[TensorVariable],
) -> None:
    """A pass over `nodes` must end at leaves, not go on behind an input, and call no hooks."""
    walked = set(nodes)
    ends = {id(node.variable) for node in nodes if is_of_leaf(node)}
    asked = {id(value.fake) for value in wanted}
    for item in tx.output.inputs:
        fake = example_value(item.node)
        if not isinstance(fake, torch.Tensor) or not fake.requires_grad:
            continue
        if fake.grad_fn is not None and fake.grad_fn in walked and id(fake) not in asked:
            _refuse(item.source.name, "its gradient goes on outside of the frame")
        if id(fake) in ends or id(fake) in asked:
            if _has_hooks(item.value):
                _refuse(item.source.name, "it has hooks, which eager calls")
            tx.guard(item.source, "PREDICATE", Predicate(_has_none, "it has no hooks"))
    # Results of operators with graphs of their own have gradients and no history.
    known = {id(example_value(item.node)) for item in tx.output.inputs}
    known |= {id(example_value(item.node)) for item in tx.output.made}
    known |= {id(leaf) for leaf, _ in tx.output.captured_backward.leaves}
    if not ends | {id(v.fake) for v in wanted if v.fake.grad_fn is None} <= known:
        _refuse("a captured backward pass", "what leads to a tensor is not known")


def _grad(
    tx: Translator,
    outputs: list[TensorVariable],
    inputs: list[TensorVariable],
    given: VariableTracker,
    flags: dict[str, bool],
) -> VariableTracker:
    """The node; the history is walked on the fake tensors first."""
    for value in (*outputs, *inputs):
        if not value.fake.requires_grad:
            _refuse(value.describe(), "eager raises the error: it has no gradient")
    stops = [value.fake.grad_fn for value in inputs if value.fake.grad_fn is not None]
    nodes = history([value.fake.grad_fn for value in outputs], stops)
    ends = [value for value in outputs if value.fake.grad_fn is None]
    _check_inputs(tx, nodes, [*inputs, *ends])
    passes = tx.output.captured_backward
    freed = [node for node in nodes if not is_of_leaf(node)]
    if any(node in passes.freed for node in freed):
        _refuse("torch.autograd.grad", "eager raises the error: the graph was freed before")
    if not (flags["retain_graph"] or flags["create_graph"]):
        passes.freed.update(dict.fromkeys(freed, tx.last_step()))
    args = [tx.wrap_items(tuple, items) for items in (outputs, inputs)]
    named: Kwargs = {name: ConstantVariable(value) for name, value in flags.items()}
    return tx.call_operation(torch.autograd.grad, [*args, given], named)


_GRAD = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph")


def captured_grad(
    tx: Translator,
    args: Values,
    kwargs: Kwargs,
) -> VariableTracker:
    """`torch.autograd.grad` on tensors of the graph."""
    bound = dict(zip(_GRAD, args, strict=False)) | kwargs
    if len(args) > len(_GRAD) or not bound.keys() <= {*_GRAD, *_FLAGS}:
        _refuse("torch.autograd.grad", "it takes more than tensors and flags")
    outputs = _tensors(tx, bound.get("outputs"), "torch.autograd.grad")
    inputs = _tensors(tx, bound.get("inputs"), "torch.autograd.grad")
    flags = {name: _flag(bound.get(name), False) for name in _FLAGS}
    flags["retain_graph"] = _flag(bound.get("retain_graph"), flags["create_graph"])
    return _grad(tx, outputs, inputs, bound.get("grad_outputs", NONE), flags)


def _reached(
    tx: Translator,
    outputs: list[TensorVariable],
) -> list[TensorVariable]:
    """The leaves that a pass from `outputs` gives gradients to."""
    nodes = history([value.fake.grad_fn for value in outputs])
    found = [value for value in outputs if value.fake.grad_fn is None]
    _check_inputs(tx, nodes, found)
    for node in nodes:
        value = tx.output.side_effects.variable_of(node.variable) if is_of_leaf(node) else None
        if isinstance(value, TensorVariable):
            found.append(value)
    return found


def _accumulate(
    tx: Translator,
    leaf: TensorVariable,
    gradient: VariableTracker,
) -> None:
    """As torch's accumulateGrad: a gradient has the strides of its tensor."""
    made = tx.call_operation(torch.empty_like, [leaf], {})
    made = made.realize().call_method(tx, "copy_", [gradient], {})
    before = leaf.getattr(tx, "grad").realize()
    if is_none(before):
        leaf.setattr(tx, "grad", made)
    else:
        before.call_method(tx, "add_", [made], {})


def _backward(
    tx: Translator,
    outputs: list[TensorVariable],
    given: VariableTracker,
    flags: dict[str, VariableTracker],
    inputs: VariableTracker | None,
) -> VariableTracker:
    creates = _flag(flags.get("create_graph"), False)
    if creates:
        _refuse("backward(create_graph=True)", BY_EAGER)
    if not any(value.fake.requires_grad for value in outputs):
        _refuse("backward", "eager raises the error: nothing has a gradient")
    is_told = inputs is not None and not is_none(inputs.realize())
    leaves = _tensors(tx, inputs, "backward") if is_told else _reached(tx, outputs)
    leaves = list({id(leaf.fake): leaf for leaf in leaves}.values())
    if not all(leaf.fake.is_leaf for leaf in leaves):
        _refuse("backward", "it is asked for gradients of other tensors than leaves")
    if not leaves:
        return NONE
    named = {
        "retain_graph": _flag(flags.get("retain_graph"), False),
        "create_graph": False,
        "allow_unused": False,
        "materialize_grads": False,
    }
    gradients = _grad(tx, outputs, leaves, given, named).unpack(tx)
    with without_gradients(tx):
        for leaf, gradient in zip(leaves, gradients, strict=True):
            _accumulate(tx, leaf, gradient.realize())
    return NONE


_METHOD = ("gradient", "retain_graph", "create_graph", "inputs")


@tensor_method("backward")
def tensor_backward(
    tx: Translator,
    self: TensorVariable,
    args: Values,
    kwargs: Kwargs,
) -> VariableTracker:
    bound = dict(zip(_METHOD, args, strict=False)) | kwargs
    if not is_captured(tx) or type(self) is not TensorVariable:
        unsupported("autograd call", f"{self.describe()}.backward()", BY_EAGER, _HINTS)
    if len(args) > len(_METHOD) or not bound.keys() <= set(_METHOD):
        _refuse("backward", "eager raises the error")
    return _backward(tx, [self], bound.get("gradient", NONE), bound, bound.get("inputs"))


_FUNCTION = (
    "tensors",
    "grad_tensors",
    "retain_graph",
    "create_graph",
    "grad_variables",
    "inputs",
)


@handles(torch.autograd.backward)
def autograd_backward(
    tx: Translator,
    args: Values,
    kwargs: Kwargs,
) -> VariableTracker:
    bound = dict(zip(_FUNCTION, args, strict=False)) | kwargs
    if not is_captured(tx):
        unsupported("autograd call", "torch.autograd.backward", BY_EAGER, _HINTS)
    if len(args) > len(_FUNCTION) or not bound.keys() <= {*_FUNCTION} - {"grad_variables"}:
        _refuse("torch.autograd.backward", "it takes more than tensors and flags")
    outputs = _tensors(tx, bound.get("tensors"), "torch.autograd.backward")
    given = bound.get("grad_tensors", NONE).realize()
    return _backward(tx, outputs, given, bound, bound.get("inputs"))


def new_leaf(
    tx: Translator,
    tensor: TensorVariable,
) -> bool:
    """Whether `requires_grad_()` may make a leaf of a tensor that the graph has made."""
    fake = tensor.fake
    is_plain = fake.is_leaf and not fake.requires_grad and not fake._is_view()
    is_plain = is_plain and (fake.dtype.is_floating_point or fake.dtype.is_complex)
    if not is_plain or tensor.source is not None or not is_captured(tx):
        return False
    tx.output.captured_backward.leaves.append((fake, tx.last_step()))
    return True
