"""`register_hook` on tensors that the graph makes: the hook becomes a graph of its own.

The node registers it for real, in eager as under AOTAutograd, whose backward graph then contains
what the hook does. A hook must not change what is outside of it; else eager registers it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from ..subgraphs import add_submodule
from ..variables.base import VariableTracker, unsupported
from ..variables.bodies import TracedBody, new_tensor, trace_body
from ..variables.tensor import TensorVariable, tensor_method

if TYPE_CHECKING:
    from ..subgraphs import Body
    from ..symbolic_convert import Translator


class HookHandleVariable(VariableTracker):
    """What `register_hook` returns. Where the program uses it, eager registers the hook."""

    def __init__(
        self,
        step: int,
    ) -> None:
        super().__init__()
        self.made_at = step


def _call(
    module: torch.nn.Module,
    free: tuple[Any, ...],
    grad: torch.Tensor,
) -> torch.Tensor:
    return module(grad, *free)


def hooked(
    tensor: torch.Tensor,
    module: torch.nn.Module,
    *free: Any,
) -> None:
    """A node of the graph: `tensor.register_hook`, with a hook of (gradient, *free)."""
    tensor.register_hook(functools.partial(_call, module, free))


@tensor_method("register_hook")
def register_hook(
    tx: Translator, self: TensorVariable, args: list[VariableTracker], kwargs: dict[str, Any]
) -> VariableTracker:
    output = tx.output
    is_plain = output.body is None and not output.transform_levels
    if self.source is not None or not is_plain or len(args) != 1 or kwargs:
        _refuse(self, "it is a tensor from outside of the graph")
    if not self.fake.requires_grad or self.fake.is_leaf:
        _refuse(self, "it has no gradient that the graph computes")
    with output.fake_mode, torch.no_grad():
        gradient = torch.empty_like(self.fake)

    def run(body: Body) -> VariableTracker:
        return tx.call_function(args[0], [new_tensor(tx, body, gradient)], {})

    traced = trace_body(tx, "register_hook", run)
    if traced.shape == "*":
        _add(tx, self, traced, gradient)
    elif traced.shape != ("constant", "None"):
        _refuse(self, "the hook returns something else than a tensor or None")
    return HookHandleVariable(tx.last_step())


def _add(
    tx: Translator, tensor: TensorVariable, traced: TracedBody, gradient: torch.Tensor
) -> None:
    (result,) = traced.fakes
    if (result.shape, result.dtype) != (gradient.shape, gradient.dtype):
        _refuse(tensor, "the hook returns a gradient that does not fit")
    free = list(traced.body.lifted)
    body = traced.body.module(tx.output, traced.nodes(), free, is_single=True)
    module = add_submodule(tx.output, "hook", body)
    arguments = (tensor.node, module, *free)
    tx.output.add_known_node(hooked, arguments, {}, None, tx.user_stack())
    # A hook is seen by the operations behind it.
    tx.output.side_effects.version += 1


def _refuse(
    tensor: TensorVariable,
    why: str,
) -> None:
    unsupported("autograd call", f"{tensor.describe()}.register_hook()", why)
