"""Graphs of models under DistributedDataParallel are compiled in pieces, one for each bucket.

DDP starts to reduce a bucket when the gradients of all its parameters are there. The backward of
one compiled graph hands out all gradients at its end: nothing would overlap. So
`compile_in_buckets(compile_one, gm, inputs)` cuts the graph where DDP cuts its parameters (last
layers first), compiles each piece on its own, and returns what calls them in turn; autograd then
runs one backward after the other, and the reducer works in between. Pieces are joined where memory
that one of them knows is written to in a later one. See Li et al., "PyTorch
Distributed: Experiences on Accelerating Data Parallel Training", 2020.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.passes.split_module import split_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

__all__ = ["active_ddp", "bucket_of_nodes", "compile_in_buckets"]

CompileOne = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def active_ddp() -> DistributedDataParallel | None:
    """The DDP module whose `forward` is running, if there is one."""
    ddp = DistributedDataParallel._get_active_ddp_module()
    return ddp if isinstance(ddp, DistributedDataParallel) else None


def bucket_of_nodes(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    first_cap: int,
    cap: int,
) -> dict[torch.fx.Node, int]:
    """Operation -> number of its piece, counted from the start of the graph.

    first_cap, cap: bytes of parameters after which the first bucket, and each other one, is full;
    buckets fill from the end of the graph, as gradients come.
    """
    values = dict(zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True))
    weights = {node: value for node, value in values.items() if _is_reduced(value)}
    operations = [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]
    backwards: dict[torch.fx.Node, int] = {}
    bucket, size = 0, 0
    for node in reversed(operations):
        if size >= (cap if bucket else first_cap) and size:
            bucket, size = bucket + 1, 0
        backwards[node] = bucket
        for argument in node.all_input_nodes:
            value = weights.pop(argument, None)
            if value is not None:
                size += value.numel() * value.element_size()
    if size == 0 and bucket:  # what comes before the first parameter belongs to its piece
        backwards = {node: min(number, bucket - 1) for node, number in backwards.items()}
    last = max(backwards.values(), default=0)
    return {node: last - backwards[node] for node in operations}


def _is_reduced(value: Any) -> bool:
    return (
        isinstance(value, torch.nn.Parameter)
        and value.requires_grad
        and not getattr(value, "_ddp_ignored", False)
    )


class Writes:
    """Which tensors a call writes to: those whose version counters it moves.

    seen = Writes(nodes); ...; node.meta["writes"] = seen.memory()
    """

    def __init__(self, nodes: Iterable[torch.fx.Node]) -> None:
        values = [node.meta["example_value"] for node in nodes]
        self._before = [(value, value._version) for value in values if _is_counted(value)]

    def memory(self) -> frozenset[int]:
        """The storages written to since."""
        moved = [value for value, version in self._before if value._version != version]
        return frozenset(map(_storage, moved))


def _is_counted(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not value.is_inference()
    )


def _storage(value: torch.Tensor) -> int:
    return value.untyped_storage()._cdata


def _memory_of(node: torch.fx.Node) -> Iterator[int]:
    """The storages of a node's arguments and results."""
    for used in (node, *node.all_input_nodes):
        for value in tree_leaves(used.meta.get("example_value")):
            if _is_counted(value):
                yield _storage(value)


def keep_writes_together(
    pieces: Mapping[torch.fx.Node, int],
) -> dict[torch.fx.Node, int]:
    """Pieces hand over values: memory is written to in the first piece that knows it, or in one
    with which all between are joined.
    """
    first: dict[int, int] = {}
    joined: set[int] = set()  # pieces that belong to the one before
    for node, piece in pieces.items():
        for memory in _memory_of(node):
            first.setdefault(memory, piece)
        for memory in node.meta.get("writes", ()):
            joined.update(range(first[memory] + 1, piece + 1))
    kept = sorted(set(pieces.values()) - joined)
    number = {piece: bisect_right(kept, piece) - 1 for piece in pieces.values()}
    return {node: number[piece] for node, piece in pieces.items()}


def _can_split(gm: torch.fx.GraphModule) -> bool:
    """Operators with graphs of their own stay with what they share."""
    targets = (node.target for node in gm.graph.nodes)
    return not any(isinstance(target, torch._ops.HigherOrderOperator) for target in targets)


def compile_in_buckets(
    compile_one: CompileOne,
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
) -> Callable[..., Any] | None:
    """A callable over gm's inputs, or None where the graph has one bucket or cannot be cut.

    compile_one: the backend. Every node of gm has `meta["example_value"]`.
    """
    ddp = active_ddp()
    if ddp is None or not _can_split(gm):
        return None
    first_cap = min(torch.distributed._DEFAULT_FIRST_BUCKET_BYTES, ddp.bucket_bytes_cap)
    pieces = bucket_of_nodes(gm, inputs, first_cap, ddp.bucket_bytes_cap)
    pieces = keep_writes_together(pieces)
    if not any(pieces.values()):
        return None
    for body in gm.graph.find_nodes(op="get_attr"):  # has no sizes to hand over
        body.meta.pop("example_value", None)
    whole = split_module(
        gm, torch.nn.Module(), lambda node: pieces[node], keep_original_order=True
    )
    known = dict(zip(whole.graph.find_nodes(op="placeholder"), inputs, strict=True))
    for node in whole.graph.nodes:
        if node.op == "call_module":
            piece = getattr(whole, node.target)
            compiled, known[node] = _compile_piece(
                compile_one, piece, [known[a] for a in node.args]
            )
            setattr(whole, node.target, compiled)
        elif node.op == "call_function":  # getitem of a piece's results
            known[node] = node.target(known[node.args[0]], *node.args[1:])
    return whole.forward


class _Piece(torch.nn.Module):
    def __init__(
        self,
        compiled: Callable[..., Any],
        is_single: bool,
    ) -> None:
        super().__init__()
        self.compiled = compiled
        self.is_single = is_single

    def forward(self, *args: Any) -> Any:
        results = self.compiled(*args)
        return results[0] if self.is_single else results


def _compile_piece(
    compile_one: CompileOne,
    piece: torch.fx.GraphModule,
    inputs: Sequence[Any],
) -> tuple[_Piece, Any]:
    """The compiled piece, and fake values like its results."""
    (output,) = piece.graph.find_nodes(op="output")
    results = output.args[0]
    is_single = not isinstance(results, (tuple, list))
    if is_single:
        output.args = ((results,),)
        piece.recompile()
    fakes = [_boundary(node.meta["example_value"]) for node in output.args[0]]
    return _Piece(compile_one(piece, inputs), is_single), fakes[0] if is_single else fakes


def _boundary(value: Any) -> Any:
    """A result of one piece as input of the next: no history, but the same need of a gradient."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().requires_grad_(value.requires_grad)
