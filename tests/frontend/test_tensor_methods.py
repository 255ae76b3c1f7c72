"""Methods and attributes of tensors."""

from __future__ import annotations

import pytest
import torch
from testing import CountingBackend, assert_same, check, check_recompiles
from torch import nn

import minidynamo
from minidynamo.inductor import metrics

X = torch.arange(6.0).reshape(2, 3)


def test_metadata():
    def fn(x):
        return (
            x.shape,
            x.size(),
            x.size(-1),
            x.stride(),
            x.stride(0),
            x.dim(),
            x.ndim,
            x.numel(),
            x.dtype,
            x.device,
            x.layout,
            x.requires_grad,
            x.is_leaf,
            x.is_contiguous(),
            x.t().is_contiguous(),
            x.is_cuda,
            x.element_size(),
            x.itemsize,
            x.storage_offset(),
            x.type(),
            len(x),
            x.shape[1] * 2,
            x.T.shape,
            x + 1,
        )

    check(fn, X, fullgraph=True)


def test_conversions():
    def fn(x):
        y = (
            x.to(torch.float64),
            x.to(x),
            x.to("cpu", torch.int32),
            x.double(),
            x.type(torch.int64),
        )
        return y, x.int() + x.long(), x.bool(), x.type_as(y[0]), x.cpu(), x.half().float()

    check(fn, X, fullgraph=True)


def test_views_and_reductions():
    def fn(x):
        y = (
            x.view(-1),
            x.reshape(3, 2),
            x.permute(1, 0),
            x.unsqueeze(0).squeeze(),
            x.expand(4, 2, 3),
        )
        return (
            y,
            x.sum(),
            x.mean(0),
            x.std(dim=1, keepdim=True),
            x.amax((0, 1)),
            x.norm(),
            x.argmax(),
        )

    check(fn, X, fullgraph=True)


def test_indexing():
    def fn(x, i):
        n = x.shape[0] - 1
        return (
            x[0],
            x[-1, 1:],
            x[..., None],
            x[:, [0, 2]],
            x[i],
            x[n, ::2],
            x[None, ..., 0],
            x[torch.tensor([True, False])].shape[1] if False else 0,
            x[(0, 1)],
            x[:n],
        )

    check(fn, X, torch.tensor([1, 0]), fullgraph=True)


def test_item_stores():
    def fn(x, i):
        y = x.clone()
        y[0] = 5
        y[:, 1] = x[:, 0]
        y[i] += 1
        y[..., -1] *= 2
        x[0, 0] = -1
        return y

    check(fn, X, torch.tensor([1]), fullgraph=True)


def test_inplace_methods():
    def fn(x):
        y = x.add_(1)
        z = x.view(-1)
        z.mul_(2)
        x += 1
        same = y is x
        x.zero_().add_(3) if x.shape[0] == 5 else None
        return y, z, same

    check(fn, X, fullgraph=True)


def test_inplace_on_view_changes_metadata():
    def fn(x):
        y = x.clone()
        y.unsqueeze_(0)
        y.t_() if y.dim() == 2 else y.squeeze_(0)
        return y, y.shape

    check(fn, X, fullgraph=True)


def turned(x):
    return x.t_()


def turned_twice(x):
    y = x.view(-1)
    x.unsqueeze_(0).transpose_(1, 2).mul_(2)
    return y + 1, x, x.shape


def strided(x):
    x.as_strided_((2, 2), (1, 2))
    return x + 1, x.T


def turned_and_left(x):
    x.t_()
    minidynamo.graph_break()
    return x.squeeze_(0) * 2, x.shape


def polygamma(x):
    return x.t_().polygamma_(1), x.add_(1)


