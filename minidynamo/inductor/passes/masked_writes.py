"""`x[mask] = value` and `index_put` with a value that is differentiated, as a choice at every
element.

The operator's gradient by `value` is a selection by the mask, whose size depends on data: no graph
of static sizes has that. Where there is one element of the value for each that the mask chooses,
the number of chosen elements before tells which. It is given the front end's graph of torch
functions.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true
from torch.fx.node import Node

_PUT = ("index_put", torch.index_put, torch.Tensor.index_put)
_PUT_IN_PLACE = ("index_put_", torch.index_put_, torch.Tensor.index_put_)


def choose(gm: torch.fx.GraphModule) -> None:
    """Put `torch.where` for such writes if `value` is differentiated."""
    changed = False
    for node, function, (written, key, value, adds) in _writes(gm.graph):
        found = _mask_of(key, _example(written))
        if found is None:
            continue
        lead, mask = found
        if _is_choice(lead, *map(_example, (written, mask, value))):
            node.op, node.target = "call_function", function
            node.args, node.kwargs = (written, mask, value, lead, adds), {}
            changed = True
    if changed:
        gm.recompile()


def _writes(graph: torch.fx.Graph) -> Iterator[tuple[Node, Any, tuple[Any, Any, Any, bool]]]:
    """Writes to computed places, what may stand for each, and what is written where."""
    for node in graph.find_nodes(op="call_function", target=operator.setitem):
        yield node, write, (*node.args, False)
    for targets, function in ((_PUT, written_to), (_PUT_IN_PLACE, write)):
        for target in targets:
            op = "call_method" if isinstance(target, str) else "call_function"
            for node in graph.find_nodes(op=op, target=target):
                if not node.kwargs and 3 <= len(node.args) <= 4:
                    written, indices, value, *adds = node.args
                    key = tuple(slice(None) if index is None else index for index in indices)
                    yield node, function, (written, key, value, any(adds))


def written_to(
    x: torch.Tensor,
    mask: torch.Tensor,
    value: torch.Tensor,
    lead: int = 0,
    adds: bool = False,
) -> torch.Tensor:
    """x after `x[:, .., mask] = value` with `lead` dimensions before the mask's; or += with `adds`,
    as `index_put` adds.
    """
    behind = x.dim() - lead - mask.dim()
    while value.dim() > lead + 1 + behind:
        value = value.squeeze(0)
    if value.dim() > behind:
        value = _spread(value, value.dim() - 1 - behind, mask)
    where = mask.view(mask.shape + (1,) * behind)
    value = value.to(x.dtype)
    return torch.where(where, x + value if adds else value, x)


def _spread(
    value: torch.Tensor,
    dim: int,
    mask: torch.Tensor,
) -> torch.Tensor:
    """Its elements along `dim`, one for each that the mask chooses, at the mask's places."""
    count = value.shape[dim]
    if statically_known_true(count == 1):
        return value.unflatten(dim, [1] * mask.dim())
    torch._assert_async(
        mask.sum() == count,
        f"shape mismatch: value tensor of shape {list(value.shape)} cannot be broadcast to "
        "indexing result: the mask chooses another number of elements",
    )
    if statically_known_true(count == 0):
        value, count = _filled(value, dim), 1
    order = mask.reshape(-1).cumsum(0) - 1
    chosen = value.index_select(dim, order.clamp(0, count - 1))
    return chosen.unflatten(dim, mask.shape)


def _filled(value: torch.Tensor, dim: int) -> torch.Tensor:
    """A value without elements with one along `dim`, which no place takes."""
    shape = [*value.shape[:dim], 1, *value.shape[dim + 1 :]]
    return torch.cat([value, value.new_zeros(shape)], dim)


def write(
    x: torch.Tensor,
    mask: torch.Tensor,
    value: torch.Tensor,
    lead: int = 0,
    adds: bool = False,
) -> torch.Tensor:
    """The same in place."""
    return x.copy_(written_to(x, mask, value, lead, adds))


def _mask_of(key: Any, written: Any) -> tuple[int, Any] | None:
    """The only part of a subscript that takes less than everything, and how many dimensions come
    before its.
    """
    parts = key if isinstance(key, tuple) else (key,)
    others = [at for at, part in enumerate(parts) if not _is_whole(part)]
    if len(others) != 1:
        return None
    (at,) = others
    mask = _example(parts[at])
    if not isinstance(mask, torch.Tensor) or not isinstance(written, torch.Tensor):
        return None
    if Ellipsis not in parts[:at]:
        return at, parts[at]
    behind = len(parts) - at - 1
    return (written.dim() - mask.dim() - behind, parts[at]) if behind >= 0 else None


def _is_whole(part: Any) -> bool:
    return part is Ellipsis or part == slice(None)


def _example(argument: Any) -> Any:
    return argument.meta.get("example_value") if isinstance(argument, Node) else argument


def _is_choice(lead: int, written: Any, mask: Any, value: Any) -> bool:
    if not all(isinstance(tensor, FakeTensor) for tensor in (written, mask, value)):
        return False
    if mask.dtype is not torch.bool or not mask.dim() or not value.requires_grad:
        return False
    if not written.device == mask.device == value.device or value.is_complex():
        return False
    if value.dim() and value.dtype != written.dtype:  # which eager refuses
        return False
    behind = written.dim() - lead - mask.dim()
    surplus = max(value.dim() - lead - 1 - behind, 0)
    if not all(statically_known_true(extent == 1) for extent in value.shape[:surplus]):
        return False
    if value.dim() <= behind:
        return True
    count = value.shape[-1 - behind]
    return not free_unbacked_symbols(count) and any(
        map(statically_known_true, (count > 0, count == 0))
    )
