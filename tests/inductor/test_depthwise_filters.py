"""Gradients of filters of one channel each, on the layout that is fast with them."""

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo import events
from minidynamo.inductor.passes.depthwise_filters import BACKWARD


def backward_calls(step):
    """How often a step's graphs call the operator, after the passes."""
    counts = []

    def listen(event):
        counts.append(sum("convolution_backward" in str(step) for step in event.steps))

    with events.subscribe(listen, events.ScheduleEvent):
        step()
    return sum(counts)


def gradients(call, model, x):
    given = x.detach().requires_grad_(x.requires_grad)
    y = call(given)
    wanted = [*model.parameters()] + [given] * x.requires_grad
    return [y, *torch.autograd.grad((y * y.detach().cos()).sum(), wanted)]


# channels, image, filter, step: on channels-last memory, whether two calls are faster, and on rows
CASES = [(768, 7, 7, 1, True, False), (96, 56, 7, 1, False, True), (32, 14, 5, 2, False, False)]
CASES += [
    (240, 28, 5, 1, False, True),
    (64, 28, 3, 1, False, False),
    (768, 7, 9, 1, True, False),
]


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("bias, needs_image", [(True, True), (False, True), (True, False)])
def test_gradients(case, channels_last, bias, needs_image):
    channels, size, window, step, *divided = case
    torch.manual_seed(0)
    model = nn.Conv2d(channels, channels, window, step, window // 2, 1, channels, bias)
    x = torch.randn(2, channels, size, size)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_(needs_image)
    found = []
    compiled = minidynamo.compile(model)
    calls = backward_calls(lambda: found.extend(gradients(compiled, model, x)))
    assert calls == 1 + (divided[not channels_last] and needs_image)
    double = nn.Conv2d(
        channels, channels, window, step, window // 2, 1, channels, bias
    ).double()
    double.load_state_dict(model.state_dict())
    exact = gradients(double, double, x.detach().double().requires_grad_(needs_image))
    expected = gradients(model, model, x)
    for ours, eager, right in zip(found, expected, exact, strict=True):
        assert ours.stride() == eager.stride()
        # Sums of six thousand products: how the library adds depends on the processor.
        allowed = 3 * (eager - right).abs().max() + 1e-5 * right.abs().max()
        assert (ours - right).abs().max() <= allowed


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_reaches_what_it_reaches_in_eager(value):
    model = nn.Conv2d(240, 240, 5, 1, 2, groups=240)
    x = torch.randn(1, 240, 28, 28)
    x[0, 3, 0, 0] = value
    compiled = minidynamo.compile(model)
    given = [torch.autograd.grad(f(x).sum(), [model.weight])[0] for f in (model, compiled)]
    assert torch.equal(*(g.isfinite() for g in given))


@pytest.mark.parametrize("channels_last", [True, False])
def test_symbolic_sizes(channels_last):
    model = nn.Conv2d(96, 96, 7, padding=3, groups=96)
    compiled = minidynamo.compile(model, dynamic=True)
    graphs = []
    with events.subscribe(graphs.append, events.ScheduleEvent):
        for batch, height in (2, 56), (3, 40), (4, 57):
            x = torch.randn(batch, 96, height, 48, requires_grad=True)
            if channels_last:
                x = x.contiguous(memory_format=torch.channels_last)
            found = gradients(compiled, model, x)
            for ours, eager in zip(found, gradients(model, model, x), strict=True):
                assert ours.stride() == eager.stride()
                torch.testing.assert_close(ours, eager, rtol=1e-3, atol=2e-3)
    assert len(graphs) == 2
    calls = sum("convolution_backward" in str(step) for step in graphs[-1].steps)
    assert calls == (1 if channels_last else 2)


def test_other_dtypes_and_dilation_stay():
    assert BACKWARD is torch.ops.aten.convolution_backward.default
    for dtype, dilation in (torch.float64, 1), (torch.float32, 2):
        model = nn.Conv2d(96, 96, 7, padding=3, dilation=dilation, groups=96).to(dtype)
        x = torch.randn(1, 96, 56, 56, dtype=dtype, requires_grad=True)
        compiled = minidynamo.compile(model)
        found = []
        assert backward_calls(lambda: found.extend(gradients(compiled, model, x))) == 1  # noqa: B023
        for ours, eager in zip(found, gradients(model, model, x), strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-3)
