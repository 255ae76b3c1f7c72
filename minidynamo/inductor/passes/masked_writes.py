"""`x[mask] = value` with a value that does not depend on how many elements the mask has, as a
choice between the two.

Its gradient by `value` would be a selection by the mask, whose size depends on data: no graph of
static sizes has that. It is given the front end's graph of torch functions.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import Node


def choose(gm: torch.fx.GraphModule) -> None:
    """Put `torch.where` for such writes if `value` is differentiated."""
    changed = False
    for node in gm.graph.find_nodes(op="call_function", target=operator.setitem):
        written, key, value = node.args
        mask = _mask_of(key)
        if mask is not None and _is_choice(*map(_example, (written, mask, value))):
            node.target, node.args = write_where, (written, mask, value)
            changed = True
    if changed:
        gm.recompile()


def write_where(written: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> None:
    """`written[mask] = value`; value: broadcast to the dimensions behind the mask's."""
    behind = written.dim() - mask.dim()
    if value.dim() > behind:
        value = value.squeeze(0)
    where = mask.view(mask.shape + (1,) * behind)
    written.copy_(torch.where(where, value.to(written.dtype), written))


def _mask_of(key: Any) -> Any:
    """The only part of a subscript that takes less than everything, if it comes first."""
    if not isinstance(key, tuple):
        return key
    is_alone = bool(key) and all(map(_is_whole, key[1:]))
    return key[0] if is_alone else None


def _is_whole(part: Any) -> bool:
    return part is Ellipsis or part == slice(None)


def _example(argument: Any) -> Any:
    return argument.meta.get("example_value") if isinstance(argument, Node) else argument


def _is_choice(written: Any, mask: Any, value: Any) -> bool:
    if not all(isinstance(tensor, FakeTensor) for tensor in (written, mask, value)):
        return False
    if mask.dtype is not torch.bool or not mask.dim() or not value.requires_grad:
        return False
    if not written.device == mask.device == value.device or value.is_complex():
        return False
    if value.dim() and value.dtype != written.dtype:  # which eager refuses
        return False
    behind = written.dim() - mask.dim()
    # As many as the mask chooses, which depends on data, are not one.
    is_one = bool(value.dim()) and statically_known_true(value.shape[0] == 1)
    return value.dim() <= behind or (value.dim() == behind + 1 and is_one)
