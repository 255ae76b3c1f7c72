"""Results of a differentiated graph that are parts of what it makes inside, and what is laid out
anew inside: places and values as in eager.
"""

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo.inductor import metrics


def turned(x):
    h = (x * 1).mT
    return h, h.detach()


def rows(x):
    h = F.gelu(x)[1:]
    return h, h.detach()


def columns(x):
    h = (x * 2)[:, ::2]
    return h.detach(), h, h.detach()


def turned_twice(x):
    p = (x * 1).t()
    q = p.t()
    return p.detach(), q, q.detach(), p


def halves(x):
    h = torch.chunk(x * 1, 2, 1)[1]
    return h.detach(), h


def expanded(x):
    h = (x * 2).expand(2, -1, -1)
    return h, h.detach(), h.detach().sin()


def looked_at(x):
    """The graph breaks at the histogram, and gives what it takes."""
    h = (x * 1).mT
    return torch.histogram(h.detach(), 4)[0], h


def geometry(results):
    """Where each result lies, relative to those whose memory it shares."""
    memories = [x.untyped_storage().data_ptr() for x in results]
    return [
        (x.shape, x.stride(), x.requires_grad)
        + tuple(
            x.data_ptr() - y.data_ptr() if own == other else None
            for y, other in zip(results, memories, strict=True)
        )
        for x, own in zip(results, memories, strict=True)
    ]


def called(fn, shape):
    x = torch.arange(float(shape[0] * shape[1])).reshape(shape).sin().requires_grad_()
    results = fn(x)
    loss = sum(
        ((i + 1) * y * y.detach().cos()).sum() for i, y in enumerate(results) if y.requires_grad
    )
    loss.backward()
    return [y.detach() for y in results], x.grad, geometry(results)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "fn",
    [turned, rows, columns, turned_twice, halves, expanded, looked_at],
    ids=lambda f: f.__name__,
)
def test_a_part_of_something_inside_and_itself_detached(fn, dynamic, backend):
    compiled = minidynamo.compile(
        fn, backend=backend, dynamic=dynamic, fullgraph=fn is not looked_at
    )
    for shape in ((4, 4), (3, 5), (5, 6)):  # a square, whose transpose has its shape
        wanted, given = called(fn, shape), called(compiled, shape)
        torch.testing.assert_close(given[:2], wanted[:2])
        assert given[2] == wanted[2]


def written_behind_t(x):
    x = x * 1
    part = x.mT
    x.t_()
    part.sub_(part.mean())
    x.mul_(3)
    return part, x


def split_behind_unsqueeze(x):
    x = x * 1
    first, second = torch.tensor_split(x, 2, 0)
    x.unsqueeze_(0)
    return first, second


def read_behind_transpose(x):
    x = x * 1
    part = x[1:]
    x.transpose_(0, 1)
    return part * 2, x.cos()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(
    "fn",
    [written_behind_t, split_behind_unsqueeze, read_behind_transpose],
    ids=lambda f: f.__name__,
)
def test_views_of_what_is_laid_out_anew(fn, backend):
    """torch's functional tensors lay such views out in the new way, too."""
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for shape in ((3, 3), (3, 3), (4, 2)):
        wanted, given = called(fn, shape), called(compiled, shape)
        torch.testing.assert_close(given[:2], wanted[:2])
        assert [place[:3] for place in given[2]] == [place[:3] for place in wanted[2]]


def test_without_views_it_is_compiled():
    def fn(x):
        y = x * 2
        y.t_()
        y.unsqueeze_(0)
        return (y.sin(),)

    metrics.reset()
    compiled = minidynamo.compile(fn, fullgraph=True)
    wanted, given = called(fn, (3, 4)), called(compiled, (3, 4))
    torch.testing.assert_close(given[:2], wanted[:2])
    assert metrics.uncompiled_graphs == 0


def test_layouts_inside_of_a_transform_are_compiled():
    def inner(x):
        y = x * 2
        y.t_()
        return y.sin().sum()

    metrics.reset()
    compiled = minidynamo.compile(lambda x: torch.func.grad(inner)(x), fullgraph=True)
    for shape in ((3, 3), (2, 5)):
        x = torch.rand(shape)
        torch.testing.assert_close(compiled(x), torch.func.grad(inner)(x))
    assert metrics.uncompiled_graphs == 0


