"""Writes, aliases and gradients that AOTAutograd alone would get wrong: all as in eager."""

import re

import pytest
import torch
from training_testing import noise, scenario

import minidynamo
from minidynamo.inductor import metrics


def grads(f, comp, use, n=4):
    """Gradients of w and u, after a backward pass from the outputs that `use` picks."""
    compiled, found = comp(f), []
    for size in (n, n + 1, n + 2):
        x, w, u = noise(size), noise(size, requires_grad=True), noise(size, requires_grad=True)
        use(compiled(x, w, u)).sum().backward()
        found.append((w.grad, u.grad))
    return found


@pytest.mark.parametrize("use", [lambda r: r[0], lambda r: r[1], lambda r: r[0] + r[1]])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_inputs_of_unused_outputs_have_no_gradient(use, backend):
    def f(x, w, u):
        return x * w, (x * u).sin(), x + 1

    want = grads(f, lambda fn: fn, use)
    got = grads(f, lambda fn: minidynamo.compile(fn, backend=backend), use)
    for a, b in zip(want, got, strict=True):
        assert [g is None for g in a] == [g is None for g in b]
        torch.testing.assert_close(a, b)


@scenario(graphs=1)
def test_autograd_grad_of_what_was_not_used(comp):
    w, u = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    a, b = comp(lambda w, u: (w * 2, u * 3))(w, u)
    with pytest.raises(RuntimeError, match="not have been used|have been used in the graph"):
        torch.autograd.grad(a.sum(), [u], retain_graph=True)
    return torch.autograd.grad(b.sum(), [w, u], allow_unused=True)


@scenario(graphs=1)
def test_views_of_an_unused_output(comp):
    def f(w, u):
        y = w * 2
        return y[0], y.view(-1), u * 3

    w, u = torch.ones(2, 2, requires_grad=True), torch.ones(2, requires_grad=True)
    a, _, c = comp(f)(w, u)
    first = torch.autograd.grad(c.sum(), [w, u], allow_unused=True, retain_graph=True)
    return first, torch.autograd.grad(a.sum(), [w, u], allow_unused=True)


@scenario(graphs=None)
def test_an_optimizer_leaves_an_unused_head_alone(comp):
    torch.manual_seed(0)
    trunk, used, unused = (torch.nn.Linear(4, 4) for _ in range(3))

    def f(x):
        y = trunk(x)
        return used(y), unused(y)

    step = comp(f)
    modules = torch.nn.ModuleList([trunk, used, unused])
    optimizer = torch.optim.AdamW(modules.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        step(noise(2, 4))[0].square().mean().backward()
        optimizer.step()
    return [p.detach() for p in modules.parameters()]


def mutate(a, b):
    a.mul_(2)
    return a * b


def _pairs():
    base = torch.arange(1.0, 13.0).view(4, 3)
    history = (torch.ones(4, 3, requires_grad=True) * base).clone()
    leaf = torch.ones(4, 3, requires_grad=True)
    return {
        "a tensor and itself detached": (history.detach(), history),
        "detached the other way round": (history, history.detach()),
        "overlapping rows": (base[:2], base[1:3]),
        "overlapping rows with history": (history[:2], history[1:3]),
        "disjoint rows with history": (history[:2], history[2:]),
        "one view of the other": (history, history.view(4, 3)),
        "view of a leaf": (leaf[:2], base[:2]),
        "expanded": (torch.ones(1, 3).expand(2, 3), base[:2]),
    }


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", list(_pairs()))
def test_writes_to_inputs_that_share_memory(name, mode):
    def run(f):
        pair = _pairs()[name]
        try:
            with mode():
                return f(*pair), *pair
        except RuntimeError as error:
            return type(error), str(error)[:40]

    want = run(mutate)
    for backend in ("aot_eager", "inductor"):
        minidynamo.reset()
        compiled = minidynamo.compile(mutate, backend=backend)
        for _ in range(2):
            got = run(compiled)
            assert str(want) == str(got), backend


def test_separate_parts_of_one_memory_are_compiled():
    """As of a cache whose parts are arguments of their own."""

    def f(keys, values, x):
        keys[0] = x
        values[1] = x * 2
        return keys + values

    before = metrics.counts()["uncompiled_graphs"]
    cache, other = torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)
    got = minidynamo.compile(f)(cache[0], cache[1], torch.ones(4))
    assert torch.equal(got, f(other[0], other[1], torch.ones(4)))
    assert torch.equal(cache, other) and metrics.counts()["uncompiled_graphs"] == before


