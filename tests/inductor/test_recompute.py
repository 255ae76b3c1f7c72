"""Values that kernels compute again instead of reading what another one stored."""

import pytest
import torch
from inductor_testing import check

from minidynamo import events
from minidynamo.inductor import recompute

TOLERANCE = {"rtol": 1e-4, "atol": 1e-3}
X, Y = torch.randn(48, 32), torch.randn(48, 32)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """As if the caches held nothing."""
    monkeypatch.setattr(recompute, "LEAST_BYTES", 1)


def notes_of(fn, *args):
    found = []
    with events.subscribe(lambda event: found.extend(event.notes), events.ScheduleEvent):
        check(fn, *args, **TOLERANCE)
    return found


def root(x):
    return (x * x + 1).sqrt()


def test_the_second_reader_computes_it_again():
    def fn(x):
        t = root(x)
        return (t * x).sum(0), t.sum(1)

    (note,) = notes_of(fn, X)
    assert note.startswith("computed again in 1 kernel instead of stored")
    assert note.endswith("aten.mul.Tensor, aten.add.Tensor, aten.sqrt.default")


def test_through_other_layouts_and_dtypes():
    def fn(x):
        t = root(x).bfloat16()
        return (t.float() * x).sum(0), t.float().sum(1)

    assert len(notes_of(fn, X)) <= 1


def gelu_chain(x):
    for _ in range(6):
        x = torch.nn.functional.gelu(x) + x
    return x


STORED = {
    "too dear": lambda x, y: (lambda t: ((t * x).sum(0), t.sum(1)))(gelu_chain(x)),
    "a result": lambda x, y: (lambda t: ((t * x).sum(0), t.sum(1), t))(root(x)),
    "an operator reads it": lambda x, y: (lambda t: (t.sum(1), t @ y.t()))(root(x)),
    "made of a reduction": lambda x, y: (lambda t: ((t * x).sum(0), t.sum(1)))(
        root(x) + x.sum(1, keepdim=True)
    ),
    "made of more than it is": lambda x, y: (lambda t: (t.sum(0), t.sum(1)))(x * y),
    "random": lambda x, y: (lambda t: ((t * 0).sum(0), (t * 0).sum(1)))(torch.rand_like(x)),
}


@pytest.mark.parametrize("name", STORED)
def test_stays_stored(name):
    assert notes_of(STORED[name], X, Y) == []


def test_inputs_that_are_written_to():
    def fn(x):
        t = root(x)
        a, b = (t * x).sum(0), t.sum(1)
        x.mul_(2)
        return a, b

    assert notes_of(fn, X) == []


def test_small_tensors_stay_stored(monkeypatch):
    monkeypatch.setattr(recompute, "LEAST_BYTES", 1 << 22)
    assert notes_of(lambda x: (lambda t: ((t * x).sum(0), t.sum(1)))(root(x)), X) == []
