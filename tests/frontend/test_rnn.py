"""Recurrent layers: captured in inference, a graph break in training."""

import pytest
import torch
from testing import CountingBackend

import minidynamo


@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_layers(layer):
    module = layer(4, 6, num_layers=2, batch_first=True)
    x = torch.randn(3, 5, 4)
    counter = CountingBackend()
    compiled = minidynamo.compile(module, backend=counter)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
    assert len(counter.graphs) == 1


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_training_of_a_recurrent_layer(backend):
    module = torch.nn.LSTM(4, 6, batch_first=True)
    x = torch.randn(3, 5, 4)
    module(x)[0].square().mean().backward()
    expected = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    compiled = minidynamo.compile(module, backend=backend)
    compiled(x)[0].square().mean().backward()
    torch.testing.assert_close([p.grad for p in module.parameters()], expected)
