"""Decorators, callbacks and options by torch._dynamo's names."""

from __future__ import annotations

import binascii
import operator

import pytest
import torch
import torch._dynamo
import torch.distributed.tensor  # registers pytrees, and else is imported by the first trace
from testing import CountingBackend
from torch import nn
from torch.utils import _pytree as pytree

import minidynamo
from minidynamo.exc import Unsupported, UserError
from minidynamo.testing import CompileCounter

X = torch.arange(4.0)


@pytest.fixture
def counter():
    minidynamo.reset()
    return CompileCounter()


def test_forbid_in_graph(counter):
    def forbidden(x):
        return x + 1

    minidynamo.forbid_in_graph(forbidden)
    compiled = minidynamo.compile(lambda x: forbidden(x), backend=counter)
    with pytest.raises(UserError, match="forbidden, passed to forbid_in_graph"):
        compiled(X)
    assert torch.equal(forbidden(X), X + 1)


class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second


pytree.register_pytree_node(
    Pair, lambda pair: ([pair.first, pair.second], None), lambda items, _: Pair(*items)
)


def test_nonstrict_trace_of_nests(counter):
    @minidynamo.nonstrict_trace
    def opaque(table, pair, *, scale):
        minidynamo.graph_break()
        return {"sum": table["x"] + pair.first * scale, "pair": Pair(pair.second, 3)}

    def fn(x, pair):
        made = opaque({"x": x}, pair, scale=2)
        other = opaque({"x": made["sum"]}, Pair(x, pair.second), scale=3)
        return made["sum"] + other["sum"], made["pair"].first, other["pair"].second

    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for pair in (Pair(X + 2, X * 2), Pair(X + 1, X / 2)):
        for want, got in zip(fn(X, pair), compiled(X, pair), strict=True):
            assert torch.equal(torch.as_tensor(want), torch.as_tensor(got))
    assert counter.frame_count == 1


class Scaled(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("calls", torch.zeros(()))
        self.scale = scale

    @minidynamo.nonstrict_trace
    def opaque(self, x):
        minidynamo.graph_break()
        self.calls.add_(1)
        return {"y": x * self.weight * self.scale + X}

    def forward(self, x):
        return self.opaque(x)["y"] + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_nonstrict_trace_of_a_module(backend):
    graphs = CountingBackend(backend=backend)
    compiled = minidynamo.compile(lambda module, x: module(x), backend=graphs, fullgraph=True)
    modules = Scaled(2), Scaled(3)
    for module in (*modules, modules[0]):
        got, want = compiled(module, X), module(X)
        grads = [torch.autograd.grad(y.sum(), module.weight)[0] for y in (got, want)]
        assert torch.equal(got, want) and torch.equal(*grads)
    assert [module.calls.item() for module in modules] == [4, 2]
    assert len(graphs.graphs) == 2  # one for each module
    modules[0].weight = torch.nn.Parameter(torch.zeros(4))
    assert torch.equal(compiled(modules[0], X), modules[0](X))


@pytest.mark.skipif(
    not hasattr(torch._dynamo.decorators, "_invoke_leaf_function_python"),
    reason="in torch 2.11 leaf functions are opaque to torch's own front end alone",
)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_functions_of_torchs_decorators(backend):
    seen, layer = [], torch.nn.Linear(4, 4)

    @torch._dynamo.decorators.leaf_function
    def leaf(given):
        seen.append(given["x"].sum().item())
        return {"y": given["layer"](given["x"]), "n": 2}

    @leaf.register_fake
    def _(given):
        return {"y": given["layer"](given["x"]), "n": 2}

    @torch._dynamo.nonstrict_trace
    def nonstrict(x):
        return {"x": x, "layer": 3}

    def fn(x):
        made = leaf(nonstrict(x * 2) | {"layer": layer})
        return made["y"] * made["n"]

    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for x in (X, X + 1):
        got, want = compiled(x), fn(x)
        grads = [torch.autograd.grad(y.sum(), layer.weight)[0] for y in (got, want)]
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(*grads)
    assert seen[0] == seen[1] != seen[2] == seen[3]


@pytest.mark.skipif(
    not hasattr(torch._dynamo.decorators, "_invoke_leaf_function_python"),
    reason="in torch 2.11 leaf functions are opaque to torch's own front end alone",
)
def test_sizes_that_leaf_functions_make(counter):
    @torch._dynamo.decorators.leaf_function
    def leaf(x):
        return x * 2, (x > 1).nonzero()

    @leaf.register_fake
    def _(x):
        return x * 2, (x > 1).nonzero()

    def fn(x):
        doubled, places = leaf(x)
        return doubled + places.shape[0], places * 2

    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for x in (X, X + 1, X - 9):
        torch.testing.assert_close(compiled(x), fn(x))
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    "decorate", [minidynamo.nonstrict_trace, torch._dynamo.nonstrict_trace]
)
def test_nonstrict_trace_in_captured_code(counter, decorate):
    def add(x):
        minidynamo.graph_break()
        return x + 1

    def triple(x):
        minidynamo.graph_break()
        return x * 3

    def fn(x, inner):
        return decorate(inner)(x) + decorate(traceable_fn=inner)(x)

    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for inner in (add, triple, add):
        assert torch.equal(compiled(X, inner), fn(X, inner))
    assert counter.frame_count == 2

    def own(x):
        return decorate(lambda y: y + 1)(x)

    with pytest.raises(Unsupported, match="a function that the captured code makes"):
        minidynamo.compile(own, fullgraph=True)(X)


