"""Leaves of autograd that a graph makes for itself: `torch.zeros_like(x, requires_grad=True)`.

A leaf that stays in the graph has a gradient that nobody can ask for. What is added to it, or goes
through a layer with it, needs a gradient for other reasons as well, so that it may be made as any
other tensor is, and the graph be compiled.
"""

from __future__ import annotations

import operator
from collections.abc import Collection

import torch
import torch.fx
from torch.fx.node import Node
from torch.utils._pytree import tree_leaves

# Their results need a gradient if any tensor does that they are given, and they write to none.
_METHODS = frozenset(
    "add sub mul div truediv neg matmul bmm linear layer_norm cat stack clone contiguous reshape"
    " view transpose permute unsqueeze squeeze expand repeat to float getitem relu tanh sigmoid sum"
    " mean detach lstm gru rnn_tanh rnn_relu".split()
)
# Not by name: operators of a program may have the same ones.
_FUNCTIONS = frozenset(
    getattr(place, name)
    for place in (torch, torch.nn.functional, torch.Tensor, operator)
    for name in _METHODS
    if hasattr(place, name)
)


def without_inner_leaves(
    gm: torch.fx.GraphModule,
) -> torch.fx.GraphModule:
    """`gm`, or a copy that makes its leaves without `requires_grad` where that cannot be seen."""
    leaves = {node for node in gm.graph.nodes if node.kwargs.get("requires_grad") is True}
    if not leaves or _is_seen(gm, leaves):
        return gm
    graph = torch.fx.Graph()
    copied: dict[Node, Node] = {}
    for node in gm.graph.nodes:
        copied[node] = graph.node_copy(node, lambda n: copied[n])
        if node in leaves:
            copied[node].kwargs = {**copied[node].kwargs, "requires_grad": False}
    changed = torch.fx.GraphModule(gm, graph)
    changed.meta.update(gm.meta)
    return changed


def _is_seen(
    gm: torch.fx.GraphModule,
    leaves: Collection[Node],
) -> bool:
    """Whether a result may need a gradient for the leaves alone, or one of them be asked for its
    own.
    """
    alone = set(leaves)
    for node in gm.graph.nodes:
        if node in leaves or alone.isdisjoint(node.all_input_nodes):
            continue
        if node.op == "output" or not _is_differentiable(node):
            return True
        others = [n for n in node.all_input_nodes if n not in alone]
        if _needs_gradient(node) and not any(map(_needs_gradient, others)):
            alone.add(node)
    return False


def _is_differentiable(
    node: Node,
) -> bool:
    return node.target in (_METHODS if node.op == "call_method" else _FUNCTIONS)


def _needs_gradient(
    node: Node,
) -> bool:
    values = tree_leaves(node.meta.get("example_value"))
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)
