"""Reductions over dimensions.

16-bit floats are reduced in float32, and a sum that is scaled afterwards (`mean`, `var`) is rounded
once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import Index, Inner, TensorValue
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.promotion import category, compute_type
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.lowering.scalar import Scalar, exp, log, real, where
from minidynamo.inductor.lowering.views import wrap
from minidynamo.inductor.split_reductions import split_position

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten


def reduced_dims(x: TensorValue, dims: Any) -> list[int]:
    """The dimensions that `dims` (None and the empty list mean all) names."""
    if dims is None:
        return list(range(x.ndim))
    if isinstance(dims, int):
        dims = [dims]
    return sorted({wrap(d, x.ndim) for d in dims}) if dims else list(range(x.ndim))


def count(x: TensorValue, dims: Sequence[int]) -> Any:
    total: Any = 1
    for d in dims:
        if x.ndim:
            total = total * x.size[d]
    return total


def loads(
    x: TensorValue, dtype: torch.dtype, fn: Callable[[Scalar], Scalar] | None = None
) -> Inner:
    """The elements of `x` in `dtype`, through `fn`."""

    def inner(b: BodyBuilder, index: Index) -> Value:
        value = b.cast(x.load(b, index if x.ndim else ()), dtype)
        return value if fn is None else fn(Scalar(b, value)).value

    return inner


def reduce_node(
    g: GraphLowering,
    kind: str,
    inner: Inner,
    x: TensorValue,
    dims: Sequence[int],
    dtype: torch.dtype,
    finish: Callable[[Scalar], Scalar] | None = None,
    meta: torch.Tensor | None = None,
) -> TensorValue:
    """Reduce to `dtype`, then apply `finish` and convert to the node's dtype and shape (with or
    without the dims).
    """
    size = x.size or (1,)
    dims = list(dims) if x.ndim else [0]
    kept, layout = None, x.layout if x.ndim else None
    if kind in ("argmax", "argmin"):  # positions count in the order of the dimensions
        kept, layout = split_position(g, kind, inner, size, dims, x.origins), None
    if kept is None:
        kept = g.reduce(kind, inner, size, dims, dtype, origins=x.origins, layout=layout)
    fake = g.meta if meta is None else meta
    if tuple(fake.shape) == kept.size and finish is None and fake.dtype == dtype:
        return kept
    return g.drop_dims(kept, dims, finish, fake)


# A sum of bools that is a bool is true if one of them is, however many.
_INTO_BOOLS = {"sum": "any", "prod": "all"}


def _sum(
    g: GraphLowering,
    x: TensorValue,
    dims: Any,
    kind: str,
    dtype: torch.dtype | None,
    finish: Callable[[Scalar], Scalar] | None = None,
) -> TensorValue:
    result = dtype or (x.dtype if category(x.dtype) == 2 else torch.int64)
    if result == torch.bool:
        kind = _INTO_BOOLS[kind]
    compute = compute_type(result)
    chosen = reduced_dims(x, dims)
    return reduce_node(g, kind, loads(x, compute), x, chosen, compute, finish)


@register(aten.sum.default, aten.sum.dim_IntList)
def lower_sum(
    g: GraphLowering,
    x: TensorValue,
    dims: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Any:
    return _sum(g, x, dims, "sum", dtype)


@register(aten.prod.default, aten.prod.dim_int)
def lower_prod(
    g: GraphLowering,
    x: TensorValue,
    dims: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Any:
    return _sum(g, x, dims, "prod", dtype)


@register(aten.mean.default, aten.mean.dim)
def lower_mean(
    g: GraphLowering,
    x: TensorValue,
    dims: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Any:
    if category(dtype or x.dtype) != 2:
        return DECLINED
    total = count(x, reduced_dims(x, dims))
    return _sum(g, x, dims, "sum", dtype or x.dtype, lambda s: s / real(total))


# Of bools, the largest is whether there is a true one.
_OF_BOOLS = {"max": "any", "min": "all"}


def _kind_for(kind: str, x: TensorValue) -> str:
    return _OF_BOOLS[kind] if x.dtype == torch.bool else kind


def _place_type(x: TensorValue) -> torch.dtype:
    """What elements are compared in to find where the extreme one is."""
    return torch.int32 if x.dtype == torch.bool else compute_type(x.dtype)


def _extreme(kind: str) -> Callable[..., Any]:
    def lower(
        g: GraphLowering,
        x: TensorValue,
        dims: Any = None,
        keepdim: bool = False,
    ) -> Any:
        chosen = reduced_dims(x, dims)
        if count(x, chosen) == 0:
            return DECLINED
        compute = compute_type(x.dtype)
        return reduce_node(g, _kind_for(kind, x), loads(x, compute), x, chosen, compute)

    lower.__name__ = f"lower_{kind}"
    return lower


register(aten.amax.default, aten.max.default)(_extreme("max"))
register(aten.amin.default, aten.min.default)(_extreme("min"))


def _extreme_with_index(kind: str) -> Callable[..., Any]:
    def lower(
        g: GraphLowering,
        x: TensorValue,
        dim: int,
        keepdim: bool = False,
    ) -> Any:
        dims = reduced_dims(x, dim)
        if count(x, dims) == 0:
            return DECLINED
        values, indices = g.meta
        compute = compute_type(x.dtype)
        places = loads(x, _place_type(x))
        return (
            reduce_node(
                g, _kind_for(kind, x), loads(x, compute), x, dims, compute, None, values
            ),
            reduce_node(g, f"arg{kind}", places, x, dims, torch.int64, None, indices),
        )

    lower.__name__ = f"lower_{kind}_dim"
    return lower


register(aten.max.dim)(_extreme_with_index("max"))
register(aten.min.dim)(_extreme_with_index("min"))


def _position(kind: str) -> Callable[..., Any]:
    def lower(
        g: GraphLowering,
        x: TensorValue,
        dim: Any = None,
        keepdim: bool = False,
    ) -> Any:
        dims = reduced_dims(x, dim)
        if count(x, dims) == 0:
            return DECLINED
        return reduce_node(g, kind, loads(x, _place_type(x)), x, dims, torch.int64)

    lower.__name__ = f"lower_{kind}"
    return lower


register(aten.argmax.default)(_position("argmax"))
register(aten.argmin.default)(_position("argmin"))


def _logical(kind: str) -> Callable[..., Any]:
    def lower(
        g: GraphLowering,
        x: TensorValue,
        dims: Any = None,
        keepdim: bool = False,
    ) -> Any:
        return reduce_node(g, kind, loads(x, torch.bool), x, reduced_dims(x, dims), torch.bool)

    lower.__name__ = f"lower_{kind}"
    return lower


register(aten.any.default, aten.any.dim, aten.any.dims)(_logical("any"))
register(aten.all.default, aten.all.dim, aten.all.dims)(_logical("all"))


# -- softmax and friends ---------------------------------------------------------------------------


def _along(dim: int, index: Index) -> list[Any]:
    return [i * 0 if d == dim else i for d, i in enumerate(index)]


def _softmax_parts(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    compute: torch.dtype,
) -> tuple[TensorValue, TensorValue]:
    """The maximum along `dim`, and the sum of exp(x - maximum), with `keepdim` shape."""
    largest = g.reduce("max", loads(x, compute), x.size, [dim], compute, origins=x.origins)

    def shifted(b: BodyBuilder, index: Index) -> Value:
        value = Scalar(b, b.cast(x.load(b, index), compute))
        return exp(value - Scalar(b, largest.load(b, _along(dim, index)))).value

    return largest, g.reduce("sum", shifted, x.size, [dim], compute, origins=x.origins)


def _lower_softmax(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    finish: Callable[..., Scalar],
) -> Any:
    at = wrap(dim, x.ndim)
    if not 0 <= at < x.ndim or any(extent == 0 for extent in x.size):
        return DECLINED
    compute = compute_type(g.meta.dtype)
    g.keep(x)
    largest, total = _softmax_parts(g, x, at, compute)
    return g.pointwise(finish, (x, largest, total), compute, cost=20)


@register(aten._softmax.default)
def lower_softmax(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    half_to_float: bool,
) -> Any:
    return _lower_softmax(g, x, dim, lambda a, top, total: exp(a - top) / total)


@register(aten._safe_softmax.default)
def lower_safe_softmax(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    dtype: Any = None,
) -> Any:
    """Softmax where a row of -inf gives zeros."""

    def finish(a: Scalar, top: Scalar, total: Scalar) -> Scalar:
        return where(top.eq(float("-inf")), 0.0, exp(a - top) / total)

    return _lower_softmax(g, x, dim, finish)


@register(aten._log_softmax.default)
def lower_log_softmax(
    g: GraphLowering,
    x: TensorValue,
    dim: int,
    half_to_float: bool,
) -> Any:
    return _lower_softmax(g, x, dim, lambda a, top, total: a - top - log(total))


@register(aten.logsumexp.default)
def lower_logsumexp(
    g: GraphLowering,
    x: TensorValue,
    dims: Any,
    keepdim: bool = False,
) -> Any:
    chosen = reduced_dims(x, dims)
    if not x.dtype.is_floating_point or x.ndim == 0 or count(x, chosen) == 0:
        return DECLINED
    compute = compute_type(x.dtype)
    g.keep(x)
    largest = g.reduce("max", loads(x, compute), x.size, chosen, compute, origins=x.origins)
    finite = g.computed(
        lambda m: where(abs(m).eq(float("inf")), 0.0, m), (largest,), compute, largest.size
    )

    def shifted(b: BodyBuilder, index: Index) -> Value:
        own = [i * 0 if d in chosen else i for d, i in enumerate(index)]
        value = Scalar(b, b.cast(x.load(b, index), compute))
        return exp(value - Scalar(b, finite.load(b, own))).value

    total = g.reduce("sum", shifted, x.size, chosen, compute, origins=x.origins)
    value = g.computed(lambda s, m: log(s) + m, (total, finite), compute, total.size)
    return g.drop_dims(value, chosen, None, g.meta)


@register(aten._softmax_backward_data.default)
def lower_softmax_backward(
    g: GraphLowering,
    grad: TensorValue,
    y: TensorValue,
    dim: int,
    dtype: torch.dtype,
) -> Any:
    return _backward_along(g, grad, y, dim, lambda d, o: d * o, lambda d, o, s: (d - s) * o)


@register(aten._log_softmax_backward_data.default)
def lower_log_softmax_backward(
    g: GraphLowering,
    grad: TensorValue,
    y: TensorValue,
    dim: int,
    dtype: torch.dtype,
) -> Any:
    return _backward_along(g, grad, y, dim, lambda d, o: d, lambda d, o, s: d - exp(o) * s)


def _backward_along(
    g: GraphLowering,
    grad: TensorValue,
    y: TensorValue,
    dim: int,
    term: Callable[[Scalar, Scalar], Scalar],
    finish: Callable[[Scalar, Scalar, Scalar], Scalar],
) -> Any:
    """finish(grad, y, sum over `dim` of term(grad, y))."""
    if y.ndim == 0 or any(extent == 0 for extent in y.size):
        return DECLINED
    compute, at = compute_type(y.dtype), wrap(dim, y.ndim)
    g.keep(grad)
    g.keep(y)

    def inner(b: BodyBuilder, index: Index) -> Value:
        d = Scalar(b, b.cast(grad.load(b, index), compute))
        return term(d, Scalar(b, b.cast(y.load(b, index), compute))).value

    total = g.reduce("sum", inner, y.size, [at], compute, origins=(*grad.origins, *y.origins))
    return g.pointwise(finish, (grad, y, total), compute, cost=4)
