"""Hooks of modules: run as in eager, and a change of the hooks is seen by the next call."""

from __future__ import annotations

import copy

import pytest
import torch
from testing import CountingBackend, assert_same, check
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import prune
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads
from torch.utils.hooks import BackwardHook

import minidynamo

X = torch.arange(12.0).reshape(3, 4) / 10


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


class Keywords(nn.Module):
    def forward(self, x, *, scale=1.0):
        return x * scale


def _same_outcome(call, compiled, grad=False):
    """Both are called alike; values (and gradients of the input) agree."""
    results = []
    for function in (call, compiled):
        x = X.clone().requires_grad_(grad)
        y = function(x)
        if grad:
            y.sum().backward()
        results.append((y.detach(), x.grad))
    assert_same(*results)


def compare(make, *, graphs=1, calls=2, grad=False):
    """`make()` gives a module with its hooks; eager and compiled ones are compared."""
    counter = CountingBackend()
    eager, compiled = make(), minidynamo.compile(make(), backend=counter)
    for _ in range(calls):
        _same_outcome(eager, compiled, grad)
    if graphs is not None:
        assert len(counter.graphs) == graphs
    return counter


# -- kinds of hooks --------------------------------------------------------------------------------

FORWARD = {
    "output": lambda m, args, out: out * 2,
    "nothing": lambda m, args, out: None,
    "uses input": lambda m, args, out: out + args[0].sum(),
    "uses module": lambda m, args, out: out + m.weight.sum(),
    "tuple": lambda m, args, out: (out + 1).clone(),
}
PRE = {
    "one value": lambda m, args: args[0] + 1,
    "tuple": lambda m, args: (args[0] * 3,),
    "nothing": lambda m, args: None,
}


@pytest.mark.parametrize("hook", FORWARD.values(), ids=FORWARD)
@pytest.mark.parametrize("index", [0, 2])
def test_forward_hook(hook, index):
    def make():
        model = _model()
        model[index].register_forward_hook(hook)
        return model

    compare(make)


@pytest.mark.parametrize("hook", PRE.values(), ids=PRE)
@pytest.mark.parametrize("where", ["inner", "root"])
def test_pre_hook(hook, where):
    def make():
        model = _model()
        (model[0] if where == "inner" else model).register_forward_pre_hook(hook)
        return model

    # The hooks of the compiled module itself run around its frame.
    compare(make, graphs=1 if where == "inner" else None)


