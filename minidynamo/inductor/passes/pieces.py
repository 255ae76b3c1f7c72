"""A function of every element of a concatenation, as the concatenation of the pieces' functions.

    relu(cat([a, b], 1))     ->     cat([relu(a), relu(b)], 1)

On the CPU each piece is written by a loop of its own, which computes the function on the way.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from minidynamo.inductor.ir import OVERWRITTEN

aten = torch.ops.aten
# Functions of one element; all arguments but the first are numbers.
_FUNCTIONS = frozenset(
    [
        *(getattr(aten, name).default for name in ("abs", "clamp", "cos", "elu", "erf", "exp")),
        *(
            getattr(aten, name).default
            for name in ("gelu", "hardsigmoid", "hardswish", "hardtanh")
        ),
        *(
            getattr(aten, name).default
            for name in ("leaky_relu", "log", "neg", "relu", "rsqrt")
        ),
        *(getattr(aten, name).default for name in ("sigmoid", "silu", "sin", "sqrt", "tanh")),
        aten.add.Scalar,
        aten.add.Tensor,
        aten.div.Scalar,
        aten.div.Tensor,
        aten.mul.Scalar,
        aten.mul.Tensor,
        aten.sub.Scalar,
        aten.sub.Tensor,
        torch.ops.prims.convert_element_type.default,
    ]
)


def move_into_pieces(
    gm: torch.fx.GraphModule,
) -> None:
    """Rewrite concatenations on the CPU whose only reader is such a function."""
    for node in list(gm.graph.nodes):
        joined = node.args[0] if node.target in _FUNCTIONS else None
        if isinstance(joined, torch.fx.Node) and _fits(node, joined):
            _move(gm.graph, node, joined)


def _fits(
    node: torch.fx.Node,
    joined: torch.fx.Node,
) -> bool:
    if joined.target is not aten.cat.default or len(joined.users) != 1:
        return False
    if node.all_input_nodes != [joined] or joined in node.args[1:]:
        return False
    if any(OVERWRITTEN in n.meta for n in (node, joined, *joined.all_input_nodes)):
        return False
    whole = joined.meta["val"]
    pieces = [piece.meta["val"] for piece in joined.args[0]]  # type: ignore[union-attr]
    same = all(p.dtype == whole.dtype and p.dim() == whole.dim() for p in pieces)
    return same and whole.device.type == "cpu"


def _move(
    graph: torch.fx.Graph,
    node: torch.fx.Node,
    joined: torch.fx.Node,
) -> None:
    (pieces, *dim), wanted = joined.args, node.meta["val"]

    def call(
        target: Any,
        *args: Any,
        **kwargs: Any,
    ) -> torch.fx.Node:
        made = graph.call_function(target, args, kwargs)
        made.meta = {**node.meta, "val": target(*_fake(args), **kwargs)}
        return made

    with graph.inserting_before(joined), wanted.fake_mode:
        parts = [call(node.target, piece, *node.args[1:], **node.kwargs) for piece in pieces]  # type: ignore[union-attr]
        result = call(aten.cat.default, parts, *dim, **joined.kwargs)
    made = result.meta["val"]
    if made.stride() == wanted.stride() and made.dtype == wanted.dtype:
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        graph.erase_node(joined)
        return
    for unused in (result, *parts):
        graph.erase_node(unused)


def _fake(
    value: Any,
) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(map(_fake, value))
    return value.meta["val"] if isinstance(value, torch.fx.Node) else value
