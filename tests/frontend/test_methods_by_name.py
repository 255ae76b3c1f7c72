"""Operators' methods of built-in objects, called by their names."""

from __future__ import annotations

import collections
import operator
import types

import pytest
import torch
from testing import check, check_recompiles

X = torch.arange(3.0)


def deque_limited_anew(x, queue):
    queue.__init__([1, 2, 3], 2)
    queue.append(4)
    return x + 1, list(queue), queue.maxlen


def deque_without_limit(x, queue):
    collections.deque.__init__(queue, [0])
    queue.extend([1, 2, 3, 4])
    return x + 1, list(queue), queue.maxlen


def deque_refilled(x, queue):
    queue.__init__([1, 2, 3, 4, 5], 4)
    return x + len(queue), list(queue), queue.maxlen


@pytest.mark.parametrize(
    ("function", "graphs"),
    [(deque_limited_anew, 1), (deque_without_limit, 1), (deque_refilled, 1)],
)
def test_deques_begun_anew(function, graphs):
    check(function, X, collections.deque([7], 4), graphs=graphs)


def proxy_methods(x, viewed):
    proxy = types.MappingProxyType(viewed)
    other = types.MappingProxyType({"b": 2})
    compared = proxy.__eq__(3), proxy.__ne__([]), proxy.__eq__({"a": 1}), proxy == other
    return x + proxy["a"], compared, proxy.__or__(other), {"c": 3} | proxy


def test_views_of_mappings():
    check(proxy_methods, X, {"a": 1}, graphs=1)
    check_recompiles(proxy_methods, [(X, {"a": 1}), (X, {"a": 1, "d": 2}), (X, {"a": 1})], 2)


def methods_of_bases(x):
    return x + 1, int.__repr__(True), int.__str__(True), bool.__repr__(True)


def test_methods_of_a_base_class():
    check(methods_of_bases, X, graphs=1)


def texts_of_objects(x):
    return x + 1, int.__str__("a"), object.__str__("a"), object.__repr__(3)[:11]


def test_methods_of_object_on_constants():
    check(texts_of_objects, X, graphs=1)


def refused_operands(x, number):
    given = number.__add__(x), number.__rmul__(x), number.__lt__(x), "a".__eq__(x)
    return x + number, given


@pytest.mark.parametrize("number", [2, 2.5, True, 1j])
def test_operands_that_numbers_do_not_know(number):
    check(refused_operands, X, number, graphs=1)


def asked_for_an_attribute(x):
    try:
        return (5).__getattribute__(x)
    except TypeError as error:
        return str(error)


def test_methods_that_are_no_operators_raise():
    check(asked_for_an_attribute, X, graphs=0)


def test_methods_of_none_and_of_classes():
    class Named:
        def __hash__(self):
            return 1

        def __repr__(self):
            return "an object"

    def fn(x):
        of_none = None.__repr__(), None.__str__(), None.__eq__(None), None.__bool__()
        kind = Named.__class__
        texts = type.__repr__(Named), kind.__repr__(Named), kind.__str__(Named)
        same = type.__eq__(Named, Named), type.__ne__(Named, Named), type.__ne__(Named, int)
        return x + 1, of_none, texts, same, type.__hash__(Named) == hash(Named)

    check(fn, X, graphs=1)


@pytest.mark.parametrize("value", [torch.tensor(1.5), torch.tensor([1, 2]), torch.tensor(1j)])
def test_tensors_that_are_no_index(value):
    def fn(x, y):
        texts = []
        for use in (operator.index, [1, 2].__getitem__, range):
            try:
                use(y)
            except TypeError as error:
                texts.append(str(error))
        return x + len(texts), texts

    check(fn, X, value, graphs=1)
