"""numpy functions that write to an array (`out=`), and `numpy.unique`."""

from __future__ import annotations

import numpy as np
import pytest
from testing import CountingBackend

import minidynamo

A, M = np.arange(4.0), np.arange(4.0).reshape(2, 2)
I = np.array([3, 1, 1, 2])  # noqa: E741
N = np.array([3.0, np.nan, 1.0, np.nan, 1.0])
EMPTY = np.array([], dtype=np.float32)


def assert_equal(want, got):
    assert type(want) is type(got)
    if isinstance(want, (list, tuple)):
        assert len(want) == len(got)
        for pair in zip(want, got, strict=True):
            assert_equal(*pair)
    elif isinstance(want, str):
        assert want == got
    else:
        np.testing.assert_allclose(want, got, rtol=1e-12)
        assert np.asarray(want).dtype == np.asarray(got).dtype


def compare(fn, *args, fullgraph=True, backend=None):
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend or counter, fullgraph=fullgraph)
    for _ in range(2):
        mine, theirs = ([np.copy(arg) for arg in args] for _ in range(2))
        assert_equal(fn(*mine), compiled(*theirs))
        assert_equal(mine, theirs)
    return counter


WRITTEN = {
    "ufunc": (lambda x, o: (np.add(x, 1, out=o) is o, o * 2), A, A * 0),
    "without a name": (lambda x, o: np.multiply(x, 3, o), A, A * 0),
    "in a tuple": (lambda x, o: np.add(x, 1, out=(o,)), A, A * 0),
    "of smaller numbers": (lambda x, o: np.add(x, 1, out=o), A, np.zeros(4, np.float32)),
    "of larger numbers": (lambda x, o: np.add(x, 1, out=o), I, A * 0),
    "quotients": (lambda x, o: np.divide(x, x, out=o), I, A * 0),
    "its argument": (lambda x: np.add(x, 1, out=x), A),
    "a part of its argument": (lambda x: (np.add(x[:-1], x[1:], out=x[1:]), x), A),
    "a view": (lambda x, o: np.exp(x, out=o.T), M, M * 0),
    "reduction": (lambda x, o: np.sum(x, axis=0, out=o), M, np.zeros(2)),
    "number": (lambda x, o: np.sum(x, out=o), M, np.zeros(())),
    "method": (lambda x, o: x.sum(axis=0, out=o), M, np.zeros(2)),
    "clip in place": (lambda x: np.clip(x, 1, 2, out=x), A),
    "clip to the fourth argument": (lambda x, o: np.clip(x, 1, 2, o), A, A * 0),
    "clip as a method": (lambda x: x.clip(1, 2, out=x), A),
    "running sums in place": (lambda x: np.cumsum(x, out=x), A),
    "joined": (lambda x, o: np.concatenate([x, x], out=o), A, np.zeros(8)),
    "product": (lambda x, o: np.matmul(x, x, out=o), M, M * 0),
    "where all are wanted": (lambda x, o: np.add(x, 1, out=o, where=True), A, A * 0),
    "none": (lambda x: np.add(x, 1, out=None), A),
    "a new array": (lambda x: np.exp(x, out=np.empty_like(x)), A),
    "an empty array": (lambda x: np.exp(x, out=np.empty(x.shape)), A),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_written(name):
    fn, *args = WRITTEN[name]
    assert len(compare(fn, *args).graphs) == 1


@pytest.mark.parametrize("name", ["a part of its argument", "a view", "clip in place"])
def test_written_by_the_default_backend(name):
    fn, *args = WRITTEN[name]
    compare(fn, *args, backend="inductor")


def test_what_does_not_fit_is_left_to_numpy():
    def shape(x, o):
        return np.add(x, 1, out=o)

    compare(shape, M, np.zeros((3, 2, 2)), fullgraph=False)

    def means(x, o):  # computed in the dtype of `o`
        return np.mean(x, axis=0, out=o)

    compare(means, np.float16([[1, 2e-4], [1, 3e-4]]), np.zeros(2), fullgraph=False)

    def overlap(x):
        return np.concatenate([x[2:], x[:2]], out=x)

    compare(overlap, A, fullgraph=False)

    def refused(x, o):
        try:
            np.add(x, 0.5, out=o)
        except TypeError as error:
            return str(error)

    compare(refused, A, I, fullgraph=False)


DISTINCT = {
    "values": (lambda x: np.unique(x), I),
    "NaN": (lambda x: np.unique(x), N),
    "each NaN": (lambda x: np.unique(x, equal_nan=False), N),
    "truths": (lambda x: np.unique(x > 1), I),
    "of none": (lambda x: np.unique(x) * 2, EMPTY),
    "how often": (lambda x: np.unique(x, return_counts=True), N),
    "how often none": (lambda x: np.unique(x, return_counts=True), EMPTY),
    "where": (lambda x: np.unique(x, True, True, True), np.stack([I, I + 1])),
    "rows": (lambda x: np.unique(x, axis=0, return_inverse=True), np.stack([I, I])),
    "number of values": (lambda x: len(np.unique(x)), I),
}


@pytest.mark.parametrize("name", DISTINCT)
def test_distinct(name):
    fn, x = DISTINCT[name]
    compare(fn, x)
    compare(fn, x, backend="inductor")


def test_distinct_values_together_with_their_counts():
    def fn(x):
        values, counts = np.unique(x, return_counts=True)
        return values * counts, (values * counts).sum()

    compare(fn, I)


def test_integers_are_divided_as_numbers_of_64_bits():
    def fn(x, y):
        return np.divide(x, 2), np.true_divide(1, x), np.divide(x, y), np.divide(y, 3)

    compare(fn, I, A.astype(np.float32) + 1)
