"""Tensors that are filled part by part, as concatenations of the parts.

    y = zeros(n, 3); y[:, 0] = a; y[:, 1] = b; y[:, 2] = c      ->      y = stack([a, b, c], 1)
    y[:, 1] behind that                                         ->      b

AOTAutograd makes each write a `select_scatter`, or `slice_scatter`: a new tensor, of which every
element asks whether it is in the part. Reads of a part that was written are the value that was
written, and of one that was not, what was there before; a part that is written twice is written
once. What is left of the writes along one dimension is a concatenation, each piece of which is
computed by a loop of its own, with what it is made of. The same holds for what grows by
concatenation in a loop.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from minidynamo.inductor.ir import OVERWRITTEN, is_dense
from minidynamo.inductor.passes.narrow_products import call
from minidynamo.inductor.passes.simplify import is_fresh_memory, may_share_memory
from minidynamo.inductor.passes.unstack import counts_from_the_start, view_again

aten = torch.ops.aten
CAT = aten.cat.default
_READS = {aten.select.int, aten.slice.Tensor}
_WRITES = {aten.select_scatter.default, aten.slice_scatter.default}
_UNUSED = {aten.copy.default, *_READS, *_WRITES}
# Along the last dimension a short row is made of pieces even if one place of it is written.
SHORT_ROW = 8


@dataclass(frozen=True, slots=True)
class Part:
    """The places from `start` up to `end` along a dimension; is_one: a single one, without it."""

    dim: int
    start: int
    end: int
    is_one: bool

    def holds(self, other: Part) -> bool:
        return self.start <= other.start and other.end <= self.end

    def meets(self, other: Part) -> bool:
        return self.start < other.end and other.start < self.end


def join_parts(
    gm: torch.fx.GraphModule,
) -> None:
    """Rewrite a graph's reads and writes of parts; see the module's docstring."""
    _drop_unused(gm.graph)
    for node in _before_mutation(gm.graph):
        if _is_of_all(node):
            _skip(node)
        elif node.target in _READS:
            _forward(node)
    _drop_unused(gm.graph)
    # What only earlier ones needed goes first: of several writes to a row the last is a row.
    for node in reversed(_before_mutation(gm.graph)):
        if node._erased:
            continue
        if node.target in _UNUSED and not node.users:
            gm.graph.erase_node(node)
        elif node.target is CAT:
            _flatten(node)
        elif node.target in _WRITES:
            _skip_covered(node)
            if _part(node) is not None and not _is_below(node):
                _concatenate(gm.graph, node)


def _is_of_all(node: torch.fx.Node) -> bool:
    """Whether it is a slice of all places along a dimension, however many these are."""
    if node.target is aten.slice.Tensor:
        places = node.args[2:]
    elif node.target is aten.slice_scatter.default:
        places = node.args[3:]
    else:
        return False
    start, end, step = places + (None, None, 1)[len(places) :]
    return start in (None, 0) and end in (None, sys.maxsize) and step == 1 and not node.kwargs


def _skip(node: torch.fx.Node) -> None:
    """Use what is all of a slice, or what is written to all of it, in its place."""
    value: Any = node.args[0 if node.target is aten.slice.Tensor else 1]
    if is_fresh_memory(node) or counts_from_the_start(node) or OVERWRITTEN in node.meta:
        return
    sizes = tuple(value.meta["val"].shape), tuple(node.meta["val"].shape)
    if statically_known_true(sym_eq(*sizes)) and _replaces(node, value):
        users = list(node.users)
        node.replace_all_uses_with(value)
        node.graph.erase_node(node)
        with value.meta["val"].fake_mode:
            for user in users:
                view_again(user)


def _before_mutation(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Nodes in front of the first that may write to a part of something."""
    found = []
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            break
        found.append(node)
    return found


def _drop_unused(
    graph: torch.fx.Graph,
) -> None:
    for node in reversed(graph.nodes):
        if not node.users and node.target in _UNUSED:
            graph.erase_node(node)


def _part(
    node: torch.fx.Node,
) -> Part | None:
    """What a node reads or writes; None where that is not known, or has gaps."""
    whole: Any = node.args[0]
    fake = whole.meta["val"]
    if OVERWRITTEN in node.meta:
        return None
    at = 1 if node.target in _READS else 2
    given: Any = node.args[at:] or (0,)
    dim, rest = given[0], given[1:]
    if node.kwargs or not all(v is None or type(v) is int for v in (dim, *rest)):
        return None
    if not -fake.dim() <= dim < fake.dim():
        return None
    dim %= fake.dim()
    extent = fake.shape[dim]
    if type(extent) is not int:
        return None
    if node.target in (aten.select.int, aten.select_scatter.default):
        if not -extent <= rest[0] < extent:
            return None
        part = Part(dim, rest[0] % extent, rest[0] % extent + 1, True)
    else:
        start, end, step = rest + (None, None, 1)[len(rest) :]
        places = range(extent)[start:end]
        if step != 1 or not places:
            return None
        part = Part(dim, places.start, places.stop, False)
    return part if node.target in _READS or _fits(node, part, fake) else None


