"""`max_autotune` on the CPU: every variant of a kernel is right, and the fastest is taken."""

import pytest
import torch
from inductor_testing import CLOSE

import minidynamo
from minidynamo.inductor import timing
from minidynamo.inductor.codegen import assemble, autotune
from minidynamo.inductor.codegen.cpp import USUAL, Tuning
from minidynamo.inductor.lowering import linear


def program(x):
    return x.softmax(-1), (x * 2).sum(0), (x.mT + 1).contiguous(), x.argmax(-1)


@pytest.mark.parametrize("variant", autotune.VARIANTS[1:], ids=str)
def test_every_variant_is_right(monkeypatch, variant):
    torch.manual_seed(0)
    monkeypatch.setattr(assemble, "tuned", lambda *args: variant)
    x = torch.randn(150, 203)
    run = minidynamo.compile(program, mode="max-autotune", fullgraph=True)
    torch.testing.assert_close(run(x), program(x), **CLOSE)


@pytest.fixture
def slow(monkeypatch):
    """What measuring says: a second for all but the functions in the list that is returned."""
    fast = []

    def times(functions):
        for function in functions:
            function()
        return [0.5 if place in fast else 1.0 for place in range(len(functions))]

    monkeypatch.setattr(autotune, "fastest_times", times)
    monkeypatch.setattr(linear, "fastest_times", times)
    return fast


def chosen(monkeypatch, fn, *args):
    found = []
    tuned = assemble.tuned

    def watched(*args):
        found.append(tuned(*args))
        return found[-1]

    monkeypatch.setattr(assemble, "tuned", watched)
    run = minidynamo.compile(fn, options={"max_autotune": True}, fullgraph=True)
    torch.testing.assert_close(run(*args), fn(*args), **CLOSE)
    return found


def test_the_fastest_is_taken(monkeypatch, slow, tmp_path):
    x = torch.randn(190, 301)
    with minidynamo.config.patch(cache_dir=str(tmp_path)):
        assert chosen(monkeypatch, lambda x: x.sum(0), x) == [USUAL]
        slow.append(1)
        (variant,) = chosen(monkeypatch, lambda x: x.sum(0) * 3, x)
        assert variant == Tuning(vector=1)


def test_what_is_not_measured(monkeypatch, slow, tmp_path):
    slow.append(1)
    x, i = torch.randn(90, 101), torch.randint(90, (90,))
    with minidynamo.config.patch(cache_dir=str(tmp_path)):
        assert chosen(monkeypatch, lambda x, i: x[i].sum(0), x, i) == [USUAL]
        assert chosen(monkeypatch, lambda x: x.sum(0) * 5, x[:3, :5]) == [USUAL]


def test_products_are_measured(slow):
    linear.measured_onednn.cache_clear()
    assert not linear.measured_onednn((3, 5, 7), True, 1)
    slow.append(1)
    assert linear.measured_onednn((3, 5, 8), False, 1) == linear.has_onednn()
    linear.measured_onednn.cache_clear()


def test_times_are_of_one_call():
    calls = []
    quick, idle = timing.fastest_times([lambda: calls.append(1), lambda: None])
    assert 0 < idle and 0 < quick < 1 and len(calls) > timing.ROUNDS
