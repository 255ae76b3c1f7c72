"""Layers that are dropped in training with the rate 0.0: no random number is below it."""

from __future__ import annotations

import operator
import random

import numpy as np
import pytest
import torch
from testing import CountingBackend, assert_same, check

import minidynamo

X = torch.arange(6.0).reshape(2, 3)


def layers(x, rate):
    for index in range(3):
        drop = torch.rand([])
        if drop < rate:
            continue
        x = x * 2 + index
    return x


def kept_flag(x, rate):
    skipped = torch.rand(1) < rate
    if not skipped:
        x = x + torch.rand_like(x)
    return x, skipped


def seeded(fn, *args):
    torch.manual_seed(3)
    return fn(*args), torch.get_rng_state()


def outcomes(fn, rate, backend="eager", **options):
    counting = CountingBackend() if backend == "eager" else backend
    compiled = minidynamo.compile(fn, backend=counting, **options)
    for _ in range(2):
        assert_same(seeded(fn, X, rate), seeded(compiled, X, rate))
    return counting


@pytest.mark.parametrize("rate", [0.0, -0.0, 0, -1.5])
@pytest.mark.parametrize("fn", [layers, kept_flag])
def test_one_graph_where_nothing_can_be_dropped(fn, rate):
    assert len(outcomes(fn, rate, fullgraph=True).graphs) == 1


def test_numbers_are_drawn_all_the_same_by_compiled_code():
    outcomes(layers, 0.0, "inductor", fullgraph=True, options={"fallback_random": True})


@pytest.mark.parametrize("rate", [0.5, 1.0, float("nan")])
@pytest.mark.parametrize("fn", [layers, kept_flag])
def test_the_graph_breaks_where_it_depends_on_the_number(fn, rate):
    outcomes(fn, rate)
    with pytest.raises(minidynamo.exc.Unsupported, match="data-dependent branch"):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(X, rate)


COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, torch.ge, torch.Tensor.lt]


@pytest.mark.parametrize("limit", [-1, 0, 0.0, 1e-30, 2])
@pytest.mark.parametrize("compare", COMPARISONS)
def test_comparisons(compare, limit):
    def fn(x, rate):
        y = x + 1
        return y * 2 if compare(torch.rand([], dtype=torch.float64), rate) else y - 1

    outcomes(fn, limit)


def test_a_module_in_training():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = 0.0
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x):
            if self.training and torch.rand([]) < self.rate:
                return x
            return self.linear(x)

    module = torch.nn.Sequential(Layer(), Layer())
    check(module, X, fullgraph=True, graphs=1)
    module[1].rate = 2.0
    check(module, X, graphs=None)


def written(drop):
    drop -= 5


def written_by_another_name(drop):
    drop.data.sub_(5)


def replaced(drop):
    drop.data = torch.full((), -3.0)


def filled(drop):
    torch.neg(torch.ones(()), out=drop)


@pytest.mark.parametrize("change", [written, written_by_another_name, replaced, filled])
def test_numbers_that_the_program_changes(change):
    def before(x, rate):
        drop = torch.rand([])
        change(drop)
        return x + 1 if drop < rate else x * 2

    def between(x, rate):
        drop = torch.rand([])
        below = drop < rate
        below.logical_not_()
        change(drop)
        return x + 1 if below else x * 2

    def given(x, rate):
        drop = torch.zeros([])
        torch.rand([], out=drop)
        change(drop)
        return x + 1 if drop < rate else x * 2

    for fn in (before, between, given):
        outcomes(fn, 0.0)
        outcomes(fn, 2.0)


def test_the_truth_of_several_numbers_raises():
    def fn(x):
        return x + 1 if torch.rand(2) < 0.0 else x

    check(fn, X, graphs=None)


# -- numbers of Python's generators ----------------------------------------------------------------

BELOW = {
    "random": lambda low: random.random() < low,
    "uniform": lambda low: random.uniform(low, 2.5) < low,
    "int bounds": lambda low: random.uniform(int(low), 3) < low,
    "numpy": lambda low: np.random.random() < low,
    "own": lambda low: random.Random(3).uniform(0, 1) < low,
}
OPEN = {
    "above": lambda low: random.uniform(low, 1.0) > low + 0.5,
    "at most": lambda low: random.uniform(low, 1.0) <= low,
    "backwards": lambda low: random.uniform(1.0, low) < low + 0.1,
    "by name": lambda low: random.uniform(a=low, b=1.0) < low,
    "gauss": lambda low: random.gauss(0, 1) < low,
    "triangular": lambda low: random.triangular(-1, 1) < low,
}


def drawn(test):
    def fn(x, low):
        for index in range(2):
            if test(low):
                continue
            x = x * 2 + index
        return x, random.random()

    return fn


def compare_seeds(fn, counting):
    compiled = minidynamo.compile(fn, backend=counting)
    for seed in range(4):
        found = []
        for run in (fn, compiled):
            random.seed(seed)
            np.random.seed(seed)
            found.append((run(X, 0.0), random.getstate(), np.random.get_state()[2]))
        assert_same(*found)


@pytest.mark.parametrize("name", BELOW)
def test_nothing_drawn_is_below_the_least(name):
    counting = CountingBackend()
    compare_seeds(drawn(BELOW[name]), counting)
    assert len(counting.graphs) == 1


@pytest.mark.parametrize("name", OPEN)
def test_tests_that_depend_on_what_is_drawn(name):
    fn = drawn(OPEN[name])
    compare_seeds(fn, CountingBackend())
    with pytest.raises(minidynamo.exc.Unsupported, match="data-dependent branch"):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(X, 0.0)
