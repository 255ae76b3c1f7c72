"""Higher-order operators: functions are captured as graphs of their own."""

from __future__ import annotations

import functools
import unittest.mock

import pytest
import torch
import torch.nn.functional as F
from testing import CountingBackend, assert_same, check, check_recompiles
from torch import nn
from torch._higher_order_ops import InvokeQuant, foreach_map, scan, while_loop
from torch._higher_order_ops._invoke_quant import invoke_quant_packed
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.map import map as hop_map
from torch._higher_order_ops.strict_mode import strict_mode
from torch._higher_order_ops.while_loop import while_loop_op, while_loop_stack_output_op
from torch._higher_order_ops.wrap import dynamo_bypassing_wrapper, wrap
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import minidynamo

X = torch.arange(6.0).reshape(2, 3) / 3 - 1
W = torch.arange(9.0).reshape(3, 3) / 7 - 0.5
LINEAR = nn.Linear(3, 3)


def cond(x, yes, no, *operands):
    return torch.cond(x.sum() > 0, yes, no, operands or (x,))


def closures(x):
    y = x * 3
    return torch.cond(x.sum() > 0, lambda: y + 1, lambda: y - x)


def nested_cond(x):
    def inner(a):
        return torch.cond(a.sum() > 1, lambda b: b + 1, lambda b: b + 2, (a,))

    return cond(x, inner, lambda a: a.cos())


def while_with_free_tensor(x):
    y = x + 1
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a + y), (torch.tensor(0), x))


CASES = {
    "cond": (lambda x: cond(x, lambda a: a.sin(), lambda a: a.cos()), X),
    "cond, other branch": (lambda x: cond(x, lambda a: a.sin(), lambda a: a.cos()), X + 5),
    "cond, free tensor": (lambda x, w: cond(x, lambda a: a @ w, lambda a: a * 2), X, W),
    "cond, closures": (closures, X),
    "cond, tuple": (lambda x: cond(x, lambda a: (a + 1, a * 2), lambda a: (a - 1, a / 2)), X),
    "cond, dict": (lambda x: cond(x, lambda a: {"o": a + 1}, lambda a: {"o": a - 1}), X),
    "cond, nested": (nested_cond, X + 1),
    "cond, module": (lambda x: cond(x, lambda a: LINEAR(a).detach(), lambda a: a.cos()), X),
    "cond, then more": (lambda x: cond(x, torch.sin, torch.cos).sum() * 2 + x, X),
    "while_loop": (
        lambda x: while_loop(
            lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x)
        ),
        X,
    ),
    "while_loop, free tensor": (while_with_free_tensor, X),
    "while_loop, given a list": (
        lambda x: while_loop(
            lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), [torch.tensor(0), x]
        ),
        X,
    ),
    "while_loop, another nest": (
        lambda x: while_loop(
            lambda i, a: i < 3,
            lambda i, a: [i + 1, {"a": a["a"] * 2}],
            (torch.tensor(0), {"a": x}),
        ),
        X,
    ),
    "scan": (lambda x: scan(lambda c, a: (c + a, c * a), torch.zeros(3), x), X),
    "scan, reverse": (
        lambda x: scan(lambda c, a: (c + a, c * a), torch.zeros(3), x, reverse=True),
        X,
    ),
    "scan, nests": (lambda x, w: scan(lambda c, a: (c @ w + a, {"y": c * a}), x[0], x), X, W),
    "map": (lambda x: hop_map(lambda a: a.sin() + 1, x), X),
    "map, free tensor": (lambda x, w: hop_map(lambda a: a @ w, x), X, W),
}


@pytest.mark.parametrize("name", CASES)
def test_captured_whole(name):
    fn, *args = CASES[name]
    counter = check(fn, *args, graphs=1, fullgraph=True)
    assert any(
        isinstance(child, torch.fx.GraphModule) for child in counter.graphs[0].children()
    )


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", ["cond, free tensor", "while_loop", "scan", "map"])
def test_under_other_backends(name, backend):
    fn, *args = CASES[name]
    check(fn, *args, graphs=None, backend=backend, fullgraph=True)


