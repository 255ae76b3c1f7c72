"""Graphs inside of the graph: the bodies of higher-order operators.

    with scope(output) as body:                  # operations go to a graph of their own
        ...                                      # nodes of graphs around become its placeholders
    module = body.module(output, outputs, inputs)

A body sees tensors of the graphs around it by name; those that it used are `body.lifted`, in order.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.grad_mode import _enter_inference_mode, _exit_inference_mode
from torch.fx.node import Node, map_arg

from .autocast_nodes import join_autocast

if TYPE_CHECKING:
    from .output_graph import OutputGraph


class Body:
    """The graph of one body. lifted: node outside -> placeholder."""

    def __init__(self, parent: Body | None, outer: torch.fx.Graph) -> None:
        self.graph = torch.fx.Graph()
        self.parent = parent
        self.outer = outer
        self.first_op: Node | None = None
        self.lifted: dict[Node, Node] = {}
        self.parameters: list[Node] = []
        # Whether the strides of its arguments, and so of what it makes, differ between calls.
        self.has_unknown_layouts = False
        self._versions: dict[Node, int] = {}

    def wrote_to(self, placeholder: Node) -> bool:
        """Whether an operation of the body wrote to the tensor of a placeholder."""
        return _version(placeholder.meta["example_value"]) != self._versions[placeholder]

    def parameter(self, value: Any) -> Node:
        """A placeholder for an argument that the operator gives; `value` is its fake value."""
        node = self._placeholder(f"arg{len(self.parameters)}", value)
        self.parameters.append(node)
        return node

    def _placeholder(self, name: str, value: Any) -> Node:
        if self.first_op is None:
            node = self.graph.placeholder(name)
        else:
            with self.graph.inserting_before(self.first_op):
                node = self.graph.placeholder(name)
        node.meta["example_value"] = value
        self._versions[node] = _version(value)
        return node

    def local(self, node: Node) -> Node:
        """The node of this graph for a node of this graph or of one around it."""
        if node.graph is self.graph:
            return node
        if self.parent is not None:
            node = self.parent.local(node)
        known = self.lifted.get(node)
        if known is None:
            known = self._placeholder(f"free_{node.name}", node.meta["example_value"])
            self.lifted[node] = known
        return known

    def module(
        self,
        output: OutputGraph,
        results: Sequence[Any],
        free: Sequence[Node],
        *,
        is_single: bool = False,
    ) -> torch.fx.GraphModule:
        """The body as a module of its parameters and then `free` (nodes outside). It returns a
        tuple, or its only result (is_single).
        """
        graph = torch.fx.Graph()
        copies: dict[Node, Node] = {}
        for node in self.parameters:
            copies[node] = _copy_placeholder(graph, node)
        for outside in free:
            inner = self.lifted.get(outside)
            fresh = _copy_placeholder(graph, inner if inner is not None else outside)
            if inner is not None:
                copies[inner] = fresh
        graph.graph_copy(self.graph, copies)
        outputs = map_arg(tuple(results), lambda node: copies[node])
        graph.output(outputs[0] if is_single else outputs)
        used = {str(node.target) for node in graph.find_nodes(op="get_attr")}
        children = {name: child for name, child in output.submodules.items() if name in used}
        return torch.fx.GraphModule(children, graph)


def graphs_of(body: Body | None) -> list[torch.fx.Graph]:
    """Those of the body and of the ones around it."""
    graphs = []
    while body is not None:
        graphs.append(body.graph)
        body = body.parent
    return graphs


def has_unknown_layout(body: Body | None, node: Node) -> bool:
    """Whether the strides of what `node` gives are known only when its body is run."""
    while body is not None and body.graph is not node.graph:
        body = body.parent
    while body is not None and not body.has_unknown_layouts:
        body = body.parent
    return body is not None


def end_graph(
    graph: torch.fx.Graph,
    outputs: Sequence[Node],
    needed: set[Node],
    unbacked: Mapping[Any, tuple[Node, Any]],
) -> None:
    """Let the graph return `outputs`. Of an operation with several results, each is taken out as
    soon as it is traced: those that nobody used are left out, but for `needed` and those with the
    sizes that `unbacked` names.
    """
    graph.output(tuple(outputs))
    kept = {*needed, *(node for node, _ in unbacked.values())}
    for node in reversed(graph.nodes):
        if node.target is not operator.getitem:
            continue
        if node.users or node in kept:
            continue
        container = node.args[0].meta["example_value"]
        if isinstance(container, (tuple, list)):
            graph.erase_node(node)


# They change the grad mode too.
_OTHER_SWITCHES = (_enter_inference_mode, _exit_inference_mode)


def final_module(
    submodules: dict[str, torch.fx.GraphModule],
    graph: torch.fx.Graph,
) -> torch.fx.GraphModule:
    """The module of a graph that is complete, without operations that have no effect."""
    for node in list(graph.nodes):
        if node.meta.get("is_iteration"):
            _take_by_index(graph, node)
    if not any(node.target in _OTHER_SWITCHES for node in graph.nodes):
        _drop_idle_switches(graph)
    join_autocast(graph)
    return torch.fx.GraphModule(submodules, graph)


def _take_by_index(graph: torch.fx.Graph, node: Node) -> None:
    """Items of an iteration over a tensor are read as by an index. With gradients they stay what
    autograd knows as one of several views.
    """
    source: Any = node.args[0]
    if source.meta["example_value"].requires_grad:
        return
    if all(user.target is operator.getitem for user in node.users):
        for user in list(node.users):
            user.args = (source, user.args[1])
        graph.erase_node(node)


def _drop_idle_switches(graph: torch.fx.Graph) -> None:
    """Grad mode is not set to what it is, nor to what no operation sees."""
    unseen: tuple[Node, bool] | None = None
    mode: Any = None
    for node in list(graph.nodes):
        if not node.op.startswith("call_"):
            continue
        if node.target is not torch._C._set_grad_enabled:
            unseen = None
            continue
        if mode is None and (mode := node.meta.get("mode_before")) is None:
            return
        if unseen is not None:
            graph.erase_node(unseen[0])
            mode = unseen[1]
            unseen = None
        if node.args[0] == mode:
            graph.erase_node(node)
        else:
            unseen, mode = (node, mode), node.args[0]


def _version(fake: Any) -> int:
    is_counted = isinstance(fake, torch.Tensor) and not fake.is_inference()
    return fake._version if is_counted else 0


def _copy_placeholder(graph: torch.fx.Graph, node: Node) -> Node:
    copy = graph.placeholder(node.name)
    copy.meta = dict(node.meta)
    return copy


@contextlib.contextmanager
def scope(output: OutputGraph) -> Iterator[Body]:
    """Operations added inside go to a new body, afterwards to the graph of before."""
    count = output.op_count
    body = Body(output.body, output.graph)
    output.body, output.graph = body, body.graph
    try:
        yield body
    finally:
        output.body, output.graph = body.parent, body.outer
        output.op_count = count


def add_submodule(output: OutputGraph, stem: str, module: torch.fx.GraphModule) -> Node:
    """A node for the module of a body, in the graph under construction."""
    index = sum(name.startswith(f"{stem}_") for name in output.submodules)
    name = f"{stem}_{index}"
    output.submodules[name] = module
    node = output.graph.create_node("get_attr", name, (), {})
    node.meta["example_value"] = module
    output.note_first(node)
    return node
