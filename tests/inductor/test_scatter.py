"""Additions to computed positions: order, positions out of range, fusion, and what stays serial."""

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import CLOSE, check, compiled

import minidynamo
from minidynamo.inductor.codegen.cpp_stages import parallel_symbols
from minidynamo.inductor.loop_body import BodyBuilder
from minidynamo.inductor.symbolic import loop_symbol, symbol_expr


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scatter_add(dtype, dim):
    x = torch.randint(-9, 9, (6, 5, 37)).to(dtype)
    source = torch.randint(-9, 9, (7, 5, 40)).to(dtype)
    places = torch.randint(0, 5, (6, 4, 35))
    check(lambda x, i, s: x.scatter_add(dim, i, s * 2) + 1, x, places, source, externs=0)


def test_additions_are_in_eagers_order():
    x, source = torch.zeros(3, 50), torch.randn(4000, 50) * 10 ** torch.randn(4000, 1)
    places = torch.randint(0, 3, (4000, 50))
    check(lambda x, i, s: x.scatter_add(0, i, s), x, places, source, rtol=0, atol=0)
    check(lambda x, i, s: x.scatter_add(1, i, s), x.t(), places.t(), source.t(), rtol=0, atol=0)


@pytest.mark.parametrize("dim, count", [(0, 9), (1, 11), (2, 4)])
def test_index_add(dim, count):
    size = [5, 6, 33]
    x = torch.randn(size)
    size[dim] = count
    places = torch.randint(0, 5, (count,))
    run = lambda x, i, s: x.index_add(dim, i, s.exp(), alpha=3)  # noqa: E731
    check(run, x, places, torch.randn(size), externs=0, **CLOSE)


def test_a_value_that_is_the_same_for_all_lanes_is_added_for_each():
    x, places = torch.zeros(4, 3), torch.zeros(8, 3, dtype=torch.long)
    check(lambda x, i, s: x.scatter_add(0, i, s.expand(8, 3)), x, places, torch.ones(8, 1))
    check(
        lambda x, s: x.index_add(0, torch.tensor([1] * 40), s.expand(40)), x[:, 0], x[0, :1] + 2
    )


@pytest.mark.parametrize("padding_idx", [None, 3])
def test_gradient_of_embedding(padding_idx):
    weight = torch.randn(10, 36, requires_grad=True)
    places = torch.randint(0, 10, (4, 25))

    def run(weight, places):
        return F.embedding(places, weight, padding_idx).sin()

    expected = torch.autograd.grad(run(weight, places).sum(), weight)
    actual = torch.autograd.grad(compiled(run, weight, places)(weight, places)[0].sum(), weight)
    torch.testing.assert_close(actual, expected, **CLOSE)


@pytest.mark.parametrize("bad", [-1, 5])
def test_positions_out_of_range(bad):
    x, source = torch.zeros(5, 20), torch.ones(3, 20)
    places = torch.zeros(3, 20, dtype=torch.long)
    run = compiled(lambda x, i, s: x.scatter_add(0, i, s), x, places, source)
    places[2, 17] = bad
    with pytest.raises(RuntimeError, match=f"index {bad} is out of bounds for dimension 0"):
        run(x, places, source)


def test_half_precision_is_left_to_eager():
    args = torch.zeros(5, 20).bfloat16(), torch.zeros(3, 20, dtype=torch.long)
    check(lambda x, i: x.scatter_add(0, i, x[:3] + 1), *args, externs=1)


def test_loops_that_may_run_in_parallel():
    x, y = loop_symbol("x0", 8), loop_symbol("x1", 16)

    def safe(make):
        b = BodyBuilder([x, y])
        row = b.load("rows", symbol_expr(x), torch.int64)
        index = make(symbol_expr(x), symbol_expr(y), b.indirect(row, 4))
        b.atomic_add("out", index, b.constant(1.0, torch.float32), torch.float32)
        return parallel_symbols(b.finish())

    assert safe(lambda a, b, row: row * 16 + b) == {y}
    assert safe(lambda a, b, row: a * 4 + row) == {x}
    assert safe(lambda a, b, row: a * 3 + row) == set()
    assert safe(lambda a, b, row: row + b) == set()
    assert safe(lambda a, b, row: a * 16 + b) == {x, y}


@pytest.mark.parametrize("size", [(2, 2), (2, 1), (3, 3)])
def test_sources_that_do_not_fit(size):
    x, rows, places = torch.zeros(4, 3), torch.tensor([0, 1]), torch.zeros(2, 3).long()
    run = minidynamo.compile(lambda x, i, s: x.index_add(0, i, s))
    with pytest.raises(RuntimeError):
        run(x, rows, torch.ones(size))
    if size != (3, 3):
        with pytest.raises(RuntimeError):
            minidynamo.compile(lambda x, i, s: x.scatter_add(0, i, s))(
                x, places, torch.ones(size)
            )
