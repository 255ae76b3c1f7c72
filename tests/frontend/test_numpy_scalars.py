"""Numbers of numpy as arguments: eager's values and dtypes, and no graph for each new value."""

from __future__ import annotations

import math
import operator
import warnings

import numpy as np
import pytest
import torch
from testing import CountingBackend, assert_same, check, check_recompiles

import minidynamo

X = torch.tensor([1.0, -2.0, 3.0])
I = torch.arange(3)  # noqa: E741
A = np.array([1.0, 2.0, 3.0])

DOUBLES = [np.float64(v) for v in (0.5, 0.25, 1.5, 2.75, 3.0, -7.0, 1e30)]
SINGLES = [np.float32(v) for v in (0.1, 0.2, 0.3, 7.0)]
LONGS = [np.int64(v) for v in (2, 3, 5, 7, -1, 2**62, 2**62 + 1)]
SHORTS = [np.uint8(v) for v in (2, 3, 5, 200)]


def outcome(fn, *args):
    result = fn(*args)
    dtype = result.dtype if isinstance(result, np.generic) else None
    return result, dtype


def graphs_for(fn, values, backend=None, fullgraph=True):
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend or counter, fullgraph=fullgraph)
    for value in values:
        assert_same(outcome(fn, value), outcome(compiled, value))
    return len(counter.graphs)


WITH_TENSORS = {
    "product": lambda s: X * s,
    "reflected": lambda s: s - X,
    "integers": lambda s: I * s,
    "half": lambda s: X.half() + s,
    "comparison": lambda s: s < X,
    "function": lambda s: torch.clamp(X, max=s),
    "where": lambda s: torch.where(X > 0, X, s),
    "item": lambda s: X * s.item(),
    "container": lambda s: [s, {"s": s}, X + s],
    "types": lambda s: (type(s), isinstance(s, float), s.dtype, X + s),
}


@pytest.mark.parametrize("values", [DOUBLES, SINGLES, LONGS, SHORTS], ids=lambda v: v[0].dtype)
@pytest.mark.parametrize("fn", WITH_TENSORS.values(), ids=WITH_TENSORS)
def test_a_second_value_makes_the_last_graph(fn, values):
    assert graphs_for(fn, values) == 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_other_backends(backend):
    graphs_for(lambda s: (X * s + 1, I / s), DOUBLES[:4], backend=backend)


