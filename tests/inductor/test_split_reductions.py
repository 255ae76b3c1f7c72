"""Reductions to few results on GPUs: into how many pieces, and results as eager's."""

import math

import pytest

pytest.importorskip("triton")

import torch
from inductor_testing import as_tuple, assert_same, compiled, copies
from triton_testing import assemble

from minidynamo import events
from minidynamo.inductor.codegen import triton_steps
from minidynamo.inductor.codegen.triton import codegen_triton
from minidynamo.inductor.split_reductions import BUSY, choose_cut, count_pieces, memory_order

LAST = torch.channels_last


@pytest.mark.parametrize(
    "size, dims, layout, outer, at, pieces",
    [
        ((1 << 24,), [0], None, (), 0, BUSY),
        ((4, 1 << 20), [1], None, (), 1, 256),
        ((64, 32000), [1], None, (), None, 1),  # short rows
        ((1 << 16, 32), [0], None, (), 0, BUSY),
        ((2048, 1024), [0], None, (), 0, 32),
        ((4096, 8192), [0], None, (), 0, 4),
        ((4096, 16384), [0], None, (), None, 1),  # enough columns
        ((16, 64, 56, 56), [0, 2, 3], None, (), 0, 16),
        ((32, 64, 3136), [0, 2], None, (), 0, 16),
        ((1 << 20, 1), [0], None, (), 0, 512),
        ((512, 4096), [0, 1], None, (0,), 1, 2),
        ((4, 1 << 20), [0, 1], None, (0,), 1, BUSY // 4),
        ((3, 4, 1 << 16), [0, 1, 2], None, (0, 1), 2, 32),
        ((32, 64, 112, 112), [0, 2, 3], LAST, (0,), 2, 16),  # columns, then
        ((32, 2048, 7, 7), [0, 2, 3], LAST, (), 0, 16),
        ((32, 64, 112, 112), [2, 3], LAST, (), 2, 16),
    ],
    ids=str,
)
def test_where_it_is_cut(size, dims, layout, outer, at, pieces):
    strides = None
    if layout is not None:
        strides = torch.empty(size, memory_format=layout, device="meta").stride()
    order = memory_order(size, strides)
    cut = choose_cut(size, dims, order)
    if at is None:
        assert cut is None
        assert count_pieces(size, dims, order) == 1
    else:
        assert (cut.outer, cut.at, cut.pieces) == (outer, at, pieces)
        assert cut.step * (cut.pieces - 1) < size[at] <= cut.step * cut.pieces


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


def planes(*size, channels_last=True):
    x = torch.randn(size) * 2 + 3
    return x.to(memory_format=LAST) if channels_last else x


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("size", [(8, 24, 14, 28), (32, 32, 7, 7)], ids=str)
def test_statistics_of_planes(size, channels_last):
    """Of a batch norm; the pieces are in registers, so what is normalised is read twice in all."""
    channels = [torch.rand(size[1]) for _ in range(4)]

    def fn(x, mean, var, weight, bias):
        y = torch.nn.functional.batch_norm(x, mean, var, weight, bias, training=True)
        return y.relu(), mean, var

    x = planes(*size, channels_last=channels_last)
    expected = fn(x, *copies(channels))
    sources = []
    with events.subscribe(lambda event: sources.append(event.source), events.KernelEvent):
        run = compiled(fn, x, *channels, cpu_backend="triton")
        found = run(x, *copies(channels))
    for left, right in zip(found, expected, strict=True):
        assert_same(left, right, **CLOSE)
    assert len(sources) in ((3, 4) if channels_last else (1,))
    if channels_last:
        assert not any("for rstart" in source and "batch_norm" in source for source in sources)


@pytest.mark.parametrize(
    "mean, spread", [(0.0, 1.0), (100.0, 1e-3), (1e4, 1.0), (math.inf, 1.0), (math.nan, 1.0)]
)
def test_variance_of_pieces(mean, spread):
    """Nothing is lost where the mean is large beside the distances from it."""
    x = torch.randn(4, 40_000) * spread
    if math.isfinite(mean):
        x = x + mean
    else:
        x[0, 0] = x[1, 39_999] = mean
    wide = x.double()
    run = compiled(lambda x: (x.var(1), x.mean(1)), x, cpu_backend="triton")
    for found, expected in zip(run(x), (wide.var(1), wide.mean(1)), strict=True):
        assert_same(found, expected.float(), rtol=1e-6, atol=1e-6)
    columns = x.t().contiguous()
    run = compiled(lambda x: x.var(0), columns, cpu_backend="triton")
    (found,) = run(columns)
    assert_same(found, wide.var(1).float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dims", [(0, 2, 3), (2, 3), (0, 3)], ids=str)
def test_sums_follow_the_memory(dims):
    x = planes(8, 12, 10, 18)
    check(lambda x: (x.sum(dims), (x * x).mean(dims), x.amax(dims)), x, **CLOSE)
    y = torch.randn(18, 8, 12, 10).permute(1, 2, 0, 3)
    check(lambda x: (x.sum(dims), x.var(dims)), y, rtol=1e-5, atol=1e-4)


def test_positions_count_in_the_order_of_dimensions():
    x = planes(8, 12, 10, 18)
    check(lambda x: (x.argmax(), x.argmax(1), x.argmin(3, keepdim=True)), x)
    check(lambda x: (x.argmax(), x.argmin()), torch.randn(3, 40_000))
    check(lambda x: x.argmax(), torch.randn(3, 5, 9_001).round())