def test_a_loop_without_steps():
    def fn(x):
        test, step = (lambda i, a: a.shape[0] > 2), (lambda i, a: (i + 1, a * 2))
        return while_loop(test, step, [torch.tensor(0), x + 1])

    check(fn, X, graphs=1, fullgraph=True)


def test_a_loop_without_end():
    def fn(x):
        return while_loop(lambda i, a: 1, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x))

    with pytest.raises(minidynamo.exc.Unsupported, match="does not depend on a tensor"):
        minidynamo.compile(fn, fullgraph=True)(X)


CONDITIONS = {
    "item": lambda x: x.sum().item() > 0,
    "of integers": lambda x: x.long().sum().item() > 0,
    "count": lambda x: x.nonzero().shape[0] > 4,
    "bool": lambda x: bool(x.sum() > 0),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_on_numbers_of_data_stays_in_the_graph(name):
    def fn(x):
        return torch.cond(CONDITIONS[name](x), lambda a: a + 1, lambda a: a - 1, (x,))

    calls = [(X,), (-X,), (X + 5,)]
    check_recompiles(fn, calls, graphs=1, fullgraph=True)
    compiled = minidynamo.compile(fn, fullgraph=True)
    for (x,) in calls:
        assert torch.equal(compiled(x), fn(x))


def test_a_known_condition_is_a_plain_branch():
    def fn(x):
        return torch.cond(x.shape[0] > 1, lambda a: a + 1, lambda a: a - 1, (x,))

    check(fn, X, graphs=1, ops=1, fullgraph=True)
    check_recompiles(fn, [(X,), (X[:1],)], graphs=2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_gradients_through_cond(backend):
    def fn(x, w):
        return cond(x, lambda a: (a * w[:2]).sin(), lambda a: a.cos() * w[1:])

    grads = []
    for function in (fn, minidynamo.compile(fn, backend=backend, fullgraph=True)):
        x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
        function(x, w).sum().backward()
        grads.append((x.grad, w.grad))
    assert_same(*grads)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_gradients_through_while_loop(backend):
    def fn(x, w):
        start = (torch.tensor(0), x)
        n, y = while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, (a @ w).sin()), start)
        return y * 2 if y.requires_grad and not n.requires_grad else y

    grads = []
    for function in (fn, minidynamo.compile(fn, backend=backend, fullgraph=True)):
        x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
        result = function(x, w)
        result.sum().backward()
        grads.append((result, x.grad, w.grad))
        with torch.no_grad():
            grads[-1] += (function(x, w),)
    assert_same(*grads)


def refused(fn, *args):
    with pytest.raises(minidynamo.exc.Unsupported) as caught:
        minidynamo.compile(fn, backend="eager", fullgraph=True)(*args)
    return caught.value.kind


def test_bodies_that_are_refused():
    def appends(x):
        seen = []
        return cond(x, lambda a: (seen.append(1), a + 1)[1], lambda a: a - 1), seen

    def writes(x):
        return cond(x, lambda a: a.add_(1) + 1, lambda a: a - 1)

    def returns_operand(x):
        return cond(x, lambda a: a, lambda a: a - 1)

    def differ(x):
        return cond(x, lambda a: a + 1, lambda a: a.sum())

    assert refused(appends, X) == "side effect in a body"
    assert refused(writes, X.clone()) == "mutation in a body"
    assert refused(returns_operand, X) == "aliasing in a body"
    assert refused(differ, X) == "branches differ"


def test_recompiles_when_a_branch_reads_something_else():
    class Options:
        factor = 2

    def fn(x):
        return cond(x, lambda a: a * Options.factor, lambda a: a - 1)

    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for factor, graphs in ((2, 1), (2, 1), (5, 2), (2, 2)):
        Options.factor = factor
        assert_same(compiled(X + 2), (X + 2) * factor)
        assert len(counter.graphs) == graphs


