"""What a graph calls for an `autograd.Function` (see autograd_function.py).

Tensors that forward stores on its context itself, and does not pass to save_for_backward, may be
written to before backward: autograd counts no versions of them. What AOTAutograd saves of them for
a backward graph is marked, so that its runtime does the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import _get_proxies
from torch.utils._pytree import tree_leaves


@functools.lru_cache(maxsize=256)
def apply_of(cls: type[torch.autograd.Function]) -> Callable[..., Any]:
    """The target of the node: a plain function, which every reader of FX graphs takes."""

    def apply(*args: Any) -> Any:
        results = cls.apply(*args)
        if _is_traced():
            _mark_stored(cls, results)
        return results

    apply.__name__ = apply.__qualname__ = f"{cls.__name__}_apply"
    apply.has_own_backward = True  # type: ignore[attr-defined]
    return apply


def _is_traced() -> bool:
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    return mode is not None


def _mark_stored(
    cls: type[torch.autograd.Function],
    results: Any,
) -> None:
    """Marks what the context that made `results` holds as attributes."""
    made = [item.grad_fn for item in tree_leaves(results) if isinstance(item, torch.Tensor)]
    for context in made:
        if getattr(context, "_forward_cls", None) is cls:
            saved = {node for item in context.saved_tensors for node in _nodes(item)}
            _mark(tree_leaves(list(vars(context).values())), saved)
            return


def _nodes(item: Any) -> list[torch.fx.Node]:
    return [p.node for p in _get_proxies(item)] if isinstance(item, torch.Tensor) else []


def _mark(
    values: Iterable[Any],
    saved: set[torch.fx.Node],
) -> None:
    for value in values:
        for node in _nodes(value):
            if node not in saved:
                node.meta["saved_tensor_with_no_vc_check"] = True


class _TracedFunction(torch.autograd.Function):
    """The traced halves of a function as an autograd function."""

    @staticmethod
    def forward(ctx: Any, spec: tuple[Any, ...], *operands: Any) -> Any:
        forward, ctx.module, (ctx.wanted, count), plain, ctx.slots, checked = spec
        values = forward(*operands)
        results, saved = values[:count], values[count:]
        ctx.mark_non_differentiable(*(results[index] for index in plain))
        ctx.save_for_backward(*(saved[index] for index in checked))
        ctx.checked = checked
        ctx.saved = [None if index in checked else v for index, v in enumerate(saved)]
        ctx.operands = len(operands)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        saved = list(ctx.saved)
        for index, tensor in zip(ctx.checked, ctx.saved_tensors, strict=True):
            saved[index] = tensor
        totals: list[Any] = [None] * ctx.operands
        given = grads[: ctx.wanted]
        for slot, grad in zip(ctx.slots, ctx.module(*given, *saved), strict=True):
            totals[slot] = grad if totals[slot] is None else totals[slot] + grad
        return None, *totals


def run_halves(
    forward: torch.fx.GraphModule,
    backward: torch.fx.GraphModule,
    counts: tuple[int, int],
    plain: tuple[int, ...],
    slots: tuple[int, ...],
    checked: Sequence[int],
    *operands: Any,
) -> tuple[Any, ...]:
    """A node of the graph. `counts`: how many results forward has, and how many with those that it
    only keeps (those at `plain` without gradient); behind them it gives what is saved. backward
    takes a gradient for each result and what was saved, and gives one for each operand in `slots`.
    Of what is saved, autograd counts the versions of the tensors at `checked`.
    """
    spec = (forward, backward, counts, plain, slots, checked)
    results = _TracedFunction.apply(spec, *operands)
    if _is_traced():
        _mark_stored(_TracedFunction, results)
    return results  # type: ignore[no-any-return]


run_halves.has_own_backward = True  # type: ignore[attr-defined]
