"""Views that a graph returns of inputs.

AOTAutograd makes such a view anew, and gets some wrong. Views that are differentiated hang on one
node for all results, which a backward pass through one of them ends: eager's may be differentiated
one after the other; and without such results a node of our own runs the graph. Of inputs that are
written to there is more. Where sizes are symbolic a view is made by `as_strided`, from the offset
that it has in the memory of the input's new values; this is not its offset in the input, and a view
of another dtype or a conjugate is not what it should be. Where an
input is written to several times its version moves behind that, and autograd refuses one of several
views. One of `chunk`, `split` or `unbind` may become a copy.
What is a view of `x.data` would count its versions with `x`: eager's writes to it do not hinder a
backward pass that needs `x`.

`take_out(gm, inputs)` divides the graph: what is compiled computes the rest, and the operations
that make the views are done again on the inputs, after the writes, as eager does them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import Node
from torch.utils._pytree import tree_leaves

from minidynamo.inductor.eager_saves import is_data
from minidynamo.inductor.grad_modes import enters_inference_mode
from minidynamo.inductor.gradients import WRITTEN
from minidynamo.inductor.kept_results import takes_data
from minidynamo.inductor.overlaps import RESHAPING, call_name, is_in_place, storage_of
from minidynamo.inductor.sizes import has_symbols


class WrittenParts:
    """A graph without some of its results, and the graph of these."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        positions: Sequence[int],
    ) -> None:
        (output,) = gm.graph.find_nodes(op="output")
        results = list(output.args[0])
        self.positions = positions
        self.rest = _with_results(gm, [v for i, v in enumerate(results) if i not in positions])
        self.views = _with_results(gm, [results[i] for i in positions], only_needed=True)

    def attach(
        self,
        compiled: Callable[..., Any],
    ) -> Callable[..., Any]:
        """A callable of the whole graph, from one of `rest`."""
        views = self.views.forward
        places = list(enumerate(self.positions))

        def call(
            *args: Any,
        ) -> tuple[Any, ...]:
            results = list(compiled(*args))
            made = views(*args)
            for index, position in places:
                results.insert(position, made[index])
            return tuple(results)

        return call


def take_out(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
) -> WrittenParts | None:
    """The graph divided, or None where no result is such a view, or one that cannot be made from
    the inputs alone.
    """
    counts = gm.meta.get(WRITTEN, {})
    is_trained = torch.is_grad_enabled() and any(map(_requires_grad, inputs))
    others = reinterpreted(gm)
    if not (counts or is_trained or others or takes_data(gm)) or enters_inference_mode(gm):
        return None
    is_needed = has_symbols(inputs) or max(counts.values(), default=0) > 1
    given = gm.graph.find_nodes(op="placeholder")
    memory = _memory_of_inputs(gm)
    written = {memory_of(given[i]) for i in counts if i < len(given)}
    cut_off = _of_other_mode(gm)
    positions, unwritten = [], []
    (output,) = gm.graph.find_nodes(op="output")
    for i, result in enumerate(output.args[0]):
        if not isinstance(result, Node) or not result.op.startswith("call_"):
            continue
        if memory_of(result) not in memory:
            continue
        made_of = _remade(result, memory)
        is_wrong = memory_of(result) in written and cut_off.isdisjoint(made_of)
        is_wrong = is_wrong and (is_needed or any(map(_is_list, made_of)))
        is_wrong = is_wrong or result in others
        # What `.data` gives has no gradients in either mode.
        is_of_data = any(map(is_data, made_of))
        if is_wrong or (is_of_data and not result.meta["example_value"].requires_grad):
            positions += [i] if made_of else []
        elif made_of and memory_of(result) not in written and cut_off.isdisjoint(made_of):
            unwritten.append(i)
    if is_trained:
        positions = sorted([*positions, *unwritten])
    return WrittenParts(gm, positions) if positions else None


def reinterpreted(gm: torch.fx.GraphModule) -> list[Node]:
    """Results in an input's memory that have symbolic sizes, and are or were of another dtype than
    the input, or conjugated or negated lazily where it is not: strides do not tell what they are,
    and a kernel that computes them gives no view.
    """
    memory = _memory_of_inputs(gm)
    others: set[Node] = set()
    for node in gm.graph.nodes:
        origin = memory.get(memory_of(node))
        if origin is None or origin is node:
            continue
        is_other = _takes_dtype(node) or _kind(node) != _kind(origin)
        if is_other or not others.isdisjoint(node.all_input_nodes):
            others.add(node)
    results = gm.graph.output_node().all_input_nodes
    return [n for n in results if n in others and has_symbols([n.meta["example_value"]])]


