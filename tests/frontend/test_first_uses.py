"""Libraries that find something out at their first use: that this was while tracing is no reason to
compile again.
"""

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo import trace_rules

einops = pytest.importorskip("einops")


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3, 4))

    def forward(self, x):
        x = einops.rearrange(x, "b (h d) -> b h d", h=2)
        weight = einops.rearrange(self.weight, "h i d -> h d i")
        return einops.einsum(x, weight, "b h d, h d i -> b h i")


def test_backends_of_einops(monkeypatch):
    from einops import _backends

    monkeypatch.setattr(_backends, "_type2backend", {})
    monkeypatch.setattr(_backends, "_loaded_backends", {})
    trace_rules._prepare.cache_clear()
    graphs, recompiles = [], []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    model, x = Heads(), torch.randn(3, 8)
    compiled = minidynamo.compile(model, backend=backend, fullgraph=True)
    with minidynamo.events.subscribe(recompiles.append, minidynamo.events.RecompileEvent):
        results = [compiled(x) for _ in range(3)]
    assert len(graphs) == 1 and not recompiles
    assert torch.equal(results[2], model(x))
    monkeypatch.setattr(_backends, "_type2backend", {})  # what a guard holds it to
    with minidynamo.events.subscribe(recompiles.append, minidynamo.events.RecompileEvent):
        assert torch.equal(compiled(x), model(x))
    assert recompiles