@pytest.mark.parametrize("fn", [turned, turned_twice, strided, turned_and_left, polygamma])
@pytest.mark.parametrize("backend", [None, "aot_eager", "inductor"])
def test_inputs_that_change_their_shape(fn, backend):
    check(fn, X + 1, graphs=None, fullgraph=fn is not turned_and_left, backend=backend)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_gradient_of_polygamma_in_place(backend):
    def fn(x):
        return x.clone().polygamma_(1)

    x, y = (torch.tensor([2.0, 3.5], requires_grad=True) for _ in range(2))
    metrics.reset()
    minidynamo.compile(fn, backend=backend, fullgraph=True)(x).sum().backward()
    fn(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert not metrics.uncompiled_graphs


def test_an_input_that_changed_its_shape_compiles_anew():
    counter = CountingBackend()
    compiled = minidynamo.compile(turned, backend=counter, dynamic=False)
    x = X.clone()
    for graphs in (1, 2, 2):
        assert compiled(x) is x
        assert len(counter.graphs) == graphs
    assert x.shape == (3, 2) and x.stride() == (1, 3)


def test_operators():
    def fn(x):
        y = (
            1 - x,
            2 / (x + 1),
            x // 2,
            7 % (x + 1),
            x**2,
            2**x,
            -x,
            abs(x - 3),
            ~(x > 1),
            x @ x.T,
        )
        return y, x == 1, x != x, (x > 1) & (x < 4), x >= 2, divmod(5, 2), x.__radd__(1)

    check(fn, X, fullgraph=True)


def test_iteration():
    def fn(x):
        rows = [row * 2 for row in x]
        a, b = x
        return rows, a + b, sum(x), max(x.shape), list(zip(x, [1, 2], strict=True))

    check(fn, X, fullgraph=True)


def test_unbound_methods():
    def fn(x):
        return (
            torch.Tensor.add(x, 1),
            torch.Tensor.norm(x),
            torch.Tensor.split(x, 1),
            map(abs, x),
        )

    def run(x):
        a, b, c, d = fn(x)
        return a, b, c, list(d)

    check(run, X, fullgraph=True)


def test_bound_methods_as_values():
    def fn(x):
        f = x.add
        g = getattr(x, "m" + "ul")
        return f(1) + g(2), callable(f), hasattr(x, "nothing"), hasattr(x, "sin")

    check(fn, X, fullgraph=True)


def test_python_attributes_on_tensors():
    x = X.clone()
    x.note = 3

    def fn(x):
        x.mark = "seen"
        y = x + 1
        y.label = x.note
        return y.label + x.note, y

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    number, y = compiled(x)
    assert number == 6
    assert y.label == 3
    assert x.mark == "seen"


def test_note_is_guarded():
    x = X.clone()

    def fn():
        return x * getattr(x, "note", 1)

    def change(i):
        if i:
            x.note = i

    check_recompiles(fn, [()] * 3, graphs=3, change=change)


def test_grad():
    weight = nn.Parameter(torch.ones(3))

    def fn(x):
        y = x * weight
        return y if weight.grad is None else y + weight.grad

    def change(i):
        if i == 1:
            weight.grad = torch.ones(3)

    check_recompiles(fn, [(X,)] * 3, graphs=2, change=change)


def test_setting_grad():
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)

    def fn(x):
        y = x + weight.grad
        weight.grad = None
        return y, weight.grad

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X)[0], X + 1)
    assert weight.grad is None


def test_data():
    weight = nn.Parameter(torch.ones(3))

    def fn(x):
        return x + weight.data, weight.detach() * 2, weight.data.requires_grad

    check(fn, X, fullgraph=True)


def test_sgd_step_by_hand():
    def fn(w, x):
        loss = (x @ w).square().sum()
        with torch.no_grad():
            w.sub_(0.1 * loss)
        return loss

    check(fn, torch.ones(3, requires_grad=False), X, fullgraph=True)


def test_dtype_and_device_constants():
    def fn(x):
        device = torch.device("cpu")
        return (
            x.to(device=device, dtype=torch.float64),
            device.type,
            x.device == device,
            x.dtype.is_complex,
        )

    check(fn, X, fullgraph=True)


def test_complex_and_bool():
    def fn(x):
        z = torch.complex(x, x)
        return z.real, z.imag, z.conj().abs(), z.angle(), x.bool().all(), x.any()

    check(fn, X, fullgraph=True)