def mixed_memory(gm: torch.fx.GraphModule) -> bool:
    """Whether results that lie in the same memory, which the graph has made, are of several kinds,
    and have symbolic sizes or are views of a dtype: AOTAutograd makes all but one anew by strides.
    Several with symbolic sizes are made of what made the memory.
    """
    given = _memory_of_inputs(gm).keys() | {None}
    views = {memory_of(node) for node in gm.graph.nodes if _takes_dtype(node)}
    makers = {memory_of(node): node for node in reversed(gm.graph.nodes)}
    kinds: dict[int | None, Any] = {}
    results = gm.graph.output_node().all_input_nodes
    for node in results:
        memory = memory_of(node)
        is_symbolic = has_symbols([node.meta.get("example_value")])
        if memory in given or (memory not in views and not is_symbolic):
            continue
        if is_symbolic and [memory_of(other) for other in results].count(memory) > 1:
            kinds.setdefault(memory, _kind(makers[memory]))
        if kinds.setdefault(memory, _kind(node)) != _kind(node):
            return True
    return False


def _takes_dtype(node: Node) -> bool:
    """Whether it may be a `view(dtype)`."""
    given = (*node.args, *node.kwargs.values())
    return any(isinstance(argument, torch.dtype) for argument in given)


def _kind(node: Node) -> tuple[torch.dtype, bool, bool]:
    value = node.meta["example_value"]
    return value.dtype, value.is_conj(), value.is_neg()


def _memory_of_inputs(gm: torch.fx.GraphModule) -> dict[Any, Node]:
    memory = {memory_of(node): node for node in gm.graph.find_nodes(op="placeholder")}
    memory.pop(None, None)
    return memory


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _of_other_mode(
    gm: torch.fx.GraphModule,
) -> set[Node]:
    """What is called in another grad mode than the one at the graph's end."""
    mode = torch.is_grad_enabled()
    modes: dict[Node, bool] = {}
    for node in gm.graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            mode = node.args[0]
        elif node.op.startswith("call_"):
            modes[node] = mode
    return {node for node, its in modes.items() if its != mode}


def _is_list(
    node: Node,
) -> bool:
    value = node.meta.get("example_value")
    return isinstance(value, (list, tuple)) and not isinstance(value, torch.Size)


def _remade(
    result: Node,
    memory: dict[Any, Node],
) -> set[Node]:
    """What it is made of, if that is nothing but views of inputs, and their sizes; else empty."""
    pending, seen = [result], set[Node]()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if any(call_name(user) in RESHAPING for user in node.users):
            return set()
        if node.op == "placeholder":
            continue
        is_call = node.op in ("call_function", "call_method")
        if not is_call or is_in_place(call_name(node)) or "out" in node.kwargs:
            return set()
        values = tree_leaves(node.meta.get("example_value"))
        # A new tensor may have an input's memory: that of a parameter made of it here.
        operands = tree_leaves(
            [item.meta.get("example_value") for item in node.all_input_nodes]
        )
        taken = set(map(_storage, operands)) & memory.keys()
        if not all(_is_size(value) or _storage(value) in taken for value in values):
            return set()
        pending.extend(node.all_input_nodes)
    return seen


def _is_size(
    value: Any,
) -> bool:
    if isinstance(value, torch.SymInt):
        return not free_unbacked_symbols(value)
    return isinstance(value, int)


def memory_of(
    node: Node,
) -> int | None:
    """What nodes whose results share memory have in common; None for what has no memory."""
    return _storage(node.meta.get("example_value"))


def _storage(
    value: Any,
) -> int | None:
    """Of a plain tensor; None for what has no memory."""
    is_plain = isinstance(value, FakeTensor) and value.layout is torch.strided
    return storage_of(value) if is_plain else None


def _with_results(
    gm: torch.fx.GraphModule,
    results: Sequence[Any],
    only_needed: bool = False,
) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    copied: dict[Node, Node] = {}
    graph.graph_copy(gm.graph, copied)
    made = tuple(copied[v] if isinstance(v, Node) else v for v in results)
    graph.output(made)
    if only_needed:
        for node in reversed(list(graph.nodes)):
            if not node.users and node.op not in ("placeholder", "output"):
                graph.erase_node(node)
    part = torch.fx.GraphModule(gm, graph)
    part.meta.update(gm.meta)
    return part
