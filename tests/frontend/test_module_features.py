"""What modules can be asked and told: containers, registration, parametrizations, questions inside
of forward, overridden special methods, changes between calls.
"""

from __future__ import annotations

import copy
import functools
import typing
from collections import OrderedDict

import pytest
import torch
import torch.nn.utils.parametrizations as parametrizations
import torch.nn.utils.parametrize as parametrize
from testing import CountingBackend, assert_same, check, check_recompiles
from torch import nn
from torch.func import functional_call

import minidynamo
from minidynamo.utils import counters

X = torch.arange(12.0).reshape(3, 4) / 10


def _linear(inputs=4, outputs=4):
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs)


class With(nn.Module):
    """A module whose forward is a function of itself and its input; parts become attributes."""

    def __init__(self, forward, **parts):
        super().__init__()
        torch.manual_seed(0)
        for name, part in parts.items():
            setattr(self, name, part() if isinstance(part, type) else part)
        self.__dict__["body"] = forward

    def forward(self, x):
        return self.body(self, x)


def compare(module, *, graphs=1, calls=2, change=None, fullgraph=True):
    """Eager and compiled copies of a module, with `change(module, i)` before call i."""
    counter = CountingBackend()
    eager, other = copy.deepcopy(module), copy.deepcopy(module)
    compiled = minidynamo.compile(other, backend=counter, fullgraph=fullgraph)
    for i in range(calls):
        if change is not None:
            change(eager, i)
            change(other, i)
        outcomes = []
        for function in (eager, compiled):
            torch.manual_seed(i)
            outcomes.append(_plain(function(X)))
        assert_same(*outcomes)
    assert_same(dict(eager.state_dict()), dict(other.state_dict()))
    if graphs is not None:
        assert len(counter.graphs) == graphs
    return counter


def _plain(value):
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _list(n=3):
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(4, 4) for _ in range(n))


def _dict():
    torch.manual_seed(0)
    return nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.ReLU(), "c": nn.Linear(4, 4)})


def _run(modules, x):
    for module in modules:
        x = module(x)
    return x


# -- containers ------------------------------------------------------------------------------------

LISTS = {
    "iteration": lambda m, x: _run(m.parts, x),
    "index": lambda m, x: m.parts[1](m.parts[-1](x)),
    "slice": lambda m, x: _run(m.parts[1:], x),
    "slice of a slice": lambda m, x: _run(m.parts[:2][1:], x),
    "step": lambda m, x: _run(m.parts[::2], x),
    "reversed": lambda m, x: _run(reversed(m.parts), x),
    "len": lambda m, x: m.parts[0](x) * len(m.parts),
    "zip": lambda m, x: sum(p(x) * i for p, i in zip(m.parts, range(3))),  # noqa: B905
    "enumerate": lambda m, x: sum(p(x) * i for i, p in enumerate(m.parts)),
    "comprehension": lambda m, x: torch.stack([p(x) for p in m.parts]),
    "contains": lambda m, x: m.parts[0](x) if m.parts[0] in list(m.parts) else x,
    "truth": lambda m, x: m.parts[0](x) if m.parts else x,
    "concatenation": lambda m, x: _run(m.parts + m.parts, x),
    "to list": lambda m, x: _run(list(m.parts)[::-1], x),
    "star": lambda m, x: nn.Sequential(*m.parts)(x),
    "isinstance": lambda m, x: _run([p for p in m.parts if isinstance(p, nn.Linear)], x),
    "max of an attribute": lambda m, x: x * max(p.out_features for p in m.parts),
    "named_children": lambda m, x: sum(p(x) * int(n) for n, p in m.parts.named_children()),
}


@pytest.mark.parametrize("body", LISTS.values(), ids=LISTS)
def test_module_list(body):
    compare(With(body, parts=_list()))


DICTS = {
    "items": lambda m, x: _run([p for _, p in m.parts.items()], x),
    "values": lambda m, x: _run(m.parts.values(), x),
    "keys": lambda m, x: _run([m.parts[k] for k in m.parts.keys()], x),
    "iteration": lambda m, x: _run([m.parts[k] for k in m.parts], x),
    "item": lambda m, x: m.parts["c"](m.parts["a"](x)),
    "attribute": lambda m, x: m.parts.a(x),
    "contains": lambda m, x: m.parts["a"](x) if "a" in m.parts and "z" not in m.parts else x,
    "len": lambda m, x: x * len(m.parts),
    "named_modules": lambda m, x: x * len([n for n, _ in m.parts.named_modules()]),
}


