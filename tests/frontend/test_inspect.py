"""inspect.signature of functions that are known while tracing."""

import inspect

import torch
from testing import check, check_recompiles

x = torch.randn(3)


def one(a):
    return a + 1


def two(a, b=2, *rest, c):
    return a * b + c


class Holder:
    def method(self, a, b):
        return a * b


def test_signature_of_function():
    def f(a, g):
        names = inspect.signature(g).parameters
        return a * len(names), list(names)

    check(f, x, one)
    check(f, x, two)


def test_signature_of_bound_method():
    def f(a, holder):
        return a * len(inspect.signature(holder.method).parameters)

    check(f, x, Holder())


def test_another_function_recompiles():
    def f(a, g):
        return a * len(inspect.signature(g).parameters)

    check_recompiles(f, [(x, one), (x, two), (x, one)], graphs=2)


def test_signature_of_a_builtin_breaks():
    def f(a):
        return a * len(inspect.signature(len).parameters)

    check(f, x, graphs=None)


def test_parameters_are_an_ordered_proxy():
    def first(a, b=1): ...

    def second(b, a=1): ...

    def fn(x):
        parameters = inspect.signature(first).parameters
        try:
            parameters["c"] = 1
        except TypeError as error:
            text = str(error)
        other = inspect.signature(second).parameters
        return x + 1, text, parameters == other, type(parameters), list(parameters)

    check(fn, torch.ones(2), fullgraph=True)


class Made:
    def __init__(self, a, b=2, *rest):
        self.a = a


def test_signature_of_a_class():
    def f(a, cls):
        names = inspect.signature(cls).parameters
        return a * len(names), list(names)

    check(f, x, Made, fullgraph=True)


def test_another_init_recompiles(monkeypatch):
    def f(a):
        return a * len(inspect.signature(Made).parameters)

    def change(index):
        if index == 2:
            monkeypatch.setattr(Made, "__init__", lambda self, a: None)

    check_recompiles(f, [(x,), (x,), (x,)], graphs=2, change=change)
