"""Torch function modes of the program: around compiled code and inside of it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from testing import CountingBackend, assert_same
from torch import nn
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode

import minidynamo

X = torch.arange(1.0, 10.0).reshape(3, 3)
LINEAR = nn.Linear(3, 3)
LAYERS = nn.Sequential(LINEAR, nn.ReLU(), nn.LayerNorm(3), nn.Dropout(0.0))


class Noting(TorchFunctionMode):
    """Keeps the names of all functions that it sees."""

    def __init__(self):
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        is_float = isinstance(result, torch.Tensor) and result.dtype is torch.float32
        return result * 2 if is_float else result


class NoAdd(BaseTorchFunctionMode):
    def __torch_function__(self, func, types, args, kwargs=None):
        if func is torch.add:
            return torch.zeros(3, 3)
        return super().__torch_function__(func, types, args, kwargs or {})


def in_place(x):
    y = x.clone()
    y += 1
    y.add_(1)
    y[0] = 0
    y[1:] = y[0] * 2
    return y


CASES = {
    "arithmetic": lambda x: (x + 1, 1 - x, x * 2, 2 / x, x // 2, x**2, 2**x, -x, abs(x), x @ x),
    "comparisons": lambda x: (x > 1, x == 1, x != x, x < x),
    "methods": lambda x: (x.sin(), x.sum(-1), x.max(0)[0], x.split(1), x.norm(), x.float()),
    "metadata": lambda x: (x.shape, x.dtype, x.T, x.size(0), len(x), x.ndim, x.dim()),
    "subscripts": lambda x: (x[0], x[:, 1], x[None], x[0, 1]),
    "functional": lambda x: (F.relu(x), F.softmax(x, -1), F.linear(x, x), F.pad(x, (1, 1))),
    "torch": lambda x: (torch.cat([x, x]), torch.einsum("ij,jk->ik", x, x), torch.split(x, 1)),
    "factories": lambda x: (torch.zeros(3), torch.arange(3), torch.tensor([1.0]), x),
    "iteration": lambda x: [row + 1 for row in x],
    "in place": in_place,
    "modules": lambda x: LAYERS(x),
    "operators": lambda x: (torch.ops.aten.add(x, 1), torch.ops.aten.add.Tensor(x, x)),
    "vmap": lambda x: torch.vmap(lambda a, b: (a + b).sin().sum(), in_dims=(1, 0))(x, x),
    "vmap twice": lambda x: torch.vmap(torch.vmap(lambda a: a * 2), in_dims=-1, out_dims=1)(x),
    "questions": lambda x: (torch.is_tensor(x), torch.numel(x), x + 1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("make", [Noting, Doubling])
def test_the_mode_sees_what_it_sees_in_eager(name, make):
    fn, counter = CASES[name], CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter)
    mine, theirs = make(), make()
    with mine:
        want = fn(X)
    with theirs:
        got = compiled(X)
    assert_same(want, got)
    assert vars(mine) == vars(theirs)
    assert len(counter.graphs) == 1


def test_classes_of_modes_are_guarded():
    counter = CountingBackend()
    compiled = minidynamo.compile(lambda x: torch.add(x, 1) * 2, backend=counter)
    for modes, graphs in (
        ((), 1),
        ((Doubling(),), 2),
        ((Doubling(), NoAdd()), 3),
        ((NoAdd(), Doubling()), 4),
        ((Doubling(),), 4),
        ((), 4),
    ):
        for mode in modes:
            mode.__enter__()
        try:
            want, got = torch.add(X, 1) * 2, compiled(X)
        finally:
            for mode in reversed(modes):
                mode.__exit__(None, None, None)
        assert torch.equal(want, got)
        assert len(counter.graphs) == graphs


def test_state_of_the_mode_is_guarded():
    class Scaling(TorchFunctionMode):
        def __init__(self):
            self.factor = 1

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.factor += 1
            return func(*args, **(kwargs or {})) * self.factor

    counter = CountingBackend()
    compiled = minidynamo.compile(lambda x: x.sin(), backend=counter)
    with Scaling() as mode:
        results = [compiled(X), compiled(X)]
        mode.factor = 1
        results.append(compiled(X))
    for factor, result in zip((2, 3, 2), results, strict=True):
        assert torch.equal(result, X.sin() * factor)
    assert len(counter.graphs) == 2


def inside(x):
    with NoAdd():
        y = torch.add(x, 3)
    return torch.add(y, x)


def inside_broken(x):
    with NoAdd():
        minidynamo.graph_break()
        y = torch.add(x, 3)
        minidynamo.graph_break()
    return torch.add(y, x), torch._C._len_torch_function_stack()


def nested(x):
    with Doubling(), Doubling() as mode:
        y = torch.sin(x)
        with mode:
            y = y + 1
    return y, torch._C._len_torch_function_stack()


def stack_by_hand(x):
    mode = NoAdd()
    torch._C._push_on_torch_function_stack(mode)
    y = torch.add(x, 1)
    same = torch._C._pop_torch_function_stack() is mode
    return torch.add(y, 1), same


class Refusing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise ValueError(func.__name__)


class Breaking(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        minidynamo.graph_break()
        return func(*args, **(kwargs or {})) * 2


def raises(x):
    try:
        with Refusing():
            x.sin()
    except ValueError as error:
        return x + 1, str(error)


def break_in_the_mode(x):
    y = x + 1
    with Breaking():
        y = y.sin()
    return y + 1


@pytest.mark.parametrize(
    "fn, graphs",
    [(inside, 1), (inside_broken, None), (nested, 1), (stack_by_hand, 1), (raises, 1)]
    + [(break_in_the_mode, None)],
)
def test_modes_inside(fn, graphs):
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=graphs == 1)
    for mode in (None, Doubling()):
        if mode is not None:
            mode.__enter__()
        try:
            want, got = fn(X), compiled(X)
        finally:
            if mode is not None:
                mode.__exit__(None, None, None)
        assert_same(want, got)
        assert torch._C._len_torch_function_stack() == 0
        assert graphs is None or len(counter.graphs) == graphs + (mode is not None)


def test_the_stack_is_left_by_exceptions():
    @minidynamo.disable
    def fail():
        raise ValueError

    @minidynamo.compile(backend=CountingBackend())
    def fn(x):
        with NoAdd():
            x += 1
            fail()

    x = X.clone()
    with pytest.raises(ValueError):
        fn(x)
    assert torch._C._len_torch_function_stack() == 0
    assert torch.equal(x, X + 1)


def test_gradients_and_symbolic_sizes():
    def fn(x):
        return (x.view(-1, x.shape[0]).sin() * x.size(1)).sum()

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, dynamic=True, fullgraph=True)
    with Doubling():
        for n in (3, 4, 5):
            x = torch.arange(n * (n + 1.0)).view(n, n + 1).requires_grad_()
            want, got = fn(x), compiled(x)
            assert torch.equal(want, got)
            assert torch.equal(*(torch.autograd.grad(y, x)[0] for y in (want, got)))
    assert len(counter.graphs) == 1


def test_masks_below_torchs_own_mode_of_subscripts():
    """As attention masks are made: nothing but the subscripts of tensors is changed by the mode."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    def below(positions, start):
        def one(row, column):
            return (row >= column) & (column > row - start)

        with TransformGetItemToIndex():
            rows = torch.vmap(one, in_dims=(None, 0))
            return torch.vmap(rows, in_dims=(0, None))(positions, positions)

    def subscripts(positions, start):
        with TransformGetItemToIndex():
            return torch.vmap(lambda row: X[row, 0] + start)(positions)

    for fn, graphs in ((below, 1), (subscripts, None)):
        counter = CountingBackend()
        compiled = minidynamo.compile(fn, backend=counter, fullgraph=graphs == 1)
        for positions, start in ((torch.tensor([0, 2, 1]), 2), (torch.tensor([1, 2]), 2)):
            assert_same(fn(positions, start), compiled(positions, start))
        assert graphs is None or len(counter.graphs) == graphs + 1  # of symbolic sizes


