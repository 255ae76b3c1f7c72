"""Classes derived from functools.partial."""

from __future__ import annotations

import functools

import torch
from testing import check, check_recompiles

X = torch.arange(6.0).reshape(2, 3)


def add(a, b=0, *, scale=1):
    return (a + b) * scale


class Named(functools.partial):
    """It has an instance dict, and the `__new__` and `__call__` of partial."""

    title = "partial"

    def describe(self):
        return self.title, self.func.__name__, len(self.args), sorted(self.keywords)


class Counting(functools.partial):
    def __call__(self, *args, **kwargs):
        self.calls = getattr(self, "calls", 0) + 1
        return super().__call__(*args, **kwargs) + self.calls


class Bound(functools.partial):
    """A slot hides the member of the same name; what it holds is bound like a function."""

    __slots__ = ("func",)

    def __init__(self, func):
        self.func = func

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self.func, instance)


class Model:
    bound = Bound(lambda self, x: x * self.factor)

    def __init__(self, factor):
        self.factor = factor


def test_made():
    def fn(x):
        made = Named(add, x, scale=2)
        made.title = "mine"
        is_one = isinstance(made, functools.partial), callable(made), bool(made)
        return made(1), made(b=x), made.describe(), is_one, type(made)

    check(fn, X)


def test_leaves_the_frame():
    def fn(x):
        made = Named(add, x + 1, scale=2)
        made.title = "mine"
        return made

    def seen(x):
        made = made_by(x)
        return made(3), type(made), vars(made), made.describe()

    made_by = fn
    check(lambda x: fn(x)(3), X)
    compiled = check(fn, X, calls=1)
    assert len(compiled.graphs) == 1
    check(seen, X)


def test_overridden_call():
    def fn(x):
        counting = Counting(add, x)
        first = counting(1)
        return first, counting(2), counting.calls

    check(fn, X)


def test_taken_over():
    def fn(x):
        plain = functools.partial(Named(add, x, scale=2), b=5)
        kept = functools.partial(Counting(add, x), 3)
        marked = Named(add, x)
        marked.title = "mine"
        named = Named(functools.partial(add, scale=3), x)
        names = plain.func is add, type(kept.func), functools.partial(marked).func is marked
        return plain(), kept(), named(1), names, named.func is add, plain.keywords, named.args

    check(fn, X)


def test_hidden_member():
    def fn(x, model, given):
        handler = Bound(functools.partial(add, scale=3))
        wrapped = functools.update_wrapper(handler, add)
        functools.update_wrapper(given, add)
        parts = wrapped.__name__, given.__wrapped__ is add, type(given.func), given.keywords
        return model.bound(x), handler(x), Model.bound.func(model, x), given(x), parts

    check(fn, X, Model(3), Bound(functools.partial(add, scale=3)))


def test_argument():
    def fn(x, function):
        function.last = x * 2
        return function(x), function.describe(), function.func is add

    check(fn, X, Named(add, b=torch.ones(3), scale=3))


def test_guards_what_is_taken_over():
    def fn(x, function):
        made = functools.partial(function, x)
        return made(), made.func is add

    marked = Named(add)
    marked.title = "mine"
    slots = Bound(functools.partial(add, scale=2))
    check_recompiles(fn, [(X, Named(add)), (X, marked), (X, Named(add)), (X, slots)], graphs=3)


def test_guards():
    def fn(x, function):
        return function(x)

    check_recompiles(
        fn,
        [
            (X, Named(add, scale=2)),
            (X, Named(add, scale=2)),
            (X, Named(add, scale=3)),
            (X, Counting(add, scale=2)),
            (X, functools.partial(add, scale=2)),
        ],
        graphs=4,
    )
