"""Tensor subclasses whose classes have special methods of their own."""

from __future__ import annotations

import operator

import pytest
import torch
from testing import CountingBackend
from torch.testing._internal.two_tensor import TwoTensor

import minidynamo


class Own(torch.Tensor):
    """Each method says that it was called."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})

    def plain(self, number):
        return self.as_subclass(torch.Tensor) + number

    def __mul__(self, other):
        return "mul", self.plain(1)

    def __matmul__(self, other):
        return "matmul", self.plain(2)

    def __rsub__(self, other):
        return "rsub", self.plain(3)

    def __iadd__(self, other):
        return "iadd", self.plain(4)

    def __lt__(self, other):
        return "lt", self.plain(5)

    def __eq__(self, other):
        return "eq"

    def __neg__(self):
        return "neg"

    def __bool__(self):
        return False

    def __len__(self):
        return 17

    def __getitem__(self, key):
        return "item", key

    def __setitem__(self, key, value):
        self.stored = key, value

    def __iter__(self):
        return iter("ab")

    def __hash__(self):
        return 7


class Below(Own):
    pass


class Other(torch.Tensor):
    """Unrelated: torch's methods refuse the two together."""

    def __add__(self, other):
        return "add of the other"


def stored(x, y):
    x[1] = 2
    return x.stored


def added(x, y):
    x += y
    return x


BINARY = [operator.mul, operator.matmul, operator.sub, operator.add, operator.pow]
BINARY += [operator.lt, operator.gt, operator.eq, operator.ne, added, torch.mul]
UNARY = [operator.neg, abs, bool, len, list, operator.not_, hash]
UNARY += [lambda x: x[1:2], lambda x: stored(x, x), lambda x: x * 2, lambda x: 2 - x]
KINDS = [Own, Below, Other, torch.Tensor]


def made(kind):
    return torch.full((2, 2), 3.0).as_subclass(kind)


def outcome(function, *args):
    try:
        return shown(function(torch.ones(2), *args)[1])
    except (TypeError, AttributeError) as error:
        return str(error)


def shown(value):
    if isinstance(value, torch.Tensor):
        return type(value), value.as_subclass(torch.Tensor).tolist()
    return [shown(item) for item in value] if isinstance(value, (tuple, list)) else value


@pytest.mark.parametrize("operation", BINARY)
def test_operators(operation):
    def fn(x, left, right):
        y = x + 1
        return y, operation(left, right)

    def of_results(x, left, right):
        y = x + 1
        return y, operation(left.clone(), right.clone())

    for function in (fn, of_results):
        compiled = minidynamo.compile(function, backend="eager", recompile_limit=20)
        for left in KINDS:
            for right in KINDS:
                want = outcome(function, made(left), made(right))
                assert outcome(compiled, made(left), made(right)) == want, (left, right)


@pytest.mark.parametrize("operation", UNARY)
def test_protocols(operation):
    def fn(x, value):
        return x + 1, operation(value)

    for kind in (Own, Below):
        minidynamo.reset()
        compiled = minidynamo.compile(fn, backend="eager")
        assert outcome(compiled, made(kind)) == outcome(fn, made(kind))


def test_they_are_in_one_graph():
    def fn(x, value):
        kind, product = value * x
        return kind, product.sum(), (value < x)[1] * 2, -value

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    x = torch.ones(2, 2)
    assert shown(compiled(x, made(Own))) == shown(fn(x, made(Own)))
    assert len(counter.graphs) == 1


def test_a_method_that_comes_later():
    class Later(torch.Tensor):
        pass

    def fn(x, value):
        return x + 1, value * 2, value[0]

    compiled = minidynamo.compile(fn, backend="eager")
    x = torch.ones(2)
    assert shown(compiled(x, made(Later))) == shown(fn(x, made(Later)))
    Later.__mul__ = lambda self, other: "mine"
    assert shown(compiled(x, made(Later))) == shown(fn(x, made(Later)))
    Later.__getitem__ = lambda self, key: key
    assert shown(compiled(x, made(Later))) == shown(fn(x, made(Later)))
    del Later.__mul__
    assert shown(compiled(x, made(Later))) == shown(fn(x, made(Later)))


class Pair(TwoTensor):
    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Pair(inner["a"], inner["b"])

    def __len__(self):
        return 9

    def __iter__(self):
        return iter("ab")


def test_wrappers_of_tensors():
    def fn(x, pair):
        return x + 1, len(pair), list(pair)

    x = torch.ones(2)
    assert shown(minidynamo.compile(fn, backend="eager")(x, Pair(x, x))) == shown(
        fn(x, Pair(x, x))
    )
