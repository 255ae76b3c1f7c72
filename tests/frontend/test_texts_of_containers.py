"""Texts of containers and of what is formatted into text, views' mappings, hashes of nests."""

from __future__ import annotations

import collections
import os
import types
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass

import pytest
import torch
from testing import assert_same, check

import minidynamo

X = torch.arange(4.0)
Pair = collections.namedtuple("Pair", "a b")


class Listed(list):
    pass


class Counted(defaultdict):
    pass


class Ordered(OrderedDict):
    pass


def within_itself(make):
    container = make()
    container.append(container)
    return container


@pytest.mark.parametrize(
    "make",
    [
        lambda: deque([1, [2]], 3),
        lambda: deque(),
        lambda: defaultdict(list, {1: [2]}),
        lambda: defaultdict(None, {1: (2,)}),
        lambda: Counted(int, {"a": {}}),
        lambda: OrderedDict(a=[1], b=()),
        lambda: Ordered(),
        lambda: Ordered(a=deque("xy")),
        lambda: {1: [2]}.keys(),
        lambda: {1: [2]}.values(),
        lambda: {1: [2]}.items(),
        lambda: OrderedDict(a=1).items(),
        lambda: types.MappingProxyType({1: [2]}),
        lambda: Listed([1, Listed()]),
        lambda: Pair([1], {2: None}),
        lambda: within_itself(list),
        lambda: within_itself(deque),
    ],
)
def test_reprs(make):
    def f(x):
        container = make()
        return x + 1, repr(container), str(container), f"{container}"

    check(f, X, graphs=1)


def test_reprs_of_what_the_frame_is_given():
    def f(x, ordered, counts):
        text = repr(ordered) + repr(counts)
        ordered["new"] = [len(text)]
        return x + 1, text, repr(ordered)

    check(f, X, OrderedDict(a=[1]), Counted(list, {1: [2]}), graphs=1)


class Shown:
    def __init__(self, calls):
        self.calls = calls

    def __str__(self):
        self.calls.append("str")
        return "s"

    def __repr__(self):
        self.calls.append("repr")
        return "r"


class Wrong:
    def __repr__(self):
        raise KeyError("no text")


def test_objects_formatted_into_text():
    def f(x):
        calls = []
        shown = Shown(calls)
        text = "%s %r %5s|%-4r|%d %.2f %%" % (shown, shown, shown, [shown], 3, 0.5)
        try:
            "%s %s" % (shown, Wrong())
        except KeyError as error:
            calls.append(error.args)
        return x + 1, text, calls

    check(f, X, graphs=1)


def test_objects_formatted_as_numbers_are_left_to_python():
    class Index:
        def __index__(self):
            return 255

        def __float__(self):
            return 0.25

    def f(x, value):
        try:
            return x + 1, "%x %f" % (value, value)
        except TypeError as error:
            return x + 2, str(error)

    check(f, X, Index())
    check(f, X, [1])


class NoText:
    def __repr__(self):
        return 5


@pytest.mark.parametrize(
    "show",
    [str, repr, "{}".format, lambda o: "%s" % (o,), lambda o: f"{o!r}", lambda o: repr([o])],
)
def test_objects_whose_text_is_no_text(show):
    def f(x):
        try:
            return x, show(NoText())
        except TypeError as error:
            return x + 1, str(error)

    check(f, X, graphs=1)


@dataclass(frozen=True)
class Inner:
    x: float
    y: float


@dataclass(frozen=True)
class Outer:
    inner: Inner
    z: int


class Unstable:
    def __eq__(self, other):
        return type(other) is Unstable

    def __hash__(self):
        return 7


def test_hashes_of_nests_with_objects_of_the_program():
    def f(x):
        key = Outer(Inner(2.5, 4.5), 5)
        table = {key: 2}
        nest = (Unstable(), frozenset([Inner(1.0, 2.0)]), "a")
        same = hash(nest) == hash((Unstable(), frozenset([Inner(1.0, 2.0)]), "a"))
        found = table[Outer(Inner(2.5, 4.5), 5)]
        missing = Outer(Inner(2.5, 4.0), 5) in table
        return x + found, hash(key) == hash((Inner(2.5, 4.5), 5)), same, missing, table

    check(f, X, graphs=1)


def test_hashes_of_nests_with_an_unhashable_part():
    def f(x):
        try:
            return {Outer([], 5): 1}
        except TypeError as error:
            return x + 1, str(error)

    check(f, X, graphs=1)


def test_mapping_of_a_view():
    def f(x, given):
        table = {"a": 1}
        proxy, other = table.keys().mapping, given.items().mapping
        table["b"] = 2
        given["c"] = 3
        kinds = [type(view.mapping) for view in (table.values(), given.keys())]
        return x + proxy["b"] + other["c"], proxy, other, proxy == table, kinds

    check(f, X, {"q": 1}, graphs=1)


@pytest.mark.parametrize("path", ["/a/../b/q.py", "rel/z", ""])
def test_paths(path):
    def f(x, path):
        parts = os.path.splitext(path), os.path.split(path), os.path.dirname(path)
        asked = os.path.isabs(path), os.path.normpath(path), os.path.normcase(path)
        return x + len(parts[0][1]), parts, asked, os.path.commonprefix([path, "/a/x"])

    check(f, X, path, graphs=1)


def test_sets_within_themselves():
    class Shown:
        def __repr__(self):
            return repr(self.value)

    def fn(x, shown, cls):
        shown.value = cls([shown])
        return x + 1, repr(shown.value)

    x = torch.ones(2)
    for cls in (set, frozenset, type("Kind", (set,), {}), type("Frozen", (frozenset,), {})):
        minidynamo.reset()
        compiled = minidynamo.compile(fn, backend="eager")
        assert_same(compiled(x, Shown(), cls), fn(x, Shown(), cls))


class Loud(list):
    def __repr__(self):
        return "Loud" + super().__repr__()


def test_repr_as_a_method():
    def fn(x):
        within = [1]
        within.append(within)
        counts = defaultdict(int, a=1)
        shown = [v.__repr__() for v in ([1], (2,), {3: 4}, {5}, deque([6]), Pair(1, 2), counts)]
        views = {}.keys().__repr__(), OrderedDict(a=1).__repr__(), within.__repr__()
        loud = str(Loud([1])), list.__repr__(Loud([2])), Loud([3]).__repr__()
        try:
            [1].__repr__(2)
        except TypeError as error:
            return x + 1, shown, views, loud, str(error)

    check(fn, X, graphs=1, breaks=0)
