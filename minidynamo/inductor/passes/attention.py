"""Attention that is written out, as the fused operator that never holds all the weights.

    softmax(masked_fill(q @ k.T * scale + bias, hidden, fill)) @ v     ->     minidynamo::attention

float32 on CPU, from `LEAST_SCORES` weights a head on: below that, two matrix products and a fused
softmax are as fast. Weights that somebody else reads (a backward graph, the caller) stay.

bfloat16 is taken where its products are widened; what lies between them is not rounded then.

The operator (`csrc/attention.cpp`) looks at its operands: where infinite or huge numbers could make
another result than softmax's, it computes the scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from minidynamo.inductor.extern import ATTENTION
from minidynamo.inductor.passes.narrow_products import WIDENED
from minidynamo.inductor.sizes import has_symbols

aten = torch.ops.aten
# Queries times keys from which the operator is faster (heads of at most so many elements; four
# times as many for longer ones), and queries below which it is not.
LEAST_SCORES, SHORT_HEAD = 1 << 16, 64
LEAST_QUERIES = 32
to_dtype = torch.ops.prims.convert_element_type.default
_CONVERSIONS = (to_dtype, aten._to_copy.default)
# bfloat16 beside float32, in which its products are (`narrow_products`): it has the same range.
_FLOATS = {torch.float32, torch.bfloat16}
_SCALING = (aten.mul.Tensor, aten.div.Tensor)
# Operators that hand on the elements in row-major order, if they neither repeat nor turn them.
_ORDERED = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.clone.default,
    aten.expand.default,
}


@dataclass
class _Scores:
    """What goes into a softmax: `product * scale` plus `masks`, and `fill` where `hidden`; `shape`:
    where these were added.
    """

    product: torch.fx.Node
    scale: float = 1.0
    masks: list[torch.fx.Node] = field(default_factory=list)
    # A bool mask, and whether it is true where the scores stay.
    hidden: tuple[torch.fx.Node, bool] | None = None
    fill: float = -math.inf
    shape: tuple[int, ...] = ()

    @property
    def is_masked(
        self,
    ) -> bool:
        """Whether something was added to the product or filled in."""
        return bool(self.masks or self.hidden)


def fuse_attention(
    gm: torch.fx.GraphModule,
) -> None:
    """Replace what matches in a graph of constant sizes; see the module's docstring."""
    if has_symbols([node.meta.get("val") for node in gm.graph.nodes]):
        return
    for output in list(gm.graph.find_nodes(op="call_function", target=aten.bmm.default)):
        weights, values = output.args
        softmax = _source(weights, _is_softmax, WIDENED in output.meta)
        if softmax is None or not _is_over_rows(softmax, weights):
            continue
        scores = _scores(softmax.args[0])
        if scores is not None and _is_worth(scores, output):
            _Rewrite(gm, scores, output).run(values)


def _is_softmax(
    node: torch.fx.Node,
) -> bool:
    return node.target is aten._softmax.default


def _size(
    node: torch.fx.Node,
) -> tuple[Any, ...]:
    return tuple(node.meta["val"].shape)


def _is_ordered(
    node: torch.fx.Node,
) -> bool:
    """Whether a node has the elements of its operand in the same row-major order, in bfloat16 or as
    float32.
    """
    if not node.args or not isinstance(node.args[0], torch.fx.Node):
        return False
    if node.target is aten.permute.default or node.target is aten.transpose.int:
        size = _size(node.args[0])
        dims = list(range(len(size)))
        if node.target is aten.permute.default:
            dims = [d % len(size) for d in node.args[1]]  # type: ignore[union-attr, operator]
        else:
            a, b = (d % len(size) for d in node.args[1:3])  # type: ignore[operator]
            dims[a], dims[b] = dims[b], dims[a]
        long = [d for d in dims if size[d] != 1]
        return long == sorted(long)
    if node.target in _CONVERSIONS:
        return _is_conversion(node) and node.meta["val"].dtype == torch.float32
    if node.target not in _ORDERED:
        return False
    return math.prod(_size(node.args[0])) == math.prod(_size(node))


def _is_conversion(
    node: torch.fx.Node,
) -> bool:
    """Whether it is one between bfloat16 and float32."""
    if node.target not in _CONVERSIONS:
        return False
    fakes = (node.meta["val"], node.args[0].meta["val"])  # type: ignore[union-attr]
    return all(f.dtype in _FLOATS and f.device.type == "cpu" for f in fakes)


