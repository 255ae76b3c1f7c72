"""Attention that is written out, as the fused operator that never holds all the weights.

    softmax(q @ k.T * scale + mask) @ v     ->     _scaled_dot_product_flash_attention_for_cpu

float32 on CPU, from `LEAST_SCORES` weights a head on: below that, two matrix products and a fused
softmax are as fast. Weights that somebody else reads (a backward graph, the caller) stay.

The operator gives zeros for rows whose scores are all -inf, where softmax gives NaN. Such rows come
from the mask, so the result is set to NaN where the mask's row is -inf throughout.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from minidynamo.inductor.sizes import has_symbols

aten = torch.ops.aten
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
# Queries times keys from which the operator is faster, and queries below which it is not.
LEAST_SCORES = 1 << 18
LEAST_QUERIES = 32
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
    """What goes into a softmax: `product * scale` plus `masks`; `shape`: where these were added."""

    product: torch.fx.Node
    scale: float = 1.0
    masks: list[torch.fx.Node] = field(default_factory=list)
    shape: tuple[int, ...] = ()


def fuse_attention(gm: torch.fx.GraphModule) -> None:
    """Replace what matches in a graph of constant sizes; see the module's docstring."""
    if has_symbols([node.meta.get("val") for node in gm.graph.nodes]):
        return
    for output in list(gm.graph.find_nodes(op="call_function", target=aten.bmm.default)):
        weights, values = output.args
        softmax = _source(weights, lambda node: node.target is aten._softmax.default)
        if softmax is None or not _is_over_rows(softmax, weights):
            continue
        scores = _scores(softmax.args[0])
        if scores is not None and _is_worth(scores, output):
            _Rewrite(gm, scores, output).run(values)


def _size(node: torch.fx.Node) -> tuple[Any, ...]:
    return tuple(node.meta["val"].shape)


def _is_ordered(node: torch.fx.Node) -> bool:
    """Whether a node has the elements of its operand in the same row-major order."""
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
    if node.target not in _ORDERED:
        return False
    return math.prod(_size(node.args[0])) == math.prod(_size(node))


def _source(node: Any, wanted: Any) -> torch.fx.Node | None:
    """The node that `node` hands on the elements of and that is as wanted; nobody else reads it."""
    while isinstance(node, torch.fx.Node) and len(node.users) == 1:
        if wanted(node):
            return node
        if not _is_ordered(node):
            return None
        node = node.args[0]
    return None


def _is_over_rows(softmax: torch.fx.Node, weights: Any) -> bool:
    """Whether the softmax is along what the product sums over."""
    size = _size(softmax)
    whole = softmax.args[1] in (-1, len(size) - 1) and not softmax.args[2]
    return whole and size[-1] == _size(weights)[-1]


def _scores(node: Any) -> _Scores | None:
    """Take apart what goes into a softmax, from the softmax upwards."""
    found = _Scores(node, shape=_size(node))
    while isinstance(node, torch.fx.Node) and len(node.users) == 1:
        if node.target is aten.bmm.default:
            found.product = node
            return found if _is_consistent(found) else None
        if node.target in _SCALING and _is_number(node.args[1]):
            factor = float(node.args[1])  # type: ignore[arg-type]
            found.scale *= (
                factor if node.target is aten.mul.Tensor else 1 / (factor or math.nan)
            )
            node = node.args[0]
        elif node.target is aten.add.Tensor and found.scale == 1 and not node.kwargs:
            summand = _summand(node)
            if summand is None or (found.masks and _size(node) != found.shape):
                return None
            found.shape = _size(node)
            node, mask = summand
            found.masks.append(mask)
        elif _is_ordered(node):
            node = node.args[0]
            if not found.masks and len(_size(node)) == 4:
                found.shape = _size(node)
        else:
            return None
    return None


def _is_consistent(found: _Scores) -> bool:
    """Whether the scale is one, and the masks have the product's rows."""
    rows = _size(found.product)
    if not math.isfinite(found.scale) or found.scale <= 0:
        return False
    return not found.masks or found.shape == rows or _has_heads(found.shape, rows)


