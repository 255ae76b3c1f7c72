"""Operators of images with symbolic sizes: interpolation, pooling, rearrangements and pads."""

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.inductor import metrics

SIZES = ((4, 5), (7, 6), (10, 37), (40, 33))


def compare(fn, wants_grad=False, sizes=SIZES, layout=torch.contiguous_format, channels=2):
    """Values, strides and gradients of one compilation for several sizes of images."""

    def run(call, values):
        x = values.clone(memory_format=torch.preserve_format).requires_grad_(wants_grad)
        y = call(x)
        results = y if isinstance(y, tuple) else (y,)
        if not wants_grad:
            return results
        (results[0] * results[0].detach().sin()).sum().backward()
        return *results, x.grad

    metrics.reset()
    compiled = minidynamo.compile(fn, dynamic=True, fullgraph=True)
    for height, width in sizes:
        values = torch.randn(3, channels, height, width).to(memory_format=layout)
        actual, expected = run(compiled, values), run(fn, values)
        torch.testing.assert_close(actual, expected)
        assert [y.stride() for y in actual] == [y.stride() for y in expected]
    assert metrics.uncompiled_graphs == 0
    assert metrics.compiled_graphs == 1


@pytest.mark.parametrize("wants_grad", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"scale_factor": 2.0},
        {"scale_factor": (4, 1)},
        {"scale_factor": 3.0},
        {"scale_factor": 0.5},
        {"scale_factor": 1.5},
        {"scale_factor": 1.2},  # four elements stay four
        {"scale_factor": 2.1},  # and some are twice as many
        {"size": (8, 9)},
    ],
    ids=str,
)
def test_nearest_of_symbolic_sizes(options, wants_grad):
    compare(lambda x: F.interpolate(x * 2, mode="nearest", **options).cos(), wants_grad)
    if not wants_grad:
        assert metrics.capture_fallbacks == 0
        assert metrics.extern_calls == 0


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"scale_factor": 2.0},
        {"scale_factor": 0.5},
        {"scale_factor": 1.3, "align_corners": True},
        {"size": (1, 9), "align_corners": True},
        {"size": (8, 9)},
    ],
    ids=str,
)
def test_bilinear_of_symbolic_sizes(options, layout):
    compare(lambda x: F.interpolate(x * 2, mode="bilinear", **options).cos(), layout=layout)
    assert metrics.extern_calls == 0


def test_gradients_of_bilinear_interpolation():
    compare(lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear").cos(), True)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        lambda x: F.max_pool2d(x, 2, 1, 0, 2),
        lambda x: F.max_pool2d(F.max_pool2d(x, 2), 2),
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
        lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0), 1, True, return_indices=True),
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
        lambda x: F.avg_pool2d(x, 3, 2, 1, True),
        lambda x: F.avg_pool2d(x, 3, 2, divisor_override=5),
    ],
)
def test_windows_of_symbolic_sizes(pool, layout):
    compare(lambda x: pool(x.relu()), layout=layout)
    assert metrics.extern_calls == 0


def test_windows_that_are_done_in_one_dimension_after_the_other():
    sizes = ((7, 8), (10, 37))
    compare(lambda x: F.max_pool2d(x, 7, 1, 3), sizes=sizes)
    compare(lambda x: F.avg_pool2d(x, 5), sizes=sizes)
    assert metrics.extern_calls == 0


def test_gradients_of_pools():
    sizes = ((12, 20), (17, 30), (40, 33))
    compare(lambda x: F.max_pool2d(F.avg_pool2d(x, 2), 2), True, sizes)
    assert metrics.extern_calls == 0
    compare(lambda x: F.max_pool2d(x.sin(), 3, 2, 1, ceil_mode=True), True, sizes)
    assert metrics.extern_calls == 0


def test_empty_images_are_refused():
    compiled = minidynamo.compile(lambda x: F.max_pool2d(x, 2), dynamic=True)
    compiled(torch.randn(2, 3, 6, 7))
    with pytest.raises(RuntimeError, match="optional 0 dim batch"):
        compiled(torch.randn(2, 3, 0, 7))
    with pytest.raises(RuntimeError, match="too small"):
        compiled(torch.randn(2, 3, 1, 7))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_rearranged_images_of_symbolic_sizes(layout):
    def both(x):
        return F.pixel_shuffle(x * 2, 2) + 1, F.pixel_unshuffle(x * 3, 2).sin()

    compare(both, sizes=((6, 10), (12, 38), (40, 34)), layout=layout, channels=16)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular", "constant"])
def test_pads_of_symbolic_sizes(mode):
    compare(lambda x: F.pad(x * 2, (2, 1, 1, 3), mode=mode).relu())
    assert metrics.extern_calls == 0


def test_a_loop_over_pairs_of_an_unknown_number():
    """Even and odd elements are read at different distances; the last may have no neighbour."""

    def fn(x):
        n = x.shape[3]
        at = torch.arange(n)
        return x[..., at // 2] + x[..., at // 2 + at % 2] * 2

    compare(fn)
