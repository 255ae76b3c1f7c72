"""Attributes that functions, partials, classes and modules of Python lack: guarded, too."""

import builtins
import functools
import math
import sys
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


def test_module_that_gets_a_getattr_or_a_class():
    module = types.ModuleType("some_module")

    def f(x):
        return x + getattr(module, "extra", 1)

    compiled, x = minidynamo.compile(f, backend="eager"), torch.ones(2)
    assert torch.equal(compiled(x), f(x))
    module.__getattr__ = lambda name: 7
    assert torch.equal(compiled(x), x + 7)
    del module.__getattr__
    assert torch.equal(compiled(x), x + 1)
    module.__class__ = type("Kind", (types.ModuleType,), {"extra": 9})
    assert torch.equal(compiled(x), x + 9)


def test_global_that_comes_later(monkeypatch):
    def f(x):
        try:
            return x + some_name  # noqa: F821
        except NameError:
            return x - 1

    compiled, x = minidynamo.compile(f, backend="eager", fullgraph=True), torch.ones(2)
    for holder in (sys.modules[__name__], builtins):
        assert torch.equal(compiled(x), x - 1)
        with monkeypatch.context() as patch:
            patch.setattr(holder, "some_name", 5, raising=False)
            assert torch.equal(compiled(x), x + 5)
    assert torch.equal(compiled(x), x - 1)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_imported_module_that_is_replaced(fullgraph, monkeypatch):
    first, second = (types.ModuleType("some_module") for _ in range(2))
    first.value, second.value = 1, 5

    def f(x):
        import some_module
        from some_module import value

        return x * value + some_module.value

    compiled = minidynamo.compile(f, backend="eager", fullgraph=fullgraph)
    for module in (first, second, first):
        monkeypatch.setitem(sys.modules, "some_module", module)
        assert torch.equal(compiled(torch.ones(2)), f(torch.ones(2)))
