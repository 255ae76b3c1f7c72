"""Long columns that are reduced a few rows at a time, in panels (`codegen/cpp_columns.py`)."""

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import as_tuple, assert_same, check, compiled

import minidynamo
from minidynamo.inductor.codegen import assemble


@pytest.fixture
def texts(monkeypatch, tmp_path):
    """The kernels that are written, none of which comes from a cache."""
    written, original = [], assemble.codegen_cpp

    def record(*args, **kwargs):
        written.append(original(*args, **kwargs))
        return written[-1]

    monkeypatch.setattr(assemble, "codegen_cpp", record)
    with minidynamo.config.patch(cache_dir=str(tmp_path)):
        yield written


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


SHAPES = {
    (40, 260): True,
    (33, 5001): True,
    (3, 70, 1030): True,
    (31, 4096): False,
    (4096, 64): False,
    (4096, 8): False,
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_which_columns_are_walked_in_panels(shape, texts):
    check(lambda x: x.sum(-2), torch.randn(shape), kernels=1, rtol=1e-4, atol=1e-4)
    assert ["panel" in text for text in texts] == [SHAPES[shape]]


def reduced(x, dim=0):
    results = [x.sum(dim), x.amax(dim), x.amin(dim)]
    if not isinstance(dim, tuple):
        results += [x.argmax(dim), x.argmin(dim), x.any(dim), x.all(dim), *x.max(dim)]
        if x.dtype != torch.bfloat16:
            results.append(x.prod(dim))
    if x.dtype.is_floating_point:
        results += [x.mean(dim), x.var(dim), x.std(dim), torch.logsumexp(x, dim)]
    return results


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kinds(dtype, texts):
    def fn(x, y):
        if dtype == torch.bool:
            return x.sum(0), x.any(0), y.all((0, 2))
        return [*reduced(x), *reduced(y, (0, 2))]

    x, y = torch.rand(37, 1033) * 3, torch.rand(9, 2, 5, 1100) * 3
    low = dtype == torch.bfloat16
    check(fn, x.to(dtype), y.to(dtype), rtol=2e-2 if low else 1e-4, atol=1e-2 if low else 1e-5)
    assert any("panel" in text for text in texts)


def test_short_loops_inside(texts):
    """Rows of a block in several loops; a number for each row; the place of an extreme."""

    def fn(x, w):
        y = x * w[:, :, None, None]
        return y.sum((0, 2)), y.amax((0, 2)), y.transpose(1, 2).flatten(0, 1).argmax(0), y

    check(fn, torch.randn(70, 3, 3, 300), torch.randn(70, 3), rtol=1e-4, atol=1e-4)
    assert any("panel" in text for text in texts)


def test_nothing_but_nan_and_infinity():
    x = torch.randn(50, 700)
    x[3, 5], x[4, 6], x[:, 7], x[:, 8] = float("nan"), float("inf"), float("nan"), -float("inf")
    check(lambda x: (*reduced(x), x.softmax(0)), x, rtol=1e-4, atol=1e-4)


def test_several_walks(texts):
    """What is computed once a column is wanted in each row."""

    def fn(x, w, b, mean, var):
        y = F.batch_norm(x, mean, var, w, b, True)
        z = x - x.mean(0, keepdim=True)
        return y.relu(), x.softmax(0), z / (z.square().sum(0) * w.exp()).sqrt(), mean * var

    wide = [torch.rand(515) + 0.5 for _ in range(4)]
    check(fn, torch.randn(600, 515), *wide, rtol=1e-4, atol=1e-5)
    assert any("kept" in text for text in texts)


def test_what_is_stored_on_the_way(texts):
    """The gradients of an activation and of a bias."""

    def fn(x, b, g, i):
        y = F.gelu(x + b)
        d = torch.ops.aten.gelu_backward(g, x + b)
        return y, d, d.sum(0), y.sum(0) + b, x[:, i].sum(0)

    rows, columns = 130, 333
    i = torch.randint(0, columns, (columns,))
    x, g = torch.randn(rows, columns), torch.randn(rows, columns)
    check(fn, x, torch.randn(columns), g, i, rtol=1e-4, atol=1e-4)
    assert any("panel" in text for text in texts)
    run = compiled(fn, x, torch.randn(columns), g, i)
    with pytest.raises(IndexError, match="out of bounds"):
        run(x, torch.randn(columns), g, i + columns)


def test_threads_do_not_matter(texts, threads):
    x = torch.randn(600, 1100)
    found = []
    for count in (1, 2):
        threads(count)
        found.append(compiled(lambda x: (*reduced(x), x.softmax(0)), x)(x))
    for other in found[1:]:
        for left, right in zip(found[0], other, strict=True):
            assert_same(left, right, rtol=0, atol=0)
    assert all("panel" in text for text in texts)


def test_long_sums_are_as_accurate(texts):
    """Partial sums move on twice."""

    def fn(c, r):
        y = c[:, None] + r
        return y.sum(0), y.square().sum(0)

    c, r = torch.rand(140_000), torch.rand(256)
    wide = [t.to(torch.float64) for t in (c, r)]
    got, want = compiled(fn, c, r)(c, r), as_tuple(fn(*wide))
    assert any("panel" in text and "grand" in text for text in texts)
    for left, right in zip(got, want, strict=True):
        assert ((left - right).abs() / right).max() < 5e-7


def test_symbolic_sizes():
    @minidynamo.compile(fullgraph=True, dynamic=True)
    def fn(x):
        return x.sum(0), x.softmax(0)

    for rows, columns in ((700, 900), (41, 2500), (3, 5), (2000, 131)):
        x = torch.randn(rows, columns)
        for left, right in zip(fn(x), (x.sum(0), x.softmax(0)), strict=True):
            assert_same(left, right, rtol=1e-4, atol=1e-4)
