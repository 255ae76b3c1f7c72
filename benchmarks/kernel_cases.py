"""What `kernels.py` times: one row a case, `name: make`, where `make(g)` gives a function and its
arguments.

`g` makes tensors (`Make`), so that a case says sizes and dtypes and nothing about devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["CASES", "Case", "Make"]

Made = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Make:
    """Tensors for a case, on one device."""

    device: str

    def randn(self, *size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Normal numbers."""
        return torch.randn(size, device=self.device).to(dtype)

    def rand(self, *size: int) -> torch.Tensor:
        """Numbers in [0, 1)."""
        return torch.rand(size, device=self.device)

    def ints(self, high: int, *size: int) -> torch.Tensor:
        """Integers in [0, high)."""
        return torch.randint(high, size, device=self.device)

    def module(self, module: torch.nn.Module) -> torch.nn.Module:
        """A module for inference."""
        return module.to(self.device).eval().requires_grad_(False)


@dataclass(frozen=True)
class Case:
    """One row. `mutates`: the function changes its arguments, which are then its result too."""

    make: Callable[[Make], Made]
    mutates: bool = False
    bound: str = "memory"


CASES: dict[str, Case] = {}


def case(
    name: str, *, mutates: bool = False, bound: str = "memory"
) -> Callable[[Callable[[Make], Made]], Callable[[Make], Made]]:
    """Enter a function into `CASES`. `bound`: what limits it, `memory`, `compute` or `library`."""

    def enter(make: Callable[[Make], Made]) -> Callable[[Make], Made]:
        assert name not in CASES, name
        CASES[name] = Case(make, mutates, bound)
        return make

    return enter


BF16 = torch.bfloat16
BIG = (2048, 1024)


# -- elementwise -----------------------------------------------------------------------------------


@case("pointwise: add mul relu")
def _chain(g: Make) -> Made:
    return lambda x, y: torch.relu(x * y + x) * 0.5, (g.randn(*BIG), g.randn(*BIG))


@case("pointwise: transcendental chain", bound="compute")
def _transcendental(g: Make) -> Made:
    return lambda x: torch.sigmoid(torch.sin(x) + torch.exp(-x.abs())), (g.randn(*BIG),)


@case("pointwise: gelu tanh", bound="compute")
def _gelu_tanh(g: Make) -> Made:
    return lambda x: F.gelu(x, approximate="tanh"), (g.randn(*BIG),)


@case("pointwise: gelu erf", bound="compute")
def _gelu(g: Make) -> Made:
    return lambda x: F.gelu(x), (g.randn(*BIG),)


@case("pointwise: silu mul bf16")
def _swiglu_bf16(g: Make) -> Made:
    size = (2048, 1408)
    return lambda x, y: F.silu(x) * y, (g.randn(*size, dtype=BF16), g.randn(*size, dtype=BF16))


@case("pointwise: small, 4096 elements")
def _small(g: Make) -> Made:
    return lambda x, y: (x + y).tanh() * x - y, (g.randn(4096), g.randn(4096))


@case("pointwise: broadcast row and column")
def _broadcast(g: Make) -> Made:
    args = g.randn(*BIG), g.randn(1024), g.randn(2048, 1)
    return lambda x, row, column: (x + row) * column, args


@case("pointwise: mixed dtypes, where")
def _mixed(g: Make) -> Made:
    args = g.randn(*BIG), g.ints(100, *BIG), g.rand(*BIG) > 0.5
    return lambda x, i, m: torch.where(m, x * 2, i.float() - x), args


@case("pointwise: two outputs")
def _two_outputs(g: Make) -> Made:
    return lambda x: (x.clamp(-1, 1), (x * x + 1).rsqrt()), (g.randn(*BIG),)


@case("pointwise: strided slice")
def _slice(g: Make) -> Made:
    return lambda x: x[:, ::2] * 2 + x[:, 1::2], (g.randn(*BIG),)


