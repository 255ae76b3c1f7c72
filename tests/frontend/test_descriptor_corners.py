"""Corners of attribute lookup and of iterators: what CPython checks, and what it leaves alone."""

import functools
import itertools
import math
import types

import pytest
import testing
import torch

import minidynamo

X = torch.arange(3.0)


def check(fn, *args, graphs=None, **options):
    return testing.check(fn, *args, graphs=graphs, **options)


class OnlySet:
    def __set__(self, instance, value):
        raise AttributeError("never")


class Meta(type):
    shown = OnlySet()


class WithMeta(metaclass=Meta):
    shown = 42


def test_a_descriptor_of_the_metaclass_without_get_does_not_hide():
    def f(x):
        return x + WithMeta.shown

    check(f, X, graphs=1, breaks=0)


def test_slots_of_modules_are_no_variables():
    class Module(types.ModuleType):
        answer = 42

    def f(x):
        module = types.ModuleType("m")
        found = []
        for action in (
            lambda: setattr(module, "__dict__", {}),
            lambda: delattr(module, "__dict__"),
            lambda: setattr(module, "__class__", Module),
        ):
            try:
                found.append(action())
            except (AttributeError, TypeError) as error:
                found.append(str(error))
        return x + 1, found, hasattr(module, "answer")

    check(f, X)

    module = types.ModuleType("n")

    def g(x):
        try:
            module.__dict__ = {}
        except (AttributeError, TypeError):
            return x + 1
        return x

    check(g, X)


def test_keys_of_instance_dicts_that_are_no_strings():
    class Plain:
        pass

    def f(x):
        plain = Plain()
        plain.__dict__[OnlySet] = 1
        plain.__dict__[3] = 4
        return x + 1, len(plain.__dict__), hasattr(plain, "a")

    check(f, X)


def test_count_wants_numbers():
    def f(x):
        found = []
        for arguments in (("a",), (1, "b"), (x[0], 1), (2.5, 2)):
            try:
                next(itertools.count(*arguments))
                found.append(None)
            except TypeError as error:
                found.append(str(error))
        return x + 1, found

    check(f, X)


def test_a_total_of_none_leaves_the_graph():
    def f(x):
        totals = itertools.accumulate([None, None, None], lambda a, b: a is b)
        next(totals)
        y = x + 1
        print(end="")
        return y, list(totals)

    check(f, X)


def test_methods_of_what_cannot_be_called():
    def f(x):
        found = []
        try:
            classmethod(1).__get__(1)()
        except TypeError as error:
            found.append(str(error))
        try:
            object().__reduce_ex__()
        except TypeError as error:
            found.append(str(error))
        return x + 1, found

    check(f, X)


def test_the_sign_of_zero_counts_for_changing_floats():
    def f(x, v):
        return x + v, v.hex(), -v, math.copysign(1.0, v), v * 1.0

    counter = testing.CountingBackend()
    compiled = minidynamo.compile(f, backend=counter)
    for value in (1.5, 2.5, 3.5, 0.0, -0.0, 0.0, 1.0, -0.0):
        assert repr(compiled(X, value)) == repr(f(X, value))


class _Keyed(dict):
    pass


_keyed = _Keyed(a=1)


def test_methods_of_c_that_are_kept_over_a_break():
    def fn(x):
        read, make, get = int.from_bytes, _Keyed.fromkeys, _keyed.get
        minidynamo.graph_break()
        kinds = [type(method) for method in (read, make, get)]
        return x + read(b"a", "big"), make("b"), get("a"), kinds, read.__self__

    check(fn, torch.ones(2))


# -- a metaclass with a `__dict__` of its own ------------------------------------------------------

ASKED = []


class _Meta(type):
    @property
    def __dict__(cls):
        ASKED.append(cls)


class _OfMeta(metaclass=_Meta):
    factor = 3

    def __init__(self, x):
        self.x = x

    def times(self):
        return self.x * self.factor


def test_dict_of_a_metaclass_is_not_asked():
    check(lambda x: _OfMeta(x).times() + _OfMeta.factor, torch.arange(3.0))
    assert not ASKED


def test_generated_code_does_not_ask_getattribute():
    log = []

    class Watched:
        def __init__(self, items):
            self.items = items

        def __getattribute__(self, name):
            log.append(name)
            return super().__getattribute__(name)

    def fn(x, node):
        node.items.append(2)
        minidynamo.graph_break()
        node.items[0] += 1
        return x * len(node.items)

    compiled = minidynamo.compile(fn, backend="eager")
    for count in (1, 1, 2):
        results = []
        for run in (fn, compiled):
            log.clear()
            node = Watched([5] * count)
            results.append((run(torch.ones(2), node).tolist(), list(log), node.items))
        assert results[0] == results[1]


# -- slots of what is built in ---------------------------------------------------------------------


class Keyed(dict):
    __slots__ = ("number", "__hidden", "__dict__")

    def hide(self, value):
        self.__hidden = value
        return self.__hidden


