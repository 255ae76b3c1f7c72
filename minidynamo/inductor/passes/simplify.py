"""Rewrites of the aten graph that make it smaller: `PASSES`, each a function of a GraphModule, in
running order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from minidynamo.inductor.effects import has_effect
from minidynamo.inductor.ir import OVERWRITTEN

aten = torch.ops.aten


def is_pure(
    node: torch.fx.Node,
) -> bool:
    """Whether leaving the node out, or computing it once for twice, changes nothing."""
    if node.op != "call_function":
        return False
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target.__module__ == "_operator"
    return not (target._schema.is_mutable or has_effect(target))


def remove_dead_nodes(
    gm: torch.fx.GraphModule,
) -> None:
    """Drop pure nodes without users. Random operators stay: their draws move the generator on."""
    for node in reversed(gm.graph.nodes):
        if not node.users and (is_pure(node) or node.op == "get_attr"):
            gm.graph.erase_node(node)


def _key(
    value: Any,
) -> Any:
    if isinstance(value, (list, tuple)):
        return (type(value), *map(_key, value))
    if isinstance(value, dict):
        return tuple((key, _key(item)) for key, item in value.items())
    return (type(value), repr(value)) if isinstance(value, float) else (type(value), value)


def merge_equal_nodes(
    gm: torch.fx.GraphModule,
    apart: Collection[torch.fx.Node] = (),
) -> None:
    """Compute what is computed twice once, but for nodes `apart`."""
    known: dict[Any, torch.fx.Node] = {}
    writes = 0
    for node in list(gm.graph.nodes):
        schema = getattr(node.target, "_schema", None)
        writes += schema is not None and schema.is_mutable
        if node in apart or not is_pure(node):
            continue
        if any(OVERWRITTEN in n.meta for n in (node, *node.all_input_nodes)):
            continue
        if free_unbacked_symbols(node.meta.get("val")):
            continue  # a number of the data has another name each time it is read
        key = (writes, node.target, _key(node.args), _key(node.kwargs))
        first = known.setdefault(key, node)
        if first is not node and not is_fresh_memory(node):
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)


def drop_copies(
    gm: torch.fx.GraphModule,
) -> None:
    """Leave out copies of what an operator has just made and nobody else reads."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.clone.default):
        given = node.args[0]
        if len(given.users) != 1 or not is_pure(given) or may_share_memory(given):
            continue
        if given.target.namespace != "aten" or given.target is aten.lift.default:
            continue
        made, copied = given.meta["val"], node.meta["val"]
        if OVERWRITTEN in node.meta or made.layout != torch.strided:
            continue
        if all(_is_same(*pair) for pair in zip(made.stride(), copied.stride(), strict=True)):
            node.replace_all_uses_with(given)
            gm.graph.erase_node(node)


def is_fresh_memory(
    node: torch.fx.Node,
) -> bool:
    """Results that reach the caller, or whose views do, must stay different tensors."""
    return any(
        user.op == "output" or (may_share_memory(user) and is_fresh_memory(user))
        for user in node.users
    )


def may_share_memory(
    node: torch.fx.Node,
) -> bool:
    """Whether the result may lie on the memory of an argument."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    returns = node.target._schema.returns
    return node.target in _VIEWS or any(value.alias_info is not None for value in returns)


_VIEWS = {aten.view.default, aten._unsafe_view.default, aten.reshape.default}


def _is_same(
    a: Any,
    b: Any,
) -> bool:
    """Whether two sizes are equal for sure; symbolic ones by their expressions, without a guard."""
    if type(a) is int or type(b) is int:
        return type(a) is type(b) and a == b
    return a.node.expr == b.node.expr


def fold_bias(
    gm: torch.fx.GraphModule,
) -> None:
    """mm, views of it that keep the last dimension, plus a bias along that one: one addmm and the
    views.
    """
    for add in list(gm.graph.find_nodes(op="call_function", target=aten.add.Tensor)):
        if len(add.args) != 2 or add.kwargs:
            continue
        value, bias = add.args
        if not isinstance(value, torch.fx.Node) or not isinstance(bias, torch.fx.Node):
            continue
        product = value
        while product.target in _VIEWS and len(product.users) == 1:
            product = product.args[0]  # type: ignore[assignment]
        if product.target is not aten.mm.default or len(product.users) != 1:
            continue
        columns = product.meta["val"].shape[-1]
        fake, shape = bias.meta["val"], value.meta["val"].shape
        if fake.dim() != 1 or len(value.users) != 1 or OVERWRITTEN in bias.meta:
            continue
        if not (_is_same(fake.shape[0], columns) and _is_same(shape[-1], columns)):
            continue
        if fake.dtype != product.meta["val"].dtype:
            continue
        if bias.op == "get_attr":
            product.prepend(bias)
        if not bias < product:
            continue
        with gm.graph.inserting_before(product):
            fused = gm.graph.call_function(aten.addmm.default, (bias, *product.args))
        fused.meta = dict(product.meta)
        product.replace_all_uses_with(fused)
        gm.graph.erase_node(product)
        add.replace_all_uses_with(fused if value is product else value)
        gm.graph.erase_node(add)


PASSES: list[Callable[[torch.fx.GraphModule], None]] = [
    remove_dead_nodes,
    merge_equal_nodes,
    drop_copies,
    fold_bias,
]
