"""`nn.Parameter` and `nn.Buffer` made by captured code."""

from __future__ import annotations

import types

import pytest
import torch
from testing import CountingBackend, assert_same
from torch import nn

import minidynamo

BACKENDS = ["eager", "aot_eager", "inductor"]
WEIGHT = torch.full((3,), 2.0)
KEPT = nn.Parameter(torch.full((3,), 3.0))


class Scale(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.shift = nn.Parameter(torch.ones(size), requires_grad=False)
        self.steps = nn.Buffer(torch.zeros(size))
        self.reset()

    def reset(self):
        nn.init.constant_(self.weight, 3.0)

    def forward(self, x):
        return x * self.weight + self.shift + self.steps


def plain(x, box):
    p = nn.Parameter(x.detach() * 2)
    return (p * x).sum(), p


def frozen(x, box):
    p = nn.Parameter(torch.arange(3), requires_grad=False)
    return (p * x).sum(), p


def no_data(x, box):
    p = nn.Parameter()
    return x.sum() + p.sum(), p


def stored(x, box):
    box.p = nn.Parameter(torch.ones(3) * 2)
    box.p.tag = "mine"
    box.again = box.p
    return (box.p * x).sum() + box.again.sum(), box.p


def shared_memory(x, box):
    data = x.detach() + 1
    p = nn.Parameter(data)
    data.mul_(2)
    with torch.no_grad():
        p.add_(1)
    return (p * x).sum() + data.sum(), p, data


def changed(x, box):
    p = nn.Parameter(torch.zeros(3))
    with torch.no_grad():
        p.fill_(2).add_(x)
    p.data.mul_(3)
    return (p * p * x).sum(), p


def without_grad(x, box):
    with torch.no_grad():
        p = nn.Parameter(x * 3)
    return (p * x).sum(), p


def of_clone(x, box):
    p = nn.Parameter(x.detach().clone())
    q = nn.Parameter(p.detach().clone() + 1)
    return (p * q).sum(), p, q


def a_module(x, box):
    box.module = Scale(3)
    return box.module(x).sum(), box.module.weight, box.module.shift


def a_list(x, box):
    box.values = nn.ParameterList([nn.Parameter(torch.ones(3) * k) for k in range(3)])
    return sum((p * x).sum() for p in box.values), *box.values


def buffer(x, box):
    b = nn.Buffer(x.detach() * 2, persistent=False)
    b.add_(1)
    box.told = isinstance(b, nn.Buffer), isinstance(b, nn.Parameter), b.persistent
    return (b * x).sum(), b


def buffer_of_input(x, box):
    b = nn.Buffer(x.detach())
    return (b * x).sum(), b


def of_input(x, box):
    p = nn.Parameter(x)
    return (p * x).sum(), p, x.detach()


def of_parameter(x, box):
    p, q = nn.Parameter(KEPT), nn.Parameter(KEPT, requires_grad=False)
    return (p * x * q).sum(), p, q


def of_written_input(x, box):
    data = WEIGHT
    data.copy_(x.detach())
    p = nn.Parameter(data)
    data[0] += 1
    with torch.no_grad():
        p[1] += 5
    return (p * x * data).sum() + p[0], p, data


def of_data_left_behind(x, box):
    data = WEIGHT
    p = nn.Parameter(data)
    data.mul_(2)
    return (p * x).sum(), p


def of_parameter_in_vmap(x, box):
    def one(item, scale):
        box.p, q = nn.Parameter(KEPT), nn.Parameter(KEPT, requires_grad=False)
        box.told = box.p is KEPT, torch._C._functorch.is_batchedtensor(box.p)
        return (box.p * item * scale * q).sum()

    y = torch.vmap(torch.vmap(one, (0, None)), (None, 0))(x.expand(2, 3), torch.ones(4, 1))
    return y.sum(), box.p


def written_in_vmap(x, box):
    def one(item):
        box.p = nn.Parameter(WEIGHT, requires_grad=False)
        box.p.mul_(2)
        return item * box.p

    return torch.vmap(one)(x.expand(2, 3)).sum(), box.p


FUNCTIONS = (
    of_parameter_in_vmap, written_in_vmap, of_input, of_parameter,
    of_written_input, of_data_left_behind,
    plain, frozen, no_data, stored, shared_memory, without_grad, of_clone, a_module, a_list,
    changed, buffer, buffer_of_input,
)  # fmt: skip


def run(fn, grads):
    """What a call gives and leaves, and the gradients of two calls."""
    seen = []
    WEIGHT.requires_grad_(False).fill_(2)  # another test asks for its gradient
    KEPT.grad = None
    for k in range(2):
        x = torch.arange(3.0) + k
        x.requires_grad_(grads == "input")
        box = types.SimpleNamespace()
        names = vars(box)
        with torch.set_grad_enabled(grads != "off"):
            y, *made = fn(x, box)
        if y.requires_grad:
            y.backward()
        for p in made:
            seen.append((type(p), isinstance(p, nn.Parameter), isinstance(p, nn.Buffer)))
            seen.append((p.is_leaf, p.requires_grad, vars(p), p.stride(), p.grad))
        seen.append((y.detach(), x.grad, [p.detach().clone() for p in made]))
        seen.append({name: value for name, value in names.items() if name != "module"})
        if "again" in names:
            assert box.p is made[0] and box.again is made[0]
        if "module" in names:
            assert made[0] is box.module.weight and made[1] is box.module.shift
            assert [name for name, _ in box.module.named_parameters()] == ["weight", "shift"]
            assert list(box.module.state_dict()) == ["weight", "shift", "steps"]
            seen.append(box.module(x.detach()).detach())
        if "values" in names:
            assert all(a is b for a, b in zip(made, box.values, strict=True))
    return seen


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("grads", ["on", "off", "input"])
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_like_eager(fn, grads, backend):
    minidynamo.reset()
    breaks = []
    with minidynamo.events.subscribe(breaks.append, minidynamo.events.GraphBreakEvent):
        actual = run(minidynamo.compile(fn, backend=backend), grads)
    assert_same(run(fn, grads), actual)
    assert not breaks


def linear(x):
    layer = nn.Linear(3, 2)
    return layer(x), layer


@pytest.mark.parametrize("backend", BACKENDS)
def test_linear_is_one_graph(backend):
    minidynamo.reset()
    graphs = []
    with minidynamo.events.subscribe(graphs.append, minidynamo.events.GraphEvent):
        compiled = minidynamo.compile(linear, backend=backend, fullgraph=True)
        x = torch.randn(4, 3)
        (first, one), (second, two) = compiled(x), compiled(x)
    assert len(graphs) == 1
    assert one.weight is not two.weight and not torch.equal(one.weight, two.weight)
    for y, layer in ((first, one), (second, two)):
        torch.testing.assert_close(y, layer(x))
        y.sum().backward()
        torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(2, 3))
        torch.testing.assert_close(layer.bias.grad, torch.full((2,), 4.0))
        assert layer.weight.abs().max() <= 3**-0.5


