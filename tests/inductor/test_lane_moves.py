"""Reads whose positions jump inside of a vector, and conversions between lanes of any width."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import check

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool]


def values(dtype, *size):
    if dtype == torch.bool:
        return torch.rand(*size) > 0.5
    return torch.randint(-90, 90, size).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rolls_and_repetitions(dtype):
    def fn(x):
        rolled = [x.roll(shift, -1) for shift in (1, -3, 17)]
        return *rolled, x.roll((2, 5), (0, 1)), x.repeat(1, 2), x.repeat_interleave(3, 1)

    check(fn, values(dtype, 5, 37))
    check(fn, values(dtype, 2, 3))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_pads(mode):
    def fn(x, y):
        return F.pad(x, (2, 3, 1, 2), mode=mode), F.pad(y, (4, 1), mode=mode)

    for columns in (5, 16, 41):
        check(fn, torch.randn(2, 6, columns), torch.randn(3, columns).double())


def test_every_dtype_to_every_other():
    for source, target in itertools.product(DTYPES, DTYPES):
        check(lambda x: x.to(target), values(source, 43))


def test_masks_of_wide_numbers():
    def fn(x, mask):
        chosen = torch.where(mask, x, -x)
        return chosen, torch.sign(x), (x > 3) & mask, mask.sum(-1), x.masked_fill(mask, 7)

    for dtype in (torch.float64, torch.int64, torch.float32):
        check(fn, values(dtype, 3, 29), values(torch.bool, 3, 29))


def test_rounding_to_bfloat16():
    special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 3.4e38, -3.4e38]
    tiny = [2.0**-130, -(2.0**-140), 1e-45, 2.0**-126, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-9]
    x = torch.cat([torch.tensor(special + tiny), torch.randn(300), torch.randn(51) * 1e-39])
    expected = x.bfloat16()
    for moved in (x, x.flip(0)):
        (result,) = check(lambda y: (y * 1).to(torch.bfloat16), moved)(moved)
        wanted = moved.bfloat16()
        same = result.view(torch.int16) == wanted.view(torch.int16)
        assert bool((same | wanted.isnan()).all())
    assert expected.isnan().sum() == 1


def test_repeated_elements_of_every_dtype():
    def fn(x):
        y = x.repeat_interleave(2, 1), x.repeat_interleave(4, 1), x.repeat_interleave(8, 1)
        return *y, x[:, :, None].expand(-1, -1, 2).flatten()

    for dtype in (*DTYPES, torch.float16):
        check(fn, values(dtype, 3, 71))


def test_bools_that_are_chosen_and_choose():
    """As bytes a bool can be a result, but it cannot say which of two others is."""
    x, y = values(torch.bool, 3, 29), values(torch.bool, 3, 29)
    check(lambda x: torch.where(x, x, x), x, kernels=1)
    check(lambda x, y: (torch.where(x, x, y), torch.where(y, x & y, y)), x, y, kernels=1)
    check(lambda x, y: torch.where(x > 0, y, ~x) | y, x, y, kernels=1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_even_and_odd_elements(dtype):
    """What pairs of neighbours are made of is read in whole vectors."""

    def fn(x, y):
        index = torch.arange(x.shape[-1] * 2 - 1)
        behind = torch.where(
            (index % 2 == 0) & (index > 0), x[:, (index + 1) // 2 - 1], x[:, index // 2]
        )
        return F.pixel_shuffle(y, 2), behind, torch.stack((x, x.flip(0)), -1).flatten(1)

    for columns in (4, 37, 80):
        check(fn, values(dtype, 3, columns), values(dtype, 1, 8, 3, columns))
