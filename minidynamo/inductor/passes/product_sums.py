"""Sums of matrix products as one product, on the CPU.

    a @ b + c @ d + e @ f     ->     cat([a, c, e], 1) @ cat([b, d, f], 0)

The gradient of a weight that a loop uses at each of its steps is such a sum: of products of few
rows, each as large as the weight. They would all be held until they are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from minidynamo.inductor.ir import OVERWRITTEN
from minidynamo.inductor.passes.simplify import remove_dead_nodes

aten = torch.ops.aten
LEAST_PRODUCTS = 3


def join_products(
    gm: torch.fx.GraphModule,
) -> None:
    """Rewrite sums in which the factors are smaller than the products."""
    for node in reversed(gm.graph.nodes):
        if not _is_sum(node) or any(_is_sum(user) for user in _only_user(node)):
            continue
        terms = _terms(node)
        products = {term: product for term in terms if (product := _product(term)) is not None}
        if len(products) >= LEAST_PRODUCTS and _is_worth(list(products.values())):
            rest = [term for term in terms if term not in products]
            _join(gm.graph, node, list(products.values())[::-1], rest)
    remove_dead_nodes(gm)


def _only_user(
    node: torch.fx.Node,
) -> Sequence[torch.fx.Node]:
    users = list(node.users)
    return users if len(users) == 1 else ()


def _is_sum(
    node: torch.fx.Node,
) -> bool:
    """Whether it adds two different matrices of one shape."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.all_input_nodes) != 2:
        return False
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    if OVERWRITTEN in node.meta or any(not isinstance(v, torch.Tensor) for v in values):
        return False
    first = values[0]
    return (
        first.dim() == 2
        and first.device.type == "cpu"
        and first.dtype.is_floating_point
        and all(v.dtype == first.dtype for v in values)
        and all(statically_known_true(sym_eq(v.shape, first.shape)) for v in values)
    )


def _terms(
    root: torch.fx.Node,
) -> list[torch.fx.Node]:
    """What a tree of sums adds up, the last first."""
    found, work = [], list(root.all_input_nodes)
    while work:
        node = work.pop()
        if _is_sum(node) and len(node.users) == 1:
            work += node.all_input_nodes
        else:
            found.append(node)
    return found


def _product(
    node: torch.fx.Node,
) -> torch.fx.Node | None:
    """The product that a term is, turned twice or not at all, if nobody else reads it."""
    turned = False
    while len(node.users) == 1 and _is_turned(node):
        turned, node = not turned, node.all_input_nodes[0]
    if node.target is not aten.mm.default or len(node.users) != 1 or turned:
        return None
    known = all(
        type(extent) is int and OVERWRITTEN not in n.meta
        for n in (node, *node.all_input_nodes)
        for extent in n.meta["val"].shape
    )
    return node if known else None


def _is_worth(
    products: Sequence[torch.fx.Node],
) -> bool:
    """Whether copying the factors moves less than half of what adding up the products does."""
    rows, columns = products[0].meta["val"].shape
    inner = sum(node.args[0].meta["val"].shape[1] for node in products)  # type: ignore[union-attr]
    return 2 * inner * (rows + columns) <= len(products) * rows * columns


def _join(
    graph: torch.fx.Graph,
    root: torch.fx.Node,
    products: Sequence[torch.fx.Node],
    rest: Sequence[torch.fx.Node],
) -> None:
    def call(target: Any, *args: Any) -> torch.fx.Node:
        values = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        node = graph.call_function(target, args)
        with root.meta["val"].fake_mode:
            node.meta = {**root.meta, "val": target(*values)}
        return node

    def side_by_side(factors: list[Any], dim: int) -> torch.fx.Node:
        if all(_is_turned(factor) for factor in factors):
            turned = call(aten.cat.default, [factor.args[0] for factor in factors], 1 - dim)
            return call(aten.permute.default, turned, [1, 0])
        return call(aten.cat.default, factors, dim)

    with graph.inserting_before(root):
        left = side_by_side([node.args[0] for node in products], 1)
        right = side_by_side([node.args[1] for node in products], 0)
        total = call(aten.mm.default, left, right)
        for term in reversed(rest):
            total = call(aten.add.Tensor, term, total)
    if total.meta["val"].stride() == root.meta["val"].stride():  # it depends on the order
        root.replace_all_uses_with(total)


def _is_turned(
    node: Any,
) -> bool:
    if node.target is aten.t.default:
        return True
    return node.target is aten.permute.default and list(node.args[1]) == [1, 0]