def test_torchs_skip_frame(counter):
    def fn(x):
        x = x + 1
        torch._dynamo.skip_frame()
        return x + 1, torch.compiler.is_compiling()

    y, is_compiling = minidynamo.compile(fn, backend=counter)(X)
    assert torch.equal(y, X + 2) and not is_compiling and counter.frame_count == 0


def test_nonstrict_trace(counter):
    @minidynamo.nonstrict_trace
    def opaque(x, y, scale=1):
        minidynamo.graph_break()
        return x @ y * scale, x - y

    def fn(x):
        a, b = opaque(x, x * 2, scale=3)
        return a + b

    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    assert torch.equal(fn(X), compiled(X))
    assert (counter.frame_count, counter.op_count) == (1, 5)
    aot = minidynamo.compile(fn, backend="aot_eager", fullgraph=True)
    assert torch.equal(fn(X), aot(X))


def test_substitute_in_graph(counter):
    class Untraced:
        def __call__(self, x):
            return x * 2

    function = operator.methodcaller("mul", 2)
    with pytest.raises(TypeError, match="takes a callable"):
        minidynamo.substitute_in_graph(1)
    with pytest.raises(TypeError, match="not the class list"):
        minidynamo.substitute_in_graph(list)
    with pytest.raises(TypeError, match="decorates a Python function"):
        minidynamo.substitute_in_graph(len)(1)

    def library(x, n=1):
        minidynamo.graph_break()
        return x * n

    with pytest.raises(TypeError, match=r"Signature mismatch .*<lambda>.*\(x, n=1\) != \(x\)"):
        minidynamo.substitute_in_graph(library)(lambda x: x)

    @minidynamo.substitute_in_graph(library)
    def traced(x, n=1):
        return x * (n + 1)

    compiled = minidynamo.compile(lambda x: library(x, 2), backend=counter, fullgraph=True)
    assert torch.equal(compiled(X), X * 3)
    assert torch.equal(library(X, 2), X * 2)
    assert function(X).sum() == 2 * X.sum() and Untraced()(X) is not X


@pytest.mark.parametrize(
    "written",
    [
        lambda data, crc: data[0] * 10 + crc,
        lambda data, crc, /: data[0] * 10 + crc,
        lambda *given: given[0][0] * 10 + given[1],
    ],
    ids=["by name", "by place", "any"],
)
def test_substitutes_of_functions_in_c(counter, written):
    # Its parameters have no names outside; those of the substitute may.
    minidynamo.substitute_in_graph(binascii.crc_hqx)(written)
    compiled = minidynamo.compile(
        lambda x, n: x + binascii.crc_hqx((3, 4), n), backend=counter, fullgraph=True
    )
    assert torch.equal(compiled(X, 2), X + 32)


def test_skip_frame(counter):
    def fn(x):
        x = x + 1
        minidynamo.skip_frame("not worth it")
        return x * 2

    compiled = minidynamo.compile(fn, backend=counter)
    for _ in range(2):
        assert torch.equal(compiled(X), fn(X))
    assert counter.frame_count == 0