# -- activation checkpointing ----------------------------------------------------------------------

BODIES = {
    "closure": lambda x, w: checkpoint(lambda a: (a @ w).sin().cos(), x, use_reentrant=False),
    "keywords": lambda x, w: checkpoint(
        lambda a, b=1, *, c=2: (a @ w).sin() * b * c, x, c=3, use_reentrant=False
    ),
    "tuple": lambda x, w: checkpoint(lambda a, b: (a @ b, a + 1), x, w, use_reentrant=False)[0],
    "returns its input": lambda x, w: sum(
        t.sum() for t in checkpoint(lambda a, b: (a @ b, a), x, w, use_reentrant=False)
    ),
    "module": lambda x, w: checkpoint(LINEAR, x @ w, use_reentrant=False),
    "reentrant": lambda x, w: checkpoint(lambda a: (a @ w).sin(), x, use_reentrant=True),
    "sequential": lambda x, w: checkpoint_sequential(
        [LINEAR, LINEAR], 2, x @ w, use_reentrant=False
    ),
    "twice": lambda x, w: checkpoint(
        torch.sin, checkpoint(torch.cos, x @ w, use_reentrant=False), use_reentrant=False
    ),
    "no rng": lambda x, w: checkpoint(
        lambda a: (a @ w).sin(), x, use_reentrant=False, preserve_rng_state=False
    ),
    "selective": lambda x, w: checkpoint(
        lambda a: (a @ w).sin(),
        x,
        use_reentrant=False,
        context_fn=functools.partial(
            create_selective_checkpoint_contexts, [torch.ops.aten.mm.default]
        ),
    ),
    "policy made inside": lambda x, w: with_policy_made_inside(x, w),
}