def test_requires_grad_of_input():
    def fn(x):
        y = x * 2
        y.requires_grad_(False) if False else None
        return y, y.requires_grad

    check(fn, X, fullgraph=True)
    check(lambda x: (x.requires_grad_() * 2).requires_grad, X, graphs=None)


def test_requires_grad_is_set_to_what_it_is():
    def off(x):
        made = torch.eye(3)
        made.requires_grad = False
        cut = (x * 2).detach()
        cut.requires_grad = False
        return x @ made + cut, made.requires_grad

    def on(x):
        x.requires_grad = True
        return x * 2

    def no_flag(x):
        made = torch.eye(3)
        made.requires_grad = 0
        return x @ made

    def no_leaf(x):
        y = x * 2
        y.requires_grad = True
        return y

    leaf = X.clone().requires_grad_()
    check(off, leaf, fullgraph=True)
    check(on, leaf, fullgraph=True)
    check(no_flag, leaf, graphs=None)
    check(no_leaf, leaf, graphs=None)

    compiled = minidynamo.compile(on, backend="eager")
    assert compiled(leaf).requires_grad
    assert compiled(x := X.clone()).requires_grad and x.requires_grad


def test_same_tensor_twice():
    def fn(a, b):
        a.add_(1)
        return a + b, a is b

    check_recompiles(fn, [(X, X), (X, X + 1)], graphs=2)


def test_tensor_in_containers():
    def fn(x):
        table = {x: 1}
        return x in table, [1, 2].__contains__(2), x is x, len({x, x + 1})

    check(lambda x: (fn(x), x + 1), X, graphs=None, fullgraph=True)


def test_new_takes_sizes_and_data():
    def f(x):
        a, b = x.new(x.shape), x.new(x.size())
        return a.zero_(), b.fill_(2), x.new([3.0, 4.0]), x.new(2, 3).zero_(), x.new((5.0, 6.0))

    check(f, torch.ones(3, 2), graphs=None)


def test_keyword_that_is_no_name():
    """`from` cannot be written in the code of a graph."""

    def f(a):
        a = a.clone()
        a.uniform_(**{"from": 2, "to": 3})
        return a.random_(**{"from": 5, "to": 6})

    check(f, torch.ones(4), fullgraph=True)


def test_other_name_of_grad():
    def f(a, b):
        a._grad = b.detach() + 1
        b.grad = a.detach() + 2
        return a.grad * 2, b._grad * 3

    def call(function):
        a, b = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        return function(a, b), a.grad, b.grad

    counter = CountingBackend()
    assert_same(call(f), call(minidynamo.compile(f, backend=counter, fullgraph=True)))
    assert len(counter.graphs) == 1


@pytest.mark.parametrize("make", [torch.ones, lambda n: nn.Parameter(torch.ones(n))])
def test_attributes_that_are_deleted(make):
    def f(a):
        del a.mine
        found = [hasattr(a, "mine"), getattr(a, "mine", "none")]
        for action in (lambda: a.mine, lambda: delattr(a, "mine"), lambda: a.mine()):
            try:
                action()
            except AttributeError as error:
                found.append(str(error))
        a.other = 1
        b = a.detach() + 1
        b.mine = 2
        del b.mine
        del a.other
        return found, hasattr(a, "other"), b, hasattr(b, "mine")

    def call(function):
        a = make(3)
        a.mine = abs
        return function(a), hasattr(a, "mine"), hasattr(a, "other")

    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter)
    assert_same(call(f), call(compiled))
    assert_same(call(f), call(compiled))
    assert len(counter.graphs) == 1


@pytest.mark.parametrize("name", ["names", "no_such_attribute"])
def test_attributes_that_tensors_may_lack(name):
    def fn(x):
        try:
            return x + 1, getattr(x, name)
        except AttributeError as error:
            return x - 1, str(error)

    check(fn, torch.ones(2))