def test_step_unsupported(counter):
    def fn(x):
        x = x + 1
        minidynamo.step_unsupported()
        return x * 2

    compiled = minidynamo.compile(fn, backend=counter)
    for _ in range(2):
        assert torch.equal(compiled(X), fn(X))
    assert (counter.frame_count, counter.op_count) == (1, 1)


def test_step_unsupported_leaves_one_function_to_eager(counter):
    def helper(x):
        return x * 3

    class Pair:
        def __init__(self, x):
            self.first = x - 1
            minidynamo.step_unsupported("the rest is small")
            self.second = helper(self.first) + 2

    def fails(x):
        x = x + 7
        minidynamo.step_unsupported()
        raise KeyError("seven")

    def fn(x):
        with torch.no_grad():
            pair = Pair(x + 1)
            try:
                fails(x)
            except KeyError as error:
                said = str(error)
            is_on = torch.is_grad_enabled()
        return pair.first, pair.second * 2, said, is_on, torch.is_grad_enabled()

    compiled = minidynamo.compile(fn, backend=counter)
    for _ in range(2):
        got, expected = compiled(X), fn(X)
        assert all(map(torch.equal, got[:2], expected[:2]))
        assert got[2:] == expected[2:]
    # Up to the rest of __init__, helper(), up to the end of fails(), and from there on.
    assert counter.frame_count == 4
    counter.clear()
    with pytest.raises(Unsupported, match="the rest is small"):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(X)


def test_step_unsupported_in_a_loop(counter):
    def fn(x):
        seen = []
        for i in range(4):
            x = x + i
            if i == 1:
                minidynamo.step_unsupported()
            seen.append(i)
        return x * 2, seen

    got, expected = minidynamo.compile(fn, backend=counter)(X), fn(X)
    assert torch.equal(got[0], expected[0])
    assert got[1] == expected[1]
    assert (counter.frame_count, counter.op_count) == (1, 2)


def test_dont_skip_tracing():
    def fn(x):
        return x

    assert minidynamo.dont_skip_tracing(fn) is fn
    with pytest.raises(TypeError, match="takes a callable"):
        minidynamo.dont_skip_tracing(1)


def test_error_on_graph_break(counter):
    def inner(x):
        minidynamo.graph_break()
        return x + 1

    strict = minidynamo.error_on_graph_break(True)(inner)
    lenient = minidynamo.error_on_graph_break(False)(inner)

    def fn(x, f):
        return f(x * 2) * 3

    compiled = minidynamo.compile(fn, backend=counter)
    assert torch.equal(compiled(X, inner), fn(X, inner))
    assert torch.equal(compiled(X, lenient), fn(X, lenient))
    with pytest.raises(Unsupported, match="graph_break"):
        compiled(X, strict)
    with minidynamo.error_on_graph_break(True):
        with pytest.raises(Unsupported):
            minidynamo.compile(lambda x: inner(x), backend=counter)(X)

    def block(x):
        with minidynamo.error_on_graph_break(True):
            y = x + 1
        minidynamo.graph_break()
        return y * 2

    assert torch.equal(minidynamo.compile(block, backend=counter)(X), block(X))
    with pytest.raises(TypeError, match="must be a bool"):
        minidynamo.error_on_graph_break(1)


def test_error_on_graph_break_of_torch(counter):
    from torch._dynamo import error_on_graph_break

    def inner(x):
        minidynamo.graph_break()
        return x + 1

    strict, lenient = error_on_graph_break(True), error_on_graph_break(False)

    def blocks(x, strict):
        with error_on_graph_break(True):
            with lenient:
                x = inner(x)
            x = x * 2
        with error_on_graph_break(strict):
            return inner(x)

    compiled = minidynamo.compile(blocks, backend=counter)
    assert torch.equal(compiled(X, False), blocks(X, False))
    with pytest.raises(Unsupported, match="graph_break"):
        compiled(X, True)
    compiled = minidynamo.compile(lambda x, fn: fn(x), backend=counter)
    assert torch.equal(compiled(X, lenient(inner)), inner(X))
    with pytest.raises(Unsupported):
        compiled(X, strict(inner))
    with strict, pytest.raises(Unsupported):
        minidynamo.compile(lambda x: inner(x), backend=counter)(X)
    assert torch.equal(minidynamo.compile(lambda x: inner(x), backend=counter)(X), inner(X))


