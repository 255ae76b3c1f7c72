"""Gradients that are differentiated again: the compiled graph runs once more, as eager would."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minidynamo

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
REFUSED = "does not currently support double backward"


def leaf(*size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, generator=generator).requires_grad_()


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2))


def second_order(call, inputs, wanted):
    """Gradients of the squared norm of gradients, and those themselves."""
    results = call(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    total = sum((r * (i + 1)).sum() for i, r in enumerate(results) if r.requires_grad)
    first = torch.autograd.grad(total, wanted, create_graph=True, allow_unused=True)
    penalty = total + sum(g.square().sum() for g in first if g is not None)
    return first, torch.autograd.grad(penalty, wanted, allow_unused=True)


def powers(x, w):
    return (x**3 * w).sin()


def several(x, w):
    return x @ w, torch.softmax(x * w, -1), (x.detach() * w).sum()


def unused(x, w):
    return x.exp(), w.detach() * 2


def with_parts_in_eager(x, w):
    with torch.no_grad():
        scale = (x * w).abs().mean()
    return x * scale * w


def cast(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
    return y.float() * x


def of_rows(x, w):
    return torch.cat([F.layer_norm(row, (4,)) * w[0] for row in x.unbind(0)])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "fn",
    [powers, several, unused, with_parts_in_eager, cast, of_rows],
    ids=lambda f: f.__name__,
)
def test_functions(fn, dynamic):
    compiled = minidynamo.compile(fn, fullgraph=True, dynamic=dynamic)
    for seed in (0, 5):
        x, w = leaf(4, 4, seed=seed), leaf(4, 4, seed=seed + 1)
        want = second_order(fn, (x, w), (x, w))
        got = second_order(compiled, (x, w), (x, w))
        of_16_bits = {"rtol": 3e-2, "atol": 3e-1} if fn is cast else {}
        torch.testing.assert_close(got, want, **of_16_bits)


def test_a_gradient_penalty():
    """What a WGAN's critic is trained with: by .backward(), over several steps."""
    found = []
    for wrap in (lambda f: f, minidynamo.compile):
        critic = mlp()
        call = wrap(critic)
        optimizer = torch.optim.SGD(critic.parameters(), 0.1)
        losses = []
        for seed in range(3):
            x = leaf(5, 3, seed=seed)
            score = call(x).mean()
            (gradient,) = torch.autograd.grad(score, x, create_graph=True)
            loss = score + 10 * (gradient.norm(dim=1) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append((losses, [p.detach() for p in critic.parameters()]))
    torch.testing.assert_close(found[1], found[0], **CLOSE)


def test_derivatives_of_derivatives():
    """A residual of a differential equation, of third order, and the gradients of the net."""
    found = []
    for wrap in (lambda f: f, minidynamo.compile):
        net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        for i, parameter in enumerate(net.parameters()):
            nn.init.constant_(parameter, 0.1 * (i + 1))
        x = torch.linspace(-1, 1, 5)[:, None].requires_grad_()
        u = wrap(net)(x)
        for _ in range(3):
            (u,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        u.square().mean().backward()
        found.append([u.detach(), *(p.grad for p in net.parameters())])
    torch.testing.assert_close(found[1], found[0])


def test_a_break_for_the_gradient():
    def fn(x, w):
        y = torch.tanh(x @ w).sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        return gradient, gradient.square().sum() + y

    compiled = minidynamo.compile(fn)
    for seed in (0, 3):
        x, w = leaf(3, 4, seed=seed), leaf(4, 2, seed=seed)
        torch.testing.assert_close(
            second_order(compiled, (x, w), (x, w)), second_order(fn, (x, w), (x, w)), **CLOSE
        )


def test_under_autocast():
    def fn(x, w):
        return (x @ w).float().square()

    compiled = minidynamo.compile(fn)
    x, w = leaf(4, 4), leaf(4, 4, seed=1)
    found = []
    for call in (fn, compiled, compiled):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = call(x, w)
        first = torch.autograd.grad(result.sum(), (x, w), create_graph=True)
        found.append((first, torch.autograd.grad(sum(g.sum() for g in first), (x, w))))
    torch.testing.assert_close(found[1:], [found[0]] * 2)


def test_hooks_are_called_once():
    compiled = minidynamo.compile(powers)
    for call in (powers, compiled):
        x, w = leaf(4), leaf(4, seed=1)
        calls = []
        x.register_hook(calls.append)
        torch.autograd.grad(call(x, w).sum(), x, create_graph=True)
        assert len(calls) == 1


def test_the_tangent_has_a_history():
    compiled = minidynamo.compile(powers)
    found = []
    for call in (powers, compiled):
        x, w, v = leaf(4), leaf(4, seed=1), leaf(4, seed=2)
        (gradient,) = torch.autograd.grad(call(x, w), x, v, create_graph=True)
        found.append(torch.autograd.grad(gradient.square().sum(), (x, w, v)))
    torch.testing.assert_close(found[1], found[0])


def test_hessians():
    compiled = minidynamo.compile(lambda x: (x**3 * x.roll(1)).sum())
    x = leaf(4).detach()
    want = torch.autograd.functional.hessian(lambda x: (x**3 * x.roll(1)).sum(), x)
    torch.testing.assert_close(torch.autograd.functional.hessian(compiled, x), want)


def drops(x, w):
    return F.dropout(x * w, 0.5).sin()


def counts(x, w):
    w.add_(1)
    return (x * w).sin()


@pytest.mark.parametrize("fn", [drops, counts])
def test_what_does_not_run_twice(fn):
    """Gradients have values; only their own gradients are refused."""
    x, w = leaf(4), torch.ones(4)
    result = minidynamo.compile(fn)(x, w)
    (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    assert gradient.requires_grad and w.eq(1 + (fn is counts)).all()
    with pytest.raises(RuntimeError, match=REFUSED):
        gradient.sum().backward()


@pytest.mark.parametrize("what", ["gone", "changed"])
def test_inputs_that_are_not_what_they_were(what):
    """The node keeps no input alive that its backward graph does not read."""

    def fn(x, y):
        return x.sum() * 2 + y.sin()

    x, y = leaf(4), leaf(4, seed=1)
    between = (x * 1).detach().requires_grad_(what == "changed")
    result = minidynamo.compile(fn)(between, y)
    if what == "gone":
        kept = weakref.ref(between)
        del between
        assert kept() is None
    else:
        between.detach().add_(1)
    (gradient,) = torch.autograd.grad(result.sum(), y, create_graph=True)
    torch.testing.assert_close(gradient, y.cos())
    with pytest.raises(RuntimeError, match=REFUSED):
        gradient.sum().backward()
