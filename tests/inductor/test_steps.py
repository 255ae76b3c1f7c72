"""Elements that lie steps apart or are read several times: strided loads, tiny rows, extremes."""

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import compiled

DTYPES = [torch.float32, torch.int32, torch.float64, torch.bfloat16, torch.int8]


def check(function, *args):
    actual = compiled(lambda *a: tuple(function(*a)), *args)(*args)
    for got, wanted in zip(actual, function(*args), strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_steps_between_lanes(dtype):
    x = torch.arange(5 * 16 * 17 + 3).remainder(101).to(dtype)
    # Lengths around a vector's, so that the last one is whole, cut short, or one element.
    check(
        lambda x: [
            x[start::step] + 1 for step in (2, 3, 5, 7, 8, 11, 12, 13) for start in (0, 1)
        ],
        x,
    )


@pytest.mark.parametrize("length", [16, 17, 33, 64])
def test_tiny_rows(length):
    x = torch.randn(length, 8)
    x[1, 2] = torch.nan
    rows = [x[:, :size].contiguous() for size in (2, 3, 5, 8)]
    check(lambda *rows: [r.sum(-1) for r in rows] + [r.amax(-1) for r in rows], *rows)
    check(lambda *rows: [r.softmax(-1) for r in rows] + [r.argmin(-1) for r in rows], *rows)
    check(lambda x: [x.view(-1, 2, 4).sum((1, 2)), x.to(torch.bfloat16).mean(-1)], x)
    check(lambda x: [(x > 0).any(-1), x.to(torch.int64).sum(-1)], x.nan_to_num())


def test_repeated_elements():
    x = torch.randn(3, 33)
    y = x.to(torch.bfloat16), x.to(torch.float64), (x * 40).to(torch.int8)
    check(lambda *a: [v.repeat_interleave(n, 1) + 1 for v in a for n in (2, 4, 8)], x, *y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_first_of_equal_extremes(dtype):
    """The lanes' candidates are folded in pairs: the first position wins, NaN over all."""
    x = torch.randint(0, 3, (40, 37)).to(dtype)
    if dtype.is_floating_point:
        x[3, 30], x[3, 9], x[5, 36] = torch.nan, torch.nan, torch.nan
        x[7] = -torch.inf
    check(lambda x: [x.argmax(-1), x.argmin(-1), x[:, :5].argmax(-1), x.argmax()], x)
    check(lambda x: [*x.max(-1), *x.min(-1)], x)


def test_windows_without_overlap():
    x = torch.randn(2, 3, 1, 67)
    check(lambda x: [F.avg_pool2d(x, (1, k)) for k in (2, 3, 4, 5)], x)
