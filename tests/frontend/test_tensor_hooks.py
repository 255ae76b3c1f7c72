"""`register_hook` on tensors that a graph makes; operators with rules of their own for tracing."""

from __future__ import annotations

import pytest
import torch
from testing import CountingBackend, check
from torch._higher_order_ops import scan

import minidynamo

WEIGHT = torch.full((3,), 2.0)
LOG: list[int] = []


def changing(x, weight):
    y = x.sin()
    kept = x.detach() * 3
    before = y * 2
    y.register_hook(lambda grad: grad * 2 + kept)
    y.register_hook(lambda grad: None)
    return (y * weight).sum() + before.sum()


def removed(x, weight):
    y = x.sin()
    handle = y.register_hook(lambda grad: grad * 2)
    z = (y * 3).sum()
    handle.remove()
    return z


def logging(x, weight):
    y = x * weight
    y.register_hook(lambda grad: LOG.append(1))
    return y.sum()


def after_a_write(x, weight):
    y = x * 2
    with torch.no_grad():
        y.mul_(3)
    y.register_hook(lambda grad: grad.clamp(max=0.5))
    return (y * y * weight).sum()


def on_an_input(x, weight):
    x.register_hook(lambda grad: grad * 5)
    return (x * weight).sum()


FUNCTIONS = (changing, removed, logging, after_a_write, on_an_input)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_gradients(fn, backend):
    minidynamo.reset()
    results = []
    for function in (fn, minidynamo.compile(fn, backend=backend)):
        for _ in range(2):
            LOG.clear()
            x, weight = (t.clone().requires_grad_() for t in (torch.ones(3), WEIGHT))
            value = function(x, weight)
            value.backward()
            results.append((value.detach(), x.grad, weight.grad, torch.tensor(len(LOG))))
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            assert (left is None) == (right is None)
            if left is not None:
                torch.testing.assert_close(left, right)


@pytest.mark.parametrize(("fn", "graphs"), [(changing, 1), (after_a_write, 1), (logging, 2)])
def test_graphs(fn, graphs):
    minidynamo.reset()
    backend = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend)
    for _ in range(2):
        compiled(torch.ones(3, requires_grad=True), WEIGHT.clone().requires_grad_())
    assert len(backend.graphs) == graphs


def test_another_hook_is_another_graph():
    def fn(x, factor):
        y = x.sin()
        y.register_hook(lambda grad: grad * factor)
        return y.sum()

    compiled = minidynamo.compile(fn, backend="aot_eager", fullgraph=True)
    for factor in (2.0, 3.0, 2.0):
        grads = []
        for function in (fn, compiled):
            x = torch.ones(3, requires_grad=True)
            function(x, factor).backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)


@torch.library.custom_op("md_tests::increase", mutates_args=("x",))
def increase(x: torch.Tensor) -> None:
    x.add_(1)


@increase.register_fake
def _(x):
    return None


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_operators_with_rules_for_fake_tensors(backend):
    def fn(x):
        y = x.sin()
        increase(y)
        carry, items = scan(lambda c, a: (c + a, c * a), torch.zeros(3), x, dim=0)
        chosen = torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (y,))
        return y, carry, items, chosen

    check(fn, torch.arange(6.0).reshape(2, 3), graphs=None, fullgraph=True, backend=backend)
