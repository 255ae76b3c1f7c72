"""Graphs that may have to be forgotten: a condition that they rely on does not hold, or an operator
raises where the program catches it. The frame then runs in eager from its start, so that what the
graph wrote to has to be as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.fx import GraphModule, Node

from .exc import Unsupported
from .output_graph import example_value
from .reruns import CheckFailed
from .variables.raising import Seen

if TYPE_CHECKING:
    from .output_graph import GraphInput

MAX_PUT_BACK = 1 << 20  # elements


def refuse_checks(step: int) -> NoReturn:
    """A graph that follows calls of random number generators, or writes to inputs that cannot be
    put back, cannot be run and then forgotten.
    """
    reason = Unsupported(
        "data-dependent branch",
        "a branch that raises",
        "the graph also takes random numbers, or writes to inputs that cannot be put back",
    )
    reason.made_at = step  # type: ignore[attr-defined]
    raise reason


def refuse_caught(nodes: list[Node]) -> None:
    """The same for a graph that may raise where the program catches it."""
    node = next((node for node in nodes if node.meta["seen"] == Seen.CAUGHT), None)
    if node is None:
        return
    reason = Unsupported(
        "operator that may raise",
        str(node.target),
        "the program may catch its error, and the graph also takes random numbers, or writes to"
        " inputs that cannot be put back",
    )
    reason.made_at = node.meta["step"]  # type: ignore[attr-defined]
    raise reason


def _writes_quietly(module: torch.nn.Module, node: Node) -> bool:
    """Whether a step may write to arguments without their versions showing it, as batch norm does
    to its statistics; `module` is that of its graph.
    """
    name = str(getattr(node.target, "__name__", ""))
    is_norm = name.partition(".")[0].endswith(("batch_norm", "instance_norm"))
    # The sixth argument, which is False where batch norm is called without.
    trains = node.kwargs.get("training", node.kwargs.get("use_input_stats", "instance" in name))
    if len(node.args) > 5:
        trains = node.args[5]
    bodies = [
        getattr(module, str(n.target)) for n in node.all_input_nodes if n.op == "get_attr"
    ]
    return (is_norm and trains is not False) or any(
        _writes_quietly(body, inner)
        for body in bodies
        if isinstance(body, GraphModule)
        for inner in body.graph.nodes
    )


def written_inputs(module: GraphModule, inputs: list[GraphInput]) -> list[int]:
    """The numbers of the inputs that a graph writes to, or may write to."""
    storages: set[int] = set()
    for node in module.graph.nodes:
        if _writes_quietly(module, node):
            values = [n.meta.get("example_value") for n in node.all_input_nodes[1:]]
            tensors = [v for v in values if isinstance(v, torch.Tensor) and not v.requires_grad]
            storages.update(t.untyped_storage()._cdata for t in tensors)
    fakes = [example_value(item.node) for item in inputs]
    return [
        number
        for number, (item, fake) in enumerate(zip(inputs, fakes, strict=True))
        if item.is_mutated
        or (
            storages
            and isinstance(fake, torch.Tensor)
            and fake.untyped_storage()._cdata in storages
        )
    ]


def can_be_put_back(written: list[GraphInput]) -> bool:
    """Whether what the graph writes to can be copied before each call: plain tensors, few items,
    that autograd knows nothing of and that keep their layout.
    """
    for item in written:
        value, left = item.value, example_value(item.node)
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            return False
        if value.requires_grad or left.requires_grad:
            return False
        sizes = [*left.size(), *left.stride()]
        hints = [s.node.hint if isinstance(s, torch.SymInt) else s for s in sizes]
        if hints != [*value.size(), *value.stride()]:
            return False
    return sum(item.value.numel() for item in written) <= MAX_PUT_BACK


class _Written:
    """Tensors that a graph is about to write to, as they are before: values and versions."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = [t for t in tensors if not t.is_inference()]
        self.of_inference = [t for t in tensors if t.is_inference()]
        self.versions = [t._version for t in self.tensors]
        self.copies = [t.detach().clone() for t in self._all()]

    def _all(self) -> list[torch.Tensor]:
        return [*self.tensors, *self.of_inference]

    def put_back(self) -> None:
        with torch.no_grad():
            for tensor, copy in zip(self._all(), self.copies, strict=True):
                tensor.copy_(copy)
        torch._C._autograd._unsafe_set_version_counter(
            tuple(self.tensors), tuple(self.versions)
        )


def checked(
    compiled: Callable[..., Any],
    truths: slice,
    written: list[int],
) -> Callable[..., Any]:
    """The graph whose outputs in `truths`, behind those that are wanted, have to be true; where one
    is not, or the graph raises, random states and the inputs of the numbers `written` are as if it
    had not run.
    """

    def call(*args: Any) -> tuple[Any, ...]:
        before = _Written([args[i] for i in written]) if written else None
        state = torch.get_rng_state()
        on_device = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        try:
            results = compiled(*args)
            if not all(map(bool, results[truths])):
                raise CheckFailed
        except Exception:
            if before is not None:
                before.put_back()
            torch.set_rng_state(state)
            if on_device is not None:
                torch.cuda.set_rng_state(on_device)
            raise
        return tuple(results[: truths.start])

    return call