def _has_heads(shape: tuple[Any, ...], rows: tuple[Any, ...]) -> bool:
    """Whether `shape` is that of a product with batch and heads apart."""
    return len(shape) == 4 and shape[2:] == rows[1:] and shape[0] * shape[1] == rows[0]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _summand(node: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """The scores and the mask of an addition, as big as the scores."""
    for scores, mask in (node.args[:2], node.args[1::-1]):
        if not isinstance(scores, torch.fx.Node) or not isinstance(mask, torch.fx.Node):
            return None
        is_product = any(step.target is aten.bmm.default for step in _above(scores))
        fake = mask.meta["val"]
        if is_product and _size(scores) == _size(node):
            return (scores, mask) if fake.dtype == torch.float32 and fake.dim() else None
    return None


def _above(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The node and its first operands, as long as each has one user."""
    step: Any = node
    while isinstance(step, torch.fx.Node) and len(step.users) == 1:
        yield step
        step = step.args[0] if step.args else None


def _is_worth(scores: _Scores, output: torch.fx.Node) -> bool:
    values = [scores.product, output, *output.all_input_nodes, *scores.product.all_input_nodes]
    for node in values:
        fake = node.meta["val"]
        if fake.dtype != torch.float32 or fake.device.type != "cpu":
            return False
    batch, queries, keys = _size(scores.product)
    inner = _size(scores.product.args[0])[-1]  # type: ignore[arg-type]
    if queries * keys < LEAST_SCORES or queries < LEAST_QUERIES or batch == 0:
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

    def call(self, op: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        """A new node, with its fake result."""
        with self.graph.inserting_before(self.output):
            node = self.graph.call_function(op, args, kwargs)
        node.meta = dict(self.output.meta)
        fake = lambda x: x.meta["val"] if isinstance(x, torch.fx.Node) else x  # noqa: E731
        with self.output.meta["val"].fake_mode:
            node.meta["val"] = op(*map(fake, args), **{k: fake(v) for k, v in kwargs.items()})
        return node

    def run(self, values: Any) -> None:
        query, turned = self.scores.product.args
        key = self.call(aten.transpose.int, self.heads(turned), -2, -1)
        arguments = (self.heads(query), key, self.heads(values), 0.0, False)
        options: dict[str, Any] = {"scale": self.scores.scale}
        mask = self.mask()
        if mask is not None:
            options["attn_mask"] = self.expanded(mask)
        both = self.call(FLASH, *arguments, **options)
        result = self.call(operator.getitem, both, 0)
        if mask is not None:
            largest = self.call(aten.amax.default, mask, [-1], True)
            dead = self.call(aten.eq.Scalar, largest, -math.inf)
            nothing = self.call(aten.full.default, [], math.nan, dtype=torch.float32)
            result = self.call(aten.where.self, dead, nothing, result)
        # The operator's result has heads inside of rows; what follows was traced for row-major.
        result = self.call(aten.clone.default, result, memory_format=torch.contiguous_format)
        result = self.call(aten.view.default, result, list(_size(self.output)))
        self.output.replace_all_uses_with(result)
        self.graph.erase_node(self.output)

    def heads(self, node: Any) -> torch.fx.Node:
        """An operand of a product with batch and heads apart: as it was made, else a view."""
        size = (*self.lead, *_size(node)[1:])
        step, found = node, None
        while True:
            found = step if _size(step) == size else found
            if not _is_ordered(step):
                break
            step = step.args[0]
        return found if found is not None else self.call(aten.view.default, node, list(size))

    def mask(self) -> torch.fx.Node | None:
        """The sum of the masks, as small as they are."""
        masks = self.scores.masks
        total = masks[0] if masks else None
        for other in masks[1:]:
            total = self.call(aten.add.Tensor, total, other)
        return total

    def expanded(self, mask: torch.fx.Node) -> torch.fx.Node:
        """The mask in the shape of all scores, without memory for it."""
        whole = self.call(aten.expand.default, mask, list(self.scores.shape))
        if len(self.scores.shape) == 3:
            whole = self.call(aten.unsqueeze.default, whole, 0)
        return whole
