"""Assertions that tie data-dependent numbers to others hold at run time, and leaves made inside."""

import pytest
import torch

import minidynamo
from minidynamo import config
from minidynamo.inductor import metrics

BACKENDS = ("eager", "aot_eager", "inductor")


def number_is_five(x, y):
    n = y.item()
    torch._check(n == 5)
    return x * n + torch.zeros(n)


def number_is_size(x, y):
    n = y.item()
    torch._check(n == x.shape[0])
    return x + torch.zeros(n)


def sizes_are_equal(x, y):
    left, right = x.nonzero().squeeze(1), torch.arange(5)[: y.item()].nonzero().squeeze(1)
    torch._check(left.shape[0] == right.shape[0])
    return left * 2 + right


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    ("fn", "good"), [(number_is_five, 5), (number_is_size, 5), (sizes_are_equal, 5)]
)
def test_assertions_about_data_hold_at_run_time(fn, good, dynamic, backend):
    x = torch.tensor([1.0, 1, 0, 1, 1])
    with config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        compiled = minidynamo.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)
        torch.testing.assert_close(compiled(x, torch.tensor(good)), fn(x, torch.tensor(good)))
        for wrong in (good - 1, good - 2):
            with pytest.raises(RuntimeError, match="ssert"):
                compiled(x, torch.tensor(wrong))


def chosen_are_three(x, y):
    chosen = x[x > 0]
    torch._check(chosen.shape[0] == 3)
    return (chosen * x.new_ones(3)).sin(), y + 1


def chosen_are_as_many(x, y):
    chosen = x[x > 0]
    torch._check(chosen.shape[0] + 2 == y.shape[0])
    return chosen * y[2:] * 0.5


def only_the_number_is_used(x, y):
    found = (x > 0).nonzero()
    torch._check(found.shape[0] == 3)
    return y * found.shape[0]


def number_is_broadcast(x, y):
    return x + y.exp() * x.new_ones(int((x > 0).sum().item()) + 2)


def parts_of_data(x, y):
    return [part * 2 for part in torch.split(y.repeat(2)[: int((x > 0).sum().item())], [1, 2])]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("wants_grad", [True, False])
@pytest.mark.parametrize(
    "fn",
    [
        chosen_are_three,
        chosen_are_as_many,
        only_the_number_is_used,
        number_is_broadcast,
        parts_of_data,
    ],
)
def test_graphs_with_assertions_about_data_are_compiled(fn, wants_grad, dynamic):
    good, bad = torch.tensor([0.5, -1, 2, -3, 4]), torch.tensor([0.5, -1, 2, 3, 4])
    y = torch.arange(5.0)
    with config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        metrics.reset()
        compiled = minidynamo.compile(fn, fullgraph=True, dynamic=dynamic)
        inputs = [[t.clone().requires_grad_(wants_grad) for t in (good, y)] for _ in range(2)]
        results = [run(*given) for run, given in zip((compiled, fn), inputs, strict=True)]
        torch.testing.assert_close(*results)
        if wants_grad:
            for result, given in zip(results, inputs, strict=True):
                parts = [result] if isinstance(result, torch.Tensor) else result
                sum((part * part).sum() for part in parts).backward()
            torch.testing.assert_close(*([t.grad for t in given] for given in inputs))
        assert metrics.uncompiled_graphs == 0
        with pytest.raises(RuntimeError, match="ssert"):
            compiled(bad, y)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wants_grad", [True, False])
def test_a_leaf_made_inside(wants_grad, backend):
    def fn(x):
        w = torch.ones(2, requires_grad=True)
        return w, (x * w).sin().sum()

    x = torch.arange(2.0, requires_grad=wants_grad)
    leaf, total = minidynamo.compile(fn, backend=backend)(x)
    assert leaf.is_leaf and leaf.requires_grad
    total.backward()
    torch.testing.assert_close(leaf.grad, x.detach() * x.detach().cos())
    assert (x.grad is not None) == wants_grad


@pytest.mark.parametrize("wants_grad", [True, False])
@pytest.mark.parametrize(
    "one",
    [
        lambda x: torch.ones(4).unique().view(1),
        lambda x: torch.ones(4).unique()[:1].view(1),
        lambda x: x.detach()[x.detach() > 5].reshape(1).squeeze(),
    ],
)
def test_a_size_that_can_only_be_one_is_broadcast(one, wants_grad):
    def fn(x):
        return one(x) * x

    x = torch.arange(1.0, 7.0, requires_grad=wants_grad)
    with config.patch(capture_dynamic_output_shape_ops=True):
        actual = minidynamo.compile(fn, fullgraph=True)(x)
    torch.testing.assert_close(actual, fn(x))
    if wants_grad:
        (grad,), (expected,) = (torch.autograd.grad(y.sum(), x) for y in (actual, fn(x)))
        torch.testing.assert_close(grad, expected)
