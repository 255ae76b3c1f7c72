"""Hooks of tensors of a graph and of its inputs; operators with own rules for tracing."""

from __future__ import annotations

import functools

import pytest
import torch
from testing import CountingBackend, assert_same, check
from torch._higher_order_ops import scan

import minidynamo

WEIGHT = torch.full((3,), 2.0)
LOG: list[int] = []


def changing(x, weight):
    y = x.sin()
    kept = x.detach() * 3
    before = y * 2
    y.register_hook(lambda grad: grad * 2 + kept)
    y.register_hook(lambda grad: None)
    return (y * weight).sum() + before.sum()


def removed(x, weight):
    y = x.sin()
    handle = y.register_hook(lambda grad: grad * 2)
    z = (y * 3).sum()
    handle.remove()
    return z


def logging(x, weight):
    y = x * weight
    y.register_hook(lambda grad: LOG.append(1))
    return y.sum()


def scaled(grad, other=None, *, by):
    return grad * by if other is None else grad + other


OF_A_GLOBAL = functools.partial(scaled, by=5)


def partials(x, weight):
    y = x * weight
    y.register_hook(functools.partial(scaled, by=3))
    y.register_hook(functools.partial(functools.partial(scaled, by=weight.detach()), by=4))
    y.register_hook(OF_A_GLOBAL)
    return (y * y).sum()


def after_a_write(x, weight):
    y = x * 2
    with torch.no_grad():
        y.mul_(3)
    y.register_hook(lambda grad: grad.clamp(max=0.5))
    return (y * y * weight).sum()


def on_an_input(x, weight):
    x.register_hook(lambda grad: grad * 5)
    return (x * weight).sum()


def several_on_an_input(x, weight):
    first = x.register_hook(lambda grad: grad * 5)
    x.register_hook(lambda grad: grad + 1)
    x.register_hook(lambda grad: LOG.append(1))
    y = x * weight
    x.register_hook(lambda grad: grad * y.detach())
    first.remove()
    first.remove()
    return y.sum()


def before_a_write(x, weight):
    y = x * 1
    minidynamo.graph_break()
    y.register_hook(lambda grad: grad + 5)
    y.mul_(3)
    return (y * y * weight).sum()


def triple_grad(tensor):
    tensor.grad.mul_(3)


def accumulated(x, weight):
    x.register_post_accumulate_grad_hook(triple_grad)
    return (x * weight).sum()


FUNCTIONS = (
    changing,
    removed,
    logging,
    after_a_write,
    on_an_input,
    several_on_an_input,
    before_a_write,
    accumulated,
    partials,
)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_gradients(fn, backend):
    minidynamo.reset()
    results = []
    for function in (fn, minidynamo.compile(fn, backend=backend)):
        for _ in range(2):
            LOG.clear()
            x, weight = (t.clone().requires_grad_() for t in (torch.ones(3), WEIGHT))
            value = function(x, weight)
            value.backward()
            results.append((value.detach(), x.grad, weight.grad, torch.tensor(len(LOG))))
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            assert (left is None) == (right is None)
            if left is not None:
                torch.testing.assert_close(left, right)


ONE_GRAPH = (changing, removed, after_a_write, on_an_input, several_on_an_input, accumulated)
ONE_GRAPH += (partials,)


@pytest.mark.parametrize(
    ("fn", "graphs"),
    [*((fn, 1) for fn in ONE_GRAPH), (logging, 2), (before_a_write, 2)],
)
def test_graphs(fn, graphs):
    minidynamo.reset()
    backend = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend)
    for _ in range(2):
        compiled(torch.ones(3, requires_grad=True), WEIGHT.clone().requires_grad_())
    assert len(backend.graphs) == graphs


def test_another_keyword_of_a_partial_is_another_graph(monkeypatch):
    backend = CountingBackend()
    compiled = minidynamo.compile(partials, backend=backend, fullgraph=True)
    for by in (5, 6, 5):
        monkeypatch.setitem(globals(), "OF_A_GLOBAL", functools.partial(scaled, by=by))
        x = torch.ones(3, requires_grad=True)
        compiled(x, WEIGHT).backward()
        assert x.grad.tolist() == [2.0 * 2 * 3 * 4 * by * 2] * 3
    assert len(backend.graphs) == 2


