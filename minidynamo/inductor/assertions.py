"""Numbers that depend on data and that an assertion ties to other numbers.

After `torch._check(n == 5)` a ShapeEnv takes `n` for 5. A graph that is traced again under it no
longer has the assertion, which is true there; so such a graph runs as it was captured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from torch.utils._sympy.symbol import SymT, symbol_is_type

_DATA = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)


def known_by_assertion(
    gm: torch.fx.GraphModule,
) -> str:
    """The number that an assertion ties to others, in words; "" if there is none."""
    for node in gm.graph.nodes:
        for number in _numbers(node.meta.get("example_value")):
            replaced = number.node.shape_env.replacements
            for symbol in number.node._expr.free_symbols:
                if symbol in replaced and symbol_is_type(symbol, _DATA):
                    return f"{node} depends on data and is asserted to be {number.node.expr}"
    return ""


def _numbers(value: Any) -> Iterator[Any]:
    parts: tuple[Any, ...] = (value,)
    if isinstance(value, torch.Tensor):
        parts = tuple(value.shape)
    elif isinstance(value, (tuple, list)):
        parts = tuple(value)
    for part in parts:
        if isinstance(part, (torch.SymInt, torch.SymFloat)):
            yield part
        elif part is not value and not isinstance(part, int):
            yield from _numbers(part)