@scenario(graphs=1)
def test_writes_through_data_leave_the_version_alone(comp):
    def f(w, g):
        w.data.sub_(g)
        return g * 2

    w = torch.ones(3, requires_grad=True)
    loss = (w * w).sum()
    compiled, before = comp(f), w._version
    compiled(w, torch.ones(3))
    loss.backward()
    return w.detach(), w.grad, w._version == before


@scenario(graphs=None, breaks=None)
def test_detach_of_an_input_in_place(comp):
    def f(x):
        x.detach_()
        return x * 2

    w = torch.ones(3, requires_grad=True)
    x = w * 3
    y = comp(f)(x)
    return x.requires_grad, y.requires_grad, x


@scenario(graphs=1)
def test_writes_to_lists_of_tensors_move_versions(comp):
    def f(a, b):
        torch._foreach_mul_([a, b], 2.0)
        return a + b

    x = torch.ones(4)
    a, before = torch.ones(4), x._version
    return comp(f)(x, a), x._version > before


def test_a_recompile_when_what_lists_write_comes_to_overlap():
    def f(a, b):
        torch._foreach_mul_([a, b], 2.0)
        return a + b

    compiled = minidynamo.compile(f, backend="aot_eager")
    for parts in ((slice(0, 2), slice(2, 4)), (slice(0, 2), slice(1, 3))):
        x, y = torch.arange(4.0), torch.arange(4.0)
        got = compiled(*(x[part] for part in parts))
        assert torch.equal(got, f(*(y[part] for part in parts))) and torch.equal(x, y)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: ((x + 1).view(-1), (x + 1).view(-1)),
        lambda x: ((x + 1).split(1)[0], (x + 1).split(1)[0]),
        lambda x: ((x * x).reshape(3, 1)[0], (x * x).reshape(3, 1)[0]),
    ],
)
def test_equal_results_behind_views_stay_different_memory(f, requires_grad):
    first, second = minidynamo.compile(f)(torch.ones(3, requires_grad=requires_grad))
    assert first.data_ptr() != second.data_ptr()


@scenario(graphs=1)
def test_a_result_and_itself_detached_are_two_tensors(comp):
    def f(x):
        y = x + 1
        return y, y.detach(), y

    y, z, w = comp(f)(torch.ones(3))
    z.requires_grad_()
    return y is z, y is w, y.requires_grad, y.data_ptr() == z.data_ptr()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_tensor_that_a_foreach_operator_is_given_twice(backend):
    def f(a, b):
        torch._foreach_mul_([a, b, a], 2)
        return a + b

    minidynamo.reset()
    compiled = minidynamo.compile(f, backend=backend)
    mine, other = torch.ones(3), torch.ones(3)
    assert torch.equal(compiled(mine, other), torch.full((3,), 6.0))
    assert torch.equal(mine, torch.full((3,), 4.0))
    assert torch.equal(compiled(mine, mine), torch.full((3,), 64.0))


