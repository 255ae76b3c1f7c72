"""Attention biases (`torch.nn.attention.bias`), and what they ask torch for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from testing import CountingBackend
from torch.backends.cuda import (
    SDPAParams,
    can_use_cudnn_attention,
    can_use_efficient_attention,
    can_use_flash_attention,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import CausalBias, causal_lower_right, causal_upper_left

import minidynamo

# It looks for a GPU in eager, too, if torch was built for them.
CUDNN = (
    (can_use_cudnn_attention,) if torch.cuda.is_available() or not torch.version.cuda else ()
)


def heads(n_queries, n_keys=8, seed=0):
    torch.manual_seed(seed)
    sizes = n_queries, n_keys, n_keys
    return tuple(torch.randn(1, 2, n, 8, requires_grad=True) for n in sizes)


def lower_right(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, causal_lower_right(q.shape[2], k.shape[2]))


def upper_left(q, k, v):
    mask = causal_upper_left(q.size(2), k.size(2))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask) * 2


@pytest.mark.parametrize("fn", [lower_right, upper_left])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_made_inside(fn, backend, dynamic):
    counter = CountingBackend()
    used = counter if backend == "eager" else backend
    compiled = minidynamo.compile(fn, backend=used, fullgraph=True, dynamic=dynamic)
    for n in (4, 4, 5, 6, 7):
        seen = []
        for call in (fn, compiled):
            given = heads(n)
            result = call(*given)
            result.square().sum().backward()
            seen.append([result, *(x.grad for x in given)])
        for want, got in zip(*seen, strict=True):
            torch.testing.assert_close(got, want)
    if backend == "eager":
        assert len(counter.graphs) == {None: 2, True: 1, False: 4}[dynamic]


@pytest.mark.parametrize("make", [causal_lower_right, causal_upper_left])
def test_given(make):
    counter = CountingBackend()
    fn = lambda bias, q, k, v: F.scaled_dot_product_attention(q, k, v, bias) + 1  # noqa: E731
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for n in (4, 4, 3):
        given = heads(n)
        torch.testing.assert_close(compiled(make(n, 8), *given), fn(make(n, 8), *given))
    other = causal_upper_left if make is causal_lower_right else causal_lower_right
    given = heads(4)
    graphs = len(counter.graphs)
    torch.testing.assert_close(compiled(other(4, 8), *given), fn(other(4, 8), *given))
    assert len(counter.graphs) == graphs + 1


def test_returned():
    def fn(x):
        bias = causal_lower_right(2, 3)
        bias.note = [x + 1]
        return bias

    bias = minidynamo.compile(fn, backend="eager", fullgraph=True)(torch.ones(2))
    assert type(bias) is CausalBias and (bias.seq_len_q, bias.seq_len_kv) == (2, 3)
    assert bias.shape == causal_lower_right(2, 3).shape
    assert bias.note[0].tolist() == [2, 2]
    assert repr(bias) == repr(causal_lower_right(2, 3))


def test_refused_with_is_causal():
    def fn(q, k, v):
        bias = causal_upper_left(4, 8)
        try:
            return F.scaled_dot_product_attention(q, k, v, bias, is_causal=True)
        except ValueError as error:
            return q * 2, str(error)

    given = heads(4)
    want, text = fn(*given)
    got, found = minidynamo.compile(fn, backend="eager", fullgraph=True)(*given)
    torch.testing.assert_close(got, want)
    assert text == found


def test_parameters_of_attention():
    def fn(q, k, v):
        params = SDPAParams(q, k, v, None, 0.25, False, False)
        answers = [
            can_use_flash_attention(params),
            can_use_efficient_attention(params, False),
            *(ask(params, debug=False) for ask in CUDNN),
        ]
        q = q * 2 if any(answers) else q * 3
        return q + params.dropout, params.key * 2, params.is_causal, params.attn_mask

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    given = heads(4)
    for want, got in zip(fn(*given), compiled(*given), strict=True):
        torch.testing.assert_close(got, want) if isinstance(want, torch.Tensor) else None
        assert type(got) is type(want)
    with sdpa_kernel(SDPBackend.MATH):
        compiled(*given)
    assert len(counter.graphs) == 2
    compiled(*given)
    assert len(counter.graphs) == 2


def test_parameters_across_a_break():
    def fn(q, k, v):
        params = SDPAParams(q * 2, k, v, None, 0.0, True, False)
        minidynamo.graph_break()
        return params.query + 1, params.is_causal, can_use_flash_attention(params)

    given = heads(4)
    want, got = fn(*given), minidynamo.compile(fn, backend="eager")(*given)
    torch.testing.assert_close(got[0], want[0])
    assert got[1:] == want[1:]


class Sized(torch.Tensor):
    def __init__(self, *sizes):
        super().__init__()
        self.note = len(sizes)


def test_a_subclass_is_made_of_sizes():
    def fn(x):
        made = Sized(2, 3)
        return made, (made * 0 + x).nan_to_num(0, 0, 0), made.note

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    made, total, note = compiled(torch.ones(3))
    assert type(made) is Sized and made.shape == (2, 3) and made.note == note == 2
    assert type(total) is Sized and total.shape == (2, 3)
    compiled(torch.ones(1))
    assert len(counter.graphs) == 2
