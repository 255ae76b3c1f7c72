"""Corners of attribute lookup and of iterators: what CPython checks, and what it leaves alone."""

import itertools
import math
import types

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
