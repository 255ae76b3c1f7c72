"""Variances, and the means and squared distances that norms are made of.

Two passes over the data. On a GPU, where many elements belong to few results, those of pieces that
registers hold come first: memory then is read once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor.ir import ZERO, Index, Lazy, TensorValue
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering.promotion import compute_type
from minidynamo.inductor.lowering.reductions import count, loads, reduced_dims
from minidynamo.inductor.lowering.registry import DECLINED, register
from minidynamo.inductor.lowering.scalar import Scalar, maximum, real, where
from minidynamo.inductor.split_reductions import Cut, cut_apart, whole_pieces
from minidynamo.inductor.symbolic import contiguous_strides
from minidynamo.inductor.targets import uses_triton

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten


def mean_and_squares(
    g: GraphLowering,
    x: TensorValue,
    dims: Sequence[int],
    compute: torch.dtype,
) -> tuple[TensorValue, TensorValue]:
    """The mean and the sum of squared distances from it, with `keepdim` shape, in `compute`.

    Two passes over the data, the second of which also sums the distances: what rounding left in the
    first (Chan, Golub and LeVeque 1983). Equal elements are their own mean, wherever it is.
    """
    cut = whole_pieces(x, dims)
    if cut is not None:
        return _of_pieces(g, x, cut, compute)
    total = real(count(x, dims))
    size, layout = (x.size, x.layout) if x.ndim else ((1,), None)
    dims = list(dims) if x.ndim else [0]
    reduce = partial(
        g.reduce, size=size, dims=dims, dtype=compute, origins=x.origins, layout=layout
    )
    sums = reduce("sum", loads(x, compute))
    first = g.computed(lambda s: s / total, (sums,), compute, sums.size)

    def distance(b: BodyBuilder, index: Index) -> Scalar:
        own = [i * 0 if d in dims else i for d, i in enumerate(index)]
        return Scalar(b, b.cast(x.load(b, index), compute)) - Scalar(b, first.load(b, own))

    def square(b: BodyBuilder, index: Index) -> Value:
        apart = distance(b, index)
        return (apart * apart).value

    def plain(b: BodyBuilder, index: Index) -> Value:
        return distance(b, index).value

    rest, squares = (reduce("sum", inner) for inner in (plain, square))

    def mended(m: Scalar, r: Scalar) -> Scalar:
        return where(abs(r) < math.inf, m + r / total, m)

    def centred(s: Scalar, r: Scalar) -> Scalar:
        return where(s < math.inf, maximum(s - r * (r / total), 0), s)

    mean = g.computed(mended, (first, rest), compute, sums.size)
    return mean, g.computed(centred, (squares, rest), compute, sums.size)


def _of_pieces(
    g: GraphLowering,
    x: TensorValue,
    cut: Cut,
    compute: torch.dtype,
) -> tuple[TensorValue, TensorValue]:
    """`mean_and_squares` from those of pieces of equal size (Chan, Golub and LeVeque 1979): the
    squares inside of them, and the distances of their means, once for each element. All are of
    distances from the row's first element, so that the means lose nothing where they are large
    beside the distances.
    """

    def first(b: BodyBuilder, index: Index) -> Scalar:
        row = [i * 0 if d in cut.reduced else i for d, i in enumerate(index)]
        value = Scalar(b, b.cast(x.load(b, row), compute))
        return where(abs(value) < math.inf, value, 0)

    def moved(b: BodyBuilder, index: Index) -> Value:
        return (Scalar(b, b.cast(x.load(b, index), compute)) - first(b, index)).value

    lazy = Lazy(moved, x.layout, x.cost + 2, 2, x.origins)
    near = TensorValue(lazy, compute, x.size, x.device, x.layout)
    apart, within, left = cut_apart(near, cut)
    inside = real(count(apart, within))
    means, squares = mean_and_squares(g, apart, within, compute)
    g.realize(means)
    g.realize(squares)
    centre, between = mean_and_squares(g, means, left, compute)
    kept = g.reduce(
        "sum",
        squares.load,
        squares.size,
        left,
        compute,
        origins=x.origins,
        layout=squares.layout,
    )
    both = g.computed(lambda s, d: s + d * inside, (kept, between), compute, kept.size)
    size = tuple(1 if d in cut.reduced else extent for d, extent in enumerate(x.size))
    at = cut.at + 1  # of extent 1 by now
    places = [
        g.reindexed(value, size, lambda i: [*i[:at], ZERO, *i[at:]]) for value in (centre, both)
    ]

    def mean(b: BodyBuilder, index: Index) -> Value:
        return (first(b, index) + Scalar(b, places[0].load(b, index))).value

    whole = Lazy(mean, places[0].layout, 4, 2, x.origins)
    return TensorValue(whole, compute, size, x.device, places[0].layout), places[1]


def _in_double(
    g: GraphLowering,
    x: TensorValue,
    dims: Sequence[int],
) -> tuple[TensorValue, TensorValue]:
    """`mean_and_squares` in float64, in one pass over the data: of distances from the row's first
    element. As that is one of n, the square of its own is at most n times the variance, and so
    cancels no more than log2(n) of 53 bits.
    """
    total = real(count(x, dims))
    wide = torch.float64
    dims = list(dims)
    g.keep(x)

    def distance(b: BodyBuilder, index: Index) -> Scalar:
        first = x.load(b, [i * 0 if d in dims else i for d, i in enumerate(index)])
        return Scalar(b, b.cast(x.load(b, index), wide)) - Scalar(b, b.cast(first, wide))

    def square(b: BodyBuilder, index: Index) -> Value:
        apart = distance(b, index)
        return (apart * apart).value

    def plain(b: BodyBuilder, index: Index) -> Value:
        return distance(b, index).value

    def start(b: BodyBuilder, index: Index) -> Value:
        return b.cast(x.load(b, index), wide)

    rest, squares = (
        g.reduce("sum", inner, x.size, dims, wide, origins=x.origins)
        for inner in (plain, square)
    )
    size, stride = rest.size, contiguous_strides(rest.size)
    first = TensorValue(Lazy(start, stride, 1, 1), wide, size, x.device, stride)
    mean = g.computed(lambda f, r: f + r / total, (first, rest), wide, size)
    centred = g.computed(
        lambda s, r: maximum(s - r * (r / total), 0), (squares, rest), wide, size
    )
    return mean, centred


def _variance(
    g: GraphLowering,
    x: TensorValue,
    dims: Any,
    correction: float | None,
    finish: Callable[[Scalar], Scalar],
    fakes: tuple[torch.Tensor, ...],
    like_norms: bool,
) -> Any:
    """The variance, and the mean where there are two `fakes`. In double precision on the CPU, as
    eager has it; like_norms: as the norms that are taken apart have it.
    """
    if not x.dtype.is_floating_point or x.ndim == 0:
        return DECLINED
    chosen = reduced_dims(x, dims)
    taken = 1 if correction is None else correction
    degrees = count(x, chosen) - (int(taken) if float(taken).is_integer() else taken)
    if degrees <= 0:
        return DECLINED
    compute = compute_type(x.dtype)
    if compute == torch.float32 and not uses_triton(x.device.type) and not like_norms:
        mean, squares = _in_double(g, x, chosen)
    else:
        mean, squares = mean_and_squares(g, x, chosen, compute)
    results = [g.drop_dims(squares, chosen, lambda s: finish(s / real(degrees)), fakes[0])]
    if len(fakes) > 1:
        results.append(g.drop_dims(mean, chosen, None, fakes[1]))
    return tuple(results)


def _register_variance(name: str, finish: Callable[[Scalar], Scalar], pair: bool) -> None:
    op = getattr(aten, name)

    def run(
        g: GraphLowering,
        x: TensorValue,
        dims: Any,
        correction: float | None,
        keepdim: bool = False,
    ) -> Any:
        like_norms = name == "var_mean" and keepdim and correction == 0
        fakes = tuple(g.meta) if pair else (g.meta,)
        result = _variance(g, x, dims, correction, finish, fakes, like_norms)
        return result if pair or result is DECLINED else result[0]

    def lower_default(
        g: GraphLowering,
        x: TensorValue,
        unbiased: bool = True,
    ) -> Any:
        return run(g, x, None, float(unbiased))

    def lower_dim(
        g: GraphLowering,
        x: TensorValue,
        dims: Any,
        unbiased: bool = True,
        keepdim: bool = False,
    ) -> Any:
        return run(g, x, dims, float(unbiased), keepdim)

    def lower_correction(
        g: GraphLowering,
        x: TensorValue,
        dims: Any = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> Any:
        return run(g, x, dims, correction, keepdim)

    register(op.default)(lower_default)
    register(op.dim)(lower_dim)
    register(op.correction)(lower_correction)


def _same(x: Scalar) -> Scalar:
    return x


def _root(x: Scalar) -> Scalar:
    return x.op("sqrt")


_register_variance("var", _same, False)
_register_variance("std", _root, False)
_register_variance("var_mean", _same, True)
_register_variance("std_mean", _root, True)
