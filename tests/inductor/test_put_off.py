"""Gradients of weights that are larger than what they are made of, in a compiled step."""

import itertools

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import minidynamo
from minidynamo import _C


class Tokens(nn.Module):
    """Layers of many rows, then wide ones of few rows."""

    def __init__(self):
        super().__init__()
        self.long = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.wide = nn.ModuleList(nn.Linear(768, 768) for _ in range(4))
        self.between = nn.Linear(64, 768)

    def forward(self, x):
        for layer in self.long:
            x = torch.tanh(layer(x))
        x = self.between(x.unflatten(0, (8, -1)).mean(1))
        for layer in self.wide:
            x = torch.tanh(layer(x))
        return x


def peak(step):
    """Bytes that are held at most during a step."""
    kept = _C.plan_memory_limit(0)
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            step()
    finally:
        _C.plan_memory_limit(kept)
    events = recorded.profiler.kineto_results.events()
    return max(itertools.accumulate(e.nbytes() for e in events if e.name() == "[memory]"))


@pytest.mark.parametrize("dynamic", [False, True])
def test_large_gradients_of_few_rows_come_last(dynamic):
    model, x = Tokens(), torch.randn(4096, 64)
    compiled = minidynamo.compile(model, dynamic=dynamic)
    held = []
    for call in (model, compiled):
        model.zero_grad()
        call(x).square().sum().backward()
        held.append([p.grad for p in model.parameters()])
    for ours, expected in zip(*reversed(held), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
        assert ours.stride() == expected.stride()

    weights = list(model.parameters())

    def step(call):
        torch.autograd.grad(call(x).square().sum(), weights)

    step(compiled)
    # Six activations of 1 MiB and gradients of 9 MiB: in eager they are all there at once.
    assert peak(lambda: step(compiled)) < 0.8 * peak(lambda: step(model))
    # A graph that is kept gives the same gradients again.
    y = compiled(x).square().sum()
    first = torch.autograd.grad(y, weights, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(y, weights)))
