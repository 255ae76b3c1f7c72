"""`torch.func`: its Python code is traced; here is what its C functions do while tracing.

Opening and closing a level (`variables/transforms.py`) are state nodes; wrapping a tensor for a
level, or unwrapping it, is an operation of the graph on what the fake tensors are at that moment.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _functorch as C
from torch._functorch import apis, eager_transforms, predispatch
from torch.fx.node import Node, map_arg

from .. import markers
from ..exc import Unsupported
from ..output_graph import example_value
from ..variables.base import VariableTracker, unsupported
from ..variables.constant import ConstantVariable
from ..variables.contexts import FORWARD_GRAD_MODE, GlobalStateVariable
from ..variables.lists import SequenceVariable
from ..variables.null_blocks import null_block
from ..variables.registry import handles
from ..variables.symint import SymVariable
from ..variables.tensor import TensorVariable
from ..variables.transforms import (
    LevelKind,
    close_level,
    enter_dual,
    leave_dual,
    open_level,
)
from .backward_passes import BY_EAGER, captured_grad, is_captured

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]
NONE = ConstantVariable(None)

# -- levels ----------------------------------------------------------------------------------------


def _named(name: str) -> tuple[Callable[..., Any], ...]:
    """The functions of that name, C's own and what wraps it; the first is the graph's target."""
    homes = (predispatch, C, torch._C, torch._VF)
    found = [getattr(home, name) for home in homes if hasattr(home, name)]
    return tuple({id(function): function for function in found}.values())


def _transform(name: str, stem: str) -> tuple[LevelKind, tuple[Any, ...], tuple[Any, ...]]:
    opens, closes = _named(f"_{stem}_increment_nesting"), _named(f"_{stem}_decrement_nesting")
    return LevelKind(name, opens[0], closes[0]), opens, closes


# (kind, the functions that open a level of it, those that close one)
_LEVELS: tuple[tuple[LevelKind, tuple[Any, ...], tuple[Any, ...]], ...] = (
    *(_transform(name, name) for name in ("vmap", "grad", "jvp")),
    (
        LevelKind("forward-mode AD", enter_dual, leave_dual),
        _named("_enter_dual_level"),
        _named("_exit_dual_level"),
    ),
)


def _number_or_constant(value: VariableTracker) -> Any:
    if isinstance(value, SymVariable) and not value.is_python_constant():
        return value.value
    return value.as_python_constant()


def _level(kind: LevelKind, opens: tuple[Any, ...], closes: tuple[Any, ...]) -> None:
    def enter(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        return open_level(tx, kind, tuple(map(_number_or_constant, [*args, *kwargs.values()])))

    def leave(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        return close_level(tx, kind)

    handles(*opens)(enter)
    handles(*closes)(leave)


for _row in _LEVELS:
    _level(*_row)

# -- operations ------------------------------------------------------------------------------------


def _operation(target: Callable[..., Any], *names: Callable[..., Any]) -> None:
    def handler(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        return tx.call_operation(target, args, kwargs)

    handles(*names)(handler)


_OPERATIONS = (
    "_add_batch_dim _remove_batch_dim _unwrap_batched _wrap_for_grad _unwrap_for_grad get_unwrapped"
    " _make_dual _unpack_dual"
)
for _name in _OPERATIONS.split():
    _operation(_named(_name)[0], *_named(_name))


def _allow_requires_grad(tensor: torch.Tensor) -> torch.Tensor:
    """`requires_grad_` on a tensor of a transform's level, which is not allowed otherwise."""
    with eager_transforms.enable_inplace_requires_grad(True):
        return tensor.requires_grad_()


