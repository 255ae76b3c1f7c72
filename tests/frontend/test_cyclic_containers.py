"""Containers that contain themselves leave the graph as they are in eager."""

from __future__ import annotations

import collections

import pytest
import torch
from testing import CountingBackend

import minidynamo

X = torch.tensor([1.0, -2.0, 3.0])


class Node:
    def __init__(self, value):
        self.value = value


class Named(list):
    pass


class Table(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key, ("set", value))


def of_list(x):
    items = [x + 1]
    items.append(items)
    return items, lambda r: r[1] is r and [r[0]]


def of_two(x):
    first, second = [], {"z": 1}
    first.append(second)
    second["x"] = first
    first.append(second)
    second["y"] = second
    return (
        second,
        x + 1,
    ), lambda r: r[0]["y"] is r[0] and r[0]["x"][0] is r[0]["x"][1] is r[0] and [*r[0], r[1]]


def of_object_in_list(x):
    node = Node(x * 2)
    node.row = [node, 3]
    return node.row, lambda r: r[0].row is r and [r[0].value, r[1]]


def of_object_in_dict(x):
    node = Node(x * 2)
    node.row = {"own": (node, x + 1)}
    return node.row, lambda r: r["own"][0].row is r and [r["own"][0].value, r["own"][1]]


def of_tuple_in_list(x):
    items = []
    items.append((items, x + 1))
    return items, lambda r: r[0][0] is r and [r[0][1]]


def of_ordered(x):
    table = collections.OrderedDict(b=x + 1)
    table["a"] = table
    table.move_to_end("b")
    return table, lambda r: r["a"] is r and type(r) is collections.OrderedDict and [*r, r["b"]]


def of_default(x):
    table = collections.defaultdict(list)
    table["a"].append(table)
    table["b"].append(x + 1)
    return table, lambda r: r["a"][0] is r and [r["b"][0], r["c"]]


def of_deque(x):
    row = collections.deque([x + 1], maxlen=2)
    row.append(row)
    return row, lambda r: r[1] is r and [r[0], r.maxlen]


def of_subclass(x):
    row = Named([x + 1])
    row.append(row)
    row.me = row
    row.name = "n"
    return row, lambda r: r[1] is r is r.me and type(r) is Named and [r[0], r.name]


def of_dict_subclass(x):
    table = Table()
    dict.__setitem__(table, "me", table)
    table["x"] = x + 1
    return table, lambda r: r["me"] is r and type(r) is Table and [*r["x"]]


def of_longer_way(x):
    a, b, c = [], [], {}
    a.append(b)
    b += [c, x + 1]
    c["a"] = a
    return {
        "c": c,
        "b": b,
    }, lambda r: r["c"]["a"][0] is r["b"] and r["b"][0] is r["c"] and [r["b"][1]]


PROGRAMS = [fn for name, fn in list(globals().items()) if name.startswith("of_")]


@pytest.mark.parametrize("fn", PROGRAMS)
@pytest.mark.parametrize("fullgraph", [True, False])
def test_containers_that_contain_themselves(fn, fullgraph):
    backend = CountingBackend()
    compiled = minidynamo.compile(lambda x: fn(x)[0], backend=backend, fullgraph=fullgraph)
    seen = []
    for x in (X, X + 1):
        expected, describe = fn(x)
        made = compiled(x)
        assert describe(made), "it is in itself no more"
        assert repr(describe(made)) == repr(describe(expected))
        seen.append(made)
    assert seen[0] is not seen[1]
    assert len(backend.graphs) == 1


def test_over_a_break():
    def fn(x):
        items = [x + 1]
        items.append(items)
        minidynamo.graph_break()
        items[1][1].append(x * 2)
        return items

    backend = CountingBackend()
    made = minidynamo.compile(fn, backend=backend)(X)
    assert made[1] is made and torch.equal(made[0], X + 1) and torch.equal(made[2], X * 2)
    assert len(backend.graphs) == 2


def test_as_an_attribute_of_an_argument():
    def fn(x, node):
        items = [x + node.value]
        items.append(items)
        node.items = items
        return x + 1

    node = Node(3)
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    compiled(X, node)
    assert node.items[1] is node.items and torch.equal(node.items[0], X + 3)
    node.value = 4
    compiled(X, node)
    assert node.items[1] is node.items and torch.equal(node.items[0], X + 4)


def test_a_tuple_is_made_when_its_items_are():
    def fn(x):
        items = [x + 1]
        pair = (items, 2)
        items.append(pair)
        return pair

    made = minidynamo.compile(fn, backend="eager")(X)
    assert made[0][1] is made and torch.equal(made[0][0], X + 1)
    with pytest.raises(minidynamo.exc.Unsupported, match="contains itself"):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(X)
