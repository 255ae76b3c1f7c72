"""Tensors in the memory that a graph was compiled for.

A forward graph that runs operator by operator gives what its operators lay out, which is not always
what their fake results say. A backward plan was compiled for those. Nor are gradients conjugated
lazily where tracing took them to be.
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


def as_conjugated(given: Sequence[Node], compiled: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, as a `Conjugated` if it takes complex numbers."""
    conjugated = Conjugated(given, compiled)
    return conjugated if conjugated.bits else compiled


class Conjugated:
    """A compiled graph whose complex inputs, gradients among them, may be conjugated lazily where
    they were not while tracing, or the other way round: these are copied.
    """

    def __init__(self, given: Sequence[Node], compiled: Callable[..., Any]) -> None:
        self._call = getattr(compiled, "boxed", None) or (lambda inputs: compiled(*inputs))
        fakes = [node.meta.get("val") for node in given]
        self.bits = [
            (i, fake.is_conj())
            for i, fake in enumerate(fakes)
            if isinstance(fake, torch.Tensor) and fake.is_complex()
        ]

    def __call__(self, *inputs: Any) -> Any:
        return self.boxed([*inputs])

    def boxed(self, inputs: list[Any]) -> Any:
        """Calls it with one list of inputs."""
        for position, is_conj in self.bits:
            tensor = inputs[position]
            if tensor is not None and tensor.is_conj() != is_conj:
                inputs[position] = _with_bit(tensor, is_conj)
        return self._call(inputs)


def _with_bit(tensor: torch.Tensor, is_conj: bool) -> torch.Tensor:
    """A copy with the same strides."""
    part = tensor.detach()
    for dim, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[dim]:
            part = part.narrow(dim, 0, 1)
    copy = torch.empty_strided(
        part.shape, part.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return (copy.conj() if is_conj else copy).copy_(part).expand(tensor.shape)


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
