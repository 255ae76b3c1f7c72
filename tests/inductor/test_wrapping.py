"""Integers wrap around as in eager: in values, and where positions are computed."""

import pytest
import torch

import minidynamo

FACTOR, SUMMAND = 6364136223846793005, 1442695040888963407  # Knuth's generator


def mixed(i):
    return i * FACTOR + SUMMAND


def of_positions(i):
    powers = (
        i * (1 << 40) * (1 << 40),
        (i - (1 << 62)) * 4,
        -(i - (1 << 63)),
        i + ((1 << 63) - 5),
    )
    picked = torch.arange(64.0)[mixed(i) % 64]
    hashed = mixed(i) % 1000, mixed(i) // 7, mixed(i).remainder(-7), (mixed(i) >> 33) & 255
    chosen = torch.where(mixed(i) % 3 == 0, 1.0, 2.0), mixed(i) > 0, mixed(i).double()
    return *powers, picked, *hashed, *chosen


def of_small_positions(i):
    """Results fit 32 bits, what comes up on the way does not."""
    steps = i * 1_000_000 // 999_999, (i * 3_000_000 + 5) % 1000, i * (1 << 31) // (1 << 30)
    return [step.float() for step in steps] + [steps[0] < 7, steps[1] > 500]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [of_positions, of_small_positions])
def test_positions(fn, dynamic):
    compiled = minidynamo.compile(lambda n: fn(torch.arange(n)), dynamic=dynamic)
    for n in (100, 37):
        for got, wanted in zip(compiled(n), fn(torch.arange(n)), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def of_values(x):
    compared = x + 1 > x, -x > 0, x.abs() < 0, x - 1 < x, x * x >= 0, x + 5 < x + 7
    return *compared, x * 2 // 2, x * 8 >> 3, (x + x) / 2, x * 4 % 4


@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_values(dtype, count):
    info = torch.iinfo(dtype)
    ends = [info.max, info.min, info.max - 1, 3, info.min + 1]
    x = torch.tensor(ends * 8, dtype=dtype)[:count]
    for got, wanted in zip(minidynamo.compile(of_values)(x), of_values(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
