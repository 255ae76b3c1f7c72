"""Tensors that are filled part by part are concatenations of the parts."""

import pytest
import torch
from inductor_testing import CLOSE, as_tuple, assert_same, check

import minidynamo
from minidynamo.inductor import metrics

x = torch.arange(float(50 * 12)).reshape(50, 12).sin()


def rotations(x):
    """Written here and there, one place twice."""
    angle, made = x[:, 0], torch.zeros(x.shape[0], 3, 3)
    made[..., 0, 0] = angle.cos()
    made[..., 0, 1] = -angle.sin()
    made[..., 1, 0] = angle
    made[..., 1, 0] = -made[..., 0, 1]
    made[..., 1, 1] = made[:, 0, 0]
    made[..., 2, 2] = 1.0
    return made


def skew(x):
    made = torch.zeros(x.shape[0], 3, 3)
    made[:, 0, 1], made[:, 0, 2] = -x[:, 2], x[:, 1]
    made[:, 1, 0], made[:, 1, 2] = x[:, 2], -x[:, 0]
    made[:, 2, 0], made[:, 2, 1] = -x[:, 1], x[:, 0]
    return made


def quaternions(x):
    made = torch.empty(x.shape[0], 4)
    made[:, 0] = x[:, 0]
    made[:, 1:] = -x[:, 1:4]
    return made


def poses(x):
    made = torch.eye(4).repeat(50, 1, 1)
    made[:, :3, 3] = x[:, 9:]
    made[:, :3, :3] = x[:, :9].view(50, 3, 3)
    return made, made[:, :3, :3].sum(2), torch.linalg.det(made)


def overlapping(x):
    made = x * 2
    made[:, 2:8] = x[:, :6]
    made[:, 4:10] = made[:, 3:9] * 0.5
    made[:, 5] = made[:, 4] + made[:, -1]
    made[:, 0:3] = 1.0
    return made, made[:, 4:6]


def read_on_the_way(x):
    made = torch.ones(50, 4)
    made[:, 0] = x[:, 0]
    first = made.clone()
    made[:, 1] = made[:, 0] * 2
    row = made[:, 1]
    made[:, 2:] = made[:, :2] + first[:, 2:]
    made[:, 3] = row.exp()
    return made, first, row


def turned(x):
    made = torch.zeros(4, 50).t()
    made[:, 0] = x[:, 0]
    made[:, 1] = x[:, 1]
    made[:, 2] = x[:, 2]
    made[:, 3] = made[:, 0]
    return made, made.t().reshape(2, 100)


def other_dtypes(x):
    made = torch.zeros(50, 3, dtype=torch.int64)
    made[:, 0] = x[:, 0] * 9
    made[:, 1] = 2.0
    made[:, 2] = made[:, 0] + 1
    return made


def grown(x):
    out = x[:, :1]
    for step in range(1, 12):
        out = torch.cat([out, out[:, -1:] * 0.5 + x[:, step : step + 1]], 1)
    return out, out[:, 3]


def grown_and_read(x):
    out, sums = x[:, :1], []
    for step in range(1, 6):
        out = torch.cat([out, x[:, step : step + 1]], 1)
        sums.append(out.sum(1))
    return out, *sums


PROGRAMS = [
    rotations,
    skew,
    quaternions,
    poses,
    overlapping,
    read_on_the_way,
    turned,
    other_dtypes,
    grown,
    grown_and_read,
]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_as_eager(fn):
    """Values, strides and shared memory; the second call has other values."""
    minidynamo.reset()
    call = minidynamo.compile(fn)
    for given in (x, x + 1):
        expected, found = as_tuple(fn(given.clone())), as_tuple(call(given.clone()))
        for left, right in zip(found, expected, strict=True):
            assert_same(left, right, **CLOSE)
        memory = [[v.untyped_storage().data_ptr() for v in vs] for vs in (expected, found)]
        assert _classes(memory[0]) == _classes(memory[1])


def _classes(addresses):
    return [addresses.index(address) for address in addresses]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_gradients(fn):
    leaf = x.clone().requires_grad_()
    results = [[v for v in as_tuple(f(leaf)) if v.requires_grad] for f in (fn, _compiled(fn))]
    if results[0]:
        wanted, found = (
            torch.autograd.grad(sum(v.pow(2).sum() for v in values), leaf)[0]
            for values in results
        )
        torch.testing.assert_close(found, wanted, **CLOSE)


def _compiled(fn):
    minidynamo.reset()
    return minidynamo.compile(fn)


@pytest.mark.parametrize("fn", [rotations, skew, quaternions, grown])
def test_numbers_of_rows_that_change(fn):
    minidynamo.reset()
    call = minidynamo.compile(fn, dynamic=True, fullgraph=True)
    for given in (x, x[:33], x[5:12]):
        for left, right in zip(as_tuple(call(given)), as_tuple(fn(given)), strict=True):
            assert_same(left, right, **CLOSE)


def test_nothing_is_asked_of_the_elements():
    """Each place is written by a loop over the rows."""
    for fn in (skew, quaternions, rotations):
        check(fn, x, **CLOSE)
        assert "select_scatter" not in _code(fn)


def test_an_input_is_written_where_it_lies():
    """Also where places that were not written are read behind the writes."""

    def fn(cache):
        cache[:, 5] = cache[:, 4] * 2
        window = cache[:, :5].sum(1)
        cache[:, 6] = window
        for place in range(8, 12):
            cache[:, place] = window * place
        whole = cache.sum(1)
        cache[:, 0] = whole
        return window + cache[:, 7] + cache[:, 5]

    cache, other = torch.ones(50, 12, 3), torch.ones(50, 12, 3)
    assert "empty((50, 12, 3)" not in _code(fn, cache)
    fn(other)
    assert torch.equal(cache, other)


def _code(fn, given=x):
    texts = []
    with minidynamo.events.subscribe(
        lambda event: texts.append(event.text), minidynamo.events.OutputCodeEvent
    ):
        _compiled(fn)(given)
    return "".join(texts)


def test_a_short_change_of_a_long_row_stays_in_its_kernel():
    def border(x):
        y = x * 2
        y[:, 0] = 0
        y[:, -1] = 1
        return y

    check(border, x, kernels=1)
    assert metrics.kernel_calls == 1


def test_what_a_custom_operator_writes_is_not_moved():
    """A part may be written to behind its read."""

    def fn(x):
        made = torch.zeros(50, 3)
        made[:, 0] = x[:, 0]
        part = made[:, 0]
        part.mul_(3)
        made[:, 1] = part
        made[:, 2] = made[:, 0] + part
        return made, part

    check(fn, x)
