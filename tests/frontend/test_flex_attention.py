"""flex_attention in a graph, and scan along any dimension and in training."""

from __future__ import annotations

import pytest
import torch
from testing import CountingBackend, check
from torch._higher_order_ops.scan import scan
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import minidynamo

torch.manual_seed(0)
Q, K, V = torch.randn(2, 4, 16, 8), torch.randn(2, 4, 16, 8), torch.randn(2, 4, 16, 8)
FEW = torch.randn(2, 2, 16, 8)
TABLE, BIAS = torch.randn(2, 4), torch.randn(4)
DOCUMENTS = torch.arange(16) // 6


def causal(b, h, q, k):
    return q >= k


def nothing(b, h, q, k):
    return q > 100


def same_document(b, h, q, k):
    return DOCUMENTS[q] == DOCUMENTS[k]


def masked(function):
    return create_block_mask(function, 1, 1, 16, 16, device="cpu", BLOCK_SIZE=16)


CAUSAL, NOTHING, DOCUMENT = masked(causal), masked(nothing), masked(same_document)


def plain(q, k, v):
    return flex_attention(q, k, v) * 2


def relative(q, k, v):
    def score_mod(score, b, h, q_index, k_index):
        return score + (q_index - k_index) * 0.1 + TABLE[b, h] + TABLE[b][h]

    return flex_attention(q, k, v, score_mod=score_mod)


def blocks(q, k, v):
    return flex_attention(q, k, v, block_mask=CAUSAL, scale=0.3), q + 1


def documents(q, k, v):
    def capped(score, b, h, q_index, k_index):
        return 5 * torch.tanh(score / 5) * BIAS[h]

    return flex_attention(q, k, v, score_mod=capped, block_mask=DOCUMENT)


def empty_rows(q, k, v):
    return flex_attention(q, k, v, block_mask=NOTHING, return_lse=True)


@pytest.mark.parametrize("fn", [plain, relative, blocks, documents, empty_rows])
def test_attention(fn):
    check(fn, Q, K, V, graphs=1, fullgraph=True)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (2, 0, 1, 3), (0, 1, 3, 2)])
def test_the_result_is_laid_out_as_the_queries(order):
    def fn(q, k, v):
        out = flex_attention(*(x.permute(order) for x in (q, k, v)))
        return out.transpose(1, 2).flatten(2), out.stride()

    q, k, v = torch.randn(3, 2, 4, 8, 16)
    actual, expected = minidynamo.compile(fn, fullgraph=True)(q, k, v), fn(q, k, v)
    assert actual[1] == expected[1]
    torch.testing.assert_close(actual[0], expected[0])


def test_attention_with_fewer_heads_and_other_backends():
    def fn(q, k, v):
        return flex_attention(q, k, v, block_mask=CAUSAL, enable_gqa=True)

    check(fn, Q.bfloat16().float(), FEW, FEW, graphs=1)
    compiled = minidynamo.compile(relative, backend="inductor", fullgraph=True)
    torch.testing.assert_close(compiled(Q, K, V), relative(Q, K, V))


def test_attention_itself_and_what_its_functions_look_at():
    counter = CountingBackend()
    compiled = minidynamo.compile(flex_attention, backend=counter, fullgraph=True)
    bias = torch.zeros(4)

    def first(score, b, h, q_index, k_index):
        return score + bias[h]

    def second(score, b, h, q_index, k_index):
        return score * bias[h]

    for function, value in ((first, 0.0), (first, 2.0), (second, 3.0)):
        bias[1] = value
        expected = flex_attention(Q, K, V, score_mod=function)
        torch.testing.assert_close(compiled(Q, K, V, score_mod=function), expected)
    assert len(counter.graphs) == 2


# -- scan ------------------------------------------------------------------------------------------

X = torch.arange(12.0).reshape(3, 4)


def step(carry, item):
    return torch.tanh(carry + item), carry * item


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("reverse", [False, True])
def test_scan_along_a_dimension(dim, reverse):
    def fn(x):
        return scan(step, x.select(dim, 0).clone(), x, dim=dim, reverse=reverse)

    check(fn, X, graphs=1, fullgraph=True)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_scan_in_training(backend):
    def fn(x, w, start):
        def weighted(carry, item):
            return torch.tanh(carry * w + item), carry * item

        last, all_ = scan(weighted, start, x, dim=1, reverse=True)
        return last.sum() + all_.square().sum(), all_.requires_grad

    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    found = []
    for call in (fn, compiled):
        leaves = [t.clone().requires_grad_() for t in (X / 12, X[:, 0], X[:, 1])]
        loss, needs_grad = call(*leaves)
        loss.backward()
        found.append([loss.detach(), needs_grad, *(leaf.grad for leaf in leaves)])
    torch.testing.assert_close(found[1], found[0])


def test_scan_with_a_carried_integer_in_training():
    def fn(x):
        start = (x[0], torch.zeros((), dtype=torch.long))
        return scan(lambda c, v: ((c[0] * v, c[1] + 1), c[0] + v), start, x)

    with torch.no_grad():
        compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
        (product, count), sums = compiled(X.clone().requires_grad_())
    before = torch.stack([X[0], X[0] * X[0], X[0] * X[0] * X[1]])
    torch.testing.assert_close(product, X[0] * X.prod(0))
    torch.testing.assert_close(sums, before + X)
    assert count == 3
