"""Images of convolutions with channels last: `passes/image_layouts.py`, forced on CPUs."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import minidynamo
from minidynamo import events
from minidynamo.inductor import config, metrics
from minidynamo.inductor.passes import image_layouts
from minidynamo.inductor.passes.image_layouts import put_channels_last
from minidynamo.inductor.passes.pooled_positions import COLLECT

aten = torch.ops.aten


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.last = nn.Linear(8 * 9, 10)

    def forward(self, x):
        y = F.relu(self.first(x))
        z = F.max_pool2d(F.relu(y + self.norm(self.second(y))), 2)
        return self.last(F.adaptive_avg_pool2d(z, 3).flatten(1)), z


class Views(nn.Module):
    """Results that share memory, operators of other operands, and views that copy nothing."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.norm = nn.GroupNorm(2, 6)
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)

    def forward(self, x):
        y = self.norm(self.conv(x))
        rows = y.permute(0, 2, 3, 1).reshape(y.shape[0], -1, 6)
        z = self.up(y)
        more = torch.linalg.matrix_norm(z), torch.cat([z, z.flip(1)], 1).mean((2, 3))
        return y, y[:, 1:3], rows.softmax(-1), z, *more, y.view(len(y), -1), y.split(2, 1)[1]


class Groups(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 9, 3, groups=3, bias=False)
        self.second = nn.Conv2d(9, 9, 3, groups=9, bias=False)

    def forward(self, x):
        y = F.interpolate(F.silu(self.first(x)), scale_factor=2)
        torch.manual_seed(3)
        y = F.dropout(self.second(y), 0.5)
        return F.pixel_unshuffle(F.pad(y, (0, 1, 1, 0)), 1), y.amax((2, 3), keepdim=True)


def run(model, x, with_gradients):
    with torch.set_grad_enabled(with_gradients):
        results = model(x)
        if not with_gradients:
            return results, []
        weights = [torch.linspace(0, 1, r.numel()).view(r.shape) for r in results]
        sum((r * w).sum() for r, w in zip(results, weights, strict=True)).backward()
        return results, [x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("backend", ["cpp", "triton"])
@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("kind", [Residual, Views, Groups])
def test_results(kind, with_gradients, backend):
    if backend == "triton":
        pytest.importorskip("triton")
    eager = kind().train(with_gradients)
    ours = copy.deepcopy(eager)
    x = torch.randn(2, 3, 12, 12)
    expected, gradients = run(eager, x.clone().requires_grad_(with_gradients), with_gradients)
    options = {
        "force_layout_optimization": True,
        "cpu_backend": backend,
        "fallback_random": True,
    }
    metrics.reset()
    compiled = minidynamo.compile(ours, options=options)
    found, own = run(compiled, x.clone().requires_grad_(with_gradients), with_gradients)
    assert metrics.uncompiled_graphs == 0
    pairs = [*zip(found, expected, strict=True), *zip(own, gradients, strict=True)]
    for mine, eagers in pairs:
        torch.testing.assert_close(mine, eagers, rtol=1e-3, atol=1e-4)
        assert mine.stride() == eagers.stride()

    def shared(results):
        places = [r.untyped_storage().data_ptr() for r in results]
        return [[places.index(place) for place in places]]

    assert shared(found) == shared(expected)


def captured(fn, *sizes, dtype=torch.float32, device="cpu"):
    with FakeTensorMode():
        given = [torch.empty(size, dtype=dtype, device=device) for size in sizes]
    return make_fx(fn, tracing_mode="fake")(*given)


def block(x, first, second):
    y = F.relu(F.conv2d(x, first, padding=1))
    return F.relu(y + F.conv2d(y, second, padding=1))


def clones(gm):
    return [
        node.kwargs["memory_format"]
        for node in gm.graph.find_nodes(op="call_function", target=aten.clone.default)
    ]


def test_layouts_go_through():
    gm = captured(block, (2, 3, 8, 8), (16, 3, 3, 3), (16, 16, 3, 3))
    with config.patch(force_layout_optimization=True):
        put_channels_last(gm)
    assert clones(gm) == [torch.channels_last, torch.contiguous_format]
    for node in gm.graph.find_nodes(op="call_function", target=aten.convolution.default):
        value = node.args[0].meta["val"]
        assert value.is_contiguous(memory_format=torch.channels_last)
    (output,) = gm.graph.find_nodes(op="output")
    assert output.all_input_nodes[0].meta["val"].is_contiguous()


def test_the_gradient_of_a_pool_follows():
    """It is a loop, over one byte a result, and no call of an operator."""
    graphs = []
    with events.subscribe(lambda event: graphs.append(event.graph), events.AotGraphEvent):
        compiled = minidynamo.compile(Residual(), options={"force_layout_optimization": True})
        run(compiled, torch.randn(2, 3, 12, 12, requires_grad=True), True)
    nodes = [node for graph in graphs for node in graph.graph.nodes]
    assert not any(
        node.target is aten.max_pool2d_with_indices_backward.default for node in nodes
    )
    (collected,) = [node for node in nodes if node.target is COLLECT]
    assert collected.args[-1] is True
    assert collected.meta["val"].is_contiguous(memory_format=torch.channels_last)


CHANNELS = {
    "many": ((96, 32, 3, 3), 1, True, True),
    "few": ((48, 32, 3, 3), 1, True, False),
    "fewer behind": ((32, 96, 3, 3), 1, True, False),
    "groups": ((96, 16, 3, 3), 2, False, False),
    "one of each": ((96, 1, 3, 3), 96, True, True),
}


@pytest.mark.parametrize("name", CHANNELS)
def test_what_is_chosen(name, monkeypatch):
    weight, groups, without, with_gradients = CHANNELS[name]
    image = (2, weight[1] * groups, 8, 8)

    def f(x, w):
        return F.conv2d(x, w, groups=groups).relu()

    def is_chosen(dtype=torch.float32, device="cuda", with_gradients=False, **flags):
        gm = captured(f, image, weight, dtype=dtype, device=device)
        with config.patch(**flags):
            put_channels_last(gm, with_gradients=with_gradients)
        return torch.channels_last in clones(gm)

    monkeypatch.setattr(image_layouts, "_HAS_CUDNN", True)
    assert is_chosen() == without
    assert is_chosen(torch.bfloat16, with_gradients=True) == with_gradients
    assert not is_chosen(torch.float64)
    assert not is_chosen(device="cpu")
    assert not is_chosen(layout_optimization=False)
    assert is_chosen(torch.float64, "cpu", force_layout_optimization=True)
