"""Tensors that wrap others, with symbolic sizes, as parameters, and views of them."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from test_wrapper_tensors import Shifted, gradients, same, two
from testing import CountingBackend
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import minidynamo


def scaled_(x):
    return x.mul_(2).sin()


# What is compiled, its arguments by a size, and how many graphs four sizes take.
CASES = {
    "pointwise": (lambda x: (x * 2 + 1).sin(), lambda n: [two(n, 3)], 1),
    "gradients": (lambda x: (x.sin() * x).sum(0), lambda n: [two(n, 3, grad=True)], 1),
    "matmul": (lambda x, y: x @ y + 1, lambda n: [two(n, 3, grad=True), two(3, n)], 1),
    "views inside": (lambda x: x.view(-1)[2:] * 3, lambda n: [two(n, 3, grad=True)], 1),
    "in place": (scaled_, lambda n: [two(n, 3)], 1),
    "other class": (lambda x: x * 2, lambda n: [Shifted(torch.ones(n), 3)], 1),
    "sizes": (
        lambda x: x * x.shape[0] + x.a.shape[0] + x.b.sum(),
        lambda n: [two(n, 3, grad=True)],
        1,
    ),
    "views from outside": (lambda x: x * 2, lambda n: [two(n, 3)[1:]], 4),
    "transposed": (lambda x: x * 2, lambda n: [two(n, 3).t()], 4),
    "views that are written": (lambda x: x.mul_(2), lambda n: [two(n, 3).view(-1)], 4),
    "with itself": (lambda x, y: x * y.sum(), lambda n: [two(n, 3), torch.ones(n)], 1),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", CASES)
def test_one_graph_serves_all_sizes(name, backend):
    fn, make, graphs = CASES[name]
    counter = CountingBackend(backend=backend)
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True, dynamic=True)
    for size in (4, 5, 7, 6):
        mine, theirs = make(size), make(size)
        want, got = fn(*mine), compiled(*theirs)
        assert same(want, got)
        assert same(mine, theirs)
        assert same(gradients(want, mine), gradients(got, theirs))
    assert len(counter.graphs) == graphs


def test_sizes_that_change_become_symbolic():
    def fn(x):
        return x.sin() * x.shape[0]

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for size, graphs in ((3, 1), (4, 2), (9, 2), (1, 3), (5, 3)):
        assert same(compiled(two(size, 2)), fn(two(size, 2)))
        assert len(counter.graphs) == graphs


def test_inductor():
    def fn(x, y):
        return (x @ y).sin() * y.sum(0)

    compiled = minidynamo.compile(fn, fullgraph=True, dynamic=True)
    for size in (3, 5):
        mine, theirs = ([two(size, 4, grad=True), two(4, 6)] for _ in range(2))
        want, got = fn(*mine), compiled(*theirs)
        assert same(want, got)
        assert same(gradients(want, mine), gradients(got, theirs))


def test_conditions_on_sizes_are_guarded():
    def fn(x):
        return x * 2 if x.shape[0] > 5 else x + 1

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True, dynamic=True)
    for size, graphs in ((3, 1), (4, 1), (8, 2), (9, 2), (5, 2)):
        assert same(compiled(two(size)), fn(two(size)))
        assert len(counter.graphs) == graphs


def test_inner_sizes_of_their_own_are_guarded():
    class Padded(torch.Tensor):
        """The first rows of a longer tensor."""

        @staticmethod
        def __new__(cls, rows, count):
            size = (count, *rows.shape[1:])
            return torch.Tensor._make_wrapper_subclass(cls, size, dtype=rows.dtype)

        def __init__(self, rows, count):
            self.rows = rows

        def __tensor_flatten__(self):
            return ["rows"], None

        @staticmethod
        def __tensor_unflatten__(inner, meta, size, stride):
            return Padded(inner["rows"], size[0])

        @classmethod
        def __torch_dispatch__(cls, func, types, args, kwargs=None):
            def shorten(x):
                return x.rows[: x.shape[0]] if isinstance(x, cls) else x

            return func(*map(shorten, args), **(kwargs or {}))

    def fn(x):
        return x * 2 + x.rows.shape[0]

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True, dynamic=True)
    for rows, count in ((5, 3), (7, 4), (5, 4), (9, 2)):
        x = Padded(torch.arange(rows * 2.0).view(rows, 2), count)
        assert torch.equal(compiled(x), fn(x))
    assert len(counter.graphs) == 1
    x = Padded(torch.ones(4, 2), 4)
    assert torch.equal(compiled(x), fn(x))


@pytest.mark.parametrize("mark", [minidynamo.mark_dynamic, minidynamo.maybe_mark_dynamic])
def test_marks_concern_the_tensors_inside(mark):
    counter = CountingBackend()
    compiled = minidynamo.compile(lambda x: x + 1, backend=counter, fullgraph=True)
    for size in (3, 4, 5):
        x = two(size, 2)
        mark(x, 0)
        assert same(compiled(x), x + 1)
    assert len(counter.graphs) == 1
    kept = two(3, 2)
    minidynamo.mark_static(kept)
    compiled = minidynamo.compile(lambda x: x + 2, backend=counter, dynamic=True)
    assert same(compiled(kept), kept + 2)
    assert len(counter.graphs[-1].graph.find_nodes(op="placeholder")) == 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_only_a_part_is_marked(dynamic):
    counter = CountingBackend()
    fn = lambda x: x * x.shape[1]  # noqa: E731
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True, dynamic=dynamic)
    for columns in (3, 4, 5):
        x = two(2, columns)
        minidynamo.maybe_mark_dynamic(x.a, 1)
        assert same(compiled(x), fn(x))
    assert len(counter.graphs) <= 2


class Int8Weight(torch.Tensor):
    """A matrix of int8 with a scale for each row, which `linear` multiplies by."""

    @staticmethod
    def __new__(cls, data, scale, dtype=torch.float32):
        kind = {"dtype": dtype, "device": data.device, "requires_grad": False}
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, **kind)

    def __init__(self, data, scale, dtype=torch.float32):
        self.data8, self.scale = data, scale

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1) / 127
        return cls((weight / scale[:, None]).round().to(torch.int8), scale)

    def __tensor_flatten__(self):
        return ["data8", "scale"], self.dtype

    @classmethod
    def __tensor_unflatten__(cls, inner, meta, size, stride):
        return cls(inner["data8"], inner["scale"], meta)

    def dequantize(self):
        return self.data8.to(self.dtype) * self.scale[:, None]

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            x, weight, *bias = args
            return F.linear(x, weight.data8.to(x.dtype), None) * weight.scale + (
                bias[0] if bias else 0
            )
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].data8, args[0].scale)
        if func in (
            torch.ops.aten.t.default,
            torch.ops.aten.mm.default,
            torch.ops.aten.addmm.default,
        ):
            args = [x.dequantize() if isinstance(x, cls) else x for x in args]
            return func(*args, **kwargs)
        raise NotImplementedError(func)


def quantized():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
    for layer in net[0], net[2]:
        layer.weight = nn.Parameter(Int8Weight.of(layer.weight.detach()), requires_grad=False)
    return net


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_quantized_weights(backend):
    net = quantized()
    counter = CountingBackend(backend=backend)
    compiled = minidynamo.compile(net, backend=counter, fullgraph=True)
    for rows in (2, 3, 5):
        x = torch.randn(rows, 8, requires_grad=True)
        want = net(x)
        got = compiled(x)
        torch.testing.assert_close(got, want)
        (first,) = torch.autograd.grad(want.sum(), x)
        (second,) = torch.autograd.grad(got.sum(), x)
        torch.testing.assert_close(first, second)
    assert len(counter.graphs) == 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_training_steps_of_wrapped_parameters(backend):
    def step(net, optimizer, x):
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    for layer in plain[0], plain[2]:
        for name in ("weight", "bias"):
            value = getattr(layer, name).detach()
            setattr(layer, name, nn.Parameter(TwoTensor(value, value + 1)))
    other = copy.deepcopy(plain)
    compiled = minidynamo.compile(other, backend=backend, fullgraph=True)
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (plain, other)]
    for _ in range(3):
        x = torch.randn(3, 4)
        want = step(plain, optimizers[0], x)
        assert same(want, step(compiled, optimizers[1], x))
    for mine, theirs in zip(plain.parameters(), other.parameters(), strict=True):
        assert type(theirs.data) is TwoTensor
        assert same(mine.data, theirs.data)


class Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return TwoTensor(x.clone(), x * 2)

    @staticmethod
    def backward(ctx, g):
        return g.a + g.b


class Unwrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.a + x.b

    @staticmethod
    def backward(ctx, g):
        return TwoTensor(g * 2, g * 3)


def written(x):
    y = TwoTensor(x, x + 0)
    y.mul_(2)
    return y, x


def attributes(x):
    y = Shifted(x * 2, 3)
    return y * 2, y.shift, y.inner, y.twice, y.doubled(), y.shape[0]


def kinds(x):
    y = TwoTensor(x, x)
    return isinstance(y * 2, TwoTensor), type(y) is TwoTensor, y.a is x, y.view(-1).a


def contained(x):
    held = {"a": [TwoTensor(x, b=x + 1)]}
    return held["a"][0].sin(), TwoTensor.__name__


MADE = {
    "returned": (lambda x: TwoTensor(x, x + 1) * 2, False),
    "taken apart": (lambda x: (TwoTensor(x, x + 1) * 2).b + 1, False),
    "attributes": (attributes, False),
    "kinds": (kinds, False),
    "written": (written, False),
    "contained": (contained, False),
    "by a function": (lambda x: Wrap.apply(x) * 2, True),
    "by functions": (lambda x: Unwrap.apply(Wrap.apply(x.sin()) * 2), True),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", MADE)
def test_made_in_captured_code(name, backend):
    fn, grad = MADE[name]
    counter = CountingBackend(backend=backend)
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True, dynamic=True)
    for size in (4, 5):
        mine, theirs = ([torch.arange(size * 3.0).view(size, 3)] for _ in range(2))
        mine[0].requires_grad_(grad), theirs[0].requires_grad_(grad)
        want, got = fn(*mine), compiled(*theirs)
        assert same(want, got)
        assert same(mine, theirs)
        assert same(gradients(want, mine), gradients(got, theirs))
    assert len(counter.graphs) == 1


def test_made_leaves_that_require_grad_break():
    def fn(x):
        y = Shifted(x, 3)
        return (y * 2).sum(), y

    x = torch.ones(3, requires_grad=True)
    total, leaf = minidynamo.compile(fn, backend="aot_eager")(x)
    total.backward()
    assert leaf.is_leaf and leaf.requires_grad
    assert torch.equal(leaf.grad.inner, torch.full((3,), 5.0))
    with pytest.raises(minidynamo.exc.Unsupported, match="a leaf that requires grad"):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(x)


def test_a_class_that_changed_is_compiled_again():
    class Own(Shifted):
        step = 1

        def __init__(self, inner, shift):
            super().__init__(inner, shift + type(self).step)

    counter = CountingBackend()
    compiled = minidynamo.compile(lambda x: Own(x, 1) * 2, backend=counter, fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)).inner, torch.full((2,), 4.0))
    Own.step = 3
    assert torch.equal(compiled(torch.ones(2)).inner, torch.full((2,), 6.0))
    assert len(counter.graphs) == 2
