"""Gradients through compiled graphs whose tensors wrap others: kernels, and what autograd gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

import minidynamo
from minidynamo.inductor import metrics


class Quantized(torch.Tensor):
    """A matrix of int8 with a scale for each row: all but `detach` gives plain tensors."""

    @staticmethod
    def __new__(cls, values, scales):
        kind = {"dtype": scales.dtype, "device": values.device}
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, **kind)

    def __init__(self, values, scales):
        self.values_of = values
        self.scales = scales

    def __repr__(self):
        return f"Quantized({tuple(self.shape)})"

    @classmethod
    def of(cls, matrix):
        scales = matrix.abs().amax(1) / 127
        return cls((matrix / scales[:, None]).round().to(torch.int8), scales)

    def plain(self):
        return self.values_of.to(self.scales.dtype) * self.scales[:, None]

    def __tensor_flatten__(self):
        return ["values_of", "scales"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Quantized(inner["values_of"], inner["scales"])

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten.detach.default:
            (given,) = args
            new = cls(given.values_of.detach(), given.scales.detach())
            return return_and_correct_aliasing(func, args, kwargs, new)
        args, kwargs = pytree.tree_map_only(cls, Quantized.plain, (args, kwargs))
        return func(*args, **kwargs)


class Straight(torch.autograd.Function):
    """Its gradients are those of the plain matrix."""

    @staticmethod
    def forward(ctx, weight):
        return weight.detach()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def two(*shape, seed=0):
    torch.manual_seed(seed)
    return TwoTensor(torch.randn(shape), torch.randn(shape)).requires_grad_()


def leaf(*shape, seed=1):
    torch.manual_seed(seed)
    return torch.randn(shape, requires_grad=True)


def nested(lengths, size=8):
    torch.manual_seed(0)
    parts = [torch.randn(n, size) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


def parts(value):
    if value is None:
        return []
    if isinstance(value, TwoTensor):
        return [value.a, value.b]
    if isinstance(value, Quantized):
        return [value.values_of, value.scales]
    return [value.values()] if value.is_nested else [value]


def compare(fn, inputs, loss, *, calls=2, uncompiled=0, **options):
    """The results and gradients of some calls are eager's. inputs: makes those of one call."""
    metrics.reset()
    compiled = minidynamo.compile(fn, fullgraph=True, **options)
    for number in range(calls):
        seen = []
        for call in (fn, compiled):
            given = inputs(number)
            results = call(*given)
            loss(*results).backward()
            leaves = [x for x in given if isinstance(x, torch.Tensor) and x.is_leaf]
            seen.append((results, [x.grad for x in leaves]))
        for want, got in zip(*(pytree.tree_leaves(s, lambda x: x is None) for s in seen)):
            assert type(want) is type(got)
            for a, b in zip(parts(want), parts(got), strict=True):
                torch.testing.assert_close(b, a)
    assert metrics.uncompiled_graphs == uncompiled
    assert metrics.generated_kernel_count


def test_two_tensors():
    def fn(x, w):
        return ((torch.relu(x @ w) * 2 + x).sin(),)

    compare(fn, lambda i: (two(4, 8, seed=i), leaf(8, 8)), lambda y: y.sum())


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_change(dynamic):
    def fn(x, w):
        return ((torch.relu(x @ w) * x.shape[0] + x).sin(),)

    inputs = lambda i: (two(3 + i, 8), leaf(8, 8))  # noqa: E731
    compare(fn, inputs, lambda y: y.sum(), calls=4, dynamic=dynamic)


def test_results_may_be_views_of_inputs():
    def fn(x):
        return x.view(8, 4), x.sin() * x

    compare(fn, lambda i: (two(4, 8),), lambda y, z: y.sum() + (z * z).sum())


def test_quantized_weights():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    for part in (module[0], module[3]):
        weight = Quantized.of(part.weight.detach())
        part.weight = nn.Parameter(weight, requires_grad=False)

    def fn(x):
        y = module(x)
        return y, y.square().sum()

    compare(fn, lambda i: (leaf(4 + i, 8),), lambda y, loss: loss, calls=3)


def test_gradients_of_a_quantized_weight_are_plain():
    def fn(w, x):
        return (Straight.apply(w) @ x * x,)

    compare(
        fn, lambda i: (Quantized.of(torch.ones(8, 8)).requires_grad_(), leaf(8, 8)), torch.sum
    )


def test_unused_outputs_leave_no_gradients():
    def fn(x, w, v):
        return (x.plain() * v).sin(), w.cos() + v * 0, v * 2

    def inputs(i):
        return Quantized.of(torch.ones(8, 8)), leaf(8), leaf(8, seed=2)

    compare(fn, inputs, lambda y, z, u: y.sum())
    compare(fn, inputs, lambda y, z, u: z.sum() + u.sum())