@case("masked fill, causal")
def _causal(g: Make) -> Made:
    def run(x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(512, 512, dtype=torch.bool, device=x.device).tril()
        return x.masked_fill(~mask, float("-inf"))

    return run, (g.randn(8, 512, 512),)


# -- layout ----------------------------------------------------------------------------------------


@case("transpose: contiguous copy plus one")
def _transpose(g: Make) -> Made:
    return lambda x: (x.t() + 1).contiguous(), (g.randn(2048, 2048),)


@case("transpose: x + x.t()")
def _plus_turned(g: Make) -> Made:
    return lambda x: x + x.t(), (g.randn(1024, 1024),)


@case("permute heads, bf16")
def _heads(g: Make) -> Made:
    def run(x: torch.Tensor) -> torch.Tensor:
        return (x.view(8, 256, 16, 64).permute(0, 2, 1, 3) * 0.125).contiguous()

    return run, (g.randn(8, 256, 1024, dtype=BF16),)


@case("cat of three, then relu")
def _cat(g: Make) -> Made:
    args = g.randn(1024, 512), g.randn(1024, 256), g.randn(1024, 1024)
    return lambda a, b, c: torch.cat([a, b * 2, c], 1).relu(), args


@case("split and swiglu")
def _split(g: Make) -> Made:
    def run(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return F.silu(a) * b

    return run, (g.randn(1024, 2816),)


@case("pad and add")
def _pad(g: Make) -> Made:
    return lambda x: F.pad(x, (1, 1, 1, 1)) + 1, (g.randn(16, 16, 126, 126),)


@case("roll and stack")
def _roll(g: Make) -> Made:
    args = (g.randn(512, 1024),)
    return lambda x: torch.stack([x.roll(1, 1), x, x.flip(0)]), args


# -- reductions ------------------------------------------------------------------------------------


@case("sum of rows")
def _rows(g: Make) -> Made:
    return lambda x: (x * 2).sum(-1), (g.randn(*BIG),)


@case("sum of columns")
def _columns(g: Make) -> Made:
    return lambda x: (x * 2).sum(0), (g.randn(*BIG),)


@case("sum of all")
def _all(g: Make) -> Made:
    return lambda x: (x * x).sum(), (g.randn(*BIG),)


@case("mean and variance of the middle")
def _middle(g: Make) -> Made:
    return lambda x: (x.mean(1), x.var(1)), (g.randn(64, 256, 128),)


@case("argmax and max of rows")
def _argmax(g: Make) -> Made:
    return lambda x: (x.argmax(-1), x.amax(-1)), (g.randn(4096, 512),)


@case("bf16 sum of rows")
def _rows_bf16(g: Make) -> Made:
    return lambda x: (x * 2).sum(-1), (g.randn(4096, 1024, dtype=BF16),)


@case("softmax: rows of 128")
def _softmax_short(g: Make) -> Made:
    return lambda x: torch.softmax(x, -1), (g.randn(16384, 128),)


@case("softmax: rows of 32000")
def _softmax_long(g: Make) -> Made:
    return lambda x: torch.softmax(x, -1), (g.randn(64, 32000),)


@case("softmax: columns")
def _softmax_columns(g: Make) -> Made:
    return lambda x: torch.softmax(x, 1), (g.randn(32, 128, 512),)


@case("log-softmax, bf16")
def _log_softmax(g: Make) -> Made:
    return lambda x: torch.log_softmax(x.float(), -1), (g.randn(2048, 1024, dtype=BF16),)


@case("softmax with scale and mask")
def _softmax_mask(g: Make) -> Made:
    args = g.randn(8, 8, 256, 256), g.rand(256, 256) > 0.2
    return lambda x, m: torch.softmax((x * 0.125).masked_fill(~m, -1e9), -1), args


@case("cross-entropy", bound="compute")
def _cross_entropy(g: Make) -> Made:
    return F.cross_entropy, (g.randn(1024, 4096), g.ints(4096, 1024))


@case("cumsum of rows")
def _cumsum(g: Make) -> Made:
    return lambda x: (x * 2).cumsum(-1) + 1, (g.randn(1024, 1024),)


# -- norms -----------------------------------------------------------------------------------------


@case("layer norm")
def _layer_norm(g: Make) -> Made:
    args = g.randn(4096, 768), g.randn(768), g.randn(768)
    return lambda x, w, b: F.layer_norm(x, (768,), w, b), args


@case("residual, layer norm, gelu, bf16", bound="compute")
def _layer_norm_bf16(g: Make) -> Made:
    args = [g.randn(*size, dtype=BF16) for size in [(2048, 768), (2048, 768), (768,), (768,)]]
    return lambda x, y, w, b: F.gelu(F.layer_norm(x + y, (768,), w, b)), tuple(args)


@case("rms norm")
def _rms_norm(g: Make) -> Made:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w

    return run, (g.randn(2048, 1024), g.randn(1024))


@case("rms norm, bf16")
def _rms_norm_bf16(g: Make) -> Made:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return w * wide.to(x.dtype)

    return run, (g.randn(2048, 1024, dtype=BF16), g.randn(1024, dtype=BF16))


@case("group norm and silu", bound="compute")
def _group_norm(g: Make) -> Made:
    args = g.randn(8, 64, 32, 32), g.randn(64), g.randn(64)
    return lambda x, w, b: F.silu(F.group_norm(x, 8, w, b)), args


@case("batch norm in training, relu", mutates=True)
def _batch_norm(g: Make) -> Made:
    def run(
        x: torch.Tensor, m: torch.Tensor, v: torch.Tensor, w: torch.Tensor, b: torch.Tensor
    ) -> torch.Tensor:
        return F.relu(F.batch_norm(x, m, v, w, b, training=True))

    vectors = [g.randn(64), g.rand(64), g.randn(64), g.randn(64)]
    return run, (g.randn(16, 64, 28, 28), *vectors)


# -- indexing --------------------------------------------------------------------------------------


@case("embedding plus position, layer norm")
def _embedding(g: Make) -> Made:
    def run(
        i: torch.Tensor, table: torch.Tensor, place: torch.Tensor, w: torch.Tensor
    ) -> torch.Tensor:
        return F.layer_norm(F.embedding(i, table) + place, (512,), w)

    return run, (g.ints(10000, 8, 256), g.randn(10000, 512), g.randn(256, 512), g.randn(512))


@case("gather and scale")
def _gather(g: Make) -> Made:
    return lambda x, i: torch.gather(x, 1, i) * 2, (
        g.randn(1024, 1024),
        g.ints(1024, 1024, 256),
    )


@case("scatter_add")
def _scatter(g: Make) -> Made:
    def run(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        zeros = x.new_zeros(1024, 256)
        return zeros.scatter_add(0, i, x * 2) + 1

    return run, (g.randn(2048, 256), g.ints(1024, 2048, 256))


@case("index_select rows and add")
def _index_select(g: Make) -> Made:
    args = g.randn(8192, 256), g.ints(8192, 4096), g.randn(4096, 256)
    return lambda x, i, y: x[i] + y, args


@case("rotary embedding")
def _rotary(g: Make) -> Made:
    def turned(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    def run(q: torch.Tensor, k: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> Any:
        return q * c + turned(q) * s, k * c + turned(k) * s

    sizes = [(4, 16, 256, 64), (4, 16, 256, 64), (256, 64), (256, 64)]
    return run, tuple(g.randn(*size) for size in sizes)


# -- optimizers ------------------------------------------------------------------------------------


@case("SGD with momentum, 8 tensors", mutates=True)
def _sgd(g: Make) -> Made:
    def run(p: list[torch.Tensor], d: list[torch.Tensor], m: list[torch.Tensor]) -> None:
        torch._foreach_mul_(m, 0.9)
        torch._foreach_add_(m, d)
        torch._foreach_add_(p, m, alpha=-0.01)

    return run, tuple([g.randn(256, 512) for _ in range(8)] for _ in range(3))


@case("Adam, 8 tensors", mutates=True)
def _adam(g: Make) -> Made:
    def run(
        p: list[torch.Tensor],
        d: list[torch.Tensor],
        m: list[torch.Tensor],
        v: list[torch.Tensor],
    ) -> None:
        torch._foreach_lerp_(m, d, 0.1)
        torch._foreach_mul_(v, 0.999)
        torch._foreach_addcmul_(v, d, d, 0.001)
        below = torch._foreach_sqrt(v)
        torch._foreach_add_(below, 1e-8)
        torch._foreach_addcdiv_(p, m, below, -0.001)

    tensors = [[g.randn(256, 512) for _ in range(8)] for _ in range(3)]
    return run, (*tensors, [g.rand(256, 512) for _ in range(8)])


# -- with libraries --------------------------------------------------------------------------------


@case("conv, batch norm, relu", bound="library")
def _conv(g: Make) -> Made:
    block = torch.nn.Sequential(
        torch.nn.Conv2d(64, 64, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(64),
        torch.nn.ReLU(),
    )
    return g.module(block), (g.randn(4, 64, 28, 28),)


@case("max pool and average pool")
def _pool(g: Make) -> Made:
    def run(x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(F.max_pool2d(x.relu(), 3, 2, 1), 2)

    return run, (g.randn(8, 64, 56, 56),)


@case("global average pool")
def _global_pool(g: Make) -> Made:
    return lambda x: F.adaptive_avg_pool2d(x.relu(), 1).flatten(1), (g.randn(16, 256, 28, 28),)


@case("linear and gelu", bound="library")
def _linear(g: Make) -> Made:
    args = g.randn(512, 512), g.randn(2048, 512), g.randn(2048)
    return lambda x, w, b: F.gelu(F.linear(x, w, b)), args


@case("MLP of three layers, small", bound="library")
def _mlp(g: Make) -> Made:
    layers = []
    for _ in range(3):
        layers += [torch.nn.Linear(64, 64), torch.nn.ReLU()]
    return g.module(torch.nn.Sequential(*layers)), (g.randn(16, 64),)


@case("MLP, bf16", bound="library")
def _mlp_bf16(g: Make) -> Made:
    layers = torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512)
    return g.module(torch.nn.Sequential(*layers).to(BF16)), (g.randn(256, 512, dtype=BF16),)


@case("attention by hand", bound="library")
def _attention(g: Make) -> Made:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1)
        return weights @ v

    return run, tuple(g.randn(4, 8, 256, 64) for _ in range(3))


@case("attention, fused operator", bound="library")
def _sdpa(g: Make) -> Made:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(4, 256, 8, 64).transpose(1, 2) for t in (x @ w).chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).reshape(4, 256, 512)

    return run, (g.randn(4, 256, 512), g.randn(512, 1536))


@case("transformer block", bound="library")
def _block(g: Make) -> Made:
    layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, norm_first=True)
    return g.module(layer), (g.randn(4, 128, 256),)
