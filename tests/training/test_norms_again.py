"""Results of batch and group norms that only the backward pass reads: computed again there, from
what the norm's own gradient needs, not saved.
"""

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.inductor import metrics


@pytest.fixture(autouse=True)
def strict():
    minidynamo.reset()
    with minidynamo.config.patch(raise_internal_errors=True):
        yield
    minidynamo.reset()


class Excited(nn.Module):
    """Channels weighted by what their means say."""

    def __init__(self, channels):
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1)

    def forward(self, x):
        weights = self.up(nn.functional.silu(self.down(x.mean((2, 3), keepdim=True))))
        return x * weights.sigmoid()


def network(norm, activation, dims=2):
    convolution = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
    return nn.Sequential(
        convolution(3, 8, 3), norm(), activation(), convolution(8, 4, 1), nn.Flatten()
    )


NORMS = {
    "batch": lambda: nn.BatchNorm2d(8),
    "batch, plain": lambda: nn.BatchNorm2d(8, affine=False, track_running_stats=False),
    "group": lambda: nn.GroupNorm(2, 8),
    "instance": lambda: nn.InstanceNorm2d(8, affine=True),
}
ACTIVATIONS = {
    "silu": nn.SiLU,
    "silu in place": lambda: nn.SiLU(inplace=True),
    "gelu": nn.GELU,
    "hardswish": nn.Hardswish,
    "leaky": lambda: nn.LeakyReLU(0.1),
    "relu": nn.ReLU,
    "excited": lambda: nn.Sequential(nn.SiLU(), Excited(8)),
}


def step(call, model, x):
    """Result, gradients and buffers of one step, and the bytes that it saved."""
    x = x.detach().requires_grad_()
    out = call(x)
    saved = {}
    for tensor in getattr(out.grad_fn, "saved_tensors", ()):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    for parameter in model.parameters():
        saved.pop(parameter.untyped_storage().data_ptr(), None)
    out.square().mean().backward()
    found = [out.detach(), x.grad, *(p.grad for p in model.parameters()), *model.buffers()]
    found = [t.clone() for t in found]
    model.zero_grad()
    return found, sum(saved.values())


def compare(make, x, autocast=False, tolerance=1e-4):
    torch.manual_seed(0)
    eager, ours = make(), make()
    ours.load_state_dict(eager.state_dict())
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        expected, _ = step(eager, eager, x)
        found, saved = step(minidynamo.compile(ours), ours, x)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    return saved


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", NORMS)
def test_gradients(norm, activation):
    compare(lambda: network(NORMS[norm], ACTIVATIONS[activation]), torch.randn(3, 3, 10, 9))


@pytest.mark.parametrize("activation", ["silu", "hardswish", "excited"])
def test_under_autocast(activation):
    make = ACTIVATIONS[activation]
    compare(lambda: network(NORMS["batch"], make), torch.randn(3, 3, 10, 9), True, 5e-2)


def test_channels_last():
    x = torch.randn(3, 3, 10, 9).contiguous(memory_format=torch.channels_last)
    for norm in NORMS.values():
        compare(
            lambda norm=norm: network(norm, nn.SiLU).to(memory_format=torch.channels_last), x
        )


@pytest.mark.parametrize("dims", [1, 3])
def test_other_dimensions(dims):
    norm = {1: nn.BatchNorm1d, 3: nn.BatchNorm3d}[dims]
    x = torch.randn(3, 3, *[6] * dims)
    compare(lambda: network(lambda: norm(8), nn.SiLU, dims), x)


@pytest.mark.parametrize(
    "activation", ["silu", "silu in place", "gelu", "hardswish", "excited"]
)
def test_nothing_is_saved_twice(activation):
    """As many bytes of images as with ReLU, whose result is all that its gradient needs."""
    images = 3 * 8 * 30 * 30 * 4
    x = torch.randn(3, 3, 32, 32)
    saved = compare(lambda: network(NORMS["batch"], ACTIVATIONS[activation]), x)
    least = compare(lambda: network(NORMS["batch"], nn.ReLU), x)
    assert saved < least + images // 2


def test_a_norm_that_the_program_reads_again():
    def make():
        return network(NORMS["batch"], nn.SiLU)

    torch.manual_seed(0)
    eager, ours = make(), make()
    ours.load_state_dict(eager.state_dict())

    def forward(model, x):
        y = model[1](model[0](x))
        return model[2](y) + y.tanh(), y

    compiled = minidynamo.compile(forward)
    for size in ((3, 3, 10, 9), (2, 3, 7, 7), (4, 3, 6, 5)):
        x = torch.randn(size)
        results = [f(m, x) for f, m in ((forward, eager), (compiled, ours))]
        for out in results:
            (out[0].sum() + out[1].square().sum()).backward()
        torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)
        for a, b in zip(ours.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)


def test_a_bias_written_to_between_the_passes():
    """Eager does not save it, so that this is allowed."""
    grads = []
    for compile_ in (lambda model: model, minidynamo.compile):
        torch.manual_seed(0)
        model, x = network(NORMS["batch"], nn.SiLU), torch.randn(3, 3, 10, 9)
        out = compile_(model)(x)
        with torch.no_grad():
            model[1].bias.add_(1.5)
        out.square().mean().backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_evaluation_and_frozen_norms():
    def make():
        model = network(NORMS["batch"], nn.SiLU)
        model[1].eval()
        return model

    compare(make, torch.randn(3, 3, 10, 9))


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_beside_symbolic_floats(activation):
    """The scales of an interpolation are such: their graphs are divided by the order of nodes,
    not by a minimal cut.
    """

    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(
                nn.Conv2d(3, 8, 1, bias=False), NORMS["batch"](), ACTIVATIONS[activation]()
            )

        def forward(self, x):
            means = self.inner(nn.functional.adaptive_avg_pool2d(x, 1))
            return nn.functional.interpolate(means, size=x.shape[2:], mode="bilinear")

    torch.manual_seed(0)
    eager, ours = Pooled(), Pooled()
    ours.load_state_dict(eager.state_dict())
    compiled = minidynamo.compile(ours, dynamic=True)
    metrics.reset()
    for size in (6, 7):
        x = torch.randn(3, 3, size, size + 2)
        expected, found = step(eager, eager, x)[0], step(compiled, ours, x)[0]
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert metrics.uncompiled_graphs == 0
