"""Gradients that are to be differentiated themselves.

A compiled backward graph gives numbers without a history. Where the caller asks for one
(`create_graph=True`), the graph that was compiled runs once more, operator by operator, as eager
would have run it, and autograd differentiates that. So it does for the tangents of a vectorized
pass (`is_grads_batched=True`), which no kernel knows. It needs the inputs as they were: graphs that
write to them or draw random numbers are not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from minidynamo import _C

AutocastState = tuple[str, torch.dtype, bool]
_DEVICES = ("cpu", "cuda")


def can_replay(metadata: Any, forward: torch.fx.GraphModule) -> bool:
    """Whether a graph gives the same results when it runs again. metadata: AOTAutograd's; forward:
    the aten graph.
    """
    if any(info.mutates_data or info.mutates_metadata for info in metadata.input_info):
        return False
    tags = (getattr(node.target, "tags", ()) for node in forward.graph.nodes)
    return not any(torch.Tag.nondeterministic_seeded in found for found in tags)


def is_of_torch(graph: torch.fx.GraphModule, *others: str) -> bool:
    """Whether all operators are torch's own, or of `others`: what those of libraries do besides
    giving results is not known.
    """
    spaces = {getattr(node.target, "namespace", "") for node in graph.graph.nodes}
    return spaces <= {"", "aten", "prims", "minidynamo", *others}


class Replay:
    """Runs a graph again, and differentiates it: with a history, where grad mode is on.

    run: `code_of` the graph that was compiled, of torch functions, with a flat tuple as result.
    autocast: the state in which it is called. differentiable: the outputs that have tangents.
    gradients: the inputs that get one.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        autocast: Sequence[AutocastState],
        differentiable: Sequence[int],
        gradients: Sequence[int],
    ) -> None:
        self._run = run
        self._differentiable = differentiable
        self._gradients = gradients
        self._autocast = autocast

    def __call__(self, inputs: list[Any], tangents: list[Any]) -> list[Any]:
        """The gradients, one for each position of `gradients`, or None."""
        has_history = torch.is_grad_enabled()
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            given = [_apart(x) if isinstance(x, torch.Tensor) else x for x in inputs]
            for device, dtype, enabled in self._autocast:
                # Without its cache, whose casts may be of another call.
                stack.enter_context(torch.autocast(device, dtype, enabled, cache_enabled=False))
            outputs = self._run(*given)
        of = zip((outputs[i] for i in self._differentiable), tangents, strict=True)
        pairs = [(y, t) for y, t in of if t is not None and y.requires_grad]
        wanted = [i for i in self._gradients if given[i].requires_grad]
        found: dict[int, Any] = {}
        if pairs and wanted:
            results = torch.autograd.grad(
                [y for y, _ in pairs],
                [given[i] for i in wanted],
                [t for _, t in pairs],
                create_graph=has_history,
                allow_unused=True,
            )
            found = dict(zip(wanted, results, strict=True))
        return [found.get(i) for i in self._gradients]


def _apart(x: torch.Tensor) -> torch.Tensor:
    """The input for one more run. Hooks of the inputs themselves are for whoever asked for their
    gradients: these are others. Inputs without stay what they are: the sizes of nested tensors are
    known by the tensor of offsets.
    """
    if not x.requires_grad:
        return x
    view = x.view_as(x)
    if type(view) is type(x) or not is_traceable_wrapper_subclass(x):
        return view
    # A class of tensors that wrap others whose views are of another one.
    return x.detach().requires_grad_(x.requires_grad)


def code_of(
    gm: torch.fx.GraphModule,
) -> Any:
    """What runs the graph, operator by operator, without its nodes and their example values."""
    module = torch.nn.Module.__new__(type(gm))
    module.__dict__.update(gm.__dict__)
    module.__dict__.pop("_graph", None)
    module.__dict__["meta"] = {}
    return _C.disabled(module.forward)


def autocast_states() -> list[AutocastState]:
    """Device, dtype and whether autocast is on, of this thread."""
    return [
        (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        for device in _DEVICES
    ]
