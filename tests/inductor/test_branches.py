"""Operators with graphs of their own: these and what stands around them are compiled."""

import pytest
import torch
from inductor_testing import CLOSE
from torch._higher_order_ops import scan, while_loop
from torch.nn.attention.flex_attention import flex_attention

import minidynamo
from minidynamo.inductor import metrics


@pytest.fixture(autouse=True)
def forget():
    minidynamo.reset()
    metrics.reset()


def conditional(p, x, y):
    z = x * y + 1

    def yes(a):
        return (a + y).softmax(0), a.sum(0)

    def no(a):
        return (a - y).exp() * a.shape[0], a.cos().mean(0)

    a, b = torch.cond(p, yes, no, (z,))
    return (a * 2).relu() + b


def nested(p, x, y):
    def outer(a):
        return torch.cond(a.sum() > 0, lambda b: b.sin() + 1, lambda b: b * y, (a,)).exp()

    return torch.cond(p, outer, lambda a: a / 2, (x + 1,)) * 3


def repeated(p, x, y):
    start = (torch.tensor(0), x * 2)
    n, z = while_loop(lambda i, a: i < 4, lambda i, a: (i + 1, (a + y).sin().cos()), start)
    return z.relu() * 2 + n.detach()


def accumulated(p, x, y):
    last, every = scan(lambda c, a: ((c + a).sin(), (c * a).exp()), x[0] * 2, y)
    return last.relu() + every * 3


def attended(p, x, y):
    q = torch.stack([x, y])[None] * 2
    return flex_attention(q, q, q + 1, score_mod=lambda s, b, h, i, j: s + i - j).relu() * 2


PROGRAMS = {fn.__name__: fn for fn in (conditional, nested, repeated, accumulated, attended)}


def results(fn, p, grad):
    torch.manual_seed(0)
    x, y = (torch.randn(4, 6, requires_grad=grad) for _ in range(2))
    out = fn(torch.tensor(p), x, y)
    grads = torch.autograd.grad(out.tanh().sum(), (x, y), allow_unused=True) if grad else ()
    return out.detach(), grads


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_of_operators_are_compiled(name, grad, dynamic):
    fn, grad = PROGRAMS[name], grad and name != "attended"  # which eager has not on the CPU
    compiled = minidynamo.compile(fn, fullgraph=True, dynamic=dynamic)
    for p in (True, False):
        torch.testing.assert_close(results(compiled, p, grad), results(fn, p, grad), **CLOSE)
    assert metrics.uncompiled_graphs == 0
    assert metrics.generated_kernel_count > 1


def test_both_branches_are_kernels():
    compiled = minidynamo.compile(conditional, fullgraph=True)
    results(compiled, True, False)
    assert metrics.kernel_calls >= 4  # before, in each of the branches, behind
    assert metrics.extern_calls == 0


@pytest.mark.parametrize("p", [True, False])
def test_random_numbers_are_drawn_in_order(p):
    def fn(p, x, y):
        x = torch.dropout(x, 0.5, True)
        z = torch.cond(
            p, lambda a: torch.dropout(a, 0.3, True), lambda a: a * torch.rand_like(a), (x,)
        )
        return torch.dropout(z * 2, 0.5, True) + y

    compiled = minidynamo.compile(fn, fullgraph=True, options={"fallback_random": True})
    torch.testing.assert_close(results(compiled, p, True), results(fn, p, True))


@pytest.mark.parametrize("grad", [False, True])
def test_parts_that_lie_otherwise_than_the_graph_expects(grad):
    def fn(p, x, y):
        last, every = scan(lambda c, a: ((c + a).sin(), c * a), x.t()[0] * 2, x, dim=1)
        return last + every.sum() + y[0, :4]

    compiled = minidynamo.compile(fn, fullgraph=True)
    torch.testing.assert_close(results(compiled, True, grad), results(fn, True, grad))
