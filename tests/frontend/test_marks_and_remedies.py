"""mark_unbacked's promises, and what the log of recompilations says would help."""

import re

import pytest
import torch
from testing import CountingBackend, assert_same

import minidynamo
from minidynamo import config, mark_dynamic, mark_static, mark_unbacked
from minidynamo.exc import RecompileLimitExceeded, UserError

FACTOR = 3


def compiled_with(fn, **options):
    minidynamo.reset()
    counter = CountingBackend()
    return minidynamo.compile(fn, backend=counter, **options), counter


def marked(mark, *shape, dim=0, **options):
    x = torch.ones(shape)
    mark(x, dim, **options)
    return x


def double(x):
    return x * 2


def add(x, y):
    return x + y


# -- mark_unbacked --------------------------------------------------------------------------------


def test_bounds_of_an_unbacked_size_decide_branches():
    def f(x):
        return x * 2 if x.shape[0] > 5 else x * 3

    compiled, counter = compiled_with(f, fullgraph=True)
    compiled(marked(mark_unbacked, 8, min=6, max=9))
    compiled(torch.ones(7))
    assert len(counter.graphs) == 1
    for size in (3, 12):
        assert_same(f(torch.ones(size)), compiled(torch.ones(size)))
    assert len(counter.graphs) > 1


def test_what_is_asserted_of_unbacked_sizes_raises_as_in_eager():
    def fn(x, y):
        torch._check(x.size(0) > y.size(0), lambda: f"{x.size(0)} and {y.size(0)}")
        return x.sum() + y.sum()

    def marked(n):
        x = torch.ones(n)
        mark_unbacked(x, 0)
        return x

    call, counter = compiled_with(fn, fullgraph=True)
    for sizes in (5, 3), (4, 0), (7, 6):
        assert call(*map(marked, sizes)) == fn(*map(marked, sizes))
    assert len(counter.graphs) == 1
    for run in fn, call:
        with pytest.raises(RuntimeError, match="3 and 3"):
            run(marked(3), marked(3))
    assert call(marked(9), marked(1)) == 10 and len(counter.graphs) <= 2


def test_unbacked_sizes_of_one_shape_id_are_equal():
    compiled, counter = compiled_with(add, fullgraph=True)
    pair = [marked(mark_unbacked, 3, shape_id="rows") for _ in range(2)]
    compiled(*pair)
    compiled(torch.ones(1), torch.ones(1))
    assert len(counter.graphs) == 1
    x, y = torch.ones(5), torch.ones(1)
    assert_same(add(x, y), compiled(x, y))
    assert len(counter.graphs) == 2


def test_one_shape_id_with_two_sizes_is_an_error():
    compiled, _ = compiled_with(lambda x, y: (x * 2, y * 2))
    pair = [marked(mark_unbacked, n, shape_id="rows") for n in (3, 4)]
    with pytest.raises(UserError, match="shape_id='rows'"):
        compiled(*pair)


def test_a_size_out_of_the_bounds_is_an_error():
    with pytest.raises(UserError, match="size 3 is not in"):
        mark_unbacked(torch.ones(3), 0, min=4)


def test_a_marked_size_out_of_its_range_is_an_error():
    compiled, _ = compiled_with(double)
    with pytest.raises(UserError, match="size 40 is not in"):
        compiled(marked(mark_dynamic, 40, min=4, max=32))


@pytest.mark.parametrize("sizes", [(1, 5), (5, 1)])
def test_unbacked_sizes_that_were_taken_for_equal(sizes):
    def f(x, y):
        return (x + y) * x.shape[0], x.sum()

    compiled, counter = compiled_with(f)
    args = [marked(mark_unbacked, n) for n in sizes]
    assert_same(f(*args), compiled(*args))
    minidynamo.reset()
    compiled = minidynamo.compile(lambda x: (x + torch.ones(3)) * x.shape[0], backend=counter)
    assert torch.equal(compiled(marked(mark_unbacked, 1)), torch.ones(3) * 2)