@pytest.mark.parametrize(
    "fn",
    [
        lambda s: X * (s * 2 + 0.5),
        lambda s: (s * s - 1, X + 1)[0],
        lambda s: (float(s), X + s)[0],
        lambda s: (-s, X + s)[0],
    ],
)
def test_arithmetic_of_doubles(fn):
    assert graphs_for(fn, DOUBLES) == 2


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(
    "fn",
    [
        lambda s: (s / 2, X + s),
        lambda s: (s * 3 - 1, 2 - s, -s, X + s),
        lambda s: (s // 4, s % 4, 7 // s, X + s),
        lambda s: (s * 0.5 + s, s / 3.0, X + s),
        lambda s: (X + 1 if s < 1000 else X) * (s + s),
        lambda s: (s == 2**20, s > 1000, s > -50.5, X + s),
    ],
)
def test_arithmetic_of_integers(fn):
    small = [np.int64(v) for v in (2, 3, 5, 7, -9, 12)]
    assert graphs_for(fn, small) == 2
    graphs_for(fn, [*small[:3], *map(np.int64, (2**62, 2**31, -(2**31), 2**53 + 1))])
    graphs_for(fn, [np.int32(2), np.int32(3), np.int32(2**31 - 1), np.uint8(200)])


def test_a_branch_is_a_guard():
    def fn(s):
        return X + 1 if s > 1 else X - s

    assert graphs_for(fn, [np.float64(v) for v in (2, 3, 4, 0.5, 0.25, 5, 0.75)]) == 3


@pytest.mark.parametrize(
    "fn",
    [
        lambda s: (f"{s}", X + 1)[0],
        lambda s: (hash(s), {s: 1}[s], X + 1)[:2],
        lambda s: (np.sin(s), X + 1)[0],
        lambda s: (s // 2, s % 2, abs(s), X + 1)[:3],
        lambda s: torch.tensor(s),
        lambda s: torch.as_tensor(s) + I,
        lambda s: (np.arange(3.0) * s).sum(),
    ],
)
def test_uses_of_the_value(fn):
    """A graph for each value, and the right one."""
    for values in (DOUBLES[:5], SINGLES, LONGS[:4]):
        graphs_for(fn, values)


def test_indices_and_sizes():
    for fn in (
        lambda n: I[n],
        lambda n: I[:n],
        lambda n: torch.zeros(n),
        lambda n: [4, 5, 6][n],
    ):
        graphs_for(fn, [np.int64(v) for v in (2, 1, 0, 2)], fullgraph=False)


def test_zeros_and_what_is_not_finite():
    def fn(s):
        return X * s, math.copysign(1.0, s), s

    values = [np.float64(v) for v in (0.0, -0.0, 1.0, 2.0, -0.0, 0.0, math.nan, math.inf)]
    graphs_for(fn, values, fullgraph=False)


def test_another_type_is_another_graph():
    def fn(s):
        return s, X * s, type(s)

    values = [
        np.float64(2),
        np.float64(3),
        np.float32(3),
        3.0,
        3,
        np.int64(3),
        np.int64(4),
        True,
    ]
    graphs_for(fn, values)


def test_numbers_beyond_int64():
    values = [np.uint64(v) for v in (2, 3, 2**63 + 1, 2**64 - 1, 5)]
    for fn in (lambda s: (s, X + 1), lambda s: (s > 4, X * 2), lambda s: (str(s), X + 1)):
        graphs_for(fn, values, fullgraph=False)


def test_numbers_tell_the_dtype_of_a_new_tensor():
    for value in (np.float64(0.5), np.float32(0.5), np.int32(3), np.bool_(True)):
        graphs_for(lambda s: torch.tensor(s), [value])
        graphs_for(lambda s: torch.tensor(s, dtype=torch.half), [value], fullgraph=False)
        graphs_for(lambda s: torch.tensor([s, s]), [value], fullgraph=False)


def test_bools_of_numpy_are_floats_to_torch():
    for fn in (lambda b: I * b, lambda b: b - I, lambda b: I**b, lambda b: I > b):
        assert graphs_for(fn, [np.bool_(True), np.bool_(False), np.bool_(True)]) == 2
    for fn in (lambda b: torch.add(I, b), lambda b: I.add(b), lambda b: torch.full((2,), b)):
        graphs_for(fn, [np.bool_(True), np.bool_(False)], fullgraph=False)


TAKING_NUMBERS = "add sub mul truediv lt le gt ge eq ne iadd isub imul itruediv".split()


@pytest.mark.parametrize("name", TAKING_NUMBERS)
def test_operators_on_tensors_and_scalars_that_are_computed(name):
    """The scalar depends on an array: in a graph it is a tensor without dimensions."""
    op = getattr(operator, name)

    def fn(x, array):
        return op(x.clone(), array.max()), op(array.sum(), x)

    def result(function, *args):
        try:
            return function(*args)
        except RuntimeError as error:  # a result that the left operand has no room for
            return type(error)

    for x in (X, X[0], I, I[1].to(torch.uint8), X.to(torch.complex64)):
        for array in (np.array([0.1, 3.0]), np.array([1, 2, 4])):
            minidynamo.reset()
            counter = CountingBackend()
            expected = result(fn, x, array)
            assert_same(expected, result(minidynamo.compile(fn, backend=counter), x, array))
            assert len(counter.graphs) == 1 or isinstance(expected, type)


def test_scalars_that_torch_takes_for_other_numbers():
    whole = minidynamo.compile(
        lambda x: x + x.numpy().sum(), backend="eager", fullgraph=True, dynamic=False
    )
    assert_same(whole(X), X + X.numpy().sum())
    rounds = lambda x, array: x[0] + array.sum()  # noqa: E731
    for x, array in ((X.half(), np.array([0.1])), (I, np.array([True]).any(keepdims=True))):
        compiled = minidynamo.compile(rounds, backend="eager")
        assert_same(compiled(x, array), rounds(x, array))


GAIN = np.float64(2.5)
PROMOTING = {
    "global": lambda a: GAIN * a,
    "function of a number": lambda a: a * np.sqrt(2.0) - np.log(3),
    "argument": lambda a: np.maximum(a, np.float64(1.5)),
    "integer": lambda a: (a + np.int64(3), np.int64(3) - a, a / np.int64(3)),
    "item": lambda a: a[0] * np.float64(0.1),
    "integers": lambda a: (a.astype("int8") + np.int16(300), a.astype("int32") * np.int64(5)),
    "smaller": lambda a: (a.astype("int64") * np.float32(5), a * np.float16(0.3)),
    "compared": lambda a: (a * np.float32(0.1) <= np.float64(0.1), a == np.float64(0.1)),
    "power": lambda a: (a ** np.float64(2.1), a // np.float64(0.3), np.float64(2) ** a),
    "same": lambda a: (a * np.float32(0.1), a.astype("float64") * GAIN, a * 2.5),
}


@pytest.mark.parametrize("name", PROMOTING)
def test_numbers_of_numpy_count_for_the_dtype(name):
    def fn(x):
        results = PROMOTING[name](x.numpy())
        results = results if isinstance(results, tuple) else (results,)
        return [torch.as_tensor(result) for result in results], [r.dtype for r in results]

    check(fn, torch.tensor([1.0, 2.0, 3.0]))


def test_arrays_keep_their_dtype_in_place():
    def fn(x, factor):
        a = x.numpy() + 1
        a *= factor
        a -= np.sqrt(3.0)
        return torch.as_tensor(a), torch.as_tensor(a * factor)

    x = torch.tensor([1.0, 2.0, 3.0])
    calls = [(x, np.float64(0.1)), (x, 0.1), (x, np.float32(0.1)), (x, np.float64(0.7))]
    check_recompiles(fn, calls, graphs=4)


@pytest.mark.parametrize("function", [np.where, np.clip])
def test_functions_that_give_another_dtype(function):
    def fn(x):
        a = x.numpy()
        first = a > 1 if function is np.where else a
        result = function(first, np.float64(1), np.float64(2))
        return torch.as_tensor(result), x + 1

    check(fn, torch.tensor([1.0, 2.0, 3.0]), graphs=None)


def test_functions_of_tensors_without_dimensions():
    def fn(x):
        first = np.log(x[0] + 3)
        return x + first, first, np.exp(x.sum()), x.sum().numpy() * np.sqrt(2.0)

    check(fn, torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.float32, np.float64, np.bool_])
def test_tensors_equal_numbers(kind):
    def fn(x, number):
        found = (x == number, number == x, x != number, number != x)
        own = x.int().numpy().flatten()[0]
        return x + 1, found, x == own, x != own, x < own, own is None

    check(fn, torch.tensor([1.0, 2.0]), kind(1), fullgraph=True)
    check(fn, torch.tensor(3), kind(1), fullgraph=True)


# -- functions of numbers that are constants -------------------------------------------------------

OF_NUMBERS = {
    "clip": lambda x: np.clip(np.float32(3.5), 0, 2) + x,
    "clip of a size": lambda x: x * np.clip(x.shape[0], 1, 2),
    "clip of one side": lambda x: x + np.clip(-3, a_min=-1, a_max=None),
    "clip of an array": lambda x: torch.from_numpy(np.clip(x.numpy(), np.float32(1), None)),
    "isclose": lambda x: x + (1 if np.isclose(np.float64(1.0), 1.0) else 2),
    "allclose": lambda x: x + np.allclose(1.0, 1.5),
    "parts": lambda x: (x * np.real(np.float64(2)), np.imag(3.0)),
    "isscalar": lambda x: (x + 1, np.isscalar(3), np.isscalar(np.float32(2))),
    "array_equal": lambda x: (x + 1, np.array_equal(3, 3), np.array_equal(3, 4)),
    "argmin": lambda x: (x + 1, np.argmin((3, 1, 2)), np.argmax((1, 5))),
}


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_functions_of_constant_numbers(name):
    check(OF_NUMBERS[name], torch.arange(4.0), fullgraph=True)


# -- functions of lists, and the numbers in arrays ------------------------------------------------

OF_LISTS = {
    "sum of two": lambda x, v: np.add(v, [3, 4]),
    "of each": lambda x, v: (np.negative(v), np.sin(v), np.maximum(v, 2)),
    "to a number": lambda x, v: (np.sum(v), np.dot(v, v), np.linalg.norm(v), np.mean(v)),
    "joined": lambda x, v: (np.stack([v, v]), np.concatenate([v, v]), np.outer(v, v)),
    "in order": lambda x, v: (np.argsort(v), np.cumsum(v), np.diff(v), np.flip(v)),
    "to a tensor": lambda x, v: x + torch.from_numpy(np.multiply(v, 2)),
}


@pytest.mark.parametrize("name", OF_LISTS)
def test_functions_of_lists(name):
    fn = OF_LISTS[name]
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for items in ([1, 2], [3, 4], [1, 2], [1.5, 2.5], (5, 6), [7, 8]):
        assert repr(compiled(X[:2], items)) == repr(fn(X[:2], items))


def test_an_array_of_lists_is_another_each_time():
    def fn(x, items):
        made = np.multiply(items, 2)
        made[0] += 5
        items.append(0)
        return made, x + 1

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    first, second = compiled(X, [1, 2])[0], compiled(X, [1, 2])[0]
    assert first.tolist() == second.tolist() == [7, 4] and first is not second


IN_ARRAYS = {
    "int": lambda x, a: x + int(a[1]),
    "float": lambda x, a: (float(a[0]), x + float(a.max()) * 2),
    "of a sum": lambda x, a: x * int(np.sum(a)),
    "a size": lambda x, a: x.new_zeros(int(a[1])) + 1,
    "a bound": lambda x, a: x[: int(a[1]) - 1],
    "bool": lambda x, a: (bool(a[0] > 1), x + 1),
}


@pytest.mark.parametrize("name", IN_ARRAYS)
@pytest.mark.parametrize("kind", [np.int64, np.float64, np.float32])
def test_numbers_in_arrays(name, kind):
    fn, backend = IN_ARRAYS[name], CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for values in ([3, 2], [0, 3], [5, 2]):
        array = np.array(values, dtype=kind)
        assert_same(compiled(X, array), fn(X, array))
    assert len(backend.graphs) == 1


def test_numbers_in_arrays_of_constants():
    def fn(x):
        items = [3, 2]
        items[0] += 3
        array = np.array(items)
        array += 1
        return x + int(array[0]), x * int(array[1])

    check(fn, X, fullgraph=True)


def test_an_array_with_dimensions_is_no_number():
    def fn(x, a):
        return x + int(a)

    compiled = minidynamo.compile(fn, backend="eager")
    with pytest.raises(TypeError, match="only 0-dim"):
        compiled(X, np.array([1, 2]))


OF_SOME_SIZE = {
    "in place": lambda r, x: (r.__imul__(2), r),
    "elementwise": lambda r, x: (r + 1, 2 - r, -r, r * np.float64(3), r > 2),
    "functions": lambda r, x: (np.sin(r), np.sqrt(r).sum(), r.mean(), (r > 3).any()),
    "joined": lambda r, x: (np.concatenate([r, r]), r.astype(np.float32)),
    "a tensor": lambda r, x: torch.from_numpy(r) * 2,
    "reductions": lambda r, x: (r.sum(), len(r), r.shape),
}


@pytest.mark.parametrize("name", OF_SOME_SIZE)
def test_arrays_whose_size_depends_on_data(name):
    def fn(x, a):
        return OF_SOME_SIZE[name](a[a > 1], x), x + 1

    backend = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for values in ([1.0, 2.0, 3.0], [0.0, 1.0, 5.0], [0.0, 0.0, 0.5]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's of the mean of nothing
            assert repr(compiled(X, np.array(values))) == repr(fn(X, np.array(values)))
    assert len(backend.graphs) == 1


# Eager gives other kinds of results, broadcasts or raises its own errors, for some sizes.
NOT_OF_SOME_SIZE = {
    "squeezed": lambda a, b: np.squeeze(a[a > 1]),
    "the largest": lambda a, b: a[a > 1].max(),
    "the first": lambda a, b: a[a > 1][0],
    "two sizes": lambda a, b: a[a > 1] + b[b > 1],
    "with a known size": lambda a, b: a[a > 1] + b,
}


@pytest.mark.parametrize("name", NOT_OF_SOME_SIZE)
def test_what_depends_on_a_size_that_depends_on_data_breaks(name):
    fn = NOT_OF_SOME_SIZE[name]
    with pytest.raises(minidynamo.exc.Unsupported):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(A, A + 1)
    compiled = minidynamo.compile(fn, backend="eager")
    for a, b in ((A, A + 1), (A[:1] + 4, A[:1] + 5), (A - 1, A)):
        assert repr(outcome_of(compiled, a, b)) == repr(outcome_of(fn, a, b))


def outcome_of(fn, *args):
    try:
        return fn(*args)
    except (ValueError, IndexError) as error:
        return str(error)


def test_arrays_are_equal():
    def fn(x, a, b):
        return np.array_equal(a, b), np.array_equal(a, a[:1]), np.array_equal([1], [1]), x + 1

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    nan = np.array([1.0, np.nan, 3.0])
    for a, b in ((A, A.copy()), (A, A + 1), (nan, nan), (A, A.astype(np.int64))):
        assert_same(compiled(X, a, b), fn(X, a, b))
        assert_same(minidynamo.compile(fn, backend="eager")(X, a, b), fn(X, a, b))


def test_items_of_arrays():
    def fn(x, a):
        return a.item(0), a.item(-1), a[None].item(0, 1), a[None].item(1), x + a.item(2)

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for a in (A, A + 1, A.astype(np.int64)):
        assert_same(compiled(X, a), fn(X, a))


def test_indices_that_depend_on_data():
    def fn(x, a):
        return a[np.where(a > 1)].sum() + x, np.nonzero(a)[0] * 2

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for a in (A, A + 1, A - 5):
        assert repr(compiled(X, a)) == repr(fn(X, a))


def test_attributes_that_numpy_has():
    def fn(x, a):
        names = ("ptp", "is_integer", "sum", "nope", "real", "unsqueeze", "itemset", "T")
        found = [hasattr(part, name) for part in (a, a[0]) for name in names]
        try:
            a.itemset
        except AttributeError as error:
            return x + 1, found, str(error), getattr(a, "nope", 5)
        return x - 1, found

    compiled = minidynamo.compile(fn, backend="eager")
    for a in (A, A.astype(np.int64)):
        assert_same(compiled(X, a), fn(X, a))


def test_numbers_tell_whether_they_are_integers():
    def fn(x, a):
        return a[0].is_integer(), x + 1

    compiled = minidynamo.compile(fn, backend="eager")
    for a in (A, A + 0.5):
        assert_same(compiled(X, a), fn(X, a))


def test_what_is_in_an_array():
    def fn(x, a):
        return 3 in a, a[0] in a, 7 in a, 2.5 in a.reshape(1, 3), x + 1

    for options in ({"fullgraph": True}, {}):
        compiled = minidynamo.compile(fn, backend="eager", **options)
        for a in (A, A + 4, A.astype(np.int64), np.array([np.nan, 1.0, 2.5])):
            assert_same(compiled(X, a), fn(X, a))


def test_numbers_of_arrays_are_arguments_of_torch():
    def fn(x, a):
        return torch.zeros(a[1], 2) + 1, torch.full((2,), a[0]), x.new_ones(a[1])

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for values in ([1, 2], [1, 3], [5, 4]):
        assert_same(compiled(X, np.array(values)), fn(X, np.array(values)))


def test_numbers_of_arrays_of_the_frame_are_indices():
    def fn(x, a):
        return [10, 20, 30][a[0]], range(5)[a[1]], x + 1

    compiled = minidynamo.compile(fn, backend="eager")
    for values in ([1, 2], [0, 1]):
        assert_same(compiled(X, np.array(values)), fn(X, np.array(values)))