def with_policy_made_inside(x, w):
    def saves(op, kept=(torch.ops.aten.mm.default,)):
        return op in kept

    def policy(context, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if saves(op) else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(lambda a: (a @ w).sin(), x, use_reentrant=False, context_fn=contexts)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", BODIES)
def test_checkpoint(name, backend):
    fn = BODIES[name]
    counter = CountingBackend()
    minidynamo.compile(fn, backend=counter, fullgraph=True)(X.clone().requires_grad_(), W)
    assert len(counter.graphs) == 1
    minidynamo.reset()
    results = []
    for function in (fn, minidynamo.compile(fn, backend=backend, fullgraph=True)):
        torch.manual_seed(5)
        x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
        out = function(x, w)
        out.sum().backward()
        results.append((out, x.grad, w.grad))
    assert_same(*results)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_checkpoint_draws_the_same_numbers_again(backend):
    def fn(x):
        return checkpoint(lambda a: F.dropout(a.exp(), 0.5) * 2, x, use_reentrant=False)

    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for seed in range(5):
        torch.manual_seed(seed)
        x = X.clone().requires_grad_()
        out = compiled(x)
        out.sum().backward()
        assert_same(out.detach(), x.grad)


def test_checkpoint_without_gradients_is_a_call():
    def fn(x):
        with torch.no_grad():
            return checkpoint(torch.sin, x, use_reentrant=False)

    check(fn, X, graphs=1, fullgraph=True)


@pytest.mark.parametrize("grad", [True, False])
def test_reentrant_checkpoint_of_arguments_without_gradients_has_none(grad):
    weight = X.clone().requires_grad_()

    def fn(x):
        return checkpoint(lambda a: ((a * weight).sin(), a), x, use_reentrant=True)

    with torch.set_grad_enabled(grad), pytest.warns(UserWarning, match="None of the inputs"):
        wanted = fn(X)
        compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
        got = compiled(X)
    assert_same(got, wanted)
    assert [y.requires_grad for y in got] == [y.requires_grad for y in wanted] == [False] * 2
    assert (got[1] is X) == (wanted[1] is X)


def test_checkpoint_around_a_break():
    """The first pass and the recomputation both go through compiled code."""

    def body(a):
        b = a.sin()
        minidynamo.graph_break()
        return b.cos() * a

    def fn(x):
        return checkpoint(body, x, use_reentrant=False) + 1

    grads = []
    for function in (fn, minidynamo.compile(fn, backend="eager")):
        x = X.clone().requires_grad_()
        function(x).sum().backward()
        grads.append(x.grad)
    assert_same(*grads)


def test_compiling_where_hooks_on_saved_tensors_are_set_or_forbidden():
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return tensor

    def fn(x):
        return (x * x).sin()

    x = X.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        want = fn(x)
        count = len(packed)
        got = minidynamo.compile(fn, backend="eager")(x)
    assert_same(want.detach(), got.detach())
    assert len(packed) == 2 * count
    assert not any(isinstance(t, torch._subclasses.FakeTensor) for t in packed)
    minidynamo.reset()
    with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
        assert_same(minidynamo.compile(fn, backend="eager")(x).detach(), want.detach())


def test_checkpoint_recompiles_for_another_body():
    def fn(x, k):
        return checkpoint(lambda a: a.sin() * k, x, use_reentrant=False).sum()

    x = X.clone().requires_grad_()
    check_recompiles(fn, [(x, 2), (x, 2), (x, 3.0), (x.detach(), 2)], graphs=3)


# -- marked regions --------------------------------------------------------------------------------


@torch.compiler.nested_compile_region
def _layer(x, scale):
    return (x.sin() * scale, x.cos())


def test_nested_compile_regions_are_traced_through():
    def fn(x, k):
        for _ in range(3):
            x, y = _layer(x, scale=k)
        return x + y

    check_recompiles(fn, [(X, 2), (X, 2), (X.double(), 2), (X, 3)], graphs=3)


def test_foreach_map():
    def fn(xs, ys, k):
        doubled = foreach_map(lambda x, y: x * y + k, xs, ys)
        return foreach_map(torch.add, doubled, 1.5), foreach_map(torch.sin, xs[0])

    lists = [X, W], [X + 1, W - 1]
    check(fn, *lists, 2, graphs=1, fullgraph=True)
    check_recompiles(fn, [(*lists, 2), (*lists, 2), ([X], [W[0]], 2)], graphs=2)


def test_functions_called_through_invoke_quant_are_traced():
    quantized = InvokeQuant()

    def fn(x, k):
        y = InvokeQuant(codegen_low_precision=False)(lambda a, b: (a * b).relu(), x, x + k)
        z = invoke_quant_packed(lambda a: (a * k,), y)[0]
        return quantized(lambda a: a.sin() * k, y, scheme="nf4"), z

    check_recompiles(fn, [(X, 2), (X, 2), (X, 3)], graphs=2)


# -- scripted functions ----------------------------------------------------------------------------


def test_scripted_functions_are_traced_as_python():
    with pytest.warns((DeprecationWarning, FutureWarning)):
        scripted = torch.jit.script(_plus_one)

    def fn(x):
        return scripted(x) * 2

    check(fn, X, graphs=1, fullgraph=True)


def _plus_one(x):
    return x + 1


def sized(kind):
    """Programs whose bodies use sizes of what is given, or numbers from outside."""

    def of_checkpoint(x):
        def body(t):
            return (t * t.shape[0]).view(t.shape[1] * t.shape[0]).sin() @ t.new_ones(t.numel())

        return checkpoint(body, x, use_reentrant=False)

    def of_cond(x):
        size = x.shape[0]
        turn = functools.partial(torch.Tensor.view, size=(x.shape[1], size))
        return torch.cond(x.sum() > 0, lambda t: turn(t) * size, lambda t: turn(t) - 1, (x,))

    def of_map(x):
        return hop_map(lambda row: row * x.shape[0] + row.shape[0], x)

    def of_while(x):
        start = (torch.tensor(0), x)
        return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * x.shape[0]), start)

    def of_scan(x):
        return scan(lambda c, row: (c + row * x.shape[0], c * 1), torch.zeros(x.shape[1]), x)

    def of_wrap(x):
        return wrap(lambda t: t * (x.shape[0] / 2) + t.shape[1], x)

    return locals()[f"of_{kind}"]


