"""Operators that look at their data in eager, and do not where they are traced, as ones that do.

The first pass: it is given the front end's graph of torch functions, not an aten graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F

from minidynamo import _C

assert _C.__name__  # the extension registers the operator
ONE_HOT = torch.ops.minidynamo.one_hot.default


def keep_checks(gm: torch.fx.GraphModule) -> None:
    """Put `minidynamo::one_hot` for `one_hot` with a known number of classes, and explicit checks
    before one with a symbolic number, before quantiles at places that are data, and before `istft`.
    """
    changed = False
    for node in _nodes(gm, "istft", torch.istft):
        node.op, node.target = "call_function", _istft
        changed = True
    for node in _nodes(gm, *_QUANTILES):
        places = node.args[1] if len(node.args) > 1 else node.kwargs["q"]
        if isinstance(places, torch.fx.Node) and _is_tensor(places):
            name = node.target if node.op == "call_method" else node.target.__name__
            node.op, node.target = "call_function", _CHECKED_QUANTILES[name]
            changed = True
    for node in gm.graph.find_nodes(op="call_function", target=F.one_hot):
        tensor, classes = _one_hot_arguments(*node.args, **node.kwargs)
        if isinstance(classes, int) and classes <= 0:
            continue  # counted by their largest
        with gm.graph.inserting_before(node):
            # Rows are laid out one after the other, whatever the classes' strides are.
            tensor = gm.graph.call_method("contiguous", (tensor,))
        node.target = ONE_HOT if isinstance(classes, int) else _one_hot_checked
        node.args, node.kwargs = (tensor, classes), {}
        changed = True
    if changed:
        gm.recompile()


def _nodes(gm: torch.fx.GraphModule, *targets: Any) -> Iterator[torch.fx.Node]:
    for target in targets:
        op = "call_method" if isinstance(target, str) else "call_function"
        yield from gm.graph.find_nodes(op=op, target=target)


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.Tensor)


def _quantile(x: torch.Tensor, q: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.quantile(x, _checked_places(q), *args, **kwargs)


def _nanquantile(x: torch.Tensor, q: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.nanquantile(x, _checked_places(q), *args, **kwargs)


def _checked_places(q: torch.Tensor) -> torch.Tensor:
    text = "quantile() q values must be in the range [0, 1]"
    torch._assert_async(((q >= 0) & (q <= 1)).all(), text)
    return q


_CHECKED_QUANTILES = {"quantile": _quantile, "nanquantile": _nanquantile}
_QUANTILES = (*_CHECKED_QUANTILES, torch.quantile, torch.nanquantile)


def _one_hot_arguments(tensor: Any, num_classes: Any = -1) -> tuple[Any, Any]:
    return tensor, num_classes


def _one_hot_checked(tensor: torch.Tensor, num_classes: int) -> torch.Tensor:
    if num_classes > 0:
        for good, text in (
            (tensor >= 0, "Class values must be non-negative."),
            (tensor < num_classes, "Class values must be smaller than num_classes."),
        ):
            torch._assert_async(good.all(), text)
    return F.one_hot(tensor, num_classes)


def _istft(
    x: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> torch.Tensor:
    """The operator divides by the sum of its windows, which has to be nowhere zero."""
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    weights = x.real.new_ones(width) if window is None else window.detach()
    left = (n_fft - width) // 2
    squares = F.pad(weights, (left, n_fft - width - left)).abs().pow(2)
    frames = x.size(-1)
    whole = n_fft + hop * (frames - 1)
    summed = torch.ops.aten.unfold_backward(
        squares.expand(1, frames, n_fft), (1, whole), 1, n_fft, hop
    )
    start = n_fft // 2 if center else 0
    end = whole - start if length is None else start + length
    is_whole = (summed[0, start:end] > 1e-11).all()
    torch._assert_async(is_whole, "istft: the windows overlap nowhere at some place")
    return torch.istft(
        x,
        n_fft,
        hop_length,
        win_length,
        window,
        center,
        normalized,
        onesided,
        length,
        return_complex,
    )
