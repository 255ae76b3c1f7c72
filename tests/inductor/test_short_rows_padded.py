"""Rows shorter than a vector under a condition that changes from row to row.

GCC 12 makes vectors of the loop over rows, and then takes the condition of the row before.
"""

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.inductor.utils import run_and_get_kernels

WIDTHS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 17]
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.int64]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_padding(dtype, is_dynamic):
    def fn(*tensors):
        return [F.pad(t, (0, 0, 3, 1), value=2.0) for t in tensors]

    tensors = [torch.arange(1, 4 * width + 1).view(4, width).to(dtype) for width in WIDTHS]
    if is_dynamic:
        for tensor in tensors:
            minidynamo.mark_dynamic(tensor, 0)
    for got, want in zip(minidynamo.compile(fn)(*tensors), fn(*tensors), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("width", WIDTHS)
def test_choosing_by_row(width):
    def fn(x, y, first):
        rows = torch.arange(x.shape[0]).unsqueeze(1)
        return torch.where(rows < first, F.pad(x[:-2], (0, 0, 2, 0)), y.roll(1, 0))

    x, y = torch.randn(2, 9, width)
    minidynamo.mark_dynamic(x, 0)
    minidynamo.mark_dynamic(y, 0)
    first = torch.tensor(4)
    assert torch.equal(minidynamo.compile(fn)(x, y, first), fn(x, y, first))


def test_loops_over_rows_are_left_alone():
    x = torch.randn(9, 40)
    _, (source,) = run_and_get_kernels(minidynamo.compile(lambda x: F.pad(x, (0, 3))), x)
    assert "one_by_one();" in source[source.index("for (i64 x0") : source.index("auto body")]
