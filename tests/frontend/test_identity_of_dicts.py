"""Objects and their instance dicts that the frame reaches by different routes; keys of dicts."""

import collections
import enum

import pytest
import torch
from testing import CountingBackend, assert_same, check

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


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


Pair = collections.namedtuple("Pair", "first second")
KEYS = {
    "size": lambda x: x.shape,
    "size in a tuple": lambda x: ("a", x.shape),
    "device": lambda x: x.device,
    "dtype and device": lambda x: (x.dtype, x.device, x.layout, x.requires_grad),
    "frozenset": lambda x: frozenset((1, len(x), "a")),
    "frozenset in a tuple": lambda x: (frozenset((1, len(x))), 1),
    "enum in a tuple": lambda x: (Colour.RED if len(x) == 2 else Colour.BLUE, 1),
    "named tuple": lambda x: Pair(1, x.shape),
    "class and function": lambda x: (type(x), torch.sin, len(x)),
    "range in a tuple": lambda x: (range(3), len(x)),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_that_are_made_anew(name):
    """Caches by shape, device and the like are hit in the second call, and compiled no more; a key
    that is gone, and a value that was put in its place under an equal key, are noticed.
    """
    key_of = KEYS[name]

    def fn(x, cache):
        key = key_of(x)
        if key not in cache:
            cache[key] = torch.full(x.shape, 2.0)
            return cache[key] + x
        return cache[key] * x

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, dynamic=False)
    wanted, cache = {}, {}
    for _ in range(4):
        assert_same(fn(X, wanted), compiled(X, cache))
        assert_same(wanted, cache)
    assert len(counter.graphs) == 2
    cache[key_of(X)] = wanted[key_of(X)] = X * 5
    assert_same(fn(X, wanted), compiled(X, cache))
    del cache[key_of(X)], wanted[key_of(X)]
    for x in (X, X.double()):
        for _ in range(3):
            assert_same(fn(x, wanted), compiled(x, cache))
    assert_same(wanted, cache)
    assert len(counter.graphs) <= 4


def test_ids_of_equal_containers():
    def fn(x, a, b):
        new, other = set("ab"), set("ab")
        frozen = frozenset(new)
        answers = id(new) == id(other), id(frozen) != id(frozenset(other)), id(a) == id(b)
        return x + 1, answers, {id(a): "a", id(b): "b"}[id(a)], id(new) == id(new)

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    one = [1]
    for pair in (([1], [1]), (one, one), ([1], [1])):
        assert_same(fn(X, *pair), compiled(X, *pair))
    assert len(counter.graphs) == 2
    assert fn(X, [1], [1])[1] == (False, True, False)


class Counted:
    def __init__(self, value):
        self.value, self.callbacks = value, {}

    def one(self):
        return self.value

    def other(self):
        return self.value

    def __eq__(self, other):
        return isinstance(other, Counted)

    __hash__ = None


def test_bound_methods_are_compared_and_are_keys():
    def fn(x, a, b):
        new = Counted(1)
        answers = [
            a.one == a.one,
            a.one != b.one,
            a.one == a.other,
            new.one == new.one,
            new.one == Counted(1).one,
            a.one == 3,
            hash(new.one) == hash(new.one),
        ]
        found = a.callbacks[a.one], a.callbacks.get(b.one), a.other in a.callbacks
        a.callbacks[new.one] = 4
        methods = [a.one, b.one, new.one]
        methods.remove(b.one)
        return x + 1, answers, found, len({a.one, b.one, a.one, new.one}), len(methods)

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for run in (fn, compiled):
        first, second = Counted(1), Counted(1)
        results = []
        for pair in ((first, second), (first, second), (first, first)):
            for one in pair:
                one.callbacks = {one.one: 1, one.value: 2}
            results.append((run(X, *pair), [*pair[0].callbacks.values()]))
        if run is fn:
            expected = results
    assert_same(expected, results)
    assert len(counter.graphs) == 3  # the key that a dict holds is a new object in each call


class ByAddress:
    def __init__(self, value):
        self.value = value

    def __hash__(self):
        return hash(id(self))

    def __eq__(self, other):
        return self is other


def test_classes_that_hash_addresses():
    def fn(x, a, b):
        new = ByAddress(3)
        table = {a: 1, b: 2}
        table[new] = len({a, b, new, ByAddress(4), a})
        return x + 1, [key.value for key in table], table, hash(new) == hash(new)

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    first, second = ByAddress(1), ByAddress(2)
    for pair in ((first, second), (first, first)):
        (_, *want), (_, *got) = fn(X, *pair), compiled(X, *pair)
        assert (want[0], want[2]) == (got[0], got[2])
        assert [*want[1].values()] == [*got[1].values()] == [got[1][key] for key in got[1]]
    assert len(counter.graphs) == 2


class ByDict:
    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __eq__(self, other):
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None


def test_instance_dicts_are_compared():
    def fn(x, a, b):
        new = ByDict(w=1, y=x)
        answers = [
            new == ByDict(w=1, y=x),
            new != ByDict(w=2, y=x),
            a == b,
            vars(a) != {"w": 1},
            {"w": 1} == vars(a),
            vars(a) == 3,
        ]
        a.z = 3
        answers += [a == b, vars(a) == {"w": 1, "z": 3}]
        try:
            hash(new)
        except TypeError as error:
            answers.append(str(error))
        return x + 1, answers

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for attributes in ({"w": 1}, {"w": 2}, {"w": 1, "z": 3}):
        pairs = [(ByDict(w=1), ByDict(**attributes)) for _ in range(2)]
        assert_same(fn(X, *pairs[0]), compiled(X, *pairs[1]))
    assert len(counter.graphs) == 3


class Options:
    kind = "plain"

    def __init__(self):
        self.rate = 1

    @property
    def shown(self):
        return "property"

    def clone(self):
        made = type(self).__new__(type(self))
        made.__dict__ = self.__dict__.copy()
        made.size = 2
        return made


def test_an_instance_dict_is_replaced():
    def cloned(x):
        first = Options()
        second = first.clone()
        return x + second.rate + second.size, vars(second), vars(first)

    def seen_from_both_sides(x):
        made = Options()
        names = {"rate": x, "shown": 3, "kind": "own"}
        made.__dict__ = names
        names["late"], made.later = 4, 5
        del names["kind"]
        same = names is made.__dict__
        return made.rate + made.late, made.shown, made.kind, list(names), same, len(names)

    def of_the_wrong_kind(x):
        made = Options()
        try:
            made.__dict__ = [1]
        except TypeError as error:
            return x + made.rate, str(error)

    def shared(x):
        first, second, names = Options(), Options(), {"rate": 1}
        first.__dict__ = names
        second.__dict__ = names
        second.rate = 5
        return x + first.rate

    for fn in (cloned, seen_from_both_sides, of_the_wrong_kind):
        check(fn, X, graphs=1, breaks=0)
    check(shared, X)
    names = minidynamo.compile(lambda x: returned(x), backend="eager", fullgraph=True)(X)
    assert names[0].__dict__ is names[1] and torch.equal(names[1]["value"], X + 1)


def returned(x):
    made, names = Options(), {"value": x + 1}
    made.__dict__ = names
    return made, names
