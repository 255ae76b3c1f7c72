"""Views that functions return of inputs that they write to, for inputs of several sizes."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

import minidynamo
from minidynamo.inductor import metrics


def vector(x):
    x[0] = 3
    v = x.view(-1)
    v.add_(1)
    first, second = v.chunk(2)
    return x.unflatten(0, (1, -1)), x[1:], v, first, second[1:], x.signbit(), x.view(len(x), 1)


def matrix(x):
    x.mul_(2)
    flat = x.flatten()
    return x.t(), x[1:, 1:], x.T[1], flat, x.sum(), flat[2:].view(-1, 1), x.expand(2, *x.shape)


def part(x):
    x.t()[0].add_(1)
    return x[:, 1:].t(), x.diagonal(), x.narrow(0, 1, x.shape[0] - 1), x * 2


def as_other(x, w):
    x.copy_(w * 2)
    return x.view_as(w)[1:], (x + w).sum(), x.expand(2, *x.shape)


def both(x, y):
    x.add_(y)
    y.mul_(2)
    return x[1:], y[:-1], x, y, y.view(-1)


def halves(x):
    n = x.shape[0] // 2
    x[n:] = 0
    return x[:n], x[n:], x[n], x[::2], x.unfold(0, 2, 1)


def given(shape, offset, count, trained):
    leaves, inputs = [], []
    for start in range(count):
        size = torch.Size(shape).numel() + offset + start
        leaf = torch.arange(1.0, size + 1, requires_grad=trained)
        leaves.append(leaf)
        inputs.append((leaf * 1)[offset + start :].view(shape))
    return leaves, inputs


def memory(inputs, value):
    places = [t.untyped_storage().data_ptr() for t in inputs]
    place = value.untyped_storage().data_ptr()
    return [i for i, other in enumerate(places) if other == place]


FLAT = [((9,), 0), ((9,), 1), ((14,), 1), ((6,), 3)]
SQUARE = [((4, 6), 0), ((5, 3), 0), ((6, 7), 2), ((3, 3), 1)]


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(
    ("function", "shapes", "count"),
    [
        (vector, FLAT, 1),
        (halves, FLAT, 1),
        (matrix, SQUARE, 1),
        (part, SQUARE, 1),
        (as_other, FLAT, 2),
        (both, FLAT, 2),
    ],
)
def test_views_of_written_inputs(function, shapes, count, trained):
    minidynamo.reset()
    metrics.reset()
    compiled = minidynamo.compile(function, dynamic=True, fullgraph=True)
    for shape, offset in shapes:
        (leaves, inputs), (others, compared) = (
            given(shape, offset, count, trained) for _ in "ab"
        )
        want, found = tree_leaves(function(*inputs)), tree_leaves(compiled(*compared))
        for expected, value in zip(want, found, strict=True):
            torch.testing.assert_close(value, expected, rtol=0, atol=0, check_stride=True)
            assert value.storage_offset() == expected.storage_offset()
            assert memory(compared, value) == memory(inputs, expected)
            assert value.requires_grad == expected.requires_grad
            assert value._is_view() == expected._is_view()
        assert [x._version for x in compared] == [x._version for x in inputs]
        if trained:
            for results in (want, found):
                sum((i + 1.5) * r.sum() for i, r in enumerate(results) if r.grad_fn).backward()
            for leaf, other in zip(leaves, others, strict=True):
                torch.testing.assert_close(other.grad, leaf.grad)
    # A graph for sizes that are known and one for others: none runs operator by operator.
    assert metrics.compiled_graphs <= 2
    assert metrics.uncompiled_graphs == 0


def test_one_of_several_views_of_an_input_written_to_twice():
    """Autograd lets nobody write to the memory of `chunk`'s results behind it."""

    def f(x):
        x.mul_(2)
        x.add_(1)
        return x.chunk(2)

    leaf = torch.ones(4, requires_grad=True)
    first, second = minidynamo.compile(f, fullgraph=True)(leaf * 1)
    (first.sum() + 3 * second.sum()).backward()
    assert leaf.grad.tolist() == [2, 2, 6, 6]


def test_views_made_without_gradients_are_left_to_eager():
    def f(x):
        with torch.no_grad():
            x.add_(1)
            view = x[1:]
        return view, x[2:]

    compiled = minidynamo.compile(f, dynamic=True)
    for size in (5, 8):
        (_, (x,)), (_, (other,)) = (given((size,), 2, 1, True) for _ in "ab")
        for expected, value in zip(f(x), compiled(other), strict=True):
            assert torch.equal(value, expected)
            assert value.requires_grad == expected.requires_grad
            assert value.storage_offset() == expected.storage_offset()


def test_writing_to_a_view_keeps_sizes_symbolic():
    def f(x):
        x.relu_()
        return x[1:] + 1

    minidynamo.reset()
    metrics.reset()
    compiled = minidynamo.compile(f, dynamic=True)
    for rows, columns in ((4, 6), (5, 3), (6, 7)):
        (_, (x,)), (_, (other,)) = (given((rows, columns), 0, 1, False) for _ in "ab")
        assert torch.equal(compiled(other), f(x))
    assert metrics.compiled_graphs == 1


def last(x):
    x[0] = 2
    return x.unbind(0)[-1]


def last_of_two(x):
    view = x.expand(2, *x.shape)
    with torch.no_grad():
        x[0] = 2
    return view.chunk(2)[1]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("function", [last, last_of_two])
def test_one_of_several_views_shares_memory(function, backend):
    leaf = torch.ones(2, 3, requires_grad=True)
    x = (leaf * 1).view(2, 3)
    found = minidynamo.compile(function, backend=backend)(x)
    assert memory([x], found) == [0]
    (found.sum() + x.sum()).backward()
    with torch.no_grad():
        x.fill_(7)
    assert (found == 7).all()
    other = torch.ones(2, 3, requires_grad=True)
    y = (other * 1).view(2, 3)
    (function(y).sum() + y.sum()).backward()
    assert torch.equal(leaf.grad, other.grad)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_writes_without_gradients_leave_the_history_of_an_input(backend):
    def f(x):
        with torch.no_grad():
            x.zero_()
        return x[1:]

    leaf = torch.ones(3, requires_grad=True)
    x = leaf * 2
    found = minidynamo.compile(f, backend=backend)(x)
    (found.sum() + x.sum()).backward()
    assert leaf.grad.tolist() == [2, 4, 4]
