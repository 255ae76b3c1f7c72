"""Floats that are computed from sizes (`1 / (n * h * w)`), as 0-d tensors.

Numbers of a plan are integers. Tensor operators that take a symbolic float take a 0-d tensor just
as well, and what that is computed from are integers: the graph stays in one piece.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from minidynamo.inductor.lowering.promotion import compute_type
from minidynamo.inductor.sizes import depends_on_data, numbers_of

aten = torch.ops.aten

# Operators whose second operand may be a 0-d tensor of the dtype that they compute in.
WITH_TENSOR = {
    aten.add.Tensor: aten.add.Tensor,
    aten.add.Scalar: aten.add.Tensor,
    aten.sub.Tensor: aten.sub.Tensor,
    aten.sub.Scalar: aten.sub.Tensor,
    aten.mul.Tensor: aten.mul.Tensor,
    aten.mul.Scalar: aten.mul.Tensor,
    aten.div.Tensor: aten.div.Tensor,
    aten.div.Scalar: aten.div.Tensor,
    aten.rsub.Tensor: aten.rsub.Tensor,
    aten.rsub.Scalar: aten.rsub.Tensor,
}
_ARITHMETIC = {
    operator.add: aten.add.Tensor,
    operator.sub: aten.sub.Tensor,
    operator.mul: aten.mul.Tensor,
    operator.truediv: aten.div.Tensor,
    operator.neg: aten.neg.default,
    torch._sym_sqrt: aten.sqrt.default,
}


def takes_tensor(node: Node) -> bool:
    """Whether a 0-d tensor may stand for the node's second operand, a symbolic float."""
    if node.target not in WITH_TENSOR or len(node.args) != 2 or node.kwargs:
        return False
    number, fake = node.args[1], node.meta["val"]
    if not isinstance(number, Node) or not isinstance(number.meta.get("val"), torch.SymFloat):
        return False
    return fake.dtype.is_floating_point and bool(fake.dim() or fake.dtype.itemsize >= 4)


def make_tensors(module: torch.fx.GraphModule) -> None:
    """Gives operators 0-d tensors for floats that sizes alone are computed from."""
    graph = module.graph
    made: dict[tuple[Any, ...], Node] = {}
    changed = False
    for node in list(graph.nodes):
        if not takes_tensor(node):
            continue
        fake = node.meta["val"]
        tensor = _tensor_of(graph, node.args[1], fake, made)
        if tensor is None:
            continue
        dtype = compute_type(fake.dtype)
        if dtype != torch.float64:
            key = tensor, dtype
            if key not in made:
                with graph.inserting_after(tensor):
                    made[key] = graph.call_function(
                        aten._to_copy.default, (tensor,), {"dtype": dtype}
                    )
                made[key].meta["val"] = fake.new_empty((), dtype=dtype)
            tensor = made[key]
        node.update_arg(1, tensor)
        node.target = WITH_TENSOR[node.target]
        changed = True
    if changed:
        _drop_unused(graph)
        module.recompile()


def _tensor_of(
    graph: torch.fx.Graph,
    number: Any,
    like: torch.Tensor,
    made: dict[tuple[Any, ...], Node],
) -> Node | None:
    """A double precision tensor of the number, placed behind it; None where it needs data or other
    operators than those of arithmetic.
    """
    key = number, like.device
    if key in made:
        return made[key]
    options = {"dtype": torch.float64, "device": like.device}
    if not isinstance(number, Node):
        with graph.inserting_before(_first_call(graph)):
            made[key] = graph.call_function(aten.scalar_tensor.default, (number,), options)
    elif isinstance(number.meta.get("val"), torch.SymInt):
        if _needs_data(number):
            return None
        place = _first_call(graph) if number.op == "placeholder" else number.next
        with graph.inserting_before(place):
            made[key] = graph.call_function(aten.scalar_tensor.default, (number,), options)
    elif number.target is torch.sym_float:
        return _tensor_of(graph, number.args[0], like, made)
    else:
        if number.target not in _ARITHMETIC or _needs_data(number):
            return None
        args = [_tensor_of(graph, arg, like, made) for arg in number.args]
        if None in args:
            return None
        with graph.inserting_before(number.next):
            made[key] = graph.call_function(_ARITHMETIC[number.target], tuple(args))
    made[key].meta["val"] = like.new_empty((), dtype=torch.float64)
    return made[key]


def _first_call(graph: torch.fx.Graph) -> Node:
    return next(node for node in graph.nodes if node.op not in ("placeholder", "get_attr"))


def _needs_data(node: Node) -> bool:
    expressions = [value.node.expr for value in numbers_of(node.meta["val"])]
    return any(depends_on_data(s) for e in expressions for s in e.free_symbols)


def _drop_unused(graph: torch.fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        is_number = isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat))
        if node.op == "call_function" and is_number and not node.users:
            graph.erase_node(node)