# What the operators give, which torch runs by its own compiler in eager.
SIZED = {
    "checkpoint": lambda x: (x * x.shape[0]).flatten().sin().sum(),
    "cond": lambda x: x.view(x.shape[1], x.shape[0]) * x.shape[0],
    "map": lambda x: x * x.shape[0] + x.shape[1],
    "while": lambda x: (torch.tensor(3), x * x.shape[0] ** 3),
    "scan": lambda x: ((x * x.shape[0]).sum(0), (x.cumsum(0) - x) * x.shape[0]),
    "wrap": lambda x: x * (x.shape[0] / 2) + x.shape[1],
}


@pytest.mark.parametrize("kind", SIZED)
def test_sizes_in_bodies_stay_symbolic(kind):
    program = sized(kind)
    backend = CountingBackend()
    run = minidynamo.compile(program, backend=backend, fullgraph=True, dynamic=True)
    for shape in ((3, 4), (5, 4), (6, 7)):
        x = torch.rand(shape, requires_grad=kind == "checkpoint")
        torch.testing.assert_close(run(x), SIZED[kind](x))
    assert len(backend.graphs) == 1


def test_data_dependent_number_in_a_body():
    def program(x):
        found = x.nonzero()
        count = found.size(0)
        return wrap(lambda t: wrap(lambda u: (u.sin() + count, found.sin()), t), x)

    with minidynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = minidynamo.compile(program, backend="eager", fullgraph=True)
        for x in (torch.arange(3.0), torch.arange(3.0) - 1, torch.ones(3)):
            assert_same(run(x), program(x))


BOTH_COUNT = {
    "of one tensor": lambda t, turn: turn(torch.ones(torch.nonzero(t).size(0), 2)),
    "sizes of their own": lambda t, turn: turn(torch.nonzero(t).squeeze(-1)),
    "numbers": lambda t, turn: t * t.sum().item() + turn(t),
}


@pytest.mark.parametrize("name", BOTH_COUNT)
def test_branches_that_both_depend_on_data(name):
    """Fake tensors remember how many elements a branch found; the other one counts anew."""

    def program(x):
        body = BOTH_COUNT[name]
        branches = (lambda t: body(t, torch.sin), lambda t: body(t, torch.cos))
        return torch.cond(x.sum() > 2, *branches, (x,)).sin()

    given = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
    with minidynamo.config.patch(given):
        run = minidynamo.compile(program, backend="eager", fullgraph=True)
        for x in (torch.arange(3.0), torch.arange(3.0) - 1, torch.ones(3), torch.zeros(3)):
            assert_same(run(x), program(x))


FREE = torch.arange(3.0)
NOTES = {"a": True, "b": 2}
WRAPPED = {
    "free": lambda x: wrap(lambda t: t + FREE, x),
    "nested": lambda x: wrap(lambda t: wrap(lambda u: u @ W, t) + t, x),
    "keywords": lambda x: wrap(lambda *, a, b=2: a * b, a=x),
    "module": lambda x: wrap(LINEAR, x),
    "what is given": lambda x: wrap(lambda t: (t, FREE, t.cos()), x)[2],
    "nest": lambda x: wrap(lambda d: [{"b": -d["a"][0]}, 1], {"a": (x,)}),
    "nothing": lambda x: wrap(lambda t: t, x),
    "hints": lambda x: hints_wrapper(lambda t, n: t.relu() * n, (x, 2), {}, hints=NOTES),
    "strict": lambda x: strict_mode(lambda t, u: (t * u.cos() + FREE, t), (x, x))[0],
    "bypassing": lambda x: dynamo_bypassing_wrapper(plus, lambda t, n: t * n, x, 2),
    "partial": lambda x: dynamo_bypassing_wrapper(functools.partial(plus, k=3), torch.sin, x),
    "existing": lambda x: dynamo_bypassing_wrapper(PLUS_FOUR, lambda t: [t, t + x], x),
}