def micro_batches(model, x, y):
    total = torch.zeros(())
    for part, labels in zip(x.chunk(2), y.chunk(2), strict=True):
        loss = F.cross_entropy(model(part), labels)
        loss.backward()
        total += loss.detach()
    return total


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_parts_of_inputs_are_differentiated_one_after_the_other(dynamic, backend):
    """They hang on no common node that the first backward pass would end."""
    compiled = minidynamo.compile(micro_batches, backend=backend, dynamic=dynamic)
    for n in (6, 6, 8):
        found = []
        for call in (micro_batches, compiled):
            torch.manual_seed(0)
            model, x = torch.nn.Linear(3, 4), torch.rand(n, 3, requires_grad=True)
            total = call(model, x, torch.arange(n) % 4)
            found.append((total, model.weight.grad, x.grad))
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_nothing_but_parts_of_inputs(backend):
    def fn(x, y):
        first, second = x.chunk(2)
        with torch.no_grad():
            cut = x[1:]
        return first, y.t(), second.view(-1), x.detach(), cut

    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for shape in ((4, 3), (4, 3), (6, 2)):
        x, y = torch.rand(shape, requires_grad=True), torch.rand(2, 5)
        for result, wanted in zip(compiled(x, y), fn(x, y), strict=True):
            assert result.data_ptr() == wanted.data_ptr() and result.stride() == wanted.stride()
            assert result.requires_grad == wanted.requires_grad
            assert result._base is wanted._base
            if result.requires_grad and result.grad_fn is not None:
                (given,), (gradient,) = (
                    torch.autograd.grad(r.square().sum(), x) for r in (result, wanted)
                )
                torch.testing.assert_close(given, gradient)


def hooked_part(x, y):
    h = x.view(-1)
    h.register_hook(lambda g: g * 3)
    return h, (h * 2).sum(), y[1:]


def part_of_a_hooked_part(x, y):
    h = x[1:]
    k = h.view(-1)
    h.register_hook(lambda g: g * 3)
    return k, y.t()


def hooked_row(x, y):
    rows = x.unbind(0)
    rows[0].register_hook(lambda g: g + 1)
    return rows[0], rows[1], (x * 2).sum()


def hooked_input(x, y):
    x.register_hook(lambda g: g * 3)
    h = x.view(-1)
    return h, (h * 2).sum(), y[1:]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize(
    "fn",
    [hooked_part, part_of_a_hooked_part, hooked_row, hooked_input],
    ids=lambda f: f.__name__,
)
def test_hooks_of_returned_parts_of_inputs_are_called(fn, backend):
    compiled = minidynamo.compile(fn, backend=backend)
    for shape in ((3, 4), (3, 4), (5, 2)):
        found = []
        for call in (fn, compiled):
            x = torch.linspace(0, 1, shape[0] * shape[1]).reshape(shape).requires_grad_()
            results = call(x, torch.ones(4, 4))
            sum((r * r.detach()).sum() for r in results if r.requires_grad).backward()
            found.append((results, x.grad))
        torch.testing.assert_close(found[1], found[0])


def test_parameters_made_of_results():
    """A result that became the data of a new parameter is no view of an input."""

    def fn(x):
        data = x.detach() + 1
        p = torch.nn.Parameter(data)
        data.mul_(2)
        return (p * x).sum(), p, data

    for backend in ("aot_eager", "inductor"):
        compiled = minidynamo.compile(fn, backend=backend)
        for x in (torch.ones(3, requires_grad=True), torch.zeros(2, requires_grad=True)):
            for result, wanted in zip(compiled(x), fn(x), strict=True):
                assert result.tolist() == wanted.tolist()


def unchanged(x):
    x.squeeze_()
    return x + 1


def turned_back(x):
    x.t_().t_()
    return x + 1


def raised_and_turned(x):
    x.unsqueeze_(0).transpose_(1, 2)
    return x + 1


def turned_and_written(x):
    x.t_()
    x.add_(1)
    return x.t_() * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize(
    "fn",
    [unchanged, turned_back, raised_and_turned, turned_and_written],
    ids=lambda f: f.__name__,
)
def test_versions_of_what_is_laid_out_anew(fn, backend):
    def moved(run, view):
        x = torch.arange(12.0).reshape(3, 4)
        others = [view(x)]
        before = x._version, others[0]._version
        run(x)
        return x._version - before[0], others[0]._version - before[1]

    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for view in (torch.clone, torch.detach, lambda x: x[0]):
        assert moved(compiled, view) == moved(fn, view)
