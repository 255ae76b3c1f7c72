"""Iterators over containers that were changed before, across graph breaks; copies of containers;
sparse tensors.
"""

from __future__ import annotations

import collections
import copy

import pytest
import torch
from testing import assert_same, check, check_recompiles

import minidynamo

X = torch.arange(6.0).reshape(2, 3)


def change(container):
    if isinstance(container, dict):
        container["z"] = 4
        del container["a"]
    elif isinstance(container, set):
        container.add(7)
        container.discard(1)
    else:
        container.append(7)
        container.popleft()


def taken(x, container):
    change(container)
    iterator = iter(container)
    next(iterator)
    minidynamo.graph_break()
    return x + 1, list(iterator)


def looped(x, container):
    change(container)
    for item in container:
        x = x + (item if isinstance(item, int) else 2)
        minidynamo.graph_break()
    return x


def generated(x, container):
    change(container)

    def inner():
        yield from container

    def outer():
        for item in inner():
            yield item

    for item in outer():
        x = x + 1
        minidynamo.graph_break()
        x = x * (item if isinstance(item, int) else 3)
    return x


CONTAINERS = {
    "dict": {"a": 1, "b": 2, "c": 3},
    "ordered": collections.OrderedDict(a=1, b=2),
    "set": {1, 2, 3},
    "deque": collections.deque([1, 2, 3]),
}


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("fn", [taken, looped, generated])
def test_changed_before_it_is_iterated_over(fn, name):
    check(fn, X, CONTAINERS[name], graphs=None)


class Key:
    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        return isinstance(other, Key) and self.name == other.name


def summed(x, table):
    for key, values in table.items():
        table[key] = sum(values)
        minidynamo.graph_break()
    return x + 1, [(key.name, value) for key, value in table.items()]


def test_values_stored_at_keys_of_user_classes_while_iterating():
    def made(x, names):
        table = {}
        for name in names:
            table.setdefault(Key(name), []).append(1)
        return summed(x, table)

    check(summed, X, {Key("a"): [1], Key("b"): [2], Key("c"): [3, 4]}, graphs=None)
    check(made, X, ["a", "b", "a", "c"], graphs=None)


def test_order_of_keys_of_user_classes_that_come_and_go():
    def fn(x, table):
        table[Key("d")] = table.pop(Key("a"))
        del table[Key("b")]
        table[Key("b")] = 7
        table[Key("c")] = 8
        minidynamo.graph_break()
        return x + 1, [(key.name, value) for key, value in table.items()]

    check(fn, X, {Key("a"): 1, Key("b"): 2, Key("c"): 3, 4: 5}, graphs=2)


class Pair(tuple):
    pass


def test_sets_of_tuples_of_a_class_derived_from_tuple():
    def fn(x, pair):
        found = {(1, 2)}
        found.add((pair, 1))
        found.discard((1, 2))
        minidynamo.graph_break()
        return x + 1, [type(item[0]) for item in found]

    check(fn, X, Pair((1, 2)), graphs=1)


def test_equal_tuples_of_another_class_take_the_place_of_those_that_went():
    def fn(x, pair):
        sets = [{pair, 3} for _ in range(5)]
        sets[0].discard(pair)
        sets[1].remove((1, 2))
        sets[2].clear()
        sets[3] &= {3}
        taken = {pair}
        kinds = [type(taken.pop())]
        for item in (*sets, taken):
            item.add((1, 2))
        kinds += [type(e) for s in (*sets, taken) for e in sorted(s, key=str)]
        return x + 1, kinds, {type(e) for e in {frozenset({pair}), 1}}

    check(fn, X, Pair((1, 2)), fullgraph=True)


def test_sets_of_frozen_sets_keep_the_classes_of_what_these_hold():
    def fn(x, pair):
        found = {frozenset({pair})}
        y = x + 1
        minidynamo.graph_break()
        return y, [type(item) for inner in found for item in inner]

    check(fn, X, Pair((1, 2)), graphs=1)


