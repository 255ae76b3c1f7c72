"""`while_loop`, and the operators behind it: the last of what is carried, or that of all steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._higher_order_ops.while_loop import (
    while_loop,
    while_loop_op,
    while_loop_stack_output_op,
)

from ..subgraphs import add_submodule
from ..variables.base import VariableTracker, unsupported
from ..variables.bodies import (
    TracedBody,
    add_call,
    are_same,
    flatten,
    fresh_results,
    keeps_bools,
    require_grad,
    trace_body,
)
from ..variables.registry import handles
from ..variables.symint import SymVariable
from ..variables.tensor import TensorVariable
from .higher_order import (
    free_nodes,
    has_gradients,
    in_order,
    is_differentiable,
    meta_of,
    module_of,
    operands_of,
    parameters_like,
    refuse_aliases,
)

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

Args = list[VariableTracker]
Kwargs = dict[str, VariableTracker]


@handles(while_loop, while_loop_op)
def looped(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """The last of what is carried."""
    return _loop(tx, args, kwargs, is_stacked=False)


@handles(while_loop_stack_output_op)
def stacked(tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
    """What is carried after each step, stacked."""
    return _loop(tx, args, kwargs, is_stacked=True)


def _loop(tx: Translator, args: Args, kwargs: Kwargs, *, is_stacked: bool) -> VariableTracker:
    cond_fn, body_fn, carried, further = in_order(
        args,
        kwargs,
        "cond_fn body_fn carried_inputs additional_inputs",
        tx.wrap_items(tuple, []),
    )

    def call(fn: VariableTracker, *, integers: bool) -> TracedBody:
        leaves, rebuild, _ = flatten(tx, carried, integers=integers)

        def run(body: Any) -> VariableTracker:
            values = rebuild(parameters_like(tx, body, leaves)).unpack(tx)
            return tx.call_function(fn, [*values, *further.unpack(tx)], {})

        return trace_body(tx, "while_loop", run, integers=integers)

    test = call(cond_fn, integers=False)
    if not test.fakes:
        if is_stacked or further.unpack(tx):
            unsupported("arguments", "while_loop", "its condition does not depend on a tensor")
        return _known_steps(tx, cond_fn, body_fn, carried)
    leaves, _, nest = flatten(tx, carried, integers=True)
    if any(not isinstance(leaf, TensorVariable) for leaf in leaves):
        test = call(cond_fn, integers=True)
    step = call(body_fn, integers=True)
    refuse_aliases("while_loop", step)
    _check_kinds(test, step, leaves, nest)
    free = free_nodes([test, step])
    carried_nodes = tuple(leaf.as_proxy() for leaf in leaves)
    needs_grad = has_gradients([*carried_nodes, *free])
    if len(_tensors(leaves)) < len(leaves) and (needs_grad or is_stacked):
        unsupported("while_loop in training", "while_loop", "torch has no backward pass of it")
    if is_stacked and needs_grad:
        why = "torch has no backward pass of stacked results"
        unsupported("while_loop in training", "while_loop_stack_output", why)
    test_module = test.body.module(tx.output, test.nodes(), free, is_single=True)
    modules = (
        add_submodule(tx.output, "while_cond", test_module),
        module_of(tx, "while_body", step, free),
    )
    arguments = (*modules, operands_of(tx, carried_nodes), operands_of(tx, free))
    if is_stacked:
        operator, alike = while_loop_stack_output_op, _of_all_steps(tx, step.fakes)
    else:
        operator, alike = while_loop_op, [_last_of(tx, f, needs_grad) for f in step.fakes]
    results = fresh_results(tx, alike, needs_grad)
    return step.rebuild(add_call(tx, operator, arguments, {}, results))


def _check_kinds(
    test: TracedBody,
    step: TracedBody,
    leaves: Sequence[VariableTracker],
    nest: Any,
) -> None:
    """The body has to return what it gets, and the condition a question."""
    kinds = [list(map(_kind_of, values)) for values in (step.results, leaves)]
    if not are_same(*kinds) or not keeps_bools(nest, step.shape):
        unsupported(
            "carried values differ", "while_loop", "the body has to return what it gets"
        )
    if [fake.dtype for fake in test.fakes] != [torch.bool]:
        unsupported("carried values differ", "while_loop", "the condition is no bool tensor")


def _tensors(leaves: Sequence[VariableTracker]) -> list[TensorVariable]:
    return [leaf for leaf in leaves if isinstance(leaf, TensorVariable)]


def _of_all_steps(tx: Translator, fakes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Like the values that a loop carries, stacked; how many there are depends on data."""
    count = tx.output.shape_env.create_unbacked_symint()
    torch._check(count >= 1)
    with tx.output.fake_mode, torch.no_grad():
        return [fake.expand(count, *fake.shape).contiguous() for fake in fakes]


def _kind_of(
    leaf: VariableTracker,
) -> Any:
    return meta_of(leaf.fake) if isinstance(leaf, TensorVariable) else int


def _last_of(
    tx: Translator,
    fake: Any,
    needs_grad: bool,
) -> Any:
    """Like the last of the values that a loop carries where a body returned `fake`."""
    if not isinstance(fake, torch.Tensor):
        return tx.output.shape_env.create_unbacked_symint()
    with tx.output.fake_mode, torch.no_grad():
        alike = fake.detach()
    return require_grad(alike, needs_grad and is_differentiable(alike))


_MOST_STEPS = 1000


def _known_steps(
    tx: Translator,
    cond_fn: VariableTracker,
    body_fn: VariableTracker,
    carried: VariableTracker,
) -> VariableTracker:
    """For a condition that depends on no tensor: the steps that it takes, one after another.

    A question about sizes or numbers is decided, by guards.
    """
    values = carried.unpack(tx)
    if any(issubclass(value.python_type(), (float, complex)) for value in values):
        unsupported("carried values differ", "while_loop", "it carries tensors and integers")
    for _ in range(_MOST_STEPS):
        test = tx.call_function(cond_fn, values, {}).realize()
        if not test.is_python_constant() and not isinstance(test, SymVariable):
            unsupported(
                "carried values differ", "while_loop", "its condition is a tensor later"
            )
        if not test.truth(tx):
            return tx.wrap_items(tuple, values)
        values = tx.call_function(body_fn, values, {}).realize().unpack(tx)
    unsupported("endless loop", "while_loop", "its condition does not depend on a tensor")