def _source(
    node: Any,
    wanted: Any,
    rounds: bool,
) -> torch.fx.Node | None:
    """The node that `node` hands on the elements of and that is as wanted; nobody else reads it.

    rounds: elements may be rounded to bfloat16 on the way.
    """
    while isinstance(node, torch.fx.Node) and len(node.users) == 1:
        if wanted(node):
            return node
        if not (_is_ordered(node) or (rounds and _is_conversion(node))):
            return None
        node = node.args[0]
    return None


def _is_over_rows(
    softmax: torch.fx.Node,
    weights: Any,
) -> bool:
    """Whether the softmax is along what the product sums over."""
    size = _size(softmax)
    whole = softmax.args[1] in (-1, len(size) - 1) and not softmax.args[2]
    return whole and size[-1] == _size(weights)[-1]


def _scores(
    node: Any,
) -> _Scores | None:
    """Take apart what goes into a softmax, from the softmax upwards."""
    found, is_rounded = _Scores(node, shape=_size(node)), False
    while isinstance(node, torch.fx.Node) and len(node.users) == 1:
        if node.target is aten.bmm.default:
            found.product = node
            if is_rounded and WIDENED not in node.meta:
                return None
            return found if _is_consistent(found) else None
        if node.target in _SCALING and _is_number(node.args[1]):
            factor = float(node.args[1])  # type: ignore[arg-type]
            found.scale *= (
                factor if node.target is aten.mul.Tensor else 1 / (factor or math.nan)
            )
            node = node.args[0]
        elif node.target in _MASKING and found.scale == 1 and not node.kwargs:
            if found.is_masked and _size(node) != found.shape:
                return None
            found.shape = _size(node)
            node = _MASKING[node.target](found, node)
        elif _is_ordered(node) or _is_conversion(node):
            is_rounded |= node.target in _CONVERSIONS
            node = node.args[0]
            if not found.is_masked and len(_size(node)) == 4:
                found.shape = _size(node)
        else:
            return None
    return None


def _take_sum(
    found: _Scores,
    node: torch.fx.Node,
) -> torch.fx.Node | None:
    """The scores of an addition, whose mask is noted."""
    summand = _summand(node)
    if summand is None or (found.hidden is not None and found.fill != -math.inf):
        return None
    found.masks.append(summand[1])
    return summand[0]


def _take_filled(
    found: _Scores,
    node: torch.fx.Node,
) -> Any:
    """The scores of `masked_fill`."""
    scores, mask, value = node.args
    return _hide(found, scores, mask, value, False)


def _take_chosen(
    found: _Scores,
    node: torch.fx.Node,
) -> Any:
    """The scores of `where(mask, scores, number)`, or with the two exchanged."""
    mask, kept, other = node.args
    if _number(kept) is not None:
        return _hide(found, other, mask, kept, False)
    return _hide(found, kept, mask, other, True)


def _hide(
    found: _Scores,
    scores: Any,
    mask: Any,
    value: Any,
    is_kept: bool,
) -> Any:
    fill = _number(value)
    known = isinstance(scores, torch.fx.Node) and isinstance(mask, torch.fx.Node)
    if fill is None or not known or found.hidden or found.masks or _size(scores) != found.shape:
        return None
    flags = mask.meta["val"]
    if math.isnan(fill) or flags.dtype != torch.bool or not flags.dim():
        return None
    found.hidden, found.fill = (mask, is_kept), fill
    return scores


def _number(
    value: Any,
) -> float | None:
    """A number, or what a tensor of one element is filled with."""
    if isinstance(value, torch.fx.Node):
        made = {aten.full.default: 1, aten.scalar_tensor.default: 0}.get(value.target)
        if made is None or value.meta["val"].numel() != 1:
            return None
        value = value.args[made]
    return float(value) if _is_number(value) else None


_MASKING = {
    aten.add.Tensor: _take_sum,
    aten.masked_fill.Scalar: _take_filled,
    aten.masked_fill.Tensor: _take_filled,
    aten.where.self: _take_chosen,
    aten.where.ScalarOther: _take_chosen,
    aten.where.ScalarSelf: _take_chosen,
}


def _is_consistent(
    found: _Scores,
) -> bool:
    """Whether the scale is one, and the masks have the product's rows."""
    rows = _size(found.product)
    if not math.isfinite(found.scale) or found.scale <= 0:
        return False
    return not found.is_masked or found.shape == rows or _has_heads(found.shape, rows)


def _has_heads(
    shape: tuple[Any, ...],
    rows: tuple[Any, ...],
) -> bool:
    """Whether `shape` is that of a product with batch and heads apart."""
    return len(shape) == 4 and shape[2:] == rows[1:] and shape[0] * shape[1] == rows[0]


