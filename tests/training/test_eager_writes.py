"""Writes in place and views whose meaning functional graphs lose: errors, the order of memory,
strides, versions, views without gradients, inference mode.
"""

import pytest
import torch

import minidynamo
from minidynamo.inductor import metrics

POSITIONS = torch.tensor([1, 0, 2])
MASK = torch.arange(12).view(3, 4) % 3 == 0


def shifted(x):
    x[1:].add_(x[:-1])
    return x * 2


def first_row_added(x):
    x += x[0]
    return x * 2


def transposed_onto_itself(x):
    x[:, :3].copy_(x[:, :3].t())
    return x * 2


def rows_put(x):
    x.index_put_((POSITIONS,), x)
    return x * 2


def scattered(x):
    x.scatter_(0, POSITIONS[:, None].expand(3, 4), x)
    return x * 2


def expanded(x):
    x[:1].expand(3, 4).mul_(2)
    return x * 2


def own_expanded(x):
    y = x[:1].sin().expand(3, 4)
    y.add_(x)
    return y


def part_of_a_split(x):
    y = x * 1
    first, _, _ = y.split(1)
    first.mul_(2)
    return y


def part_of_a_row(x):
    y = x * 1
    first, _, _ = y.unbind(0)
    first.mul_(2)
    return y


def detached_view(x):
    return (x * 2)[0].detach_()


def columns(x):
    x[:, 0] = x[:, 1]
    return x * 2


def twice(x):
    x.add_(1)
    y = x.sin()
    x.mul_(2)
    return y


def masked(x):
    x.masked_fill_(MASK, 0.0)
    return x * 2


def own_masked(x):
    return x.t().clone().masked_fill_(MASK.t(), 0.0), x.clone().index_fill_(0, POSITIONS, 1.0)


def through_data(x):
    x.data.mul_(2)
    return x.sin()


def part_through_data(x):
    x[0].data.mul_(2)
    return x.sin()


def by_condition(x):
    x[x > 3] *= 2
    return x * 2


def into(x):
    torch.add(torch.ones(3, 4), 1, out=x.detach())
    return x * 2


def view_without_gradients(x):
    with torch.no_grad():
        y = x[0]
    return y, y * 2 + x


def inside_inference_mode(x):
    with torch.inference_mode():
        return x * 2, x[0]


def partly_in_inference_mode(x):
    with torch.inference_mode():
        y = x * 2
    return x * 3, y


INPUTS = {
    "plain": lambda leaf: leaf.detach().clone(),
    "transposed": lambda leaf: torch.arange(1.0, 13.0).view(4, 3).t(),
    "strided": lambda leaf: torch.arange(1.0, 49.0).view(6, 8)[::2, ::2],
    "of a graph": lambda leaf: leaf * 1,
    "transposed, of a graph": lambda leaf: (leaf * 1).view(4, 3).t(),
    "view of a leaf": lambda leaf: leaf.view(3, 4),
    "part of a split": lambda leaf: torch.cat([leaf, leaf]).split(3)[0],
}
REFUSED = [shifted, first_row_added, transposed_onto_itself, rows_put, scattered, expanded]
PROGRAMS = [
    *REFUSED,
    own_expanded,
    part_of_a_split,
    part_of_a_row,
    detached_view,
    columns,
    twice,
    masked,
    own_masked,
    through_data,
    part_through_data,
    by_condition,
    into,
    view_without_gradients,
    inside_inference_mode,
    partly_in_inference_mode,
]


def outcome(fn, name):
    """What can be seen of a call and of a backward pass behind it."""
    leaf = torch.arange(1.0, 13.0).view(3, 4).requires_grad_()
    x = INPUTS[name](leaf)
    try:
        results = fn(x)
        results = results if isinstance(results, tuple) else (results,)
        seen = [
            (t.stride(), t.requires_grad, t.is_inference(), t.detach().clone())
            for t in (x, *results)
        ]
        if results[0].requires_grad and not results[0].is_inference():
            sum(t.sum() for t in (x, *results)).backward()
            seen.append(leaf.grad)
    except RuntimeError as error:
        seen = [str(error)[:60]]
    return [*seen, x._version, x.detach().clone()]


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_as_in_eager(fn, name):
    want = outcome(fn, name)
    minidynamo.reset()
    compiled = minidynamo.compile(fn, backend="aot_eager")
    assert str(outcome(compiled, name)) == str(want)
    assert str(outcome(compiled, name)) == str(want)


@pytest.mark.parametrize("fn", [*PROGRAMS[:1], expanded, *PROGRAMS[11:15], *PROGRAMS[-3:]])
@pytest.mark.parametrize("name", ["plain", "strided", "of a graph"])
def test_as_in_eager_with_kernels(fn, name):
    minidynamo.reset()
    want = outcome(fn, name)
    assert str(outcome(minidynamo.compile(fn), name)) == str(want)


