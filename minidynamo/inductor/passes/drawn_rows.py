"""`torch.bernoulli(x, p)` as `empty_like(x).bernoulli_(p)`, which is what eager makes of it.

In an aten graph both are `aten.bernoulli.p`, but the first draws for rows, the second in the order
in which the elements of `x` lie. Given the front end's graph of torch functions, as it comes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

_BERNOULLI = {("call_function", torch.bernoulli), ("call_method", "bernoulli")}


def draw_for_rows(gm: torch.fx.GraphModule) -> None:
    """Replace such calls, but for those whose result autograd follows."""
    changed = False
    for node in gm.graph.nodes:
        if (node.op, node.target) not in _BERNOULLI or "out" in node.kwargs:
            continue
        x, p = _arguments(*node.args, **node.kwargs)
        example = x.meta.get("example_value") if isinstance(x, torch.fx.Node) else None
        if p is None or example is None or example.requires_grad:
            continue
        node.op, node.target = "call_function", _over_rows
        changed = True
    if changed:
        gm.recompile()


def _arguments(input: Any, p: Any = None, **options: Any) -> tuple[Any, Any]:
    return input, p


def _over_rows(
    input: torch.Tensor, p: float, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    rows = torch.empty_like(input, memory_format=torch.contiguous_format)
    return rows.bernoulli_(p, generator=generator)
