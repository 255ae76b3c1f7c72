"""Interpolation by the nearest element with symbolic sizes."""

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.inductor import metrics


@pytest.mark.parametrize("wants_grad", [False, True])
@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({"scale_factor": 2.0}, 0),
        ({"scale_factor": (4, 1)}, 0),
        ({"scale_factor": 3.0}, 1),
        ({"scale_factor": 0.5}, 1),
        ({"scale_factor": 1.5}, 1),
        ({"size": (8, 9)}, 1),
    ],
)
def test_nearest_of_symbolic_sizes(options, calls, wants_grad):
    def fn(x):
        return F.interpolate(x * 2, mode="nearest", **options).cos()

    def run(call, values):
        x = values.clone().requires_grad_(wants_grad)
        y = call(x)
        if not wants_grad:
            return (y,)
        (y * y.detach().sin()).sum().backward()
        return y, x.grad

    metrics.reset()
    compiled = minidynamo.compile(fn, dynamic=True, fullgraph=True)
    for height, width in ((4, 5), (7, 6), (10, 13)):
        values = torch.randn(3, 2, height, width)
        actual, expected = run(compiled, values), run(fn, values)
        torch.testing.assert_close(actual, expected)
        assert [y.stride() for y in actual] == [y.stride() for y in expected]
    assert metrics.uncompiled_graphs == 0
    assert metrics.compiled_graphs == 1
    if not wants_grad:
        assert metrics.capture_fallbacks == 0
        assert metrics.extern_calls == calls
