"""More rows for `kernels.py`, as models have them: losses, attention as people spell it, layouts,
quantisation, routing, recurrent cells, optimizers of many small parameters.

Importing this module enters them into `kernel_cases.CASES`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import BF16, BIG, Made, Make, case

# -- long and narrow reductions --------------------------------------------------------------------


@case("sum of 16M elements")
def _sum_of_many(g: Make) -> Made:
    return lambda x: (x * x).sum(), (g.randn(1 << 24),)


@case("mean and variance of 4 rows of 1M")
def _few_rows(g: Make) -> Made:
    return lambda x: (x.mean(-1), x.var(-1)), (g.randn(4, 1 << 20),)


@case("sum of 64 columns of 100k")
def _tall_columns(g: Make) -> Made:
    return lambda x: (x * 2).sum(0), (g.randn(100_000, 64),)


@case("largest of columns, bf16")
def _columns_bf16(g: Make) -> Made:
    return lambda x: x.float().abs().amax(0), (g.randn(4096, 1024, dtype=BF16),)


@case("gradient of a bias: all but channels")
def _bias_gradient(g: Make) -> Made:
    return lambda x: x.sum((0, 2, 3)), (g.randn(16, 64, 56, 56),)


@case("norm, then scaling by it")
def _clip(g: Make) -> Made:
    return lambda x: x * torch.clamp(1 / (x.norm() + 1e-6), max=1.0), (g.randn(1 << 21),)


@case("std, largest and its position, of all")
def _statistics(g: Make) -> Made:
    return lambda x: (x.std(), x.amax(), x.argmax()), (g.randn(1 << 21),)


@case("logsumexp of columns", bound="compute")
def _logsumexp(g: Make) -> Made:
    return lambda x: torch.logsumexp(x, 0), (g.randn(1024, 1024),)


@case("any, all and count of rows")
def _masks(g: Make) -> Made:
    return lambda x: ((x > 0).any(-1), (x > -3).all(-1), (x > 1).sum(-1)), (g.randn(*BIG),)


# -- losses ----------------------------------------------------------------------------------------


@case("mean squared error")
def _mse(g: Make) -> Made:
    return F.mse_loss, (g.randn(*BIG), g.randn(*BIG))


@case("binary cross-entropy of logits", bound="compute")
def _bce(g: Make) -> Made:
    return F.binary_cross_entropy_with_logits, (g.randn(*BIG), g.rand(*BIG))


@case("KL divergence of two softmaxes", bound="compute")
def _kl(g: Make) -> Made:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean")

    return run, (g.randn(512, 4096), g.randn(512, 4096))


@case("cross-entropy, vocabulary of 32000", bound="compute")
def _vocabulary(g: Make) -> Made:
    return F.cross_entropy, (g.randn(256, 32000), g.ints(32000, 256))


@case("cross-entropy with label smoothing", bound="compute")
def _smoothed(g: Make) -> Made:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, y, label_smoothing=0.1)

    return run, (g.randn(256, 8192), g.ints(8192, 256))


@case("cosine similarity of rows")
def _cosine(g: Make) -> Made:
    return lambda x, y: F.cosine_similarity(x, y, -1), (g.randn(4096, 512), g.randn(4096, 512))


@case("distances of all pairs")
def _distances(g: Make) -> Made:
    args = g.randn(256, 64), g.randn(256, 64)
    return lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1).sqrt(), args


# -- attention and transformers --------------------------------------------------------------------


@case("attention by hand, scaled, additive mask", bound="library")
def _attention_mask(g: Make) -> Made:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(64) + m, -1) @ v

    return run, (*(g.randn(4, 8, 256, 64) for _ in range(3)), g.randn(1, 1, 256, 256))


@case("attention by hand, 1024 tokens", bound="library")
def _attention_long(g: Make) -> Made:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.matmul(q, k.transpose(-2, -1)) / 8.0, -1) @ v

    return run, tuple(g.randn(1, 8, 1024, 64) for _ in range(3))


@case("attention by hand, bf16", bound="library")
def _attention_bf16(g: Make) -> Made:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = q @ k.transpose(-2, -1) * 0.125
        return torch.softmax(weights, -1, dtype=torch.float32).to(q.dtype) @ v

    return run, tuple(g.randn(4, 8, 256, 64, dtype=BF16) for _ in range(3))


@case("grouped-query attention, fused operator", bound="library")
def _grouped(g: Make) -> Made:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (t[:, :, None].expand(2, 2, 4, 256, 64).reshape(2, 8, 256, 64) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return run, (g.randn(2, 8, 256, 64), g.randn(2, 2, 256, 64), g.randn(2, 2, 256, 64))


@case("rotary embedding, neighbours in pairs")
def _rotary_pairs(g: Make) -> Made:
    def run(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)

    return run, (g.randn(4, 16, 256, 64), g.randn(256, 32), g.randn(256, 32))


@case("softmax with a bias of distances")
def _alibi(g: Make) -> Made:
    def run(x: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[-1], device=x.device)
        distance = place[None] - place[:, None]
        return torch.softmax(x + (slopes[:, None, None] * distance).tril(), -1)

    return run, (g.randn(4, 8, 256, 256), g.rand(8))


@case("residual and layer norm, both results")
def _residual_norm(g: Make) -> Made:
    def run(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        total = x + y
        return total, F.layer_norm(total, (1024,), w, b)

    return run, (g.randn(*BIG), g.randn(*BIG), g.randn(1024), g.randn(1024))


@case("dropout, residual, layer norm", bound="compute")
def _dropout_norm(g: Make) -> Made:
    def run(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        # What dropout draws differs between the subjects; none of it reaches the result, as it is
        # below the last bit. (Times 0, torch.compile leaves it out altogether.)
        return F.layer_norm(x + 1e-30 * F.dropout(y, 0.1, True), (768,), w)

    return run, (g.randn(1024, 768), g.randn(1024, 768), g.randn(768))


@case("expert routing: softmax and top 2", bound="library")
def _routing(g: Make) -> Made:
    def run(x: torch.Tensor) -> Any:
        weights, experts = torch.softmax(x, -1).topk(2, -1)
        return weights / weights.sum(-1, keepdim=True), experts

    return run, (g.randn(4096, 64),)


@case("linear and relu of one row", bound="library")
def _one_row(g: Make) -> Made:
    args = g.randn(1, 1024), g.randn(4096, 1024), g.randn(4096)
    return lambda x, w, b: F.relu(F.linear(x, w, b)), args


@case("small batched product and softmax", bound="library")
def _small_bmm(g: Make) -> Made:
    return lambda a, b: torch.softmax(torch.bmm(a, b), -1), (
        g.randn(64, 32, 32),
        g.randn(64, 32, 32),
    )


@case("one token into a cache of 4096", mutates=True)
def _cache(g: Make) -> Made:
    def run(cache: torch.Tensor, new: torch.Tensor) -> None:
        cache[:, :, 17:18] = new

    return run, (g.randn(1, 8, 4096, 64), g.randn(1, 8, 1, 64))


# -- images ----------------------------------------------------------------------------------------


@case("image to patches, normalised")
def _patches(g: Make) -> Made:
    def run(x: torch.Tensor) -> torch.Tensor:
        patches = x.view(8, 3, 14, 16, 14, 16).permute(0, 2, 4, 1, 3, 5)
        return patches.reshape(8, 196, 768) * 2 - 1

    return run, (g.randn(8, 3, 224, 224),)


@case("window partition")
def _windows(g: Make) -> Made:
    def run(x: torch.Tensor) -> torch.Tensor:
        return x.view(4, 8, 7, 8, 7, 96).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, 96) + 1

    return run, (g.randn(4, 56, 56, 96),)


@case("bytes to a normalised image")
def _bytes(g: Make) -> Made:
    image = g.ints(255, 8, 224, 224, 3).to(torch.uint8)
    return lambda x: (x.permute(0, 3, 1, 2).float() / 255 - 0.45) / 0.225, (image,)


@case("group norm and silu, channels last", bound="compute")
def _group_norm_last(g: Make) -> Made:
    image = g.randn(4, 128, 32, 32).to(memory_format=torch.channels_last)
    return lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)), (
        image,
        g.randn(128),
        g.randn(128),
    )


@case("instance norm")
def _instance_norm(g: Make) -> Made:
    return F.instance_norm, (g.randn(8, 64, 32, 32),)


@case("norm over channels")
def _channel_norm(g: Make) -> Made:
    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(1, keepdim=True)
        variance = centred.pow(2).mean(1, keepdim=True)
        return w[:, None, None] * (centred / torch.sqrt(variance + 1e-6)) + b[:, None, None]

    return run, (g.randn(8, 96, 56, 56), g.randn(96), g.randn(96))


@case("conv, batch norm, relu, channels last", bound="library")
def _conv_last(g: Make) -> Made:
    block = torch.nn.Sequential(
        torch.nn.Conv2d(64, 64, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(64),
        torch.nn.ReLU(),
    )
    image = g.randn(4, 64, 28, 28).to(memory_format=torch.channels_last)
    return g.module(block).to(memory_format=torch.channels_last), (image,)


@case("depthwise conv, batch norm, relu6", bound="library")
def _depthwise(g: Make) -> Made:
    block = torch.nn.Sequential(
        torch.nn.Conv2d(96, 96, 3, padding=1, groups=96, bias=False),
        torch.nn.BatchNorm2d(96),
        torch.nn.ReLU6(),
    )
    return g.module(block), (g.randn(4, 96, 28, 28),)


class _Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(256, 256, 3, padding=1, bias=False)
        self.second = torch.nn.Conv2d(256, 256, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(torch.relu(self.first(x))))


@case("residual block, 256 channels of 14 x 14", bound="library")
def _many_weights(g: Make) -> Made:
    return g.module(_Residual()), (g.randn(1, 256, 14, 14),)


@case("layer norm over channels")
def _layer_norm_channels(g: Make) -> Made:
    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.permute(0, 2, 3, 1), (96,), w, b).permute(0, 3, 1, 2)

    return run, (g.randn(4, 96, 28, 28), g.randn(96), g.randn(96))


@case("upsample to nearest, and add")
def _nearest(g: Make) -> Made:
    args = g.randn(4, 64, 28, 28), g.randn(4, 64, 56, 56)
    return lambda x, y: F.interpolate(x, scale_factor=2) + y, args


@case("upsample bilinear", bound="compute")
def _bilinear(g: Make) -> Made:
    def run(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2, mode="bilinear")

    return run, (g.randn(4, 32, 28, 28),)


@case("pixel shuffle and relu")
def _pixel_shuffle(g: Make) -> Made:
    return lambda x: F.pixel_shuffle(x, 2).relu(), (g.randn(4, 64, 56, 56),)


# -- quantisation, bytes, positions ----------------------------------------------------------------


@case("int8 to float, by rows")
def _dequantize(g: Make) -> Made:
    numbers = (g.ints(255, *BIG) - 128).to(torch.int8)
    return lambda x, s, z: (x.float() - z) * s, (numbers, g.rand(2048, 1), g.rand(2048, 1))


@case("float to int8, by rows")
def _quantize(g: Make) -> Made:
    def run(x: torch.Tensor) -> Any:
        # Scaled by a power of two, so that no rounding hangs on the last bit of a quotient.
        scale = torch.exp2(torch.ceil(torch.log2(x.abs().amax(-1, keepdim=True) / 127)))
        return torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8), scale

    return run, (g.randn(*BIG),)


@case("one-hot")
def _one_hot(g: Make) -> Made:
    return lambda i: F.one_hot(i, 512).float() * 2, (g.ints(512, 4096),)


@case("positions of a mask: cumsum of integers")
def _positions(g: Make) -> Made:
    return lambda m: (m.long().cumsum(-1) - 1) * m, (g.rand(256, 2048) > 0.1,)


@case("embedding bag by hand")
def _bag(g: Make) -> Made:
    return lambda t, i: F.embedding(i, t).mean(1), (g.randn(10000, 64), g.ints(10000, 512, 32))


@case("index_add of rows")
def _index_add(g: Make) -> Made:
    args = g.randn(2048, 256), g.ints(2048, 4096), g.randn(4096, 256)
    return lambda x, i, y: x.index_add(0, i, y) * 2, args


@case("cat of 16, small")
def _cat_many(g: Make) -> Made:
    return lambda *x: torch.cat(x, 1), tuple(g.randn(512, 64) for _ in range(16))


@case("stack of 8, mean")
def _stack_mean(g: Make) -> Made:
    return lambda *x: torch.stack(x).mean(0), tuple(g.randn(512, 512) for _ in range(8))


@case("sines and cosines of time steps", bound="compute")
def _time_steps(g: Make) -> Made:
    def run(t: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(128, device=t.device) / 128
        angle = t[:, None] * torch.exp(-math.log(10000) * steps)[None]
        return torch.cat([angle.cos(), angle.sin()], -1)

    return run, (g.rand(1024),)


@case("GRU cell's elementwise part", bound="compute")
def _gru(g: Make) -> Made:
    def run(x: torch.Tensor, y: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        ir, iz, new = x.chunk(3, 1)
        hr, hz, old = y.chunk(3, 1)
        keep = torch.sigmoid(iz + hz)
        candidate = torch.tanh(new + torch.sigmoid(ir + hr) * old)
        return candidate + keep * (h - candidate)

    return run, (g.randn(256, 1536), g.randn(256, 1536), g.randn(256, 512))


@case("three results of 8 elements")
def _tiny(g: Make) -> Made:
    return lambda x, y: (x + y, x * y, x.sum()), (g.randn(8), g.randn(8))


# -- many small parameters -------------------------------------------------------------------------


@case("Adam, 100 small tensors", mutates=True)
def _adam_many(g: Make) -> Made:
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

    tensors = [[g.randn(64, 64) for _ in range(100)] for _ in range(3)]
    return run, (*tensors, [g.rand(64, 64) for _ in range(100)])


@case("moving average of 100 tensors", mutates=True)
def _average(g: Make) -> Made:
    def run(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
        torch._foreach_lerp_(a, b, 0.01)

    return run, tuple([g.randn(128, 64) for _ in range(100)] for _ in range(2))


@case("norm of 50 gradients")
def _gradient_norm(g: Make) -> Made:
    def run(*gradients: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.norm() for x in gradients]).norm()

    return run, tuple(g.randn(64, 128) for _ in range(50))