def plus(fn, k=1):
    """What is given to the wrapper's function is in a tuple, where that was compiled."""

    def wrapper(*args):
        out = fn(*args)
        return type(out)(t + k for t in out) if isinstance(out, (tuple, list)) else out + k

    return wrapper


PLUS_FOUR = functools.partial(plus, k=4)


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_wrapped_functions(name, backend):
    program = WRAPPED[name]
    assert_same(minidynamo.compile(program, backend=backend, fullgraph=True)(X), program(X))


def test_wrapped_function_is_a_graph_of_its_own():
    backend = CountingBackend()
    minidynamo.compile(WRAPPED["nested"], backend=backend, fullgraph=True)(X)
    (module,) = backend.graphs
    assert [str(n.target) for n in module.graph.nodes if n.op == "get_attr"] == ["wrap_body_1"]
    (inner,) = (n for n in module.wrap_body_1.graph.nodes if n.target is wrap)
    assert inner.args[0].target == "wrap_body_0"


def test_wrapped_function_with_a_side_effect_runs_in_eager():
    seen = []

    def program(x):
        return wrap(lambda t: (seen.append(1), t + 1)[1], x)

    assert_same(minidynamo.compile(program, backend="eager")(X), X + 1)
    assert seen == [1]
    with pytest.raises(minidynamo.exc.Unsupported, match="side effect in a body"):
        minidynamo.compile(program, backend="eager", fullgraph=True)(X)


BAD_CALLS = {
    "twice": lambda p, x: torch.ops.higher_order.cond(
        p, lambda t: t, lambda t: -t, (x,), pred=p
    ),
    "operand": lambda p, x: torch.cond(p, lambda t: t[0] + 1, lambda t: t[0], ((1.0,),)),
    "keyword": lambda p, x: hop_map(lambda t: t.sin(), x=x),
    "hints": lambda p, x: hints_wrapper(lambda t: t, (x,), {}),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_arguments_that_eager_refuses(name):
    call = BAD_CALLS[name]
    pred = torch.tensor(True)
    with pytest.raises((TypeError, RuntimeError)) as expected:
        call(pred, X)
    with pytest.raises(type(expected.value)):
        minidynamo.compile(call, backend="eager")(pred, X)


@pytest.mark.parametrize("kind", [set, frozenset])
def test_checkpoint_policy_with_a_set_of_operators(kind):
    def policy(saved, context, op, *args, **kwargs):
        keep = op in saved
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    def program(x, contexts):
        return checkpoint(lambda t: (t @ t).sin(), x, use_reentrant=False, context_fn=contexts)

    backend = CountingBackend()
    run = minidynamo.compile(program, backend=backend, fullgraph=True)
    for op in (torch.ops.aten.mm.default,) * 2 + (torch.ops.aten.sin.default,):
        chosen = functools.partial(policy, kind([op]))
        contexts = functools.partial(create_selective_checkpoint_contexts, chosen)
        assert_same(run(W.clone().requires_grad_(), contexts), (W @ W).sin().requires_grad_())
    assert len(backend.graphs) == 2


def test_checkpoint_policy_that_closes_over_what_changes_breaks_the_graph():
    def program(x):
        seen = []

        def policy(context, op, *args, **kwargs):
            seen.append(str(op))
            return CheckpointPolicy.PREFER_RECOMPUTE

        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        y = checkpoint(lambda t: (t @ t).sin(), x, use_reentrant=False, context_fn=contexts)
        return y, len(seen), seen[0]

    compiled = minidynamo.compile(program, backend="eager")
    expected = program(W.clone().requires_grad_())
    assert_same(compiled(W.clone().requires_grad_()), expected)
    with pytest.raises(minidynamo.exc.Unsupported, match="closes over what may change"):
        minidynamo.compile(program, backend="eager", fullgraph=True)(W)


def test_branches_of_other_shapes_run_in_eager():
    def program(x):
        return torch.cond(x.sum() > 0, lambda: torch.cat([x, x]), lambda: x.sin())

    assert_same(minidynamo.compile(program, backend="eager")(X + 2), torch.cat([X + 2] * 2))


def test_while_loop_whose_steps_are_known():
    """Its condition is about integers that it carries."""

    def fn(x):
        none = while_loop(lambda i, y: i < 0, lambda i, y: (i + 1, y + 1), (0, x))
        return none, while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * i + x), (0, x))

    check(fn, X, fullgraph=True)
    check_recompiles(fn, [(X,), (X.double(),)], 2, fullgraph=True)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_while_loop_that_carries_a_changing_integer(backend):
    """How often it runs depends on the tensor: the integer is known at run time alone."""

    def fn(x):
        step = lambda i, y: (i + 2, y * 2 + i + y.new_ones(i).sum())  # noqa: E731
        i, y = while_loop(lambda i, y: y.sum() < 300, step, (0, x))
        j, z = while_loop(lambda i, y: y.sum() < 300, step, (x.shape[0], x))
        k, _ = while_loop(lambda i, y: y.sum() < 300, lambda i, y: (i, y * 2), (5, x))
        return i + 1, y * i, j, z, k

    for x in (X + 2, X + 50, X + 5000):
        minidynamo.reset()
        compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
        for given in (x, X + 1, X + 100):
            assert_same(compiled(given), fn(given))