def test_modules_that_are_exchanged():
    class Pair(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.ReLU()
            self.b = torch.nn.Linear(3, 3)

    def fn(x):
        module = Pair()
        module.c = torch.nn.Tanh()
        del module.b
        names = []
        for name, _ in module.named_modules():
            x = x + 1
            minidynamo.graph_break()
            names.append(name)
        return x, names

    check(fn, X, graphs=None)


# -- iterators that gave all -----------------------------------------------------------------------


def ways(container):
    """Iterators over a container, by the name of how they are made."""
    if isinstance(container, set):
        return {"set": iter(container)}
    views = {"keys": container.keys(), "values": container.values(), "items": container.items()}
    forwards = {name: iter(view) for name, view in views.items()}
    return forwards | {f"reversed {name}": reversed(view) for name, view in views.items()}


def gone_on(x, container, way):
    iterator = ways(container)[way]
    for _ in range(len(container)):
        next(iterator)
    y = x + 1
    minidynamo.graph_break()
    y = y * 2
    for _ in iterator:
        y = y - 100
    return y, list(iterator), iterator.__length_hint__()


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("way", [*ways({}), *ways(set())])
def test_a_graph_goes_on_with_an_iterator_that_gave_all(way, size):
    keys = "abc"[:size]
    check(
        gone_on, X, set(keys) if way == "set" else dict.fromkeys(keys), way, graphs=2, breaks=1
    )


def changed_after(x, container, way):
    iterator = ways(container)[way]
    for _ in range(len(container)):
        next(iterator)
    minidynamo.graph_break()
    if isinstance(container, set):
        container.add(7)
    else:
        container["z"] = 7
    return x + 1, next(iterator, None)


@pytest.mark.parametrize("way", ["keys", "reversed items", "set"])
def test_it_notices_what_is_added_behind_the_break(way):
    check(changed_after, X, {1} if way == "set" else {"a": 1}, way, graphs=None)


def advanced(x, container, iterator):
    try:
        found = next(iterator, "end")
    except RuntimeError as error:
        found = str(error)
    return x + len(container), found


def finished(cls):
    container = cls("a") if cls is set else cls(a=1)
    iterator = iter(container)
    next(iterator)
    return X, container, iterator


def changed(cls):
    """As `finished`, but the container was larger when the iterator was made."""
    container = cls("ab") if cls is set else cls(a=1, b=2)
    iterator = iter(container)
    next(iterator)
    for key in set(container) - {"a"}:
        container.remove(key) if cls is set else container.pop(key)
    return X, container, iterator


@pytest.mark.parametrize("cls", [dict, set])
@pytest.mark.parametrize("order", [(finished, changed), (changed, finished)])
def test_an_iterator_that_gave_all_is_not_one_of_a_changed_container(order, cls):
    compiled = minidynamo.compile(advanced, backend="eager")
    for make in (*order, *order):
        assert_same(advanced(*make(cls)), compiled(*make(cls)))
    assert compiled(*changed(cls))[1] != compiled(*finished(cls))[1] == "end"


# -- copies ----------------------------------------------------------------------------------------

COPIED = {
    "set": {1, 2},
    "frozenset": frozenset({1, 2}),
    "deque": collections.deque([1, [2]]),
    "short deque": collections.deque([1, [2]], 5),
    "ordered": collections.OrderedDict(a=[1]),
    "default": collections.defaultdict(list, {1: [2]}),
    "counter": collections.Counter("aab"),
}


@pytest.mark.parametrize("name", COPIED)
def test_copies(name):
    value = COPIED[name]

    def fn(x, size):
        found = copy.deepcopy(value), copy.copy(value)
        kinds = [type(part) for part in found]
        return x + len(found[0]) + size, found, kinds, found[0] is value

    check(fn, X, 3, graphs=1, breaks=0)
    check_recompiles(fn, [(X, 1), (X, True)], graphs=2)


# -- sparse tensors --------------------------------------------------------------------------------


def coo(x):
    s = x.to_sparse()
    return x + s.indices().shape[1], s.values(), s._nnz()


def csr(x):
    s = x.to_sparse_csr()
    return x + s.values().shape[0], s.crow_indices().sum()


@pytest.mark.parametrize("fn", [coo, csr])
def test_how_much_a_sparse_tensor_holds(fn):
    check(fn, X, graphs=None)
