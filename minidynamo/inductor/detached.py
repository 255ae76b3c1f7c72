"""Detached tensors that get a history by a write (`x = y.detach(); x += w`).

Functional graphs make `x` anew as a part of `y`, detach it again, and so lose the history: such a
graph runs as it was captured, unless nothing else sees the memory. Then `x` may be a copy.
"""

from __future__ import annotations

import torch
import torch.fx
from torch.fx.node import Node

from minidynamo.inductor.grad_modes import is_computed

__all__ = ["gains_history", "with_own_memory"]


def gains_history(node: Node) -> bool:
    """Whether a tensor without a history is written to with one."""
    is_data = node.target is getattr and node.args[1] == "data"
    if not (is_data or getattr(node.target, "__name__", node.target) in ("detach", "detach_")):
        return False
    value = _tensor(node)
    return value is not None and is_computed(value)


def with_own_memory(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`gm`, or a copy in which those of these tensors that may be copies are."""
    found = {n.name for n in gm.graph.nodes if gains_history(n) and _has_sole_memory(n)}
    if not found:
        return gm
    graph = torch.fx.Graph()
    copied: dict[Node, Node] = {}
    for node in gm.graph.nodes:
        copied[node] = graph.node_copy(node, lambda n: copied[n])
        if node.name in found:
            detached = copied[node]
            detached.meta = {}
            copied[node] = graph.call_method("clone", (detached,))
            copied[node].meta = dict(node.meta)
    changed = torch.fx.GraphModule(gm, graph)
    changed.meta.update(gm.meta)
    return changed


def _has_sole_memory(node: Node) -> bool:
    """Whether the graph has made what is detached, without a history, and reads it nowhere else."""
    if node.target == "detach_":
        return False
    while True:
        value, bases = _tensor(node), _bases(node)
        if value is None or node.op in ("placeholder", "get_attr") or len(bases) > 1:
            return False
        if not bases:
            return True
        (node,) = bases
        base = _tensor(node)
        if base is None or base.requires_grad or is_computed(base) or len(node.users) > 1:
            return False


def _bases(node: Node) -> list[Node]:
    """The inputs whose memory the result of the node has, or may have."""
    found = []
    for each in node.all_input_nodes:
        given = each.meta.get("example_value")
        is_number = isinstance(given, (torch.SymInt, torch.SymFloat, torch.SymBool))
        if not is_number and _memory(each) in (None, _memory(node)):
            found.append(each)
    return found


def _memory(node: Node) -> int | None:
    value = _tensor(node)
    return None if value is None else value.untyped_storage()._cdata


def _tensor(node: Node) -> torch.Tensor | None:
    value = node.meta.get("example_value")
    is_plain = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return value if is_plain else None
