"""What graphs may do to the memory and the shape of tensors that they are given."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.node import Node

from .exc import Unsupported

_RESTRIDING = frozenset(
    "t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ as_strided_".split()
)
# Functions whose `out=` AOTAutograd loses, or cannot make functional.
_OUT_IN_EAGER = {torch.linalg.matrix_rank, torch._native_batch_norm_legit}


def refuse_out(target: Any, args: Any, fake_kwargs: dict[str, Any], out: Any) -> None:
    """Refuses `out=` tensors that have not the dtype and shape of the result: to resize tensors
    from outside or views, or to convert where the operator can, is left to eager.
    """
    nodes = [
        n for n in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(n, Node)
    ]
    if not nodes or isinstance(target, str):
        return
    why = "out= has another shape or dtype than the result"
    if target in _OUT_IN_EAGER:
        raise Unsupported("tensor storage", target.__name__, "out= of this function is eager's")
    try:
        found = target(*args, **{k: v for k, v in fake_kwargs.items() if k != "out"})
    except Exception:
        return  # the call itself says what is wrong
    results = found if isinstance(found, (tuple, list)) else [found]
    for node, result in zip(nodes, results, strict=False):
        fake = node.meta["example_value"]
        is_own = node.op != "placeholder" and not fake._is_view()
        fits = is_own or fake.shape == result.shape
        if not fits or fake.dtype != result.dtype:
            raise Unsupported("tensor storage", getattr(target, "__name__", str(target)), why)


class Restrided:
    """Inputs that operations of the graph gave another shape in place, with the one they had."""

    def __init__(self) -> None:
        self.geometry: dict[Node, tuple[Any, ...]] = {}

    def concerns(self, target: Any, args: tuple[Any, ...]) -> bool:
        """Whether a call changes the shape of a tensor from outside."""
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        given = args[0] if args else None
        is_given = isinstance(given, Node) and given.op == "placeholder"
        return name in _RESTRIDING and is_given

    def add(self, node: Node, is_possible: bool) -> None:
        """To be called before; raises Unsupported where backends could not deal with it."""
        fake = node.meta["example_value"]
        if not is_possible or fake.requires_grad:
            raise Unsupported(
                "tensor storage", node.name, "the shape of a tensor from outside changes"
            )
        geometry = (tuple(fake.shape), fake.stride(), fake.storage_offset())
        self.geometry.setdefault(node, geometry)

    def restore(self) -> None:
        """The fake inputs as at entry: a graph is compiled for these."""
        for node, geometry in self.geometry.items():
            node.meta["example_value"].as_strided_(*geometry)