class Row(list):
    __slots__ = ("name",)


class Frozen(dict):
    """As libraries of frozen dicts have it: no attribute can be set but by object."""

    __slots__ = ("kept_hash",)

    def __new__(cls, **items):
        self = dict.__new__(cls)
        dict.update(self, items)
        object.__setattr__(self, "kept_hash", -1)
        return self

    def __init__(self, **items):
        pass

    def __setattr__(self, name, value):
        raise AttributeError(name)

    def hashed(self):
        if self.kept_hash == -1:
            object.__setattr__(self, "kept_hash", hash(tuple(self)))
        return self.kept_hash


KEYED = Keyed(a=1)
FROZEN = Frozen(a=1)


def slots_of(*objects):
    names = ("number", "_Keyed__hidden", "name", "kept_hash", "other")
    return [[getattr(item, name, None) for name in names] for item in objects]


def test_slots_of_subclasses_of_containers():
    def made(x):
        keyed, row, frozen = Keyed(b=2), Row([1]), Frozen(b=3)
        keyed.number, keyed.other, row.name = 4, 5, x * 2
        same = frozen.hashed() == hash(("b",))
        return keyed, row, frozen, x + keyed.hide(7) + keyed.number + row.name, same

    def existing(x):
        KEYED.number = KEYED.number + 1 if hasattr(KEYED, "number") else 0
        return x + KEYED.number, FROZEN.hashed()

    def unset(x):
        row = Row()
        try:
            return x + row.name
        except AttributeError as error:
            return x + 1, str(error)

    found, wanted = [], []
    for fn, into in ((made, wanted), (minidynamo.compile(made, fullgraph=True), found)):
        keyed, row, frozen, *rest = fn(X)
        into += [keyed, vars(keyed), list(row), frozen, rest, slots_of(keyed, row, frozen)]
    testing.assert_same(wanted, found)

    outcomes = []
    for compiled in (existing, minidynamo.compile(existing, backend="eager", fullgraph=True)):
        del_slots()
        outcomes.append([(compiled(X), slots_of(KEYED, FROZEN)) for _ in range(4)])
    testing.assert_same(*outcomes)
    check(unset, X, graphs=1, fullgraph=True)


def del_slots():
    if hasattr(KEYED, "number"):
        del KEYED.number
    object.__setattr__(FROZEN, "kept_hash", -1)


def test_slots_of_containers_are_deleted_by_eager():
    def fn(x):
        row = Row()
        row.name = 1
        del row.name
        return x + 1, hasattr(row, "name")

    check(fn, X)


def test_setattr_of_a_container_runs_once():
    stored = []

    class Noted(dict):
        def __setattr__(self, name, value):
            stored.append(name)
            object.__setattr__(self, name, value)

    def fn(x):
        noted = Noted(a=1)
        noted.b = 2
        return x + noted.b, noted

    for compiled in (fn, minidynamo.compile(fn, backend="eager", fullgraph=True)):
        stored.clear()
        assert compiled(X)[1].b == 2
        assert stored == ["b"]


def test_protocols_of_pickle_that_are_no_numbers():
    class Plain:
        pass

    def fn(x, protocols):
        texts = []
        for protocol in protocols:
            try:
                texts.append(len(Plain().__reduce_ex__(protocol)))
            except TypeError as error:
                texts.append(str(error))
        return x + 1, texts

    check(fn, X, [None, "2", 2.0, 2, True])


def test_class_and_name_of_a_descriptor_in_c():
    class Plain:
        __slots__ = ("a", "__dict__")

    slots = vars(Plain)["a"], vars(Plain)["__dict__"]

    def fn(x):
        own = [slot.__objclass__ is Plain for slot in slots]
        return x + sum(own), [slot.__name__ for slot in slots], slots[1].__doc__

    check(fn, X, fullgraph=True)


def read(a, b=1):
    return a, b


class Partial:
    twice = functools.partialmethod(read, b=2)


@pytest.mark.parametrize("of_tracer", [False, True])
def test_methods_of_a_function(of_tracer):
    held = Partial()

    def fn(x, number):
        def made(a, b=1):
            return a, b, number

        f = made if of_tracer else read
        bound = f.__get__(x, torch.Tensor)
        return (
            bound(b=2),
            bound.__self__ is x,
            bound.__func__ is f,
            f.__get__(None, int) is f,
            f.__call__(x, b=number),
            f.__class__,
            type(f.__get__),
            [
                hasattr(f, name)
                for name in ("__get__", "__call__", "__hash__", "__set__", "mro")
            ],
            Partial.twice(x),
            held.twice() == (held, 2),
        )

    check(fn, X, 3, fullgraph=True)

    def refused(x):
        try:
            read.__get__(None)
        except TypeError as error:
            return x + 1, str(error)

    check(refused, X, graphs=1, fullgraph=True)
