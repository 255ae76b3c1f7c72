"""Sums of matrix products that become one: `passes/product_sums.py`."""

import pytest
import torch
from inductor_testing import CLOSE, check
from torch import nn

import minidynamo
from minidynamo.inductor import metrics


def factors(count, rows, inner, columns, dtype=torch.float32):
    torch.manual_seed(0)
    shapes = [(rows, inner), (inner, columns)] * count
    return [torch.randn(shape).to(dtype) for shape in shapes]


def products(*parts):
    return [a @ b for a, b in zip(parts[::2], parts[1::2], strict=True)]


def in_turn(*parts):
    first, *others = products(*parts)
    for other in others:
        first = first + other
    return first


def by_twos(*parts):
    one, two, three, four = products(*parts)
    return (one + two) + (three + four)


def with_others(*parts):
    one, two, three, four = products(*parts)
    return one.sin() + (two + one.cos() + three) + four + 1.5


def turned(*parts):
    return in_turn(*(p.t().contiguous().t() for p in parts))


@pytest.mark.parametrize(
    ("fn", "calls"), [(in_turn, 1), (by_twos, 1), (with_others, 2), (turned, 1)]
)
def test_one_product(fn, calls):
    check(fn, *factors(4, 48, 3, 40), externs=calls, **CLOSE)


def test_sixteen_bits():
    check(in_turn, *factors(4, 48, 3, 40, torch.bfloat16), rtol=3e-2, atol=5e-2)


def and_themselves(*parts):
    one, two, three, four = products(*parts)
    return one + two + three + four, one, two, three, four


APART = {
    "two": (in_turn, factors(2, 48, 3, 40), 2),
    "large factors": (in_turn, factors(4, 48, 30, 40), 4),
    "numbers": (lambda *p: in_turn(*p).sum() + sum(q.sum() for q in products(*p)), None, 4),
    "results": (and_themselves, None, 4),
    "a factor": (lambda *p: in_turn(*p[:6]) + 2 * (p[6] @ p[7]), factors(4, 48, 30, 40), 4),
}


@pytest.mark.parametrize("case", APART)
def test_products_that_stay(case):
    fn, args, calls = APART[case]
    check(fn, *(args or factors(4, 48, 3, 40)), externs=calls, rtol=1e-4, atol=1e-3)


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.step, self.out = nn.Linear(40, 32), nn.Linear(32, 24)

    def forward(self, x):
        state, results = x.new_zeros(x.shape[1], 32), []
        for row in x:
            state = torch.tanh(self.step(torch.cat([row, state], 1)))
            results.append(self.out(state))
        return torch.stack(results)


def test_gradients_of_a_weight_that_a_loop_uses():
    torch.manual_seed(0)
    module, x = Loop(), torch.randn(6, 3, 8, requires_grad=True)
    wanted = [x, *module.parameters()]
    expected = torch.autograd.grad(module(x).square().sum(), wanted)
    metrics.reset()
    out = minidynamo.compile(module)(x)
    forward = metrics.extern_calls
    actual = torch.autograd.grad(out.square().sum(), wanted)
    assert metrics.extern_calls - forward == 6 + 6 + 2  # two weights' gradients
    for ours, eagers in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-5)
        assert ours.stride() == eagers.stride()


def test_strides_of_sums_with_other_matrices():
    """Which operand a sum is laid out as depends on the order: strides are checked, too."""
    parts, turned_one = factors(3, 40, 2, 40), torch.randn(40, 40).t()

    def behind(*parts):
        return in_turn(*parts[:6]) + parts[6]

    def before(*parts):
        return parts[6] + parts[0] @ parts[1] + parts[2] @ parts[3] + parts[4] @ parts[5]

    check(behind, *parts, turned_one, externs=3, **CLOSE)
    check(before, *parts, turned_one, externs=1, **CLOSE)
    check(behind, *parts, torch.randn(40, 40), externs=1, **CLOSE)