@pytest.mark.parametrize("body", DICTS.values(), ids=DICTS)
def test_module_dict(body):
    compare(With(body, parts=_dict()))


SEQUENTIALS = {
    "call": lambda m, x: m.parts(x),
    "slice": lambda m, x: m.parts[:2](x),
    "index": lambda m, x: m.parts[0](x),
    "name": lambda m, x: m.parts.first(x),
    "len": lambda m, x: m.parts(x) * len(m.parts),
    "iteration": lambda m, x: _run(m.parts, x),
}


@pytest.mark.parametrize("body", SEQUENTIALS.values(), ids=SEQUENTIALS)
def test_sequential(body):
    parts = OrderedDict(first=_linear(), second=nn.Tanh(), third=_linear())
    compare(With(body, parts=nn.Sequential(parts)))


PARAMETERS = {
    "list iteration": lambda m, x: sum((p * x).sum() for p in m.numbers),
    "list index": lambda m, x: x * m.numbers[1] + m.numbers[-1],
    "list len": lambda m, x: x * len(m.numbers),
    "list slice": lambda m, x: x * sum(m.numbers[1:]),
    "dict item": lambda m, x: x * m.named["scale"],
    "dict attribute": lambda m, x: x * m.named.scale,
    "dict items": lambda m, x: sum(x * p for _, p in m.named.items()),
    "dict contains": lambda m, x: x * m.named["shift"] if "shift" in m.named else x,
    "dict keys": lambda m, x: x * len(list(m.named.keys())),
}


@pytest.mark.parametrize("body", PARAMETERS.values(), ids=PARAMETERS)
def test_parameter_containers(body):
    numbers = nn.ParameterList([nn.Parameter(torch.full((4,), float(i))) for i in range(3)])
    named = nn.ParameterDict(
        {"scale": nn.Parameter(torch.full((4,), 2.0)), "shift": nn.Parameter(torch.ones(4))}
    )
    compare(With(body, numbers=numbers, named=named))


def test_changed_containers_are_seen():
    def change(module, i):
        if i == 1:
            module.parts.append(nn.Linear(4, 4, bias=False))
        elif i == 2:
            module.parts[0] = nn.Identity()
        elif i == 3:
            del module.parts[1]

    def seeded(module, i):
        torch.manual_seed(i)
        change(module, i)

    compare(With(LISTS["iteration"], parts=_list()), graphs=4, calls=5, change=seeded)


class Stack(nn.ModuleList):
    def forward(self, x):
        for layer in self:
            x = layer(x) + x
        return x


class Doubled(nn.ModuleDict):
    def __getitem__(self, key):
        return super().__getitem__(key.lower())

    def forward(self, x):
        return self["A"](x)


def test_subclasses_of_containers():
    compare(Stack(_list()))
    compare(Doubled({"a": _linear()}))


def test_list_of_modules_outside_of_the_tree():
    parts = [_linear(), nn.ReLU()]
    compare(With(lambda m, x: _run(parts, x)))
    compare(With(lambda m, x: _run(m.loose["all"], x), loose={"all": parts}))


# -- questions inside of forward -------------------------------------------------------------------

