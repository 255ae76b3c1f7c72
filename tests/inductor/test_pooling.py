"""Pooling over small windows, and loads that it needs: masked, and several elements apart."""

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import CLOSE, assert_same, check

import minidynamo
from minidynamo.inductor import metrics

SIZES = [(2, 3, 9, 21), (1, 5, 16, 34)]


@pytest.mark.parametrize(("size", "channels_last"), zip(SIZES, (False, True), strict=True))
@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.max_pool2d(x.relu(), 3, 2, 1),
        lambda x: F.max_pool2d(x, (3, 2), (1, 2), (1, 0), (1, 2)),
        lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.avg_pool2d(x * 2, 3, 1, 1),
        lambda x: F.avg_pool2d(x, 3, 2, divisor_override=7),
        lambda x: F.avg_pool2d(F.max_pool2d(x, 3, 2, 1), 2),
        lambda x: F.max_pool2d(x, 5),
        lambda x: F.max_pool2d(x, 9, 1, 4),
        lambda x: F.avg_pool2d(x, 7, 1, 3).relu(),
        lambda x: F.avg_pool2d(x, (6, 3), (2, 3), (1, 0)),
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        lambda x: F.avg_pool2d(x, 5, 2, 2, count_include_pad=False, ceil_mode=True),
        lambda x: F.avg_pool2d(x, 2, ceil_mode=True),
        lambda x: F.avg_pool2d(x, (4, 5), 3, (2, 1), ceil_mode=True),
        lambda x: F.adaptive_avg_pool2d(x[:, :, 1:9, :21], (4, 7)),
        lambda x: F.adaptive_avg_pool2d(x[:, :, :8, :16], (1, 2)),
        lambda x: F.adaptive_max_pool2d(x[:, :, 1:9, :21], (4, 7)),
        lambda x: F.adaptive_max_pool3d(x[:, :, :8, :16], (1, 4, 2)),
        lambda x: F.avg_pool3d(x[:, None], (3, 1, 2), 1, (1, 0, 1)),
        lambda x: F.max_pool3d(x.contiguous(), (2, 3, 4), (1, 2, 2), (1, 1, 2)),
        lambda x: F.local_response_norm(x, 3),
    ],
)
def test_windows(pool, size, channels_last):
    x = torch.randn(size)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    check(pool, x, externs=0, **CLOSE)


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.max_pool2d(x, (1, 33), 1, (0, 16)),  # a large window
        lambda x: F.adaptive_avg_pool2d(x, (2, 5)),
        lambda x: F.adaptive_max_pool2d(x, (2, 5)),
        lambda x: F.adaptive_max_pool2d(x, 1, return_indices=True),
    ],
)
def test_what_is_called_whole(pool):
    check(pool, torch.randn(2, 3, 11, 13), externs=1, **CLOSE)


@pytest.mark.parametrize("channels_last", [False, True])
def test_gradients_of_averages(channels_last):
    x = torch.randn(2, 3, 9, 12)
    x = x.to(memory_format=torch.channels_last) if channels_last else x

    def pools(x):
        return (
            F.avg_pool2d(x, 2),
            F.avg_pool2d(x * 2, 3, 1, 1),
            F.avg_pool2d(x, (2, 3), (3, 4), (1, 0), ceil_mode=True),
            F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
            F.avg_pool2d(x, (1, 4), 4, (0, 2), divisor_override=3),
            F.avg_pool3d(x.contiguous(), (1, 3, 2), (1, 1, 2)),
            F.avg_pool2d(x, 3, 2, 1),
        )

    def gradients(x):
        x = x.detach().requires_grad_()
        outs = pools(x)
        (grad,) = torch.autograd.grad(outs, x, [(out + 1).detach() for out in outs])
        return grad

    metrics.reset()
    minidynamo.reset()
    compiled = minidynamo.compile(pools)
    y = x.detach().requires_grad_()
    outs = compiled(y)
    (grad,) = torch.autograd.grad(outs, y, [(out + 1).detach() for out in outs])
    assert_same(grad, gradients(x), **CLOSE)
    assert metrics.extern_calls == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_and_nan(dtype):
    x = torch.randn(1, 2, 8, 20, dtype=dtype)
    x[0, 1, 3, 3] = float("nan")
    x[0, 0, 2, 2] = float("-inf")
    check(lambda x: F.max_pool2d(x, 3, 2, 1), x)
    check(lambda x: F.max_pool2d(x, 5, 1, 2), x)
    check(lambda x: F.avg_pool2d(x, 5, 1, 2), x, **CLOSE)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        {"scale_factor": 2},
        {"size": (25, 31), "align_corners": True},
        {"scale_factor": (1.5, 0.7)},
        {"size": (1, 40), "align_corners": True},
        {"scale_factor": 1.37, "recompute_scale_factor": True},
    ],
)
def test_bilinear(how, channels_last):
    x = torch.randn(2, 5, 12, 15)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    check(lambda x: F.interpolate(x * 2, mode="bilinear", **how).relu(), x, externs=0, **CLOSE)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "how",
    [{"scale_factor": 2}, {"size": (24, 148)}, {"size": (7, 9)}, {"scale_factor": (3, 0.7)}],
)
def test_nearest(how, channels_last):
    x = torch.randn(2, 5, 12, 37)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    check(lambda x: F.interpolate(x, **how) + 1, x, externs=0)
    check(lambda x: F.interpolate(x.bfloat16() * 2, **how), x, externs=0)
    check(lambda x: F.interpolate(x.double(), **how), x, externs=0)


