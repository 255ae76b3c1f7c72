"""Random numbers inside of kernels: a function of a seed and an element's position.

The bits are Philox 4x32-10's, with a seed for every operator of the graph; the seeds are one
`torch.randint` at the begin of a call, so `torch.manual_seed` and generator states mean what they
mean in eager, though the numbers are others. With `config.fallback_random` every operator is called
instead, in program order, and gives eager's numbers. Normal and uniform numbers that overwrite a
tensor, and most of `bernoulli` of a number, are always called: weights that are made in a graph are
eager's.

Uniform float32 numbers are those of `triton.language.rand`, normal ones of `triton.language.randn`
(Box and Muller's transformation).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from minidynamo.inductor import config
from minidynamo.inductor.ir import Buffer, ExternOp, Index, TensorValue
from minidynamo.inductor.loop_body import BodyBuilder, Value
from minidynamo.inductor.lowering import drawn_over
from minidynamo.inductor.lowering.promotion import compute_type
from minidynamo.inductor.lowering.registry import DECLINED, LOWERINGS, register
from minidynamo.inductor.lowering.scalar import Scalar, log, maximum, where
from minidynamo.inductor.lowering.views import linear_index
from minidynamo.inductor.symbolic import as_expr

if TYPE_CHECKING:
    from minidynamo.inductor.graph import GraphLowering

aten = torch.ops.aten
# The largest float32 f with f * 2 ** 31 < 1.
_TO_UNIT = 4.6566127342e-10
# What Box and Muller's logarithm is kept away from.
_TINY = 1e-7
# Random bits that a uniform number of a 16-bit type may have without rounding up to 1.
_BITS = {torch.float16: 11, torch.bfloat16: 8}
_ADDED: set[Any] = set()
Numbers = Callable[["Source"], Scalar]


def seed_of(g: GraphLowering) -> tuple[Buffer, int]:
    """The buffer with a seed for every random operator of the graph, drawn when it is first asked
    for, and the position of this operator's.
    """
    nodes = [node for node in g.gm.graph.nodes if node.target in _ADDED]
    position = nodes.index(g.node)
    known = g.buffers.get("seeds")
    if known is not None:
        return known, position
    count = len(nodes)
    buffer = Buffer("seeds", torch.int64, (count,), (1,), g.meta_device(), "extern")
    g.buffers[buffer.name] = buffer
    limit = 1 << 63
    options = {"dtype": torch.int64, "device": buffer.device}
    args = (-limit, limit - 1, [count])
    name = f"op{len(g.operations)}"
    g.operations.append(ExternOp(name, aten.randint.low, args, options, (buffer,)))
    return buffer, position


class Source:
    """Random numbers for one element: of a body that is being traced, at an offset."""

    def __init__(
        self,
        b: BodyBuilder,
        seed: Value,
        offset: Value,
        dtype: torch.dtype,
    ) -> None:
        self.b, self.seed, self.offset, self.dtype = b, seed, offset, dtype

    def word(self, number: int) -> Scalar:
        """32 random bits, as int32."""
        return Scalar(self.b, self.b.philox(self.seed, self.offset, number))

    def wide(self, number: int) -> Scalar:
        """The same as a non-negative int64."""
        return self.word(number).to(torch.int64) & 0xFFFFFFFF

    def uniform(self, number: int = 0) -> Scalar:
        """In [0, 1); of float64 `number` counts pairs of words."""
        if self.dtype == torch.float64:
            high, low = self.wide(2 * number), self.wide(2 * number + 1)
            bits = high.op("lshift", 21) | low.op("rshift", 11)
            return bits.to(torch.float64) * 2.0**-53
        if self.dtype in _BITS:
            kept = _BITS[self.dtype]
            return self.wide(number).op("rshift", 32 - kept).to(torch.float32) * 2.0**-kept
        word = self.word(number)
        return where(word < 0, ~word, word).to(torch.float32) * _TO_UNIT

    def normal(self) -> Scalar:
        """Of mean 0 and variance 1."""
        full = Source(self.b, self.seed, self.offset, compute_type(self.dtype))
        first = maximum(full.uniform(0), _TINY if full.dtype == torch.float32 else 2.0**-53)
        angle = full.uniform(1) * (2 * math.pi)
        return (log(first) * -2.0).op("sqrt") * angle.op("cos")


def random_lowering(
    *ops: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator for lowerings of operators that draw numbers: whole if the user wants eager's
    numbers, or gives a generator.
    """

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        def lower(g: GraphLowering, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
            if config.fallback_random or generator is not None:
                return DECLINED
            return fn(g, *args, **kwargs)

        lower.__name__ = fn.__name__
        register(*ops)(lower)
        _ADDED.update(op for op in ops if op in LOWERINGS)
        return lower

    return decorate


def draw(
    g: GraphLowering,
    numbers: Callable[..., Scalar],
    operands: tuple[TensorValue, ...] = (),
    dtype: torch.dtype = torch.float32,
    meta: torch.Tensor | None = None,
) -> TensorValue:
    """A value with an element `numbers(source, *elements of the operands)` for each of the node's
    (or `meta`'s) elements. dtype: of the source's numbers.
    """
    fake = g.meta if meta is None else meta
    seeds, position = seed_of(g)
    size, result = tuple(fake.shape), compute_type(fake.dtype)

    def inner(b: BodyBuilder, index: Index) -> Value:
        seed = b.load(seeds.name, as_expr(position), torch.int64)
        source = Source(b, seed, b.index_expr(linear_index(index, size)), dtype)
        values = []
        for x in operands:
            own = index[len(index) - x.ndim :]
            own = [i * 0 if extent == 1 else i for extent, i in zip(x.size, own, strict=True)]
            values.append(Scalar(b, b.cast(x.load(b, own), compute_type(x.dtype))))
        return b.cast(numbers(source, *values).value, result)

    return g.lazy(inner, operands, cost=60, meta=meta)


def _is_float(g: GraphLowering) -> bool:
    return bool(g.meta.dtype.is_floating_point)


@random_lowering(aten.rand.default, aten.rand_like.default)
def lower_rand(g: GraphLowering, *args: Any, **options: Any) -> Any:
    return draw(g, Source.uniform, (), g.meta.dtype) if _is_float(g) else DECLINED


@random_lowering(aten.randn.default, aten.randn_like.default)
def lower_randn(g: GraphLowering, *args: Any, **options: Any) -> Any:
    return draw(g, Source.normal, (), g.meta.dtype) if _is_float(g) else DECLINED


def _integers(
    g: GraphLowering,
    low: int,
    high: int,
) -> Any:
    extent = high - low
    if not 0 < extent < 1 << 63:
        return DECLINED

    def number(source: Source) -> Scalar:
        if extent <= 1 << 16:  # the error of the remainder is below 2 ** -16 of a probability
            return source.wide(0).op("remainder", extent) + low
        bits = (source.wide(0) & 0x7FFFFFFF).op("lshift", 32) | source.wide(1)
        return bits.op("remainder", extent) + low

    return draw(g, number)


@random_lowering(aten.randint.default)
def lower_randint(g: GraphLowering, high: int, size: Any, **options: Any) -> Any:
    return _integers(g, 0, high)


@random_lowering(aten.randint.low)
def lower_randint_low(g: GraphLowering, low: int, high: int, size: Any, **options: Any) -> Any:
    return _integers(g, low, high)


@random_lowering(aten.randint_like.default)
def lower_randint_like(g: GraphLowering, x: TensorValue, high: int, **options: Any) -> Any:
    return _integers(g, 0, high)


@random_lowering(aten.randint_like.low_dtype)
def lower_randint_like_low(
    g: GraphLowering,
    x: TensorValue,
    low: int,
    high: int,
    **options: Any,
) -> Any:
    return _integers(g, low, high)


@register(aten.bernoulli.p)
def lower_bernoulli_p(
    g: GraphLowering,
    x: TensorValue,
    p: float = 0.5,
    *,
    generator: Any = None,
) -> Any:
    calls = config.fallback_random or generator is not None
    if calls or not (0 <= p <= 1 and _is_of_dropout(g)):
        return drawn_over.lower_bernoulli(g, x, p, generator)
    return draw(g, lambda source: source.uniform() < p)


_ADDED.add(aten.bernoulli.p)


def _is_of_dropout(g: GraphLowering) -> bool:
    """Whether the numbers are `dropout`'s, as it is without gradients: scaled, then multiplied by
    something of their own shape.
    """
    scaled = list(g.node.users)
    products = [user for node in scaled for user in node.users]
    return (
        all(node.target is aten.div.Scalar for node in scaled)
        and all(node.target is aten.mul.Tensor for node in products)
        and all(node.meta["val"].shape == g.meta.shape for node in products)
    )


@random_lowering(aten.bernoulli.default)
def lower_bernoulli(g: GraphLowering, p: TensorValue) -> Any:
    return _bernoulli(g, p)


def _bernoulli(g: GraphLowering, p: TensorValue) -> Any:
    if not p.dtype.is_floating_point:
        return DECLINED
    text = "RuntimeError: Expected p_in >= 0 && p_in <= 1 to be true, but got false."

    def number(source: Source, chance: Scalar) -> Scalar:
        good = (chance >= 0) & (chance <= 1)
        value = Scalar(source.b, source.b.check(chance.value, good.value, text))
        return source.uniform() < value.to(torch.float32)

    return draw(g, number, (p,))


@random_lowering(aten.native_dropout.default)
def lower_dropout(
    g: GraphLowering,
    x: TensorValue,
    p: float,
    train: bool | None,
) -> Any:
    result, kept = g.meta
    if train is False or p in (0.0, 1.0) or not x.dtype.is_floating_point:
        return DECLINED
    mask = draw(g, lambda source: source.uniform() >= p, (), meta=kept)
    g.realize(mask)
    scaled = g.pointwise(
        lambda a, m: a * m * (1 / (1 - p)), (x, mask), x.dtype, cost=3, meta=result
    )
    return scaled, mask


# -- distributions that overwrite a tensor ---------------------------------------------------------


@random_lowering(aten.log_normal.default)
def lower_log_normal(
    g: GraphLowering,
    x: Any,
    mean: float = 1.0,
    std: float = 2.0,
) -> Any:
    if not _is_float(g) or std <= 0:
        return DECLINED
    return draw(g, lambda s: (s.normal() * std + mean).op("exp"), (), g.meta.dtype)


def _wide_uniform(source: Source) -> Scalar:
    """In [0, 1), of the precision that computing is done in."""
    return Source(source.b, source.seed, source.offset, compute_type(source.dtype)).uniform()


@random_lowering(aten.exponential.default)
def lower_exponential(
    g: GraphLowering,
    x: Any,
    rate: float = 1.0,
) -> Any:
    if not _is_float(g) or rate <= 0:
        return DECLINED
    # never 0, as eager's
    unit = torch.finfo(compute_type(g.meta.dtype)).eps / 2

    def number(source: Source) -> Scalar:
        return log(maximum(1 - _wide_uniform(source), unit)) * (-1 / rate)

    return draw(g, lambda s: maximum(number(s), unit), (), g.meta.dtype)


@random_lowering(aten.geometric.default)
def lower_geometric(
    g: GraphLowering,
    x: Any,
    p: float,
) -> Any:
    if not _is_float(g) or not 0 < p < 1:
        return DECLINED
    scale = 1 / math.log1p(-p)

    def number(source: Source) -> Scalar:
        value = log(maximum(1 - _wide_uniform(source), 2.0**-31)) * scale
        return maximum(value.op("ceil"), 1)

    return draw(g, number, (), g.meta.dtype)


@random_lowering(aten.cauchy.default)
def lower_cauchy(
    g: GraphLowering,
    x: Any,
    median: float = 0.0,
    sigma: float = 1.0,
) -> Any:
    if not _is_float(g) or sigma <= 0:
        return DECLINED

    def number(source: Source) -> Scalar:
        angle = (_wide_uniform(source) - 0.5) * math.pi
        return angle.op("tan") * sigma + median

    return draw(g, number, (), g.meta.dtype)
