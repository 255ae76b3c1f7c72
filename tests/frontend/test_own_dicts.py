"""Dicts whose items are attributes: `self.__dict__ = self`."""

from __future__ import annotations

import collections
import copy

import pytest
import torch
from testing import CountingBackend, assert_same

import minidynamo

X = torch.arange(4.0)


class Options(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self

    @property
    def product(self):
        return self.rate * self["decay"]

    def count(self):
        self.calls = self.get("calls", 0) + 1
        return self.calls


class Ordered(collections.OrderedDict):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.__dict__ = self


def stored_as_attributes(x, options):
    options.rate = 3.0
    options.new = x
    options.rate += 1
    return x * options["rate"] + options["new"]


def stored_as_items(x, options):
    options["rate"] = 3.0
    options.update(new=x)
    options.__dict__["other"] = 2
    return x * options.rate + options.new * options.other, list(vars(options))


def deleted(x, options):
    del options.rate
    options.pop("decay")
    try:
        options.decay
    except AttributeError as error:
        options.missed = str(error)
    return x + len(options), hasattr(options, "rate"), "decay" in options


def methods(x, options):
    return options.count() + options.count() + x * options.product


def itself(x, options):
    return x + 1, options.__dict__ is options, repr(options), options == {"rate": 2.0}


@pytest.mark.parametrize(
    "fn", [stored_as_attributes, stored_as_items, deleted, methods, itself]
)
def test_of_the_program(fn):
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for _ in range(2):
        mine, theirs = (Options(rate=2.0, decay=1.0) for _ in range(2))
        assert_same(fn(X, mine), compiled(X, theirs))
        assert dict(mine) == dict(theirs) if fn is deleted else mine.keys() == theirs.keys()
        assert theirs.__dict__ is theirs
    assert len(counter.graphs) == 1


def test_an_item_that_changes_between_calls():
    def fn(x, options):
        result = x * options.rate
        options.rate = options.rate * 0.5
        return result

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    mine, theirs = Options(rate=2.0), Options(rate=2.0)
    for change in (None, lambda o: o.update(rate=7.0), lambda o: setattr(o, "rate", 9.0)):
        for call, options in ((fn, mine), (compiled, theirs)):
            if change is not None:
                change(options)
            last = call(X, options)
        assert_same(last, fn(X, Options(rate=theirs.rate * 2)))
        assert dict(mine) == dict(theirs)


def test_made_inside():
    def fn(x):
        inner = Options(scale=2)
        options = Options(inner=inner, x=x)
        options.inner.scale += 1
        options.inner.update(more=4)
        copied, deep = copy.copy(options), copy.deepcopy(Options(k=[1]))
        copied.inner.own = 1
        same = copied.__dict__ is copied, hasattr(deep, "k"), hasattr(copied, "x")
        return options.x * options["inner"].scale + inner.more, options, same, dict(deep)

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    want, got = fn(X), compiled(X)
    assert_same(want[0], got[0])
    assert want[2:] == got[2:]
    assert dict(got[1]["inner"]) == {"scale": 3, "more": 4, "own": 1}
    assert got[1].__dict__ is got[1]
    assert vars(got[1].inner) is got[1]["inner"]


def test_ordered_ones_are_left_to_eager():
    def fn(x, options):
        options.rate = 3
        return x * options["rate"], list(dict.keys(options))

    compiled = minidynamo.compile(fn, backend="eager")
    for _ in range(2):
        assert_same(fn(X, Ordered(rate=2)), compiled(X, Ordered(rate=2)))


# -- other dicts in place of an object's own ---------------------------------------------------


class Plain:
    number = 9

    def __init__(self):
        self.own = 1

    @property
    def double(self):
        return self.scale * 2


class Shared:
    table = {}

    def __init__(self):
        self.__dict__ = Shared.table
        self.made = getattr(self, "made", 0) + 1


def replaced(x, a, b, table):
    a.own = 50
    a.__dict__ = {"scale": 2, "other": x}
    a.more = a.scale + 1
    del a.other
    known = hasattr(a, "own"), hasattr(a, "other"), list(a.__dict__), a.number
    return x * a.double + a.more, known, vars(a)


def extended(x, a, b, table):
    a.__dict__ = {**a.__dict__, "x": x}
    a.__dict__.update(scale=3)
    copied = copy.copy(a)
    copied.own = 7
    return x * a.double + a.own, copied.own


def one_for_two(x, a, b, table):
    a.__dict__ = table
    b.__dict__ = table
    a.scale = 4
    table["x"] = x
    return b.x * b.double, b.__dict__ is table, vars(a)


def moved(x, a, b, table):
    old = a.__dict__
    a.__dict__ = {"old": old}
    return x + 1, a.old is old, hasattr(a, "own"), old


def no_dict(x, a, b, table):
    try:
        a.__dict__ = 3
    except TypeError as error:
        return x + a.own, str(error)


@pytest.mark.parametrize("fn", [replaced, extended, one_for_two, moved, no_dict])
def test_another_instance_dict(fn):
    def run(call):
        results = []
        for _ in range(2):
            a, b, table = Plain(), Plain(), {"key": 1}
            first = a.__dict__
            result = call(X, a, b, table)
            state = [dict(vars(a)), dict(vars(b)), dict(table), dict(first)]
            results.append((result, state, first is vars(a), result[-1] is vars(a)))
        return results

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    assert_same(run(fn), run(compiled))
    assert len(counter.graphs) == 1


def test_objects_that_share_one_dict():
    def fn(x):
        first, second = Shared(), Shared()
        second.x = x
        return first.x * first.made, first

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for made in (2, 4, 6):
        result, first = compiled(X)
        assert_same(result, X * made)
        assert first.__dict__ is Shared.table
        assert Shared.table == {"made": made, "x": X}
    Shared.table.clear()


def test_what_the_object_had_before_is_not_written_to_any_more():
    def fn(x, a):
        old = a.__dict__
        a.__dict__ = {"new": 1}
        old["late"] = 2
        return x + a.new, hasattr(a, "late"), sorted(old)

    compiled = minidynamo.compile(fn, backend="eager")
    assert_same(fn(X, Plain()), compiled(X, Plain()))


def test_another_instance_dict_at_a_graph_break():
    def fn(x, a):
        a.__dict__ = {"own": 2}
        a.x = x
        minidynamo.graph_break()
        a.x = a.x + 1
        return a.x * a.own

    compiled = minidynamo.compile(fn, backend="eager")
    mine, theirs = Plain(), Plain()
    assert_same(fn(X, mine), compiled(X, theirs))
    assert_same(vars(mine), vars(theirs))


def test_the_end_of_what_the_object_had():
    events = []

    class Ending:
        def __del__(self):
            events.append("end")

    class Holder:
        def __init__(self):
            self.ending, self.scale = Ending(), 1

    def fn(x):
        holder = Holder()
        holder.__dict__ = {"scale": 2}
        events.append("after")
        return x * holder.scale

    compiled = minidynamo.compile(fn, backend="eager")
    for _ in range(2):
        events.clear()
        assert_same(compiled(X), X * 2)
        assert events == ["end", "after"]
