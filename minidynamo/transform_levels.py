"""The levels of torch.func transforms that are open in this thread."""

from __future__ import annotations

from torch._C import _functorch

__all__ = ["close_transforms"]


def close_transforms(depth: int) -> None:
    """Close levels of torch.func transforms that are open beyond `depth`, as after an error."""
    while _functorch.get_dynamic_layer_stack_depth() > depth:
        _functorch.pop_dynamic_layer_stack()
