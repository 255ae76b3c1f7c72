"""Attributes of builtin types' objects that can't be set or deleted: CPython's own errors."""

from __future__ import annotations

import collections
import functools
import re

import pytest
import torch
from testing import check

import minidynamo

X = torch.arange(3.0)
STORES = """
    (1).x = 2
    'a'.upper = 2
    del 'a'.upper
    del 'a'.x
    del (1).real
    del ().count
    torch.float32.x = 1
    X.device.type = 1
    a.shape.numel = 1
    a.shape.x = 1
    slice(1).start = 1
    del slice(1).start
    Ellipsis.x = 1
    inner.__code__.co_argcount = 7
    re.compile('a').pattern = 1
    range(3).start = 1
    collections.deque([a], maxlen=2).maxlen = 1
    del collections.deque([a], maxlen=2).maxlen
    collections.deque([a]).x = 1
    collections.deque([a]).append = 1
    [a].append = 1
    del [a].append
    del {1: a}.keys
    {1, 2}.__hash__ = a
    Slotted().method = 1
    del Slotted().method
    Slotted().x = 1
    {1: a}.keys().mapping = 1
    (i for i in [a]).gi_frame = 1
    (i for i in [a]).__name__ = 1
    functools.partial(len).func = a
    del functools.partial(len).args
    print.x = 1
    print.__name__ = a
    del len.__self__
    [a].append.x = 1
    [a].append.__self__ = 1
    str.upper.x = 1
    list.append.__name__ = 'a'
    int.__add__.x = 1
    Holder().method.x = 1
    Holder().method.__func__ = a
    Holder().method.__doc__ = 'a'
    inner.__code__ = 1
    inner.__globals__ = {}
    outer.__globals__ = a
    outer.__closure__ = ()
    outer.__name__ = 1
    outer.__defaults__ = 1
    del outer.__name__
    int.x = 1
    del object.__init__
    dict.keys = a
    object.__setattr__(Holder, 'x', a)
    object.__delattr__(Holder, 'x')
    collections.OrderedDict.x = 1
""".strip().splitlines()


class Holder:
    def method(self):
        """Nothing."""


class Slotted:
    __slots__ = ()

    def method(self):
        """Nothing."""


def outer(x=1):
    return x


SOURCE = """
def fn(a):
    def inner(): pass
    try:
        {}
    except Exception as error:
        return a + 1, type(error), str(error)
"""


@pytest.mark.parametrize("store", [line.strip() for line in STORES])
def test_words_of_cpython(store):
    names = {**globals(), "collections": collections, "functools": functools, "re": re}
    exec(compile(SOURCE.format(store), __file__, "exec"), names)
    check(names["fn"], X, fullgraph=True)


class Listed(list):
    @property
    def first(self):
        return self[0]


def test_properties_are_not_deleted_as_entries():
    def fn(a):
        values = Listed([a])
        try:
            del values.first
        except AttributeError as error:
            return a + 1, str(error)

    check(fn, X, graphs=None)


def test_functions_that_may_have_it():
    def fn(a):
        del outer.mark
        return a + 1

    outer.mark = 1
    minidynamo.compile(fn, backend="eager")(X)
    assert not hasattr(outer, "mark")


def test_names_of_classes():
    class Named:
        pass

    def fn(a):
        Named.__name__ = "Other"
        return a + 1, Named.__name__, Named().__class__.__name__

    check(fn, X, fullgraph=True)
    assert Named.__name__ == "Other"