def test_hooks_with_keywords():
    def pre(module, args, kwargs):
        return args, {**kwargs, "scale": kwargs["scale"] + 1}

    def post(module, args, kwargs, output):
        return output * kwargs["scale"]

    class Caller(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Keywords()
            self.inner.register_forward_pre_hook(pre, with_kwargs=True)
            self.inner.register_forward_hook(post, with_kwargs=True)

        def forward(self, x):
            return self.inner(x, scale=2.0)

    compare(Caller)


def test_hooks_run_in_order():
    def make():
        model = _model()
        model[0].register_forward_hook(lambda m, a, out: out + 1)
        model[0].register_forward_hook(lambda m, a, out: out * 2)
        model[0].register_forward_hook(lambda m, a, out: out - 5, prepend=True)
        return model

    compare(make)


def test_always_call():
    seen = []

    def make():
        model = _model()
        model[0].register_forward_hook(lambda m, a, out: out + 1, always_call=True)
        model[2].register_forward_hook(lambda m, a, out: seen.append(1), always_call=True)
        return model

    compare(make, graphs=None)
    assert len(seen) == 4


def test_hook_with_side_effect():
    def make():
        model = _model()
        model.seen = []
        model[0].register_forward_hook(lambda m, a, out: model.seen.append(out.sum().detach()))
        return model

    eager, other = make(), make()
    compiled = minidynamo.compile(other, backend=CountingBackend())
    for _ in range(3):
        _same_outcome(eager, compiled)
    assert_same(eager.seen, other.seen)


def test_hook_that_captures_activations():
    store = {}

    def make(key):
        model = _model()
        store[key] = {}

        def save(module, args, output):
            store[key]["hidden"] = output

        model[1].register_forward_hook(save)
        return model

    eager, compiled = make("eager"), minidynamo.compile(make("ours"), backend=CountingBackend())
    _same_outcome(eager, compiled)
    assert_same(store["eager"]["hidden"].detach(), store["ours"]["hidden"].detach())


@pytest.mark.parametrize(
    "kind", ["register_full_backward_hook", "register_full_backward_pre_hook"]
)
def test_backward_hooks(kind):
    counts = {"eager": [], "ours": []}

    def make(key):
        model = _model()
        getattr(model[0], kind)(lambda m, *grads: counts[key].append(len(grads)))
        return model

    eager = make("eager")
    compiled = minidynamo.compile(make("ours"), backend=CountingBackend())
    for _ in range(2):
        _same_outcome(eager, compiled, grad=True)
    assert counts["eager"] == counts["ours"]


def test_backward_hook_changes_the_gradient():
    def make():
        model = _model()
        model[0].register_full_backward_hook(lambda m, gin, gout: tuple(g * 2 for g in gin))
        return model

    compare(make, grad=True, graphs=None)


def test_tensor_hook_inside_forward():
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = _model()

        def forward(self, x):
            y = self.inner(x)
            if y.requires_grad:
                y.register_hook(lambda grad: grad * 2)
            return y

    compare(Doubled, grad=True, graphs=None)


# -- changes between calls -------------------------------------------------------------------------


def _changing(steps, graphs):
    """`steps[i](model)` before call i, on an eager and a compiled model."""
    counter = CountingBackend()
    eager, other = _model(), _model()
    compiled = minidynamo.compile(other, backend=counter)
    for step in steps:
        if step is not None:
            step(eager)
            step(other)
        _same_outcome(eager, compiled)
    assert len(counter.graphs) == graphs


def _add(model):
    model.handle = model[0].register_forward_hook(lambda m, a, out: out + 1)


def _add_pre(model):
    model.handle = model[2].register_forward_pre_hook(lambda m, a: (a[0] + 1,))


def _remove(model):
    model.handle.remove()


def test_hook_added_and_removed():
    _changing([None, _add, None, _remove, None], graphs=2)


def test_pre_hook_added_and_removed():
    _changing([None, _add_pre, _remove, _add_pre], graphs=2)


def test_hook_replaced_by_another():
    def other(model):
        model.handle.remove()
        model.handle = model[0].register_forward_hook(lambda m, a, out: out * 7)

    _changing([_add, other, None], graphs=2)


def test_hook_closure_value_changes():
    scale = {"eager": 1.0}

    def hook(module, args, output):
        return output * scale["eager"]

    counter = CountingBackend()
    eager = _model()
    eager[0].register_forward_hook(hook)
    compiled = minidynamo.compile(copy.deepcopy(eager), backend=counter)
    for value in (1.0, 2.0, 3.0, 1.0):
        scale["eager"] = value
        _same_outcome(eager, compiled)


GLOBAL = {
    "forward": (
        torch_module.register_module_forward_hook,
        lambda m, a, out: out + 1 if isinstance(m, nn.Linear) else None,
    ),
    "pre": (
        torch_module.register_module_forward_pre_hook,
        lambda m, a: (a[0] + 1,) if isinstance(m, nn.ReLU) else None,
    ),
}


@pytest.mark.parametrize("kind", GLOBAL)
def test_global_hook_comes_and_goes(kind):
    register, hook = GLOBAL[kind]
    counter = CountingBackend()
    eager, compiled = _model(), minidynamo.compile(_model(), backend=counter)
    _same_outcome(eager, compiled)
    handle = register(hook)
    try:
        _same_outcome(eager, compiled)
    finally:
        handle.remove()
    _same_outcome(eager, compiled)
    assert len(counter.graphs) == 2


def test_hook_on_the_compiled_module():
    model = _model()
    compiled = minidynamo.compile(model, backend=CountingBackend())
    plain = compiled(X)
    handle = compiled.register_forward_hook(lambda m, a, out: out + 1)
    assert_same(compiled(X).detach(), (plain + 1).detach())
    handle.remove()
    assert_same(compiled(X).detach(), plain.detach())


def test_registering_inside_the_compiled_function():
    def make():
        model = _model()

        def run(x):
            handle = model[0].register_forward_hook(lambda m, a, out: out + 1)
            y = model(x)
            handle.remove()
            return y + model(x)

        return model, run

    (eager_model, eager), (model, run) = make(), make()
    compiled = minidynamo.compile(run, backend=CountingBackend())
    for _ in range(2):
        _same_outcome(eager, compiled)
    assert len(model[0]._forward_hooks) == len(eager_model[0]._forward_hooks) == 0


def test_state_dict_hooks_are_kept():
    model = _model()
    model.register_state_dict_post_hook(lambda m, state, prefix, meta: state.update(extra=X))
    compiled = minidynamo.compile(model, backend=CountingBackend())
    compiled(X)
    assert "extra" in model.state_dict()


# -- hooks of the compiled module itself -----------------------------------------------------------


def test_hooks_of_the_compiled_module_are_in_its_graph():
    """One graph with forward and hooks; a hook that is added or removed is seen."""
    counter = CountingBackend()
    eager, other = _model(), _model()
    compiled = minidynamo.compile(other, backend=counter, fullgraph=True)
    handles = []

    def register():
        for model in (eager, other):
            handles.append(model.register_forward_hook(lambda m, args, out: out * 2))
            handles.append(model.register_forward_pre_hook(lambda m, args: (args[0] + 1,)))

    for change, graphs in (
        (lambda: None, 1),
        (register, 2),
        (lambda: [handle.remove() for handle in handles], 2),
    ):
        change()
        for _ in range(2):
            _same_outcome(eager, compiled, grad=True)
        assert len(counter.graphs) == graphs


def test_hooks_of_a_module_compiled_in_place():
    counter = CountingBackend()
    eager, model = _model(), _model()
    minidynamo.compile_(model, backend=counter, fullgraph=True)
    for graphs in (1, 2):
        for _ in range(2):
            _same_outcome(eager, model, grad=True)
        assert len(counter.graphs) == graphs
        for each in (eager, model):
            each.register_forward_hook(lambda m, args, out: out * 2)


def test_hooked_modules_of_one_class():
    """Each has its own hooks, and what is compiled for one does not serve the other."""
    counter = CountingBackend()
    for scale in (2, 3, 2):
        module = nn.ReLU()
        module.register_forward_hook(lambda m, args, out, scale=scale: out * scale)
        compiled = minidynamo.compile(module, backend=counter)
        assert_same(compiled(X), torch.relu(X) * scale)
        assert_same(copy.deepcopy(compiled)(X), torch.relu(X) * scale)


@pytest.mark.parametrize("inner", [False, True])
def test_hook_that_is_always_called(inner):
    class Raises(nn.Module):
        def forward(self, x):
            raise ValueError(f"no {x.shape[0]}")

    outcomes = []
    for compiles in (False, True):
        log = []
        module = Raises()
        module.register_forward_hook(
            lambda m, args, out, log=log: log.append(out), always_call=True
        )
        call = (lambda x, module=module: module(x)) if inner else module
        if compiles:
            call = minidynamo.compile(call, backend=CountingBackend())
        for _ in range(2):
            with pytest.raises(ValueError, match="no 3"):
                call(X)
        outcomes.append(log)
    assert outcomes[0] == outcomes[1] == [None, None]


@pytest.mark.parametrize("everywhere", [False, True])
def test_without_its_backward_hook_a_module_is_captured(everywhere):
    model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(2, 2)
    backend = CountingBackend()
    compiled = minidynamo.compile(model, backend=backend)
    if everywhere:
        hook = torch_module.register_module_full_backward_hook(lambda *args: None)
    else:
        hook = model[0].register_full_backward_hook(lambda *args: None)
    torch.testing.assert_close(compiled(x), model(x))
    hook.remove()
    before = len(backend.graphs)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x))
    assert len(backend.graphs) == before + 1


