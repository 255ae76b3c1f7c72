"""Inputs listed by name in torch.compiler.config, cells that nobody holds, and compiled functions
below torch's tracer or of a module's configuration.
"""

import functools

import pytest
import torch
from testing import CountingBackend, assert_same, check, check_recompiles
from torch._subclasses.fake_tensor import FakeTensorMode

import minidynamo

x = torch.arange(4.0) + 1


def tensors(*sizes):
    return [(torch.arange(float(n)),) for n in sizes]


class Scaled(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.inner = torch.nn.Identity()
        self.inner.scale = scale

    def forward(self, a):
        return a * self.inner.scale


@pytest.mark.parametrize(
    "lists, calls, dynamic, graphs",
    [
        ({"dynamic_sources": "L['a']"}, tensors(2, 3, 4), None, 1),
        ({"dynamic_sources": "other, a"}, tensors(2, 3, 4), False, 1),
        ({"dynamic_sources": r"L\['[a-c]'\]"}, tensors(2, 3, 4), None, 1),
        ({"unbacked_sources": "L['a']"}, tensors(2, 1, 3), None, 1),
        ({"dynamic_sources": "L['b']"}, tensors(2, 3, 4), None, 2),
        ({"dynamic_sources": "(["}, tensors(2, 3, 4), None, 2),
    ],
)
def test_listed_tensors(lists, calls, dynamic, graphs):
    def fn(a):
        return a * 2

    with torch.compiler.config.patch(**lists):
        check_recompiles(fn, calls, graphs=graphs, dynamic=dynamic)


def test_listed_numbers():
    def fn(n, a):
        return a * n

    calls = [(n, x) for n in (1, 2, 3)] + [(0.5, x), (1.5, x)]
    with torch.compiler.config.patch(dynamic_sources="L['n']"):
        check_recompiles(fn, calls, graphs=2)


def test_listed_attribute_of_a_module():
    backend = CountingBackend()

    def fn(module, a):
        return module(a)

    fast = minidynamo.compile(fn, backend=backend, fullgraph=True)
    name = "L['module']._modules['inner'].scale"
    with torch.compiler.config.patch(dynamic_sources=name):
        for scale in (50, 60, 70):
            assert_same(fast(Scaled(scale), x), x * scale)
    assert len(backend.graphs) == 1


# -- cells ----------------------------------------------------------------------------------------


def dropped(a):
    held = a * 2

    def add():
        return held + held

    return add()


def returned(a):
    held = a * 2

    def add():
        return held + held

    return add(), add


def held_by_another(a):
    held = a * 2

    def add():
        nonlocal held
        held = held + 1
        return held

    def outer():
        return add()

    outer()
    return functools.partial(outer)


def held_by_argument(a, kept):
    held, other = a * 2, a * 3
    kept.append(lambda: held)
    return (lambda: other)()


@pytest.mark.parametrize("fn, outputs", [(dropped, 1), (returned, 2), (held_by_another, 1)])
def test_cells_that_are_held(fn, outputs):
    backend = CountingBackend()
    fast = minidynamo.compile(fn, backend=backend, fullgraph=True)
    want, got = fn(x), fast(x)
    for _ in range(2):
        if fn is returned:
            assert_same(got[0], want[0])
            assert_same(got[1](), want[1]())
        elif fn is held_by_another:
            assert_same(got(), want())
        else:
            assert_same(got, want)
    (graph,) = backend.graphs
    assert len(list(graph.graph.nodes)[-1].args[0]) == outputs


def test_cell_held_by_an_argument():
    wanted, kept = [], []
    assert_same(
        minidynamo.compile(held_by_argument, backend="eager")(x, kept),
        held_by_argument(x, wanted),
    )
    assert_same(kept[0](), wanted[0]())


# -- around compiled functions --------------------------------------------------------------------


def test_called_below_the_tracer():
    inner, outer = CountingBackend(), CountingBackend()
    below = minidynamo.compile(lambda a: a.sin().cos(), backend=inner, fullgraph=True)
    with torch.library._scoped_library("mdlisted", "FRAGMENT") as library:
        library.define("below(Tensor a) -> Tensor")
        library.impl("below", lambda a: below(a), "CompositeExplicitAutograd")
        operator = torch.ops.mdlisted.below.default
        fast = minidynamo.compile(lambda a: operator(a), backend=outer, fullgraph=True)
        for _ in range(2):
            assert_same(fast(x), x.sin().cos())
    assert len(outer.graphs) == 1 and len(inner.graphs) == 1


def test_fake_tensors_run_in_eager():
    with FakeTensorMode():
        module = torch.nn.Linear(4, 4)
        result = minidynamo.compile(module, backend=CountingBackend())(torch.rand(2, 4))
        result.sum().backward()
        assert result.shape == (2, 4) and module.weight.grad.shape == (4, 4)


def test_functions_compiled_as_a_module_is():
    backend = CountingBackend()
    module = torch.nn.Linear(4, 4)
    compiled = minidynamo.compile(module, backend=backend, fullgraph=True)
    step = compiled.dynamo_ctx(lambda a: module(a).sum())
    assert_same(step(x), module(x).sum())
    assert len(backend.graphs) == 1


def test_small_answers():
    def fn(a):
        return torch._shape_as_tensor(a)[0] + bool.__new__(bool, 1), a + 1

    check(fn, x, graphs=1, fullgraph=True)
    check_recompiles(fn, tensors(2, 3, 5), graphs=2, fullgraph=True)