def test_iteration_reads_by_index():
    """With gradients, the items stay several views of one operation, as autograd has them."""

    def fn(x):
        first, *others = x
        for other in others:
            first = first + other
        return first

    def written(x):
        first, second = x * 2
        first.add_(1)
        return first, second

    check(fn, torch.arange(6.0).reshape(3, 2), ops=5, fullgraph=True)
    check(fn, torch.ones(3, 2, requires_grad=True), ops=6, fullgraph=True)
    check(written, torch.ones(2, 2), fullgraph=True)
    check(written, torch.ones(2, 2, requires_grad=True), graphs=None)


def part_of_a_split(*, is_written):
    base = torch.rand(4, 2, requires_grad=True) * 1
    part = base.chunk(2, 0)[1]
    if is_written:
        base.mul_(2)  # from now on autograd refuses the part
    return part


@pytest.mark.parametrize(
    "fn",
    [lambda v: v * 2 + 1, lambda v: v.detach() * 2, lambda v: v.grad_fn, lambda v: v.is_leaf],
)
def test_parts_whose_base_was_written(fn, caplog):
    compiled = minidynamo.compile(fn, backend="eager")
    for is_written in (False, True, False, True, True, False):
        results = []
        for call in (fn, compiled):
            torch.manual_seed(0)
            part = part_of_a_split(is_written=is_written)
            try:
                value = call(part)
            except RuntimeError as error:
                results.append(str(error))
            else:
                results.append(
                    value.tolist() if isinstance(value, torch.Tensor) else type(value)
                )
        assert results[0] == results[1]
    assert not [record for record in caplog.records if "bug" in record.getMessage()]


def test_is_nonzero_is_the_truth_of_a_number():
    def fn(x):
        return x + 1, torch.is_nonzero(x[0, 1]), x[0, 0].is_nonzero()

    check(fn, X, graphs=1, fullgraph=True)


def test_hashes_of_tensors_are_their_addresses():
    def fn(x, y):
        return x + 1, hash(x) == hash(x), hash(x) == hash(y), hash(x) == id(x), hash(x)

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    y = X + 1
    assert compiled(X, y)[1:] == fn(X, y)[1:]
    assert compiled(y, X)[1:] == fn(y, X)[1:]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_methods_that_the_program_adds_to_tensors_are_traced(backend, monkeypatch):
    """They were calls in the graph: their side effects ran while tracing, and a later change of
    what they read, or of them, was not seen.
    """
    calls, settings = [], {"by": 2}

    def scaled(self, times=1):
        calls.append(times)
        return self * settings["by"] * times

    monkeypatch.setattr(torch.Tensor, "scaled", scaled, raising=False)
    monkeypatch.setattr(torch.Tensor, "relu", scaled)
    monkeypatch.setattr(torch.Tensor, "twice", property(lambda self: self * 2), raising=False)
    monkeypatch.setattr(torch.Tensor, "tag", "a", raising=False)
    monkeypatch.setattr(torch.Tensor, "kind", classmethod(lambda c: c.__name__), raising=False)

    def fn(x):
        return x.scaled(), (x + 1).scaled(times=3), x.relu(), (x - 1).twice, x.tag, x.kind()

    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)

    def compare():
        want, expected = fn(X), calls[:]
        calls.clear()
        assert_same(compiled(X), want)
        assert calls == expected
        calls.clear()

    compare()
    compare()
    settings["by"] = 5
    compare()
    monkeypatch.setattr(torch.Tensor, "scaled", lambda self, times=1: self - times)
    monkeypatch.setattr(torch.Tensor, "tag", "b")
    compare()


def test_whether_tensors_have_a_method_of_the_program():
    def fn(x):
        y = x + 1
        return (y.shifted() if hasattr(y, "shifted") else y), hasattr(x, "shifted")

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    assert_same(compiled(X), (X + 1, False))
    torch.Tensor.shifted = lambda self: self + 5
    try:
        assert_same(compiled(X), (X + 6, True))
    finally:
        del torch.Tensor.shifted
    assert_same(compiled(X), (X + 1, False))