def test_without_its_hook_a_module_is_captured_where_tracing_started_over():
    layer, backend = nn.Linear(2, 2), CountingBackend()

    def fn(x):
        parts = map(layer, [x * 2, x * 3])
        return next(parts) + next(parts)

    compiled, x = minidynamo.compile(fn, backend=backend), torch.ones(2, 2)
    hook = layer.register_full_backward_hook(lambda *args: None)
    torch.testing.assert_close(compiled(x), fn(x))
    hook.remove()
    before = len(backend.graphs)
    torch.testing.assert_close(compiled(x), fn(x))
    assert len(backend.graphs) == before + 1


def test_modules_with_backward_hooks_run_in_eager():
    seen = []

    def hook(module, grad_input, grad_output):
        seen.append(grad_output[0].sum().item())
        return (grad_input[0] * 2,)

    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    model[1].register_full_backward_hook(hook)
    x = torch.ones(2, 3, requires_grad=True)
    results = []
    for forward in (model, minidynamo.compile(model, backend="eager")):
        x.grad = None
        forward(x).sum().backward()
        results.append((x.grad.clone(), list(seen)))
        seen.clear()
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


class _Outer(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_hooks_that_take_keywords_are_compiled_once():
    def hooked(extra):
        torch.manual_seed(0)
        layer = nn.Linear(3, 3)
        if extra:
            layer.register_forward_hook(lambda module, args, out: out * 2)
        layer.register_forward_hook(lambda module, args, kwargs, out: out + 1, with_kwargs=True)
        layer.register_forward_pre_hook(
            lambda module, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True
        )
        return layer

    def call(layer, x):
        return layer(input=x), layer(x)

    def by_position(layer, x):
        return layer(x)

    x, counter = torch.ones(2, 3), CountingBackend()
    compiled = minidynamo.compile(by_position, backend=counter)
    for extra, graphs in ((False, 1), (False, 1), (True, 2), (True, 2), (False, 2)):
        layer = hooked(extra)
        assert_same(by_position(layer, x), compiled(layer, x))
        assert len(counter.graphs) == graphs
    layer = hooked(False)
    layer.register_forward_hook(lambda module, args, kwargs, out: len(kwargs), with_kwargs=True)
    assert_same(by_position(layer, x), compiled(layer, x))
    with pytest.raises(IndexError):
        minidynamo.compile(call, backend=counter)(hooked(False), x)


@pytest.mark.parametrize("result", [3, (1, 2, 3), ()])
def test_pre_hooks_with_keywords_that_return_something_else(result):
    layer = nn.Linear(3, 3)
    layer.register_forward_pre_hook(lambda module, args, kwargs: result, with_kwargs=True)
    check(_Outer([layer]), torch.ones(2, 3), graphs=None)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_what_sets_up_backward_hooks_is_not_traced(backend):
    """It looks for the node of autograd that it made."""

    def fn(x):
        seen = []
        hooks = BackwardHook(torch.nn.ReLU(), [lambda m, given, got: seen.append(got[0])], [])
        (given,) = hooks.setup_input_hook((x.sin(),))
        result = hooks.setup_output_hook(given * 2)
        result.sum().backward()
        return seen, x.grad

    compiled = minidynamo.compile(fn, backend=backend)
    for size in (3, 3, 4):
        mine, theirs = (torch.ones(size, requires_grad=True) for _ in range(2))
        torch.testing.assert_close(compiled(mine), fn(theirs))


def test_per_sample_gradients():
    """`call_for_per_sample_grads` calls the module with weights that are tensors of its own."""
    module = nn.Linear(3, 2)

    def fn(x):
        result = call_for_per_sample_grads(module, loss_reduction="sum", batch_first=True)(x)
        result.sum().backward()
        return [parameter.grad_sample for parameter in module.parameters()]

    compiled = minidynamo.compile(fn, backend="eager")
    for size in (4, 4, 5):
        results = []
        for run in (fn, compiled):
            results.append(run(torch.ones(size, 3)))
            for parameter in module.parameters():
                del parameter.grad_sample
        torch.testing.assert_close(*results)


# -- registered by captured code -------------------------------------------------------------------

LINEAR = nn.Linear(4, 4)
SEEN: list = []


def for_one_call(x):
    handle = LINEAR.register_forward_hook(lambda m, args, out: out * 2)
    y = LINEAR(x + 1)
    handle.remove()
    return y.sin()


def for_a_block(x):
    with LINEAR.register_forward_pre_hook(lambda m, args: SEEN.append(args[0].shape)):
        y = LINEAR(x + 1)
    return y.sin(), len(LINEAR._forward_pre_hooks)


def of_a_new_module(x):
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        nn.init.ones_(layer.weight)
        nn.init.zeros_(layer.bias)
    layer.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    return layer(x), len(layer._forward_pre_hooks)


def pruned(x):
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(16.0).view(4, 4))
        nn.init.zeros_(layer.bias)
    prune.l1_unstructured(layer, "weight", amount=3)
    return layer(x), layer.weight_mask


