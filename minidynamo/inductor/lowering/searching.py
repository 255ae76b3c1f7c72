"""Binary search in sorted values: bucketize, searchsorted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Index, TensorValue
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.symbolic import Expr

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
DTYPES = {torch.float32, torch.float64, torch.int32, torch.int64}


def _search(
    b: BodyBuilder, value: Value, count: int, load: Callable[[Expr], Value], right: bool
) -> Value:
    """How many of `count` sorted values are below `value` (or equal, where `right`), by the steps
    that eager makes: the same result also for values that are not sorted. NaN is above all.
    """
    number = lambda n: b.constant(n, torch.int64)  # noqa: E731
    first, last = number(0), number(count)
    for _ in range(count.bit_length()):
        is_open = b.op("lt", first, last)
        half = b.op("rshift", b.op("sub", last, first), number(1))
        middle = b.op("add", first, half)
        place = b.indirect(b.op("minimum", middle, number(count - 1)), count, wrap=False)
        is_above = b.op("gt" if right else "ge", load(place), value)
        upper = b.op("where", is_above, first, b.op("add", middle, number(1)))
        lower = b.op("where", is_above, middle, last)
        first, last = (
            b.op("where", is_open, upper, first),
            b.op("where", is_open, lower, last),
        )
    return first


@register(aten.searchsorted.Tensor)
def lower_searchsorted(
    g: GraphLowering,
    sequence: TensorValue,
    x: TensorValue,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: TensorValue | None = None,
) -> Any:
    count = sequence.size[-1] if sequence.ndim else 0
    if side not in (None, "left", "right"):
        return DECLINED
    if sorter is not None or x.dtype != sequence.dtype or x.dtype not in DTYPES:
        return DECLINED
    if not isinstance(count, int) or not count:
        return DECLINED
    rows = sequence.ndim > 1
    if rows and (x.ndim != sequence.ndim or x.size[:-1] != sequence.size[:-1]):
        return DECLINED  # eager says what is wrong
    g.realize(sequence)
    g.keep(x)
    right = right or side == "right"

    def inner(b: BodyBuilder, index: Index) -> Value:
        lead = index[:-1] if rows else []
        found = _search(
            b, x.load(b, index), count, lambda place: sequence.load(b, [*lead, place]), right
        )
        return b.cast(found, dtype)

    dtype = torch.int32 if out_int32 else torch.int64
    return g.lazy(inner, (x, sequence), cost=12 * count.bit_length())


@register(aten.bucketize.Tensor)
def lower_bucketize(
    g: GraphLowering,
    x: TensorValue,
    boundaries: TensorValue,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> Any:
    if boundaries.ndim != 1:
        return DECLINED
    return lower_searchsorted(g, boundaries, x, out_int32=out_int32, right=right)
