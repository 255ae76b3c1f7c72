"""Builtins say what they say in eager about calls with other arguments than they take."""

from __future__ import annotations

import collections
import itertools
import operator
import sys

import pytest
import torch
from testing import CountingBackend, assert_same, check

import minidynamo

X = torch.arange(4.0)
DICT, LIST, SET, DEQUE = {1: 2}, [1, 2], {1}, collections.deque([1])
ORDERED = collections.OrderedDict(a=1)


class Listed(list):
    pass


class Unique(set):
    pass


class Frozen(frozenset):
    pass


class Paired(tuple):
    pass


CALLS = {
    "copy": lambda: DICT.copy(1),
    "append": lambda: LIST.append(),
    "append 2": lambda: LIST.append(1, 2),
    "append by name": lambda: LIST.append(x=1),
    "subclass": lambda: Listed().append(1, 2),
    "sort": lambda: LIST.sort(1),
    "sort by name": lambda: LIST.sort(x=1),
    "add": lambda: SET.add(),
    "frozenset": lambda: frozenset(SET).copy(1),
    "rotate": lambda: DEQUE.rotate(1, 2, 3),
    "move_to_end": lambda: ORDERED.move_to_end(),
    "get": lambda: DICT.get(),
    "get by name": lambda: DICT.get(key=1),
    "update": lambda: DICT.update(1, 2),
    "len": lambda: len(1, 2),
    "isinstance": lambda: isinstance(1),
    "map": lambda: map(),
    "enumerate": lambda: enumerate(),
    "getattr": lambda: getattr(1),
    "slice": lambda: slice(),
    "sorted": lambda: sorted(),
    "set subclass": lambda: Unique([1], [2]),
    "set subclass's __init__": lambda: Unique.__init__(SET, [1], [2]),
    "set subclass's method": lambda: Unique().copy(1),
    "frozenset subclass": lambda: Frozen([1], [2]),
    "frozenset subclass by name": lambda: Frozen(a=1),
    "tuple subclass": lambda: Paired([1], [2]),
    "tuple subclass by name": lambda: Paired([1], a=1),
    "__new__ of another class": lambda: tuple.__new__(list, [1]),
    "__new__ of a base": lambda: set.__new__(frozenset),
    "__new__ of an int": lambda: bool.__new__(int),
    "__new__ of a number": lambda: list.__new__(3),
    "__new__ of a class of C": lambda: collections.deque.__new__(list),
    "__new__ of an exception": lambda: ValueError.__new__(KeyError),
    "__new__ of nothing": lambda: dict.__new__(),
    "__mul__": lambda: LIST.__mul__(2.5),
    "__rmul__": lambda: (1,).__rmul__("a"),
    "__imul__": lambda: LIST.__imul__(None),
    "__mul__ of nothing": lambda: LIST.__mul__(),
    "__add__": lambda: LIST.__add__((1,)),
    "__add__ of a tuple": lambda: Paired((1,)).__add__([1]),
    "times": lambda: Listed([1]) * 2.5,
    "reflected times": lambda: 2.5 * Paired([1]),
    "times of two": lambda: Listed([1]) * Listed([1]),
    "in-place times": lambda: operator.imul(Listed([1]), "a"),
    "sort by no int": lambda: LIST.sort(reverse="a"),
    "sorted by no int": lambda: sorted(LIST, reverse=None),
    "maxlen": lambda: collections.deque([1], "a"),
    "thrown": lambda: (i for i in LIST).throw(ValueError("a"), "b"),
    "next": lambda: iter([1]).__next__(3),
    "keys of none": lambda: dict.fromkeys(),
    "keys of three": lambda: collections.defaultdict.fromkeys([1], 2, 3),
    "ordered keys of none": lambda: collections.OrderedDict.fromkeys(),
    "length of repeat": lambda: itertools.repeat(1).__length_hint__(),
}


def test_arguments_that_are_missing_or_given_twice_by_name():
    def fn(x, *args, **kwargs):
        return collections.OrderedDict.fromkeys(*args, **kwargs), x + 1

    check(fn, X, value=1, graphs=None)
    check(fn, X, "a", iterable="b", graphs=None)


@pytest.mark.parametrize("name", CALLS)
def test_text_of_the_type_error(name):
    call = CALLS[name]

    def fn(x):
        try:
            return x + 1, call()
        except TypeError as error:
            return x + 1, str(error)

    check(fn, X, fullgraph=True)


