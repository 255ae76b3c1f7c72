"""Graphs with symbolic floats and data-dependent sizes are compiled in pieces."""

import pytest
import torch

import minidynamo
from minidynamo import config
from minidynamo.inductor import metrics

FLOATS = [0.5, 0.7, -1.5, 0.9]


@pytest.fixture(autouse=True)
def capturing():
    minidynamo.reset()
    metrics.reset()
    with config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


def check(fn, *calls, graphs):
    """Same values and dtypes as eager for each call; compiled `graphs` times, in full."""
    compiled = minidynamo.compile(fn, fullgraph=True)
    for args in calls:
        torch.testing.assert_close(compiled(*args), fn(*args))
    assert metrics.compiled_graphs == graphs
    assert metrics.uncompiled_graphs == 0


FLOAT_PROGRAMS = {
    "product": lambda x, s: (x.sin() * s + 1).relu() - s,
    "arithmetic": lambda x, s: x * (s * 2 + 1) / (s + 3),
    "returned": lambda x, s: (x * s, s * 2),
    "of integers": lambda x, s: x.long() * s,
    "without dimensions": lambda x, s: x.sum().bfloat16() * s,
    "of doubles": lambda x, s: x.double() / s,
    "power": lambda x, s: (x.abs() + 1) ** s,
    "bound": lambda x, s: torch.clamp(x.cos(), max=s) * 2,
    "filled": lambda x, s: torch.full((3, 4), s) + x.sum(),
    "compared": lambda x, s: (x > s).float() + (x.bfloat16() < s),
    "branch": lambda x, s: x + s if s > -10 else x - s,
}


@pytest.mark.parametrize("name", FLOAT_PROGRAMS)
def test_symbolic_floats(name):
    x = torch.randn(6, 8)
    check(FLOAT_PROGRAMS[name], *((x, s) for s in FLOATS), graphs=2)


def test_operators_that_take_a_symbolic_float_are_fused():
    x = torch.randn(6, 8)
    check(lambda x, s: ((x * s).sin() + s).relu(), *((x, s) for s in FLOATS), graphs=2)
    assert metrics.kernel_calls == 2  # one a graph


def test_division_by_a_symbolic_zero_raises():
    compiled = minidynamo.compile(lambda x, s: x * (1 / s), fullgraph=True)
    x = torch.ones(3)
    for s in (2.0, 4.0, 5.0):
        torch.testing.assert_close(compiled(x, s), x / s)
    with pytest.raises(ZeroDivisionError):
        compiled(x, 0.0)


def test_gradients_with_symbolic_floats():
    def fn(x, s):
        return ((x * s).tanh() * x).sum()

    compiled = minidynamo.compile(fn, fullgraph=True)
    for s in FLOATS:
        a, b = (torch.linspace(-1, 1, 7, requires_grad=True) for _ in range(2))
        fn(a, s).backward()
        compiled(b, s).backward()
        torch.testing.assert_close(b.grad, a.grad)
    assert metrics.uncompiled_graphs == 0


def repeat(x):
    return torch.repeat_interleave(x, (x > 0).sum(1), dim=0).sin() * 2


def zeros(x):
    n = (x > 0).sum().item()
    torch._check(n >= 0)
    return torch.zeros(n, 3).cos() + x.sum()


def narrowed(x):
    n = (x[0] > 0).sum().item()
    torch._check(n >= 0)
    torch._check(n <= x.shape[0])
    return x[:n].sin().sum(0)


def numbers(x):
    a, b = (x > 0).sum(0)[:2].tolist()
    return x * a + b


def indexed(x):
    found = (x > 0).nonzero(as_tuple=True)
    return x[found].exp() * 2, found[0] + 1


DATA_PROGRAMS = {
    "nonzero": lambda x: (x.sin() > 0.1).nonzero() * 2 + 1,
    "columns of nonzero": indexed,
    "mask": lambda x: x.cos()[x > 0].exp().sum(),
    "masked_select": lambda x: torch.masked_select(x, x > 0).sin().cos(),
    "item": lambda x: x * x.sum().item() + 1,
    "integer item": lambda x: x * (x > 0).sum().item() + 1,
    "tolist": numbers,
    "unique": lambda x: torch.unique((x * 2).long()).float().sin(),
    "repeat_interleave": repeat,
    "factory": zeros,
    "slice": narrowed,
}


