"""Graphs that change the grad mode on the way, where AOTAutograd would get it wrong.

`escaping_view(gm)` finds a view that was made without gradients and is used where there are some:
for autograd it has nothing to do with its base, while AOTAutograd makes it anew from that.

`other_mode_part(gm)` takes a graph all of which runs in another grad mode than the one it is called
in (the rest of a function that left a `no_grad` block with a graph break in it) out of this mode:
AOTAutograd makes views anew, and writes to inputs, in the mode of the call, so that they would have
no history. For the same reason one that enables gradients on the way is called with them.

`inference_part(gm)` takes a graph all of which runs in inference mode out of this mode; one that
enters it for a part of the way runs as it was captured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.fx
from torch.autograd.grad_mode import _enter_inference_mode, _exit_inference_mode
from torch.fx.node import Node

_SWITCHES = (_enter_inference_mode, _exit_inference_mode)


def enters_inference_mode(
    gm: torch.fx.GraphModule,
) -> bool:
    """Whether the graph itself switches inference mode on or off."""
    return any(node.target in _SWITCHES for node in gm.graph.nodes)


def inference_part(
    gm: torch.fx.GraphModule,
) -> torch.fx.GraphModule | None:
    """The graph without the switches, to be run in inference mode; None if a part of it is not."""
    calls = [node for node in gm.graph.nodes if node.op.startswith("call_")]
    switches = [node for node in calls if node.target in _SWITCHES]
    first, last = calls[0], calls[-1]
    if len(switches) != 2 or switches != [first, last] or first.args != (True,):
        return None
    return _without(gm, switches)


def other_mode_part(
    gm: torch.fx.GraphModule,
) -> torch.fx.GraphModule | None:
    """The graph for a call in the other grad mode than that of now: without the calls that switch
    to it at its begin and back at its end. One that enables gradients only for a part of the way
    switches them off first. None if it is to be called in the mode of now.
    """
    calls = [node for node in gm.graph.nodes if node.op.startswith("call_")]
    is_enabled = torch.is_grad_enabled()
    switches = [node for node in calls if node.target is torch._C._set_grad_enabled]
    if is_enabled and any(map(_enables, switches[:-1])):
        return None
    ends = [*switches[:1], *switches[-1:]]
    modes = [node.args for node in ends]
    if ends == [*calls[:1], *calls[-1:]] and modes == [(not is_enabled,), (is_enabled,)]:
        return _without(gm, ends)
    if is_enabled or torch.is_inference_mode_enabled() or enters_inference_mode(gm):
        return None
    return _switching_off(gm) if any(map(_enables, switches)) else None


def _switching_off(
    gm: torch.fx.GraphModule,
) -> torch.fx.GraphModule:
    """The graph for a call with gradients, that does without where it did when called without."""
    part = _without(gm, ())
    first = next(node for node in part.graph.nodes if node.op.startswith("call_"))
    with part.graph.inserting_before(first):
        part.graph.call_function(
            torch._C._set_grad_enabled,
            (False,),
        )
    with part.graph.inserting_before(part.graph.output_node()):
        part.graph.call_function(
            torch._C._set_grad_enabled,
            (True,),
        )
    part.recompile()
    return part


def in_other_mode(
    compiled: Callable[..., Any],
) -> Callable[..., Any]:
    """`compiled`, called in the grad mode that is off now."""
    is_enabled = not torch.is_grad_enabled()

    def call(*args: Any) -> Any:
        with torch.set_grad_enabled(is_enabled):
            return compiled(*args)

    return call


def _without(
    gm: torch.fx.GraphModule,
    nodes: Collection[Node],
) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    copied: dict[Node, Node] = {}
    for node in gm.graph.nodes:
        if node not in nodes:
            copied[node] = graph.node_copy(node, lambda n: copied[n])
    part = torch.fx.GraphModule(gm, graph)
    part.meta.update(gm.meta)
    return part


def escaping_view(
    gm: torch.fx.GraphModule,
) -> str:
    """Why the graph has to run as it is; "" if nothing is against compiling it."""
    is_inference = torch.is_inference_mode_enabled()
    if is_inference and (torch.is_grad_enabled() or any(map(_enables, gm.graph.nodes))):
        return "gradients are on in inference mode"
    if not (torch.is_grad_enabled() or is_inference or _switches_grad(gm)):
        return ""  # what is made anew is made without gradients too
    if not (torch.is_grad_enabled() or is_inference):
        (output,) = gm.graph.find_nodes(op="output")
        for node in output.all_input_nodes:
            value = node.meta.get("example_value")
            if node.op != "placeholder" and _has_history(node) and value._is_view():
                return f"{node} is a view with gradients in a graph that is called without"
    for node in gm.graph.nodes:
        is_cut_off = node.op.startswith("call_") and _is_cut_off(node)
        if is_cut_off and any(map(_has_history, node.users)):
            return f"{node} is a view that was made without gradients"
    return ""


def _enables(
    node: Node,
) -> bool:
    return node.target is torch._C._set_grad_enabled and node.args == (True,)


def _switches_grad(
    gm: torch.fx.GraphModule,
) -> bool:
    return any(node.target is torch._C._set_grad_enabled for node in gm.graph.nodes)


def _is_cut_off(
    node: Node,
) -> bool:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or is_computed(value) or not value._is_view():
        return False
    if node.target in ("detach", "detach_", torch.detach) or node.args[1:] == ("data",):
        return False
    if value.requires_grad:
        return True
    # A linear layer's result is a view too, of memory that nobody else sees.
    base = value._base
    given = [argument.meta.get("example_value") for argument in node.all_input_nodes]
    return any(
        isinstance(g, torch.Tensor)
        and g.requires_grad
        and g is not value
        and (base is g or base is g._base)
        for g in given
    )


def _has_history(
    node: Node,
) -> bool:
    if node.op == "output":
        return True
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.requires_grad and is_computed(value)


def is_computed(
    value: torch.Tensor,
) -> bool:
    """Whether autograd knows where it comes from; of views that were written to it may refuse to
    say that.
    """
    try:
        return value.grad_fn is not None
    except RuntimeError:
        return True
