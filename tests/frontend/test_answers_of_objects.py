"""Signatures, descriptors, instance dicts, counters, checks with messages: what programs ask
Python's own objects while they compute.
"""

import inspect
import itertools
import operator
import typing

import numpy as np
import pytest
import torch
from testing import CountingBackend, assert_same, check, check_recompiles, outcome
from torch._prims_common import make_contiguous_strides_for
from torch.fx.experimental.symbolic_shapes import guard_size_oblivious

import minidynamo

x = torch.arange(4.0) + 1
LIMIT = 3


def described(a: torch.Tensor, b: int = 2) -> torch.Tensor:
    return a + b


class Described:
    limit = 7

    def method(self, p, q):
        return p


holder = Described()
class_dict = type.__dict__["__dict__"].__get__


def signature(a):
    parameter = inspect.signature(described).parameters["a"]
    is_empty = parameter.default is inspect.Parameter.empty
    return a + is_empty + len(parameter.name), parameter.kind.name


def signature_of_method(a):
    return a + len(inspect.signature(holder.method).parameters)


def bound_arguments(a):
    bound = inspect.signature(described).bind(1)
    given = dict(bound.arguments)
    bound.apply_defaults()
    return a + len(given), bound.args, bound.kwargs


def arguments_that_do_not_fit(a):
    try:
        inspect.signature(described).bind(1, 2, 3)
    except TypeError as error:
        return a - 1, str(error)
    return a


def descriptors(a):
    return a + len(class_dict(Described)), torch.Tensor.shape.__get__(a)


def structseq(a):
    pair = torch.return_types.max((a, a + 1))
    return pair, pair.values * 2


def iterators_of_constants(a):
    return a + next(range(3, 5).__iter__()), next("xy".__iter__())


def oblivious(a):
    return a + 1 if guard_size_oblivious(a.size(0) == 0) else a - 1


def accelerator(a):
    return a + torch.accelerator.is_available()


@pytest.mark.parametrize(
    "fn",
    [
        signature,
        signature_of_method,
        bound_arguments,
        arguments_that_do_not_fit,
        descriptors,
        structseq,
        iterators_of_constants,
        oblivious,
        accelerator,
    ],
    ids=lambda fn: fn.__name__,
)
def test_answers(fn):
    check(fn, x, graphs=1, fullgraph=True)


def test_descriptor_as_argument():
    def fn(getter, a):
        return a * 2, getter.__get__(a)

    backend = CountingBackend()
    fast = minidynamo.compile(fn, backend=backend, fullgraph=True)
    assert fast(torch.Tensor.shape, x)[1] == x.shape
    assert fast(torch.Tensor.shape, x)[1] == x.shape and len(backend.graphs) == 1
    assert fast(torch.Tensor.dtype, x)[1] is torch.float32 and len(backend.graphs) == 2


def test_strides_of_symbolic_sizes():
    def fn(a):
        return a.as_strided(a.shape, make_contiguous_strides_for(a.shape)) + 1

    args = [(torch.rand(n, 8),) for n in (4, 7, 9)]
    check_recompiles(fn, args, graphs=1, fullgraph=True, dynamic=True)


class Doubling:
    def __set__(self, instance, value):
        instance.__dict__["field"] = instance.__dict__.get("field", 0) + value * 2


class Shadowed:
    field = Doubling()

    @property
    def own(self):
        return self.__dict__["own"]


def store_beside_descriptors(a, target):
    target.field = 10
    target.__dict__["own"] = a + 1
    return a + target.__dict__["field"], target.own


def make_beside_descriptors(a):
    made = Shadowed()
    made.field = 4
    made.__dict__["own"] = a
    made.__dict__["gone"] = 1
    del made.__dict__["gone"]
    return made, made.own + 1


def test_entries_beside_descriptors():
    check(store_beside_descriptors, x, Shadowed(), graphs=1, fullgraph=True)
    check(make_beside_descriptors, x, graphs=1, fullgraph=True)

    def delete(a, target):
        del target.__dict__["own"]
        return a + 1, "own" in target.__dict__

    target = Shadowed()
    target.__dict__["own"] = 3
    check(delete, x, target, graphs=1, fullgraph=True)


@pytest.mark.parametrize("start, step", [(0, 1), (5, 1), (3, -2)])
def test_counter_of_the_program(start, step):
    eager, counter = itertools.count(start, step), itertools.count(start, step)
    backend = CountingBackend()

    def fn(a):
        return a * (next(counter) + 1) + next(counter)

    fast = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for _ in range(5):
        assert_same(fast(x), x * (next(eager) + 1) + next(eager))
    assert next(counter) == next(eager)
    assert len(backend.graphs) <= 3


def test_groups_without_tensors():
    def fn(items):
        groups = [(k, list(g)) for k, g in itertools.groupby(items, key=operator.neg)]
        return groups, [list(part) for part in itertools.tee(items)]

    fast = minidynamo.compile(fn, backend=CountingBackend(), fullgraph=True)
    assert fast([1, 2, -2, 3]) == fn([1, 2, -2, 3])


def check_with_closure(a):
    torch._check(a.shape[0] > 3, lambda: f"{a.shape[0]} is small")
    return a + 1


def check_with_global(a):
    torch._check_value(a.shape[0] > LIMIT, lambda: f"not more than {LIMIT}")
    return a + 1


def check_that_is_caught(a):
    try:
        torch._check_index(a.shape[0] > 3, lambda: "too few")
    except IndexError as error:
        return a - 1, str(error)
    return a + 1, ""