QUESTIONS = {
    "parameters": lambda m, x: x * sum(p.sum() for p in m.parameters()),
    "named_parameters": lambda m, x: (
        x * sum(p.sum() for n, p in m.named_parameters() if "weight" in n)
    ),
    "buffers": lambda m, x: x + sum(b.sum() for b in m.buffers()),
    "named_buffers": lambda m, x: x + dict(m.named_buffers())["offset"],
    "children": lambda m, x: _run([c for c in m.children() if isinstance(c, nn.Linear)], x),
    "modules": lambda m, x: x * len(list(m.modules())),
    "named_modules": lambda m, x: dict(m.named_modules())["inner"](x),
    "get_submodule": lambda m, x: m.get_submodule("inner")(x),
    "get_parameter": lambda m, x: x @ m.get_parameter("inner.weight"),
    "get_buffer": lambda m, x: x + m.get_buffer("offset"),
    "state_dict": lambda m, x: x @ m.state_dict()["inner.weight"],
    "hasattr": lambda m, x: (
        m.inner(x) if hasattr(m, "inner") and not hasattr(m, "outer") else x
    ),
    "getattr": lambda m, x: getattr(m, "inner")(x) + getattr(m, "nothing", 1.0),  # noqa: B009
    "training": lambda m, x: x + 1 if m.training else x - 1,
    "dict": lambda m, x: m.__dict__["_modules"]["inner"](x),
    "_parameters": lambda m, x: x @ m.inner._parameters["weight"],
    "_modules": lambda m, x: _run(m._modules.values(), x),
    "next parameter": lambda m, x: x.to(next(m.parameters()).dtype),
    "device and dtype": lambda m, x: (
        torch.zeros(4, device=m.inner.weight.device, dtype=m.inner.weight.dtype) + x
    ),
    "class name": lambda m, x: m.inner(x) if type(m.inner).__name__ == "Linear" else x,
    "extra_repr": lambda m, x: x * len(m.inner.extra_repr()),
    "numel": lambda m, x: x * sum(p.numel() for p in m.parameters() if p.requires_grad),
}


@pytest.mark.parametrize("body", QUESTIONS.values(), ids=QUESTIONS)
def test_questions(body):
    module = With(body, inner=_linear())
    module.register_buffer("offset", torch.ones(4))
    compare(module)


# -- buffers, ties, state --------------------------------------------------------------------------


def test_non_persistent_buffer():
    module = With(lambda m, x: x + m.offset)
    module.register_buffer("offset", torch.ones(4), persistent=False)
    compare(module)
    assert "offset" not in module.state_dict()


def _count(module, x):
    module.steps += 1
    module.total = module.total + x.sum()
    return x * module.steps


def test_counters_and_running_sums():
    module = With(_count, steps=0)
    module.register_buffer("total", torch.zeros(()))
    compare(module, calls=3, graphs=None)


def test_buffer_updated_in_place():
    def body(m, x):
        m.total.add_(x.sum())
        m.count += 1
        return x * m.total

    module = With(body)
    module.register_buffer("total", torch.zeros(()))
    module.register_buffer("count", torch.zeros((), dtype=torch.long))
    compare(module, calls=3)


def test_cache_kept_as_attribute():
    def body(m, x):
        m.cache = x if m.cache is None else torch.cat([m.cache, x])
        return m.cache.sum() + x

    compare(With(body, cache=None), calls=3, graphs=None)


def test_cache_kept_in_a_list():
    def body(m, x):
        m.cache.append(x * 2)
        return sum(m.cache)

    compare(With(body, cache=[]), calls=3, graphs=None)


def test_shared_modules_and_tied_parameters():
    shared = _linear()
    module = With(lambda m, x: m.b(m.a(x)) @ m.b.weight, a=shared, b=shared)
    compare(module)
    tied = With(lambda m, x: m.b(m.a(x)), a=_linear(), b=_linear())
    tied.b.weight = tied.a.weight
    compare(tied)


def test_untied_parameters_are_seen():
    def change(module, i):
        if i == 2:
            module.b.weight = nn.Parameter(module.a.weight.detach() * 2)

    tied = With(lambda m, x: m.b(m.a(x)), a=_linear(), b=_linear())
    tied.b.weight = tied.a.weight
    compare(tied, calls=4, graphs=2, change=change)


# -- changes between calls -------------------------------------------------------------------------

