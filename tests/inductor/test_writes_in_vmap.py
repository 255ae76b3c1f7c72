"""Functions that write to their values are compiled inside of `vmap`, flex attention among them."""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import minidynamo
from minidynamo.inductor import metrics


def parts(row, place):
    y = row * 2
    y[1] = 5.0
    y.add_(row)
    return y


def places(row, place):
    y = row.clone()
    y[place] = 1.0
    return y.sin()


def inputs(row, place):
    row.mul_(2)
    return row + 1


def shifted(row, place):
    y = row * 2
    y[1:] = y[:-1]
    return y


@pytest.mark.parametrize(
    ("fn", "is_compiled"), [(parts, True), (places, True), (inputs, True), (shifted, False)]
)
def test_writes(fn, is_compiled):
    def run(x, at):
        return torch.vmap(fn)(x, at)

    x, at = torch.randn(4, 5), torch.tensor([0, 3, 1, 1])
    y = x.clone()
    metrics.reset()
    torch.testing.assert_close(minidynamo.compile(run, fullgraph=True)(y, at), run(x, at))
    torch.testing.assert_close(y, x)
    assert metrics.uncompiled_graphs == (not is_compiled)


def test_flex_attention_without_a_block_mask():
    def run(q, k, v, bias):
        def score_mod(score, batch, head, i, j):
            return torch.where(i >= j, score + bias[head, i], -float("inf"))

        return flex_attention(q, k, v, score_mod=score_mod) * 2

    q, k, v = torch.randn(3, 1, 2, 32, 16)
    bias = torch.randn(2, 32)
    metrics.reset()
    actual = minidynamo.compile(run)(q, k, v, bias)
    torch.testing.assert_close(actual, run(q, k, v, bias))
    assert metrics.uncompiled_graphs == 0
    assert metrics.compiled_graphs == 1
