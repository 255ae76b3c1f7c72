"""`out=` of operations: which tensors a graph may write its results to."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.node import Node

from .exc import Unsupported

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


def is_foreach_in_place(target: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation writes to the tensors of a list, of which a graph has each only once."""
    name = getattr(target, "__name__", "")
    if not name.startswith("_foreach_") or not name.endswith("_"):
        return False
    nodes = list(args[0])
    if len(set(nodes)) < len(nodes):
        raise Unsupported("tensor storage", name, "a tensor is in the list several times")
    return True