def largest(x):
    torch.maximum(x, x + 1, out=x)
    return x * 2


@pytest.mark.parametrize(
    ("fn", "name", "is_compiled"),
    [
        (columns, "strided", True),
        (masked, "strided", True),
        (largest, "plain", True),
        (shifted, "strided", False),
    ],
)
def test_only_what_collides_runs_as_it_is(fn, name, is_compiled):
    minidynamo.reset()
    metrics.reset()
    minidynamo.compile(fn)(INPUTS[name](torch.ones(3, 4)))
    assert metrics.uncompiled_graphs == (not is_compiled)


def test_views_of_hidden_memory_are_compiled():
    """A linear layer's result is a view too; nobody can see what of."""
    layer = torch.nn.Linear(4, 3)
    x = torch.randn(2, 5, 4)
    minidynamo.reset()
    metrics.reset()
    with torch.no_grad():
        compiled = minidynamo.compile(lambda x: layer(x.tanh()), fullgraph=True)
        assert torch.allclose(compiled(x), layer(x.tanh()), atol=1e-6)
    assert metrics.uncompiled_graphs == 0 and metrics.compiled_graphs == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.pow_(2),
        lambda y: y.pow_(torch.tensor([1.0, 2.0, 3.0])),
        lambda y: y.floor_divide_(torch.tensor(0.25)),
        lambda y: y.ldexp_(torch.tensor([1, 2, 3])),
    ],
)
def test_functional_forms_of_another_overload(write):
    """`pow_.Scalar` is `pow.Tensor_Scalar`."""
    x = torch.tensor([0.5, -0.25, 1.0])

    def fn(x):
        y = x * 2
        write(y)
        return y + 1

    minidynamo.reset()
    metrics.reset()
    assert torch.allclose(minidynamo.compile(fn, fullgraph=True)(x), fn(x))
    assert metrics.uncompiled_graphs == 0 and metrics.capture_fallbacks == 0


def swept(x):
    pairs = x.clone().view(x.size(0), 3, 4, 2, 5)
    pairs[:, :, :, 1].mul_(pairs[:, :, :, 0])
    pairs[:, :, 1:, 0].add_(pairs[:, :, :-1, 1])
    return pairs


def halves(x):
    y = x * 2
    n = y.shape[0] // 2
    y[:n].add_(y[n : 2 * n])
    return y


def rows_added(x):
    y = x * 2
    y[1:].add_(y[:-1])
    return y


@pytest.mark.parametrize("fn", [swept, halves])
def test_apart_whatever_the_symbolic_sizes(fn):
    """What is apart for every batch is compiled for every batch."""
    minidynamo.reset()
    metrics.reset()
    compiled = minidynamo.compile(fn, fullgraph=True)
    for batch in (4, 6, 9):
        x = torch.randn(batch, 3, 8, 5)
        assert torch.equal(compiled(x), fn(x))
    assert metrics.uncompiled_graphs == 0 and metrics.compiled_graphs == 2


def test_collisions_of_symbolic_sizes():
    minidynamo.reset()
    compiled = minidynamo.compile(rows_added, dynamic=True)
    for batch in (3, 6):
        for fn in (rows_added, compiled):
            with pytest.raises(RuntimeError, match="single memory location"):
                fn(torch.randn(batch, 4))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("part", [slice(None), slice(1, None)])
def test_what_was_computed_before_a_write_has_no_history(backend, part):
    """The input has none before a tensor with one is written into it."""

    def fn(x, y):
        before = y * 3
        y[part].mul_(x[part])
        return before, y.exp()

    found = []
    for run in fn, minidynamo.compile(fn, backend=backend, fullgraph=True):
        x, y = torch.linspace(-1, 1, 5, requires_grad=True), torch.arange(5.0)
        before, after = run(x * 1, y)
        assert not before.requires_grad
        assert after.requires_grad
        assert y.requires_grad
        after.sum().backward()
        found.append((before, after.detach(), x.grad))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("hidden", [False, True])
