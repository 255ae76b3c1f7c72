"""Operands on the CPU of operators on a GPU, which kernels cannot read: numbers as tensors without
dimensions, and positions.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from minidynamo.inductor.ir import OVERWRITTEN
from minidynamo.inductor.lowering.registry import LOWERINGS
from minidynamo.inductor.passes import simplify

aten = torch.ops.aten
_BETWEEN_DEVICES = {aten._to_copy.default, aten.copy.default, aten.copy_.default}


def bring_to_gpu(
    gm: torch.fx.GraphModule,
) -> None:
    """Give operators on a GPU that become kernels copies of their CPU operands, one for all users.

    Numbers in constants become part of the kernels, other constants are copied when compiling.
    Operators that are called through the dispatcher deal with such operands themselves.
    """
    copies: dict[tuple[torch.fx.Node, torch.device], torch.fx.Node] = {}
    for node in list(gm.graph.nodes):
        if node.target not in LOWERINGS or node.target in _BETWEEN_DEVICES:
            continue
        gpus = {tensor.device for tensor in _tensors(node) if tensor.device.type == "cuda"}
        if not gpus:
            continue
        (gpu,) = gpus
        for operand in node.all_input_nodes:
            value = operand.meta["val"]
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                if (operand, gpu) not in copies:
                    copies[operand, gpu] = _copy(gm, operand, gpu)
                node.replace_input_with(operand, copies[operand, gpu])
    if copies:
        simplify.remove_dead_nodes(gm)


def _tensors(
    node: torch.fx.Node,
) -> list[torch.Tensor]:
    """What the node gives."""
    result: Any = node.meta.get("val")
    values = result if isinstance(result, (tuple, list)) else [result]
    return [value for value in values if isinstance(value, torch.Tensor)]


def _copy(
    gm: torch.fx.GraphModule,
    node: torch.fx.Node,
    gpu: torch.device,
) -> torch.fx.Node:
    """The node's value on a GPU, computed right behind it."""
    behind = node
    while behind.next.op == "placeholder":
        behind = behind.next
    constant = _known(gm, node)
    with gm.graph.inserting_after(behind):
        if constant is None:
            copy = gm.graph.call_function(aten._to_copy.default, (node,), {"device": gpu})
        else:
            copy = _constant(gm, constant, gpu)
    fake = node.meta["val"]
    with fake.fake_mode:
        moved = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=gpu)
    copy.meta = {**node.meta, "val": moved}
    return copy


def _known(
    gm: torch.fx.GraphModule,
    node: torch.fx.Node,
) -> torch.Tensor | None:
    """A constant, or the number that operators make of such numbers; None if it is neither."""
    if OVERWRITTEN in node.meta:
        return None
    if node.op == "get_attr":
        return operator.attrgetter(str(node.target))(gm)
    fake = node.meta["val"]
    if node.op != "call_function" or not isinstance(fake, torch.Tensor) or fake.dim() != 0:
        return None
    given = {operand: _known(gm, operand) for operand in node.all_input_nodes}
    is_drawn = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    if node.target not in LOWERINGS or is_drawn or not simplify.is_pure(node):
        return None
    if not given or any(value is None or value.dim() for value in given.values()):
        return None
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), given.__getitem__)
    with torch.no_grad(), unset_fake_temporarily():
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _constant(
    gm: torch.fx.GraphModule, value: torch.Tensor, gpu: torch.device
) -> torch.fx.Node:
    if value.dim() == 0:
        facts = {"dtype": value.dtype, "device": gpu}
        with unset_fake_temporarily():
            number = value.item()
        return gm.graph.call_function(aten.full.default, ([], number), facts)
    name = f"_gpu_constant{len(gm.graph.nodes)}"
    with unset_fake_temporarily():
        gm.register_buffer(name, value.to(gpu), persistent=False)
    return gm.graph.get_attr(name)
