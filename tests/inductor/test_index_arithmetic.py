"""Positions that are computed from positions: read without a look-up, and as 32-bit numbers."""

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import compiled

import minidynamo
from minidynamo import events
from minidynamo.inductor.atoms import Symbol
from minidynamo.inductor.codegen.narrow import narrow_integers
from minidynamo.inductor.loop_body import BodyBuilder
from minidynamo.inductor.symbolic import as_expr, loop_symbol, symbol_expr


def check(function, *args):
    actual = compiled(lambda *a: tuple(function(*a)), *args)(*args)
    for got, wanted in zip(actual, function(*args), strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)


def taken(x, n):
    i = torch.arange(n)
    return [
        x[i],
        x[n - 1 - i],
        x[:, i * 2 + 1],
        x[i - n],
        x[:, i // 3],
        x[i % 4, :] + 1,
        x[:, (i[:, None] + i[None, :3])],
        x[-i - 1],
        x.index_select(1, i + 2),
        x.gather(0, (i[:, None] % 2).expand(n, 5)),
    ]


@pytest.mark.parametrize("n", [5, 8, 17])
def test_known_positions(n):
    check(lambda x: taken(x, n), torch.randn(n, 2 * n + 2))


def test_known_positions_are_not_checked():
    kernels, x = [], torch.randn(9, 40)
    with events.subscribe(kernels.append, events.KernelEvent):
        check(lambda x: [x[:, torch.arange(9) * 4 + 1]], x)
    assert kernels and not any("check" in kernel.source for kernel in kernels)


def test_known_position_outside():
    x = torch.randn(6, 4)
    run = minidynamo.compile(lambda x: x[torch.arange(6) + 1])
    with pytest.raises(IndexError, match="index 6 is out of bounds"):
        run(x)


@pytest.mark.parametrize("size", [(2, 3, 7, 9), (1, 2, 16, 17)])
def test_unfold_and_fold(size):
    x = torch.randn(size)
    check(lambda x: [F.unfold(x, 3, padding=1), F.unfold(x, 2, stride=2, dilation=2)], x)
    columns = F.unfold(x, 3, padding=1)
    check(lambda c: [F.fold(c, size[2:], 3, padding=1)], columns)


def test_masks_of_distances():
    def run(x, ids):
        i = torch.arange(x.shape[-1])
        distance = (i[:, None] - i).abs()
        near = x.masked_fill(distance > 5, 0.0)
        sign = torch.where(i[:, None] > i, -distance, distance).float()
        far = (distance * distance * 70000).clamp(max=1 << 40).to(torch.float64)
        own = torch.maximum(ids.long(), -i) * 3 - (x > 0).long()
        return near, sign + x, far, own.to(torch.float32)

    ids = torch.randint(-128, 127, (37,)).to(torch.int8)
    check(run, torch.randn(37, 37), ids)


def narrowed(make):
    x = loop_symbol("x0", 100)
    b = BodyBuilder([x])
    value = make(b, b.index_expr(symbol_expr(x)))
    b.store("out", symbol_expr(x), b.cast(value, torch.float32), torch.float32)
    return {n.dtype for n in narrow_integers(b.finish()).nodes if not n.dtype.is_floating_point}


def test_what_fits_is_narrow():
    number = lambda b, n: b.constant(n, torch.int64)  # noqa: E731
    assert narrowed(lambda b, x: b.op("abs", b.op("sub", x, number(b, 7)))) == {torch.int32}
    assert narrowed(lambda b, x: b.op("mul", b.op("abs", x), b.op("abs", x))) == {torch.int32}
    large = lambda b, x: b.op("mul", b.op("abs", x), number(b, 1 << 30))  # noqa: E731
    assert narrowed(large) == {torch.int64}
    assert narrowed(lambda b, x: b.op("lshift", b.op("abs", x), number(b, 2))) == {torch.int64}


def test_a_number_that_positions_are_compared_with_is_clamped():
    big = 1 << 40

    def fn(numbers):
        places = torch.arange(70)
        compared = [places == numbers, places < numbers, places >= numbers, numbers > places]
        return (
            *compared,
            (places != numbers).float().sum(1),
            torch.where(places <= numbers, 1.5, 2),
        )

    check(
        fn, torch.tensor([[5], [-1], [0], [69], [70], [71], [-2], [big], [-big], [2**63 - 1]])
    )


def marked(x, n):
    i = torch.arange(x.shape[-1])
    causal = x.masked_fill(i > i[:, None], -1e9)
    window = torch.where((i[:, None] - i >= 0) & (i[:, None] - i < 5), x, 0.0).sum(-2)
    lengths = (x * (i < n[:, None])).sum(-1)
    steep = torch.where(i * 3 <= 2 * i[:, None], x, -x) + (i * 7 != n[:, None])
    parts = torch.where(i // 3 < x.shape[-1] // 6, x, 1.0)
    return causal, window, lengths, steep, torch.where(i.flip(0) > 3, x, -x), parts


def test_comparisons_of_symbolic_many_positions():
    run = minidynamo.compile(marked, fullgraph=True, dynamic=True)
    for size in (7, 16, 33, 100):
        x, n = torch.randn(size, size), torch.randint(-3, 8 * size, (size,))
        n[:4] = torch.tensor([2**63 - 1, -(2**63), 2**40, -(2**40)])
        for got, wanted in zip(run(x, n), marked(x, n), strict=True):
            torch.testing.assert_close(got, wanted)


def test_comparisons_of_symbolic_many_positions_are_narrow():
    x = loop_symbol("x0", symbol_expr(Symbol("s0")))
    b = BodyBuilder([x])
    at, number = b.index_expr(symbol_expr(x)), b.load("n", as_expr(0), torch.int64)
    for value in (b.constant(5, torch.int64), number, b.index_expr(symbol_expr(x) * 3 - 9)):
        b.store("out", symbol_expr(x), b.op("lt", at, value), torch.bool)
    nodes = narrow_integers(b.finish()).nodes
    compared = [n for n in nodes if n.op == "lt"]
    assert compared and all(nodes[a].dtype == torch.int32 for n in compared for a in n.args)
    moved = [n for n in nodes if n.op == "index_expr" and n.dtype == torch.int64]
    assert not moved