def test_bilinear_of_other_types():
    x = torch.randn(1, 3, 5, 6)
    check(lambda x: F.interpolate(x, (9, 7), mode="bilinear"), x.double())
    check(lambda x: F.interpolate(x, (9, 7), mode="bilinear"), x.bfloat16())
    x[0, 1, 2, 3], x[0, 0, 0, 0] = float("nan"), float("inf")
    check(lambda x: F.interpolate(x, (9, 12), mode="bilinear"), x, **CLOSE)
    image = (x.nan_to_num(0, 1) * 20 + 128).to(torch.uint8)
    check(lambda x: F.interpolate(x, (9, 12), mode="bilinear"), image, externs=1)
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    check(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear").sin(), x, **CLOSE)


def test_gradient():
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    check(lambda x: F.avg_pool2d(F.max_pool2d(x, 3, 2, 1), 2), x, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("width", [5, 16, 37])
def test_padding_reads_nothing_outside(dtype, width):
    x = torch.randint(-9, 9, (3, 4, width)).to(dtype)
    check(lambda x: F.pad(x, (2, 3, 1, 0), value=1) + 1, x, kernels=1)


@pytest.mark.parametrize("step", [2, 3, 16])
def test_strided_loads(step):
    check(lambda x: x[:, ::step] * 2 + x[:, step - 1 :: step], torch.randn(3, 48 * step))
    check(lambda x: x.flip(1)[:, ::step] + 1, torch.randn(3, 48 * step))


def test_a_doubled_plane_has_no_scale():
    x = torch.randn(1, 2, 6, 8)
    check(
        lambda x: (F.interpolate(x, scale_factor=2.05), F.interpolate(x, scale_factor=1.04)), x
    )


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_gradients_of_interpolation(layout):
    def fn(x):
        doubled = F.interpolate(x, scale_factor=2), F.interpolate(x, scale_factor=(2.05, 4))
        other = F.interpolate(x, size=(9, 24)), F.interpolate(x, size=(3, 4))
        return *doubled, *other, F.interpolate(x * 2, scale_factor=2, mode="bilinear")

    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(2, 4, 6, 8).to(dtype).contiguous(memory_format=layout)
        found = []
        for run in (fn, minidynamo.compile(fn, dynamic=False)):
            own = x.clone(memory_format=torch.preserve_format).requires_grad_()
            results = run(own)
            torch.manual_seed(0)
            weights = [torch.randn_like(y) for y in results]
            (gradient,) = torch.autograd.grad(results, own, weights)
            found.append((*results, gradient))
        for eager, ours in zip(*found, strict=True):
            assert eager.stride() == ours.stride()
            close = {"rtol": 0.02, "atol": 0.05} if dtype == torch.bfloat16 else {}
            torch.testing.assert_close(ours, eager, **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "given, wanted", [(14, 6), (7, 9), (32, 64), (10, 4), (5, 13), (50, 3)]
)
def test_windows_of_different_sizes(given, wanted, dtype):
    near = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    x = torch.randn(2, 5, given, given).to(dtype)
    for own in (x, x.contiguous(memory_format=torch.channels_last)):
        called = int(given == 50)  # windows of many elements stay a call
        check(lambda x: F.adaptive_avg_pool2d(x * 2, wanted) + 1, own, externs=called, **near)
    check(lambda x: F.adaptive_avg_pool2d(x, (wanted, given - 1)), x, **near)


def test_windows_of_different_sizes_in_other_dimensions():
    check(lambda x: F.adaptive_avg_pool1d(x, 16), torch.randn(4, 32, 50), externs=0)
    check(lambda x: F.adaptive_avg_pool3d(x, (3, 4, 5)), torch.randn(2, 3, 4, 5, 6), externs=0)
    check(lambda x: F.interpolate(x, scale_factor=1.5, mode="area"), torch.randn(4, 3, 11, 10))
    check(lambda x: F.adaptive_avg_pool2d(x, (3, 4)), torch.randn(3, 7, 9), externs=0)
    check(lambda x: F.adaptive_avg_pool2d(x, (3, 4)), torch.randn(0, 3, 7, 9))