CHANGES = {
    "train and eval": (lambda m, i: m.train(i % 2 == 0), 2),
    "frozen": (lambda m, i: m.requires_grad_(i % 2 == 0), 2),
    "double": (lambda m, i: m.double().float() if i == 1 else None, 1),
    "attribute": (lambda m, i: setattr(m, "scale", float(i // 2)), 2),
    "new weights": (
        lambda m, i: m.inner.load_state_dict(
            {k: v + i for k, v in m.inner.state_dict().items()}
        ),
        1,
    ),
    "data": (lambda m, i: m.inner.weight.data.mul_(i), 1),
    "other class": (
        lambda m, i: setattr(m, "inner", nn.Identity()) if i == 2 else None,
        2,
    ),
    "no bias": (lambda m, i: setattr(m.inner, "bias", None) if i == 2 else None, 2),
    "forward of an instance": (
        lambda m, i: setattr(m.inner, "forward", lambda x: x * 5) if i == 2 else None,
        2,
    ),
    "deleted attribute": (lambda m, i: m.__dict__.pop("extra", None), 1),
    "unrelated attribute": (lambda m, i: setattr(m, "unrelated", i), 1),
}


@pytest.mark.parametrize(("change", "graphs"), CHANGES.values(), ids=CHANGES)
def test_changes_between_calls(change, graphs):
    def body(m, x):
        return nn.functional.dropout(m.inner(x), 0.5, m.training) * (m.scale + 1)

    module = With(body, inner=_linear(), scale=0.0, extra=3)
    compare(module, calls=4, graphs=graphs, change=change)


def test_dtype_of_the_module_changes():
    counter = CountingBackend()
    eager, other = _linear(), _linear()
    compiled = minidynamo.compile(other, backend=counter)
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float32):
        eager.to(dtype)
        other.to(dtype)
        x = X.to(dtype)
        assert_same(eager(x).detach(), compiled(x).detach())
    assert len(counter.graphs) == 3


def test_class_attribute_changes():
    class Scaled(nn.Module):
        scale = 2.0

        def forward(self, x):
            return x * self.scale

    counter = CountingBackend()
    module = Scaled()
    compiled = minidynamo.compile(module, backend=counter)
    for scale in (2.0, 3.0, 3.0):
        Scaled.scale = scale
        assert_same(compiled(X), X * scale)
    assert len(counter.graphs) == 2


def test_forward_of_the_class_is_replaced():
    class Changing(nn.Module):
        def forward(self, x):
            return x + 1

    compiled = minidynamo.compile(Changing(), backend=CountingBackend())
    assert_same(compiled(X), X + 1)
    Changing.forward = lambda self, x: x + 2
    assert_same(compiled(X), X + 2)


# -- parametrizations and norms --------------------------------------------------------------------


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


def _parametrized():
    module = _linear()
    parametrize.register_parametrization(module, "weight", Symmetric())
    return module


# The old norms are hooks; those of the outermost module would run around its frame.
NORMED = {
    "parametrization": _parametrized,
    "weight_norm": lambda: parametrizations.weight_norm(_linear()),
    "weight_norm of a convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), parametrizations.weight_norm(nn.Conv1d(1, 2, 3))
    ),
    "old weight_norm": lambda: nn.Sequential(nn.utils.weight_norm(_linear())),
    "spectral_norm": lambda: parametrizations.spectral_norm(_linear()),
    "old spectral_norm": lambda: nn.Sequential(nn.utils.spectral_norm(_linear())),
    "orthogonal": lambda: parametrizations.orthogonal(_linear()),
}


@pytest.mark.parametrize("make", NORMED.values(), ids=NORMED)
@pytest.mark.parametrize("training", [True, False])
def test_parametrized_modules(make, training):
    torch.manual_seed(0)
    with torch.no_grad():
        counter = CountingBackend()
        torch.manual_seed(0)
        eager = make().train(training)
        torch.manual_seed(0)
        compiled = minidynamo.compile(make().train(training), backend=counter)
        for _ in range(2):
            assert_same(eager(X), compiled(X))
    assert len(counter.graphs) == 1


def test_cached_parametrization():
    module = _parametrized()

    def run(x):
        with parametrize.cached():
            return module(x) + module(x)

    compiled = minidynamo.compile(run, backend=CountingBackend())
    assert_same(run(X).detach(), compiled(X).detach())


# -- special methods -------------------------------------------------------------------------------


class OwnCall(nn.Module):
    def __call__(self, x):
        return x * 2 + super().__call__(x)

    def forward(self, x):
        return x + 1


class OwnGetattr(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _linear()

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x):
        return self.inner(x) + self.weight.sum() + self.out_features


class OwnSetattr(nn.Module):
    def __setattr__(self, name, value):
        super().__setattr__(name, value * 2 if isinstance(value, float) else value)

    def forward(self, x):
        self.scale = 1.5
        return x * self.scale


class OwnGetattribute(nn.Module):
    def __getattribute__(self, name):
        if name == "magic":
            return 7
        return super().__getattribute__(name)

    def forward(self, x):
        return x * self.magic


class WithProperty(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _linear()

    @property
    def weight(self):
        return self.inner.weight * 2

    @property
    def missing(self):
        raise AttributeError("missing")

    def forward(self, x):
        return x @ self.weight + (1 if hasattr(self, "missing") else 2)


class CallsClass(nn.Linear):
    def forward(self, x):
        return nn.Linear.forward(self, x) + super().forward(x)


class Recursive(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.inner = Recursive(depth - 1) if depth else nn.Identity()

    def forward(self, x):
        return self.inner(x) + 1


SPECIAL = {
    "__call__": OwnCall,
    "__getattr__": OwnGetattr,
    "__setattr__": OwnSetattr,
    "__getattribute__": OwnGetattribute,
    "property": WithProperty,
    "super": lambda: CallsClass(4, 4),
    "recursive": lambda: Recursive(5),
}


@pytest.mark.parametrize("make", SPECIAL.values(), ids=SPECIAL)
def test_special_methods(make):
    torch.manual_seed(0)
    # A `__call__` of the outermost module runs around its frame.
    compare(With(lambda m, x: m.part(x), part=make()))
    compare(make(), fullgraph=False)


def test_monkeypatched_forward():
    module = _linear()
    original = module.forward
    module.forward = lambda x: original(x) * 2
    expected = module(X).detach()
    counter = CountingBackend()
    compiled = minidynamo.compile(module, backend=counter)
    assert_same(compiled(X).detach(), expected)
    assert len(counter.graphs) == 1


# -- modules made inside, functional calls, lazy modules -------------------------------------------


def test_modules_without_parameters_made_inside():
    compare(With(lambda m, x: nn.Sequential(nn.ReLU(), nn.Tanh())(x) + nn.Flatten()(x)))
    compare(With(lambda m, x: nn.CrossEntropyLoss()(x, torch.tensor([0, 1, 2]))))


def test_modules_with_parameters_made_inside():
    compare(With(lambda m, x: nn.Linear(4, 2)(x)), fullgraph=False, graphs=None)


def test_functional_call():
    module = _linear()
    weights = {"weight": torch.ones(4, 4), "bias": torch.zeros(4)}
    compare(
        With(lambda m, x: functional_call(module, weights, (x,))), fullgraph=False, graphs=None
    )


LAZY = {
    "LazyLinear": lambda: nn.LazyLinear(3),
    "LazyBatchNorm1d": nn.LazyBatchNorm1d,
    "Sequential": lambda: nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(2)),
}


@pytest.mark.parametrize("make", LAZY.values(), ids=LAZY)
def test_lazy_modules(make):
    results = []
    for compiles in (False, True):
        torch.manual_seed(0)
        module = make()
        counter = CountingBackend()
        call = minidynamo.compile(module, backend=counter, fullgraph=True)
        call = call if compiles else module
        results.append([call(X).detach() for _ in range(3)])
        assert not isinstance(module, nn.modules.lazy.LazyModuleMixin)
    assert_same(*results)
    assert len(counter.graphs) == 1  # the first call runs in eager


def test_lazy_module_inside():
    results = []
    for compiles in (False, True):
        torch.manual_seed(0)
        counter = CountingBackend()
        module = With(lambda m, x: m.part(x) + torch.rand(1), part=nn.LazyLinear(3))
        call = minidynamo.compile(module, backend=counter) if compiles else module
        results.append([call(X).detach() for _ in range(3)])
    assert_same(*results)
    assert len(counter.graphs) == 1


# -- torch.nn.utils --------------------------------------------------------------------------------


def test_vectors_of_parameters():
    inner = _linear()
    compare(With(lambda m, x: x * nn.utils.parameters_to_vector(inner.parameters()).sum()))


@pytest.mark.parametrize("function", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_])
def test_clipping(function):
    def make():
        module = _linear()
        (module(X).sum() * 100).backward()
        return module

    eager, other = make(), make()
    function(eager.parameters(), 0.5)
    compiled = minidynamo.compile(
        lambda: function(other.parameters(), 0.5), backend=CountingBackend()
    )
    compiled()
    for left, right in zip(eager.parameters(), other.parameters(), strict=True):
        assert_same(left.grad, right.grad)


# -- compiled parts --------------------------------------------------------------------------------


def test_compiled_submodules():
    eager = nn.Sequential(_linear(), nn.ReLU(), _linear())
    counter = CountingBackend()
    model = copy.deepcopy(eager)
    model[0] = minidynamo.compile(model[0], backend=counter)
    model[2] = minidynamo.compile(model[2], backend=counter)
    for _ in range(2):
        assert_same(eager(X).detach(), model(X).detach())
    assert len(counter.graphs) in (1, 2)
    outer = CountingBackend()
    assert_same(eager(X).detach(), minidynamo.compile(model, backend=outer)(X).detach())
    assert len(outer.graphs) == 1


def test_compiled_module_reached_twice():
    counter = CountingBackend()
    part = minidynamo.compile(_linear(), backend="eager")
    module = With(lambda m, x: m.a(m.b(x)) + m.a(x), a=part, b=part)
    compiled = minidynamo.compile(module, backend=counter)
    for _ in range(3):
        assert_same(module(X).detach(), compiled(X).detach())
    assert len(counter.graphs) == 1


def test_module_compile_in_place():
    model = _linear()
    expected = model(X).detach()
    model.compile(backend="eager")
    outer = minidynamo.compile(lambda x: model(x) + 1, backend=CountingBackend())
    assert_same(outer(X).detach(), expected + 1)


# -- what libraries of models do -------------------------------------------------------------------


def test_casts_that_change_nothing():
    def body(m, x):
        m.inner.to(x.dtype)
        return m.inner.float()(x)

    module = With(body, inner=nn.Sequential(_linear(), nn.BatchNorm1d(4)))
    compare(module)


def test_torchs_own_mark_of_constants():
    calls = []

    def probe():
        calls.append(1)
        return 3

    probe._dynamo_marked_constant = True
    cached = functools.lru_cache(probe)

    def run(x, seen):
        seen.append(1)
        return x * cached() * probe()

    compiled = minidynamo.compile(run, backend=CountingBackend(), fullgraph=True)
    assert_same(compiled(X, []), X * 9)
    assert calls


def test_cached_function_of_tensors_and_objects():
    class Recipe:
        scale = 2

    @functools.lru_cache
    def prepare(recipe, shape):
        return recipe.scale * shape[0]

    recipe = Recipe()
    counter = CountingBackend()
    compiled = minidynamo.compile(
        lambda x: x * prepare(recipe, tuple(x.shape)), backend=counter, fullgraph=True
    )
    for x in (X, X[:2], X):
        assert_same(compiled(x), x * prepare(recipe, tuple(x.shape)))


def test_sizes_given_to_cached_functions_stay_symbolic():
    @functools.lru_cache
    def prepare(shape, options):
        (rows, columns), (scale, _) = shape, options
        return rows * scale if columns > 2 else rows, columns

    def run(x):
        try:
            prepare(x.shape, [2, "a"])
        except TypeError as error:
            refused = str(error)
        return (
            x.new_ones(prepare(tuple(x.shape), (2, "a"))),
            prepare(x.shape, (3, x.ndim)),
            refused,
        )

    check_recompiles(run, [(torch.ones(n, 3),) for n in (2, 4, 6, 9)], graphs=2, fullgraph=True)
    # What the function asks of them is guarded.
    wide = [(torch.ones(5, n),) for n in (4, 3, 5, 2)]
    check_recompiles(run, wide, graphs=3, fullgraph=True)


def test_type_hints_are_constants():
    def run(x):
        origin, args = typing.get_origin(list[int]), typing.get_args(int | None)
        return x + len(args) if origin is list and args[0] is int else x

    compiled = minidynamo.compile(run, backend=CountingBackend(), fullgraph=True)
    assert_same(compiled(X), run(X))


@pytest.mark.parametrize("kind", [bool, int, float, complex])
def test_number_types_as_dtypes(kind):
    def run(x):
        return x.to(kind), torch.ones(3, dtype=kind)

    compiled = minidynamo.compile(run, backend=CountingBackend(), fullgraph=True)
    assert_same(compiled(X), run(X))


def test_associative_scan():
    scan = pytest.importorskip("torch._higher_order_ops.associative_scan").associative_scan

    def run(x):
        pair = (x, x + 1)
        return scan(
            lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), pair, 0, combine_mode="generic"
        )

    compiled = minidynamo.compile(run, backend=CountingBackend(), fullgraph=True)
    assert_same(compiled(X), run(X))


