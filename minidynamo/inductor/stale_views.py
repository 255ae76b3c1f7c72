"""Tensors of autograd that are laid out anew in place while views of them are alive.

    p = x.mT
    x.t_()
    p.sub_(1)          # writes to x, too

torch's functional tensors make such a view again from what the tensor has become, laid out in the
new way: values go to wrong places. Inference is captured by what keeps them apart (`capture`).

And views of inputs that have hooks: the view that is returned is made again, without its hooks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.fx
from torch._C import _functorch
from torch.fx.node import Node
from torch.utils._pytree import tree_leaves

LAID_OUT_ANEW = frozenset(
    "t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ as_strided_".split()
)


def within(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor of a transform wraps: of all members of a batch at once."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def storage_of(tensor: torch.Tensor) -> int:
    """What tensors that share memory have in common."""
    return within(tensor).untyped_storage()._cdata


def has_other_bits(
    gm: torch.fx.GraphModule,
    written: torch.Tensor,
) -> bool:
    """Whether memory that an operator of the program writes to is of another dtype elsewhere. The
    functional operator is told a view of what has that dtype, where AOTAutograd does not detach it:
    in inference mode, and of the parts of complex numbers.
    """
    memory, is_inference = storage_of(written), torch.is_inference_mode_enabled()
    for node in gm.graph.nodes:
        for tensor in _tensors(node):
            is_detached = not is_inference and tensor.is_complex() == written.is_complex()
            if tensor.dtype == written.dtype or is_detached:
                continue
            if storage_of(tensor) == memory:
                return True
    return False


def stale_view(gm: torch.fx.GraphModule) -> str:
    """Why the graph has to run as it is: such an operation and a view that is used behind it."""
    if not any(_is_laid_out_anew(node) for node in gm.graph.nodes):
        return ""
    position = {node: i for i, node in enumerate(gm.graph.nodes)}
    for node, place in position.items():
        if not _is_laid_out_anew(node):
            continue
        (tensor,) = _tensors(node.args[0])
        memory = storage_of(tensor)
        for other in list(position)[:place]:
            others = [x for x in _tensors(other) if x is not tensor]
            is_alive = any(position[user] > place for user in other.users)
            if is_alive and any(storage_of(x) == memory for x in others):
                return f"{node} lays a tensor out anew that {other} is a view of"
    return ""


def _is_laid_out_anew(node: Node) -> bool:
    if node.op != "call_method" or node.target not in LAID_OUT_ANEW:
        return False
    return any(tensor.requires_grad for tensor in _tensors(node.args[0]))


def _tensors(node: Any) -> list[torch.Tensor]:
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return [
        leaf
        for leaf in tree_leaves(value)
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
    ]


def hooked_view(gm: torch.fx.GraphModule) -> str:
    """Why the graph has to run as it is: a hook on a part of an input, of which one is returned."""
    hooked = [node.args[0] for node in gm.graph.nodes if _is_hook(node)]
    if not hooked:
        return ""
    (output,) = gm.graph.find_nodes(op="output")
    given = _memories(gm.graph.find_nodes(op="placeholder"))
    returned = _memories(node for node in output.all_input_nodes if node.op != "placeholder")
    for node in hooked:
        if not _memories([node]).isdisjoint(given & returned):
            return (
                f"{node} has a hook, and is a view of an input that a result is a view of, too"
            )
    return ""


def _is_hook(node: Node) -> bool:
    """Whether it is `minidynamo.handlers.tensor_hooks.hooked`."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "hooked"


def _memories(nodes: Iterable[Any]) -> set[int]:
    return {storage_of(x) for node in nodes for x in _tensors(node)}
