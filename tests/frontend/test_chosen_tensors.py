"""`min` and `max` of tensors of one number: a choice in the graph, the item itself outside."""

import pytest
import torch
from testing import CountingBackend, assert_same, check

import minidynamo

A, B = torch.tensor(3), torch.tensor(5)


def unlike_each_other(a, b, x):
    longest = max(a, b)
    return x * longest + min(a, b - 1)


@pytest.mark.parametrize("pair", [(A, B), (B, A), (A, A), (A.float(), torch.tensor(torch.nan))])
def test_inputs_are_chosen_from_in_one_graph(pair):
    check(unlike_each_other, *pair, torch.ones(2), graphs=1, breaks=0)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_the_item_itself_is_returned(fullgraph):
    def f(a, b, box):
        box["best"] = max(a, b)
        own = min(a + 1, b + 1)
        return max(a, b), box["best"] + 1, own, max(a, b, a * 2)

    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter, fullgraph=fullgraph)
    for a, b in ((A, B), (B, A), (A, A.clone())):
        box, expected = {}, {}
        results = compiled(a, b, box)
        assert_same(results, f(a, b, expected))
        assert results[0] is f(a, b, {})[0] and box["best"] is expected["best"]
    assert len(counter.graphs) == 1


def test_another_dtype_is_chosen_by_eager():
    check(unlike_each_other, A, B, torch.ones(2), graphs=1, breaks=0)
    check(unlike_each_other, A.float(), B, torch.ones(2), graphs=None)
    counter = CountingBackend()
    compiled, x = minidynamo.compile(unlike_each_other, backend=counter), torch.ones(2)
    for a, b in ((A, B), (A.float(), B.float()), (B, A)):
        assert_same(compiled(a, b, x), unlike_each_other(a, b, x))
    assert len(counter.graphs) == 2


def test_an_item_that_is_written_to_later():
    def f(x):
        a, b = x.sum(), x.mean()
        m = max(a, b)
        a.add_(10)
        return m, a, b

    check(f, torch.ones(3), graphs=None)


def test_an_input_that_is_written_to_later():
    def f(a, b):
        m = max(a, b)
        b.add_(10)
        return m * 2, m

    check(f, A, B, graphs=None)


def test_a_view_of_it_is_one_of_the_item():
    def f(a, b):
        return max(a, b).view(1), max(a, b).view(1) + 1

    a, b = A.clone(), B.clone()
    minidynamo.compile(f, backend="eager")(a, b)[0].add_(1)
    assert (a.item(), b.item()) == (3, 6)
    check(f, A, B, graphs=None)


def test_whether_it_is_one_of_them():
    def f(a, b):
        m = max(a, b)
        return m is a, m is b, m + 1, m is None

    check(f, A, B, graphs=None)
    check(f, B, A, graphs=None)


def test_attributes_of_the_program():
    def f(a, b):
        m = max(a, b)
        return m.tag + (m + 1)

    a, b = A.clone(), B.clone()
    a.tag, b.tag = 1, 2
    check(f, a, b, graphs=None)


def test_gradients_of_inputs():
    def f(a, b):
        return max(a, b) * 2

    def grads(function):
        a, b = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
        function(a, b).backward()
        return a.grad, b.grad

    assert_same(grads(f), grads(minidynamo.compile(f, backend="eager")))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("value", [1.5, 2, torch.tensor(3.0), torch.tensor([4.0, 5.0])])
@pytest.mark.parametrize("shape", [(), (2,), (3, 2)])
def test_writes_where_one_bool_of_a_tensor_says(shape, value, grad):
    """All of the tensor is written, or nothing: the graph holds both, and no data is asked for."""

    def fn(x, value):
        y = x * 2
        y[y.sum() > 0] = value
        return y + 1, y._version

    compiled = minidynamo.compile(fn, backend="eager")
    for sign in (1, -1):
        results = []
        for call in (fn, compiled):
            x = torch.full(shape, float(sign), requires_grad=grad)
            try:
                y, version = call(x, value)
            except RuntimeError as error:
                results.append(type(error))
                continue
            gradient = torch.autograd.grad(y.sum(), x)[0].tolist() if grad else None
            results.append((y.tolist(), version, gradient))
        assert results[0] == results[1]


def test_rprop_steps_on_a_number():
    """Its step writes where comparisons of each parameter's gradient say."""
    parameters = [torch.ones((), requires_grad=True), torch.ones(3, requires_grad=True)]
    others = [p.detach().clone().requires_grad_() for p in parameters]
    plain, traced = torch.optim.Rprop(parameters), torch.optim.Rprop(others)
    step = minidynamo.compile(traced.step, backend="eager")
    for i in range(4):
        for p, q in zip(parameters, others, strict=True):
            p.grad = torch.cos(p.detach() * (i + 1) * 3)
            q.grad = p.grad.clone()
        plain.step()
        step()
        assert [p.tolist() for p in parameters] == [q.tolist() for q in others]
