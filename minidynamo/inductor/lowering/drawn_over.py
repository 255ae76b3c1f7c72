"""Numbers drawn over a tensor that does not lie in rows: `x.normal_()`, `x.bernoulli_(p)`.

Eager draws them in the order in which the elements lie in memory, and normal numbers by another
way than over rows. What the pure operators compute is drawn for rows, so a tensor that lies as the
one that is overwritten is made for them, and its numbers are taken. (`passes.drawn_rows` sees to it
that `torch.bernoulli(x, p)`, whose result lies in rows, is not taken for the other.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minidynamo.inductor.ir import TensorValue
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.symbolic import contiguous_strides

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

_IN_ORDER = (torch.Tag.nondeterministic_seeded,)
_library = torch.library.Library("minidynamo", "FRAGMENT")
_library.define(
    "normal_over(SymInt[] size, SymInt[] stride, float mean, float std, *, ScalarType dtype, "
    "Device device, Generator? generator=None) -> Tensor",
    tags=_IN_ORDER,
)
_library.define(
    "bernoulli_over(SymInt[] size, SymInt[] stride, float p, *, ScalarType dtype, "
    "Device device, Generator? generator=None) -> Tensor",
    tags=_IN_ORDER,
)
_NORMAL = torch.ops.minidynamo.normal_over.default
_BERNOULLI = torch.ops.minidynamo.bernoulli_over.default


@torch.library.impl(_library, "normal_over", "CompositeExplicitAutograd")
def normal_over(
    size: Sequence[int],
    stride: Sequence[int],
    mean: float,
    std: float,
    *,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator | None = None,
) -> Tensor:
    """What `normal_` writes to a tensor of these strides."""
    given = torch.empty_strided(size, stride, dtype=dtype, device=device)
    return given.normal_(mean, std, generator=generator)


@torch.library.impl(_library, "bernoulli_over", "CompositeExplicitAutograd")
def bernoulli_over(
    size: Sequence[int],
    stride: Sequence[int],
    p: float,
    *,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator | None = None,
) -> Tensor:
    """What `bernoulli_` writes to a tensor of these strides."""
    given = torch.empty_strided(size, stride, dtype=dtype, device=device)
    return given.bernoulli_(p, generator=generator)


@register(torch.ops.aten.normal_functional.default)
def lower_normal(
    g: GraphLowering,
    x: TensorValue,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    generator: Any = None,
) -> Any:
    return _drawn(g, _NORMAL, x, (mean, std), generator)


def lower_bernoulli(g: GraphLowering, x: TensorValue, p: float, generator: Any) -> Any:
    """`aten.bernoulli.p`, called with eager's numbers."""
    return _drawn(g, _BERNOULLI, x, (p,), generator)


def _drawn(
    g: GraphLowering, op: Any, x: TensorValue, numbers: tuple[float, ...], generator: Any
) -> Any:
    is_repeated = any(
        step == 0 and size != 1 for size, step in zip(x.size, x.layout, strict=True)
    )
    if is_repeated or tuple(x.layout) == tuple(contiguous_strides(x.size)):
        return DECLINED
    options = {"dtype": x.dtype, "device": x.device, "generator": generator}
    return g.extern(op, (list(x.size), list(x.layout), *numbers), options)
