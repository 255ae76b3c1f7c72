"""`tensor.data`, `tensor.grad` and attributes of tensors that hide methods."""

from __future__ import annotations

import copy
import operator

import pytest
import torch
from testing import CountingBackend, assert_same, check, check_recompiles
from torch import nn

import minidynamo
from minidynamo.inductor import metrics

X = torch.arange(6.0).reshape(2, 3)
BACKENDS = ["eager", "aot_eager", "inductor"]


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.full((3,), 2.0))
        self.register_buffer("b", torch.ones(3))
        self.w.grad = torch.full((3,), 0.5)

    def forward(self, x):
        return x * self.w + self.b


# -- stores ----------------------------------------------------------------------------------------


def replaced(x, y):
    x.data = y
    return x + 1


def written_after(x, y):
    x.data = y
    x.add_(1)
    return x + y


def shares(x, y):
    z = y * 2
    x.data = z
    z.add_(1)
    x.mul_(2)
    return x, z, x is z


def swapped(x, y):
    x.data, y.data = y.data, x.data
    return x - y


def other_shape(x, y):
    x.data = y[:1]
    return x.sum(), x.shape


def twice(x, y):
    x.data = y * 2
    a = x + 1
    x.data = a * 3
    return x - a


def of_intermediate(x, y):
    z = x + 1
    z.data = y
    z.add_(1)
    return z, y


def as_key(x, y):
    seen = {x: 1}
    x.data = y * 2
    return x + seen[x]


def grad_of_replaced(x, y):
    x.data = y * 2
    return x if x.grad is None else x.grad


@pytest.mark.parametrize(
    "fn",
    [replaced, written_after, shares, swapped, other_shape, twice, of_intermediate]
    + [grad_of_replaced],
)
def test_data_is_replaced(fn):
    check(fn, X, X + 1, graphs=1, breaks=0)


def test_identity_is_kept():
    check(as_key, X, X + 1, graphs=None, breaks=0)


def test_object_and_its_memory_afterwards():
    def fn(x, y):
        x.data = y
        x.mul_(2)

    x, y = torch.ones(3), torch.full((3,), 4.0)
    compiled = minidynamo.compile(fn, backend="eager")
    compiled(x, y)
    y.add_(1)
    assert x.tolist() == y.tolist() == [9.0] * 3
    assert x.data_ptr() == y.data_ptr()


def test_the_same_tensor_twice_is_another_program():
    x = X.clone()
    check_recompiles(written_after, [(X.clone(), X + 1), (x, x)], graphs=2)


def test_refused_data_breaks():
    def dtype(x, y):
        x.data = y.double()
        return x * 2

    check(dtype, X, X + 1, graphs=None)


# -- parameters ------------------------------------------------------------------------------------


def step(m, x):
    with torch.no_grad():
        for p in m.parameters():
            p.data = p.data - 0.1 * p.grad
    return m.w.sum()


def normed(m, x):
    m.w.data = m.w.data / m.w.data.norm()
    return (m(x) * 3).sum()


def decayed(m, x):
    m.b.data = m.b.data * 0.9
    return (m(x) * m.w).sum()


def clamped_after(m, x):
    m.w.data = m.w.data * 2
    with torch.no_grad():
        m.w.clamp_(max=3.0)
    return m(x).sum()


def masked_in_place(m, x):
    with torch.no_grad():
        m.w.data *= torch.tensor([1.0, 0, 2])
    return m(x).sum()


def written_after_use(m, x):
    y = m(x).sum()
    m.w.data /= 2
    m.b.data = m.b.data
    return y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fn",
    [step, normed, decayed, clamped_after, masked_in_place, written_after_use],
)
def test_parameters(fn, backend):
    minidynamo.reset()
    metrics.reset()
    eager, module = Scale(), Scale()
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    x = X.clone().requires_grad_()
    z = X.clone().requires_grad_()
    for _ in range(2):
        expected, actual = fn(eager, x), compiled(module, z)
        assert_same(expected.detach(), actual.detach())
        expected.backward()
        actual.backward()
        torch.testing.assert_close(z.grad, x.grad)
        torch.testing.assert_close(module.w.grad, eager.w.grad)
        torch.testing.assert_close(dict(module.state_dict()), dict(eager.state_dict()))
    assert metrics.uncompiled_graphs == 0


