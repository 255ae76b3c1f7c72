"""torch.func: transforms are captured with what is inside of them, nested ones too."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from testing import assert_same, check, check_recompiles
from torch import nn
from torch._higher_order_ops import scan
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)
from torch.utils.checkpoint import checkpoint

import minidynamo

X = torch.arange(6.0).reshape(2, 3) / 3 - 1
Y = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])
W = torch.arange(9.0).reshape(3, 3) / 7
V = X[1].clone()
LINEAR = nn.Linear(3, 2)
MODELS = [nn.Linear(3, 2) for _ in range(3)]
SKELETON = copy.deepcopy(MODELS[0]).to("meta")
PARAMS, BUFFERS = stack_module_state(MODELS)
SUM_OF_COS = vmap(lambda a: a.cos().sum())


def vjp_two_outputs(x, y):
    out, pull = vjp(lambda a, b: (a * b, a.sum()), x, y)
    return out, pull((y, torch.tensor(1.0)))


def vjp_later(x, y):
    out, pull = vjp(torch.sin, x)
    z = out.sum() + y
    return z, pull(z), pull(y)


def in_place_inside(x):
    def fn(a):
        b = a.clone()
        b[0] = 3
        b.add_(1)
        return b

    return vmap(fn)(x)


def side_effect_inside(x):
    seen = []

    def fn(a):
        seen.append(a.shape)
        return a + len(seen)

    return vmap(fn)(x), seen


def per_sample_gradients(x, y):
    params = {name: value.detach() for name, value in LINEAR.named_parameters()}

    def loss(p, a, b):
        return F.mse_loss(functional_call(LINEAR, p, (a,)), b)

    return vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)


def ensemble(x):
    def call(params, buffers, a):
        return functional_call(SKELETON, (params, buffers), (a,))

    return vmap(call, in_dims=(0, 0, None))(PARAMS, BUFFERS, x)


def inside_no_grad(x):
    with torch.no_grad():
        return grad(lambda a: a.sin().sum())(x)


def no_grad_inside(x):
    def fn(a):
        with torch.no_grad():
            c = a**2
        return (a - c).sum()

    return grad(fn)(x)


CASES = {
    "vmap": (lambda x: vmap(lambda a: a.sin() + a.sum())(x), X),
    "vmap of an operator": (lambda x, y: vmap(torch.dot)(x, y), X, Y),
    "vmap, not over all": (
        lambda x, w: vmap(lambda a, b: a @ b, in_dims=(0, None))(x, w),
        X,
        W,
    ),
    "vmap, free tensor": (lambda x, w: vmap(lambda a: a @ w)(x), X, W),
    "vmap, out_dims": (lambda x: vmap(lambda a: (a * 2, a.sum()), 1, (1, 0))(x), X),
    "vmap, in_dims -1": (lambda x: vmap(lambda a: a * 2, in_dims=-1, out_dims=-1)(x), X),
    "vmap of vmap": (lambda x: vmap(vmap(lambda a: a.sin()))(x), X),
    "vmap of a dict": (lambda d: vmap(lambda t: {"o": t["a"] * t["b"]})(d), {"a": X, "b": Y}),
    "vmap, keyword": (lambda x: vmap(lambda a, k=1: a * k)(x, k=x), X),
    "vmap, chunks": (lambda x: vmap(lambda a: a.sin(), chunk_size=1)(x), X),
    "vmap, made outside": (lambda x: SUM_OF_COS(x) + 1, X),
    "vmap, sizes are those of a sample": (
        lambda x: vmap(lambda a: a.reshape(a.shape[0], 1) * a.numel() * a.dim())(x),
        X,
    ),
    "vmap, where": (lambda x: vmap(lambda a: torch.where(a > 0, a, -a))(x), X),
    "vmap, in place": (in_place_inside, X),
    "vmap, side effect": (side_effect_inside, X),
    "vmap of attention": (
        lambda x: vmap(F.scaled_dot_product_attention)(x[:, None], x[:, None], x[:, None]),
        X,
    ),
    "torch.vmap": (lambda x: torch.vmap(torch.sin)(x), X),
    "grad": (lambda x: grad(lambda a: a.sin().sum())(x), X),
    "grad, aux": (lambda x: grad(lambda a: (a.sin().sum(), a.cos()), has_aux=True)(x), X),
    "grad, argnums": (lambda x, y: grad(lambda a, b: (a * b).sum(), (0, 1))(x, y), X, Y),
    "grad, free tensor": (lambda x, y: grad(lambda a: (a * y).sum())(x), X, Y),
    "grad of grad": (lambda x: grad(lambda a: grad(lambda b: (b**3).sum())(a).sum())(x), X),
    "grad of a dict": (lambda p, x: grad(lambda q: (x @ q["w"]).tanh().sum())(p), {"w": W}, X),
    "grad_and_value": (lambda x: grad_and_value(lambda a: a.sin().sum())(x), X),
    "grad, unused input": (lambda x, y: grad(lambda a, b: a.sum(), (0, 1))(x, y), X, Y),
    "grad in no_grad": (inside_no_grad, X),
    "no_grad in grad": (no_grad_inside, X),
    "vmap of grad": (lambda x, y: vmap(grad(lambda a, b: (a * b).sin().sum()))(x, y), X, Y),
    "jvp": (lambda x, y: jvp(lambda a: a.sin(), (x,), (y,)), X, Y),
    "jvp, aux": (lambda x, y: jvp(lambda a: (a.sin(), a), (x,), (y,), has_aux=True), X, Y),
    "jvp of jvp": (
        lambda x, y: jvp(lambda a: jvp(torch.sin, (a,), (y,))[1], (x,), (y,)),
        X,
        Y,
    ),
    "vmap of jvp": (lambda x, y: vmap(lambda a, b: jvp(torch.sin, (a,), (b,))[1])(x, y), X, Y),
    "vjp": (vjp_two_outputs, X, Y),
    "vjp, called later": (vjp_later, X, Y),
    "jacrev": (lambda x: jacrev(lambda a: a.sin() * a.sum())(x), V),
    "jacrev, chunks": (lambda x: jacrev(lambda a: a.sin() * a.sum(), chunk_size=2)(x), V),
    "jacfwd": (lambda x: jacfwd(lambda a: a.sin() * a.sum())(x), V),
    "hessian": (lambda x: hessian(lambda a: (a.sin() * a.sum()).sum())(x), V),
    "vmap of jacrev": (lambda x: vmap(jacrev(torch.sin))(x), X),
    "jacfwd of jacrev": (lambda x: jacfwd(jacrev(lambda a: (a**3).sum()))(x), V),
    "functional_call": (
        lambda x: functional_call(LINEAR, {"weight": LINEAR.weight * 2}, (x,)),
        X,
    ),
    "jacfwd of a module": (lambda x: vmap(jacfwd(LINEAR))(x), X),
    "gradients of each sample": (per_sample_gradients, X, Y[:, :2]),
    "ensemble": (ensemble, X),
}


@pytest.mark.parametrize("name", CASES)
def test_captured_whole(name):
    fn, *args = CASES[name]
    check(fn, *args, graphs=1, fullgraph=True)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(
    "name", ["vmap of grad", "jvp", "vjp, called later", "vmap, free tensor"]
)
def test_under_other_backends(name, backend):
    fn, *args = CASES[name]
    check(fn, *args, graphs=None, backend=backend, fullgraph=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("transform", [grad, vmap], ids=["grad", "vmap"])
def test_gradients_through_a_transform(transform, backend):
    def fn(x):
        return transform(lambda a: a.sin().sum())(x) * 2

    grads = []
    for function in (fn, minidynamo.compile(fn, backend=backend, fullgraph=True)):
        x = X.clone().requires_grad_()
        function(x).sum().backward()
        grads.append(x.grad)
    assert_same(*grads)


def test_random_numbers():
    def same(x):
        return vmap(lambda a: a + torch.randn(3), randomness="same")(x)

    def different(x):
        return vmap(lambda a: a + torch.randn(3), randomness="different")(x)

    for fn in (same, different):
        results = []
        for function in (fn, minidynamo.compile(fn, backend="eager", fullgraph=True)):
            torch.manual_seed(3)
            results.append(function(X))
        assert_same(*results)


def test_errors_are_those_of_eager():
    check(lambda x: vmap(lambda a: 1)(x), X, graphs=None)
    check(lambda x: vmap(lambda a: a.item())(x), X, graphs=None)
    check(lambda x: vmap(lambda a: a, in_dims=7)(x), X, graphs=None)
    check(lambda x, y: vmap(torch.dot)(x, y), X, torch.ones(3, 3), graphs=None)
    check(lambda x: grad(lambda a: a)(x), X, graphs=None)
    check(lambda x: vmap(lambda a: a + torch.randn(3))(x), X, graphs=None)
    assert torch._C._functorch.maybe_current_level() is None


def test_a_break_inside_breaks_before_the_transform():
    def fn(x):
        def body(a):
            minidynamo.graph_break()
            return a * 2

        y = x + 1
        return vmap(body)(y) + 1

    check(fn, X, graphs=2)
    assert torch._C._functorch.maybe_current_level() is None


def test_a_graph_that_raises_leaves_no_level_open():
    def fn(x, index):
        return vmap(lambda a: a[index])(x)

    index = torch.tensor([0, 7])
    compiled = minidynamo.compile(fn, backend="eager")
    compiled(X, torch.tensor([0, 1]))
    with pytest.raises((IndexError, RuntimeError)):
        compiled(X, index)
    assert torch._C._functorch.maybe_current_level() is None


def test_a_compiled_function_inside_of_a_transform_of_eager():
    compiled = minidynamo.compile(lambda a: a.sin().sum(), backend="aot_eager")
    assert_same(vmap(compiled)(X), X.sin().sum(1))
    assert_same(compiled(X), X.sin().sum())
    assert_same(grad(compiled)(X), X.cos())


def test_recompiles_for_new_sizes_and_closures():
    def fn(x, k):
        return vmap(lambda a: a * k + x.shape[0])(x)

    check_recompiles(fn, [(X, 2), (X, 2), (X, 3.5)], graphs=2)
    check_recompiles(fn, [(X, 2), (torch.ones(4), 2)], graphs=2)
    check_recompiles(fn, [(X, 2), (X.double(), 2)], graphs=2)


def test_recompiles_when_the_function_changes():
    class Holder:
        function = staticmethod(torch.sin)

    def fn(x):
        return vmap(Holder.function)(x)

    def change(index):
        if index == 2:
            Holder.function = staticmethod(torch.cos)

    check_recompiles(fn, [(X,), (X,), (X,)], graphs=2, change=change)


BATCHES = {
    "vmap": lambda x: torch.vmap(lambda row: (row.sin() * x.shape[0]).sum())(x),
    "columns": lambda x: torch.vmap(lambda c: c.cos() * c.shape[0], in_dims=1, out_dims=1)(x),
    "nested": lambda x: torch.vmap(lambda a: torch.vmap(lambda b: (a * b).sum())(x))(x),
    "gradients of samples": lambda x: torch.vmap(torch.func.grad(lambda r: (r**3).sum()))(x),
    "numbers": lambda x: torch.vmap(lambda row: row.sum() * x.shape[0] + row.shape[0] / 2)(x),
    "means": lambda x: torch.vmap(torch.func.grad(lambda r: r.sum() ** 2 / x.shape[0]))(x),
    "jacobian": lambda x: torch.func.jacrev(lambda t: (t.sin() * t.sum()).sum(0))(x),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", BATCHES)
def test_numbers_of_samples_stay_symbolic(name, backend):
    minidynamo.reset()
    fn, found = BATCHES[name], []
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    with minidynamo.events.subscribe(found.append, minidynamo.events.GraphEvent):
        for size in (4, 5, 7, 9):
            x = torch.linspace(0, 1, 3 * size).view(size, 3)
            torch.testing.assert_close(compiled(x), fn(x))
    assert len(found) == 2


class Scaled(torch.autograd.Function):
    """Its derivatives are not those of its forward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cos() * 5

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * ctx.saved_tensors[0].cos() * 7


