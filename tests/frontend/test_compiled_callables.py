"""What compile() gave, in the hands of others: copies, pickles, tracers, forward-mode AD."""

import copy
import io
import pickle

import pytest
import torch
from testing import CountingBackend, assert_same
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import minidynamo

x = torch.arange(1.0, 4.0)


@minidynamo.compile(backend="eager")
def named(a):
    return a.sin() * 2


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    @minidynamo.compile(backend="eager")
    def helper(self, a, scale=2):
        return self.linear(a).sin() * scale

    def forward(self, a):
        return self.helper(a) + 1


def plain(a):
    return torch.sin(a) * 2


def test_functions_are_copied_and_pickled_as_functions_are():
    assert copy.copy(named) is named
    assert copy.deepcopy([named])[0] is named
    assert pickle.loads(pickle.dumps(named)) is named
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        pickle.dumps(minidynamo.compile(plain, backend="eager"))


def test_modules_with_compiled_methods_are_copied_and_saved():
    part = Part()
    buffer = io.BytesIO()
    torch.save(part, buffer)
    buffer.seek(0)
    for twin in (copy.deepcopy(part), torch.load(buffer, weights_only=False)):
        assert_same(twin(x), part(x))
        assert twin.linear.weight is not part.linear.weight


def test_names_of_arguments_are_those_of_what_was_compiled():
    compiled = minidynamo.compile(Part(), backend="eager")
    assert Part.helper.__code__.co_varnames[:3] == ("self", "a", "scale")
    assert compiled.forward.__code__.co_varnames[:2] == ("self", "a")
    assert minidynamo.compile(Part().forward).__code__ is Part.forward.__code__


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_tracers_see_the_operations(backend, warm):
    minidynamo.reset()
    fast = minidynamo.compile(plain, backend=backend)
    if warm:
        fast(x)
    traced = torch.jit.trace(fast, x)
    assert_same(traced(x + 1), plain(x + 1))
    assert "torch.sin" in traced.code
    assert "aten.sin" in make_fx(fast)(x).code
    assert_same(fast(x), plain(x))


@pytest.mark.parametrize("warm", [False, True])
def test_modules_are_traced_and_exported(warm):
    minidynamo.reset()
    fast = minidynamo.compile(Part(), backend="eager")
    if warm:
        fast(x)
    assert_same(torch.jit.trace(fast, x)(x + 1), fast(x + 1))
    assert_same(torch.export.export(fast, (x,)).module()(x + 2), fast(x + 2))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_dual_numbers_keep_their_tangents(backend):
    minidynamo.reset()
    found = []
    fast = minidynamo.compile(plain, backend=backend)
    with minidynamo.events.subscribe(found.append, minidynamo.events.GraphEvent):
        for _ in range(2):
            with forward_ad.dual_level():
                value, tangent = forward_ad.unpack_dual(fast(forward_ad.make_dual(x, x)))
            assert_same((value, tangent), (plain(x), 2 * x * x.cos()))
            assert_same(fast(x), plain(x))
    assert len(found) == 1


@torch.library.custom_op("compiled_callables::tripled", mutates_args=())
def tripled(a: torch.Tensor) -> torch.Tensor:
    return a * 3


@tripled.register_fake
def _(a):
    return torch.empty_like(a)


@pytest.mark.parametrize(
    "function", [torch.ops.aten.sin.default, torch.ops.aten.sin, tripled], ids=str
)
def test_operators_are_compiled_themselves(function):
    # They are objects of torch, whose own calls are no code of the program.
    counter = CountingBackend()
    compiled = minidynamo.compile(function, backend=counter, fullgraph=True)
    for given in (x, x, x.double()):
        assert_same(function(given), compiled(given))
    assert len(counter.graphs) == 2 and counter.op_count == 2