def test_operations_without_the_unbacked_size():
    compiled, counter = compiled_with(lambda x: x.sum() + 1, fullgraph=True)
    compiled(marked(mark_unbacked, 3))
    for size in (0, 1, 5):
        assert compiled(torch.ones(size)) == size + 1
    assert len(counter.graphs) == 1


def test_a_strict_unbacked_size_may_not_be_specialised():
    def f(x):
        return x + torch.ones(3)

    compiled, _ = compiled_with(f, fullgraph=True)
    assert_same(f(torch.ones(3)), compiled(marked(mark_unbacked, 3)))
    compiled, _ = compiled_with(f, fullgraph=True)
    with pytest.raises(UserError, match="specialized to 3"):
        compiled(marked(mark_unbacked, 3, strict=True))


# -- what would help ------------------------------------------------------------------------------


def failures_of(fn, calls, **options):
    found = []
    compiled, _ = compiled_with(fn, **options)
    with minidynamo.events.subscribe(found.append, minidynamo.events.RecompileEvent):
        for args in calls:
            compiled(*args)
    return [text for event in found for text in event.failures]


def scaled(x, n=3):
    return x * n


class Scale(torch.nn.Module):
    n = 2

    def forward(self, x):
        return x * self.n


def with_factor(x):
    return x * FACTOR


