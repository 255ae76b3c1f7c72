"""Margin losses whose targets end early, repeat or lack a batch, with infinities and NaN."""

import math

import pytest
import torch
import torch.nn.functional as F

import minidynamo

TARGETS = torch.tensor([[3, 0, -1, 2], [1, 1, -1, -1], [-1, 0, 1, 2], [2, 0, 3, 1]])


def losses(x, classes):
    found = []
    for reduction in ("none", "mean", "sum"):
        found.append(F.multilabel_margin_loss(x, TARGETS, reduction=reduction))
        found.append(F.multi_margin_loss(x, classes, p=2, reduction=reduction))
    found.append(F.multilabel_margin_loss(x[0], TARGETS[0], reduction="none"))
    found.append(F.multi_margin_loss(x[0], classes[0], reduction="none"))
    weight = x[3].detach().abs()
    found.append(F.multi_margin_loss(x[0], classes[:1], weight=weight, reduction="none"))
    return found


def given(with_gradient, special):
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    if special:
        x[0, 1], x[1, 2], x[2, 0] = math.inf, math.nan, -math.inf
    return x.requires_grad_(with_gradient), torch.tensor([1, 0, 3, 2])


@pytest.mark.parametrize(
    ("with_gradient", "dynamic", "special"),
    [(False, None, True), (False, True, False), (True, None, False), (True, True, True)],
)
def test_as_in_eager(with_gradient, dynamic, special):
    compiled = minidynamo.compile(losses, fullgraph=True, dynamic=dynamic)
    mine, theirs = given(with_gradient, special), given(with_gradient, special)
    actual, expected = compiled(*mine), losses(*theirs)
    torch.testing.assert_close(actual, expected, equal_nan=True)
    if with_gradient:
        sum(loss.sum() for loss in actual).backward()
        sum(loss.sum() for loss in expected).backward()
        torch.testing.assert_close(mine[0].grad, theirs[0].grad, equal_nan=True)


def test_sizes_that_do_not_fit():
    def call(x, target):
        return F.multilabel_margin_loss(x, target)

    for function in (call, minidynamo.compile(call)):
        with pytest.raises(RuntimeError, match="inconsistent target size"):
            function(torch.ones(2, 3), torch.zeros(2, 2, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.float32])
def test_one_step_from_a_tensor(dtype):
    """It is copied from a 0-d tensor of another dtype to a row of one."""

    def row(start):
        return torch.linspace(start, 4, 1, dtype=dtype)

    start = torch.tensor(3.0)
    torch.testing.assert_close(minidynamo.compile(row)(start), row(start))
