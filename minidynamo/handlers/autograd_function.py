"""`torch.autograd.Function`: `apply` becomes one node if both halves trace without side effects.

Where no gradient is wanted, `forward` is traced into the graph like any function. Otherwise forward
and backward are traced on trial, which collects the guards of what they read and refuses what
changes state outside; the node then calls the class's own `apply`, whose two halves the backend
traces as autograd runs them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import FunctionCtx, _is_setup_context_defined

from .. import markers
from ..side_effects import Mutation
from ..variables.base import VariableTracker, unsupported
from ..variables.classes import ClassVariable, new_object
from ..variables.constant import ConstantVariable
from ..variables.contexts import GRAD_MODE, GlobalStateVariable
from ..variables.registry import handles
from ..variables.tensor import TensorVariable

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Values = list[VariableTracker]
Kwargs = dict[str, VariableTracker]

# The context's own methods only store what they are given.
for _name in (
    "save_for_backward",
    "mark_dirty",
    "mark_non_differentiable",
    "set_materialize_grads",
):
    markers.set_decision(getattr(FunctionCtx, _name), markers.Decision.INLINE)


_apply = vars(torch.autograd.Function)["apply"]


# A class method; from torch 2.14 on it is one of C.
@handles(getattr(_apply, "__func__", _apply))
def function_apply(tx: Translator, args: Values, kwargs: Kwargs) -> Any:
    """`cls.apply(*args)`."""
    cls, values = args[0], args[1:]
    if not isinstance(cls, ClassVariable) or kwargs:
        return NotImplemented
    wanted = [isinstance(v, TensorVariable) and _requires_grad(v.fake) for v in values]
    if not (torch.is_grad_enabled() and any(wanted)):
        result, context = _forward(tx, cls, values, [False] * len(values))
        dirty = tx.output.side_effects.load_attr(context, "dirty_tensors")
        kept = dirty.realize().unpack(tx) if isinstance(dirty, VariableTracker) else []
        inputs = [value for value in values if not any(value is item for item in kept)]
        return _without_inputs(tx, result, inputs, _has_setup(cls))
    _try_out(tx, cls, values, wanted)
    return tx.call_operation(_apply_of(cls.value), values, {})


def _requires_grad(fake: torch.Tensor) -> bool:
    """Whether a gradient is wanted, at any level of torch.func: vmap hides what is below."""
    while not fake.requires_grad:
        if not torch._C._functorch.is_functorch_wrapped_tensor(fake):
            return False
        fake = torch._C._functorch.get_unwrapped(fake)
    return True


def _has_setup(cls: ClassVariable) -> bool:
    """Whether forward gets no context: then setup_context fills it."""
    return _is_setup_context_defined(cls.value.setup_context)  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=256)
def _apply_of(cls: type[torch.autograd.Function]) -> Callable[..., Any]:
    """The target of the node: a plain function, which every reader of FX graphs takes."""

    def apply(*args: Any) -> Any:
        return cls.apply(*args)

    apply.__name__ = apply.__qualname__ = f"{cls.__name__}_apply"
    return apply


def _forward(
    tx: Translator, cls: ClassVariable, values: Values, wanted: list[bool]
) -> tuple[VariableTracker, VariableTracker]:
    """Trace forward (and setup_context) as `apply` does, in no-grad mode: (result, context)."""
    context = new_object(tx, FunctionCtx)
    needs = tx.wrap_items(tuple, [ConstantVariable(want) for want in wanted])
    context.setattr(tx, "needs_input_grad", needs)
    state, was_on = GlobalStateVariable.of(tx), torch.is_grad_enabled()
    if was_on:
        state.set(tx, GRAD_MODE, False)
    try:
        return _call_forward(tx, cls, context, values), context
    finally:
        if was_on:
            state.set(tx, GRAD_MODE, True)


def _call_forward(
    tx: Translator, cls: ClassVariable, context: VariableTracker, values: Values
) -> VariableTracker:
    forward = cls.getattr(tx, "forward")
    if not _has_setup(cls):
        return tx.call_function(forward, [context, *values], {}).realize()
    result = tx.call_function(forward, values, {}).realize()
    arguments = [context, tx.wrap_items(tuple, values), result]
    tx.call_function(cls.getattr(tx, "setup_context"), arguments, {})
    return result


def _without_inputs(
    tx: Translator, result: VariableTracker, values: Values, has_setup: bool
) -> VariableTracker:
    """`apply` returns a view where forward returns an input that it does not mark as dirty."""
    if isinstance(result, TensorVariable):
        if any(result is value for value in values):
            if has_setup:
                unsupported("autograd function", repr(result), "an input is returned as it is")
            return result.node_method(tx, "view_as", [result], {})
        return result
    if result.python_type() is tuple:
        items = [
            _without_inputs(tx, item.realize(), values, has_setup) for item in result.unpack(tx)
        ]
        return tx.wrap_items(tuple, items)
    return result


def _try_out(tx: Translator, cls: ClassVariable, values: Values, wanted: list[bool]) -> None:
    """Trace both halves and drop the operations again. Raises Unsupported where that fails."""
    effects, output = tx.output.side_effects, tx.output
    before = _outside(tx)
    checkpoint = output.checkpoint()
    effects.version += 1
    result, context = _forward(tx, cls, values, wanted)
    saved = effects.load_attr(context, "to_save")
    if isinstance(saved, VariableTracker):
        context.setattr(tx, "saved_tensors", saved)
    outputs = [result] if isinstance(result, TensorVariable) else result.unpack(tx)
    grads = [
        tx.call_operation(torch.zeros_like, [item.realize()], {})
        for item in outputs
        if isinstance(item.realize(), TensorVariable)
    ]
    backward = "backward" if "vjp" not in vars(cls.value) else "vjp"
    tx.call_function(cls.getattr(tx, backward), [context, *grads], {})
    if _outside(tx) != before:
        name = cls.value.__qualname__
        unsupported("autograd function", name, f"{name} changes state outside of itself")
    output.rollback(checkpoint)


def _outside(tx: Translator) -> list[Any]:
    """What is logged about objects that existed before the frame, but for grad mode."""
    effects = tx.output.side_effects
    stores = [
        (id(variable), name, id(value))
        for variable, stored in effects.attributes.items()
        if variable.mutation is Mutation.EXISTING
        for name, value in stored.items()
    ]
    contents = [id(v) for v in effects.contents if not isinstance(v, GlobalStateVariable)]
    return [stores, contents]
