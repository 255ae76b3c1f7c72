"""Objects and their instance dicts that the frame reaches by different routes."""

import pytest
import torch
from testing import CountingBackend, assert_same

import minidynamo

X = torch.arange(6.0).reshape(2, 3)


class Holder:
    def __init__(self):
        self.count = 2


def test_an_instance_dict_by_two_routes():
    """The frame has an object and, as another argument or behind a break, its instance dict."""

    def fn(x, holder, table):
        holder.count, table["other"] = 7, 8
        return x + table["count"] + holder.other, dict(table), vars(holder) is table

    def behind(x, holder):
        table = vars(holder)
        minidynamo.graph_break()
        holder.count = 7
        return x + table["count"], len(table)

    for function in (fn, behind):
        compiled = minidynamo.compile(function, backend="eager")
        for run in (compiled, compiled):
            expected, actual = Holder(), Holder()
            more = [vars(one) for one in (expected, actual)] if function is fn else [None, None]
            arguments = [
                (X, one) if table is None else (X, one, table)
                for one, table in zip((expected, actual), more, strict=True)
            ]
            assert_same(function(*arguments[0]), run(*arguments[1]))
            assert vars(expected) == vars(actual)


class Attributes(dict):
    """An object that is its own instance dict."""

    def __init__(self, **items):
        super().__init__(**items)
        self.__dict__ = self


def test_objects_that_are_their_own_dict():
    def fn(x, a):
        a.more = 3
        a["last"] = 4
        return x * a.scale + a["more"], dict(a)

    compiled = minidynamo.compile(fn, backend="eager")
    for scale in (2, 5):
        assert_same(fn(X, Attributes(scale=scale)), compiled(X, Attributes(scale=scale)))


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_a_dict_of_its_own_and_the_instance_dict(order):
    def fn(x, holder, table):
        holder.count = 9
        return x + table["count"]

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter)
    for is_own in order:
        one, other = Holder(), Holder()
        expected = fn(X, one, vars(one) if is_own else {"count": 2})
        assert_same(expected, compiled(X, other, vars(other) if is_own else {"count": 2}))
    assert len(counter.graphs) == 2
