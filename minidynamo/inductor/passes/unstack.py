"""Reading one slice of a stack again, as what was stacked.

    unbind(cat([unsqueeze(a, 0), unsqueeze(b, 0)], 0), 0)[1]     ->     b
    select(view(cat([a, b], 0), [2, n, m]), 0, 1)                ->     b

Optimizers stack a number a parameter and take the stack apart: with that gone, every parameter's
step is the same kernel.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.node import map_arg

from minidynamo.inductor.ir import OVERWRITTEN
from minidynamo.inductor.passes.simplify import is_fresh_memory, may_share_memory

aten = torch.ops.aten


def read_pieces(
    gm: torch.fx.GraphModule,
) -> None:
    """Replace slices of stacks by what was stacked."""
    for node in list(gm.graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            return  # it may write to a piece
        stacked = _stacked(node)
        if stacked is not None and OVERWRITTEN not in node.meta:
            pieces, dim = stacked
            for reader, position in list(_readers(node, dim)):
                _read(reader, pieces, position)


def _dim(
    node: torch.fx.Node,
    rank: int,
) -> int:
    dim: Any = node.args[1] if len(node.args) > 1 else 0
    return int(dim) % rank


def _stacked(
    node: torch.fx.Node,
) -> tuple[Sequence[torch.fx.Node], int] | None:
    """What a node stacks, and along which new dimension."""
    if node.target is aten.cat.default:
        dim = _dim(node, node.meta["val"].dim())
        pieces: Any = node.args[0]
        for piece in pieces:
            if piece.target is not aten.unsqueeze.default:
                return None
            if _dim(piece, piece.meta["val"].dim()) != dim:
                return None
        return [piece.args[0] for piece in pieces], dim
    joined: Any = node.args[0] if node.target is aten.view.default else None
    if not isinstance(joined, torch.fx.Node) or joined.target is not aten.cat.default:
        return None
    pieces, dim = joined.args[0], _dim(joined, joined.meta["val"].dim())
    shape = list(pieces[0].meta["val"].shape)
    if any(type(n) is not int for n in shape) or OVERWRITTEN in joined.meta:
        return None
    if any(list(piece.meta["val"].shape) != shape for piece in pieces):
        return None
    whole = [*shape[:dim], len(pieces), *shape[dim:]]
    return (pieces, dim) if list(node.meta["val"].shape) == whole else None


def _readers(
    node: torch.fx.Node,
    dim: int,
) -> Iterator[tuple[torch.fx.Node, Any]]:
    """Nodes that are one slice, with its position."""
    rank = node.meta["val"].dim()
    for user in list(node.users):
        if user.target is aten.select.int and _dim(user, rank) == dim:
            yield user, user.args[2]
        elif user.target is aten.unbind.int and _dim(user, rank) == dim:
            parts = [part for part in user.users if part.target is operator.getitem]
            yield from ((part, part.args[1]) for part in parts)


def _read(
    reader: torch.fx.Node,
    pieces: Sequence[torch.fx.Node],
    position: Any,
) -> None:
    if not isinstance(position, int) or not -len(pieces) <= position < len(pieces):
        return
    piece = pieces[position]
    if is_fresh_memory(reader) or OVERWRITTEN in piece.meta or counts_from_the_start(reader):
        return
    known, value = piece.meta["val"], reader.meta["val"]
    if known.dtype == value.dtype and known.stride() == value.stride():
        users = list(reader.users)
        reader.replace_all_uses_with(piece)
        with value.fake_mode, torch.no_grad():
            for user in users:
                view_again(user)


def counts_from_the_start(
    node: torch.fx.Node,
) -> bool:
    """Whether a view says itself where in the memory of the stack it lies."""
    return any(
        user.target is aten.as_strided.default
        or (may_share_memory(user) and counts_from_the_start(user))
        for user in node.users
    )


def view_again(
    node: torch.fx.Node,
) -> None:
    """Says where a view of what was read lies now: a piece begins elsewhere than its slice of the
    stack, and lowering takes the distance between a view and what it is a view of.
    """
    is_part = node.target is operator.getitem
    if not is_part and not (
        isinstance(node.target, torch._ops.OpOverload) and may_share_memory(node)
    ):
        return
    args, kwargs = map_arg((node.args, node.kwargs), lambda given: given.meta["val"])
    node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
    for user in node.users:
        view_again(user)
