"""Mutation of inputs and aliasing among inputs and outputs."""

import pytest
import torch
from torch import nn
from training_testing import BACKENDS, gradients, noise, run, scenario, state

import minidynamo
from minidynamo.inductor import metrics


@scenario()
def test_inputs_mutated(comp):
    def f(x, total):
        x.mul_(2)
        total.add_(x.sum())
        return x + total

    compiled, x, total = comp(f), torch.ones(3), torch.zeros(())
    return [compiled(x, total).clone() for _ in range(3)], x, total


@scenario()
def test_intermediate_mutated_before_backward(comp):
    def f(x, w):
        y = x * w
        y.add_(1)
        y[0] = 5
        return y.sin()

    w = torch.ones(3, requires_grad=True)
    compiled = comp(f)
    for _ in range(2):
        compiled(torch.ones(3), w).sum().backward()
    return w.grad


@scenario()
def test_mutation_of_an_input_inside_autograd(comp):
    def f(y):
        y.mul_(3)
        return y.sin()

    compiled, results = comp(f), []
    for _ in range(2):
        w = torch.ones(3, requires_grad=True)
        y = w * 2
        z = compiled(y)
        (z.sum() + y.sum()).backward()
        results += [w.grad, y.detach()]
    return results


@scenario(graphs=0, breaks=None)
def test_leaf_that_requires_grad(comp):
    def f(w):
        w.mul_(3)
        return w.sin()

    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        comp(f)(torch.ones(3, requires_grad=True))


@scenario()
def test_leaf_under_no_grad(comp):
    def f(w, g):
        with torch.no_grad():
            w.sub_(g, alpha=0.1)
        return w * 2

    compiled, w = comp(f), torch.ones(3, requires_grad=True)
    for _ in range(2):
        y = compiled(w, torch.ones(3))
    y.sum().backward()
    return w.detach(), w.grad, w.is_leaf


@scenario()
def test_view_of_an_input_mutated(comp):
    def f(x):
        x.view(-1)[1:3].add_(1)
        return x.sum()

    compiled, x = comp(f), torch.zeros(2, 3)
    return [compiled(x), compiled(x)], x


@scenario(graphs=4)
def test_inputs_that_overlap_in_other_ways(comp):
    def f(a, b):
        a.add_(1)
        return a + b

    compiled, x = comp(f), torch.zeros(4)
    calls = [(x, x), (x, torch.ones(4)), (x[:2], x[1:3]), (x[:2], x[2:]), (x, x)]
    return [compiled(*call).clone() for call in calls], x


@scenario(graphs=3)
def test_overlapping_inputs_that_move(comp):
    def f(a, b):
        a.mul_(2)
        return a - b

    compiled, x = comp(f), torch.arange(8.0)
    calls = [(x[:3], x[1:4]), (x[2:5], x[3:6]), (x[0:3], x[4:7]), (x[0:3], x[1:4])]
    return [compiled(*call).clone() for call in calls], x


@scenario(graphs=2)
def test_data_that_comes_to_overlap(comp):
    """The same tensor objects; only their memory changes."""

    def f(a, b):
        a.add_(1)
        return a + b

    compiled, a, b = comp(f), torch.zeros(4), torch.ones(4)
    results = [compiled(a, b).clone()]
    b.data = a.data
    results.append(compiled(a, b).clone())
    return results, a, b


@scenario()
def test_read_only_inputs_may_overlap(comp):
    compiled, x = comp(lambda a, b: a + b), torch.arange(4.0)
    return [compiled(x[:2], x[1:3]), compiled(x[:2], x[2:]), compiled(x[:2], torch.ones(2))]


@scenario()
def test_interleaved_columns(comp):
    def f(a, b):
        a.add_(1)
        b.mul_(2)
        return a + b

    compiled, x = comp(f), torch.ones(3, 4)
    return [compiled(x[:, :2], x[:, 2:]).clone() for _ in range(2)], x


@scenario()
def test_outputs_that_alias_inputs(comp):
    compiled, results = comp(lambda x: (x, x.view(-1), x.t(), x[0], x.detach())), []
    for _ in range(2):
        x = torch.arange(6.0).view(2, 3)
        y = compiled(x)
        y[1][0] = 7
        same = [t.data_ptr() == x.data_ptr() for t in y]
        results += [x, y[0] is x, y[2].stride(), y[3]._base is x._base, same, y[1]._is_view()]
    return results


@scenario()
def test_outputs_that_alias_each_other(comp):
    def f(x):
        y = x + 1
        return y, y.view(-1), y[0], y

    compiled, results = comp(f), []
    for _ in range(2):
        y = compiled(torch.arange(6.0).view(2, 3))
        y[1][0] = 7
        results += [y[0], y[2], y[0] is y[3], y[1].data_ptr() == y[0].data_ptr()]
    return results


