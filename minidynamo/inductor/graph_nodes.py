"""What lowering asks of a graph node: whether kernels can compute it, and how much it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from minidynamo.inductor.size_hints import hint_of
from minidynamo.inductor.symbolic import product

aten = torch.ops.aten

SUPPORTED_DTYPES = frozenset(
    getattr(torch, name)
    for name in "float32 float64 float16 bfloat16 bool int8 int16 int32 int64 uint8".split()
)
# Operators that take a part of a tensor, or cut it into parts.
_PARTS = {
    aten.select.int,
    aten.slice.Tensor,
    aten.narrow.default,
    aten.unbind.int,
    aten.split.Tensor,
    aten.split_with_sizes.default,
}


def is_supported(node: torch.fx.Node) -> bool:
    """Whether kernels can read and write every tensor of the node."""

    def fits(fake: Any) -> bool:
        if isinstance(fake, torch.Tensor):
            return fake.dtype in SUPPORTED_DTYPES and fake.layout == torch.strided
        return not isinstance(fake, (tuple, list)) or all(map(fits, fake))

    return fits(node.meta["val"]) and all(fits(arg.meta["val"]) for arg in node.all_input_nodes)


def uses(node: torch.fx.Node, fake: Callable[[torch.fx.Node], Any]) -> float:
    """How often an element of the node's result is used: users that take a part of it count by its
    size, so that `x[0] + x[1]` and `x.chunk(2)` use each once. `fake`: what a node's result is.
    """

    def elements(node: torch.fx.Node) -> int:
        return hint_of(product(fake(node).shape))

    parts = [user for user in node.users if user.target in _PARTS]
    if not parts:
        return len(node.users)
    lists = [user for user in parts if not isinstance(user.meta["val"], torch.Tensor)]
    taken = [part for user in lists for part in user.users]
    taken += [user for user in parts if user not in lists]
    return len(node.users) - len(parts) + sum(map(elements, taken)) / max(elements(node), 1)