FUNCTION_CASES = {
    "grad": (lambda x: grad(lambda a: Scaled.apply(a).sum())(x), True),
    "vmap of grad": (lambda x: vmap(grad(lambda a: Scaled.apply(a).sum()))(x), True),
    "jacrev": (lambda x: jacrev(Scaled.apply)(x[0]), True),
    "jvp": (lambda x: torch.func.jvp(Scaled.apply, (x,), (x,)), False),
    "jacfwd": (lambda x: jacfwd(Scaled.apply)(x[0]), False),
}


@pytest.mark.parametrize("name", FUNCTION_CASES)
def test_derivatives_of_autograd_functions_are_theirs(name):
    fn, is_whole = FUNCTION_CASES[name]
    check(fn, X, graphs=1 if is_whole else None, fullgraph=is_whole)


def test_a_vjp_whose_forward_ran_in_eager():
    def fn(x):
        def inner(a):
            minidynamo.graph_break()
            return Scaled.apply(a)

        out, pull = torch.func.vjp(inner, x)
        return out, pull(torch.ones_like(out)), jacrev(inner)(x[0])

    check(fn, X, graphs=None)
    check(fn, X, graphs=None, backend="inductor")


def test_tensors_of_a_transform_that_is_over():
    held = []

    def keep(x):
        held.append(x * 2)
        return x.sum()

    def fn(x):
        return x.sin() + 1

    grad(keep)(X)
    compiled = minidynamo.compile(fn, backend="inductor")
    for value in (X, held[0], X):
        torch.testing.assert_close(fn(value).tolist(), compiled(value).tolist())


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_scan_inside_of_vmap(requires_grad):
    def step(carry, item):
        return carry + item, carry * item

    def fn(start, items):
        return vmap(lambda a, b: scan(step, a, b, dim=0))(start, items)

    def run(called):
        start = V.clone().requires_grad_(requires_grad)
        items = torch.arange(12.0).view(3, 4) / 5
        results = called(torch.stack([start, start * 2, start]), items[:, :, None] + V)
        if requires_grad:
            sum(part.sum() for part in results).backward()
        return *results, start.grad

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    assert_same(run(compiled), run(fn))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_branches_inside_of_vmap_keep_their_history(requires_grad):
    """What the tracer knows of the result decides what Functions and hooks do with it."""

    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, grad):
            return grad * 3

    def fn(x):
        y = vmap(lambda u: torch.cond(u.sum() > 0, lambda q: q * 2, lambda q: q - 1, (u,)))(x)
        if y.requires_grad:
            y.register_hook(lambda grad: grad * 2)
        return Rounded.apply(y)

    def run(called):
        x = torch.arange(-6.0, 6.0).view(3, 4).requires_grad_(requires_grad)
        result = called(x)
        if requires_grad:
            result.sum().backward()
        return result, x.grad

    assert_same(run(minidynamo.compile(fn, backend="eager", fullgraph=True)), run(fn))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_checkpoint_inside_of_forward_mode(backend):
    """Its result had no tangents: they were zeros."""

    def inner(u):
        return checkpoint(lambda v: v.sin() * v, u, use_reentrant=False)

    def duals(x):
        with forward_ad.dual_level():
            result = forward_ad.unpack_dual(inner(forward_ad.make_dual(x, x.cos())))
            return result.primal, result.tangent

    def fn(x):
        return torch.func.jvp(inner, (x,), (x.cos(),)), jacfwd(inner)(x[0]), duals(x), inner(x)

    try:
        fn(X)
    except NotImplementedError:
        pytest.skip("torch before 2.13 refuses it in eager")
    check(fn, X, backend=backend, graphs=None)


@pytest.mark.parametrize("wanted", [True, False])
def test_requires_grad_is_refused_as_in_eager(wanted):
    """A value that it has already is set by it all the same."""

    def asked(x):
        return grad(lambda x: (x + 1).requires_grad_(wanted).sum())(x)

    def mapped(x):
        return vmap(lambda x: (x + 1).requires_grad_(wanted))(x)

    for function in (asked, mapped):
        for run in (function, minidynamo.compile(function, backend="eager")):
            with pytest.raises(RuntimeError, match="attempting to call Tensor.requires_grad_"):
                run(X)


@pytest.mark.parametrize("transform", [grad, jacrev])
def test_a_checkpoint_inside_of_grad_is_refused(transform):
    def fn(x):
        return transform(lambda u: checkpoint(torch.sin, u, use_reentrant=False).sum())(x)

    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        fn(V)
    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        minidynamo.compile(fn, backend="eager")(V)
