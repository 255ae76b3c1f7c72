"""Operators with graphs of their own (`cond`, `while_loop`, `scan`, `map`).

Torch's operator decides which of its graphs runs, and how often; `compile_branches` puts compiled
ones in their place. What stands around such operators is compiled in pieces (`segments.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.fx
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op, while_loop_stack_output_op
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Node

from minidynamo.inductor.capture import capture_inference
from minidynamo.inductor.captured_numbers import NotCapturable
from minidynamo.inductor.laid_out import LaidOut, has_holes

CompileGraph = Callable[[torch.fx.GraphModule], Callable[..., Any]]
DRAWS = "draws"  # of a node's `meta`: its graphs draw random numbers
# Whether what is called is as good compiled: attention maps its functions over positions.
_CALLS_GRAPHS = {
    cond_op: True,
    while_loop_op: True,
    while_loop_stack_output_op: True,
    scan_op: True,
    map_impl: True,
    flex_attention: False,
    flex_attention_backward: False,
}


class _Compiled(torch.nn.Module):
    """A graph that an operator calls. is_single: it gives a tensor, and no tuple of one."""

    def __init__(self, call: Callable[..., Any], *, is_single: bool) -> None:
        super().__init__()
        self._call = call
        self._is_single = is_single

    def forward(self, *args: Any) -> Any:
        results = self._call(*args)
        return results[0] if self._is_single else results


def is_higher_order(node: Node) -> bool:
    """Whether it calls an operator that takes graphs or operators."""
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def compile_branches(
    graph: torch.fx.GraphModule,
    compile_graph: CompileGraph,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> bool:
    """Compile the graphs that the operators of `graph` call; False where one of the operators is
    not known here, or its graphs write to what they are given: the graph is left as it is then.
    """
    calls = [node for node in graph.graph.nodes if is_higher_order(node)]
    if not all(_is_functional(graph, node) for node in calls):
        return False
    for node in calls:
        if any(_draws(module) for _, module in _graphs_of(graph, node)):
            node.meta[DRAWS] = True
    for node in calls:
        if not _CALLS_GRAPHS[node.target]:  # type: ignore[index]
            continue
        for name, module in _graphs_of(graph, node):
            # `cond` hands on what it is given; the others give parts, which lie otherwise.
            if node.target is cond_op or not _takes_holes(module):
                graph.set_submodule(name, _compiled(module, compile_graph, decompositions))
    return True


def _graphs_of(
    graph: torch.fx.GraphModule, node: Node
) -> Iterator[tuple[str, torch.fx.GraphModule]]:
    """The graphs that a call is given, with the names of the attributes that they are."""
    for arg in node.all_input_nodes:
        if arg.op != "get_attr":
            continue
        value = graph
        for name in str(arg.target).split("."):
            value = getattr(value, name)
        if isinstance(value, torch.fx.GraphModule):
            yield str(arg.target), value


def _nodes_within(graph: torch.fx.GraphModule) -> Iterator[Node]:
    """The nodes of a graph, and of the graphs that it calls."""
    for node in graph.graph.nodes:
        yield node
        if is_higher_order(node):
            for _, module in _graphs_of(graph, node):
                yield from _nodes_within(module)


def _takes_holes(graph: torch.fx.GraphModule) -> bool:
    given = graph.graph.find_nodes(op="placeholder")
    return any(has_holes(node.meta.get("val")) for node in given)


def _is_functional(graph: torch.fx.GraphModule, node: Node) -> bool:
    if node.target not in _CALLS_GRAPHS:
        return False
    for _, module in _graphs_of(graph, node):
        for inner in _nodes_within(module):
            schema = getattr(inner.target, "_schema", None)
            is_known = not is_higher_order(inner) or inner.target in _CALLS_GRAPHS
            if not is_known or (schema is not None and schema.is_mutable):
                return False
    return True


def _draws(graph: torch.fx.GraphModule) -> bool:
    seeded = torch.Tag.nondeterministic_seeded
    return any(seeded in getattr(node.target, "tags", ()) for node in _nodes_within(graph))


def _compiled(
    module: torch.fx.GraphModule,
    compile_graph: CompileGraph,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> torch.nn.Module:
    """The graph compiled, or as it is with the graphs that it calls compiled."""
    if any(map(is_higher_order, module.graph.nodes)):
        compile_branches(module, compile_graph, decompositions)
        return module
    fakes = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    mode = _mode_of(module)
    if mode is None:
        return module
    try:
        with torch.no_grad():
            graph = capture_inference(module, fakes, mode, decompositions)
    except NotCapturable:
        return module
    given = module.graph.find_nodes(op="placeholder")
    (output,) = module.graph.find_nodes(op="output")
    call = LaidOut(given, compile_graph(graph))
    return _Compiled(call, is_single=isinstance(output.args[0], Node))


def _mode_of(module: torch.fx.GraphModule) -> FakeTensorMode | None:
    values = (node.meta.get("val") for node in module.graph.nodes)
    return next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
