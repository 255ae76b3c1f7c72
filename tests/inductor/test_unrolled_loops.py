"""Loops that are unrolled: their steps are one kernel, and write into one tensor."""

import pytest
import torch
from inductor_testing import CLOSE, as_tuple, assert_same, check

import minidynamo
from minidynamo.inductor import metrics

STEPS = 24
x = torch.arange(float(2 * STEPS * 70)).reshape(2, STEPS, 70).sin()
square = torch.eye(70) * 0.5
rows = torch.tensor([1, 3])


def recurrent(x, w):
    state, states = x.new_zeros(2, 70), []
    for t in range(STEPS):
        state = torch.tanh(x[:, t] + state @ w)
        states.append(state)
    return torch.stack(states, 1)


def test_steps_that_read_slice_after_slice_are_one_kernel():
    """The pointers that they are given begin at the slices."""
    check(recurrent, x, square, **CLOSE)
    assert metrics.generated_kernel_count <= 4 < STEPS <= metrics.kernel_calls
    weight = square.clone().requires_grad_()
    metrics.reset()
    minidynamo.reset()
    (found,) = torch.autograd.grad(minidynamo.compile(recurrent)(x, weight).sum(), weight)
    (wanted,) = torch.autograd.grad(recurrent(x, weight).sum(), weight)
    torch.testing.assert_close(found, wanted, **CLOSE)
    assert metrics.generated_kernel_count < 16 < 2 * STEPS <= metrics.kernel_calls


def test_parts_at_several_distances():
    """What a kernel reads of one tensor moves together; a flipped one is read from its end."""

    def fn(x):
        parts = [x[:, t] * x[:, t + 2] + x.flip(1)[:, t] for t in range(8)]
        return [part.sum(1) for part in parts], x[:, 5:9, 3:].cumsum(1)

    check(lambda x: (*fn(x)[0], fn(x)[1]), x, **CLOSE)


def filled(x):
    y = torch.zeros_like(x)
    for t in range(1, STEPS):
        y[:, t] = y[:, t - 1] * 0.5 + x[:, t]
    return y


def test_a_loop_that_fills_a_tensor_moves_each_step_once():
    check(filled, x)
    assert metrics.kernel_calls <= STEPS + 1
    check(read_whole, x, **CLOSE)
    assert metrics.generated_kernel_count > STEPS  # rows of growing length


def read_twice(x):
    y, kept = x * 2, []
    for t in range(STEPS):
        y[:, t] = y[:, t - 1].sin() + y[:, (7 * t) % STEPS]
        y[0, t] += y[1, t]
        kept.append(y[:, t, ::3].sum())
    return y, torch.stack(kept)


def in_slices(x):
    y = x.clone()
    for t in range(0, STEPS - 2, 2):
        y[:, t : t + 2] = y[:, t + 1 : t + 3].flip(1) * 0.5
        y[:, t, 1::2] = y[:, t, ::2].cos()
    return y


def at_places(x, rows):
    y = torch.ones_like(x)
    for t in range(STEPS):
        y[:, rows] = y[:, rows + 1] * 0.9 + x[:, t : t + 1]
        y.index_add_(1, rows, x[:, :2] * y[:, rows])
    return y


def kept_on_the_way(x):
    y, kept = torch.zeros_like(x), []
    for t in range(1, STEPS):
        y[:, t] = y[:, t - 1] + x[:, t]
        if t % 6 == 0:
            kept.append(y * 1)
            y = y.clone()
    return y, *kept


def returned_on_the_way(x):
    y = torch.zeros_like(x)
    for t in range(1, STEPS):
        y[:, t] = y[:, t - 1] + x[:, t]
        if t == 9:
            old, y = y, y + 0
    return old, y


def read_whole(x):
    y = x.clone()
    for t in range(1, STEPS):
        y[:, t] = y.mean(1) - y[:, : t + 1].amax(1)
    return y


def turned(x):
    y = torch.zeros(STEPS, 2, 70).transpose(0, 1)
    for t in range(1, STEPS):
        y[:, t] = y[:, t - 1] * 0.5 + x[:, t]
    return y


def of_a_row(x):
    y = x[0].expand(2, STEPS, 70).clone()
    base = y
    for t in range(1, STEPS):
        y[:, t] = torch.relu(y[:, t - 1] - x[:, t])
    return y, base.sum()


# Those that overwrite what their gradients need; eager refuses them.
NOT_DIFFERENTIABLE = (read_twice, in_slices, read_whole)


@pytest.mark.parametrize(
    "fn",
    [
        filled,
        *NOT_DIFFERENTIABLE,
        lambda x: at_places(x, rows),
        kept_on_the_way,
        returned_on_the_way,
        turned,
        of_a_row,
    ],
)
def test_tensors_that_loops_fill(fn):
    """As eager's, also where an older value is wanted, and with gradients."""
    expected = as_tuple(fn(x.clone()))
    minidynamo.reset()
    call = minidynamo.compile(fn)
    for _ in range(2):
        for left, right in zip(as_tuple(call(x.clone())), expected, strict=True):
            assert_same(left, right, **CLOSE)
    if fn in NOT_DIFFERENTIABLE:
        return
    leaf = x.clone().requires_grad_()
    totals = [sum(value.pow(2).sum() for value in as_tuple(f(leaf))) for f in (fn, call)]
    wanted, found = (torch.autograd.grad(total, leaf)[0] for total in totals)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_a_short_loop_and_one_that_reads_nothing_stay_one_kernel():
    def short(x):
        y = torch.zeros_like(x)
        for t in range(1, 4):
            y[:, t] = x[:, t] * 2
        return y

    check(short, x, kernels=1)


def test_an_input_that_is_filled_stays_one_tensor():
    def fn(y, x):
        for t in range(1, STEPS):
            y[:, t] = y[:, t - 1] * 0.5 + x[:, t]
        return y.sum()

    left, right = torch.ones_like(x), torch.ones_like(x)
    minidynamo.reset()
    assert torch.allclose(minidynamo.compile(fn)(left, x), fn(right, x))
    assert torch.allclose(left, right)
