"""Indices as 32-bit values where they fit.

`index_expr` values are int64. When all that is done with one is comparing it and converting it, and
its range fits, int32 gives the same result and twice the lanes.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from minidynamo.inductor.loop_body import LoopBody, Node
from minidynamo.inductor.symbolic import as_expr, is_less, is_nonneg

_LIMIT = 1 << 31
_COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])


def _fits(node: Node) -> bool:
    if node.dtype != torch.int64:
        return False
    if node.op == "constant":
        return isinstance(node.value, int) and -_LIMIT <= node.value < _LIMIT
    if node.op != "index_expr":
        return False
    assert node.index is not None
    return is_less(node.index, as_expr(_LIMIT)) and is_nonneg(node.index + _LIMIT)


def narrow_integers(body: LoopBody) -> LoopBody:
    """The body with int32 in place of int64 for such values."""
    nodes = body.nodes
    narrow = {position for position, node in enumerate(nodes) if _fits(node)}
    while narrow:
        wrong: set[int] = set()
        for node in nodes:
            operands = node.operands()
            comparing = node.op in _COMPARISONS and all(arg in narrow for arg in operands)
            if not comparing and not (node.op == "cast" and not node.index):
                wrong.update(arg for arg in operands if arg in narrow)
        if not wrong:
            break
        narrow -= wrong
    if not narrow:
        return body
    changed = [
        replace(node, dtype=torch.int32) if position in narrow else node
        for position, node in enumerate(nodes)
    ]
    return LoopBody(body.iters, body.reduces, changed)