def test_deep_copies_of_configurations():
    class Config:
        def __init__(self):
            self.sizes = {"width": [4, 4], "name": "x"}
            self.a = self.b = None

    config = Config()

    def run(x):
        own = copy.deepcopy(config)
        own.sizes["width"].append(2)
        return x * sum(own.sizes["width"]) * len(config.sizes["width"])

    counter = CountingBackend()
    compiled = minidynamo.compile(run, backend=counter, fullgraph=True)
    for _ in range(2):
        assert_same(compiled(X), run(X))
    before = len(counter.graphs)
    config.sizes["width"].append(1)
    assert_same(compiled(X), run(X))
    assert len(counter.graphs) == before + 1


def test_deep_copies_of_new_modules_break_once():
    def run(x):
        layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0))
        copies = nn.ModuleList([copy.deepcopy(layer)])
        layer[0].weight.data.zero_()
        return copies[0](x), copies[0][0].bias is layer[0].bias

    torch.manual_seed(0)
    expected = run(X)
    before = counters["graph_break"].total()
    torch.manual_seed(0)
    assert_same(minidynamo.compile(run, backend="eager")(X), expected)
    assert counters["graph_break"].total() == before + 1


def test_parameters_change_their_type_inside():
    def run(comp):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 3)

        def f(x):
            first = model(x.to(model.weight.dtype))
            model.to(torch.float64)
            return first.sum(), model(x.double())

        first, second = comp(f)(torch.ones(2, 3))
        return first.item(), second.tolist(), model.weight.dtype

    assert run(lambda f: f) == run(lambda f: minidynamo.compile(f, backend="eager"))