def test_hooks_of_what_is_only_written_to_are_not_called(hidden: bool, backend: str) -> None:
    def function(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        a = p.detach() * 2
        if hidden:
            p.data.clamp_(0, 0.5)
        else:
            with torch.no_grad():
                p.sub_(1)
        return (a * q).sum()

    outcomes = []
    for call in (function, minidynamo.compile(function, backend=backend)):
        p, q = (torch.nn.Parameter(torch.arange(3.0)) for _ in range(2))
        seen: list[object] = []
        p.register_hook(seen.append)
        p.register_post_accumulate_grad_hook(lambda _, seen=seen: seen.append("accumulated"))
        for _ in range(2):
            call(p, q).backward()
        assert p.grad is None
        outcomes.append((p.tolist(), q.grad.tolist(), p._version, seen))
    assert outcomes[0] == outcomes[1]


def computed_from_detached(p, q):
    a = p.detach() * 2
    p.data.clamp_(0, 0.5)
    return (a * q).sum()


def computed_before(p, q):
    a = p * 2
    p.data.clamp_(0, 0.5)
    return (a * q).sin().sum()


def saved_itself(p, q):
    a = (p * q).sin()
    p.data.mul_(0.5)
    return a.sum() + p.cos().sum()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("fn", [computed_from_detached, computed_before, saved_itself])
def test_data_written_after_a_use(fn, backend):
    """What was computed from the old values is not computed again from the new ones."""
    found = []
    for run in fn, minidynamo.compile(fn, backend=backend, fullgraph=True):
        p, q = (torch.nn.Parameter(torch.arange(3.0)) for _ in range(2))
        for _ in range(3):
            run(p, q).backward()
        found.append((p.detach(), q.grad, torch.zeros(3) if p.grad is None else p.grad))
    torch.testing.assert_close(*found)


def into_detached(x, y):
    part = x.detach()
    part.add_(y)
    return part


def into_row_of_detached(x, y):
    part = (x * 2).detach()
    part[0].add_(y[0])
    return part * 2


def into_data(x, y):
    part = x.data
    part.mul_(y)
    return part


def into_input(x, y):
    x.add_(y)
    return x


def into_product(x, y):
    x = x * 1
    minidynamo.graph_break()
    x.add_(y)
    return x


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize(
    "fn", [into_detached, into_row_of_detached, into_data, into_input, into_product]
)
def test_what_has_no_history_gets_one_by_a_write(fn, backend):
    found = []
    for run in fn, minidynamo.compile(fn, backend=backend):
        for needs_grad in (False, True, True):
            if fn is into_input and needs_grad:
                continue
            x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_(needs_grad)
            y = torch.arange(6.0).reshape(2, 3).requires_grad_()
            given = x * 1
            out = run(given, y)
            assert out.requires_grad
            out.sum().backward()
            grad = torch.zeros(2, 3) if x.grad is None else x.grad
            found.append((out.detach(), given.detach(), y.grad, grad))
    half = len(found) // 2
    torch.testing.assert_close(found[:half], found[half:])


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return None


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("writes", [False, True])
def test_functions_without_a_gradient(writes, backend):
    """Their results have a history all the same."""

    def fn(p):
        y = NoGradient.apply(p)
        if writes:
            with torch.no_grad():
                p.add_(1)
        return y + 1

    compiled = minidynamo.compile(fn, backend=backend)
    for _ in range(2):
        p, q = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
        expected, found = fn(p), compiled(q)
        assert found.requires_grad == expected.requires_grad
        torch.testing.assert_close((found.detach(), q), (expected.detach(), p))
        found.sum().backward()
        assert q.grad is None or not q.grad.any()


def sum_of_parts(x, weight):
    total = torch.zeros(3).detach()
    for part in x @ weight:
        total += part
    return total


def positions_without_gradients(x, weight):
    with torch.no_grad():
        rows = x.index_select(0, torch.arange(2)).view(2, 4).detach()
    rows += weight[:, :2].t()
    return rows * 2


def row_through_data(x, weight):
    rows = (x * 2).data
    rows[0] += weight[:, 0]
    return rows


def seen_elsewhere(x, weight):
    rows = x * 2
    part = rows.detach()
    part += weight[:, 0]
    return part, rows


def saved_before(x, weight):
    rows = (x @ weight).exp()
    part = rows.detach()
    part += weight[0]
    return part


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(
    ("fn", "is_compiled"),
    [
        (sum_of_parts, True),
        (positions_without_gradients, True),
        (row_through_data, True),
        (seen_elsewhere, False),
        (saved_before, False),
    ],
)
def test_detached_memory_that_nothing_else_sees_is_compiled(fn, is_compiled, backend):
    weight = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()
    found = []
    metrics.reset()
    for run in fn, minidynamo.compile(fn, backend=backend, fullgraph=True):
        weight.grad = None
        results = run(torch.arange(8.0).reshape(2, 4), weight)
        results = results if isinstance(results, tuple) else (results,)
        results[0].square().sum().backward()
        found.append((*(r.detach() for r in results), weight.grad))
    torch.testing.assert_close(found[1], found[0])
    assert metrics.uncompiled_graphs == (backend == "inductor" and not is_compiled)
