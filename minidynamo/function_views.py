"""Views that autograd functions made, or that have hooks, among the results of a graph.

Where several results that want gradients share memory that the graph made, AOTAutograd makes them
anew as views of one of them: the backward of a function that one of them came through, and its
hooks, are lost. The function is called, or the hook registered, by eager then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from .exc import Unsupported
from .output_graph import example_value


def refuse_shared_views(outputs: Sequence[Node], inputs: Iterable[Node]) -> None:
    """Raises Unsupported, at the call of the function, where that is so."""
    groups: dict[int, list[Node]] = {}
    for node in dict.fromkeys(outputs):
        for place in _memory(example_value(node)):
            groups.setdefault(place, []).append(node)
    for node in inputs:
        for place in _memory(example_value(node)):
            groups.pop(place, None)
    for place, nodes in groups.items():
        wanting = [node for node in nodes if example_value(node).requires_grad]
        steps = [step for node in wanting for step in _functions(node, place)]
        if len(wanting) > 1 and steps:
            reason = Unsupported(
                "backward of a view",
                ", ".join(map(str, wanting)),
                "it makes a view, or is a hook of one, and the graph returns another tensor with"
                " that memory",
            )
            reason.made_at = min(steps)  # type: ignore[attr-defined]
            raise reason


def _memory(value: Any) -> Iterator[int]:
    """The identity of a tensor's memory, if it has memory of its own."""
    if isinstance(value, FakeTensor) and value.layout is torch.strided:
        yield value.untyped_storage()._cdata


def _functions(node: Node, place: int) -> Iterator[int]:
    """The steps of the autograd functions that the memory `place` of a node's result came
    through, and of the hooks of views on the way.
    """
    seen, pending = {node}, [node]
    while pending:
        current = pending.pop()
        is_view = getattr(example_value(current), "_base", None) is not None
        hooks = [user for user in current.users if is_view and user.args[0] is current]
        for made in (current, *hooks):
            if getattr(made.target, "has_own_backward", False) and "step" in made.meta:
                yield made.meta["step"]
        for source in current.all_input_nodes:
            parts = tree_leaves(source.meta.get("example_value"))
            if source not in seen and any(place in _memory(part) for part in parts):
                seen.add(source)
                pending.append(source)