def test_another_hook_is_another_graph():
    def fn(x, factor):
        y = x.sin()
        y.register_hook(lambda grad: grad * factor)
        return y.sum()

    compiled = minidynamo.compile(fn, backend="aot_eager", fullgraph=True)
    for factor in (2.0, 3.0, 2.0):
        grads = []
        for function in (fn, compiled):
            x = torch.ones(3, requires_grad=True)
            function(x, factor).backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)


def test_handles_leave_the_graph():
    class Holder:
        handle = None

    def fn(x, holder, hook):
        holder.handle = x.register_hook(hook)
        other = x.register_hook(lambda grad: grad + 1)
        return (x * 2).sum(), other, other, holder.handle

    backend = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for factor in (2.0, 3.0):
        holder, x = Holder(), torch.ones(3, requires_grad=True)
        value, other, same, kept = compiled(x, holder, lambda g, factor=factor: g * factor)
        assert other is same
        assert kept is holder.handle
        for expected in (2 * factor + 1, 2 * factor, 2.0):
            x.grad = None
            value.backward(retain_graph=True)
            torch.testing.assert_close(x.grad, torch.full((3,), expected))
            (other if expected != 2 * factor else kept).remove()
    assert len(backend.graphs) == 1


def test_inputs_without_gradients_raise():
    def fn(x):
        x.register_hook(lambda grad: grad)
        return x + 1

    check(fn, torch.ones(3), graphs=None)


@torch.library.custom_op("md_tests::increase", mutates_args=("x",))
def increase(x: torch.Tensor) -> None:
    x.add_(1)


@increase.register_fake
def _(x):
    return None


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_operators_with_rules_for_fake_tensors(backend):
    def fn(x):
        y = x.sin()
        increase(y)
        carry, items = scan(lambda c, a: (c + a, c * a), torch.zeros(3), x, dim=0)
        chosen = torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (y,))
        return y, carry, items, chosen

    check(fn, torch.arange(6.0).reshape(2, 3), graphs=None, fullgraph=True, backend=backend)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("kind", [dict, set])
def test_hooks_that_read_what_others_write(kind, backend):
    """What a hook finds in a container is what is there when the backward pass runs."""

    def fn(x, w):
        seen = kind()
        a = x @ w

        def write(grad):
            seen.update({"grad": 1})

        def read(grad):
            return grad * 10 if seen else None

        a.register_hook(read)
        b = a.clone().relu()
        b.register_hook(write)
        return torch.autograd.grad(b.sum(), x)[0], len(seen)

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5)
    expected = fn(x, w)
    actual = minidynamo.compile(fn, backend=backend)(x, w)
    torch.testing.assert_close(actual[0], expected[0])
    assert actual[1] == expected[1] == 1


def _noted(seen, grad):
    seen.append(grad.shape)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("given", [False, True])
def test_hooks_of_module_hooks_that_share_a_list(backend, given):
    """Functions that are real by then, behind a break, and a list from outside of the frame."""
    outside = []

    def fn(x, w, outside):
        relu, seen = torch.nn.ReLU(), outside if given else []
        relu.register_forward_hook(
            lambda module, args, out: (
                out.register_hook(functools.partial(_noted, seen)) and None
            )
        )

        def before(module, args):
            args[0].register_hook(lambda grad: grad * 10 if seen else None)
            return args[0].clone()

        relu.register_forward_pre_hook(before)
        return torch.autograd.grad(relu(x @ w).sum(), x)[0], len(seen)

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5)
    compiled = minidynamo.compile(fn, backend=backend)
    for _ in range(2):
        outside.clear()
        expected = fn(x, w, outside)
        outside.clear()
        actual = compiled(x, w, outside)
        torch.testing.assert_close(actual[0], expected[0])
        assert actual[1] == expected[1] == 1


class Flags:
    is_set = False


FLAGS, FOUND = Flags(), {}


def bound_again(x):
    y, factor = x * 2, 3
    y.register_hook(lambda grad: grad * factor)
    factor = 5
    return y


def variable_of_a_loop(x):
    y = x * 2
    for factor in range(1, 4):
        y.register_hook(lambda grad: grad * factor)  # noqa: B023
    return y


def bound_by_a_function(x):
    y, factor = x * 2, 3

    def change():
        nonlocal factor
        factor = 7

    y.register_hook(lambda grad: grad * factor)
    change()
    return y


