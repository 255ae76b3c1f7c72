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