def _convert(model):
    model.to(torch.float64)


@pytest.mark.parametrize("convert", [nn.Module.double, nn.Module.half, _convert])
def test_a_cast_inside_is_one_break(convert):
    def f(x):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model.load_state_dict(state)
        convert(model)
        return x + 1, [p.dtype for p in model.parameters()]

    def g(model, x):
        y = x.sin()
        convert(model)
        return y, model.weight.sum().to(y.dtype) + y

    state = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).state_dict()
    check(f, X, graphs=None)
    check(g, _linear(), X, graphs=2, breaks=1)


def test_a_cast_that_changes_nothing_is_no_operation():
    def f(model, x):
        return model.to(torch.float32).to("cpu").to(x)(x)

    check(f, _linear(), X, fullgraph=True, ops=2)


def test_tensors_are_no_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensor

    def f(x, p):
        y = x * 2
        kinds = (
            FakeTensor,
            torch.nn.Parameter,
            torch.Tensor,
            torch.nn.Buffer,
            torch.FloatTensor,
        )
        return [isinstance(t, kind) for t in (x, y, p) for kind in kinds]

    x, p = torch.ones(3), torch.nn.Parameter(torch.ones(3))
    assert minidynamo.compile(f, backend="eager")(x, p) == f(x, p)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("grad", [True, False])
