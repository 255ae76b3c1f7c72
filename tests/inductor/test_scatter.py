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


@pytest.mark.parametrize("how", ["amax", "amin", "prod"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_index_reduce(how, include_self):
    def run(x, i, s):
        first = x.index_reduce(1, i, s * 2, how, include_self=include_self)
        return first + 1, x.int().index_reduce(1, i, s.int(), how, include_self=include_self)

    places = torch.tensor([3, 0, 3, 3, 5, 0])
    check(run, torch.randn(4, 7, 9) * 3, places, torch.randn(4, 6, 9) * 3, externs=0)
    with pytest.raises(IndexError, match="index out of range in self"):
        compiled(run, torch.randn(4, 7, 9), places, torch.randn(4, 6, 9))(
            torch.randn(4, 7, 9), places + 2, torch.randn(4, 6, 9)
        )


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("places", [torch.tensor(-1), torch.tensor([-2, 0, -2])])
@pytest.mark.parametrize("options", [{}, {"schedule_only": True}], ids=["code", "operators"])
def test_filled_places_count_from_the_end(dim, places, options):
    def run(x, i, value):
        return x.sin().index_fill(dim, i, 2) * 2, x.int().index_fill(dim, i, value), x

    x, value = torch.randn(5, 7), torch.tensor(3)
    fast = minidynamo.compile(run, fullgraph=True, options=options)
    for a, b in zip(fast(x, places, value), run(x, places, value), strict=True):
        torch.testing.assert_close(a, b)
    with pytest.raises(IndexError, match="index -9 is out of bounds for dimension"):
        fast(x, places - places - 9, value)


@pytest.mark.parametrize("accumulate", [True, False])
def test_put(accumulate):
    run = lambda x, i, s: torch.put(x, i, s * 2, accumulate) + 1  # noqa: E731
    places = torch.tensor([[3, -1, 50], [3, 0, -60]])
    x, source = torch.randn(5, 3, 4).mT, torch.randn(2, 3)
    check(run, x, places, source, externs=0)
    with pytest.raises(IndexError, match="access index 60 on a tensor of 60"):
        compiled(run, x, places, source)(x, places + 10, source)


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
        b.scatter("out", index, b.constant(1.0, torch.float32), torch.float32)
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


EVERY = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", EVERY)
def test_scatter(dtype):
    x = torch.randint(0, 5, (6, 5, 37)).to(dtype)
    source = torch.randint(0, 3, (5, 5, 36)).to(dtype)
    places = torch.randint(0, 5, (4, 4, 35))
    for dim in (0, 1, 2):
        check(lambda x, i, s: x.scatter(dim, i, s), x, places, source, externs=0)
    check(lambda x, i: x.scatter(-1, i, 1), x, places, externs=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(dtype, reduce, include_self):
    x = torch.randint(-4, 5, (6, 5, 37)).to(dtype)
    source = torch.randint(-3, 4, (5, 5, 36)).to(dtype)
    places = torch.randint(0, 5, (4, 4, 35))

    def run(x, i, s):
        return x.scatter_reduce(1, i, s, reduce, include_self=include_self)

    check(run, x, places, source, externs=0)


def test_nan_is_the_largest_and_the_smallest():
    x, places = torch.zeros(3, 20), torch.zeros(2, 20, dtype=torch.long)
    source = torch.randn(2, 20)
    source[:, 3] = torch.nan
    for reduce in ("amax", "amin"):
        check(lambda x, i, s: x.scatter_reduce(0, i, s, reduce), x, places, source, externs=0)


@pytest.mark.parametrize("dtype", EVERY)
def test_index_put(dtype):
    x = torch.randint(0, 5, (6, 5, 37)).to(dtype)
    ones = torch.ones(3, 4, 5).to(dtype)
    rows, columns = torch.randperm(6)[:4], torch.randperm(37)[:12].view(3, 4)

    def apart(x, i, j, v):
        x[i, :, j] = v
        return x * 1

    def together(x, i, v):
        x[:, i, 3:9] = v
        return x * 1

    def moved(x, i, v):
        return x.index_copy(1, i, v), x.index_fill(0, i, 1)

    check(apart, x, rows, columns, ones, externs=0)
    check(together, x, torch.tensor([1, -2]), ones[0, :2, :1], externs=0)
    check(moved, x, torch.tensor([4, 1]), x[:, :2].clone(), externs=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_index_put_that_adds(dtype):
    x, values = torch.zeros(6, 5, 37, dtype=dtype), torch.ones(4, 1, 37, dtype=dtype)
    places = torch.tensor([1, 3, 1, -1])
    check(lambda x, i, v: x.index_put((i,), v, accumulate=True), x, places, values, externs=0)


@pytest.mark.parametrize("dtype", EVERY)
def test_a_number_where_a_mask_is_true(dtype):
    x = torch.randint(0, 5, (6, 5, 37)).to(dtype)

    def write(x, mask, whole):
        x[mask] = 1
        x[:, mask[0]] = 0
        x[whole] = 1
        return x * 1

    check(write, x, torch.rand(6, 5) > 0.5, torch.rand(6, 5, 37) > 0.9, externs=0)


def test_index_put_out_of_range():
    x, places = torch.zeros(5, 20), torch.tensor([0, 7])
    for accumulate in (False, True):
        run = compiled(
            lambda x, i: x.index_put((i,), x[:2], accumulate=accumulate), x, places % 5
        )
        with pytest.raises(IndexError, match="index 7 is out of bounds for dimension 0"):
            run(x, places)


def test_parts_that_are_written_by_steps_and_diagonals():
    def steps(x, v):
        x[:, 3:37:2, 1:30:3] = v
        x[1::2] = 3
        return x * 2

    check(steps, torch.randn(6, 40, 37), torch.randn(1, 10), externs=0)
    for offset, length in ((0, 5), (-2, 3), (3, 5)):

        def diagonal(x, v):
            x.diagonal(offset, 1, 2).copy_(v)
            return x * 2

        check(diagonal, torch.randn(6, 5, 37), torch.randn(6, length), externs=0)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("columns", [1, 7, 130, 1000])
def test_columns_are_shared_among_threads(threads, columns):
    x, source = torch.randn(50, columns), torch.randn(3000, columns)
    places = torch.randint(0, 50, (3000, columns))
    default = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check(lambda x, i, s: x.scatter_add(0, i, s * 2), x, places, source, rtol=0, atol=0)
        dear = lambda x, i, s: x.scatter_add(0, i, s.sin().exp())  # noqa: E731
        check(dear, x, places, source, **CLOSE)
    finally:
        torch.set_num_threads(default)


def onto_constant(rows, y):
    return torch.full((6, 40), 3.0).scatter(1, rows[:, None], 2.0) * y


def from_values(rows, y):
    return (y + 1).scatter(-1, rows[:, None], y[:, :1] * 5).sum(1)


def along_the_first(rows, y):
    return (y * 2).t().scatter(0, rows[None], 7.0).cos()


@pytest.mark.parametrize("fn", [onto_constant, from_values, along_the_first])
def test_one_position_a_row_is_a_choice(fn):
    y = torch.randn(6, 40)
    run = check(fn, torch.tensor([0, 39, 5, 5, 7, 1]), y, kernels=1, externs=0)
    for bad in (-1, 40):
        with pytest.raises(RuntimeError, match="out of bounds"):
            run(torch.tensor([0, 3, bad, 5, 7, 1]), y)


@pytest.mark.parametrize("options", [{}, {"reduction": "none"}, {"label_smoothing": 0.1}])
def test_cross_entropy_reads_logits_twice(options):
    """The backward keeps statistics of the rows beside the logits, and makes no zeros."""
    x = torch.randn(9, 50, requires_grad=True)
    target = torch.randint(0, 50, (9,))
    target[3] = -100
    saved = []

    def both(fn):
        x.grad = None
        loss = fn(x, target)
        loss.sum().backward()
        return loss.detach(), x.grad

    fn = minidynamo.compile(lambda x, t: F.cross_entropy(x, t, **options), fullgraph=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        actual = both(fn)
    torch.testing.assert_close(actual, both(lambda x, t: F.cross_entropy(x, t, **options)))
    memory = {t.data_ptr() for t in saved if t.shape == x.shape}
    assert memory <= {x.data_ptr()}


@pytest.mark.parametrize("how", ["amax", "prod", "sum"])
def test_triton_scatters_sums_and_leaves_the_rest_to_the_operator(how):
    pytest.importorskip("triton")
    run = lambda x, i, s: x.scatter_reduce(0, i, s, how)  # noqa: E731
    args = torch.ones(4, 6), torch.randint(0, 4, (9, 6)), torch.randn(9, 6)
    (actual,) = compiled(run, *args, cpu_backend="triton")(*args)
    torch.testing.assert_close(actual, run(*args))


@pytest.mark.parametrize(
    ("size", "window", "step", "padding"),
    [(64, 4, 2, 0), (32, 8, 8, 0), (35, 5, 3, 0), (20, 3, 2, 1), (9, 2, 1, 0)],
)
def test_folds_of_overlapping_and_distant_windows(size, window, step, padding):
    """Short and long windows beside each other are added in either loop."""
    image = torch.randn(2, 3, size, size)
    columns = F.unfold(image, window, stride=step, padding=padding)

    def run(c):
        return [F.fold(c, (size, size), window, stride=step, padding=padding)]

    check(run, columns)
    check(run, columns.bfloat16(), rtol=2e-2, atol=4e-2)


def test_columns_are_added_at_positions():
    at = torch.randint(0, 100, (500,))
    start = torch.zeros(64, 100)
    check(
        lambda z, x, i: [z.t().index_put((i,), x, accumulate=True)],
        start,
        torch.randn(500, 64),
        at,
    )