@pytest.mark.parametrize("place", [0, 1])
def test_unused_outputs_that_wrap(place):
    def fn(x, w):
        return x.sqrt(), w.cos() * w

    inputs = lambda i: (two(4, 8).detach().abs().requires_grad_(), leaf(8))  # noqa: E731
    compare(fn, inputs, lambda *results: results[place].sum(), calls=3, uncompiled=1)


def test_an_infinite_derivative_does_not_meet_a_zero():
    zeros = lambda i: (TwoTensor(torch.zeros(4), torch.zeros(4)).requires_grad_(),)  # noqa: E731
    compare(lambda x: (x.sin(), x.sqrt()), zeros, lambda y, z: y.sum(), uncompiled=1)


def test_tangents_of_another_class():
    def fn(x, w):
        return x.sin(), w.cos()

    inputs = lambda i: (two(4, 8), leaf(8))  # noqa: E731
    compare(fn, inputs, lambda y, z: (y * z).sum(), calls=3, uncompiled=1)

    def quantized(q, x):
        return Straight.apply(q), x * 2

    given = lambda i: (Quantized.of(torch.ones(8, 8)).requires_grad_(), leaf(8, 8))  # noqa: E731
    compare(quantized, given, lambda y, z: (y * z).sum(), uncompiled=1)


