"""Texts that show addresses: what does not depend on these is known while tracing."""

from __future__ import annotations

import functools

import pytest
import torch
from testing import CountingBackend, assert_same, check

import minidynamo

X = torch.arange(3.0)


class Plain:
    pass


class Own:
    def __repr__(self):
        return object.__repr__(self)

    def __str__(self):
        return "own " + super().__str__()


class Formatted:
    def __format__(self, spec):
        return "<" + super().__format__(spec) + ">"


class Listed(list):
    def __format__(self, spec):
        return "listed " + super().__format__(spec)

    def __str__(self):
        return "text " + super().__str__()


def parts_of_texts(a, plain, own):
    def inner():
        return a

    text = repr(plain)
    return (
        a + 1,
        "Plain object" in text,
        "object at 0x" in str(Plain()),
        "zzz" in text,
        "plain" not in text,
        text.startswith("<"),
        text.startswith("Plain"),
        text.endswith(">"),
        repr(Plain())[:3],
        "inner" in str(inner),
        str(inner).startswith("<function"),
        "Own" in repr(own),
        str(own)[:5],
    )


def texts(a, plain, own):
    return (
        a + 1,
        object.__repr__(plain),
        plain.__repr__(),
        plain.__str__(),
        object.__str__(plain),
        object.__repr__(own),
        repr(own),
        str(own),
        f"{plain} {own}",
        str(plain) + "!",
    )


def texts_of_containers(a):
    refused = []
    for value in ([], Listed([1]), Plain()):
        try:
            value.__format__("x")
        except TypeError as error:
            refused.append(str(error))
    return (
        a + 1,
        [1].__str__(),
        dict.__str__({1: 2}),
        {1}.__format__(""),
        object.__str__((1,)),
        f"{Listed([1])}",
        str(Listed([1])),
        "Formatted" in f"{Formatted()}",
        refused,
    )


@pytest.mark.parametrize("function", [parts_of_texts, texts])
def test_objects(function):
    plain, own = Plain(), Own()
    compiled = minidynamo.compile(function, backend=CountingBackend(), fullgraph=True)
    assert_same(compiled(X, plain, own), function(X, plain, own))


def test_containers():
    check(texts_of_containers, X, fullgraph=True)


def test_what_is_no_text():
    class Wrong:
        def __repr__(self):
            return 3

    def fn(a):
        try:
            str(Wrong())
        except TypeError as error:
            return a + 1, str(error), Wrong().__str__(), object.__str__(Wrong())

    check(fn, X, fullgraph=True)


def test_what_depends_on_the_address():
    plain = Plain()

    def fn(a):
        return a + 1, "7" in repr(plain), len(repr(plain))

    compiled = minidynamo.compile(fn, backend="eager")
    assert compiled(X)[1:] == fn(X)[1:]


def test_names_of_classes_that_change():
    class Named:
        pass

    def fn(a):
        Named.__qualname__ = "Other"
        return a + 1, repr(Named)

    check(fn, X, graphs=None)


def test_hashes_of_builtin_objects():
    values, partial = {1: 2}.values(), functools.partial(len)

    def fn(a):
        return a + 1, hash(values), hash(partial), hash(X.numel) == hash(X.numel)

    compiled = minidynamo.compile(fn, backend="eager")
    assert compiled(X)[1:] == fn(X)[1:]

    def both(a):
        return a + 1, hash(values), hash(partial)

    compiled = minidynamo.compile(both, backend="eager", fullgraph=True)
    assert compiled(X)[1:] == both(X)[1:]
    first, values = values, {3: 4}.values()
    assert compiled(X)[1:] == both(X)[1:] != (hash(first), hash(partial))


def test_a_text_with_an_address_equals_itself():
    class Plain:
        pass

    def fn(a, first):
        made = Plain()
        text = repr(first)
        same = text == repr(first), text != str(first), repr(made) == f"{made}"
        return a + same[0], same

    check(fn, X, Plain(), graphs=1)


def test_hashes_of_tuples_of_objects():
    def fn(a, b):
        pair = (a, (b, 1))
        same = hash(pair) == hash((a, (b, 1))), hash(pair) == hash((b, (a, 1)))
        return a + 1, same, {hash(pair): 1}[hash((a, (b, 1)))]

    check(fn, X, X + 1, graphs=1)
