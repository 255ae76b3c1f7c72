"""Results that eager conjugates or negates at once, and functional graphs lazily.

Functional graphs make `y` anew after `y.mH.mul_(2)` or `y.conj().imag.add_(1)`, as the conjugate of
what was written: `y.is_conj()`, and neither `y.numpy()` nor `torch.view_as_real(y)` works any more.
"""

from __future__ import annotations

import torch
import torch.fx
from torch.fx.node import Node

from minidynamo.inductor.overlaps import call_name, is_in_place
from minidynamo.inductor.written_parts import memory_of

__all__ = ["with_resolved_results"]


def with_resolved_results(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`gm`, or a copy in which such results are copies, which have no such bits; those whose memory
    others see are not.
    """
    output = gm.graph.output_node()
    lazy = {memory_of(node) for node in gm.graph.nodes if _is_lazy(node)} - {None}
    calls = (node for node in gm.graph.nodes if node.op.startswith("call_") and node.args)
    written = [node.args[0] for node in calls if is_in_place(call_name(node))]
    if lazy.isdisjoint(memory_of(node) for node in written if isinstance(node, Node)):
        return gm
    seen = [*output.all_input_nodes, *gm.graph.find_nodes(op="placeholder")]
    places = [memory_of(node) for node in seen]
    found = {
        node.name
        for node, place in zip(output.all_input_nodes, places, strict=False)
        if place in lazy and places.count(place) == 1 and not _is_lazy(node)
    }
    if not found:
        return gm
    graph = torch.fx.Graph()
    copied: dict[Node, Node] = {}
    for node in gm.graph.nodes:
        if node is output:
            for result in output.all_input_nodes:
                if result.name in found:
                    copied[result] = graph.call_method("clone", (copied[result],))
                    copied[result].meta = dict(result.meta)
        copied[node] = graph.node_copy(node, lambda n: copied[n])
    changed = torch.fx.GraphModule(gm, graph)
    changed.meta.update(gm.meta)
    return changed


def _is_lazy(node: Node) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg())
