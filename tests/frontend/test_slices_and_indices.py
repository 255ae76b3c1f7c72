"""Slices of objects, `__index__`, and deques that change while something looks at them."""

from collections import deque

import pytest
import torch
from testing import check, check_recompiles

import minidynamo

x = torch.arange(8.0)


def test_slice_of_a_list_is_one_list():
    def fn(x, part):
        part.start.append(4)
        return x + len(part.start), part.start is part.start, part == slice([1, 4], None)

    check(fn, x, slice([1], None))


def test_two_names_of_a_slice_behind_a_break():
    def fn(x):
        part = slice([1, 2], [3], None)
        same = part
        minidynamo.graph_break()
        start, stop = part.start, same.start
        minidynamo.graph_break()
        return x + 1, start is stop, part is same

    check(fn, x, graphs=1)


def test_slices_of_tensors_as_arguments():
    def fn(x, part):
        return x[part] + 1

    calls = [(1, 3), (2, 6), (0, 8)]
    check_recompiles(fn, [(x, slice(*map(torch.tensor, bounds))) for bounds in calls], None)
    check_recompiles(fn, [(x, slice(*bounds)) for bounds in calls], None)


class Lying(int):
    def __index__(self):
        return 42


class Flag:
    def __index__(self):
        return True


def test_subclasses_of_int_are_not_asked_for_their_index():
    def fn(x):
        two = Lying(2)
        return x + 1, [1, 2, 3][two], range(two), [0] * two, [1, 2, 3][:two]

    check(fn, x, fullgraph=True)


def test_index_that_is_warned_about():
    def fn(x):
        return x + [1, 2, 3][Flag()]

    with pytest.warns(DeprecationWarning, match="__index__ returned non-int"):
        minidynamo.compile(fn, backend="eager")(x)


def items_are_replaced(x, queue):
    items = iter(queue)
    backwards = reversed(queue)
    first = next(items), next(backwards)
    queue[2] = 9
    x = x * 2
    minidynamo.graph_break()
    queue[3] = 7
    return x + 1, first, next(items), list(items), list(backwards)


def test_replaced_items_of_a_deque_end_no_iterator():
    check(items_are_replaced, x, deque(range(5)), graphs=None)
    check(lambda x: items_are_replaced(x, deque(range(5))), x, graphs=None)


def test_reversed_deque_ends_no_iterator():
    def fn(x, queue):
        items = iter(queue)
        first = next(items)
        queue.reverse()
        return x + first, list(items)

    check(fn, x, deque(range(5)), fullgraph=True)


class Emptying:
    def __init__(self, answer):
        self.answer = answer

    def __eq__(self, other):
        CHANGED[0].clear()
        return self.answer


CHANGED = [None]


@pytest.mark.parametrize("name", ["__contains__", "count", "index", "remove"])
@pytest.mark.parametrize("answer", [True, False, NotImplemented])
def test_comparing_must_not_change_a_deque(name, answer):
    def fn(x):
        queue = CHANGED[0] = deque([Emptying(answer), 1])
        try:
            found = getattr(queue, name)(3)
        except (RuntimeError, IndexError) as error:
            found = type(error), str(error)
        return x + 1, found, len(queue)

    check(fn, x, graphs=None)


def test_bounds_of_index():
    def fn(x, queue):
        found = queue.index(3), queue.index(3, 1), queue.index(3, -3, 5), queue.count(2)
        try:
            queue.index(3, 4)
        except ValueError as error:
            return x + 1, found, str(error), 4 in queue, 9 in queue

    check(fn, x, deque(range(5)), fullgraph=True)


def test_slices_are_compared_as_tuples_of_their_parts():
    class Refuses:
        def __eq__(self, other):
            raise ValueError("not compared")

    def fn(x, n):
        own, refuses = slice(1, n), Refuses()
        found = [
            own == slice(1, 3),
            own != slice(1, n, None),
            slice(1, 3) == own,
            own == (1, n),
        ]
        found += [slice(1, n, 1) < slice(1, 5, 1), own in [slice(1, 3)]]
        found.append(slice(refuses, 1) == slice(refuses, 2))
        for compare in (lambda: slice(refuses) == own, lambda: own < slice(1, None)):
            try:
                found.append(compare())
            except (TypeError, ValueError) as error:
                found.append(str(error))
        return x + 1, found

    check(fn, x, 3, fullgraph=True)
    sizes = [(x, n) for n in (3, 4, 5)]
    check_recompiles(fn, sizes, graphs=None, fullgraph=True, dynamic=True)


def test_indices_of_a_slice():
    def fn(x, part, n):
        try:
            return x + 1, part.indices(n), list(range(*part.indices(4)))
        except (TypeError, ValueError) as error:
            return x - 1, str(error)

    parts = [slice(2, 7, 2), slice(None, 3), slice(1, None, -3), slice(4, 8), slice("a", 2)]
    for part in parts:
        sizes = [(x, part, n) for n in (5, 9, True, -1, "a")]
        check_recompiles(fn, sizes, graphs=None, fullgraph=True)
    many = [(x, slice(n, None), 8) for n in (1, 2, 3, 4)]
    check_recompiles(fn, many, graphs=None, fullgraph=True)