@handles(eager_transforms._set_tensor_requires_grad)
def set_tensor_requires_grad(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """The tensor changes in place: the value of the new node takes the place of the old one."""
    tensor = args[0]
    if not isinstance(tensor, TensorVariable):
        unsupported("requires_grad_", repr(tensor), "it is not a tensor of the graph")
    return tx.call_operation(_allow_requires_grad, [tensor], {})


@handles(eager_transforms.enable_inplace_requires_grad)
def enable_inplace_requires_grad(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    return null_block(tx)


_OF_HOOKS = frozenset(
    "saved_tensors_hooks save_on_cpu _saved_tensors_hooks_is_enabled"
    " _saved_tensors_hooks_get_disabled_error_message".split()
)


@handles(torch.autograd.graph.disable_saved_tensors_hooks)
def disable_saved_tensors_hooks(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """Hooks break the graph, so there is nothing to forbid in it; but behind that break, in a block
    of the program, they have to be forbidden.
    """
    if _OF_HOOKS.intersection(tx.code.co_names) and not tx.output.options.fullgraph:
        unsupported(
            "saved tensors hooks", "disable_saved_tensors_hooks", "its code sets such hooks"
        )
    return null_block(tx)


# -- questions -------------------------------------------------------------------------------------

_QUESTIONS = tuple(
    getattr(C, name)
    for name in "is_batchedtensor is_gradtrackingtensor is_functorch_wrapped_tensor"
    " is_functionaltensor"
    " is_legacy_batchedtensor maybe_get_level maybe_get_bdim".split()
    if hasattr(C, name)
)


def _question(function: Callable[..., Any]) -> None:
    def handler(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        if not isinstance(args[0], TensorVariable):
            unsupported("transform level", function.__name__, "it is asked of no tensor")
        return ConstantVariable(function(example_value(args[0].node)))

    handles(function)(handler)


for _function in _QUESTIONS:
    _question(_function)


@handles(C.maybe_current_level)
def maybe_current_level(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    return ConstantVariable(C.maybe_current_level())


@handles(torch._C._are_functorch_transforms_active)
def transforms_active(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    return ConstantVariable(torch._C._are_functorch_transforms_active())


@handles(C.peek_interpreter_stack)
def peek_interpreter_stack(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    if C.peek_interpreter_stack() is None:
        return NONE
    unsupported("transform level", "peek_interpreter_stack", "the interpreter is a C object")


@handles(torch._C._is_fwd_grad_enabled)
def is_forward_grad_enabled(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    return ConstantVariable(torch._C._is_fwd_grad_enabled())


@handles(torch._C._set_fwd_grad_enabled)
def set_forward_grad_enabled(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    GlobalStateVariable.of(tx).set(tx, FORWARD_GRAD_MODE, args[0].as_python_constant())
    return NONE


@handles(
    *{id(f): f for f in (getattr(apis, "_wraps_without_dynamo_attrs", None),) if f}.values()
)
def wraps_transformed(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """functools.wraps; the attributes that it drops are about compiled functions."""
    return tx.call_function(tx.wrap_constant(functools.wraps), args, kwargs)


# -- once in a process -----------------------------------------------------------------------------


@handles(*_named("lazy_load_decompositions"))
def lazy_load_decompositions(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    predispatch.lazy_load_decompositions()
    return NONE


@handles(torch.autograd.forward_ad._maybe_load_decompositions)
def load_forward_decompositions(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.autograd.forward_ad._maybe_load_decompositions()
    return NONE


# -- gradients inside of a transform ---------------------------------------------------------------


@handles(torch.autograd.grad)
def autograd_grad(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """Inside of a level it is an operation; elsewhere eager runs the backward pass. What it
    differentiates by is made in front of the graph of what depends on it: of two results of one
    compiled graph, autograd sees none depend on the other.
    """
    if is_captured(tx):
        return captured_grad(tx, args, kwargs)
    if not tx.output.transform_levels:
        reason = Unsupported("autograd call", "torch.autograd.grad", BY_EAGER)
        inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
        reason.made_at = _first_step(tx, inputs)  # type: ignore[attr-defined]
        raise reason
    return tx.call_operation(torch.autograd.grad, args, kwargs)


def _first_step(tx: Translator, inputs: VariableTracker | None) -> int | None:
    """The step that made the first of `inputs` in this graph; None if it made none of them."""
    value = None if inputs is None else inputs.realize()
    if not isinstance(value, (TensorVariable, SequenceVariable)):
        return None
    nodes: list[Node] = []
    map_arg(tx.as_proxy(value), nodes.append)
    steps = [node.meta["step"] for node in nodes if "step" in node.meta]
    return min(steps, default=None)


def _grad_of_transform(*args: Any, **kwargs: Any) -> Any:
    """`torch.autograd.grad` on tensors of a transform, whose level may be closed (vjp)."""
    return torch.autograd.grad(*args, **kwargs)


_operation(torch.autograd.grad, _grad_of_transform)


def _grad_of_outputs(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool = False,
    create_graph: bool = True,
) -> Any:
    """Traced in place of torch's function of the same purpose, which mentions compilers.

    Outputs without gradient count as constants; an input that is not used has gradient zero.
    """
    given = grad_outputs if grad_outputs is not None else [None] * len(outputs)
    pairs = [(o, g) for o, g in zip(outputs, given, strict=False) if o.requires_grad]
    if not pairs:
        return tuple(torch.zeros_like(item) for item in inputs)
    grads = _grad_of_transform(
        tuple(o for o, _ in pairs),
        inputs,
        None if grad_outputs is None else tuple(g for _, g in pairs),
        retain_graph=retain_graph,
        create_graph=create_graph,
        allow_unused=True,
    )
    return tuple(
        torch.zeros_like(item) if grad is None else grad
        for grad, item in zip(grads, inputs, strict=True)
    )


markers.set_decision(_grad_of_outputs, markers.Decision.INLINE)


@handles(eager_transforms._autograd_grad)
def autograd_grad_of_outputs(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    return tx.call_function(tx.wrap_constant(_grad_of_outputs), args, kwargs)