def test_parameters_can_be_swapped_after_compiling(backend, grad):
    """Weak references that are left of compiling would forbid it."""
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    given = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    run = minidynamo.compile(model, backend=backend)
    with torch.set_grad_enabled(grad):
        y = run(x)
        if grad:
            y.sum().backward()
            model.zero_grad()
        del y
    old = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.load_state_dict(given)
        torch.testing.assert_close(run(x), torch.nn.functional.linear(x, *given.values()))
        model.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(old)
    torch.testing.assert_close(run(x.double()), model(x.double()))


def test_parameters_are_swapped_while_compiled():
    """`load_state_dict` compares their ids: nothing of that may hold a weak reference to them."""

    def fn(x):
        model, other = nn.Linear(3, 3), nn.Linear(3, 3)
        weight = model.weight
        model.load_state_dict(other.state_dict())
        return model(x) - other(x), weight is model.weight

    old = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        check(fn, torch.ones(2, 3), graphs=None)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(old)


def test_the_id_of_an_input_is_guarded():
    def fn(x, known):
        return x + (2 if known.get(id(x)) else 1)

    first, second = torch.ones(2), torch.ones(2)
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter)
    for x in (first, second, first):
        assert torch.equal(compiled(x, {id(first): True}), fn(x, {id(first): True}))
    assert len(counter.graphs) == 2
