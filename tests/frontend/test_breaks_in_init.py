"""Graph breaks in `__init__`: the graph goes on there, and the caller goes on with the object."""

import copy
import dataclasses
import functools
import traceback

import pytest
import torch
from testing import assert_same, check, check_recompiles

import minidynamo

x = torch.linspace(-1, 1, 4)


def opaque():
    """A function that is not traced."""


minidynamo.disallow_in_graph(opaque)


class Plain:
    def __init__(self, a, *more, factor=2):
        self.first = a + 1
        opaque()
        self.second = self.first * factor + len(more)


class Slots:
    __slots__ = ("first", "second")

    def __init__(self, a):
        self.first = a + 1
        opaque()
        self.second = self.first * 2


class Twice(Plain):
    def __init__(self, a):
        super().__init__(a, a, factor=3)
        self.third = self.second + 1
        opaque()
        self.fourth = self.third * 2


class Outer:
    def __init__(self, a):
        b = a * 3
        self.inner = Plain(b)
        self.second = self.inner.second + b


class WithNew:
    def __new__(cls, a):
        made = super().__new__(cls)
        made.zeroth = a * 5
        return made

    def __init__(self, a):
        opaque()
        self.second = self.zeroth + a


@dataclasses.dataclass(eq=False)
class Data:
    first: object
    second: object = None

    def __post_init__(self):
        opaque()
        self.second = self.first * 2


MADE = {
    "arguments": (lambda a: Plain(a, a), 2),
    "keywords": (lambda a: Plain(*(a, 1), **{"factor": 5}), 2),
    "slots": (Slots, 2),
    "base class": (Twice, 3),
    "nested": (Outer, 2),
    "partial": (functools.partial(Plain, factor=4), 2),
    "__new__": (WithNew, 2),
    "data class": (Data, 2),
}


@pytest.mark.parametrize("name", MADE)
def test_graph_goes_on_in_init_and_caller(name):
    make, graphs = MADE[name]

    def f(a):
        made = make(a.sin())
        return made.second.cos(), made if name != "slots" else made.first

    check(f, x, graphs=graphs, breaks=graphs - 1)


def test_in_expressions_and_blocks():
    seen = []

    class Context(Plain):
        def __enter__(self):
            seen.append(self)
            return self

        def __exit__(self, *error):
            return False

    def f(a):
        with Context(a.sin()) as entered:
            values = [a, Plain(a).second, (entered.second, entered is seen[-1])]
        return values, seen.pop().first + Plain(a * 2).second

    check(f, x, graphs=4)


def test_exceptions():
    class Raises:
        def __init__(self, a):
            self.first = a + 1
            opaque()
            raise ValueError("no")

    class Returns:
        def __init__(self, a):
            self.first = a + 1
            opaque()
            return 3

    def caught(a, cls, kind):
        try:
            return cls(a.sin())
        except kind as error:
            return a + 1, str(error)

    def raised(a):
        return Raises(a.sin())

    check(lambda a: caught(a, Raises, ValueError), x, graphs=None)
    check(lambda a: caught(a, Returns, TypeError), x, graphs=None)
    check(lambda a: Returns(a.sin()), x, graphs=None)
    names = []
    for function in (raised, minidynamo.compile(raised, backend="eager")):
        with pytest.raises(ValueError, match="no") as info:
            function(x)
        lines = traceback.extract_tb(info.tb)
        names.append([(line.name, line.lineno) for line in lines][-2:])
    assert names[0] == names[1]


def test_recompiles_and_gradients():
    def f(a, n):
        made = Plain(a.exp(), factor=n)
        return made.second * made.first

    check_recompiles(f, [(x, 2), (x, 2), (x, 3), (x, 4)], 3)
    grads = []
    for function in (f, minidynamo.compile(f, backend="aot_eager")):
        a = x.clone().requires_grad_()
        function(a, 2).sum().backward()
        grads.append(a.grad)
    assert_same(*grads)


class Stack(torch.nn.Sequential):
    def __init__(self, factor):
        self.factor = factor
        opaque()
        super().__init__(torch.nn.Linear(4, 4), torch.nn.Tanh())


def test_modules_that_are_made_behind_the_break():
    """The real module has no tables yet where the rest is traced."""

    def indexed(a):
        made = Stack(2)
        return made[-1](made[0](a)) * made.factor, len(made)

    def walked(a):
        for layer in reversed(Stack(2)):
            a = layer(a)
        return a

    def copied(a):
        made = Stack(2)
        return copy.deepcopy(made)(a), made(a)

    for fn in (indexed, walked, copied):
        results = []
        for function in (fn, minidynamo.compile(fn, backend="eager")):
            torch.manual_seed(0)
            with minidynamo.config.patch(raise_internal_errors=True):
                results.append(function(x))
        assert_same(*results)
