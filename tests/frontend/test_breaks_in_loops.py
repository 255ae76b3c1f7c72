"""Loops with a graph break in them: the body is captured once, whatever it goes over."""

import collections
import itertools

import pytest
import torch
from testing import CountingBackend, assert_same, check

import minidynamo

x = torch.randn(4)


def opaque(value=None):
    return value


minidynamo.disallow_in_graph(opaque)


def over_range(a):
    for i in range(100):
        a = a + i
        opaque()
        a = a * 0.5
    return a


def over_enumerate(a):
    for i, v in enumerate([1.5 + k for k in range(30)]):
        a = a + v * i
        opaque()
        a = a * 0.5
    return a


def over_tensors(a):
    for v in [a + k for k in range(30)]:
        a = a + v
        opaque()
        a = a * 0.5
    return a


def over_zip(a):
    for v, k in zip([a * k for k in range(30)], range(30), strict=True):
        a = a + v * k
        opaque()
        a = a * 0.5
    return a


def over_items(a):
    for key, v in {str(k): a + k for k in range(30)}.items():
        a = a + v
        opaque(key)
        a = a * 0.5
    return a


def over_values(a):
    for v in {k: a + k for k in range(30)}.values():
        a = a + v
        opaque()
    return a


def over_generator(a):
    def numbers():
        for k in range(30):
            yield a * k

    for v in numbers():
        a = a + v
        opaque()
        a = a * 0.5
    return a


def over_generator_expression(a):
    for v in (a * k for k in range(30)):
        a = a + v
        opaque()
    return a


def over_deque(a):
    for v in collections.deque([a, a + 1] * 15):
        a = a + v
        opaque()
    return a


def over_set(a):
    for k in {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}:
        a = a + k
        opaque()
    return a


def over_chain(a):
    for v in itertools.chain([a] * 12, [a + 1] * 12):
        a = a + v
        opaque()
    return a


def over_map_and_filter(a):
    for v in map(lambda k: a * k, filter(lambda k: k % 2, range(30))):
        a = a + v
        opaque()
    return a


def over_reversed(a):
    for v in reversed([a * k for k in range(30)]):
        a = a + v
        opaque()
    return a


def over_text(a):
    for letter in "abcdefghijklmnop":
        a = a + 1
        opaque(letter)
        a = a * 0.5
    return a


def while_with_counter(a):
    n = 0
    while n < 100:
        a = a + n
        opaque()
        a = a * 0.5
        n += 1
    return a, n


def while_on_data(a):
    n = 0
    while a.abs().sum() < 50:
        a = a * 1.1 + 1
        n += 1
    return a, n


def while_true(a):
    n = 0
    while True:
        a = a + 1
        n += 1
        if opaque(n) >= 30:
            break
    return a, n


def nested_loops(a):
    for i in range(12):
        for j in range(12):
            a = a + j
            opaque()
            a = a * 0.5
        a = a - i
    return a


def with_else(a):
    for i in range(20):
        a = a + i
        if opaque(False):
            break
    else:
        a = a * 2
    return a


def with_continue(a):
    for i in range(30):
        if opaque(i % 3) == 0:
            continue
        a = a + 1
    return a


def first_iteration_only(a):
    for i in range(30):
        if i == 0:
            opaque()
        a = a * 0.5 + 1
    return a


def list_is_appended_to(a):
    out = []
    for i in range(30):
        a = a * 0.5
        out.append(opaque(a) + i)
    return out


def accumulates(a):
    total, count = 0, 0
    for i in range(30):
        total = total + (a * i).sum().item()
        count += 1
    return a * total, count


def list_comprehension(a):
    return [opaque(a + i) * 2 for i in range(30)]


def dict_comprehension(a):
    return {i: opaque(a + i) * 2 for i in range(30)}


def set_comprehension(a):
    return len({opaque(i) for i in range(30)}), a + 1


def comprehension_with_condition(a):
    return [v * 2 for v in [a + k for k in range(30)] if opaque(True)]