def test_flags_for_a_block(counter):
    def fn(x):
        return x * x.sum().item()

    for patch in (
        minidynamo.patch_dynamo_config(capture_scalar_outputs=True),
        minidynamo.patch_dynamo_config("capture_scalar_outputs", True),
        minidynamo.patch_dynamo_config({"capture_scalar_outputs": True}),
    ):
        minidynamo.reset()
        counter.clear()
        with patch:
            assert torch.equal(minidynamo.compile(fn, backend=counter)(X), fn(X))
        assert counter.frame_count == 1

    @minidynamo.disable_nested_graph_breaks
    def call(f, x):
        assert not minidynamo.config.nested_graph_breaks
        return f(x)

    assert torch.equal(call(fn, X), fn(X))
    with minidynamo.disable_nested_graph_breaks():
        assert not minidynamo.config.nested_graph_breaks


def test_export_says_what_there_is():
    with pytest.raises(UserError, match=r"torch\.export\.export"):
        minidynamo.export(lambda x: x)


def test_callbacks(counter):
    seen = []
    handler = minidynamo.callback.callback_handler

    @minidynamo.callback.on_compile_start
    def start(args):
        seen.append(("start", args.compile_id.split()[0]))

    @minidynamo.callback.on_compile_end
    def end(args):
        seen.append(("end", args.compile_id.split()[0]))

    def wave(x):
        return x.sin()

    def halted(x):
        y = x + 1
        minidynamo.graph_break()  # a frame of a library, which nobody compiles
        return y * 2

    try:
        minidynamo.compile(halted, backend=counter)(X)
        assert [kind for kind, _ in seen] == ["start", "end", "start", "end"]
        seen.clear()
        compiled = minidynamo.compile(wave, backend=counter)
        compiled(X)
        compiled(X)
        name = wave.__qualname__
        assert seen == [("start", name), ("end", name)]
        handler.remove_start_callback(start)
        compiled(torch.ones(2, 2))
        assert seen[2:] == [("end", name)]
    finally:
        handler.clear()
    compiled(torch.ones(2, 2, 2))
    assert len(seen) == 3
    with pytest.raises(TypeError, match="callable"):
        handler.register_end_callback(1)


SCALE = 2


def scaled(x, module):
    return module(x) * SCALE


def test_guard_filter(counter):
    entries = []
    module = nn.Linear(4, 4)

    def choose(guards):
        entries.extend(guards)
        return [
            not g.is_global and not g.orig_guard.source.is_unspecialized_nn_module()
            for g in guards
        ]

    compiled = minidynamo.compile(scaled, backend=counter, options={"guard_filter_fn": choose})
    first = compiled(X, module)
    kinds = {entry.guard_type for entry in entries}
    assert {"TENSOR_MATCH", "EQUALS_MATCH", "GLOBAL_STATE"} <= kinds
    given = next(entry for entry in entries if entry.name == "x")
    assert given.value is X and given.has_value
    weight = next(
        e for e in entries if e.name.endswith("weight") and e.guard_type == "TENSOR_MATCH"
    )
    assert weight.orig_guard.source.is_unspecialized_builtin_nn_module()
    global SCALE
    try:
        SCALE = 3
        assert torch.equal(compiled(X, module), first)  # the program asked for it
    finally:
        SCALE = 2
    assert counter.frame_count == 1
    compiled(torch.ones(2, 4), module)
    assert counter.frame_count == 2


@pytest.mark.parametrize("name", ["skip_all_guards_unsafe", "keep_tensor_guards_unsafe"])
def test_guard_filters_of_torch(counter, name):
    choose = getattr(torch.compiler, name)
    compiled = minidynamo.compile(
        lambda x, n: x * n, backend=counter, options={"guard_filter_fn": choose}
    )
    assert torch.equal(compiled(X, 2), X * 2)
    assert torch.equal(compiled(X, 3), X * 2)
    assert counter.frame_count == 1


def test_guard_filter_errors(counter):
    with pytest.raises(UserError, match="guard_filter_fn is a callable"):
        minidynamo.compile(scaled, backend=counter, options={"guard_filter_fn": 1})
    options = {"guard_filter_fn": lambda guards: [True]}
    with pytest.raises(UserError, match="a bool for each of"):
        minidynamo.compile(scaled, backend=counter, options=options)(X, nn.Linear(4, 4))


