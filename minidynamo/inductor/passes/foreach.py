"""`_foreach_` operators as the operators on single tensors that they stand for.

An optimizer's step over hundreds of parameters reaches the backend as a dozen operators on lists;
taken apart here, after tracing, they cost no tracing time and fuse parameter by parameter.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from minidynamo.inductor.targets import uses_triton

aten = torch.ops.aten

# What an operator on lists is for one tensor, where the name and the overload's name do not say it.
_RENAMED = {
    ("maximum", "Scalar"): aten.clamp_min.default,
    ("maximum", "ScalarList"): aten.clamp_min.default,
    ("minimum", "Scalar"): aten.clamp_max.default,
    ("minimum", "ScalarList"): aten.clamp_max.default,
    ("max", "default"): aten.max.default,
    ("copy", "default"): aten.copy.default,
    ("pow", "List"): aten.pow.Tensor_Tensor,
    ("pow", "Scalar"): aten.pow.Tensor_Scalar,
    ("pow", "ScalarList"): aten.pow.Tensor_Scalar,
    ("pow", "ScalarAndTensor"): aten.pow.Scalar,
    ("lerp", "List"): aten.lerp.Tensor,
    ("lerp", "Scalar"): aten.lerp.Scalar,
    ("lerp", "ScalarList"): aten.lerp.Scalar,
}
_SUFFIX = {
    "default": ("default",),
    "List": ("Tensor", "default"),
    "Tensor": ("Tensor",),
    "Scalar": ("Tensor", "default"),
    "ScalarList": ("Tensor", "default"),
}
# These have `value` as a keyword, and an overload for a tensor of values that has no equal.
_WITH_VALUE = {"addcmul", "addcdiv"}
_WHOLE = {"norm", "powsum", "zero"}


def single(
    op: torch._ops.OpOverload,
) -> torch._ops.OpOverload | None:
    """The operator that `op` does for each tensor, None where there is none."""
    name = op._schema.name.removeprefix("aten::_foreach_")
    overload = op._overloadname
    if name == op._schema.name or op._schema.is_mutable or name in _WHOLE:
        return None
    if (name, overload) in _RENAMED:
        return _RENAMED[name, overload]
    packet = getattr(aten, name, None)
    if packet is None or (name in _WITH_VALUE and overload == "Tensor"):
        return None
    for suffix in _SUFFIX.get(overload, ()):
        if suffix in packet.overloads():
            found: torch._ops.OpOverload = getattr(packet, suffix)
            return found
    return None


def expand_foreach(
    gm: torch.fx.GraphModule,
) -> None:
    """Replace operators on lists of tensors by one operator a tensor."""
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        target = single(node.target)
        if target is not None and all(u.target is operator.getitem for u in node.users):
            _expand(gm, node, target)


def _expand(
    gm: torch.fx.GraphModule, node: torch.fx.Node, target: torch._ops.OpOverload
) -> None:
    users = {user.args[1]: user for user in node.users}
    with gm.graph.inserting_before(node):
        for position, fake in enumerate(node.meta["val"]):
            args = [_item(arg, position) for arg in node.args]
            kwargs = {key: _item(arg, position) for key, arg in node.kwargs.items()}
            if target in (aten.addcmul.default, aten.addcdiv.default) and len(args) == 4:
                kwargs["value"] = args.pop()
            if target is aten.div.Tensor and isinstance(args[1], int | float):
                args[1] = _divisor(gm, args[1], fake)
            new = gm.graph.call_function(target, tuple(args), kwargs)
            new.meta = {**node.meta, "val": fake}
            if position in users:
                users[position].replace_all_uses_with(new)
    for user in users.values():
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)


def _divisor(
    gm: torch.fx.GraphModule,
    number: float,
    result: torch.Tensor,
) -> Any:
    """What the single operator is given in place of a number: on GPUs it multiplies by the inverse
    of one, while that on lists divides (ATen's ForeachBinaryOpScalar.cu).
    """
    if not uses_triton(result.device.type) or not result.is_floating_point():
        return number
    # As wide as what it is computed in.
    dtype = torch.float64 if result.dtype == torch.float64 else torch.float32
    new = gm.graph.call_function(
        aten.full.default, ([], number), {"dtype": dtype, "device": result.device}
    )
    with result.fake_mode:  # type: ignore[attr-defined]
        new.meta["val"] = torch.empty([], dtype=dtype, device=result.device)
    return new


def _item(
    arg: Any,
    position: int,
) -> Any:
    return arg[position] if isinstance(arg, (list, tuple)) else arg
