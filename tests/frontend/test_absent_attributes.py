"""Attributes that functions, partials, classes and modules of Python lack: guarded, too."""

import functools
import math
import types

import pytest
import torch

import minidynamo


def _holders():
    def function(x):
        return x + 1

    class Klass:
        pass

    return {
        "function": function,
        "partial": functools.partial(function),
        "class": Klass,
        "module": types.ModuleType("some_module"),
        "method": Klass(),
    }


@pytest.mark.parametrize("kind", list(_holders()))
@pytest.mark.parametrize("asks", ["getattr", "hasattr"])
def test_attribute_that_comes_later(kind, asks):
    holder = _holders()[kind]

    def f(x):
        found = getattr(holder, "extra", 0) if asks == "getattr" else hasattr(holder, "extra")
        return x * 2 + found

    compiled, x = minidynamo.compile(f, backend="eager", fullgraph=True), torch.ones(2)
    assert torch.equal(compiled(x), f(x))
    holder.extra = 5
    assert torch.equal(compiled(x), f(x))
    del holder.extra
    assert torch.equal(compiled(x), f(x))


@pytest.mark.parametrize("name", ["__call__", "__index__", "__len__", "__iter__", "__round__"])
def test_special_method_that_comes_later(name):
    """`callable` and what else asks for a slot of a class without calling it."""

    class Klass:
        def __getitem__(self, index):
            return (4, 5)[index]

    asked = {
        "__call__": callable,
        "__index__": lambda value: "abc"[value],
        "__len__": len,
        "__iter__": list,
        "__round__": round,
    }[name]
    method = (lambda self: iter([7])) if name == "__iter__" else (lambda self: 1)
    value = Klass()

    def f(x):
        try:
            return x * 2, asked(value)
        except TypeError as error:
            return x * 3, str(error)

    compiled, x = minidynamo.compile(f, backend="eager"), torch.ones(2)
    assert str(compiled(x)) == str(f(x))
    setattr(Klass, name, method)
    assert str(compiled(x)) == str(f(x))
    delattr(Klass, name)
    assert str(compiled(x)) == str(f(x))


def test_function_of_c_needs_no_guard():
    def f(x):
        return x * 2 + hasattr(math.sin, "extra")

    compiled = minidynamo.compile(f, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
