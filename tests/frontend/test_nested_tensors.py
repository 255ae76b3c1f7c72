"""Nested tensors of jagged layout: as inputs, made inside, their sizes and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from testing import CountingBackend
from torch import nn

import minidynamo

LENGTHS = ([2, 3, 4], [3, 2, 5], [2, 2, 3, 4], [4, 2, 2, 6, 3])
LINEAR, NORM = nn.Linear(5, 6), nn.LayerNorm(5)


def values(lengths, grad=False):
    torch.manual_seed(sum(lengths))
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.randn(sum(lengths), 5, requires_grad=grad), offsets


def nested(lengths, grad=False):
    """A view of values that are no leaf of the call, or a leaf."""
    if grad:
        parts = values(lengths)[0].split(lengths)
        return torch.nested.nested_tensor(list(parts), layout=torch.jagged, requires_grad=True)
    bounds = {"min_seqlen": min(lengths), "max_seqlen": max(lengths)}
    return torch.nested.nested_tensor_from_jagged(*values(lengths), **bounds)


def jagged(data, offsets):
    return torch.nested.nested_tensor_from_jagged(data, offsets)


def same(left, right):
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, torch.Tensor) and left.is_nested:
        kinds = [(type(x), x.requires_grad, x._ragged_idx) for x in (left, right)]
        return kinds[0] == kinds[1] and same(
            *((x.values(), x.offsets()) for x in (left, right))
        )
    if isinstance(left, torch.Tensor):
        return type(left) is type(right) and torch.allclose(left, right, atol=1e-5)
    return left == right


def gradients(result, inputs):
    result = result[0] if isinstance(result, tuple) else result
    wanted = [x for x in inputs if x.requires_grad]
    if not wanted or not result.requires_grad:
        return []
    dense = result.values() if result.is_nested else result
    return list(torch.autograd.grad(dense.pow(2).sum(), wanted))


def requires_grad(results):
    results = results if isinstance(results, tuple) else (results,)
    return [isinstance(x, torch.Tensor) and x.requires_grad for x in results]


def leaf(lengths):
    return [nested(lengths, grad=True)]


def view(lengths):
    return [nested(lengths)]


# What is compiled, its arguments, and how many graphs the four batches take.
CASES = {
    "pointwise": (lambda x: (x.sin() * 2 + x).relu(), leaf, 3),
    "views": (lambda x: x.sin() * 2, view, 3),
    "linear": (lambda x: LINEAR(x).tanh(), leaf, 3),
    "norm": (lambda x: NORM(x) + x, leaf, 3),
    "ragged sum": (lambda x: x.sum(1), view, 3),
    "softmax": (lambda x: F.softmax(x, -1), leaf, 3),
    "padded": (lambda x: x.to_padded_tensor(0.5) * 2, leaf, 3),
    "parts": (lambda x: (x.values() * 2, x.offsets(), x.lengths()), leaf, 3),
    "sizes": (lambda x: (x * x.shape[0] + x.size(2), x.shape[1] == x.size(1)), leaf, 3),
    "reshaped": (lambda x: x.unflatten(-1, (5, 1)).transpose(1, 2) * 2, view, 3),
    "one ragged size": (lambda x, y: x + y, lambda n: (lambda x: [x, x * 3])(nested(n)), 3),
    "with a dense one": (lambda x, y: x * y, lambda n: [nested(n), torch.ones(1, 1, 5)], 3),
    "in place": (lambda x: x.mul_(2), view, 3),
    "parts again": (lambda x: jagged(x.values() * 2, x.offsets()) + x, view, 3),
    "made inside": (lambda v, o: jagged(v, o).sin() * 2, lambda n: list(values(n, True)), 3),
    "inside alone": (
        lambda v, o: (jagged(v, o).sin() * 2).values(),
        lambda n: list(values(n, True)),
        3,
    ),
    "values of an input": (
        lambda v, o: jagged(v, o).values(),
        lambda n: list(values(n, True)),
        3,
    ),
    "values among others": (
        lambda v, o: (jagged(v, o).values().view(-1, 1), v * 2),
        lambda n: list(values(n, True)),
        3,
    ),
    "values of no leaf": (
        lambda v, o: (lambda w: (jagged(w, o).values(), w.sin()))(v * 2),
        lambda n: list(values(n, True)),
        3,
    ),
    "computed and its values": (
        lambda v, o: (lambda n: (n, n.values(), n.offsets()))(jagged(v, o) * 2),
        lambda n: list(values(n, True)),
        3,
    ),
    "of one dimension": (
        lambda v, o: jagged(v[:, 0], o),
        lambda n: list(values(n, True)),
        3,
    ),
    "computed of one dimension": (
        lambda v, o: jagged(v[:, 0], o) * 2,
        lambda n: list(values(n, True)),
        3,
    ),
    "of one dimension of no leaf": (
        lambda v, o: jagged(v[:, 0] * 2, o),
        lambda n: list(values(n, True)),
        3,
    ),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", CASES)
def test_captured_whole(name, backend):
    fn, make, graphs = CASES[name]
    minidynamo.reset()
    counter = CountingBackend(backend=backend)
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for lengths in LENGTHS:
        mine, theirs = make(lengths), make(lengths)
        want, got = fn(*mine), compiled(*theirs)
        assert same(want, got)
        assert same(mine, theirs)
        assert requires_grad(want) == requires_grad(got)
        assert same(gradients(want, mine), gradients(got, theirs))
    assert len(counter.graphs) <= graphs


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_constant_sizes_of_views_are_guarded(backend):
    def fn(x):
        return x.narrow(2, 0, 4), x * 2, x.sum(1)

    def of(width, lengths):
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        return jagged(torch.randn(sum(lengths), width), offsets)

    counter = CountingBackend(backend=backend)
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for width, lengths in ((4, [2, 3]), (4, [4, 2]), (6, [2, 3]), (7, [1, 5])):
        x = of(width, lengths)
        assert same(compiled(x), fn(x))
    assert 2 <= len(counter.graphs) <= 3


@pytest.mark.parametrize("name", ["linear", "made inside", "values of an input"])
def test_inductor(name):
    fn, make, _ = CASES[name]
    compiled = minidynamo.compile(fn, fullgraph=True)
    for lengths in LENGTHS[:3]:
        mine, theirs = make(lengths), make(lengths)
        want, got = fn(*mine), compiled(*theirs)
        assert same(want, got)
        assert same(gradients(want, mine), gradients(got, theirs))


def test_lengths_that_change_among_equal_sizes():
    fn = lambda x: [part * 2 for part in x.unbind()]  # noqa: E731
    compiled = minidynamo.compile(fn, backend="aot_eager")
    for lengths in ([2, 3, 4], [4, 3, 2], [3, 3, 3]):
        assert same(compiled(nested(lengths)), fn(nested(lengths)))


def test_breaks_and_text():
    def fn(x):
        ragged, y = x.shape[1], x * 2
        minidynamo.graph_break()
        return y.sin() + x, ragged == y.shape[1], str(ragged)[0], len([z + 1 for z in x])

    compiled = minidynamo.compile(fn, backend="aot_eager")
    for lengths in LENGTHS:
        assert same(compiled(nested(lengths)), fn(nested(lengths)))
    text = minidynamo.compile(lambda x: str(x.shape[1]), backend="eager", fullgraph=True)
    for values in (nested([2]), nested([3, 1])):
        assert text(values) == str(values.shape[1])


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_which_offsets_are_one_object_is_guarded(order):
    def inputs(x, y):
        return x.shape == y.shape, x * 2

    def inside(v, o, p):
        return jagged(v, o).shape == jagged(v, p).shape, v * 2

    def mixed(x, v, o):
        return x.shape == jagged(v, o).shape, v * 2

    x, (v, o) = nested([2, 3]), values([2, 3])
    for fn, one, two in (
        (inputs, [x, x * 2], [x, nested([2, 3])]),
        (inside, [v, o, o], [v, o, o.clone()]),
        (mixed, [x, v, x.offsets()], [x, v, o]),
    ):
        compiled = minidynamo.compile(fn, backend="eager")
        for is_one in order:
            assert same(compiled(*(one if is_one else two)), fn(*(one if is_one else two)))
            assert compiled(*(one if is_one else two))[0] is is_one


def test_guards():
    counter = CountingBackend()
    fn = lambda x: x * 2  # noqa: E731
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    rows = (nested([2, 3]), nested([2, 3], grad=True), nested([2, 3]).transpose(1, 2))
    for graphs, x in enumerate((*rows, nested([2, 3]).double(), torch.ones(2, 3)), 1):
        for _ in range(2):
            assert same(compiled(x), fn(x))
        assert len(counter.graphs) == graphs


def test_a_view_of_a_tensor_without_sizes_runs_in_eager():
    """On a CPU, attention goes through tensors of strided layout, and gives a view of one."""

    def fn(x):
        heads = x.unflatten(-1, [5, 1]).transpose(1, 2)
        return F.scaled_dot_product_attention(heads * 2, heads, heads).transpose(1, 2).values()

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter)
    with minidynamo.config.patch(raise_internal_errors=True):
        for lengths in LENGTHS:
            assert same(compiled(nested(lengths)), fn(nested(lengths)))
    assert len(counter.graphs) <= 3


def test_nested_tensors_of_lists_and_padding():
    def fn(x, y):
        made = torch.nested.nested_tensor([x, y], layout=torch.jagged)
        return made.values() * 2, torch.nested.to_padded_tensor(made, -1.0)

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for lengths in ((2, 3), (4, 3), (5, 6), (3, 3)):
        parts = [torch.randn(length, 5) for length in lengths]
        assert same(compiled(*parts), fn(*parts))
    assert len(counter.graphs) <= 4


def test_requires_grad_of_views_made_without_gradients():
    def fn(x, wanted):
        with torch.no_grad():
            view = x[1:]
        return view.requires_grad_(wanted) * 2

    x, leaf = torch.randn(4), torch.randn(4, requires_grad=True)
    for arguments, graphs in (((x, False), 1), ((x, True), 2), ((leaf, True), 2)):
        counter = CountingBackend()
        minidynamo.reset()
        result = minidynamo.compile(fn, backend=counter)(*arguments)
        assert result.requires_grad == fn(*arguments).requires_grad
        assert same(result.detach(), fn(*arguments).detach())
        assert len(counter.graphs) <= graphs