def nested_comprehension(a):
    return [[opaque(a + i) * j for j in range(5)] for i in range(5)]


def in_try(a):
    for i in range(30):
        try:
            a = a + i
            if opaque(i) % 4 == 0:
                raise ValueError(i)
        except ValueError:
            a = a * 0.5
    return a


def in_with(a):
    for i in range(30):
        with torch.no_grad():
            a = a + i
            opaque()
            a = a * 0.5
    return a


# How many graphs the body may need: a number that changes is a constant at first, then a symbol;
# the item of a loop around the break is a symbol as soon as the loop goes on.
LOOPS = [
    (over_range, 3),
    (over_enumerate, 3),
    (over_tensors, 4),
    (over_zip, 3),
    (over_items, 4),
    (over_values, 3),
    (over_generator, 4),
    (over_generator_expression, 4),
    (over_deque, 4),
    (over_set, 2),
    (over_chain, 5),
    (over_map_and_filter, 5),
    (over_reversed, 4),
    (over_text, 4),
    (while_with_counter, 6),
    (while_on_data, 6),
    (while_true, 4),
    (nested_loops, 6),
    (with_else, 3),
    (with_continue, 4),
    (first_iteration_only, 2),
    (list_is_appended_to, 8),
    (accumulates, 3),
    (list_comprehension, 3),
    (dict_comprehension, 3),
    (set_comprehension, 1),
    (comprehension_with_condition, 5),
    (nested_comprehension, 6),
    (in_try, 4),
    (in_with, 3),
]


@pytest.mark.parametrize(("fn", "most"), LOOPS, ids=lambda v: getattr(v, "__name__", ""))
def test_loop(fn, most, caplog):
    counter = check(fn, x, graphs=None)
    assert len(counter.graphs) <= most
    assert "recompile_limit" not in caplog.text


@pytest.mark.parametrize(("fn", "most"), LOOPS, ids=lambda v: getattr(v, "__name__", ""))
def test_loop_in_a_callee(fn, most, caplog):
    def outer(a):
        return fn(a.sin()), a.cos()

    counter = check(outer, x, graphs=None)
    assert len(counter.graphs) <= most + 2
    assert "recompile_limit" not in caplog.text


def test_module_list(caplog):
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(20)])

    def f(a):
        for layer in layers:
            a = layer(a)
            opaque()
            a = a.relu()
        return a

    check(f, x, graphs=3)
    assert "recompile_limit" not in caplog.text


def test_different_modules_after_a_break(caplog):
    """The rest of the loop is unrolled when its body does not serve all items."""
    kinds = [torch.nn.ReLU, torch.nn.Tanh, torch.nn.Sigmoid, torch.nn.GELU, torch.nn.SiLU]
    layers = torch.nn.ModuleList([kind() for kind in kinds * 4])

    def f(a):
        for i, layer in enumerate(layers):
            a = layer(a)
            if i == 0:
                opaque()
        return a

    check(f, x, graphs=None)
    assert "recompile_limit" not in caplog.text


def test_second_call_compiles_nothing():
    counter = CountingBackend()
    minidynamo.reset()
    compiled = minidynamo.compile(over_range, backend=counter)
    compiled(x)
    before = len(counter.graphs)
    assert_same(over_range(x), compiled(x))
    assert len(counter.graphs) == before


def test_frame_that_captures_nothing_is_left_alone():
    def f(values):
        for value in values:
            opaque(value)
        return len(values)

    minidynamo.reset()
    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter)
    started = []

    def note(event):
        if event.outcome == "start":
            started.append(event.code.co_name)

    with minidynamo.events.subscribe(note, minidynamo.events.FrameEvent):
        for length in range(1, 30):
            assert compiled(["x"] * length) == length
    assert not counter.graphs
    assert started.count("f") <= 12


