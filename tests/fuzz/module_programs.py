"""Random small networks with training steps: kind modules (see script_runner.py).

A network is a list of layers that fit each other: what a layer makes of a shape is seen by running
it. `fn(net, optimizer, x, number)` is one step: forward, losses, backward and the optimizer's step,
with parts that may be left to eager by graph breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from scripts import Script

CALLS = 4
# Compiled optimizers count steps in float32, and correct the moments' bias with that.
ROUNDING = 1e-5
SETUP = """
import torch, minidynamo
from torch import nn
import torch.nn.functional as F

def data(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()

class First(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, value):
        return self.module(value)[0]

class Attention(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(size, heads, batch_first=True)

    def forward(self, value):
        return self.attention(value, value, value, need_weights=False)[0]

class Residual(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, value):
        self.calls += 1
        for layer in self.layers:
            value = value + self.scale * layer(value)
        return value

class Tied(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.one = nn.Linear(size, size)
        self.two = nn.Linear(size, size, bias=False)
        self.two.weight = self.one.weight

    def forward(self, value):
        return self.two(torch.tanh(self.one(value)))

class Counted(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.count = 0
        self.register_buffer("mean", torch.zeros(()), persistent=False)

    def forward(self, value):
        self.count += 1
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * value.detach().mean()
        return self.inner(value) - self.mean

class Branch(nn.Module):
    def __init__(self, left, right):
        super().__init__()
        self.paths = nn.ModuleDict({"left": left, "right": right})

    def forward(self, value):
        return torch.cat([path(value) for path in self.paths.values()], -1)
"""
# Rows by the dimensions of what comes in; {c}: its second size, {n}: its last.
ANY_SHAPE = [
    "nn.ReLU()",
    "nn.Linear({n}, 6)",
    "nn.LayerNorm({n})",
    "nn.GELU()",
    "nn.Dropout(0.3)",
    "nn.Tanh()",
    "nn.SiLU(inplace=True)",
    "nn.ReLU(inplace=True)",
    "nn.LeakyReLU(0.2)",
    "nn.Softmax(-1)",
    "nn.RMSNorm({n})",
    "Tied({n})",
    "Residual(nn.Linear({n}, {n}), nn.Tanh())",
    "Counted(nn.Linear({n}, {n}))",
    "Branch(nn.Linear({n}, 3), nn.Linear({n}, 2))",
    "nn.utils.parametrizations.weight_norm(nn.Linear({n}, 5))",
    "nn.utils.parametrizations.spectral_norm(nn.Linear({n}, 4))",
    "nn.PReLU()",
    "nn.ELU()",
    "nn.Hardswish()",
    "nn.Softplus()",
    "nn.Sequential(nn.Linear({n}, 7), nn.Dropout(0.5), nn.Linear(7, {n}))",
]
LAYERS = {
    2: [
        "nn.BatchNorm1d({n})",
        "nn.BatchNorm1d({n}, momentum=None)",
        "nn.Unflatten(-1, (1, {n}))",
        "nn.BatchNorm1d({n}, affine=False)",
        "nn.GLU()",
    ],
    3: [
        "nn.Conv1d({c}, 4, 3, padding=1)",
        "nn.BatchNorm1d({c})",
        "First(nn.GRU({n}, 4, batch_first=True))",
        "First(nn.LSTM({n}, 4, batch_first=True, bidirectional=True))",
        "First(nn.RNN({n}, 5, num_layers=2, dropout=0.2, batch_first=True))",
        "Attention({n}, 1)",
        "nn.MaxPool1d(2)",
        "nn.AdaptiveAvgPool1d(3)",
        "nn.InstanceNorm1d({c}, affine=True, track_running_stats=True)",
        "nn.Flatten()",
        "nn.TransformerEncoderLayer({n}, 1, 8, batch_first=True)",
        "nn.ConvTranspose1d({c}, 2, 2, stride=2)",
        "nn.AvgPool1d(2, ceil_mode=True)",
        "nn.Dropout1d(0.4)",
        "nn.Bilinear({n}, {n}, 3) if False else nn.Identity()",
        "nn.GroupNorm(1, {c})",
    ],
    4: [
        "nn.Conv2d({c}, 4, 3, padding=1)",
        "nn.BatchNorm2d({c})",
        "nn.Conv2d({c}, 2 * {c}, 2, stride=2, groups={c}, bias=False)",
        "nn.MaxPool2d(2)",
        "nn.Flatten()",
        "nn.Flatten(2)",
        "nn.AvgPool2d(3, 1, 1)",
        "nn.AdaptiveAvgPool2d((2, 1))",
        "nn.GroupNorm(1, {c})",
        "nn.Upsample(scale_factor=2, mode='bilinear')",
        "nn.ConvTranspose2d({c}, 3, 2)",
        "nn.Dropout2d(0.4)",
        "nn.InstanceNorm2d({c})",
        "nn.Conv2d({c}, 3, 3, padding='same', padding_mode='circular', dilation=2)",
        "nn.LPPool2d(2, 2)",
        "nn.ZeroPad2d(1)",
        "nn.PixelShuffle(2) if {c} % 4 == 0 else nn.Identity()",
        "nn.AdaptiveMaxPool2d(2)",
    ],
}
INPUTS = [
    "data(4, 6, seed=number)",
    "data(4, 3, 6, seed=number)",
    "data(4, 2, 6, 6, seed=number)",
    "data(4 if number != 2 else 5, 6, seed=number)",
    "torch.arange(12).reshape(4, 3) * (number + 2) % 7",
    "data(4, 6, seed=number).requires_grad_()",
]
OPTIMIZERS = [
    "torch.optim.SGD(net.parameters(), lr=0.1)",
    "torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)",
    "torch.optim.Adam(net.parameters(), lr=0.01, eps=0.1)",
    "torch.optim.AdamW(net.parameters(), lr=0.01, eps=0.1, foreach=False)",
    "torch.optim.RMSprop(net.parameters(), lr=0.01, eps=0.1)",
    "torch.optim.Adam(net.parameters(), lr=0.01, eps=0.1, fused=True)",
    "torch.optim.SGD([{'params': [p]} for p in net.parameters()], lr=0.05, nesterov=True, "
    "momentum=0.5)",
]
LOSSES = [
    "out.square().mean()",
    "out.sum()",
    "F.smooth_l1_loss(out, torch.zeros_like(out))",
    "F.cross_entropy(out.flatten(1), torch.arange(out.shape[0]) % out.flatten(1).shape[1])",
    "out.logsumexp(-1).mean() + 0.01 * sum(p.square().sum() for p in net.parameters())",
    "F.mse_loss(out, net(x))",
    "(out * out.detach()).mean()",
]
# Text of a step; {loss} and {other} are losses, {eager} may be a graph break.
STEPS = [
    "out = net(x)\nreturn {loss}, out",
    "optimizer.zero_grad()\nout = net(x)\nloss = {loss}\nloss.backward()\noptimizer.step()\n"
    "return loss.detach(), out.detach()",
    "out = net(x)\nloss = {loss}\n{eager}\nloss.backward()\noptimizer.step()\n"
    "optimizer.zero_grad(set_to_none=False)\nreturn loss.item() < 1e9, out.detach()",
    "out = net(x)\none, two = {loss}, {other}\none.backward(retain_graph=True)\n"
    "two.backward()\noptimizer.step()\nreturn one.detach()",
    "net.train(number % 2 == 0)\nout = net(x)\n{eager}\nreturn {loss}, out",
    "with torch.no_grad():\n    before = net(x)\nout = net(x)\nloss = {loss}\n"
    "grads = torch.autograd.grad(loss, [p for p in net.parameters() if p.requires_grad], "
    "allow_unused=True)\nfor p, g in zip([p for p in net.parameters() if p.requires_grad], "
    "grads):\n    p.grad = g\ntorch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)\n"
    "optimizer.step()\nreturn loss.detach(), before",
    "out = net(x)\nloss = {loss}\nif number == 1:\n    for p in net.parameters():\n"
    "        p.requires_grad_(False)\n        break\n    return out\nreturn loss + {other}",
    "for _ in range(2):\n    optimizer.zero_grad()\n    out = net(x)\n    ({loss}).backward()\n"
    "    {eager}\n    optimizer.step()\nfor group in optimizer.param_groups:\n"
    "    group['lr'] *= 0.5\nreturn out.detach(), number",
]
CHANGES = [
    "",
    "next(net.parameters()).requires_grad_(False)",
    "net.eval()",
    "net[-1].requires_grad_(False)",
    "net.eval() if number == 2 else net.train()",
    "net.requires_grad_(number != 1)",
    "nn.init.ones_(list(net.parameters())[-1]) if number == 2 else None",
]
MOST_LAYERS = 5


def make_program(choose: Callable[[int], int]) -> Script:
    """A random network and step; `choose(n)` gives a number below n."""

    def one(rows: list[str]) -> str:
        return rows[choose(len(rows))]

    source = one(INPUTS)
    space: dict[str, Any] = {"number": 0}
    exec(SETUP, space)
    torch.manual_seed(0)
    value = eval(source, space).detach()
    layers = []
    if not value.is_floating_point():
        layers.append("nn.Embedding(7, 4)")
        value = torch.zeros(*value.shape, 4, dtype=torch.float64)
    for _ in range(1 + choose(MOST_LAYERS)):
        rows = ANY_SHAPE + LAYERS.get(value.dim(), [])
        made = one(rows[:1] + rows[:0:-1]).format(c=value.shape[1], n=value.shape[-1])
        try:
            value = eval(made, space).double()(value.clone()).detach()
        except (RuntimeError, ValueError, AssertionError):
            continue
        layers.append(made)
    layers.append(f"nn.Linear({value.shape[-1]}, 3)")
    step = one(STEPS).format(
        loss=one(LOSSES), other=one(LOSSES), eager=one(["pass", "minidynamo.graph_break()"])
    )
    nested = ",\n        ".join(layers)
    return Script(
        f"def start():\n    torch.manual_seed(0)\n"
        f"    net = nn.Sequential(\n        {nested},\n    ).double()\n"
        f"    return net, {one(OPTIMIZERS)}\n\n"
        f"net, optimizer = start()\n\n"
        f"def make(number):\n    {one(CHANGES) or 'pass'}\n"
        f"    return [net, optimizer, {source}, number], []\n\n"
        f"def fn(net, optimizer, x, number):\n    " + step.replace("\n", "\n    ") + "\n",
        CALLS,
        (None, None, True, False)[choose(4)],
        ROUNDING,
    )
