"""Normalized activations that the backward pass computes again.

Batch and group norm are one operator each, whose result the minimal cut can only save: activations
such as SiLU, whose gradient takes what they were given, keep it beside the convolution's result,
which the gradient of the norm needs anyway. What only the backward pass reads is written here as
arithmetic on that result and its statistics, which the cut may place on either side.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence, Set
from typing import Any

import torch
import torch.fx
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy

aten = torch.ops.aten
_COPIES = (aten.clone.default, aten.alias.default)
_BATCH = (
    aten._native_batch_norm_legit_functional.default,
    aten._batch_norm_with_update_functional.default,
    aten._native_batch_norm_legit.no_stats,
)
_GROUP = aten.native_group_norm.default
_NARROW = (torch.float16, torch.bfloat16)


def compute_norms_again(
    joint: torch.fx.GraphModule,
    num_fwd_outputs: int,
) -> None:
    """Let what the backward pass alone reads of a norm's result be computed from its operand."""
    norms = [n for n in joint.graph.nodes if n.target in _BATCH or n.target is _GROUP]
    norms = [n for n in norms if _is_by_batch(n) and "recompute" not in n.meta]
    if not norms:
        return
    forward = _forward(joint, num_fwd_outputs)
    order = {node: i for i, node in enumerate(joint.graph.nodes)}
    for norm in norms:
        shift = norm.args[2]
        parts = {n.args[1]: n for n in norm.users if n.target is operator.getitem}
        if norm not in forward or not {0, 1, 2} <= parts.keys():
            continue
        values = [
            parts[0],
            *(n for n in parts[0].users if n.target in _COPIES and n in forward),
        ]
        readers = {value: _backward(value, forward) for value in values}
        made = _activations(values, forward)
        behind = [n for nodes in (*readers.values(), *made.values()) for n in nodes]
        if not behind:
            continue
        writer = _Arithmetic(joint.graph, min(behind, key=order.__getitem__))
        if isinstance(shift, Node) and norm.target is not _GROUP:
            # Eager saves no bias of a batch norm, so that a program may write to it meanwhile.
            shift = _kept(joint.graph, shift, norm)
            norm.update_arg(2, shift)
        again = writer.result(norm, parts[1], parts[2], shift)
        if again is None or any(_layout(v) != _layout(again) for v in values):
            continue  # what was written is dead, and the partitioner drops it
        for value, nodes in readers.items():
            for node in nodes:
                node.replace_input_with(value, again)
        for activation, nodes in made.items():
            copy = writer.copy(activation, again)
            for node in nodes:
                node.replace_input_with(activation, copy)


def _kept(
    graph: torch.fx.Graph,
    node: Node,
    before: Node,
) -> Node:
    """A copy that the forward pass makes, and saves (which the cut lets only what it needs be)."""
    with graph.inserting_before(before):
        made = graph.call_function(aten.clone.default, (node,))
    value = node.meta["val"]
    with value.fake_mode:
        made.meta["val"] = value.clone()
    made.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return made


def _backward(
    node: Node,
    forward: Set[Node],
) -> list[Node]:
    """What the backward pass reads it with."""
    return [n for n in node.users if n not in forward and n.op != "output"]


def _activations(
    values: Sequence[Node],
    forward: Set[Node],
) -> dict[Node, list[Node]]:
    """Functions of a norm's result that the backward pass reads in kernels alone, with what it
    reads them with: an operand of a convolution would need memory there, too.
    """
    found = {}
    for value in values:
        for node in value.users:
            if node not in forward or len(node.all_input_nodes) != 1:
                continue
            if torch.Tag.pointwise not in getattr(node.target, "tags", ()):
                continue
            readers = _backward(node, forward)
            if readers and all(_is_kernel(reader) for reader in readers):
                found[node] = readers
    return found


def _is_kernel(
    node: Node,
) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _is_by_batch(
    norm: Node,
) -> bool:
    """Whether statistics are those of the operand."""
    if norm.target is aten._native_batch_norm_legit_functional.default:
        return norm.args[5] is True
    return norm.target is not aten._native_batch_norm_legit.no_stats or norm.args[3] is True


def _forward(
    joint: torch.fx.GraphModule,
    count: int,
) -> set[Node]:
    """What the first results of a graph are made of."""
    (output,) = joint.graph.find_nodes(op="output")
    results: Any = output.args[0]
    waiting = [node for node in results[:count] if isinstance(node, Node)]
    found: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def _layout(
    node: Node,
) -> tuple[Any, ...]:
    value = node.meta["val"]
    return value.dtype, tuple(value.shape), value.stride()


class _Arithmetic:
    """Writes the formula of a norm in front of a node."""

    def __init__(
        self,
        graph: torch.fx.Graph,
        before: Node,
    ) -> None:
        self._graph = graph
        self._before = before

    def result(
        self,
        norm: Node,
        mean: Node,
        rstd: Node,
        bias: Any,
    ) -> Node | None:
        x, weight = norm.args[:2]
        assert isinstance(x, Node)
        value = x.meta["val"]
        with value.fake_mode:
            wide = x
            if value.dtype in _NARROW:
                wide = self._call(aten._to_copy.default, x, dtype=torch.float32)
            if norm.target is _GROUP:
                groups = norm.args[6]
                if not value.is_contiguous() or any(type(n) is not int for n in value.shape):
                    return None
                size = value.shape
                split = [size[0], groups, size[1] // groups, *size[2:]]  # type: ignore[operator]
                wide = self._call(aten.view.default, wide, split)
                out = self._scaled(wide, mean, rstd, value.dim() - 1)
                out = self._call(aten.view.default, out, list(size))
            else:
                out = self._scaled(wide, mean, rstd, value.dim() - 2)
            for op, factor in ((aten.mul.Tensor, weight), (aten.add.Tensor, bias)):
                if isinstance(factor, Node):
                    out = self._call(op, out, self._column(factor, value.dim() - 2))
            if out.meta["val"].dtype != value.dtype:
                out = self._call(aten._to_copy.default, out, dtype=value.dtype)
        return out

    def copy(
        self,
        node: Node,
        value: Node,
    ) -> Node:
        """The same function of another value."""
        with self._graph.inserting_before(self._before):
            made = self._graph.node_copy(node, lambda _: value)
        # AOTAutograd's mark of the forward pass: the default partition ends that at the last one.
        made.meta.pop("partitioner_tag", None)
        return made

    def _scaled(
        self,
        x: Node,
        mean: Node,
        rstd: Node,
        behind: int,
    ) -> Node:
        centered = self._call(aten.sub.Tensor, x, self._column(mean, behind))
        return self._call(aten.mul.Tensor, centered, self._column(rstd, behind))

    def _column(
        self,
        node: Node,
        behind: int,
    ) -> Node:
        """With as many dimensions behind it as its channels, or groups, have elements in."""
        for _ in range(behind):
            node = self._call(aten.unsqueeze.default, node, -1)
        return node

    def _call(
        self,
        op: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Node:
        with self._graph.inserting_before(self._before):
            made = self._graph.call_function(op, args, kwargs)
        fakes: Sequence[Any] = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        made.meta["val"] = op(*fakes, **kwargs)
        return made
