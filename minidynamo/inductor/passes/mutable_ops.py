"""Operators that write to their arguments: what AOTAutograd makes functional, as calls again.

`auto_functionalized_v2(op, ..., _all_bases=[x])` stands for the operator on a copy of `x`. It
becomes the copy and the call, after which the copy has the new value; an input that is only read
before, and is given the new value in the end, is not copied. The graph is not functional any more
where `OVERWRITTEN` says so: of such a node equal calls may have different results.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx
from torch._higher_order_ops.auto_functionalize import (
    auto_functionalized_v2,
    get_mutable_args,
    read_view_information_from_args,
)
from torch.fx import Node
from torch.fx.node import map_arg

from minidynamo.inductor.ir import OVERWRITTEN, is_dense
from minidynamo.inductor.passes.simplify import may_share_memory
from minidynamo.inductor.sizes import SizeTable
from minidynamo.inductor.symbolic import Undecided

aten = torch.ops.aten


def inline_mutable_operators(gm: torch.fx.GraphModule) -> None:
    """Replace the higher-order operator, if all of the graph's are of operators on ordinary
    tensors.
    """
    nodes = gm.graph.find_nodes(op="call_function", target=auto_functionalized_v2)
    if nodes and all(map(_is_plain, nodes)):
        for node in nodes:
            _inline(gm.graph, node)
        gm.recompile()


def _is_plain(node: Node) -> bool:
    op = node.args[0]
    if not isinstance(op, torch._ops.OpOverload) or len(node.args) > 1:
        return False
    for name in get_mutable_args(op)[0]:
        if not {f"_{name}_base_index", f"_{name}_length"} & set(node.kwargs):
            return False  # an `out=`, which is made there
    for base in node.kwargs["_all_bases"]:  # type: ignore[union-attr]
        fake = base.meta["val"] if isinstance(base, Node) else None  # type: ignore[union-attr]
        if not isinstance(fake, torch.Tensor) or fake.layout != torch.strided:
            return False
        sizes = SizeTable()
        try:
            dense = is_dense(sizes.all(fake.shape), sizes.all(fake.stride()))
        except Undecided:
            return False
        if not dense or type(fake.storage_offset()) is not int:
            return False
    return True


def _inline(graph: torch.fx.Graph, node: Node) -> None:
    op: Any = node.args[0]
    given = dict(node.kwargs)
    bases: Any = given.pop("_all_bases")
    views = read_view_information_from_args(*get_mutable_args(op), given, bases)
    with graph.inserting_before(node):
        memory = [_memory(graph, node, base) for base in bases]
        for name, view in views.items():
            given[name] = _viewed(graph, view, memory, bases)
        args = tuple(given.pop(a.name) for a in op._schema.arguments if not a.kwarg_only)
        call = graph.call_function(op, args, given)
    call.meta = {k: v for k, v in node.meta.items() if k != "val"}
    returns = len(op._schema.returns)
    results = node.meta["val"][: max(returns, 1)]
    call.meta["val"] = tuple(results) if returns > 1 else results[0]
    for user in list(node.users):
        assert user.target is operator.getitem
        position: Any = user.args[1]
        if position >= len(results):
            user.replace_all_uses_with(memory[position - len(results)])
        elif returns > 1:
            user.args = (call, position)
            continue
        else:
            user.replace_all_uses_with(call)
        graph.erase_node(user)
    graph.erase_node(node)


def _memory(graph: torch.fx.Graph, node: Node, base: Node) -> Node:
    """What the operator may write to instead of `base`."""
    later = [user for user in base.users if user is not node and not _is_read(user, node)]
    if base.op == "placeholder" and len(later) == 1:
        (write,) = later
        if write.target is aten.copy_.default and write.args[1] in node.users:
            base.meta[OVERWRITTEN] = True
            return base
    copy = graph.call_function(aten.clone.default, (base,))
    copy.meta = {**node.meta, "val": base.meta["val"].clone(), OVERWRITTEN: True}
    return copy


def _is_read(user: Node, node: Node) -> bool:
    """Whether `user` computes new values before `node`."""
    return user < node and user.op == "call_function" and not may_share_memory(user)


def _viewed(graph: torch.fx.Graph, view: Any, memory: list[Node], bases: list[Node]) -> Any:
    if view is None:
        return None
    if isinstance(view, list):
        return [_viewed(graph, item, memory, bases) for item in view]
    whole = memory[view.base_index]
    kind = type(view).__name__
    if kind in ("NotView", "AliasViewInfo"):
        return whole
    fake = whole.meta["val"]
    if kind == "SliceViewInfo":
        target, args = aten.slice.Tensor, (view.dim, view.start, view.end)
    else:
        start = view.storage_offset
        moved = fake.storage_offset() - bases[view.base_index].meta["val"].storage_offset()
        if moved:
            start = _number(graph, operator.add, start, moved)
        target = aten.as_strided.default
        args = (view.size, view.stride, start)
    part = graph.call_function(target, (whole, *args))
    part.meta["val"] = target(fake, *map_arg(args, lambda node: node.meta["val"]))
    return part


def _number(graph: torch.fx.Graph, op: Any, left: Any, right: int) -> Any:
    """A number that is known, or a node that computes it."""
    if not isinstance(left, Node):
        return op(left, right)
    node = graph.call_function(op, (left, right))
    node.meta["val"] = op(left.meta["val"], right)
    return node