def _is_number(
    value: Any,
) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _summand(
    node: torch.fx.Node,
) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """The scores and the mask of an addition, as big as the scores."""
    for scores, mask in (node.args[:2], node.args[1::-1]):
        if not isinstance(scores, torch.fx.Node) or not isinstance(mask, torch.fx.Node):
            return None
        is_product = any(step.target is aten.bmm.default for step in _above(scores))
        fake = mask.meta["val"]
        if is_product and _size(scores) == _size(node):
            return (scores, mask) if fake.dtype in _FLOATS and fake.dim() else None
    return None


def _above(
    node: torch.fx.Node,
) -> Iterator[torch.fx.Node]:
    """The node and its first operands, as long as each has one user."""
    step: Any = node
    while isinstance(step, torch.fx.Node) and len(step.users) == 1:
        yield step
        step = step.args[0] if step.args else None


def _is_worth(
    scores: _Scores,
    output: torch.fx.Node,
) -> bool:
    values = [scores.product, output, *output.all_input_nodes, *scores.product.all_input_nodes]
    for node in values:
        fake = node.meta["val"]
        if fake.dtype != torch.float32 or fake.device.type != "cpu":
            return False
    batch, queries, keys = _size(scores.product)
    inner = _size(scores.product.args[0])[-1]  # type: ignore[arg-type]
    least = LEAST_SCORES if inner <= SHORT_HEAD else 4 * LEAST_SCORES
    if queries * keys < least or queries < LEAST_QUERIES or batch == 0:
        return False
    return bool(inner and inner == _size(output)[-1])


class _Rewrite:
    """One replacement; new nodes stand before the last product.

    Attributes:
        lead: batch and heads, as they were before they became one dimension.
    """

    def __init__(
        self, gm: torch.fx.GraphModule, scores: _Scores, output: torch.fx.Node
    ) -> None:
        self.graph = gm.graph
        self.scores = scores
        self.output = output
        rows = _size(scores.product)
        has_heads = _has_heads(scores.shape, rows)
        self.lead = scores.shape[:2] if has_heads else (1, rows[0])

    def call(
        self,
        op: Any,
        *args: Any,
        **kwargs: Any,
    ) -> torch.fx.Node:
        """A new node, with its fake result."""
        with self.graph.inserting_before(self.output):
            node = self.graph.call_function(op, args, kwargs)
        node.meta = dict(self.output.meta)
        fake = lambda x: x.meta["val"] if isinstance(x, torch.fx.Node) else x  # noqa: E731
        with self.output.meta["val"].fake_mode:
            node.meta["val"] = op(*map(fake, args), **{k: fake(v) for k, v in kwargs.items()})
        return node

    def run(
        self,
        values: Any,
    ) -> None:
        query, turned = self.scores.product.args
        key = self.call(aten.transpose.int, self.heads(turned), -2, -1)
        arguments = (self.heads(query), key, self.heads(values), self.mask(), self.hidden())
        result = self.call(ATTENTION, *arguments, self.scores.fill, self.scores.scale)
        # The operator's result has heads inside of rows; what follows was traced for row-major.
        result = self.call(aten.clone.default, result, memory_format=torch.contiguous_format)
        result = self.call(aten.view.default, result, list(_size(self.output)))
        self.output.replace_all_uses_with(result)
        self.graph.erase_node(self.output)

    def heads(
        self,
        node: Any,
    ) -> torch.fx.Node:
        """An operand of a product with batch and heads apart: as it was made, else a view."""
        size = (*self.lead, *_size(node)[1:])
        step, found = node, None
        while True:
            found = step if _size(step) == size else found
            if not _is_ordered(step):
                break
            step = step.args[0]
        if found is None:
            found = self.call(aten.view.default, node, list(size))
        return self.wide(found)

    def wide(
        self,
        node: torch.fx.Node,
    ) -> torch.fx.Node:
        if node.meta["val"].dtype == torch.float32:
            return node
        return self.call(to_dtype, node, torch.float32)

    def mask(
        self,
    ) -> torch.fx.Node | None:
        """The sum of the masks, as small as they are."""
        masks = self.scores.masks
        total = self.wide(masks[0]) if masks else None
        for other in masks[1:]:
            total = self.call(aten.add.Tensor, total, self.wide(other))
        return total

    def hidden(
        self,
    ) -> torch.fx.Node | None:
        """The bool mask, true where scores are filled."""
        if self.scores.hidden is None:
            return None
        mask, is_kept = self.scores.hidden
        return self.call(aten.logical_not.default, mask) if is_kept else mask