def test_mark_static_inside(counter):
    def fn(x):
        minidynamo.mark_static(x, 1)
        return x * x.shape[0] + x.shape[1]

    compiled = minidynamo.compile(fn, backend=counter, dynamic=True, fullgraph=True)
    for shape, graphs in (((3, 4), 1), ((5, 4), 1), ((5, 6), 2), ((7, 6), 2)):
        x = torch.ones(shape)
        assert torch.equal(compiled(x), fn(x.clone()))
        assert counter.frame_count == graphs


@pytest.mark.parametrize("guard", [False, True])
def test_static_addresses(counter, guard):
    x, y = torch.ones(2), torch.ones(2)
    compiled = minidynamo.compile(lambda x: x + 1, backend=counter)
    minidynamo.mark_static_address(x, guard=guard)
    for _ in range(2):
        for given in (x, y):
            assert torch.equal(compiled(given), given + 1)
    assert counter.frame_count == (2 if guard else 1)


def test_disabled_and_static_classes(counter):
    @minidynamo.disable(reason="an example")
    class Inner(nn.Module):
        def forward(self, x):
            return x.sigmoid()

    @minidynamo.mark_static
    class Outer(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.inner = Inner()
            self.factor = factor

        def forward(self, x):
            return self.inner(x.sin()) * self.factor

    for factor in (2, 3, 4):
        module = minidynamo.compile(Outer(factor), backend=counter)
        torch.testing.assert_close(module(X), X.sin().sigmoid() * factor)
    assert counter.frame_count == 4  # the part before is the same for all
    assert not any("sigmoid" in graph.code for graph in counter.graphs)
    with pytest.raises(Unsupported, match="an example"):
        minidynamo.compile(Outer(2), backend=counter, fullgraph=True)(X)
    with pytest.raises(TypeError, match="disable: fn is the class .*, whose instances"):
        minidynamo.disable(type("Nothing", (), {}))


def test_fullgraph_of_an_inner_function_holds(counter):
    def breaking(x, depth=0):
        minidynamo.graph_break()
        return x + 1

    strict = minidynamo.compile(breaking, backend=counter, fullgraph=True)
    loose = minidynamo.compile(breaking, backend=counter)

    def outer(x, inner):
        y = inner(x * 2, depth=1)
        minidynamo.graph_break()
        return y * 3

    compiled = minidynamo.compile(outer, backend=counter)
    with pytest.raises(Unsupported, match="called graph_break"):
        compiled(X, strict)
    assert torch.equal(compiled(X, loose), outer(X, breaking))
    whole = minidynamo.compile(lambda x, depth: x + depth, backend=counter, fullgraph=True)
    assert torch.equal(compiled(X, whole), (X * 2 + 1) * 3)


@pytest.mark.skipif(
    not hasattr(torch._dynamo.decorators, "_invoke_leaf_function_python"),
    reason="in torch 2.11 leaf functions are opaque to torch's own front end alone",
)
def test_results_of_leaf_functions_that_do_not_fit():
    @torch._dynamo.decorators.leaf_function
    def leaf(x):
        return {"a": x, "b": x * 2}

    @leaf.register_fake
    def _(x):
        return x, x * 2

    with pytest.raises(
        AssertionError, match="leaf output structure mismatch: expected TreeSpec"
    ):
        minidynamo.compile(lambda x: leaf(x), backend="eager")(X)


@pytest.mark.parametrize("limits", [{}, {"min": 2, "max": 9}])
@pytest.mark.parametrize("order", [0, 1])
def test_marks_of_both_compilers_on_one_tensor(counter, limits, order):
    makers = [minidynamo.mark_dynamic, torch._dynamo.mark_dynamic]
    x = torch.ones(4, 3)
    for mark in makers[:: 1 - 2 * order]:
        mark(x, 0, **limits)
    compiled = minidynamo.compile(lambda x: x * x.shape[0], backend=counter)
    other = torch.compile(lambda x: x * x.shape[0], backend="eager")
    for size in (4, 5, 7):
        y = x if size == 4 else torch.ones(size, 3)
        assert torch.equal(compiled(y), other(y))
    assert counter.frame_count == 1
