"""Comprehensions whose variables have the name of a cell of the function around (from CPython 3.12
on they share its slot), and functions made in them.
"""

from __future__ import annotations

import types

import pytest
import torch
from testing import CountingBackend, assert_same

import minidynamo

x = torch.ones(2)


def captured_and_plain(x):
    functions = [lambda: i for i in range(3)]
    return x + 1, functions, [i for i in range(2)], [[j for j in range(i)] for i in range(3)]


def same_name_outside(x):
    i = 7
    functions = [lambda: i for i in range(3)]
    return x + i, functions


def both_captured(x):
    i = 7

    def outside():
        return i

    functions = [lambda: i for i in range(3)]
    i = 8
    return x + i, functions, outside


def plain_in_the_slot_of_a_cell(x):
    i = 7

    def outside():
        return i

    return x + 1, [i for i in range(3)], outside, i


def an_argument(x, i=3):
    def outside():
        return i

    return x + i, [[i for i in range(i)] for i in range(i)], outside


def twice(x):
    functions = []
    for n in range(2):
        functions.append([lambda: (n, i) for i in range(n + 1)])
    return x + 1, functions, [lambda: i for i in range(4)]


def that_raises(x):
    i = 7
    try:
        [(lambda: i, 1 // (i - 1)) for i in range(3)]
    except ZeroDivisionError:
        x = x + 1
    return x + i, lambda: i


def assigned_behind(x):
    functions = [lambda: i for i in range(3)]
    i = 5
    return x + i, functions, lambda: i


def in_a_function(x):
    return both_captured(x), x + 1


def generators_inside(x):
    found = [any(c == v for c in "ab") for v in "bc"]
    v = 5
    return x + v, found, lambda: v


PROGRAMS = [
    captured_and_plain,
    same_name_outside,
    both_captured,
    plain_in_the_slot_of_a_cell,
    an_argument,
    twice,
    that_raises,
    assigned_behind,
    in_a_function,
    generators_inside,
]


def broken_inside(x):
    y = x + 1
    functions = [(lambda: i, minidynamo.graph_break())[0] for i in range(3)]
    return y * 2, functions


def broken_inside_with_the_same_name_outside(x):
    i = 7
    functions = [(lambda: i, minidynamo.graph_break())[0] for i in range(3)]
    return x + i, functions, lambda: i


def broken_inside_and_used_behind(x):
    functions = [(lambda: i, minidynamo.graph_break())[0] for i in range(3)]
    i = 5
    minidynamo.graph_break()
    return x + i, functions, lambda: i, [i for i in range(2)]


def broken_inside_twice(x):
    functions = []
    for n in range(2):
        functions.append([(lambda: i, minidynamo.graph_break())[0] for i in range(n + 1)])
    return x + 1, functions


def broken_in_a_plain_one(x):
    i = 7

    def outside():
        return i

    found = [minidynamo.graph_break() or i for i in range(3)]
    return x + i, found, outside


def broken_around(x):
    minidynamo.graph_break()
    i = 7
    functions = [lambda: i for i in range(3)]
    minidynamo.graph_break()
    return x + i, functions, lambda: i


def broken_in_a_function(x):
    return broken_inside_with_the_same_name_outside(x), x + 1


BROKEN = [
    broken_inside,
    broken_inside_with_the_same_name_outside,
    broken_inside_and_used_behind,
    broken_inside_twice,
    broken_in_a_plain_one,
    broken_around,
    broken_in_a_function,
]


def answers(value):
    """The functions in a nest of containers called."""
    if isinstance(value, types.FunctionType):
        return value()
    if isinstance(value, (list, tuple)):
        return [answers(item) for item in value]
    return value


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program):
    backend = CountingBackend()
    compiled = minidynamo.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        assert_same(answers(program(x)), answers(compiled(x)))
    assert len(backend.graphs) == 1


@pytest.mark.parametrize("program", BROKEN)
def test_with_graph_breaks(program):
    compiled = minidynamo.compile(program, backend="eager")
    for _ in range(2):
        assert_same(answers(program(x)), answers(compiled(x)))


def test_what_comes_before_a_break_inside_is_kept():
    backend = CountingBackend()
    compiled = minidynamo.compile(broken_inside, backend=backend)
    assert_same(answers(broken_inside(x)), answers(compiled(x)))
    assert backend.op_count == 2
