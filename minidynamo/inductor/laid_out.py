"""Tensors in the memory that a graph was compiled for.

A forward graph that runs operator by operator gives what its operators lay out, which is not always
what their fake results say. A backward plan was compiled for those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx import Node

Order = tuple[int, ...]


class LaidOut:
    """A compiled graph whose inputs may be laid out otherwise than it was compiled for: dense ones
    are copied then.
    """

    def __init__(self, given: Sequence[Node], compiled: Callable[..., Any]) -> None:
        self._call = getattr(compiled, "boxed", None) or (lambda inputs: compiled(*inputs))
        orders = [(i, _dense_order(node.meta.get("val"))) for i, node in enumerate(given)]
        self._orders = [(i, order) for i, order in orders if order is not None]

    def __call__(self, *inputs: Any) -> Any:
        return self.boxed([*inputs])

    def boxed(self, inputs: list[Any]) -> Any:
        """Calls it with one list of inputs."""
        for position, order in self._orders:
            tensor = inputs[position]
            if tensor is not None and not tensor.permute(order).is_contiguous():
                back = sorted(range(len(order)), key=order.__getitem__)
                inputs[position] = tensor.permute(order).contiguous().permute(back)
        return self._call(inputs)


def has_holes(fake: Any) -> bool:
    """Whether what lies so cannot be laid out by `LaidOut`."""
    return isinstance(fake, torch.Tensor) and _dense_order(fake) is None


def _dense_order(fake: Any) -> Order | None:
    """The dimensions from the outermost to the innermost; None where there are holes."""
    if not isinstance(fake, torch.Tensor) or fake.layout is not torch.strided:
        return None
    size, stride = ([_hint(n) for n in numbers] for numbers in (fake.shape, fake.stride()))
    if None in (*size, *stride):
        return None
    order = tuple(sorted(range(fake.dim()), key=lambda d: (stride[d], size[d]), reverse=True))
    expected = 1
    for d in reversed(order):
        if size[d] != 1 and stride[d] != expected:
            return None
        expected *= size[d]
    return order


def _hint(number: Any) -> Any:
    """The number in the call that was compiled for; None where only running tells."""
    return number.node.hint if isinstance(number, torch.SymInt) else number