def test_differentiated_gradients():
    compiled = minidynamo.compile(lambda x: x.sin() * x, fullgraph=True)
    seen = []
    for call in (lambda x: x.sin() * x, compiled, compiled):
        x = two(4, 8)
        (gradient,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()
        seen.append((gradient, x.grad))
    for want, first, second in zip(*seen):
        for a, b, c in zip(parts(want), parts(first), parts(second)):
            torch.testing.assert_close(b, a)
            torch.testing.assert_close(c, a)


def test_a_second_pass():
    compiled = minidynamo.compile(lambda x: x.sin() * x, fullgraph=True)
    x = two(4, 8)
    loss = compiled(x).sum()
    loss.backward(retain_graph=True)
    once = [part.clone() for part in parts(x.grad)]
    loss.backward()
    for a, b in zip(once, parts(x.grad)):
        torch.testing.assert_close(b, a * 2)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_inputs_that_changed_are_not_run_again():
    compiled = minidynamo.compile(lambda x, w: (x.sin(), w.cos()), fullgraph=True)
    x, w = two(4, 8), leaf(8)
    y, z = compiled(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (y * z).sum().backward()


def test_random_graphs_are_not_run_again():
    compiled = minidynamo.compile(
        lambda x, w: (torch.dropout(x, 0.5, True) * w).sin(), fullgraph=True
    )
    x, w = two(4, 8), leaf(8)
    y = compiled(x, w)
    y.sum().backward()
    assert x.grad.a.ne(0).any() and w.grad is not None
    y = compiled(x, w)
    with pytest.raises(RuntimeError, match="draws random numbers"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_nested_tensors():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))
    compiled = minidynamo.compile(module, fullgraph=True)
    metrics.reset()
    for lengths in ((3, 5, 2), (4, 4, 1), (2, 2, 9, 1)):
        seen = []
        for call in (module, compiled):
            module.zero_grad()
            x = nested(lengths)
            y = call(x)
            y.values().square().sum().backward()
            weights = [part.grad.clone() for part in module.parameters()]
            seen.append([y.values(), x.grad.values(), *weights])
        for want, got in zip(*seen, strict=True):
            torch.testing.assert_close(got, want)
        assert y.size(1) == x.size(1)
    assert metrics.uncompiled_graphs == 0 and metrics.generated_kernel_count


def test_nested_tensors_made_inside():
    def fn(values, offsets):
        x = torch.nested.nested_tensor_from_jagged(values, offsets)
        return x.sin() * 2, values * 2

    nested((1, 2))  # what all views of this layout are made with is there
    compiled = minidynamo.compile(fn, fullgraph=True)
    metrics.reset()
    for place in (0, 1):
        for offsets in ([0, 3, 8], [0, 1, 5], [0, 2, 4, 9]):
            seen = []
            for call in (fn, compiled):
                given = leaf(offsets[-1], 4)
                results = call(given, torch.tensor(offsets))
                plain = (results[0].values(), results[1])
                plain[place].sum().backward()
                seen.append([*plain, given.grad])
            for want, got in zip(*seen, strict=True):
                torch.testing.assert_close(got, want)
    assert metrics.generated_kernel_count


def quantized_pair():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    for part in (module[0], module[2]):
        weight = Quantized.of(part.weight.detach())
        part.weight = nn.Parameter(weight, requires_grad=False)
    return module


@pytest.mark.parametrize("dynamic", [False, None])
def test_a_cache_beside_quantized_weights(dynamic):
    module = quantized_pair()

    def fn(x, places, cache):
        cache.index_copy_(0, places, module(x))
        cache[:2].add_(1)
        return (cache * 2).sum(0)

    metrics.reset()
    compiled = minidynamo.compile(fn, fullgraph=True, dynamic=dynamic)
    caches = torch.zeros(16, 8), torch.zeros(16, 8)
    with torch.no_grad():
        for n in (2, 3, 4, 5):
            torch.manual_seed(n)
            x = torch.randn(n, 8)
            want = fn(x, torch.arange(n), caches[0])
            torch.testing.assert_close(compiled(x, torch.arange(n), caches[1]), want)
            torch.testing.assert_close(caches[1], caches[0])
            assert caches[1]._version == caches[0]._version
    assert metrics.uncompiled_graphs == 0 and metrics.generated_kernel_count


def test_running_statistics_beside_quantized_weights():
    modules = [nn.Sequential(quantized_pair(), nn.BatchNorm1d(8)) for _ in range(2)]
    metrics.reset()
    calls = modules[0], minidynamo.compile(modules[1], fullgraph=True)
    for number in range(3):
        seen = []
        for module, call in zip(modules, calls):
            x = leaf(4, 8, seed=number)
            y = call(x)
            y.square().sum().backward()
            norm = module[1]
            seen.append([y, x.grad, norm.running_mean, norm.num_batches_tracked])
            seen[-1].append(torch.tensor(norm.running_mean._version))
        for want, got in zip(*seen, strict=True):
            torch.testing.assert_close(got, want)
    assert metrics.uncompiled_graphs == 0 and metrics.generated_kernel_count


def counters(*values):
    return [t._version for value in values for t in (value, *parts(value))]


def test_writes_to_what_wraps():
    """The wrapper's version counter moves as in eager, those of its parts stay."""

    def fn(x, y):
        x.mul_(2)
        x.add_(y)
        return x + 1

    metrics.reset()
    compiled = minidynamo.compile(fn, fullgraph=True)
    for number in range(3):
        seen = []
        for call in (fn, compiled):
            x, y = two(4, 8, seed=number).detach(), torch.ones(8)
            before = counters(x)
            seen.append([*parts(call(x, y)), *parts(x)])
            moved = [b - a for a, b in zip(before, counters(x), strict=True)]
            assert moved == [2, 0, 0]
        for want, got in zip(*seen, strict=True):
            torch.testing.assert_close(got, want)
    assert metrics.uncompiled_graphs == 0 and metrics.generated_kernel_count


@pytest.mark.parametrize("first", [False, True])
def test_writes_to_parts_that_share_memory(first):
    def fn(x, y):
        x.mul_(2)
        return y + 1

    def same_part(shares):
        a = torch.ones(4)
        return TwoTensor(a, a if shares else torch.ones(4)), torch.zeros(4)

    def another(shares):
        a = torch.ones(4)
        return TwoTensor(a, torch.ones(4)), TwoTensor(torch.zeros(4), a if shares else a + 1)

    def plain(shares):
        a = torch.ones(4)
        return (a[:] if shares else a + 0), TwoTensor(a, torch.zeros(4))

    for make in (same_part, another, plain):
        compiled = minidynamo.compile(fn, fullgraph=True)
        for shares in (first, not first, first):
            seen = []
            for call in (fn, compiled):
                given = make(shares)
                results = [call(*given), *given]
                seen.append([part for value in results for part in parts(value)])
            for want, got in zip(*seen, strict=True):
                torch.testing.assert_close(got, want)
        minidynamo.reset()


def test_guards_on_the_sizes_of_a_nested_gradient():
    """Sizes of such tensors are symbolic: plain accessors raise for them."""

    def fn(x, module):
        return module(x)

    compiled = minidynamo.compile(fn, fullgraph=True, backend="eager")
    x, first, second = nested((3, 5, 2)), nn.Linear(8, 8), nn.Linear(8, 8)
    compiled(x, first).values().sum().backward()
    with torch.no_grad():
        for module in (first, second):
            got = compiled(x, module).values()
            torch.testing.assert_close(got, fn(x, module).values())


CALLS = []


@torch.library.custom_op("minidynamo_tests::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(1)
    return x.clone()


counted.register_fake(torch.empty_like)
counted.register_autograd(lambda ctx, gradient: gradient)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: (x.sqrt(), counted(w) * 2),
        lambda x, w: (lambda y: (y.view(-1), y, counted(w) * 2))(x.sin()),
    ],
)
def test_operators_of_others_run_once(fn):
    compiled = minidynamo.compile(fn, fullgraph=True)
    for _ in range(3):
        CALLS.clear()
        x, w = two(4).detach().abs().requires_grad_(), leaf(4)
        compiled(x, w)[-1].sum().backward()
        assert len(CALLS) == 1 and x.grad is None and w.grad.eq(2).all()
