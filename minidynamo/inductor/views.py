"""Writes to views, as functions of what they are views of.

`rebuild(view, part)` is the tensor that `view.parent` is once `part` was written to the view: the
step from a program that writes to `y[0]` to a graph of pure operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten


@dataclass(frozen=True)
class View:
    """How a tensor was made of `parent`, on whose memory it lies.

    func: an operator; None for one that gives the whole (detach).
    index: which of the operator's results it is, if it has several.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    parent: torch.Tensor
    index: int | None = None

    def of(self, parent: torch.Tensor) -> View:
        """The same of another tensor, in the place of its parent among the operands."""
        args = tuple(parent if arg is self.parent else arg for arg in self.args)
        return View(self.func, args, self.kwargs, parent, self.index)


Inverse = Callable[[View, torch.Tensor], torch.Tensor]


def rebuild(view: View, part: torch.Tensor) -> torch.Tensor | None:
    """`view.parent` with `part` in the view's place; None if that is not known here."""
    if view.func is None:
        return part
    inverse = _INVERSES.get(view.func)
    if inverse is None or view.kwargs:
        return None
    return inverse(view, part)


def _reshaped(view: View, part: torch.Tensor) -> torch.Tensor:
    return aten.reshape.default(part, view.parent.shape)


def _selected(view: View, part: torch.Tensor) -> torch.Tensor:
    return aten.select_scatter.default(view.parent, part, *view.args[1:])


def _sliced(view: View, part: torch.Tensor) -> torch.Tensor:
    return aten.slice_scatter.default(view.parent, part, *view.args[1:])


def _diagonal(view: View, part: torch.Tensor) -> torch.Tensor:
    return aten.diagonal_scatter.default(view.parent, part, *view.args[1:])


def _unsqueezed(view: View, part: torch.Tensor) -> torch.Tensor:
    return aten.squeeze.dim(part, view.args[1])


def _transposed(view: View, part: torch.Tensor) -> torch.Tensor:
    return view.func(part, *view.args[1:])


def _permuted(view: View, part: torch.Tensor) -> torch.Tensor:
    dims = [dim % part.dim() for dim in view.args[1]]
    return aten.permute.default(part, [dims.index(dim) for dim in range(part.dim())])


def _unbound(view: View, part: torch.Tensor) -> torch.Tensor:
    dim = view.args[1] if len(view.args) > 1 else 0
    return aten.select_scatter.default(view.parent, part, dim, view.index)


def _split(view: View, part: torch.Tensor) -> torch.Tensor:
    dim = view.args[2] if len(view.args) > 2 else 0
    sizes, index = view.args[1], view.index
    assert index is not None
    start = sum(sizes[:index]) if isinstance(sizes, (tuple, list)) else index * sizes
    end = start + part.shape[dim]
    return aten.slice_scatter.default(view.parent, part, dim, start, end)


_INVERSES: dict[Any, Inverse] = {
    aten.view.default: _reshaped,
    aten._unsafe_view.default: _reshaped,
    aten.squeeze.default: _reshaped,
    aten.squeeze.dim: _reshaped,
    aten.squeeze.dims: _reshaped,
    aten.unsqueeze.default: _unsqueezed,
    aten.transpose.int: _transposed,
    aten.t.default: _transposed,
    aten.permute.default: _permuted,
    aten.select.int: _selected,
    aten.slice.Tensor: _sliced,
    aten.diagonal.default: _diagonal,
    aten.unbind.int: _unbound,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
}
