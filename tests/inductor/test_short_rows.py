"""Short rows, which are reduced one in each lane: read whole, turned, and written whole."""

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import check, compiled

from minidynamo import events

# Four vectors at once, then one, then a part of one.
ROWS = 77


def kernels_of(fn, *args):
    found = []
    with events.subscribe(found.append, events.KernelEvent):
        compiled(fn, *args)
    return "".join(event.source for event in found)


@pytest.mark.parametrize("length", [3, 10, 17, 64, 65])
def test_lengths(length):
    def fn(x, w, b, mask):
        rows = x * 2
        return (
            F.layer_norm(rows, (length,), w, b),
            rows.masked_fill(mask, float("-inf")).softmax(-1),
            rows.argmax(-1),
            rows.sum(-1),
            rows > rows.mean(-1, keepdim=True),
        )

    x, mask = torch.randn(ROWS, length), torch.rand(ROWS, length) > 0.7
    x[5], x[6, 0], mask[7] = float("nan"), float("inf"), True
    check(fn, x, torch.randn(length), torch.randn(length), mask, rtol=1e-5, atol=1e-5)
    assert ("ld_rows" in kernels_of(lambda x: x.softmax(-1), x)) == (length < 65)


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool],
)
def test_dtypes(dtype):
    def fn(x):
        rows = x.reshape(ROWS, 12)
        results = [rows.amax(-1), rows.any(-1), rows.sum(-1)]
        if dtype.is_floating_point:
            results += [rows.softmax(-1), rows - rows.amin(-1, keepdim=True)]
        elif dtype != torch.bool:
            results += [rows // rows.amax(-1, keepdim=True).clamp(min=1), *rows.max(-1)]
        return results

    x = (torch.randn(ROWS * 12) * 3).abs().to(dtype)
    low = {"rtol": 1e-2, "atol": 1e-2} if dtype.itemsize == 2 else {}
    check(fn, x, **low)
    assert "ld_rows" in kernels_of(fn, x)


def test_strides():
    def fn(apart, turned, shared, overlapping):
        return (
            apart[:, :9].softmax(-1),
            turned.t().log_softmax(-1),
            (apart[:, 3:12] + shared).softmax(-1),
            overlapping.unfold(0, 9, 4).softmax(-1),
            apart.flip(0)[:, :9].softmax(-1),
        )

    args = torch.randn(ROWS, 20), torch.randn(9, ROWS), torch.randn(9), torch.randn(400)
    check(fn, *args, rtol=1e-5, atol=1e-6)


def test_written_in_place():
    def fn(x, y):
        x.copy_(x.softmax(-1))
        y.sub_(y.mean(-1, keepdim=True)).div_(y.std(-1, keepdim=True))
        return (x @ x.t()).softmax(-1)[:, :8]

    check(fn, torch.randn(ROWS, 10), torch.randn(ROWS, 20), rtol=1e-5, atol=1e-5)


def test_transposed_copy_beyond_the_caches():
    def fn(x):
        return (x.t() + 1).contiguous()

    x = torch.empty(3100, 1050).uniform_()
    check(fn, x, rtol=0, atol=0)
    assert "prefetch(" in kernels_of(fn, x)
    assert "prefetch(" not in kernels_of(fn, x[:310])
