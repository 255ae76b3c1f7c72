"""`sgn` and `angle` of real tensors, whose gradient is a zero that autograd makes of nothing.

The joint graph does not show that such a gradient depends on the tangent of the result: where that
is the only tangent given it would be None. `sign` has a zero made of its tangent. The graph is the
front end's, of torch functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from minidynamo.inductor.overlaps import call_name


def _angle(x: torch.Tensor) -> torch.Tensor:
    return x.detach().angle() + x.sign() * 0


_TIED: dict[str, Callable[..., Any]] = {
    "angle": _angle,
    "sgn": torch.sign,
    "sgn_": torch.Tensor.sign_,
}


def tie_zeros(gm: torch.fx.GraphModule) -> None:
    """Replace calls of which a gradient is asked for."""
    changed = False
    for node in gm.graph.nodes:
        name = call_name(node) if node.op.startswith("call_") else ""
        given = (*node.args, *node.kwargs.values())
        if name not in _TIED or len(given) != 1:
            continue
        value = given[0].meta.get("example_value")
        result = node.meta.get("example_value")
        is_real = isinstance(value, torch.Tensor) and not value.is_complex()
        if is_real and isinstance(result, torch.Tensor) and result.requires_grad:
            node.op, node.target = "call_function", _TIED[name]
            node.args, node.kwargs = given, {}
            changed = True
    if changed:
        gm.recompile()