@pytest.mark.parametrize("fn", [for_one_call, for_a_block, of_a_new_module, pruned])
def test_registered_in_each_call(fn):
    """A hook gets a new number each time; no graph depends on that."""
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter)
    SEEN.clear()
    for k in range(6):
        assert_same(fn(X + k), compiled(X + k))
    assert len(SEEN) == (12 if fn is for_a_block else 0)
    assert not LINEAR._forward_hooks and not LINEAR._forward_pre_hooks
    assert len(counter.graphs) <= 3


# -- hooks of all modules, with numbers of their own in each call ----------------------------------


def _forward_with_keywords(hook):
    return torch_module.register_module_forward_hook(hook, with_kwargs=True)


REGISTERED_INSIDE = {
    "forward": (GLOBAL["forward"][0], lambda m, a, out: out + 1),
    "keywords": (_forward_with_keywords, lambda m, a, kw, out: out + kw.get("scale", 3.0)),
    "pre": (GLOBAL["pre"][0], lambda m, a: (a[0] + 1,)),
    "pre, no tuple": (GLOBAL["pre"][0], lambda m, a: a[0] + 1),
    "always called": (
        lambda hook: torch_module.register_module_forward_hook(hook, always_call=True),
        lambda m, a, out: out + 1,
    ),
}


@pytest.mark.parametrize("kind", REGISTERED_INSIDE)
def test_global_hooks_registered_inside_do_not_recompile(kind):
    register, hook = REGISTERED_INSIDE[kind]
    module = Keywords()
    module.register_forward_hook(lambda m, a, out: out * 2)
    module.register_forward_pre_hook(lambda m, a: (a[0] * 5,))

    def fn(x):
        handle = register(hook)
        y = module(x, scale=2.0)
        handle.remove()
        return y + module(x)

    check(fn, X, graphs=None if kind == "always called" else 2, calls=5)


def test_global_hook_that_begins_to_take_keywords():
    model = _model()
    counter = CountingBackend()

    def fn(x):
        return model(x) * 2

    compiled = minidynamo.compile(fn, backend=counter)

    def plain(*args):
        return args[-1] + len(args)

    for register in (GLOBAL["forward"][0], _forward_with_keywords, GLOBAL["forward"][0]):
        handle = register(plain)
        try:
            _same_outcome(fn, compiled)
        finally:
            handle.remove()
    assert len(counter.graphs) == 2