def test_while_loop_that_carries_an_integer_in_training():
    def fn(x):
        return while_loop(lambda i, y: y.sum() < 300, lambda i, y: (i + 1, y * 2), (0, x))

    with pytest.raises(minidynamo.exc.Unsupported, match="no backward pass"):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(X.clone().requires_grad_())


def test_while_loop_that_carries_a_bool():
    def fn(x, flag):
        def step(i, carried, y):
            return i + 1, carried, y * 2 if carried else y + 1

        return while_loop(lambda i, carried, y: y.sum() < 300, step, (0, flag, x))

    def plain(x, flag):
        i = 0
        while x.sum() < 300:
            i, x = i + 1, x * 2 if flag else x + 1
        return i, flag, x

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for given in (X, X + 50):
        for flag in (True, False):
            assert_same(compiled(given, flag), plain(given, flag))
    for start, step in (
        (True, lambda f, y: (not f, y + 1)),
        (1.5, lambda f, y: (f, y + 1)),
    ):
        loop = functools.partial(while_loop, lambda f, y: y.sum() < 9, step)
        assert refused(lambda x, s=start, loop=loop: loop((s, x)), X) == "carried values differ"


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_while_loop_that_stacks_all_steps(backend):
    """How many there are depends on the tensor; a loop of none gives the start."""

    def fn(n, x):
        test, step = (lambda i, a, w: i > 0), (lambda i, a, w: (i - 1, a.cos() + w))
        last = while_loop_op(test, step, (n, x), (x.sin(),))
        counts, steps = while_loop_stack_output_op(test, step, (n, x * 2), (x.sin(),))
        return last, counts, steps[-1] * 2, steps.sum(0)

    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for count in (3, 0, 1):
        assert_same(compiled(torch.tensor(count), X), fn(torch.tensor(count), X))
    with pytest.raises(minidynamo.exc.Unsupported, match="stacked results"):
        compiled(torch.tensor(2), X.clone().requires_grad_())


def test_while_loop_up_to_a_number_that_becomes_symbolic():
    def fn(x, n):
        return while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * 2 + i), (0, x))

    def plain(x, n):
        for i in range(n):
            x = x * 2 + i
        return n, x

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for n in (3, 4, 5, 4, 1):
        assert_same(compiled(X, n), plain(X, n))
    sizes = minidynamo.compile(lambda x: fn(x, x.shape[0]), backend="eager", fullgraph=True)
    for rows in (2, 3, 4):
        assert_same(sizes(X[:1].expand(rows, 3)), plain(X[:1].expand(rows, 3), rows))


