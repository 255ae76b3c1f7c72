"""Attention that is written out: what becomes the fused operator, and that results are eager's."""

import math

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import check, compiled

from minidynamo import events
from minidynamo.inductor.passes import attention, narrow_products

CLOSE = {"rtol": 1e-4, "atol": 2e-5}


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    monkeypatch.setattr(attention, "LEAST_SCORES", 1)
    monkeypatch.setattr(attention, "LEAST_QUERIES", 1)


def is_fused(fn, *args):
    """Whether the plan calls the fused operator; the results are held to eager's."""
    texts = []
    with events.subscribe(lambda event: texts.append(event.text), events.OutputCodeEvent):
        check(fn, *args, **CLOSE)
    return any("attention" in text for text in texts)


def heads(*size):
    return torch.randn(size or (2, 4, 24, 16))


def scaled(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) @ v


def flat(q, k, v):
    q, k, v = (t.reshape(8, 24, 16) for t in (q * 0.25, k, v))
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), -1), v)


def summed(q, k, v):
    weights = torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) / 4, -1)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v)


def grouped(q, k, v):
    k, v = (t[:, :2, None].expand(2, 2, 2, 24, 16).reshape(2, 4, 24, 16) for t in (k, v))
    return torch.softmax(q @ k.mT, -1) @ v


@pytest.mark.parametrize("fn", [scaled, flat, summed, grouped])
def test_spellings(fn):
    assert is_fused(fn, heads(), heads(), heads())


def test_operands_of_any_strides():
    turned = heads(2, 24, 4, 16).transpose(1, 2), heads(2, 4, 16, 24).mT
    assert is_fused(scaled, *turned, heads(4, 2, 24, 16).transpose(0, 1))
    assert is_fused(scaled, turned[1], turned[0], turned[1])


def test_of_projections():
    def block(x, w):
        q, k, v = (t.view(2, 24, 4, 16).transpose(1, 2) for t in (x @ w).chunk(3, -1))
        weights = F.softmax(torch.matmul(q, k.transpose(2, 3)) / math.sqrt(16), dim=-1)
        return torch.matmul(weights, v).transpose(1, 2).contiguous().reshape(2, 24, 64)

    assert is_fused(block, torch.randn(2, 24, 64), torch.randn(64, 192) / 8)


MASKS = [(24, 24), (24,), (1, 1), (24, 1), (2, 1, 1, 24), (1, 4, 24, 24), (2, 1, 24, 1)]