@scenario()
def test_aliases_and_gradients(comp):
    def f(x):
        y = x * 2
        return y.view(-1), y.t(), x.view(-1), x[0]

    compiled, x, views = comp(f), torch.arange(6.0).view(2, 3).requires_grad_(), []
    for _ in range(2):
        a, b, c, d = compiled(x)
        (a.sum() + b.pow(2).sum() + (c * c).sum() + d.sum()).backward()
        views.append([t._is_view() for t in (a, b, c, d)])
    return x.grad, views


@scenario()
def test_detach_in_place(comp):
    def f(w):
        y = w * 2
        y.detach_()
        return y, y.requires_grad

    return comp(f)(torch.ones(3, requires_grad=True))


@scenario(graphs=3)
def test_copy_into_an_input(comp):
    def f(a, b):
        a.copy_(b * 2)
        return a.sum()

    compiled, a = comp(f), torch.zeros(3)
    sources = [torch.ones(3), torch.ones(1), torch.ones(3, dtype=torch.int64)]
    return [compiled(a, b) for b in sources], a


@scenario(graphs=None, breaks=None)
def test_assignment_to_data(comp):
    def f(p, x):
        p.data = x * 2
        return p + 1

    compiled, p = comp(f), nn.Parameter(torch.ones(3))
    results = [compiled(p, torch.ones(3) * i).detach() for i in (1, 2)]
    return results, p.detach()


@scenario()
def test_mutation_through_data(comp):
    def f(p, x):
        p.data.add_(x)
        return p * 2

    compiled, p = comp(f), nn.Parameter(torch.ones(3))
    results = [compiled(p, torch.ones(3)) for _ in range(2)]
    results[1].sum().backward()
    return [r.detach() for r in results], p.detach(), p.grad


@scenario(breaks=1)
def test_resize(comp):
    def f(x):
        x.resize_(6)
        x.fill_(2)
        return x + 1

    compiled, x = comp(f), torch.ones(3)
    return compiled(x), x, tuple(x.shape)


@scenario(breaks=1)
def test_set(comp):
    def f(x, y):
        x.set_(y)
        return x + 1

    compiled, x, y = comp(f), torch.ones(3), torch.zeros(4)
    return compiled(x, y), x, x.data_ptr() == y.data_ptr()


