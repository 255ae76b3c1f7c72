"""Recurrent layers: captured in inference, a graph break in training."""

import pytest
import torch
from testing import CountingBackend
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import minidynamo
from minidynamo.handlers.torch_rnn import MOST_STEPS


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


LAYERS = {
    "lstm": (torch.nn.LSTM, {}),
    "lstm, everything": (
        torch.nn.LSTM,
        dict(num_layers=2, bidirectional=True, batch_first=True, proj_size=2),
    ),
    "lstm without bias": (torch.nn.LSTM, dict(bias=False)),
    "gru": (torch.nn.GRU, dict(num_layers=2)),
    "gru both ways": (torch.nn.GRU, dict(bidirectional=True, batch_first=True)),
    "rnn": (torch.nn.RNN, dict(num_layers=2, bias=False)),
    "rnn, relu": (torch.nn.RNN, dict(nonlinearity="relu", bidirectional=True)),
    "dropout": (torch.nn.LSTM, dict(num_layers=2, dropout=0.5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_training_in_one_graph(name):
    kind, options = LAYERS[name]
    module = kind(4, 3, **options)
    counter = CountingBackend()

    def fn(x, state=None):
        y, last = module(x, state)
        parts = last if isinstance(last, tuple) else (last,)
        return y.square().mean() + sum(part.sum() for part in parts), y, last

    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for shape in ((5, 3, 4), (5, 3, 4), (5, 4), (6, 3, 4)):
        found = []
        for call in (fn, compiled):
            torch.manual_seed(0)
            x = torch.randn(shape, requires_grad=True)
            loss, y, last = call(x)
            module.zero_grad()
            loss.backward()
            found.append((loss, y, last, x.grad, [p.grad.clone() for p in module.parameters()]))
        torch.testing.assert_close(found[1], found[0])
    assert len(counter.graphs) <= 3


def test_training_in_one_graph_with_a_given_state():
    module = torch.nn.GRU(4, 3)
    x, h = torch.randn(5, 2, 4), torch.randn(1, 2, 3, requires_grad=True)
    compiled = minidynamo.compile(module, backend="inductor", fullgraph=True)
    expected = torch.autograd.grad(module(x, h)[0].sum(), h)
    torch.testing.assert_close(torch.autograd.grad(compiled(x, h)[0].sum(), h), expected)


class Tagger(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.first, self.layer, self.last = torch.nn.Linear(3, 4), layer, torch.nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.layer(self.first(x).relu())[0]).softmax(-1)


# With a kernel for the whole sequence the second graph is symbolic. Otherwise it breaks, and what
# follows is compiled twice: for a size that is new there, then for any.
CHANGING = {
    "lstm": (lambda: torch.nn.LSTM(4, 6, batch_first=True), 2),
    "lstm, float64": (lambda: torch.nn.LSTM(4, 6, batch_first=True), 4),
    "lstm, projection": (lambda: torch.nn.LSTM(4, 8, proj_size=6, batch_first=True), 4),
    "gru": (lambda: torch.nn.GRU(4, 3, batch_first=True, bidirectional=True), 4),
    "rnn": (lambda: torch.nn.RNN(4, 6, batch_first=True), 4),
}


@pytest.mark.parametrize("name", CHANGING)
def test_changing_numbers_of_steps_without_gradients(name):
    make, graphs = CHANGING[name]
    model = Tagger(make()).to(torch.float64 if "64" in name else torch.float32)
    counter = CountingBackend()
    compiled = minidynamo.compile(model, backend=counter)
    with torch.no_grad():
        for shape in ((2, 5, 3), (2, 6, 3), (2, 7, 3), (2, 9, 3), (2, 4, 3)):
            x = torch.randn(shape, dtype=model.first.weight.dtype)
            torch.testing.assert_close(compiled(x), model(x))
    assert len(counter.graphs) == graphs


@pytest.mark.parametrize(
    ("steps", "fullgraph", "graphs"),
    [(MOST_STEPS, False, 1), (MOST_STEPS + 1, False, 2), (MOST_STEPS + 1, True, 1)],
)
def test_many_steps_without_gradients(steps, fullgraph, graphs):
    model, counter = Tagger(torch.nn.GRU(4, 6)), CountingBackend()
    compiled = minidynamo.compile(model, backend=counter, fullgraph=fullgraph)
    x = torch.randn(steps, 2, 3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert len(counter.graphs) == graphs


def test_an_input_with_gradients_that_are_not_wanted():
    """oneDNN's operator is not used for it: taken apart, and not for each length."""
    module, counter = torch.nn.LSTM(4, 6), CountingBackend()
    compiled = minidynamo.compile(module, backend=counter)
    with torch.no_grad():
        for steps in (5, 6, 7, 9):
            x = torch.randn(steps, 2, 4, requires_grad=True)
            torch.testing.assert_close(compiled(x), module(x))
    assert len(counter.graphs) <= 2


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_packed_sequences_are_left_to_eager(kind):
    layer = kind(3, 4)

    def fn(x, lengths):
        packed = pack_padded_sequence(x * 2, lengths)
        return pad_packed_sequence(layer(packed)[0])[0] + 1

    compiled = minidynamo.compile(fn, backend="eager")
    for lengths in (torch.tensor([4, 2]), torch.tensor([3, 1])):
        x = torch.ones(4, 2, 3)
        torch.testing.assert_close(compiled(x, lengths), fn(x, lengths))
    with pytest.raises(minidynamo.exc.Unsupported, match="packed sequence"):
        minidynamo.compile(lambda p: layer(p), backend="eager", fullgraph=True)(
            pack_padded_sequence(x, lengths)
        )
    with pytest.raises(minidynamo.exc.Unsupported, match="reads a tensor's data"):
        minidynamo.compile(pad_packed_sequence, backend="eager", fullgraph=True)(
            pack_padded_sequence(x, lengths)
        )