@pytest.mark.parametrize("size", MASKS, ids=str)
@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan, torch.finfo().min, 3.0])
def test_masks(size, value):
    def masked(q, k, v, m):
        return torch.softmax(q @ k.mT / 4 + m, -1) @ v

    mask = torch.randn(size)
    mask[..., : size[-1] // 2] = value
    assert is_fused(masked, heads(), heads(), heads(), mask)
    mask.flatten()[: size[-1]] = value  # a whole row
    assert is_fused(masked, heads(), heads(), heads(), mask)
    assert is_fused(masked, heads(), heads(), heads(), mask.expand(2, 4, 24, 24))


def test_two_masks():
    def masked(q, k, v, m, n):
        return torch.softmax(m.exp() + (q @ k.mT / 4 + n), -1) @ v

    assert is_fused(
        masked, heads(), heads(), heads(), torch.randn(24, 1), torch.randn(2, 1, 1, 24)
    )


def test_a_mask_of_heads_where_the_softmax_has_none():
    def masked(q, k, v, m):
        q, k, v = (t.reshape(8, 24, 16) for t in (q, k, v))
        scores = torch.bmm(q, k.mT).view(2, 4, 24, 24) + m
        return torch.bmm(torch.softmax(scores.view(8, 24, 24), -1), v)

    mask = torch.zeros(2, 1, 24, 24)
    mask[1, 0, 3] = -math.inf
    assert is_fused(masked, heads(), heads(), heads(), mask)


def test_a_mask_of_flat_scores():
    def masked(q, k, v, m):
        return torch.bmm(torch.softmax(torch.bmm(q, k.mT) + m, -1), v)

    rows = [torch.randn(8, 24, 16) for _ in range(3)]
    mask = torch.zeros(8, 24, 24)
    mask[2, 5] = -math.inf
    assert is_fused(masked, *rows, mask)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_values_that_are_not_finite(value):
    q, k, v = heads(), heads(), heads()
    v[0, 1, 2, 3] = value
    assert is_fused(scaled, q, k, v)
    k[1, 2, 3, 4] = value
    assert is_fused(scaled, q, k, v)


def kept(q, k, v):
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights


def causal(value):
    hidden = torch.ones(24, 24).tril() == 0
    return lambda q, k, v: torch.softmax((q @ k.mT / 4).masked_fill(hidden, value), -1) @ v


def chosen(q, k, v, m, value=-math.inf):
    return torch.softmax(torch.where(m, q @ k.mT / 4, value), -1) @ v


def filled(q, k, v, m):
    fill = torch.full([], torch.finfo().min)
    return torch.softmax(torch.where(m, fill, q @ k.mT / 4), -1) @ v


def both(q, k, v, m):
    scores = (q @ k.mT / 4 + k[:, :1, :, 0][:, :, None]).masked_fill(m, -math.inf)
    return F.dropout(torch.softmax(scores, -1), 0.1, training=False) @ v


HIDING = [*map(causal, (-math.inf, -1e9, -1e4, -3.0, 0.0)), chosen, filled, both]


@pytest.mark.parametrize("number", range(len(HIDING)))
def test_masks_that_replace_scores(number):
    fn = HIDING[number]
    given = [heads(), heads(), heads()]
    if fn in (chosen, filled, both):
        mask = torch.rand(2, 1, 24, 24) > 0.3
        mask[0, 0, 3], mask[1, 0, 5] = True, False  # some rows are hidden altogether
        given.append(mask)
    assert is_fused(fn, *given)
    given[0][0, 1, 2, 3] = math.inf
    given[1][1, 2, 20:] = math.nan
    assert is_fused(fn, *given)


@pytest.mark.parametrize("sign", [1, -1])
def test_scores_that_are_infinite_without_a_mask(sign):
    q, k, v = heads(), heads().abs(), heads()
    q[0, 1, 2] = sign * math.inf  # a row of -inf or inf
    q[1, 0, 3], k[1] = sign * 3e30, k[1] * 1e20
    assert is_fused(scaled, q, k, v)


UNLIKE = {
    "weights are read": kept,
    "along queries": lambda q, k, v: torch.softmax(q @ k.mT, -2) @ v,
    "turned": lambda q, k, v: torch.softmax((q @ k.mT).mT, -1) @ v,
    "scaled after the mask": lambda q, k, v: torch.softmax((q @ k.mT + v[..., :1]) * 2, -1) @ v,
    "negative scale": lambda q, k, v: torch.softmax(q @ k.mT * -1, -1) @ v,
    "other width": lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v[..., :8],
    "filled before the bias": lambda q, k, v: (
        torch.softmax((q @ k.mT).masked_fill(v[..., :1] > 0, -1e9) + v[..., 1:2], -1) @ v
    ),
    "filled, then scaled": lambda q, k, v: (
        torch.softmax((q @ k.mT).masked_fill(v[..., :1] > 0, -1e9) / 2, -1) @ v
    ),
    "a product with itself": lambda q, k, v: torch.softmax(q @ k.mT, -1) @ (q @ k.mT),
    "double": lambda q, k, v: torch.softmax(q.double() @ k.mT.double(), -1) @ v.double(),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_is_no_attention_stays(name):
    assert not is_fused(UNLIKE[name], heads(), heads(), heads())


def test_training_keeps_its_weights():
    tensors = [heads().requires_grad_() for _ in range(3)]
    (result,) = compiled(scaled, *tensors)(*tensors)
    expected = scaled(*tensors)
    torch.testing.assert_close(result, expected, **CLOSE)
    cotangent = torch.randn_like(expected)
    for left, right in zip(
        torch.autograd.grad(result, tensors, cotangent),
        torch.autograd.grad(expected, tensors, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(left, right, **CLOSE)


def test_the_operator_gets_rows_without_gaps():
    def turned(q, k, v, m):
        q, k, v, m = (t.transpose(-1, -2).contiguous() for t in (q, k, v, m))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m)

    sources = [heads(2, 4, 16, 24) for _ in range(3)]
    assert is_fused(turned, *sources, torch.randn(2, 4, 24, 24))


@pytest.fixture
def without_instructions(monkeypatch):
    monkeypatch.setattr(narrow_products, "has_instructions", lambda dtype: False)
    monkeypatch.setattr(narrow_products, "LOOP_RATE", 1e-3)
    monkeypatch.setattr(narrow_products, "SUM_RATE", 1e-3)


def weighted_in_float32(q, k, v):
    weights = q @ k.transpose(-2, -1) * 0.125
    return torch.softmax(weights, -1, dtype=torch.float32).to(q.dtype) @ v


def masked_narrow(q, k, v):
    mask = torch.full((24, 24), -math.inf, dtype=q.dtype).triu(1)
    return torch.softmax(q @ k.mT / 4 + mask, -1) @ v


@pytest.mark.parametrize("fn", [scaled, weighted_in_float32, masked_narrow])
def test_widened(without_instructions, fn):
    """bfloat16 where its products are computed in float32; float16 may overflow in between."""
    q, k, v = (heads() for _ in range(3))
    for dtype, expected in ((torch.bfloat16, True), (torch.float16, False)):
        args = [t.to(dtype) for t in (q, k, v)]
        texts = []
        with events.subscribe(lambda e, t=texts: t.append(e.text), events.OutputCodeEvent):
            (ours,) = compiled(fn, *args)(*args)
        assert any("attention" in text for text in texts) == expected
        exact, eager = fn(*(t.double() for t in args)), fn(*args)
        assert ours.dtype == dtype and ours.stride() == eager.stride()
        error, theirs = ((x.double() - exact).abs().max() for x in (ours, eager))
        assert error <= theirs + torch.finfo(dtype).eps * exact.abs().max()


def test_roundings_of_the_program_stay():
    def weights(q, k, v):
        return torch.softmax(q @ k.mT, -1).bfloat16().float() @ v

    def scores(q, k, v):
        return torch.softmax((q @ k.mT).bfloat16().float(), -1) @ v

    def query(q, k, v):
        return torch.softmax(q.bfloat16().float() @ k.mT, -1) @ v

    texts = []
    args = heads(), heads(), heads()
    for fn in weights, scores:
        with events.subscribe(texts.append, events.OutputCodeEvent):
            actual = compiled(fn, *args)(*args)[0]
        # A last bit of an exponential may turn one rounding, which a row of the result shows.
        off = ~torch.isclose(actual, fn(*args), **CLOSE)
        assert off.sum() <= 64
    assert texts and not any("attention" in event.text for event in texts)
    assert is_fused(query, *args)