def _fits(
    node: torch.fx.Node,
    part: Part,
    whole: torch.Tensor,
) -> bool:
    """Whether what a node writes has the part's shape; eager has an error for others."""
    source: Any = node.args[1]
    shape = [*whole.shape]
    shape[part.dim : part.dim + 1] = [] if part.is_one else [part.end - part.start]
    return statically_known_true(sym_eq(tuple(source.meta["val"].shape), tuple(shape)))


# -- reads ----------------------------------------------------------------------------------------
def _forward(
    node: torch.fx.Node,
) -> None:
    """Read from where the part was written, or made, or came to be in the first place."""
    part = _part(node)
    if part is None or is_fresh_memory(node) or counts_from_the_start(node):
        return
    source: Any = node.args[0]
    while True:
        before = _before(source, part)
        if before is None:
            break
        source = before
    place = _place(source, part)
    with node.meta["val"].fake_mode:
        if place is not None:
            value, first = place
            read = value if first is None else _read(node, value, part, first)
            if _replaces(node, read):
                users = list(node.users)
                node.replace_all_uses_with(read)
                node.graph.erase_node(node)
                for user in users:
                    view_again(user)
                if first is not None:
                    _forward(read)
        elif source is not node.args[0] and _is_begin(source, node.args[0]):
            node.update_arg(0, source)
            view_again(node)


def _is_begin(
    source: torch.fx.Node,
    last: Any,
) -> bool:
    """Whether `source` is what the writes that lead to `last` begin with, and stays what it is: in
    between they may write in place, an input even at its beginning.
    """
    return (
        source.target not in _WRITES
        and not _is_written_back(source)
        and _are_alike(source, last)
    )


def _replaces(
    node: torch.fx.Node,
    value: torch.fx.Node,
) -> bool:
    """Whether what views a node can view another one, which has the same elements."""
    old, new = node.meta["val"], value.meta["val"]
    if OVERWRITTEN in value.meta or _is_written_back(value):
        return False
    fits = statically_known_true(sym_eq(new.stride(), old.stride())) or _is_plain(new)
    return bool(fits and new.dtype == old.dtype and new.device == old.device)


def _is_written_back(
    node: Any,
) -> bool:
    """Whether it lies in an input that is written at the end, and may be before, in place."""
    while node.op == "call_function" and may_share_memory(node):
        if not node.all_input_nodes:
            return False
        node = node.all_input_nodes[0]
    return any(u.target is aten.copy_.default and u.args[0] is node for u in node.users)


def _before(
    source: Any,
    part: Part,
) -> torch.fx.Node | None:
    """What `source` has there, if it is made by a write of other places."""
    if source.target not in _WRITES:
        return None
    written = _part(source)
    if written is None or written.dim != part.dim or written.meets(part):
        return None
    return source.args[0]  # type: ignore[no-any-return]


def _place(
    source: Any,
    part: Part,
) -> tuple[torch.fx.Node, int | None] | None:
    """The tensor that was written there, or concatenated, and where the part begins in it; None:
    it is the part.
    """
    if source.target in _WRITES:
        written = _part(source)
        if written is None or written.dim != part.dim or not written.holds(part):
            return None
        if written.is_one != part.is_one:
            return None if written.is_one else (source.args[1], part.start - written.start)
        same = written == part
        return source.args[1], None if same else part.start - written.start
    if source.target is not CAT or OVERWRITTEN in source.meta:
        return None
    dim = (source.args[1] if len(source.args) > 1 else 0) % source.meta["val"].dim()
    start = 0
    for piece in source.args[0] if dim == part.dim else ():
        shape = piece.meta["val"].shape
        if len(shape) != source.meta["val"].dim() or type(shape[dim]) is not int:
            return None
        end = start + shape[dim]
        if start <= part.start and part.end <= end:
            same = not part.is_one and (start, end) == (part.start, part.end)
            return piece, None if same else part.start - start
        start = end
    return None


def _read(
    node: torch.fx.Node,
    value: torch.fx.Node,
    part: Part,
    first: int,
) -> torch.fx.Node:
    if part.is_one:
        return call(node.graph, node, aten.select.int, value, part.dim, first)
    last = first + part.end - part.start
    return call(node.graph, node, aten.slice.Tensor, value, part.dim, first, last)


def _are_alike(
    a: Any,
    b: Any,
) -> bool:
    left, right = a.meta["val"], b.meta["val"]
    return left.dtype == right.dtype and statically_known_true(
        sym_eq(left.stride(), right.stride())
    )


def _is_plain(fake: torch.Tensor) -> bool:
    """Whether it lies row by row, also in its dimensions of size 1."""
    step: int | torch.SymInt = 1
    for extent, stride in zip(reversed(fake.shape), reversed(fake.stride()), strict=True):
        if not statically_known_true(stride == step):
            return False
        step = step * extent
    return True


def _is_dense(fake: torch.Tensor) -> bool:
    """Whether it has no holes, with the sizes of now; where these are not known, it may."""
    numbers = [*fake.shape, *fake.stride()]
    known = [n if type(n) is int else n.node.hint for n in numbers]  # type: ignore[attr-defined]
    rank = fake.dim()
    return None in known or is_dense(tuple(known[:rank]), tuple(known[rank:]))