def test_transforms_that_modes_see_stay_right():
    """`torch.autograd.grad` and dual numbers are seen by modes: such transforms break."""

    def fn(x, mode):
        with mode:
            gradient = torch.func.grad(lambda a: (a * a).sum())(x)
            return gradient, torch.func.jvp(torch.sin, (x,), (x,))

    mine, theirs = Noting(), Noting()
    assert_same(fn(X, mine), minidynamo.compile(fn, backend="eager")(X, theirs))
    assert mine.seen == theirs.seen


def test_data_dependent_code_breaks():
    def fn(x):
        y = x.sin()
        if y.sum() > 0:
            y = y + y.max().item()
        return y, x.grad

    compiled = minidynamo.compile(fn, backend=CountingBackend())
    mine, theirs = Noting(), Noting()
    with mine:
        want = fn(X)
    with theirs:
        got = compiled(X)
    assert_same(want, got)
    assert mine.seen == theirs.seen


def test_disabling():
    class Class(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func is torch.add:
                return torch.ones(3, 3)
            return super().__torch_function__(func, types, args, kwargs or {})

    x = X.clone().as_subclass(Class)
    counter = CountingBackend()
    compiled = minidynamo.compile(
        lambda x: torch.add(x, 3) * 2, backend=counter, fullgraph=True
    )
    disabling = (torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction)
    for disable in disabling:
        with NoAdd():
            assert torch.equal(torch.add(x, 3) * 2, compiled(x))
            with disable():
                assert torch.equal(torch.add(x, 3) * 2, compiled(x))
        with disable():
            assert torch.equal(torch.add(x, 3) * 2, compiled(x))
    assert len(counter.graphs) == 5


class Wrapper:
    """No tensor, but functions of torch take it."""

    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        assert types == (cls,)
        args = [arg.tensor if isinstance(arg, Wrapper) else arg for arg in args]
        return cls(func(*args, **(kwargs or {})))


def test_objects_with_torch_function():
    def fn(w):
        return torch.sin(torch.add(w, 1.0, alpha=2)).tensor, F.relu(w).tensor

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for scale in (1, 2):
        assert_same(fn(Wrapper(X * scale)), compiled(Wrapper(X * scale)))
    assert len(counter.graphs) == 1
