"""Reductions to few results on GPUs: into how many pieces, and results as eager's."""

import math

import pytest

pytest.importorskip("triton")

import torch
from inductor_testing import as_tuple, assert_same, compiled
from triton_testing import assemble

from minidynamo import events
from minidynamo.inductor.codegen import triton_steps
from minidynamo.inductor.codegen.triton import codegen_triton
from minidynamo.inductor.split_reductions import BUSY, count_pieces


@pytest.mark.parametrize(
    "size, dims, pieces",
    [
        ((1 << 24,), [0], BUSY),
        ((4, 1 << 20), [1], 256),
        ((64, 32000), [1], 1),  # short rows
        ((1 << 16, 32), [0], BUSY),
        ((2048, 1024), [0], 32),
        ((4096, 8192), [0], 4),
        ((4096, 16384), [0], 1),  # enough columns
        ((16, 64, 56, 56), [0, 2, 3], 14),
        ((1 << 20, 1), [0], 512),
    ],
    ids=str,
)
def test_how_many_pieces(size, dims, pieces):
    at = max(dims, key=lambda d: size[d])
    assert count_pieces(size, dims, at) == pieces


def check(fn, *args, **tolerance):
    """The function through Triton's interpreter; the kernels' sources."""
    sources = []
    with events.subscribe(lambda event: sources.append(event.source), events.KernelEvent):
        run = compiled(fn, *args, cpu_backend="triton")
    for left, right in zip(as_tuple(run(*args)), as_tuple(fn(*args)), strict=True):
        assert_same(left, right, **tolerance)
    return sources


CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("count", [1 << 16, 70_001, 65_537])
def test_of_all(count):
    x = torch.rand(count)
    sources = check(lambda x: ((x * 2).sum(), x.amax(), x.amin()), x, **CLOSE)
    # The pieces' results, and of those: three kernels that a device launches as one.
    assert len(sources) == 4


def test_few_rows():
    x = torch.randn(3, 40_000)
    check(lambda x: (x.mean(-1), x.var(-1), x.logsumexp(-1)), x, **CLOSE)


@pytest.mark.parametrize("rows", [5000, 5003])
def test_columns(rows):
    x = torch.rand(rows, 40)
    check(lambda x: (x.sum(0), x.prod(0), (x > 2).any(0), (x > 0).all(0)), x, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_positions(dtype):
    """The first of equal extremes, in pieces that do not divide the row; in all dimensions."""
    x = (torch.randn(3, 40_003) * 20).clamp(0, 20).to(dtype)
    check(lambda x: (x.argmax(-1), x.argmin(-1, keepdim=True), x.argmax(), *x.max(1)), x)
    wide = x[:, :40_000].reshape(5000, 24).contiguous()
    sources = check(lambda x: (x.argmax(0), x.argmin(0), x.t().argmax()), wide)
    assert len(sources) > 3


def test_positions_of_nan_and_infinities():
    x = torch.randn(4, 70_001)
    x[0, 50_000] = x[0, 60_000] = x[1, 69_999] = torch.nan
    x[2] = -torch.inf
    x[3, 3] = x[3, 65_000] = torch.inf
    check(lambda x: (x.argmax(1), x.argmin(1)), x)
    check(lambda x: (x.argmax(), *x.max(1)), x.t().contiguous().t())


def test_channels():
    check(lambda x: (x.sum((0, 2, 3)), x.amax((0, 2, 3))), torch.rand(5, 3, 40, 33), **CLOSE)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float16])
def test_dtypes(dtype):
    x = torch.randint(-3, 4, (66_000,)).to(dtype)
    check(lambda x: (x.sum(), x.amax(), x.amin(), x.any()), x, rtol=1e-3, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite(value):
    x = torch.zeros(70_001)
    x[-1] = value
    check(lambda x: (x.sum(), x.amax(), x.amin(), x.mean()), x)


def test_softmax_of_a_long_row():
    check(lambda x: torch.softmax(x * 3, -1), torch.randn(2, 40_000), **CLOSE)


def test_the_kernels_compile(monkeypatch):
    kernels = []

    def keep(spec, name):
        kernels.append(codegen_triton(spec, name))
        return kernels[-1]

    monkeypatch.setattr(triton_steps, "codegen_triton", keep)
    with events.subscribe(
        lambda _: None, events.KernelEvent
    ):  # so that no plan is found on disk
        compiled(lambda x: x.sum(), torch.rand(70_001), cpu_backend="triton")
    assert len(kernels) == 2
    for kernel in kernels:
        assemble(kernel)


def test_small_kernels_of_equal_loops_are_one_launch():
    def step(parameters, gradients):
        torch._foreach_mul_(parameters, 0.9)
        torch._foreach_add_(parameters, gradients, alpha=-0.1)
        return [p * 1 for p in parameters]

    def run(*tensors):
        return step([t.clone() for t in tensors[:8]], tensors[8:])

    sources = check(run, *(torch.randn(40, 33) for _ in range(16)))
    assert len(sources) == 1


def test_what_depends_on_each_other_is_not_one_launch():
    def run(x, y):
        rows = torch.softmax(x, -1)
        return rows.flip(0) @ y + 1, torch.softmax(y, -1)

    check(run, torch.randn(40, 40), torch.randn(40, 40), **CLOSE)