# -- writes ---------------------------------------------------------------------------------------
def _skip_covered(
    node: torch.fx.Node,
) -> None:
    """A write does not need what an earlier one, for it alone, put where it writes itself."""
    part = _part(node)
    while part is not None:
        base: Any = node.args[0]
        is_write = base.target in _WRITES and len(base.users) == 1
        earlier = _part(base) if is_write else None
        if earlier is None or earlier.dim != part.dim or not part.holds(earlier):
            return
        if not _are_alike(base, base.args[0]):
            return
        node.update_arg(0, base.args[0])
        node.graph.erase_node(base)


def _is_below(
    node: torch.fx.Node,
) -> bool:
    """Whether another write goes on from it, and nothing else needs it."""
    if len(node.users) != 1:
        return False
    (user,) = node.users
    return user.target in _WRITES and user.args[0] is node and _follows(user, node)


def _follows(
    user: torch.fx.Node,
    node: torch.fx.Node,
) -> bool:
    own, other = _part(user), _part(node)
    return own is not None and other is not None and own.dim == other.dim


def _concatenate(
    graph: torch.fx.Graph,
    node: torch.fx.Node,
) -> None:
    """A chain of writes that ends with `node`, as a concatenation, where that is better."""
    root: Any = node
    while root.target in _WRITES:
        root = root.args[0]
    if _is_written_back(root):
        return  # an input, which is written in place
    chain = [node]
    while True:
        base: Any = chain[-1].args[0]
        if base.target not in _WRITES or not _is_below(base) or not _follows(chain[-1], base):
            break
        chain.append(base)
    fake = node.meta["val"]
    parts = [_part(write) for write in chain]
    sources: list[Any] = [write.args[1] for write in chain]
    kinds = {(s.meta["val"].dtype, s.meta["val"].device) for s in (base, *sources)}
    if kinds != {(fake.dtype, fake.device)} or any(
        OVERWRITTEN in s.meta for s in (base, *sources)
    ):
        return
    dim = parts[0].dim  # type: ignore[union-attr]
    owners = _owners(parts, fake.shape[dim])  # type: ignore[arg-type]
    is_seen = is_fresh_memory(node) or counts_from_the_start(node)
    if not _is_plain(fake) and (is_seen or _is_dense(fake)):
        return
    if not _is_better(fake, dim, len(chain), owners):
        return
    with fake.fake_mode:
        pieces = list(_pieces(graph, node, base, sources, parts, owners))  # type: ignore[arg-type]
        is_one = len(pieces) == 1 and not is_seen
        result = pieces[0] if is_one else call(graph, node, CAT, pieces, dim)
        users = list(node.users)
        node.replace_all_uses_with(result)
        for user in users:
            view_again(user)
    graph.erase_node(node)


def _owners(
    parts: list[Part],
    extent: int,
) -> list[int]:
    """For each place the position of the write that is the last to change it; -1: none does."""
    owners = [-1] * extent
    for position in reversed(range(len(parts))):
        part = parts[position]
        owners[part.start : part.end] = [position] * (part.end - part.start)
    return owners


def _is_better(
    fake: torch.Tensor,
    dim: int,
    writes: int,
    owners: list[int],
) -> bool:
    left = owners.count(-1)
    if dim == fake.dim() - 1 and len(owners) <= SHORT_ROW:
        return True
    return writes > 1 and (not left or writes >= 4 or left <= len(owners) // 2)


def _pieces(
    graph: torch.fx.Graph,
    node: torch.fx.Node,
    base: torch.fx.Node,
    sources: list[torch.fx.Node],
    parts: list[Part],
    owners: list[int],
) -> Iterator[torch.fx.Node]:
    start, dim = 0, parts[0].dim
    while start < len(owners):
        owner, end = owners[start], start + 1
        while end < len(owners) and owners[end] == owner:
            end += 1
        if owner == -1:
            yield call(graph, node, aten.slice.Tensor, base, dim, start, end)
        elif parts[owner].is_one:
            yield call(graph, node, aten.unsqueeze.default, sources[owner], dim)
        elif end - start == parts[owner].end - parts[owner].start:
            yield sources[owner]
        else:
            first = start - parts[owner].start
            last = end - parts[owner].start
            yield call(graph, node, aten.slice.Tensor, sources[owner], dim, first, last)
        start = end


def _flatten(
    node: torch.fx.Node,
) -> None:
    """A concatenation whose first piece is one, which nothing else needs."""
    while True:
        pieces: Any = node.args[0]
        first = pieces[0]
        if first.target is not CAT or first.args[1:] != node.args[1:] or first.kwargs:
            return
        fakes = [piece.meta["val"] for piece in first.args[0]]
        is_plain = all(f.dim() == node.meta["val"].dim() for f in fakes)
        if len(first.users) != 1 or pieces.count(first) != 1 or not is_plain:
            return
        if {f.dtype for f in fakes} != {node.meta["val"].dtype} or OVERWRITTEN in first.meta:
            return
        node.update_arg(0, [*first.args[0], *pieces[1:]])
        node.graph.erase_node(first)
