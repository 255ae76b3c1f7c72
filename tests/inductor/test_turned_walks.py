"""Reductions whose lanes are columns, with memory that lies along the rows: N x N elements of it
are turned inside of a walk.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import check, compiled

import minidynamo
from minidynamo import events

CL = torch.channels_last
# Several vectors, parts of one, rows shorter than a block.
SHAPES = [
    (2, 16, 8, 8),
    (3, 17, 7, 9),
    (1, 40, 33, 5),
    (4, 70, 1, 37),
    (2, 33, 3, 1),
    (2, 3, 9, 9),
]


def kernels_of(fn, *args):
    found = []
    with events.subscribe(found.append, events.KernelEvent):
        compiled(fn, *args)
    return "".join(event.source for event in found)


def last_to_first(shape, dtype=torch.float32):
    return (torch.randn(shape) * 3).to(dtype).to(memory_format=CL)


def test_blocks_are_turned():
    def centred(x):
        return (x - x.mean((2, 3), keepdim=True)).contiguous()

    x = last_to_first((2, 64, 9, 9))
    assert "st_block" in kernels_of(centred, x)
    assert "st_block" not in kernels_of(centred, last_to_first((2, 3, 9, 9)))
    scaled = kernels_of(
        lambda x, y: (x - x.mean((0, 2, 3), keepdim=True)) * y, x, x.contiguous()
    )
    assert "ld_block" in scaled


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_shapes_and_dtypes(shape, dtype):
    def fn(x, y):
        wide = x.float()
        rows = wide - wide.mean((0, 2, 3), keepdim=True)
        planes = wide.amax((2, 3), keepdim=True)
        return (
            (rows * y).contiguous().to(dtype),
            (wide == planes).contiguous(),
            F.instance_norm(wide) if shape[2] * shape[3] > 3 else rows,
            y.transpose(1, 3).softmax(1).contiguous(),
            (wide.transpose(-1, -2) + y.transpose(-1, -2)).log_softmax(-1),
        )

    low = {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-5}
    check(fn, last_to_first(shape, dtype), torch.randn(shape).to(dtype), **low)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_whole_numbers(dtype):
    def fn(x):
        return (
            (x.amax((0, 2, 3), keepdim=True) == x).contiguous(),
            (x.long() - x.sum((2, 3), keepdim=True)).contiguous(),
            x.any(2, keepdim=True).logical_or(x).contiguous(),
        )

    check(fn, (torch.randn(3, 33, 9, 8).abs() * 5).to(dtype).to(memory_format=CL))


def test_nan_and_infinity():
    def fn(x):
        rows = x.flatten(2)
        return (
            (x - x.amax((0, 2, 3), keepdim=True)).contiguous(),
            rows.softmax(-1).contiguous(),
            rows.contiguous() - rows.amin(-1, keepdim=True),
        )

    x = last_to_first((2, 37, 9, 7))
    x[0, 0, 0, 0], x[1, 36, 8, 6], x[0, 20, 5] = float("nan"), float("inf"), float("-inf")
    check(fn, x, rtol=1e-5, atol=1e-5)


def test_parts_of_memory_are_written():
    def fn(x, apart, inside):
        rows = x - x.mean((0, 2, 3), keepdim=True)
        apart[..., ::2].copy_(rows)
        inside[:, :, 1:, 2:-1].copy_(rows)
        return apart.sum(), inside.sum()

    x = last_to_first((3, 21, 6, 11))
    check(fn, x, torch.zeros(3, 21, 6, 22), torch.zeros(3, 21, 7, 14), rtol=1e-4, atol=1e-4)


def test_scans_and_symbolic_sizes():
    def fn(x, y):
        return (
            x.flatten(2).cumsum(-1),
            (x.transpose(-1, -2) + y.transpose(-1, -2)).softmax(-1),
            (x - x.mean((2, 3), keepdim=True)).contiguous(),
        )

    run = minidynamo.compile(fn, dynamic=True, fullgraph=True)
    for shape in [(2, 20, 8, 9), (3, 41, 10, 3), (2, 17, 2, 2)]:
        args = last_to_first(shape), torch.randn(shape)
        torch.testing.assert_close(run(*args), fn(*args), rtol=1e-4, atol=1e-5)


ROWS = [(8, 8), (9, 17), (33, 40), (70, 130), (12, 3), (3, 50)]


@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8]
)
def test_running_sums_of_rows(shape, dtype):
    def fn(x):
        wide = x.double()
        back = x.flip(-1).cumsum(-1).flip(-1)
        halves = F.pad(x, (2, 3)).cumsum(-1), x[:, 1:].cumsum(-1), x[:, ::2].cumsum(-1)
        turned = x.t().cumsum(-1), x.t().cumsum(0), x[None].expand(3, -1, -1).cumsum(-1)
        return wide.tanh().cumprod(-1), wide.exp().cumsum(-1), back, *halves, *turned

    low = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    check(fn, (torch.randn(shape) * 2).abs().to(dtype), **low)
    if shape == (70, 130) and dtype.is_floating_point:
        x = torch.randn(shape).to(dtype)
        assert "ld_block" in kernels_of(lambda x: x.cumsum(-1), x)
        assert "ld_block" in kernels_of(lambda x: x.flip(-1).cumsum(-1), x)


@pytest.mark.parametrize("shape", ROWS)
def test_running_sums_of_what_is_not_finite(shape):
    def fn(x):
        back = x.flip(-1)
        return (
            x.cumsum(-1),
            torch.logcumsumexp(x, -1),
            torch.logcumsumexp(back, -1).flip(-1),
            back.softmax(-1),
            back - x.amax(-1, keepdim=True),
            *x.cummax(-1),
            *back.cummin(-1),
        )

    x = torch.randn(shape)
    x[0, 2], x[1, 1], x[2, 0] = float("nan"), float("inf"), float("-inf")
    check(fn, x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 40, 5, 7), (1, 96, 4, 4), (3, 17, 1, 9), (2, 8, 3, 3)])
def test_norms_of_what_is_not_innermost(shape):
    def fn(x, y, w, b):
        rows = x.permute(0, 2, 3, 1)
        normed = F.layer_norm(rows, (shape[1],), w, b)
        both = F.layer_norm(rows + y.permute(0, 2, 3, 1), (shape[1],), w, b)
        return (
            normed,
            normed.permute(0, 3, 1, 2).contiguous(),
            both,
            F.rms_norm(rows, (shape[1],), w),
        )

    x, y, w, b = (
        torch.randn(shape),
        torch.randn(shape),
        torch.randn(shape[1]),
        torch.randn(shape[1]),
    )
    x[0, 0, 0, 0], x[0, 1, 0, 1] = float("nan"), float("inf")
    check(fn, x, y, w, b, rtol=1e-4, atol=1e-5)


def test_norms_read_what_is_not_innermost_once():
    def fn(x, w):
        return F.layer_norm(x.permute(0, 2, 3, 1), (96,), w)

    args = torch.randn(2, 96, 9, 9), torch.randn(96)
    check(fn, *args, kernels=1, rtol=1e-4, atol=1e-5)
    assert "st_block" in kernels_of(fn, *args)


def test_batch_norm_behind_a_convolution():
    plain = torch.nn.Sequential(
        torch.nn.Conv2d(3, 20, 3), torch.nn.BatchNorm2d(20), torch.nn.ReLU()
    )
    model = copy.deepcopy(plain)
    run, x = minidynamo.compile(model, fullgraph=True), torch.randn(2, 3, 15, 14)
    with torch.no_grad():
        torch.testing.assert_close(run(x), plain(x), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("fn", "moves"),
    [
        (lambda x: (-x).cumsum(-1), "ld_block"),
        (lambda x: x.abs().cumprod(-1) * 2, "st_block"),
        (lambda x: x.transpose(0, 1).contiguous() * 2, "ld_turned"),
        (lambda x: x[:, : x.shape[1] - 1].cumsum(-1), "ld_block"),
    ],
)
def test_rows_of_symbolic_lengths(fn, moves, dtype):
    found = []
    call = minidynamo.compile(fn, dynamic=True, fullgraph=True)
    with events.subscribe(found.append, events.KernelEvent):
        for rows, length in ((40, 50), (3, 7), (70, 2), (2, 300), (17, 16)):
            x = torch.randn(rows, length).to(dtype)
            torch.testing.assert_close(call(x), fn(x))
    assert moves in "".join(event.source for event in found)
