"""Which pure operator computes what one that writes to an argument writes there."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
# What draws a tensor's elements anew, where the name without the underscore is not that.
FUNCTIONAL = {
    aten.bernoulli_.float: lambda x, p=0.5, **options: aten.bernoulli.p(x, p, **options),
    aten.normal_.default: aten.normal_functional.default,
}


def functional_variant(func: Any) -> Any:
    """`aten.add.Tensor` for `aten.add_.Tensor` and `aten.add.out`; None where one does more."""
    schema = func._schema
    name = schema.name.partition("::")[2]
    writes = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
    takes, others = _takes(func), [False] * (len(writes) - 1)
    if writes == [*others, True] and takes[-1] == ("out", "Tensor"):
        takes = takes[:-1]
    elif name.endswith("_") and writes == [True, *others]:
        name = name[:-1]
    else:
        return None
    found = FUNCTIONAL.get(func)
    if found is not None:
        return found
    packet = getattr(getattr(torch.ops, func.namespace), name, None)
    names = packet.overloads() if packet is not None else []
    same = (schema.overload_name or "default", *names)  # `pow_.Scalar` is `pow.Tensor_Scalar`
    variants = (getattr(packet, overload) for overload in same if overload in names)
    return next((found for found in variants if _takes(found) == takes), None)


def _takes(func: Any) -> list[tuple[str, str]]:
    """Names and types of an operator's arguments."""
    return [(a.name, str(a.type)) for a in func._schema.arguments]