BUFFER = torch.ones(3)


def in_python(p, then, otherwise, operands):
    """torch.cond, which refuses to write in eager before torch 2.13."""
    return (then if p else otherwise)(*operands)


def writes_an_operand(p, x, cond=torch.cond):
    def add(y):
        y.add_(1)
        BUFFER.mul_(2)
        return y.sum() + BUFFER

    view = x[:2]
    return cond(p, add, lambda y: y.sum() * BUFFER, (x,)), view + 1, x.sin()


def writes_a_view(p, x, cond=torch.cond):
    copy = x * 1
    view = copy[1:]

    def double(y):
        y.mul_(2)
        return y.sum()

    return cond(p, double, lambda y: y.sum(), (view,)), copy, view + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", [writes_an_operand, writes_a_view])
def test_branches_write_where_no_gradients_are_wanted(program, backend):
    fast = minidynamo.compile(program, backend=backend, fullgraph=True)
    for truth in (True, False):
        seen = []
        for call in (functools.partial(program, cond=in_python), fast):
            x = torch.arange(3.0)
            BUFFER.fill_(1)
            with torch.no_grad():
                seen.append((call(torch.tensor(truth), x), x, BUFFER.clone()))
        torch.testing.assert_close(*seen)
    with pytest.raises(minidynamo.exc.Unsupported, match="writes to a tensor from outside"):
        fast(torch.tensor(True), torch.arange(3.0, requires_grad=True) * 1)


def test_branches_that_write_to_shared_memory():
    def fn(p, x):
        view = x.view(-1)

        def add():
            view.add_(1)
            return x.sum()

        return torch.cond(p, add, lambda: x.sum(), ()), view + 1

    x = torch.arange(3.0)
    with (
        torch.no_grad(),
        pytest.raises(minidynamo.exc.Unsupported, match="whose memory another"),
    ):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(torch.tensor(True), x)


@pytest.mark.parametrize("wanted", [True, False])
def test_operators_that_compile_themselves_in_eager(wanted):
    """A program may put `compile` where torch looks for torch.compile."""
    x, zero = torch.ones(3), torch.zeros((), dtype=torch.int64)
    with unittest.mock.patch("torch.compile", minidynamo.compile):
        chosen = torch.cond(torch.tensor(wanted), lambda x: x + 1, lambda x: x - 1, (x,))
        count, doubled = while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (zero, x))
    assert torch.equal(chosen, x + 1 if wanted else x - 1)
    assert count == 3 and torch.equal(doubled, x * 8)


def without_gradient(a):
    with torch.no_grad():
        return a * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize(
    "branches",
    [
        (without_gradient, torch.sin),
        (torch.sin, without_gradient),
        (without_gradient, without_gradient),
        (lambda a: a.detach() * 1, torch.sin),
    ],
)
def test_results_of_branches_require_gradients_where_operands_do(branches, backend):
    def fn(x, limit):
        return torch.cond(x.sum() > limit, *branches, (x,))

    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for limit in (torch.tensor(-100.0), torch.tensor(100.0)):
        got, want = X.clone().requires_grad_(), X.clone().requires_grad_()
        result, wanted = compiled(got, limit), fn(want, limit)
        assert result.requires_grad
        assert wanted.requires_grad
        result.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(result, wanted)
        torch.testing.assert_close(got.grad, want.grad)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_is_mapped_without_gradients_requires_them(backend):
    def fn(x, y):
        return hop_map(lambda row, y: without_gradient(row) * y, x, y)

    x = X.clone().requires_grad_()
    result = minidynamo.compile(fn, backend=backend, fullgraph=True)(x, torch.ones(()))
    assert result.requires_grad