LISTS = {
    "a tensor and its row": lambda x: torch._foreach_mul_([x, x[0]], 2.0),
    "itself detached": lambda x: torch._foreach_add_([x.detach(), x.detach()], 1.0),
    "rows that read each other": lambda x: torch._foreach_add_([x[0], x[1]], [x[1], x[0]]),
    "rows": lambda x: torch._foreach_mul_(list(x.unbind(0)), list(x.unbind(0))),
    "shifted": lambda x: torch._foreach_add_([x[1:]], [x[:-1]]),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", LISTS)
def test_lists_of_views_that_share_memory(name, backend):
    def f(x):
        LISTS[name](x)
        return x * 1

    minidynamo.reset()
    metrics.reset()
    want, got = torch.arange(12.0).view(3, 4), torch.arange(12.0).view(3, 4)
    results = []
    for fn, x in ((f, want), (minidynamo.compile(f, backend=backend), got)):
        try:
            results.append(fn(x))
        except RuntimeError as error:
            results.append(torch.tensor(len(str(error))))
    assert torch.equal(*results) and torch.equal(want, got)
    if backend == "inductor":
        assert metrics.counts()["uncompiled_graphs"] == (name != "rows")


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_views_that_were_given_other_memory(backend):
    def f(v, b):
        y = v * 2
        w = y.view(-1)
        w.data = b
        w.mul_(3)
        return w.sum() + y.sum()

    def run(g):
        v, b = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
        result = g(v, b)
        result.backward()
        return result.detach(), v.grad, b

    minidynamo.reset()
    compiled = minidynamo.compile(f, backend=backend)
    for _ in range(2):
        for want, got in zip(run(f), run(compiled), strict=True):
            assert torch.equal(want, got)


@scenario(graphs=None, breaks=None)
def test_an_input_inside_of_other_memory_is_written_to_and_turned(comp):
    def f(x):
        x.t_()
        x.mul_(2)
        return x + 1

    memory = torch.arange(20.0).view(5, 4)
    x = memory[1:4]
    return comp(f)(x), x, x.storage_offset(), memory


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_writes_through_data_of_inputs_that_overlap(backend, dynamic):
    def f(a, b):
        a.data.mul_(2)
        return a * b

    def run(g):
        memory = torch.arange(20.0).view(5, 4)
        a, b = memory[:3], memory[1:4]
        with torch.no_grad():
            return g(a, b), memory, torch.tensor([a._version, b._version])

    minidynamo.reset()
    compiled = minidynamo.compile(f, backend=backend, dynamic=dynamic)
    for want, got in zip(run(f), run(compiled), strict=True):
        assert torch.equal(want, got)


@scenario()
def test_a_parameter_of_which_a_view_was_saved_is_changed_before_backward(comp):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    loss = comp(model)(noise(3, 4)).sum()
    with torch.no_grad():
        model[2].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def _factor(x, b):
    y = x * b.sin()
    b.add_(1)
    return y


def _views_of_factors(x, b):
    y = (x * b.t().exp()).tanh() + b[0].view(-1).cos()
    b.mul_(2)
    return y


def _zeroed(x, b):
    y = (x * 2).sigmoid() * b.abs()
    b.zero_()
    return y


def _parts(x, b):
    y = x * b.sort(0).values + (x * b.split(2)[1].sin().sum()).relu()
    b.zero_()
    return y


def _replaced(x, b):
    return x.nan_to_num_() * b, x.abs_()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("f", [_factor, _views_of_factors, _zeroed, _parts, _replaced])
def test_what_backward_needs_of_an_input_that_is_overwritten(f, backend, dynamic):
    def run(g):
        w, b = noise(4, 4, requires_grad=True), noise(4, 4)
        result = g(w * 1, b)
        parts = result if isinstance(result, tuple) else (result,)
        sum(part.sum() for part in parts).backward()
        return w.grad, b

    minidynamo.reset()
    torch.manual_seed(0)
    want = run(f)
    torch.manual_seed(0)
    got = run(minidynamo.compile(f, backend=backend, dynamic=dynamic))
    torch.testing.assert_close(got, want)


@scenario(graphs=None, breaks=None)
def test_a_constant_in_a_graph_that_writes_in_inference_mode(comp):
    def f(a, b):
        d = a.detach()
        d[0] = 0
        return a, d

    x = torch.ones(3, 4, requires_grad=True) * 2
    with torch.inference_mode():
        return comp(f)(x, x[0])


@scenario(graphs=None, breaks=None)
def test_copies_to_a_narrower_dtype_round(comp):
    def f(a, b):
        t = a.clone()
        a.copy_(b)
        b.copy_(t)
        return a - b, torch.empty_like(a).copy_(b * 1.1).float() - b

    x = torch.linspace(0, 1, 24)
    a, b = x.bfloat16(), x.sin()
    return comp(f)(a, b), a, b


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch._foreach_mul_([x, x + 0], 2.0),
        lambda x: torch._foreach_mul_([x], [2.0]),
        lambda x: torch._foreach_mul_([x], [x * 0.5]),
        lambda x: torch._foreach_sub_([x], True),
        lambda x: torch._foreach_clamp_min_([x > 0], True),
    ],
)
def test_lists_that_a_foreach_operator_refuses(f, backend):
    given = torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.int64)
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        f(given[0])
    with pytest.raises(expected.type, match=re.escape(str(expected.value).splitlines()[0])):
        minidynamo.compile(f, backend=backend)(given[1])
    assert torch.equal(*given)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("is_moved_first", [True, False])
def test_views_whose_memory_is_that_of_another_input(backend, is_moved_first):
    """Views, so that they have a base, which lies elsewhere."""

    def f(a, b):
        a.mul_(2)
        return a * b

    def apart():
        return torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3)

    def together():
        a, b = apart()
        return a.set_(b), b

    minidynamo.reset()
    compiled = minidynamo.compile(f, backend=backend)
    for make in (together, apart, together) if is_moved_first else (apart, together):
        want, got = make(), make()
        assert torch.equal(f(*want), compiled(*got))
        assert torch.equal(want[0], got[0]) and torch.equal(want[1], got[1])
