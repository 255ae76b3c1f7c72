"""Tensors that the program changes in part: which nodes may write into their own memory.

AOTAutograd makes `cache[:, p] = k` a new tensor, `select_scatter(cache, k, ...)`, that a final
`copy_` writes back whole. Where nobody wants the old cache any more, the part alone is written. So
it is for a tensor of the graph that a loop fills, where a step reads what another one wrote: with a
new tensor each, the steps would move all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from minidynamo.inductor.ir import OVERWRITTEN
from minidynamo.inductor.passes.simplify import may_share_memory

aten = torch.ops.aten
_PARTS = {aten.slice_scatter.default, aten.select_scatter.default}
_WRITERS = _PARTS | {
    aten.index_put.default,
    aten._unsafe_index_put.default,
    aten.index_copy.default,
    aten.index_add.default,
    aten.index_reduce.default,
    aten.put.default,
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter.reduce,
    aten.scatter.value_reduce,
    aten.scatter_add.default,
    aten.scatter_reduce.two,
}


def drop_old_parts(
    gm: torch.fx.GraphModule,
) -> None:
    """`part.copy_(k)`, functional, is `copy(part, k)`: where that is written into the whole, `k` is
    the same, and the part need not be read. So it is where the whole becomes what a change of a
    part made of it (`cache.copy_(cache.index_copy(...))`).
    """
    for node in gm.graph.find_nodes(op="call_function", target=aten.copy.default):
        old, new = node.args[:2]
        if not isinstance(new, torch.fx.Node) or not isinstance(old, torch.fx.Node):
            continue
        left, right = old.meta["val"], new.meta["val"]
        if (
            left.dtype != right.dtype
            or left.device != right.device
            or left.dim() != right.dim()
        ):
            continue
        fits = statically_known_true(sym_eq(tuple(left.shape), tuple(right.shape)))
        for user in list(node.users):
            is_source = user.target in _PARTS and user.args[1] is node
            if is_source and user.args[0] is not node and fits:
                user.update_arg(1, new)
            elif new.target in _WRITERS and fits and _is_same(left, right) and not _keeps(user):
                user.replace_input_with(node, new)


def _is_same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return statically_known_true(sym_eq(left.stride(), right.stride()))


def _keeps(
    user: torch.fx.Node,
) -> bool:
    """Whether what it is given may be among the results, where it must not be two of them."""
    return user.target is not aten.copy_.default and may_share_memory(user)


# What a node may write to: an input; a copy that it makes; what the node before it wrote to.
INPUT, FIRST, NEXT = "input", "first", "next"
# Steps of a loop from which on they write into one tensor; and where it has few elements.
STEPS, STEPS_OF_SMALL, SMALL = 4, 8, 1024


def in_place_nodes(
    graph: torch.fx.Graph, is_final_write: Callable[[torch.fx.Node], bool]
) -> dict[torch.fx.Node, str]:
    """Nodes that may write into the memory of their first operand: an input that gets the result
    by a final write and that nothing reads afterwards, or the result of such a node; and steps of
    loops.
    """
    found: dict[torch.fx.Node, str] = {}
    for copy in graph.find_nodes(op="call_function", target=aten.copy_.default):
        if is_final_write(copy):
            target, node = copy.args[:2]
            found |= dict.fromkeys(_chain(target, node, copy), INPUT)
    for run in _runs(graph, found):
        found |= dict.fromkeys(run, NEXT) | {run[0]: FIRST}
    return found


def _chain(
    target: Any,
    node: Any,
    copy: torch.fx.Node,
) -> set[torch.fx.Node]:
    chain: set[torch.fx.Node] = set()
    while isinstance(node, torch.fx.Node) and node.target in _WRITERS:
        base = node.args[0]
        if not isinstance(base, torch.fx.Node) or _operands(node).count(base) != 1:
            break
        chain.add(node)
        if not all(user in (node, copy) or _is_over(user, node) for user in base.users):
            break
        if base is target:
            return chain
        node = base
    return set()


def _runs(
    graph: torch.fx.Graph, in_place: Container[torch.fx.Node]
) -> Iterator[list[torch.fx.Node]]:
    """Nodes that may write one after the other into one tensor, where at least every second result
    is read: what reads nothing is one kernel anyway. in_place: what writes to inputs.
    """
    runs: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in graph.nodes:
        if node.target not in _WRITERS or node in in_place or OVERWRITTEN in node.meta:
            continue
        base = node.args[0]
        if not isinstance(base, torch.fx.Node) or _operands(node).count(base) != 1:
            continue
        run = runs.get(base)
        if run is None or not all(u is node or _is_over(u, node) for u in base.users):
            run = []
        run.append(node)
        runs[node] = run
    for run in {id(run): run for run in runs.values()}.values():
        value = run[0].meta["val"]
        least = STEPS if value.numel() >= SMALL else STEPS_OF_SMALL
        read = sum(len(node.users) > 1 for node in run)
        if len(run) >= least and 2 * read >= len(run) - 1:
            yield run


def _is_over(
    user: torch.fx.Node,
    node: torch.fx.Node,
) -> bool:
    """Whether a user, and what uses views that it makes, comes before `node`."""
    if not user < node or user.op != "call_function":
        return False
    return not may_share_memory(user) or all(_is_over(n, node) for n in user.users)


def _operands(
    node: torch.fx.Node,
) -> list[torch.fx.Node]:
    """Its operands, each as often as it stands there."""
    found: list[torch.fx.Node] = []
    torch.fx.node.map_arg((node.args, node.kwargs), lambda n: found.append(n) or n)  # type: ignore[func-returns-value]
    return found
