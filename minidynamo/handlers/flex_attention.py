"""`flex_attention`: attention with functions of the program, as dense operations.

The functions are mapped over batch, heads, queries and keys, as torch does it in eager.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch._higher_order_ops.flex_attention import flex_attention
from torch.overrides import TorchFunctionMode

from .. import markers
from ..variables.base import VariableTracker
from ..variables.functions import UserFunctionVariable
from ..variables.registry import handles

if TYPE_CHECKING:
    from ..symbolic_convert import Translator

# The dimensions of (batch, head, query, key) that one level maps over, innermost level first.
_LEVELS = (
    (None, None, None, 0),
    (None, None, 0, None),
    (None, 0, None, None),
    (0, None, None, None),
)


class _Indexing(TorchFunctionMode):
    """A subscript of tensors is an index operation: below vmap none of them has a number."""

    @markers.force_inline
    def __torch_function__(  # type: ignore[override]
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.__getitem__:
            key = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all([isinstance(part, torch.Tensor) for part in key]):
                return torch.ops.aten.index(args[0], list(key))
        return func(*args, **(kwargs or {}))


@markers.force_inline
def _at(function: Any, buffers: Any, *args: Any) -> Any:
    with _Indexing():
        return function(*args, *buffers)


@markers.force_inline
def _mapped(function: Any, prefix: tuple[Any, ...], buffers: Any) -> Any:
    """`function(*prefix, batch, head, query, key, *buffers)` for all positions."""
    at: Any = functools.partial(_at, function, buffers)
    for level in _LEVELS:
        at = torch.vmap(at, in_dims=(*prefix, *level))
    return at


@markers.force_inline
def _laid_out_as(out: Any, strides: Any) -> Any:
    """`out` in memory whose dimensions are ordered as those of the queries, the last one last."""
    rows = sorted([(stride, -dim) for dim, stride in enumerate(strides[:-1])], reverse=True)
    order = [-dim for _, dim in rows] + [len(rows)]
    places = [order.index(dim) for dim in range(len(order))]
    return out.permute(order).contiguous().permute(places)


def _dense_attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any,
    block_mask: Any,
    scale: Any,
    kernel_options: Any,
    score_buffers: Any = (),
    mask_buffers: Any = (),
) -> Any:
    """What the operator gives: the output, and logsumexp and maximum of the scores in base 2."""
    groups = query.size(1) // key.size(1)
    key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
    key, value = (t.expand(query.size(0), *t.shape[1:]) for t in (key, value))
    kind = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = (query.to(kind) @ key.to(kind).transpose(-2, -1)) * scale
    places = [torch.arange(n, device=scores.device) for n in scores.shape]
    mask = _mapped(block_mask[-1], (), mask_buffers)(*places)
    changed = _mapped(score_mod, (0,), score_buffers)(scores, *places)
    lowest = torch.full((), -math.inf, dtype=kind, device=scores.device)
    scores = torch.where(mask, changed, lowest)
    is_empty = torch.all(scores == -math.inf, dim=-1)
    total = torch.where(is_empty, -math.inf, scores.logsumexp(dim=-1))
    weights = torch._safe_softmax(scores, dim=-1)
    out = _laid_out_as(weights.to(query.dtype) @ value.to(query.dtype), query.stride())
    return out, total / math.log(2), scores.max(dim=-1)[0] / math.log(2)


_DENSE: Any = _dense_attention


@handles(flex_attention)
def attention(
    tx: Translator,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
) -> VariableTracker:
    """The functions may look at tensors of the program: they are traced where
    they are mapped.
    """
    return tx.inline(UserFunctionVariable(_DENSE), args, kwargs)