X = torch.ones(3)
REMEDIES = {
    "size": (
        double,
        [(X,), (torch.ones(4),)],
        {},
        r"becomes symbolic now; mark_dynamic\(x, 0\)",
    ),
    "one": (double, [(X,), (torch.ones(1),)], {}, r"unless mark_unbacked\(x, 0\)"),
    "one of symbolic": (
        double,
        [(X,), (torch.ones(1),)],
        {"dynamic": True},
        r"x.size\(0\) is 1.*unless mark_unbacked\(x, 0\)",
    ),
    "static": (
        double,
        [(marked(mark_static, n),) for n in (3, 4)],
        {},
        r"mark_static\(x, 0\) keeps it",
    ),
    "parameter": (
        double,
        [(torch.nn.Parameter(torch.ones(n)),) for n in (3, 4)],
        {},
        r"torch's modules are constants, unless mark_dynamic\(x, 0\)",
    ),
    "int": (scaled, [(X, 4), (X, 5)], {}, "becomes symbolic now; dynamic=True"),
    "static int": (scaled, [(X, 4), (X, 5)], {"dynamic": False}, "dynamic=False.*as a tensor"),
    "float": (scaled, [(X, 0.5), (X, 1.5)], {}, "becomes symbolic now; dynamic=True"),
    "zero": (scaled, [(X, 0.5), (X, 0.0)], {}, "infinite floats are constants"),
    "remainder": (
        lambda x: x * 2 if x.shape[0] % 2 == 0 else x,
        [(torch.ones(4),), (torch.ones(5),)],
        {"dynamic": True},
        r"% 2\) == 0 no longer holds: x.size\(0\) is 5, needed at [^(]*$",
    ),
    "bool": (scaled, [(X, True), (X, False)], {}, "no longer True, needed at [^(]*$"),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_a_failure_says_what_would_help(name):
    fn, calls, options, wanted = REMEDIES[name]
    (text,) = failures_of(fn, calls, **options)
    assert "needed at test_marks_and_remedies.py" in text
    assert re.search(wanted, text), text


def test_flags_that_keep_numbers_constant_are_named():
    for flag, first in (("specialize_int", 4), ("specialize_float", 0.5)):
        with config.patch({flag: True}):
            (text,) = failures_of(scaled, [(X, first), (X, first + 1)])
        assert f"config.{flag} keeps" in text
    with config.patch(automatic_dynamic_shapes=False):
        (text,) = failures_of(double, [(X,), (torch.ones(4),)])
    assert "automatic_dynamic_shapes is off; mark_dynamic(x, 0)" in text


def test_ints_of_modules_and_globals(monkeypatch):
    module = Scale()
    module.n = 2
    found = []
    compiled, _ = compiled_with(module)
    with minidynamo.events.subscribe(found.append, minidynamo.events.RecompileEvent):
        compiled(X)
        module.n = 3
        compiled(X)
        compiled, _ = compiled_with(with_factor)
        compiled(X)
        monkeypatch.setitem(globals(), "FACTOR", 4)
        compiled(X)
    of_module, of_globals = (event.failures[0] for event in found)
    assert "unless config.allow_unspec_int_on_nn_module" in of_module
    assert "pass it as an argument" in of_globals


def test_the_limit_names_the_guard_the_line_and_the_remedy():
    compiled, _ = compiled_with(double, fullgraph=True, dynamic=False, recompile_limit=1)
    compiled(X)
    with pytest.raises(RecompileLimitExceeded) as caught:
        compiled(torch.ones(4))
    text = str(caught.value)
    assert (
        "size mismatch at index 0. expected 3, actual 4, needed at test_marks_and_remedies.py"
        in text
    )
    assert "mark_dynamic(x, 0)" in text


# -- operators ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["method", "function", "operator"])
def test_resizing_with_symbolic_sizes_is_eager(form):
    resize = {
        "method": lambda x, y: (x + 1).resize_as_(y) * 2,
        "function": lambda x, y: torch.resize_as_(x + 1, y) * 2,
        "operator": lambda x, y: torch.ops.aten.resize_as_(x + 1, y) * 2,
    }[form]
    minidynamo.reset()
    compiled = minidynamo.compile(resize, backend="aot_eager", dynamic=True)
    for size in (3, 4):
        args = (torch.ones(2 * size), torch.ones(2, size))
        assert_same(resize(*args), compiled(*args))


def test_a_marked_size_reaches_the_graph_behind_a_break():
    def f(x):
        y = x * 2
        minidynamo.graph_break()
        return y + 1

    minidynamo.reset()
    found = []
    compiled = minidynamo.compile(f, backend="aot_eager")
    with minidynamo.events.subscribe(found.append, minidynamo.events.RecompileEvent):
        compiled(marked(mark_dynamic, 3))
        assert_same(f(torch.ones(5)), compiled(torch.ones(5)))
    assert not found


# -- sizes with code of their own ------------------------------------------------------------------


EIGHTS = [lambda n: n == 8, lambda n: n % 16 == 0]


def first_size(graph):
    """Of the tensor that a graph takes."""
    last = graph.find_nodes(op="placeholder")[-1].meta["example_value"]
    size = last.shape[0]
    known = None if type(size) is int else size.node.expr
    return int(size) if known is None or known.is_number else size


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("mark", [mark_dynamic, mark_unbacked, torch._dynamo.mark_dynamic])
def test_sizes_that_meet_a_criterion_have_code_of_their_own(mark, backend):
    found = []
    minidynamo.reset()
    compiled = minidynamo.compile(double, backend=backend)
    with minidynamo.events.subscribe(found.append, minidynamo.events.GraphEvent):
        for size, graphs in ((5, 1), (8, 2), (7, 2), (16, 3), (32, 3), (8, 3), (5, 3)):
            x = torch.ones(size, 3)
            if size == 5:
                mark(x, 0, specialize_on=EIGHTS)
            assert_same(double(x), compiled(x))
            assert len(found) == graphs, size
    sizes = [first_size(event.graph.graph) for event in found]
    assert [n if type(n) is int else None for n in sizes] == [None, 8, None]


def test_a_marked_size_that_meets_its_criterion_may_be_a_constant():
    def f(x):
        return x * 2 if x.shape[0] == 8 else x * 3

    compiled, counter = compiled_with(f)
    x = torch.ones(8)
    mark_dynamic(x, 0, min=4, max=64, specialize_on=EIGHTS)
    for y in (x, torch.ones(9), torch.ones(8), torch.ones(16)):
        assert_same(f(y), compiled(y))
    assert len(counter.graphs) == 3


def test_criteria_are_functions():
    for mark in (mark_dynamic, mark_unbacked):
        with pytest.raises(TypeError, match="specialize_on takes functions of a size, not 8"):
            mark(torch.ones(8), 0, specialize_on=[8])
