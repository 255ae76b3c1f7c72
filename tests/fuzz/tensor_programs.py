"""Random programs of tensor operations, for the default backend.

A program is built and run in eager at the same time: a row that raises is left out, and every
variable's dtype and dimensions are known. The text holds no sizes: it can be called with others.
A variable is `exact` when all of its arithmetic is on small multiples of a quarter: only then may
a comparison, a rounding or an index be taken of it, since another order of additions must not
decide.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

# Two calls, so that the second one's sizes differ (not its strides' order, nor what is broadcast).
SIZES = ({"A": 3, "B": 8, "C": 5}, {"A": 4, "B": 8, "C": 18}, {"A": 2, "B": 33, "C": 7})
DTYPES = ("float32", "float32", "float64", "bfloat16", "int64", "int32", "uint8", "bool")
SHAPES = ("A, B", "A, B, C", "C", "B, C", "A, 1, C", "B", "1, B", "A, C, B", "A, A")
LAYOUTS = (
    "{}",
    "{}.mT.contiguous().mT",
    "torch.cat([{}, {}], -1)[..., ::2]",
    "torch.cat([{}, {}])[1:]",
    "{}[:1].expand_as({})",
)
MOST_STEPS = 12
MOST_NUMEL = 50_000

UNARY_EXACT = ("abs", "neg", "sign", "square", "relu", "positive", "clone", "signbit", "isnan")
UNARY = (
    "exp",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "erf",
    "atan",
    "log1p",
    "rsqrt",
    "sqrt",
    "reciprocal",
)
ROUNDING = ("floor", "ceil", "round", "trunc", "frac")
ACTIVATIONS = (
    "gelu",
    "silu",
    "softplus",
    "hardswish",
    "elu",
    "leaky_relu",
    "relu6",
    "mish",
    "logsigmoid",
)
BINARY = ("add", "sub", "mul", "maximum", "minimum", "true_divide", "atan2", "hypot", "pow")
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_xor")
INTEGER = ("bitwise_and", "bitwise_or", "bitwise_xor", "floor_divide", "remainder", "fmod")
REDUCE = ("sum", "mean", "amax", "amin", "prod", "var", "std", "logsumexp", "norm", "nansum")
COUNT = ("any", "all", "count_nonzero", "argmax", "argmin")
SCANS = ("cumsum", "cumprod", "logcumsumexp")
SOFTMAXES = ("softmax", "log_softmax", "softmin")
IN_PLACE = ("add_", "mul_", "sub_", "copy_")


@dataclass
class Builder:
    """`choose(n)` gives a number below n; 0 is the simplest choice."""

    choose: Callable[[int], int]
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    exact: set[str] = field(default_factory=set)

    def one(self, choices: Any) -> Any:
        choices = list(choices)
        return choices[self.choose(len(choices))]

    def name(
        self, accept: Callable[[torch.Tensor], bool] = lambda _: True, *, exact: bool = False
    ) -> str:
        names = [
            n for n, v in self.values.items() if accept(v) and (not exact or n in self.exact)
        ]
        if not names:
            raise NoRow
        return names[-1 - self.choose(len(names))]

    def floating(self) -> str:
        return self.name(lambda value: value.is_floating_point())

    def integer(self) -> str:
        return self.name(lambda value: not value.is_floating_point(), exact=True)

    def dimension(self, name: str) -> int:
        count = self.values[name].dim()
        if count == 0:
            raise NoRow
        return self.choose(count) - (count if self.choose(2) else 0)

    def number(self) -> str:
        return self.one(("2", "0.5", "-1", "3", "1", "-0.25", "0"))


class NoRow(Exception):
    """This row cannot be used here."""


def pointwise(b: Builder) -> str:
    x = b.floating()
    return b.one((f"torch.{b.one(UNARY)}({x})", f"F.{b.one(ACTIVATIONS)}({x})"))


def pointwise_exact(b: Builder) -> str:
    return f"torch.{b.one(UNARY_EXACT)}({b.name()})"


def rounding(b: Builder) -> str:
    return f"torch.{b.one(ROUNDING)}({b.name(lambda v: v.is_floating_point(), exact=True)})"


def binary(b: Builder) -> str:
    other = b.name() if b.choose(3) else b.one((b.number(), f"{b.name()}.shape[0]"))
    return f"torch.{b.one(BINARY)}({b.name()}, {other})"


def integers(b: Builder) -> str:
    other = b.integer() if b.choose(2) else b.one(("3", "-2", "7"))
    return f"torch.{b.one(INTEGER)}({b.integer()}, {other})"


def compare(b: Builder) -> str:
    other = b.name(exact=True) if b.choose(2) else "1"
    return f"torch.{b.one(COMPARE)}({b.name(exact=True)}, torch.as_tensor({other}))"


def where(b: Builder) -> str:
    mask = b.name(lambda v: v.dtype == torch.bool, exact=True)
    x = b.name()
    return b.one(
        (f"torch.where({mask}, {x}, {b.name()})", f"{x}.masked_fill({mask}, {b.number()})")
    )


def clamp(b: Builder) -> str:
    return f"{b.name()}.clamp({b.one(('-1, 1', 'min=0', 'max=2'))})"


def reduction(b: Builder) -> str:
    x = b.name()
    dims = b.one((str(b.dimension(x)), f"tuple(range({x}.dim()))"))
    keep = b.one(("", ", keepdim=True"))
    return f"torch.{b.one(REDUCE)}({x}, dim={dims}{keep})"


def counting(b: Builder) -> str:
    x = b.name(exact=True)
    return f"torch.{b.one(COUNT)}({x}, dim={b.dimension(x)})"


def scan(b: Builder) -> str:
    x = b.name()
    return f"torch.{b.one(SCANS)}({x}, {b.dimension(x)})"


def softmax(b: Builder) -> str:
    x = b.floating()
    return f"F.{b.one(SOFTMAXES)}({x}, dim={b.dimension(x)})"


def norm(b: Builder) -> str:
    x = b.floating()
    return f"F.{b.one(('layer_norm', 'rms_norm'))}({x}, {x}.shape[-1:])"


def view(b: Builder) -> str:
    x = b.name()
    d, e = b.dimension(x), b.dimension(x)
    return x + b.one(
        (
            f".transpose({d}, {e})",
            f".unsqueeze({d})",
            f".flatten({min(d, e)})" if d * e >= 0 else ".flatten()",
            ".reshape(-1)",
            f".narrow({d}, 0, 1)",
            f".select({d}, {b.one((0, -1))})",
            "[1:]",
            "[..., ::2]",
            "[..., None, 1:]",
            f".movedim({d}, {e})",
            ".mT",
            f".unfold({d}, 2, 1)",
            ".diagonal()",
            f".chunk(2, {d})[{b.one((0, -1))}]",
            f".unflatten({d}, (1, -1))",
            f".squeeze({d})",
            ".view(-1)",
        )
    )


def ternary(b: Builder) -> str:
    x, y, z = b.floating(), b.floating(), b.floating()
    return b.one(
        (
            f"torch.addcmul({x}, {y}, {z}, value=0.5)",
            f"torch.lerp({x}, {y}, 0.25)",
            f"torch.lerp({x}, {y}, {z})",
            f"torch.addcdiv({x}, {y}, {z}.abs() + 1)",
            f"torch.logaddexp({x}, {y})",
            f"torch.nan_to_num({x} / {y})",
            f"torch.outer({x}.flatten(), {y}.flatten()[:9])",
            f"torch.cdist({x}, {y})",
        )
    )


def layer(b: Builder) -> str:
    x = b.floating()
    rows = f"{x}.reshape(1, -1, {x}.shape[-1])"
    return b.one(
        (
            f"F.avg_pool1d({rows}, 2, ceil_mode=True)",
            f"F.max_pool1d({rows}, 3, 2, 1)",
            f"F.adaptive_avg_pool1d({rows}, 3)",
            f"F.interpolate({rows}, scale_factor=2.0, mode='linear')",
            f"F.interpolate({rows}, size=7)",
            f"F.conv1d({rows}, {rows}[:, :, :2])",
            f"F.batch_norm({rows}, None, None, training=True)",
            f"F.group_norm({rows}, 1)",
            f"F.normalize({x}, dim={b.dimension(x)})",
            f"F.glu(torch.cat([{x}, {x}], -1))",
            f"F.embedding(torch.arange(4) % {x}.shape[0], {x}.reshape({x}.shape[0], -1))",
            f"F.scaled_dot_product_attention({rows}, {rows}, {rows}, is_causal=True)",
        )
    )


def loss(b: Builder) -> str:
    x, y = b.floating(), b.floating()
    how = b.one(("mean", "sum", "none"))
    return b.one(
        (
            f"F.mse_loss({x}, {y}, reduction='{how}')",
            f"F.smooth_l1_loss({x}, {y}, reduction='{how}')",
            f"F.huber_loss({x}, {y}, reduction='{how}')",
            f"F.binary_cross_entropy_with_logits({x}, {y}, reduction='{how}')",
            f"F.kl_div({x}, {y}, reduction='{how}', log_target=True)",
            f"F.cross_entropy({x}.reshape(-1, {x}.shape[-1]), torch.zeros({x}.shape[:-1], "
            f"dtype=torch.int64).flatten(), label_smoothing=0.1, reduction='{how}')",
            f"F.cosine_similarity({x}, {y}, dim={b.dimension(x)})",
        )
    )


def rearrange(b: Builder) -> str:
    x = b.name()
    d = b.dimension(x)
    return b.one(
        (
            f"torch.flip({x}, ({d},))",
            f"torch.roll({x}, {b.one((1, -2))}, {d})",
            f"torch.cat([{x}, {x} * 2], {d})",
            f"torch.stack([{x}, -{x}.abs()], {d})",
            f"{x}.repeat_interleave(2, {d})",
            f"torch.tile({x}, (2, 1))",
            f"F.pad({x}, ({b.one(('1, 0', '-1, 2', '0, 3'))}))",
            f"F.pad({x}[None], (1, 1), mode='{b.one(('reflect', 'replicate', 'circular'))}')[0]",
            f"torch.tril({x}, {b.one((0, -1, 1))})",
            f"torch.triu({x})",
            f"{x}.contiguous()",
            f"torch.diff({x}, dim={d})",
            f"torch.cat([{x}, {b.name()}], {d})",
            f"torch.diag_embed({x})",
        )
    )


def gathering(b: Builder) -> str:
    x, index = b.name(), b.name(lambda v: v.dtype in (torch.int64, torch.int32), exact=True)
    d = b.dimension(x)
    bounded = f"torch.remainder({index}.long(), {x}.shape[{d}])"
    return b.one(
        (
            f"{x}.index_select({d}, {bounded}.reshape(-1))",
            f"torch.take_along_dim({x}, {bounded}, {d})",
            f"{x}[torch.remainder({index}.long(), {x}.shape[0])]",
            f"torch.zeros_like({x}).index_add({d}, torch.arange({x}.shape[{d}]) % 2, {x})",
            f"{x}.scatter_add({d}, {bounded}[:1], {x})",
            f"{x}.scatter_reduce({d}, torch.zeros_like({x}, dtype=torch.int64), {x}, 'amax')",
            f"F.one_hot(torch.remainder({index}.long(), 5), 5)",
            f"torch.sort({x}, dim={d}, stable=True)[0]",
        )
    )


def creation(b: Builder) -> str:
    x = b.name()
    n = f"{x}.shape[{b.dimension(x)}]"
    return b.one(
        (
            f"torch.arange({n})",
            f"torch.zeros_like({x}, dtype=torch.float32)",
            f"torch.ones({n}, {n}).tril()",
            f"torch.full(({n},), 0.5)",
            f"torch.arange({n}, 0, -1, dtype=torch.float32)",
            f"torch.eye({n})",
        )
    )


def cast(b: Builder) -> str:
    kinds = ("float32", "float64", "bfloat16", "int64", "int32", "bool")
    return f"{b.name(exact=True)}.to(torch.{b.one(kinds)})"


def matrices(b: Builder) -> str:
    x = b.name(lambda v: v.dim() >= 2 and v.dtype == torch.float32)
    return b.one(
        (
            f"{x} @ {x}.mT",
            f"torch.einsum('...ij,...kj->...ik', {x}, {x})",
            f"F.linear({x}, {x}.flatten(0, -2))",
        )
    )


def in_place(b: Builder) -> str:
    x = b.name()
    return b.one(
        (
            f"{x}.{b.one(IN_PLACE)}({b.name()})",
            f"{x}.{b.one(('mul_(2)', 'zero_()', 'neg_()', 'clamp_(-1, 1)', 'fill_(3)'))}",
            f"{x}[1:].{b.one(('mul_(2)', 'add_(1)', 'zero_()'))}",
            f"operator.setitem({x}, (..., slice(None, None, 2)), {b.number()})",
            f"operator.setitem({x}, 0, {x}[-1])",
            f"{x}[..., 1:].copy_({x}[..., :-1].clone())",
            f"operator.setitem({x}, {x} > 0, {b.number()})",
            f"operator.setitem({x}, torch.arange({x}.shape[0]) // 2, {b.name()})",
            f"{x}.index_add_(0, torch.arange({x}.shape[0]) // 2, {x}.clone())",
            f"{x}.masked_fill_({x} > 1, {b.number()})",
            f"{x}.unsqueeze(0).mul_({b.name()})",
            f"{x}.t_()",
            f"torch.mul({x}, 2, out={b.name()})",
        )
    )


EXACT_ROWS = (
    pointwise_exact,
    binary,
    where,
    clamp,
    reduction,
    view,
    rearrange,
    gathering,
    in_place,
)
ALWAYS_EXACT = (rounding, integers, compare, counting, creation, cast)
ROWS = (
    view,
    binary,
    reduction,
    pointwise,
    *EXACT_ROWS,
    *ALWAYS_EXACT,
    scan,
    softmax,
    norm,
    matrices,
    ternary,
    layer,
    loss,
)
INEXACT_NAMES = (
    "mean",
    "var",
    "std",
    "logsumexp",
    "norm",
    "true_divide",
    "atan2",
    "hypot",
    "pow",
    "prod",
)


@dataclass(frozen=True)
class TensorProgram:
    """`fn(*inputs)`: source text, and for each input a statement that makes it from sizes."""

    text: str
    inputs: tuple[str, ...]
    dynamic: bool | None
    trains: bool

    def __str__(self) -> str:
        made = "\n".join(f"# {source}" for source in self.inputs)
        return f"{self.text}{made}\n# sizes {SIZES}, dynamic={self.dynamic}, trains={self.trains}\n"

    def in_double(self) -> TensorProgram:
        """The same on float64, to see how much of a result is rounding."""
        texts = [self.text, *self.inputs]
        for dtype in ("float32", "bfloat16"):
            texts = [text.replace(f"torch.{dtype}", "torch.float64") for text in texts]
        return TensorProgram(texts[0], tuple(texts[1:]), self.dynamic, self.trains)


def make_input(b: Builder, index: int) -> str:
    shape, dtype = b.one(SHAPES), b.one(DTYPES)
    layout = b.one(LAYOUTS if "," in shape else LAYOUTS[2:])
    scaled = " / 4" if "float" in dtype else ""
    least = 0 if dtype in ("uint8", "bool") else -6
    made = f"(torch.randint({least}, 7, ({shape},)){scaled}).to(torch.{dtype})"
    return f"x{index} = {layout.replace('{}', made)}"


def make_program(choose: Callable[[int], int]) -> TensorProgram:
    """A random program of up to `MOST_STEPS` steps."""
    builder = Builder(choose)
    inputs = []
    space: dict[str, Any] = namespace(SIZES[0])
    torch.manual_seed(0)
    for index in range(1 + choose(3)):
        inputs.append(make_input(builder, index))
        exec(inputs[-1], space)
        builder.values[f"x{index}"] = space[f"x{index}"]
        if space[f"x{index}"].dtype != torch.bfloat16:
            builder.exact.add(f"x{index}")
    lines = []
    for number in range(2 + choose(MOST_STEPS)):
        line = step(builder, space, f"t{number}")
        if line is not None:
            lines.append(line)
    results = [*list(builder.values)[-1 - choose(3) :], builder.name()]
    names = ", ".join(f"x{index}" for index in range(len(inputs)))
    body = "".join(f"    {line}\n" for line in lines)
    text = f"def fn({names}):\n{body}    return ({', '.join(results)},)\n"
    return TensorProgram(text, tuple(inputs), (None, True, False)[choose(3)], choose(3) == 2)


def step(builder: Builder, space: dict[str, Any], name: str) -> str | None:
    """Adds one row, unless it cannot be used or raises in eager."""
    row = builder.one(ROWS)
    before = {key: value._version for key, value in builder.values.items()}
    try:
        text = row(builder)
        value = eval(text, space)
    except (NoRow, RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        # Where a row with a write raises, nothing was written: it raises before.
        return None
    if value is None:
        line = text
    elif not isinstance(value, torch.Tensor) or value.numel() > MOST_NUMEL:
        return None
    else:
        space[name] = builder.values[name] = value
        line = f"{name} = {text}"
    read = [key for key in builder.values if key in text.replace("(", " ").replace(")", " ")]
    if is_exact(builder, row, text, read) and value is not None and is_small(value):
        builder.exact.add(name)
    for key, old in before.items():
        if builder.values[key]._version != old and not (
            is_exact(builder, row, text, read) and is_small(builder.values[key])
        ):
            builder.exact.discard(key)
    return line


def is_exact(builder: Builder, row: Any, text: str, read: list[str]) -> bool:
    if row in ALWAYS_EXACT:
        return "cast" not in row.__name__ or "bfloat16" not in text
    return (
        row in EXACT_ROWS
        and all(name in builder.exact for name in read)
        and not any(name in text for name in INEXACT_NAMES)
    )


def is_small(value: torch.Tensor) -> bool:
    """Whether sums of such values have no rounding."""
    if value.dtype == torch.bfloat16:
        return False
    scaled = value.detach().double() * 256
    return bool(((scaled == scaled.round()) & (scaled.abs() < 1 << 20)).all())


def namespace(sizes: dict[str, int]) -> dict[str, Any]:
    return {"torch": torch, "F": torch.nn.functional, "operator": operator, **sizes}
