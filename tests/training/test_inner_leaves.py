"""Leaves of autograd that the compiled function makes for itself."""

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.inductor import metrics


@pytest.fixture(autouse=True)
def fresh():
    minidynamo.reset()
    metrics.reset()
    yield
    minidynamo.reset()


def added(layer, x):
    queries = torch.zeros_like(x, requires_grad=True)
    return layer(queries + x).relu()


def through_weights(layer, x):
    start = torch.zeros(2, 3, 4, requires_grad=True).transpose(0, 1)
    return layer(torch.cat([start, x.detach()[:, None]], 1)).sum(1)


def detached(layer, x):
    start = torch.ones(3, 4, requires_grad=True)
    return layer(x) * start.detach()


def under_no_grad(layer, x):
    start = torch.ones(3, 4, requires_grad=True)
    with torch.no_grad():
        scale = start + x
    return layer(x) * scale


def given_out(layer, x):
    start = torch.zeros(3, 4, requires_grad=True)
    return layer(x + start), start


def by_itself(layer, x):
    return torch.ones(3, 4, requires_grad=True) * 2, layer(x)


def of_what_is_detached(layer, x):
    return torch.ones(3, 4, requires_grad=True) * x.detach()


def written_to(layer, x):
    start = torch.zeros(3, 4, requires_grad=True) + 1
    start += layer(x)
    return start * 2


def with_its_gradient(layer, x):
    start = torch.zeros(3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x + start).square().sum(), start)
    return gradient + layer(x)


@torch.library.custom_op("minidynamo_tests::linear", mutates_args=())
def weighted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * weight


@weighted.register_fake
def weighted_fake(x, weight):
    return torch.empty_like(x)


def save_weight(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])


def to_first_alone(ctx, gradient):
    return gradient * ctx.saved_tensors[0], None


weighted.register_autograd(to_first_alone, setup_context=save_weight)


def by_an_operator_of_its_own(layer, x):
    start = torch.ones(4, 4, requires_grad=True)
    return weighted(start, layer.weight), layer(x)


def step(call, layer, x):
    x = x.clone().requires_grad_()
    found = call(layer, x)
    results = found if isinstance(found, tuple) else (found,)
    sum(result.square().sum() for result in results).backward()
    gradients = [x.grad, *(p.grad for p in layer.parameters())]
    layer.zero_grad()
    facts = [(r.requires_grad, r.is_leaf) for r in results]
    own = [r.grad for r in results if r.is_leaf and r.requires_grad]
    return [r.detach() for r in results], gradients, own, facts


def compare(function):
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 4), torch.randn(3, 4)
    expected = step(function, layer, x)
    compiled = minidynamo.compile(function)
    for _ in range(2):
        found = step(compiled, layer, x)
        torch.testing.assert_close(found[:3], expected[:3])
        assert found[3] == expected[3]


@pytest.mark.parametrize("function", [added, through_weights, detached, under_no_grad])
def test_one_that_stays_inside_is_compiled(function):
    compare(function)
    assert metrics.uncompiled_graphs == 0 and metrics.compiled_graphs == 1


@pytest.mark.parametrize(
    "function",
    [
        given_out,
        by_itself,
        of_what_is_detached,
        written_to,
        with_its_gradient,
        by_an_operator_of_its_own,
    ],
)
def test_one_that_can_be_seen_stays_a_leaf(function):
    compare(function)
