"""Scheduling of many operations: what is known of their order, and what many of them share."""

import itertools

import pytest
import torch
from inductor_testing import check

import minidynamo
from minidynamo.inductor import metrics
from minidynamo.inductor.scheduler import Scheduler


def steps(count, **options):
    """Compiled and plain steps of AdamW over as many parameters of one size."""
    found = []
    for wrap in (minidynamo.compile, lambda fn: fn):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(8, 24)) for _ in range(count)]
        optimizer = torch.optim.AdamW(params, foreach=True, **options)
        step = wrap(optimizer.step)
        for _ in range(2):
            for p in params:
                p.grad = torch.randn_like(p)
            step()
        found.append(params)
    return found


@pytest.mark.parametrize(
    "options", [{}, {"amsgrad": True}, {"capturable": False, "maximize": True}]
)
def test_steps_of_an_optimizer_are_equal_kernels(options):
    kernels = []
    for count in (3, 6):
        metrics.reset()
        for actual, expected in zip(*steps(count, **options), strict=True):
            torch.testing.assert_close(actual, expected)
        kernels.append(metrics.generated_kernel_count)
    assert kernels[0] == kernels[1] <= 4


def programs():
    def layers(x, w):
        for _ in range(3):
            y = torch.softmax(x @ w, -1) + x.mean(0)
            x = torch.cat([y[:, :4], y[:, 4:].exp()], 1) * x.sum(1, keepdim=True)
        return x, x.t() @ y

    def beside(x, w):
        parts = [(x * i).sum(0) for i in range(4)]
        return *(p / parts[0] + w.sum(1) for p in parts), (x @ w).relu().amax(1)

    def written(x, w):
        y = x.sin()
        w.mul_(2)
        return y @ w, (w + 1).sum(0), y.cumsum(0) * 3

    return [layers, beside, written]


@pytest.mark.parametrize("fn", programs())
def test_groups_know_what_comes_before_and_after(fn, monkeypatch):
    joined = []
    absorb = Scheduler._absorb

    def checked(self, first, second, body):
        absorb(self, first, second, body)
        joined.append(first)
        groups = [group for group in self.groups if group.alive]
        assert sum(group.members for group in groups) == (1 << len(self.groups)) - 1
        for a, b in itertools.permutations(groups, 2):
            before = b.ancestors & a.members
            assert before in (0, a.members)
            assert (a.descendants & b.members) == (b.members if before else 0)
            assert not before or not a.ancestors & ~b.ancestors
            assert not (a.ancestors & b.members and before)

    monkeypatch.setattr(Scheduler, "_absorb", checked)
    check(fn, torch.rand(8, 8), torch.rand(8, 8), rtol=1e-4, atol=1e-4)
    assert joined


def test_a_number_is_no_reason_to_join():
    def fn(s, *xs):
        return [x * s for x in xs]

    metrics.reset()
    xs = [torch.randn(64, 8) for _ in range(5)]
    check(fn, torch.tensor(2.0), *xs, kernels=1)
    assert metrics.kernel_calls == 5
