"""Sparse tensors hold the memory of the indices and values that they are made of."""

from __future__ import annotations

import pytest
import torch
from testing import CountingBackend
from torch.utils.checkpoint import checkpoint

import minidynamo

SIZE = (5, 8)


def triples(seed, n=9):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, SIZE[0], (n,), generator=generator)
    columns = torch.randint(0, SIZE[1] - 1, (n,), generator=generator)
    return rows, columns, torch.randn(n, generator=generator)


def made_inside(rows, columns, values):
    return torch.sparse_coo_tensor(torch.stack([rows, columns + 1]), values * 2, SIZE)


def in_front_of_products(rows, columns, values):
    matrix = made_inside(rows, columns, values)
    square = values[:4].outer(values[:4]).exp()
    for _ in range(4):
        square = torch.mm(square, square).tanh()
    return matrix * 3, matrix, square


def read_behind_other_kernels(rows, columns, values):
    places, doubled = torch.stack([rows, columns + 1]), values * 2
    matrix = torch.sparse_coo_tensor(places, doubled, SIZE)
    return (doubled + 1).sin(), (places + 1) * 3, torch.sparse.mm(matrix, torch.ones(8, 3))


def compressed(rows, columns, values):
    ends = torch.tensor([0, 2, 4, 6, 8, 9])
    ordered = torch.tensor([0, 3, 1, 2, 4, 5, 0, 6, 2]) + columns * 0
    return torch.sparse_csr_tensor(ends + 0, ordered + 1, values * 2, SIZE)


def dense(results):
    results = results if isinstance(results, tuple) else (results,)
    return [part if part.layout is torch.strided else part.to_dense() for part in results]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    "fn",
    [made_inside, in_front_of_products, read_behind_other_kernels, compressed],
    ids=lambda fn: fn.__name__,
)
def test_results_of_earlier_calls_keep_their_indices(fn):
    minidynamo.reset()
    counter = CountingBackend(backend="inductor")
    compiled = minidynamo.compile(fn, backend=counter)
    with torch.no_grad():
        given = [triples(seed) for seed in range(3)]
        actual = [compiled(*one) for one in given]
        for one, results in zip(given, actual, strict=True):
            torch.testing.assert_close(dense(results), dense(fn(*one)))
    assert len(counter.graphs) == 1


def propagate(rows, columns, values, x):
    return torch.sparse.mm(made_inside(rows, columns, values), x) * 2


def gradient(fn, given, x):
    return torch.autograd.grad(fn(*given, x).square().sum(), x)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_what_is_kept_for_the_backward_pass():
    minidynamo.reset()
    compiled = minidynamo.compile(propagate)
    x = torch.linspace(-1, 1, 24).view(8, 3).requires_grad_()
    given = [triples(seed) for seed in range(3)]
    results = [compiled(*one, x) for one in given]
    for one, result in zip(given, results, strict=True):
        actual = torch.autograd.grad(result.square().sum(), x)
        torch.testing.assert_close(actual, gradient(propagate, one, x))


def dense_again(x):
    return (x * 2).to_sparse().to_dense() * 3


ROWS, COLUMNS, _ = triples(0)


def made_dense(x):
    return made_inside(ROWS, COLUMNS, x.flatten()[:9]).to_dense(), x.sin()


def masked(x):
    mask = (x.detach() > 0).float().to_sparse()
    return (x * 2).sparse_mask(mask).to_dense()


def compressed_rows(x):
    return (x * 2).to_sparse_csr().to_dense()


def compressed_blocks(x):
    return (x * 2).to_sparse_bsr((2, 2)).to_dense()


def compressed_twice(x):
    return (x * 2).to_sparse().to_sparse_csr().to_dense().exp()


def recomputed(x):
    return checkpoint(dense_again, x.sin(), use_reentrant=False)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    "fn",
    [
        dense_again,
        made_dense,
        masked,
        compressed_rows,
        compressed_blocks,
        compressed_twice,
        recomputed,
    ],
    ids=lambda fn: fn.__name__,
)
def test_gradients_through_sparse_tensors(fn):
    """Compressed ones ended the process; what was made dense did not ask for gradients."""
    minidynamo.reset()
    counter = CountingBackend(backend="inductor")
    compiled = minidynamo.compile(fn, backend=counter)
    for n in (4, 6, 8):
        x = torch.linspace(-1, 1, n * 8).view(n, 8).requires_grad_()
        expected, actual = dense(fn(x)), dense(compiled(x))
        assert n > 4 or len(counter.graphs) == 1
        torch.testing.assert_close(actual, expected)
        assert [part.requires_grad for part in actual] == [True] * len(actual)
        want, got = (torch.autograd.grad(sum(map(torch.sum, r)), x) for r in (expected, actual))
        torch.testing.assert_close(got, want)
    with torch.no_grad():
        torch.testing.assert_close(dense(compiled(x)), dense(fn(x)))