def test_random_values_are_eagers():
    minidynamo.reset()
    x = torch.ones(4, 3)
    results = []
    for fn in (linear, minidynamo.compile(linear, backend="eager")):
        torch.manual_seed(5)
        y, layer = fn(x)
        results.append((y.detach(), layer.weight.detach(), torch.rand(2)))
    assert_same(*results)


def test_the_memory_is_the_inputs():
    """What is done to the parameter later is done to the tensor, of this call."""
    minidynamo.reset()
    counter = CountingBackend()

    def fn(x, layer):
        layer.weight = nn.Parameter(x)
        return layer(x)

    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for k in range(3):
        x, layer = torch.ones(3, 3) * k, nn.Linear(3, 3)
        assert_same(compiled(x, layer), layer(x))
        assert layer.weight.data_ptr() == x.data_ptr()
        with torch.no_grad():
            layer.weight.add_(1)
        assert_same(x, torch.full((3, 3), k + 1.0))
    assert len(counter.graphs) == 1
    with pytest.raises(RuntimeError, match="floating point"):
        minidynamo.compile(fn, backend="eager")(torch.ones(3, 3, dtype=torch.long), layer)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_and_nothing_else(backend):
    def fn(x, box):
        box.p = nn.Parameter(x)
        box.seen = box.p.grad
        minidynamo.graph_break()
        return nn.Parameter(KEPT, requires_grad=False)

    minidynamo.reset()
    compiled = minidynamo.compile(fn, backend=backend)
    for k in range(2):
        x, box = torch.ones(3) * k, types.SimpleNamespace()
        q = compiled(x, box)
        assert type(box.p) is type(q) is nn.Parameter and box.p.requires_grad
        assert box.p.data_ptr() == x.data_ptr() and q.data_ptr() == KEPT.data_ptr()
        assert box.seen is None and not q.requires_grad


def test_skip_init():
    def fn(x):
        layer = nn.utils.skip_init(nn.Linear, 3, 2)
        with torch.no_grad():
            nn.init.ones_(layer.weight)
            nn.init.zeros_(layer.bias)
        return layer(x), layer

    minidynamo.reset()
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter)
    for k in range(2):
        (y, layer), (expected, _) = compiled(torch.ones(4, 3) * k), fn(torch.ones(4, 3) * k)
        assert_same(expected, y)
        y.sum().backward()
        assert_same(layer.weight.grad, torch.full((2, 3), 4.0 * k))
    assert len(counter.graphs) == 1


def test_a_break_hands_the_parameter_on():
    def fn(x):
        p = nn.Parameter(x * 2)
        y = p + 1
        minidynamo.graph_break()
        return y * p, p

    minidynamo.reset()
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter)
    results = []
    for function in (fn, compiled):
        y, p = function(torch.ones(3))
        y.sum().backward()
        results.append((type(p), p.detach(), p.grad, y.detach()))
    assert_same(*results)
    assert len(counter.graphs) == 2