def test_used_before_with_gradients():
    """Eager's backward pass sees the new data: the store is left to it."""

    def fn(m, x):
        y = m(x).sum()
        m.w.data = m.w.data * 3
        return y

    eager, module = Scale(), Scale()
    compiled = minidynamo.compile(fn, backend="eager")
    x, z = X.clone().requires_grad_(), X.clone().requires_grad_()
    fn(eager, x).backward()
    compiled(module, z).backward()
    torch.testing.assert_close(z.grad, x.grad)


def test_in_place_on_a_leaf_is_still_an_error():
    def fn(m, x):
        m.w.data = m.w.data * 2
        m.w.mul_(2)
        return m(x)

    with pytest.raises(RuntimeError, match="leaf Variable"):
        minidynamo.compile(fn, backend="eager")(Scale(), X)


# -- gradients -------------------------------------------------------------------------------------


def grad_none(m, x):
    m.w.grad = None
    return m(x).detach(), m.w.grad


def grad_assigned(m, x):
    m.w.grad = torch.ones_like(m.w) * 3
    return m.w.grad * 2


def grad_kept(m, x):
    m.zero_grad(set_to_none=False)
    return m.w.grad


def grad_dropped(m, x):
    m.zero_grad()
    return m.w.grad is None


def grad_of_new(m, x):
    y = x.clone()
    y.grad = torch.ones_like(y)
    z = x + 1
    z.grad = None
    return y, y.grad, z.grad


@pytest.mark.parametrize("fn", [grad_none, grad_assigned, grad_kept, grad_dropped, grad_of_new])
def test_grad(fn):
    compiled = minidynamo.compile(fn, backend=(counter := CountingBackend()), fullgraph=True)
    eager, module = Scale(), Scale()
    for _ in range(2):
        eager.w.grad, module.w.grad = torch.ones(3), torch.ones(3)
        expected, actual = fn(eager, X), compiled(module, X)
        assert_same(expected, actual)
        assert_same(eager.w.grad, module.w.grad)
        if isinstance(expected, tuple) and isinstance(expected[0], torch.Tensor):
            assert_same(expected[0].grad, actual[0].grad)
    assert len(counter.graphs) <= 1


# -- attributes of the program's own ---------------------------------------------------------------


def hides_a_method(x):
    y = x * 2
    y.sum = 5
    return y + y.sum


def hides_and_calls(x):
    y = x * 2
    y.mean = lambda: 7
    return y + y.mean()


@pytest.mark.parametrize("fn", [hides_a_method, hides_and_calls])
def test_attribute_named_like_a_method(fn):
    check(fn, X, graphs=1, breaks=0)


def test_attribute_of_an_input_named_like_a_method():
    x = X.clone()
    x.mean = 7
    check(lambda x: x + x.mean, x, graphs=1, breaks=0)
    y = copy.copy(X)
    y.mean = 8
    check_recompiles(lambda x: x + x.mean, [(x,), (y,)], graphs=2)


# -- one of several tensors ------------------------------------------------------------------------


def chosen(x):
    s = x.sum()
    return max(s, x.mean()), max([s, x.min(), x.max()]), x * min(s, x.mean())


def chosen_nan(x):
    nan = x.sum() * float("nan")
    return max(nan, x.sum()), max(x.sum(), nan), min(nan, x.sum()), min(x.sum(), nan)


def test_extremes_of_tensors():
    check(chosen, X, graphs=1, breaks=0)
    check(chosen_nan, X, graphs=1, breaks=0)


def test_extremes_that_are_written_to():
    def fn(x):
        a, b = x.sum(), x.mean()
        m = max(a, b)[None]
        m.mul_(2)
        return a, b, m

    check(fn, X, graphs=2)


def test_extremes_with_numbers_in_one_graph():
    def fn(x, n):
        return x + min(n, 5), x + max(n, 2), x + max(1, 2, n)

    check(fn, X, torch.tensor(3.5), graphs=1, fullgraph=True)
    check(fn, X, torch.tensor(3.5), graphs=None)  # a number may be what is given


# -- sizes of memory -------------------------------------------------------------------------------


def test_size_of_the_memory():
    def fn(x):
        y = (x.view(2, -1) + 1)[1]
        memory = x.untyped_storage()
        same = memory is x[1:].untyped_storage()
        return x * memory.size(), y.untyped_storage().nbytes(), len(memory), same

    whole = torch.arange(6.0)
    check(fn, whole, graphs=1, fullgraph=True)
    parts = [torch.arange(8.0 + i).detach()[:6] for i in range(2)]
    check_recompiles(fn, [(x,) for x in (whole, *parts, whole)], graphs=3)
    sizes = [torch.arange(6.0 * i) for i in range(1, 5)]
    check_recompiles(fn, [(x,) for x in sizes], graphs=2)