def of_a_global_dict(x):
    FOUND.clear()
    y = x * 2
    y.register_hook(lambda grad: grad * 10 if FOUND else None)
    z = y * 3
    z.register_hook(lambda grad: FOUND.update(key=1))
    return z


def of_an_attribute(x):
    FLAGS.is_set = False
    y = x * 2
    y.register_hook(lambda grad: grad * 10 if FLAGS.is_set else None)
    z = y * 3
    z.register_hook(lambda grad: setattr(FLAGS, "is_set", True))
    return z


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize(
    "fn",
    [bound_again, variable_of_a_loop, bound_by_a_function, of_a_global_dict, of_an_attribute],
)
def test_hooks_see_what_is_there_when_they_run(fn, backend):
    found = []
    for run in fn, minidynamo.compile(fn, backend=backend):
        x = torch.ones(3, requires_grad=True)
        run(x).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)


def test_hooks_of_what_stays_are_captured():
    def fn(x, factor):
        y, scale = x * 2, factor * 2
        y.register_hook(lambda grad: torch.relu(grad) * scale * WEIGHT)
        return y.sum()

    counter = CountingBackend()
    for run in fn, minidynamo.compile(fn, backend=counter, fullgraph=True):
        x = torch.ones(3, requires_grad=True)
        run(x, 3).backward()
        assert x.grad.tolist() == [24.0] * 3
    assert len(counter.graphs) == 1


class Scale:
    def __init__(self, by):
        self.by = by

    def __call__(self, grad):
        return grad * self.by

    def hook(self, grad):
        return grad + self.by


SCALE = Scale(3.0)


def test_hooks_of_objects_in_one_graph():
    def fn(x):
        y = x * 2
        for hook in (SCALE, SCALE.hook, Scale(2.0), lambda grad: grad * SCALE.by):
            y.register_hook(hook)
        return y.sum()

    def gradient(run):
        x = torch.ones(3, requires_grad=True)
        run(x).backward()
        return x.grad

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    with pytest.warns(UserWarning, match="does not see changes"):
        gradient(compiled)
    for by in (3.0, 4.0):
        SCALE.by = by
        assert_same(gradient(fn), gradient(compiled))
    assert len(counter.graphs) == 2


@pytest.mark.parametrize("fn", [bound_again, variable_of_a_loop, bound_by_a_function])
def test_hooks_of_what_is_bound_again_are_refused(fn):
    with pytest.raises(minidynamo.exc.Unsupported, match="may change before"):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(
            torch.ones(3, requires_grad=True)
        )


def test_hooks_that_ask_for_strides_see_those_of_the_backward_pass():
    def by_layout(grad):
        half = grad * 0.5
        return half if half.is_contiguous() or half.stride(0) == 1 else grad * 3

    def fn(x):
        y = x * 2
        y.register_hook(by_layout)
        return y.sum() if x.sum() > 0 else y

    def gradient(run, x):
        out = run(x.requires_grad_())
        out.backward(None if out.dim() == 0 else torch.ones(4))
        return x.grad

    compiled = minidynamo.compile(fn, backend="eager")
    for value in (torch.ones(4), -torch.ones(4)):
        assert_same(gradient(fn, value.clone()), gradient(compiled, value.clone()))
    with pytest.raises(minidynamo.exc.Unsupported, match="layout of a gradient"):
        minidynamo.compile(lambda x: (x * 2).register_hook(by_layout) and x, fullgraph=True)(
            torch.ones(3, requires_grad=True)
        )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "make", [lambda y: y.view(-1), lambda y: y[1:], lambda y: y.expand(2, 4)]
)
def test_hooks_of_views_beside_what_they_are_views_of(make, backend):
    def fn(x):
        y = x.sin()
        view = make(y)
        view.register_hook(lambda grad: grad * 10)
        return view, y, view * 2

    def grads(fn):
        x = torch.arange(4.0).requires_grad_()
        return [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for y in fn(x)]

    assert_same(grads(minidynamo.compile(fn, backend=backend)), grads(fn))
    whole = minidynamo.compile(lambda x: fn(x)[::2], backend=backend, fullgraph=True)
    assert_same(grads(whole), grads(lambda x: fn(x)[::2]))
    with pytest.raises(minidynamo.exc.Unsupported, match="another tensor with that memory"):
        minidynamo.compile(fn, fullgraph=True)(torch.ones(4, requires_grad=True))