def test_another_shape_compiles_again():
    def fn(x):
        return nn.Parameter(torch.zeros_like(x)) + x

    minidynamo.reset()
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, dynamic=False)
    for size in (3, 4, 3, 4):
        assert_same(fn(torch.ones(size)), compiled(torch.ones(size)))
    assert len(counter.graphs) == 2


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: nn.Parameter(x[0]),
        lambda x: nn.Parameter(x.t()),
        lambda x: nn.Parameter((x * 2)[0]),
        lambda x: nn.Parameter((x * 2).t()),
        lambda x: [(y := x * 2), y[0], nn.Parameter(y)],
        lambda x: nn.Parameter(x * WEIGHT.requires_grad_()),
        lambda x: nn.Parameter(x.to(int)),
        lambda x: nn.Buffer(nn.Parameter(x * 2)),
        lambda x: [(p := nn.Parameter(x * 2)), p.requires_grad_(False)],
        lambda x: nn.Parameter(5),
        lambda x: torch.func.grad(lambda y: (y * nn.Parameter(WEIGHT)).sum())(x),
        lambda x: torch.vmap(torch.func.grad(lambda y: (y * nn.Parameter(WEIGHT)).sum()))(x),
        lambda x: torch.vmap(lambda y: (nn.Parameter(y), y * 2)[1])(x),
        lambda x: torch.vmap(lambda y: y * nn.Parameter(WEIGHT * 2))(x),
    ],
)
def test_memory_from_elsewhere_ends_the_graph(fn):
    """Eager makes these."""
    minidynamo.reset()
    breaks = []
    with minidynamo.events.subscribe(breaks.append, minidynamo.events.GraphBreakEvent):
        results = []
        for function in (fn, minidynamo.compile(fn, backend="eager")):
            try:
                results.append(function(torch.ones(3, 3)))
            except (RuntimeError, AttributeError) as error:
                results.append(str(error))
    assert_same(*results)
    assert breaks


class Marked(torch.Tensor):
    """Of a class of its own: only an attribute tells that it is a parameter."""


def test_what_parameters_and_buffers_are_known_by():
    def kinds(value):
        return isinstance(value, nn.Parameter), isinstance(value, (int, nn.Buffer))

    def made(x):
        parameter = nn.Parameter(x.as_subclass(Marked))
        buffer = nn.Buffer(x.detach())
        found = kinds(parameter), kinds(buffer)
        del buffer._is_buffer
        return found, kinds(buffer)

    x = torch.ones(2)
    marked = x.as_subclass(Marked)
    given = [x, nn.Buffer(x), nn.Parameter(x), x, marked, nn.Parameter(marked), marked]
    compiled = minidynamo.compile(kinds, backend="eager", fullgraph=True)
    assert [*map(compiled, given)] == [*map(kinds, given)]
    assert minidynamo.compile(made, backend="eager")(x) == made(x)


def test_modules_register_parameters_of_classes_of_their_own():
    def fn(module, x):
        module.own = nn.Parameter(x)
        return x + 1, [name for name, _ in module.named_parameters()]

    x = torch.ones(2).as_subclass(Marked)
    assert minidynamo.compile(fn, backend="eager")(nn.Linear(2, 2), x)[1] == [
        "weight",
        "bias",
        "own",
    ]


class WithHook(nn.Module):
    """A module that the hook's handle makes one with a table from outside."""

    def __init__(self):
        super().__init__()
        self.handle = self.register_forward_pre_hook(self.look)

    def look(self, *given):
        pass


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("breaks", [False, True])
def test_buffer_assigned_to_a_module_with_hooks(breaks, persistent):
    def f(x):
        module = WithHook()
        module.b = nn.Buffer(x + 1, persistent=persistent)
        module.plain = x * 2
        if breaks:
            minidynamo.graph_break()
        return (
            module.b * 2,
            list(module._buffers),
            list(module.state_dict()),
            list(vars(module)),
        )

    x = torch.randn(3)
    counter = CountingBackend()
    assert_same(minidynamo.compile(f, backend=counter)(x), f(x))
    assert len(counter.graphs) == 1 + breaks


def test_tensors_assigned_to_an_existing_module_that_are_marked_as_buffers_or_are_not():
    def f(module, tensor, x):
        module.last = tensor
        return x + module.last

    x = torch.randn(3)
    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter)
    for tensor in (torch.ones(3), nn.Buffer(torch.ones(3)), torch.zeros(3)):
        ours, plain = WithHook(), WithHook()
        assert_same(compiled(ours, tensor, x), f(plain, tensor, x))
        assert list(ours._buffers) == list(plain._buffers)
        assert list(vars(ours)) == list(vars(plain))
    assert len(counter.graphs) == 2