def over_names(a, names, work):
    told = []
    for name in names:
        a = work(a, name)
        told.append(opaque(name))
        a = a + len(name)
        told.append(opaque(name.upper()))
        a = a * (2 if name.endswith("1") else 0.5)
        opaque()
        a = a - 1
    return a, told


def test_parts_that_change_with_each_name_are_left_alone():
    """Three parts and the versions of a limit, not a limit for each; what is called is compiled."""

    def work(a, name):
        return a.sin() if "3" in name else a.cos()

    names = [f"name{i}" for i in range(12)]
    minidynamo.reset()
    counter = CountingBackend()
    compiled = minidynamo.compile(over_names, backend=counter)
    skipped = []

    def note(event):
        if event.outcome == "skipped":
            skipped.append(event.reason)

    with minidynamo.events.subscribe(note, minidynamo.events.FrameEvent):
        assert_same(over_names(x, names, work), compiled(x, names, work))
    assert any("change each time" in reason for reason in skipped)
    assert len(counter.graphs) < 24
    before = len(counter.graphs)
    assert_same(over_names(x, names, work), compiled(x, names, work))
    assert len(counter.graphs) == before
    minidynamo.reset()
    assert_same(over_names(x, names[:2], work), compiled(x, names[:2], work))
    assert len(counter.graphs) > before


def test_parts_of_a_module_that_change_with_each_name_are_left_alone():
    class Named(torch.nn.Module):
        scale = 3.0

        def forward(self, a, names):
            for name in names:
                a = a + len(name) * self.scale
                opaque(name)
                a = a * (2 if name.endswith("1") else self.scale)
                opaque(name.upper())
            return a

    names = [f"name{i}" for i in range(14)]
    module = Named()
    counter = check(module, x, names, graphs=None)
    assert len(counter.graphs) < 14


def test_parts_that_change_count_for_each_module():
    class Named(torch.nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.scale = scale

        def forward(self, a, name):
            a = a + len(name)
            opaque(name)
            return a * float(self.scale) * (2 if name.endswith("1") else 0.5)

    modules = [Named(f"{k}") for k in range(8)]
    names = ["1", "2", "31"]
    minidynamo.reset()
    counter = CountingBackend()
    for module in modules:
        compiled = minidynamo.compile(module, backend=counter)
        for name in names:
            assert_same(module(x, name), compiled(x, name))
    before = len(counter.graphs)
    for module in modules:
        minidynamo.compile(module, backend=counter)(x, names[-1])
    assert len(counter.graphs) == before >= 3 * len(modules)


def test_parts_with_many_operations_are_compiled_for_each_name(caplog):
    def work(a, name):
        for _ in range(20):
            a = a.sin() + len(name)
        return a

    names = [f"name{i}" for i in range(7)]
    counter = check(lambda a: over_names(a, names, work), x, graphs=None)
    large = [graph for graph in counter.graphs if len(graph.graph.nodes) > 20]
    assert len(large) == 7
    assert "recompile_limit" not in caplog.text


def test_loop_that_assigns_its_variables_in_another_order():
    """The second round's continuations are those of the first."""

    def f(order, values):
        scale = values * 2
        kept = []
        while order.numel() > 1:
            first = order[0].item()
            bound = scale[first] + 1
            opaque()
            mask = values[order[1:]] * bound < 9
            kept.append(first)
            order = order[1:][mask]
        return kept, scale

    counter = CountingBackend()
    minidynamo.reset()
    compiled = minidynamo.compile(f, backend=counter, dynamic=True)
    order, values = torch.arange(9), torch.linspace(0.5, 1.5, 9)
    assert_same(f(order, values), compiled(order, values))
    assert len(counter.graphs) <= 6
    assert_same(f(order.flip(0), values), compiled(order.flip(0), values))


def test_order_of_locals_behind_a_break_in_a_loop():
    def f(a):
        b, c = 1, 2
        for _ in range(2):
            a = a + b
            opaque()
            b = c
        return list(locals()), a

    check(f, x, graphs=None)