MOVES = {
    "set_": lambda x, y: torch.ops.aten.set_(x, y),
    "set_.source_Tensor": lambda x, y: torch.ops.aten.set_.source_Tensor(x, y),
    "set_data": lambda x, y: torch.ops.aten.set_data(x, y),
    "resize_": lambda x, y: torch.ops.aten.resize_(x, [2]),
    "resize_as_": lambda x, y: torch.resize_as_(x, y[:2]),
    "resize_ of a view": lambda x, y: torch.ops.aten.resize_(x.view(-1), [2]),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_operators_that_move_tensors(move, backend):
    def program(comp):
        def f(x, y):
            z = y * 2
            move(x, y)
            return x + 1, z

        compiled, x, y = comp(f), torch.ones(3), torch.zeros(3)
        return compiled(x, y), x, y, tuple(x.shape), x.data_ptr() == y.data_ptr()

    run(program, backend, graphs=2, breaks=1, tolerance=0)


UNTOLD = {
    "chunk": lambda x: torch.unsafe_chunk(x, 2),
    "split": lambda x: x.unsafe_split(2),
    "sizes": lambda x: torch.unsafe_split_with_sizes(x, [2, 2]),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("split", UNTOLD.values(), ids=UNTOLD)
@pytest.mark.parametrize("written", ["part", "whole", "later"])
def test_views_that_functional_forms_do_not_know(split, written, backend):
    def program(comp):
        def f(x):
            parts = split(x)
            if written == "later":
                return parts
            (parts[0] if written == "part" else x).add_(1)
            return parts[1] + parts[0].sum(), x * 3

        compiled, x = comp(f), torch.arange(4.0)
        results = compiled(x)
        results[0].add_(1)
        return results, x

    run(program, backend, graphs=1, breaks=0, tolerance=0)


PARTS = {
    "of an input": lambda x: x.chunk(2),
    "of a result": lambda x: (x * 2).unbind(),
    "with what they are of": lambda x: (lambda y: (y.split(2)[0], y))(x * 2),
    "views of parts": lambda x: (x.unbind()[0][1:], x.sum()),
    "beside others": lambda x: (lambda y: (y.tensor_split(2)[0], y.chunk(2)[0], y[1:]))(
        x.sin()
    ),
}


@pytest.mark.parametrize("made_in", ["autograd", "no_grad"])
@pytest.mark.parametrize("program", PARTS.values(), ids=PARTS)
def test_one_of_several_views(program, made_in):
    """Writes to these, and their use behind writes to what they are views of, are errors."""

    def outcome(call, position, is_recorded):
        leaf = noise(4, 3, requires_grad=True)
        x = leaf * 1
        outputs = call(x)
        try:
            with torch.set_grad_enabled(is_recorded):
                (x, *outputs)[position].mul_(2)
            sum(y.square().sum() for y in outputs).backward()
        except RuntimeError as error:
            return str(error).split(" ", 4)[4]  # without the name of the node
        return leaf.grad

    call = minidynamo.compile(program, fullgraph=True)
    for position in range(3):
        want = outcome(program, position, made_in == "autograd")
        got = outcome(call, position, made_in == "autograd")
        assert type(want) is type(got), (want, got)
        if isinstance(want, str):
            assert want == got
        else:
            torch.testing.assert_close(want, got)


class Averages(nn.Module):
    """Counters, running averages and a plain attribute, all updated in `forward`."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.count += 1
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        self.last = x * 2
        return (x * self.weight - self.mean) / self.count


@scenario()
def test_buffers(comp):
    model = Averages()
    compiled, results = comp(model), []
    for i in range(3):
        y = compiled(torch.full((2, 3), float(i)))
        y.sum().backward()
        results += [y.detach(), model.last]
    return results, state(model), gradients(model)


@scenario()
def test_version_counters_invalidate_saved_tensors(comp):
    """A graph that mutates what eager saved must not go unnoticed."""

    def bump(x):
        x.add_(1)

    compiled, x, w = comp(bump), torch.ones(3), torch.ones(3, requires_grad=True)
    y = x * w
    compiled(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    return x


@scenario(graphs=2, breaks=None)
def test_requires_grad_inside(comp):
    def f(x):
        y = x.clone().requires_grad_()
        return (y * y).sum(), y

    loss, y = comp(f)(torch.ones(3))
    loss.backward()
    return y.grad, y.is_leaf


def _inputs_without_gradients():
    """A tensor, a leaf, a result, views made without gradients and parts of these."""
    leaf = torch.arange(6.0).view(2, 3).requires_grad_()
    with torch.no_grad():
        view = leaf[:]
    return leaf, [leaf.detach(), leaf, leaf * 1, view, leaf.detach()[1:], leaf[1:]]


@scenario(graphs=None, breaks=None, backends=("eager", "aot_eager", "inductor"))
def test_gradients_switched_on_and_off_for_inputs(comp):
    def switch_on(x):
        x.requires_grad_()
        return x * 2

    def switch_off(x):
        x.requires_grad_(False)
        return x * 2

    def set_attribute(x):
        x.requires_grad = True
        return x * 2

    def cut_off(x):
        x.detach_()
        return x * 2

    found = []
    for program in (switch_on, switch_off, set_attribute, cut_off):
        compiled = comp(program)
        for i in range(6):
            leaf, inputs = _inputs_without_gradients()
            try:
                y = compiled(inputs[i])
            except RuntimeError as error:
                found.append(str(error)[:40])
                continue
            sources = [x for x in (inputs[i], leaf) if x.requires_grad]
            given = [y.requires_grad, inputs[i].requires_grad, inputs[i].is_leaf]
            if y.requires_grad and sources:
                given += torch.autograd.grad(y.sum(), sources, allow_unused=True)
            found.append(given)
    return found


@scenario(graphs=None, breaks=None, backends=("eager", "aot_eager"))
def test_data_set_in_inference_mode(comp):
    def f(a, b):
        a.data = b * 2
        return a * 3

    compiled = comp(f)
    base = torch.ones(4, 3)
    with torch.inference_mode():
        results = [compiled(base[1:3], torch.ones(2, 3)), compiled(base, torch.ones(4, 3))]
    return [r * 1 for r in results], base.detach().clone()


@scenario()
def test_out_argument(comp):
    def f(a, out):
        torch.mul(a, 2, out=out)
        return out + 1

    compiled, out = comp(f), torch.zeros(3)
    return compiled(noise(3), out), out


class Counted:
    def __init__(self, total):
        self.total = total

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.total = self.total + 1


@scenario()
def test_a_write_in_a_block_beside_one_with_history(comp):
    """What is written in the block may raise, and is no result for that."""

    def fn(x, y, owner):
        x.view(-1)[1:].sub_(1)
        with owner:
            torch.add(y * 2, 1, out=y)

    leaf, y = torch.ones(2, 2, requires_grad=True), torch.arange(4.0).view(2, 2)
    x, owner = leaf * 3, Counted(torch.full((2, 2), 7.0))
    comp(fn)(x, y, owner)
    return x, y, owner.total, owner.total.data_ptr() == y.data_ptr()


def test_a_recompile_names_what_overlaps():
    def f(a, b):
        a.add_(1)
        return a + b

    compiled, x = minidynamo.compile(f), torch.zeros(4)
    reasons = []
    with minidynamo.events.subscribe(reasons.append, minidynamo.events.RecompileEvent):
        compiled(x[:2], torch.ones(2))
        compiled(x[:2], x[1:3])
    assert "a, b now overlap in memory" in str(reasons[0])


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_views_of_parameters_where_nothing_has_gradients(guard):
    w = nn.Parameter(noise(4, 6))

    def f(x):
        return w.view(6, 4), w.t()[1:], x.view(-1), x + w

    minidynamo.reset()
    metrics.reset()
    with guard():
        x = noise(4, 6)
        found, want = minidynamo.compile(f, fullgraph=True)(x), f(x)
    for got, expected in zip(found, want, strict=True):
        assert torch.equal(got, expected) and got._is_view() == expected._is_view()
        assert got.requires_grad == expected.requires_grad and got._base is expected._base
    if guard is torch.no_grad:
        assert metrics.uncompiled_graphs == 0
    for view in (found[0], want[0]):
        with pytest.raises(RuntimeError, match="A view was created in"):
            view.mul_(2)


def test_views_of_parameters_where_gradients_are_switched_on():
    w = nn.Parameter(noise(4, 6))

    def f(x):
        view = w.view(6, 4)
        with torch.enable_grad():
            return view, (view * 2).sum() + (w * x).sum()

    with torch.no_grad():
        view, loss = minidynamo.compile(f, fullgraph=True)(noise(4, 6))
        want, expected = f(noise(4, 6))
    assert view.requires_grad == want.requires_grad
    assert torch.allclose(loss, expected)
    (got,) = torch.autograd.grad(loss, w)
    assert torch.equal(got, torch.autograd.grad(expected, w)[0])


@scenario(graphs=None, breaks=None, backends=("eager", "aot_eager", "inductor"))
def test_gradients_by_what_the_function_makes_itself(comp):
    def inner(x, w):
        h = (x * w).sin()
        return h, h.exp()

    def f(x, w):
        x = x + 1
        h, y = inner(x, w)
        (first,) = torch.autograd.grad(y, h, torch.ones_like(y), retain_graph=True)
        second = torch.autograd.grad(y, inputs=[h, w], grad_outputs=y, retain_graph=True)
        return y + first, second[1]

    compiled, found = comp(f), []
    for _ in range(2):
        w = torch.ones(3, requires_grad=True)
        y, second = compiled(noise(3), w)
        y.sum().backward()
        found += [y.detach(), second, w.grad]
    return found


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_parts_of_written_inputs_of_any_size(offset):
    """Where the input begins in its memory tells where its part does."""

    def fn(x):
        x[0] = 3
        return x.unflatten(0, (1, -1)), x[1:], x.signbit()

    minidynamo.reset()
    compiled = minidynamo.compile(fn, dynamic=True)
    for size in (9, 14):
        given = [torch.arange(float(size + offset))[offset:] for _ in range(2)]
        expected, found = fn(given[0]), compiled(given[1])
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        for part, other in zip(found[:2], expected[:2], strict=True):
            assert part.storage_offset() == other.storage_offset()
            assert part.untyped_storage().data_ptr() == given[1].untyped_storage().data_ptr()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_results_on_one_memory_are_views(backend):
    """Writes with a history reach views behind a graph break, as does their version."""

    def written(x, w):
        a = x + 1
        v, u = a.view(2, 2), a[1:3]
        minidynamo.graph_break()
        v.mul_(w)
        return u.sum() + (a * a).sum()

    def written_too_late(x, w):
        a = x + 1
        v = a.view(2, 2)
        minidynamo.graph_break()
        y = v * w
        a.add_(1)
        minidynamo.graph_break()
        return y.sum()

    def run(fn):
        w = torch.tensor(3.0, requires_grad=True)
        fn(torch.arange(4.0), w).backward()
        return w.grad

    minidynamo.reset()
    assert run(minidynamo.compile(written, backend=backend)) == run(written)
    for fn in (written_too_late, minidynamo.compile(written_too_late, backend=backend)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            run(fn)


def test_views_that_a_graph_gives_a_history():
    """A view of the same memory that is fetched behind the write breaks the graph."""

    def fn(v, u, w):
        v.mul_(w)
        return u.sum()

    def run(call):
        w, a = torch.tensor(3.0, requires_grad=True), torch.arange(4.0)
        call(a[:3], a[1:], w).backward()
        return w.grad

    minidynamo.reset()
    assert run(minidynamo.compile(fn, backend="eager")) == run(fn)
    with pytest.raises(minidynamo.exc.Unsupported, match="was given a gradient"):
        run(minidynamo.compile(fn, backend="eager", fullgraph=True))