@pytest.mark.parametrize("name", DATA_PROGRAMS)
def test_sizes_that_depend_on_data(name):
    calls = [(torch.randn(9, 8),), (torch.randn(9, 8),), (torch.ones(9, 8),)]
    check(DATA_PROGRAMS[name], *calls, graphs=1)
    assert metrics.kernel_calls > 0


@pytest.mark.parametrize("dynamic", [None, True])
def test_results_unlike_their_fake_ones(dynamic):
    # Torch's fake kernel gives weighted counts the weights' dtype; of none, eager counts integers.
    def fn(x, weights):
        return torch.bincount(x, weights, 3)

    compiled = minidynamo.compile(fn, fullgraph=True, dynamic=dynamic)
    for x in (torch.tensor([], dtype=torch.int64), torch.tensor([1, 1, 4])):
        weights = torch.rand(len(x))
        result, expected = compiled(x, weights), fn(x, weights)
        assert result.dtype == expected.dtype and torch.equal(result, expected)


def test_a_bound_that_data_break_raises():
    compiled = minidynamo.compile(narrowed, fullgraph=True)
    compiled(torch.rand(9, 8) - 0.5)
    with pytest.raises(RuntimeError):
        compiled(torch.ones(3, 8).repeat(3, 1)[:, :8].repeat(1, 2))


def draws(x):
    a = torch.rand_like(x)
    chosen = x[a > 0.5]
    return torch.bernoulli(chosen.abs().clamp(max=1)) * 2 + 1, torch.rand_like(x) * 3 - x


def dropped(x):
    chosen = torch.nn.functional.dropout(x, 0.5)
    rows = chosen[chosen.sum(-1) > 0]
    return torch.nn.functional.dropout(rows * 2 + 1, 0.5), torch.randn(3) * 2 + 1


@pytest.mark.parametrize("fn, size", [(draws, (16,)), (dropped, (8, 4))])
def test_random_numbers_keep_their_order(fn, size):
    before = metrics.uncompiled_graphs
    compiled = minidynamo.compile(fn, fullgraph=True, options={"fallback_random": True})
    x = torch.rand(size)
    for seed in (3, 4):
        torch.manual_seed(seed)
        expected = fn(x)
        after = torch.rand(3)
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(x), expected)
        assert torch.equal(torch.rand(3), after)
    assert metrics.uncompiled_graphs == before and metrics.kernel_calls > 0


def added(x):
    chosen = x[x > 0]
    x.add_(1)
    return chosen * 2, x[x > 1]


def kept(x):
    total = x * 2 + 1
    chosen = x[x > 0] * 3
    x.mul_(chosen.sum())
    return total + 1, chosen, x * 2


def through_a_view(x):
    rows = x.view(3, 3)
    chosen = x[x > 0]
    rows[0] = chosen.sum()
    x.add_(1)
    return rows * 2, chosen * 2


@pytest.mark.parametrize("fn", [added, kept, through_a_view])
def test_writes_to_inputs_keep_their_order(fn):
    compiled = minidynamo.compile(fn, fullgraph=True)
    for first in (-1, -2):
        a, b = torch.linspace(first, 1, 9), torch.linspace(first, 1, 9)
        torch.testing.assert_close(compiled(a), fn(b))
        torch.testing.assert_close(a, b)


class Cache(torch.nn.Module):
    """Keys and values so far; `eps` is a symbolic float."""

    def __init__(self):
        super().__init__()
        self.eps = 1e-3
        self.keys = torch.nn.Buffer(torch.zeros(3, 12, 4))

    def forward(self, x, position):
        count, length = x.shape[:2]
        x = x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()
        self.keys[:count, position : position + length] = x
        return self.keys[:count, : position + length] @ x.transpose(1, 2)


@pytest.mark.parametrize("counts_gradients", [True, False])
def test_a_cache_that_is_written_in_part(counts_gradients):
    eager, ours = Cache(), Cache()
    compiled = minidynamo.compile(ours, dynamic=True, fullgraph=True)
    with torch.set_grad_enabled(counts_gradients):
        position = 0
        for length in (4, 3, 2):
            x = torch.randn(2, length, 4)
            torch.testing.assert_close(compiled(x, position), eager(x, position))
            torch.testing.assert_close(ours.keys, eager.keys)
            position += length
    assert metrics.uncompiled_graphs == 0


