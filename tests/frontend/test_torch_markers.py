"""What torch's own decorators (torch.compiler.disable, ...) mean to minidynamo."""

from __future__ import annotations

import pytest
import torch
from testing import CountingBackend, assert_same, check
from torch import nn

import minidynamo

X = torch.arange(6.0).reshape(2, 3) / 3 - 1


def below(x):
    return x + 3


@torch.compiler.disable
def disabled(x):
    return below(x) * 2


@torch.compiler.disable(recursive=False)
def shallow(x):
    return below(x) * 2


@torch._disable_dynamo
def disabled_late(x):
    return below(x) * 2


class Disabling(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    @torch.compiler.disable
    def helper(self, x):
        return below(self.linear(x))

    def forward(self, x):
        return self.helper(x.sin()).cos()


def captured(fn, *args):
    """Names of all operations captured."""
    minidynamo.reset()
    backend = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend)
    for _ in range(2):
        assert_same(fn(*args), compiled(*args))
    return [n.name for gm in backend.graphs for n in gm.graph.nodes if n.op.startswith("call")]


@pytest.mark.parametrize("function", [disabled, disabled_late])
def test_disabled_functions_and_what_they_call_are_not_captured(function):
    def fn(x):
        return function(x.sin()).cos()

    assert captured(fn, X) == ["sin", "cos"]
    check(fn, X, graphs=2, breaks=1)


def test_shallow_disable_lets_callees_be_captured():
    def fn(x):
        return shallow(x.sin()).cos()

    check(fn, X, graphs=3, breaks=1)


def test_disabled_methods_and_modules():
    model = Disabling()
    assert captured(model, X) == ["sin", "cos"]
    for disable in (torch.compiler.disable, minidynamo.disable):
        outer = nn.Sequential(nn.Linear(3, 3), disable(nn.Linear(3, 3)), nn.ReLU())
        assert captured(outer, X) == ["linear", "relu"]


def test_disable_inside_of_a_loop():
    def fn(x):
        for _ in range(3):
            x = disabled(x.sin())
        return x.cos()

    assert set(captured(fn, X)) == {"sin", "cos"}


def test_a_wrapper_that_copies_the_marks_is_traced():
    import functools

    @functools.wraps(disabled)
    def wrapper(x):
        return x * 2

    check(lambda x: wrapper(x.sin()), X, graphs=1, breaks=0)


@torch.compiler.assume_constant_result
def constant_tensor(k):
    return torch.ones(3) * k


class Constants:
    def __init__(self, z):
        self.z = z
        self.calls = 0

    @torch.compiler.assume_constant_result
    def number(self):
        self.calls += 1
        return self.z

    @minidynamo.assume_constant_result
    def tensor(self):
        return torch.ones(3) * self.z


def test_constant_results():
    check(lambda x: x * constant_tensor(3), X, fullgraph=True)
    first, second = Constants(2), Constants(5)

    def fn(x, which):
        return x * which.number() + which.tensor()

    backend = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for which in (first, second, first):
        assert_same(X * which.z + which.z, compiled(X, which))
    assert len(backend.graphs) == 2
    assert (first.calls, second.calls) == (1, 1)


@torch.compiler.assume_constant_result
def positive(x):
    return x.sum().item() > 0


@torch.compiler.assume_constant_result
def flattened(x):
    return x.view(-1)


def test_constant_results_of_tensors():
    """The functions get the tensors of the call that is compiled, also computed ones."""

    def fn(x):
        y = x.reshape(x.shape[0] * x.shape[1]).sort()[0] * 2
        return (y + 1 if positive(y) and positive(x) else y - 1), torch.rand(2)

    backend = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True, dynamic=True)
    x = torch.arange(6.0).reshape(2, 3)
    for given in (x, x + 1, torch.ones(3, 4)):
        torch.manual_seed(0)
        want = fn(given)
        torch.manual_seed(0)
        assert_same(want, compiled(given))
    assert_same(compiled(-x)[0], (-x).flatten().sort()[0] * 2 + 1)
    assert len(backend.graphs) == 1


def test_constant_results_of_tensors_that_are_no_constants_break():
    def written(x):
        y = x * 2
        y.sub_(9)
        return y * positive(y)

    def given(x):
        return flattened(x) + 1

    def differentiated(x):
        return flattened(x * 2) + 1

    for fn in (written, given, differentiated):
        compiled = minidynamo.compile(fn, backend="eager")
        for scale in (1.0, 3.0):
            x = torch.full((2, 2), scale, requires_grad=True)
            assert_same(fn(x), compiled(x))
        with pytest.raises(minidynamo.exc.Unsupported, match="constant function"):
            minidynamo.compile(fn, backend="eager", fullgraph=True)(x)


def test_constant_results_that_are_written_to_break():
    def fn(x):
        made = constant_tensor(3)
        made.add_(1)
        return x * made

    check(fn, X, graphs=2, breaks=1, calls=3)


def test_constant_result_of_a_changed_object_breaks():
    def fn(x, which):
        which.z = 7
        return x * which.number()

    check(fn, X, Constants(2), graphs=1, breaks=1)


@torch.compiler.allow_in_graph
def opaque(x, k=2):
    return x * k, x + k


def test_allow_in_graph():
    def fn(x):
        a, b = opaque(x.sin(), k=3)
        return a + b

    counter = check(fn, X, fullgraph=True)
    assert counter.op_count == 3 + 2  # sin, opaque, add and two getitems


def test_compiled_functions_and_modules_of_torch_are_traced_through():
    function = torch.compile(below, backend="eager")
    linear = nn.Linear(3, 3)
    wrapped = torch.compile(linear, backend="eager")
    in_place = nn.Linear(3, 3)
    in_place.compile(backend="eager")
    region = torch.compiler.nested_compile_region(below)

    class Holder:
        @torch.compile(backend="eager")
        def method(self, x):
            return x + 1

    holder = Holder()

    def fn(x):
        x = function(x.sin()) + region(x)
        x = wrapped(x) + in_place(x)
        assert getattr(wrapped, "_orig_mod", wrapped) is linear
        return holder.method(x)

    check(fn, X, graphs=1, breaks=0)


def test_torch_compile_inside():
    def fn(x):
        @torch.compile(backend="eager")
        def inner(a):
            return a + 1

        return inner(x.sin()) + torch.compile(below, backend="eager")(x)

    check(fn, X, graphs=1, breaks=0)


def test_calls_of_the_compilers_interface():
    def fn(x):
        torch.compiler.cudagraph_mark_step_begin()
        with torch._dynamo.error_on_graph_break(False):
            x = x.sin()
        return x + 1

    check(fn, X, graphs=1, breaks=0)
    seen = []

    def told(x):
        seen.append(torch._dynamo.external_utils.is_compiling())
        return x.sin()

    minidynamo.compile(told, backend="eager", fullgraph=True)(X)
    assert seen == [True]


def test_graph_break_of_torch():
    def fn(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    check(fn, X, graphs=2, breaks=1)
