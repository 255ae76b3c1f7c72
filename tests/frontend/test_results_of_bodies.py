"""What functions given to higher-order operators return: one tensor twice, new objects."""

from __future__ import annotations

import collections
import dataclasses
import functools
import warnings

import pytest
import torch
from testing import CountingBackend, assert_same, check, check_recompiles
from torch._higher_order_ops import BaseHOP
from torch._higher_order_ops.wrap import wrap
from torch.utils.checkpoint import checkpoint

import minidynamo

X = torch.arange(6.0).reshape(2, 3) / 3 - 1
run = functools.partial(checkpoint, use_reentrant=False)


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    first: object
    second: object = None


class Output(collections.OrderedDict):
    """Entries that are attributes, too."""

    def __init__(self, **entries):
        super().__init__(**entries)
        self.__dict__.update(entries)


def twice(call, x):
    def body(a):
        b = a.sin()
        return b, b, a.cos()

    first, second, third = call(body, x)
    return first + second * third, first is second, first is third


def data_class(call, x):
    pair = call(lambda a: Pair(a.sin(), [a.cos(), 3]), x)
    return pair.first * pair.second[0] + pair.second[1], pair


def ordered(call, x):
    out = call(lambda a: Output(hidden=a.sin(), rest=(a.cos(), a)), x)
    return out.hidden + out["rest"][0], out["hidden"] is out.hidden, list(out), out.rest[1] is x


def nested(call, x):
    out = call(lambda a: {"pair": Pair(Pair(a * 2, a.exp())), "size": a.shape[0]}, x)
    return out["pair"].first.first + out["pair"].first.second + out["size"]


def one_object_twice(call, x):
    def body(a):
        pair = Pair(a.sin())
        return pair, [pair]

    pair, (same,) = call(body, x)
    return pair.first + same.first, pair is same


PROGRAMS = [twice, data_class, ordered, nested, one_object_twice]


@pytest.mark.parametrize(
    "call", [run, lambda body, x: wrap(body, x)], ids=["checkpoint", "wrap"]
)
@pytest.mark.parametrize("program", PROGRAMS)
def test_results(program, call):
    results = []
    counter = CountingBackend()
    compiled = minidynamo.compile(program, backend=counter, fullgraph=True)
    for function in (program, compiled):
        x = X.clone().requires_grad_()
        result = function(call, x)
        total = result[0] if isinstance(result, tuple) else result
        total.sum().backward()
        results.append((result, x.grad))
    assert_same(*results)
    assert len(counter.graphs) == 1


def test_an_object_that_contains_itself_breaks_the_graph():
    class Node:
        pass

    def body(a):
        node = Node()
        node.me, node.value = node, a.sin()
        return node

    def fn(x):
        node = run(body, x)
        return node.value + 1, node.me is node

    x = X.clone().requires_grad_()
    assert_same(fn(x), minidynamo.compile(fn, backend="eager")(x))
    with pytest.raises(minidynamo.exc.Unsupported, match="contains itself"):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(x)


def test_numbers_that_sizes_give():
    def fn(x, n):
        y, more, size = run(lambda a, k: (a.sin() * k, k + 1, a.shape[0] * 2), x, n)
        return y * more, size

    calls = [(torch.ones(n + 2, requires_grad=True), n) for n in (2, 3, 4, 5)]
    check_recompiles(fn, calls, 2, fullgraph=True)


def test_checkpoint_without_use_reentrant_warns_where_it_is_called():
    def fn(x):
        return checkpoint(torch.sin, x) + 1

    x = X.clone().requires_grad_()
    caught = []
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for function in (fn, compiled):
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            assert_same(function(x), x.sin() + 1)
        caught.append([(str(w.message), w.lineno, w.category) for w in given])
    (eager,), traced = caught
    assert traced[0][0] == eager[0] and traced[0][2] is eager[2]
    assert traced[0][1] == fn.__code__.co_firstlineno + 1


def test_operators_that_call_a_function_are_traced_through():
    class Scaled(BaseHOP):
        def __init__(self):
            super().__init__("minidynamo_test_scaled")

        def __call__(self, function, *operands, scale):
            return super().__call__(function, *operands, scale=scale)

    operator = Scaled()

    def body(a, factor):
        return (a * factor).sin() if factor is not None else a.cos()

    for k, want in ((2, (X * 2).sin()), (None, X.cos())):
        counter = CountingBackend()

        def fn(x, k=k):
            return operator(body, x, k, scale="half")

        assert_same(minidynamo.compile(fn, backend=counter, fullgraph=True)(X), want)
        assert len(counter.graphs) == 1


def test_a_fake_implementation_that_is_missing_is_a_graph_break():
    @torch.library.custom_op("minidynamo_bodies::no_fake", mutates_args=())
    def no_fake(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @no_fake.register_fake
    def _(x):
        raise NotImplementedError

    def fn(x):
        return no_fake(x) + 1

    check(fn, X, graphs=1)
    with pytest.raises(minidynamo.exc.Unsupported, match="no_fake.default raised NotImpl"):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(X)


def test_a_checkpoint_of_what_computes_nothing():
    """The graph broke there."""

    def unused(b):
        b.sin()
        return b, {"shape": b.shape[0], "same": [b]}

    def f(a):
        scaled = a * 2
        same, told = checkpoint(unused, scaled, use_reentrant=False)
        number = checkpoint(lambda b: (3, None), scaled, use_reentrant=False)
        return same + 1, same is scaled, told["same"][0] is same, told["shape"], number

    check(f, torch.randn(3), fullgraph=True)
    check(f, torch.randn(3, requires_grad=True), fullgraph=True)