class Codebook(torch.nn.Module):
    """Moving averages, written behind reads of a transposed view."""

    def __init__(self):
        super().__init__()
        self.decay = 0.9
        self.codes = torch.nn.Buffer(torch.randn(5, 4, generator=torch.manual_seed(0)))

    def forward(self, x):
        nearest = (x @ self.codes.t()).argmax(1)
        found = self.codes[nearest]
        with torch.no_grad():
            self.codes.data.copy_(self.codes * self.decay + x.detach()[:5] * (1 - self.decay))
        return x + (found - x).detach(), ((found - x) ** 2).mean()


def test_a_buffer_written_behind_reads_of_a_view():
    eager, ours = Codebook(), Codebook()
    compiled = minidynamo.compile(ours, dynamic=True, fullgraph=True)
    for count in (6, 7):
        torch.manual_seed(count)
        found = []
        x = torch.randn(count, 4)
        for module in (eager, compiled):
            given = x.clone().requires_grad_()
            quantized, loss = module(given)
            (quantized.sum() + loss).backward()
            found.append((quantized, loss, given.grad))
        torch.testing.assert_close(found[1], found[0])
        torch.testing.assert_close(ours.codes, eager.codes)
    assert metrics.uncompiled_graphs == 0


def read_by_a_later_piece(x, y):
    part = x.t()
    places = (y * 2).nonzero()
    total = part * places.sum()
    x.mul_(3).add_(total.sum())
    return total + 1


def exchanged(x, y):
    old, new = x.t().sin(), y.t()
    places = (old * 2).nonzero()
    kept = new.clone()
    y.copy_(x.t() * places.sum())
    x.copy_(kept.t() * 2)
    return places * 2


def written_from_a_view(x, y):
    part = x.flip(0)
    places = (y * 2).nonzero()
    x.copy_(part + places.sum())
    return x.t() * 2


@pytest.mark.parametrize("fn", [read_by_a_later_piece, exchanged, written_from_a_view])
def test_views_of_what_is_written_last(fn):
    compiled = minidynamo.compile(fn, fullgraph=True)
    for zeros in (1, 2):
        found = []
        for call in (fn, compiled):
            x, y = torch.linspace(-1, 1, 9).view(3, 3), torch.arange(9.0).view(3, 3)
            y[:zeros] = 0
            found.append((call(x, y), x, y))
        torch.testing.assert_close(found[1], found[0])
    assert metrics.uncompiled_graphs == 0


def sums_of_products(
    x,
    mask,
    weight,
    bias,
):
    rows = x.masked_select(mask).view(-1, 6)
    wide = torch.addmm(bias, rows, weight)
    scaled = torch.nn.functional.layer_norm(rows, (6,), bias[:6], bias[:6])
    return wide, scaled, torch.nn.functional.layer_norm(wide, (8,), bias, bias)


def test_rows_that_data_chooses_with_gradients():
    torch.manual_seed(0)
    compiled = minidynamo.compile(sums_of_products, fullgraph=True, dynamic=True)
    for rows in (5, 7):
        given = torch.randn(rows, 6), torch.arange(rows).view(-1, 1) > 1, torch.randn(6, 8)
        found = []
        for call in (sums_of_products, compiled):
            bias = torch.linspace(-1, 1, 8).requires_grad_()
            results = call(*given, bias)
            sum(result.square().sum() for result in results).backward()
            found.append((*results, bias.grad))
        torch.testing.assert_close(found[1], found[0])
    assert metrics.uncompiled_graphs == 0


def turned(x, keep):
    rows = x[keep]
    batch = rows.shape[0]
    turns = rows.transpose(0, 1).contiguous() + 1
    heads = turns.view(7, 2 * batch, 8).transpose(0, 1).view(batch, 2, 7, 8)
    return heads, torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)


def test_results_whose_strides_hang_on_data():
    """They are laid out as eager does it, which the backward graph relies on."""
    compiled = minidynamo.compile(turned, fullgraph=True)
    for rows in (4, 6):
        found = []
        for call in (turned, compiled):
            x = torch.linspace(-1, 1, rows * 7 * 16).view(rows, 7, 16).requires_grad_()
            heads, attended = call(x, torch.arange(rows) > 0)
            attended.square().sum().backward()
            found.append((heads, attended, x.grad))
            assert heads.stride() == (16, 8, 16 * (rows - 1), 1)
        torch.testing.assert_close(found[1], found[0])
    assert metrics.uncompiled_graphs == 0