def test_sequences_ask_the_other_operand_first():
    """`+` and `*` of lists ask the number slots of what is no sequence and no count."""

    class Other:
        def __radd__(self, left):
            return len(left)

        def __rmul__(self, left):
            return -len(left)

    def fn(x):
        other = Other()
        joined = LIST + other, (1, 2, 3) + other, Listed([1]) + other
        times = LIST * other, Paired([1]) * other, [1] * True, [x, x] * 2, (1,) * 2
        items = [1]
        items *= other
        order = sorted([1, 3, 2], reverse=True), sorted([1, 3, 2], reverse=2)
        return x + 1, joined, times, items, order

    check(fn, X, fullgraph=True)


def test_left_of_iterators():
    def fn(x):
        elements, items, pairs = {1, 2, 3}, [1, 2, 3], {1: 2, 3: 4}
        made = [iter(elements), iter(items), iter(pairs), iter(pairs.items())]
        found = [item.__length_hint__() for item in made]
        for item in made:
            next(item)
        items.append(4)
        elements.add(5)
        return x + 1, found, [operator.length_hint(item) for item in made]

    check(fn, X, fullgraph=True)


def test_length_hint_of_an_argument_is_left_to_eager():
    def fn(x):
        y = x + 1
        try:
            iter({1}).__length_hint__(3)
        except TypeError as error:
            return y, str(error)

    check(fn, X, graphs=1, breaks=1)


def test_left_of_a_repeat():
    def fn(x):
        rest = itertools.repeat(x, 3)
        next(rest)
        left = rest.__length_hint__(), operator.length_hint(rest)
        return x + 1, left, operator.length_hint(itertools.repeat(1), 9), list(rest)

    check(fn, X, fullgraph=True)


def test_values_that_lack_the_slot():
    """Functions, generators of the program, modules and classes: TypeError, in the graph."""

    class Kind:
        pass

    class Held:
        def __init__(self, other):
            self.other = other
            self.mine = {1, 2}

    def fn(x, held):
        tries = [
            lambda: held.mine.difference(operator.add),
            lambda: held.mine | held.other,
            lambda: held.other ^ held.mine,
            lambda: held.mine - operator.add,
            lambda: held.mine.__class__() | len,
            lambda: operator.ior(set(held.mine), held.other),
            lambda: [*len],
            lambda: list(operator),
            lambda: list(torch.float32),
            lambda: iter(Kind),
            lambda: len(Kind),
            lambda: 3 + held.other,
            lambda: -held.other,
        ]
        texts = []
        for number, attempt in enumerate(tries):
            try:
                attempt()
            except TypeError as error:
                texts.append((number, str(error)))
        return x + len(texts), texts

    def values(value):
        yield value

    x = torch.ones(2)
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    held = Held(values(1))
    assert_same(compiled(x, held), fn(x, held))
    other = Held({2, 3})  # no generator any more
    assert_same(compiled(x, other), fn(x, other))
    assert_same(compiled(x, held), fn(x, held))
    assert len(counter.graphs) == 2


def test_values_that_do_not_fit():
    class Unlike:
        def __eq__(self, other):
            return False

    def texts(*actions):
        found = []
        for action in actions:
            try:
                action()
            except (MemoryError, OverflowError, TypeError) as error:
                found.append((type(error), str(error)))
        return found

    def fn(x, b):
        items = [1, b]
        found = texts(
            lambda: items * sys.maxsize,
            lambda: (1, b) * (sys.maxsize // 2 + 1),
            lambda: items * (sys.maxsize + 1),
            lambda: items * (-sys.maxsize - 1),
            lambda: setattr(ValueError(), "__traceback__", 5),
            lambda: ValueError().with_traceback(5),
        )
        try:
            items.index(Unlike())
        except ValueError as error:
            unlike = type(error.args[0]), len(error.args)
        return x + 1, found, unlike

    check(fn, X, 2, fullgraph=True)
    assert [kind for kind, _ in fn(X, 2)[1]] == [
        MemoryError,
        MemoryError,
        OverflowError,
        TypeError,
        TypeError,
    ]


def test_keywords_that_are_no_strings():
    def named(**given):
        return given

    def fn(x):
        found = []
        for call in (
            lambda: named(**{1: 3}, **{1: 5}),
            lambda: named(**{1: 3}, **{2: 3}),
            lambda: named(**{"a": 3}, **{1: 3}, **{"a": 4}),
            lambda: named(a=1, **{1: 2}),
            lambda: dict(**{1: 2}, **{1: 2}),
        ):
            try:
                found.append(call())
            except TypeError as error:
                found.append(str(error))
        return x + 1, found

    assert_same(minidynamo.compile(fn, backend="eager")(X), fn(X))


def test_class_methods_of_what_is_not_called():
    class Holds:
        number = classmethod(5)

    def fn(x):
        method = Holds.number
        minidynamo.graph_break()
        try:
            method(1)
        except TypeError as error:
            return x + 1, str(error), method.__func__, method.__self__ is Holds

    assert_same(minidynamo.compile(fn, backend="eager")(X), fn(X))