def check_without_message(a):
    torch._check_type(a.shape[0] > 3)
    return a + 1


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "fn",
    [check_with_closure, check_with_global, check_that_is_caught, check_without_message],
    ids=lambda fn: fn.__name__,
)
def test_failed_checks_say_what_eager_says(fn, dynamic, fullgraph):
    fast = minidynamo.compile(
        fn, backend=CountingBackend(), dynamic=dynamic, fullgraph=fullgraph
    )
    for size in (2, 5, 3, 6):
        a = torch.ones(size)
        assert_same(outcome(fast, (a,), {}), outcome(fn, (a,), {}))


def test_truth_of_data():
    def fn(a):
        return bool(a.sum().item()), bool((a == 0).all()), bool(a.any())

    backend = CountingBackend()
    fast = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for a in (torch.ones(3), torch.zeros(3), torch.tensor([1.0, -1.0, 0.0])):
        assert fast(a) == fn(a)
    assert len(backend.graphs) == 1


def test_run_inside_of_captured_code():
    def inner(a):
        return torch.sin(a) * 10

    ran = minidynamo.run()(inner)
    backend = CountingBackend()
    fast = minidynamo.compile(lambda a: ran(a) + 1, backend=backend, fullgraph=True)
    assert_same(fast(x), inner(x) + 1)
    assert backend.op_count == 3


# -- numbers and sizes in calls of numpy ----------------------------------------------------------


def array_of_arrays(a, b):
    return np.array([a, b]), np.array([[a, b], [b, a]]).shape


def filled(n, a):
    return np.zeros((n, 2)) + np.arange(n)[:, None] + a


def chosen(a, n):
    return np.where(a < 2.5, n, a)


def scaled(a, n):
    return a * n + n


def mean_of_rows(a):
    return (a * 2).sum(axis=0) / a.shape[0]


def powers(a, n):
    return a**n


floats = np.arange(6.0)


@pytest.mark.parametrize(
    "fn, args, graphs",
    [
        (array_of_arrays, [(np.arange(2), np.arange(2.0))], 1),
        (filled, [(n, np.ones(1)) for n in (3, 4, 5, 6)], 2),
        (chosen, [(floats, n) for n in (2, 3, 4, -1)], 2),
        (scaled, [(floats.astype(np.float32), n) for n in (2, 3, 5)], None),
        (mean_of_rows, [(np.ones((n, 2)),) for n in (2, 3, 5)], None),
        # Numbers that do not fit are errors, so they stay constants.
        (scaled, [(np.arange(3, dtype=np.uint8), n) for n in (3, 4, 300)], None),
        (powers, [(np.arange(1, 4), n) for n in (2, 3, -1)], None),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_numpy_with_symbolic_numbers(fn, args, graphs):
    backend = CountingBackend()
    fast = minidynamo.compile(fn, backend=backend)
    for given in args:
        want, got = outcome(fn, given, {}), outcome(fast, given, {})
        assert want[0] == got[0]
        np.testing.assert_equal(got[1], want[1])
    assert graphs is None or len(backend.graphs) == graphs


def test_numpy_to_lists():
    backend = CountingBackend()
    fast = minidynamo.compile(lambda a: (a.tolist(), a.sum().item() + 1), backend=backend)
    assert fast(np.arange(3)) == ([0, 1, 2], 4)
    fast = minidynamo.compile(lambda a: a.tolist(), backend=backend, fullgraph=True)
    assert fast(np.arange(3)) == [0, 1, 2] and fast(np.arange(3) + 1) == [1, 2, 3]
    assert len(backend.graphs) == 2


def test_frames_of_libraries_are_not_captured():
    backend = CountingBackend()
    fast = minidynamo.compile(lambda a: np.unique(a), backend=backend)
    assert fast(np.array([2, 1, 2])).tolist() == [1, 2]
    assert len(backend.graphs) <= 1


Kind = typing.TypeVar("Kind")


def hints(a):
    def apply(function: typing.Callable[[Kind], Kind], value: Kind) -> Kind:
        return function(value)

    return apply(torch.sin, a), typing.Callable[[int, str], Kind]


Given = typing.ParamSpec("Given")


def hints_of_parameters(a):
    def apply(
        function: typing.Callable[Given, Kind], *args: Given.args, **kwargs: Given.kwargs
    ):
        return function(*args, **kwargs)

    # Each is another object, and equal to the others.
    assert Given.args is not Given.args and Given.args == Given.args
    return apply(torch.sin, a), Given.kwargs.__origin__ is Given, repr(Given.args)


def numbers_like(a):
    some = a.new_tensor([a.shape[0], 2]), a.new_tensor(3.5), a.new_tensor([1], dtype=torch.int8)
    return *some, a + 1


@pytest.mark.parametrize("fn", [hints, hints_of_parameters, numbers_like])
def test_hints_and_numbers(fn):
    check_recompiles(fn, [(x,), (x,)], graphs=1, fullgraph=True)


def test_numbers_that_depend_on_data():
    def fn(a):
        count = a.nonzero().squeeze(-1).numel()
        return a.new_tensor([[count, count * a.shape[0]], [0, count - 1]])

    calls = [(torch.tensor([1, 0, 0, 5]),), (torch.tensor([1, 2, 0, 5]),)]
    check_recompiles(fn, calls, graphs=1, fullgraph=True)


def test_overloads_of_operators_that_nobody_asked_for_yet():
    with torch.library._scoped_library("answers_of_objects", "FRAGMENT") as library:
        library.define("doubled(Tensor x) -> Tensor")
        library.define("doubled.scaled(Tensor x, float by) -> Tensor")

        def fn(packet):
            named = getattr(packet, "scaled", None), getattr(packet, "other", None)
            return hasattr(packet, "default"), hasattr(packet, "nope"), named

        packet = torch.ops.answers_of_objects.doubled
        got = minidynamo.compile(fn, backend="eager", fullgraph=True)(packet)
        assert got == (True, False, (packet.scaled, None)) == fn(packet)