def test_other_uses_of_the_memory():
    def fn(x, y):
        memory = y.untyped_storage()
        z = x + y
        memory.resize_(0)
        return z * 2, memory.size(), memory is x.untyped_storage()

    x, y = torch.ones(3), torch.ones(3)
    found = minidynamo.compile(fn, backend="eager")(x, y)
    assert torch.equal(found[0], torch.full((3,), 4.0))
    assert found[1:] == (0, False) and y.untyped_storage().size() == 0


def test_memory_that_was_kept_is_the_same():
    def fn(x, memory):
        y = x + 1
        own = y.untyped_storage()
        own.tag = 5
        again = y.untyped_storage()
        same = own is again, again is own, memory is x.untyped_storage()
        return same, own.tag, y.untyped_storage() is not memory, y * 2

    x = torch.ones(3)
    for memory in (x.untyped_storage(), torch.ones(3).untyped_storage(), None):
        minidynamo.reset()
        check(fn, x, memory, graphs=None)


def test_tensors_on_one_memory():
    def fn(x, y):
        z = y.view(1, -1)
        return x.untyped_storage() is z.untyped_storage(), z.untyped_storage().size(), x + z

    x = torch.ones(3)
    near, far = (x, x[:]), (x, torch.ones(5)[:3])
    for calls in ((near, far), (far, near), ((x, x), near)):
        minidynamo.reset()
        compiled = minidynamo.compile(fn, backend="eager")
        for call in calls * 2:
            assert_same(compiled(*call), fn(*call))


# -- versions --------------------------------------------------------------------------------------


def counted(x, w):
    before = w._version
    x.detach().add_(1)
    y = x.view(-1).clone()
    y.mul_(2)
    return y, x._version, x[0]._version, y._version, w._version - before, before


def branching(x, w):
    return x + 1 if x._version < 3 else x - 1, x.view(-1)._version


def behind_a_break(x, w):
    y = x.clone()
    minidynamo.graph_break()
    y.add_(w)
    assert y._version > 0
    return y * 2, y._version, x._version


def before_a_break(x, w):
    before = x._version
    minidynamo.graph_break()
    return x + w, before


@pytest.mark.parametrize(
    ("fn", "graphs"),
    [(counted, 1), (branching, 2), (behind_a_break, 2), (before_a_break, 1)],
)
def test_versions_of_inputs(fn, graphs):
    def run(call):
        x, w = torch.zeros(3), nn.Parameter(torch.ones(3))
        results = []
        for i in range(5):
            x.add_(1)
            if i % 2:
                w.detach().mul_(2)
            results.append(call(x, w))
        return results

    counter = CountingBackend()
    assert_same(run(minidynamo.compile(fn, backend=counter)), run(fn))
    assert len(counter.graphs) == graphs


def test_what_fake_tensors_do_not_know_of_inputs():
    def number(x):
        return x * 2, x.output_nr, x.unbind()[1].output_nr

    def is_shared(x):
        return x * 2, x.is_shared(), x[0].is_shared()

    parts = torch.ones(3, 2, requires_grad=True).unbind()
    compiled = minidynamo.compile(number, backend="eager")
    assert [compiled(part)[1:] for part in parts] == [(0, 1), (1, 1), (2, 1)]
    both = [torch.ones(2).share_memory_(), torch.ones(2)]
    check_recompiles(is_shared, [(x,) for x in both], graphs=2)


def test_items_in_tensors():
    """A number of the graph, where those are captured; else the graph breaks as before."""

    def fn(x, y):
        return x + 1, 2 in x, operator.contains(x, y), True in x

    check_recompiles(
        fn, [(X, X[1]), (X + 3, X[0]), (X - 9, X[0, :1])], graphs=2, fullgraph=True
    )
    check(fn, X, X[1], graphs=None)
    check(lambda x: (x + 1, "a" in x), X, graphs=None)


def doubled(number):
    return number * 2


def test_functions_of_python_on_each_element_run_in_eager():
    def f(x):
        y = (x + 1).apply_(doubled)
        z = y * 2
        z.map_(y, max)
        return torch.Tensor.apply_(z - 1, abs), x.apply_(doubled)

    check(f, torch.ones(3), graphs=None)
