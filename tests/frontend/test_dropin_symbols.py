"""What torch.compile captures with fullgraph: assertions on data, questions about sizes."""

import pytest
import torch
from testing import CountingBackend, assert_same, check, outcome
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import (
    guard_or_false,
    guard_or_true,
    guard_scalar,
    has_free_symbols,
    has_free_unbacked_symbols,
    has_static_value,
    statically_known_true,
    sym_and,
    sym_or,
)

import minidynamo

# pytest rewrites the assertions of this file, but not those of a string.
SCOPE = {"torch": torch}
exec(  # noqa: S102
    """
def positive(x):
    y = x * 2
    assert x.sum() > 0, "not positive"
    return y


def bounded(x):
    with torch.no_grad():
        assert x.sum() > 0 and x.max() < 9, f"out of bounds: {x}"
    return x + 1


def plain(x):
    assert (x > 0).all()
    return x - 1


def tried(x):
    try:
        plain(x)
    except AssertionError:
        return x + 5
    return x


def several(x):
    assert x > 0
    return x
""",
    SCOPE,
)
positive, bounded, plain, tried, several = (
    SCOPE[name] for name in ("positive", "bounded", "plain", "tried", "several")
)


@pytest.mark.parametrize("fn", [positive, bounded, plain, tried])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_assertions_on_data_do_not_break_the_graph(fn, backend):
    minidynamo.reset()
    fast = minidynamo.compile(fn, backend=backend, fullgraph=True)
    x = torch.ones(4)
    for value in (x, -x, x):
        assert_same(outcome(fn, (value,), {}), outcome(fast, (value,), {}))


def test_assertion_on_several_elements_is_the_programs_error():
    check(several, torch.ones(4), graphs=None)


# -- questions about symbols -----------------------------------------------------------------------


def test_questions_about_constants():
    def ask(x):
        size = x.shape[0]
        known = statically_known_true(size == 4), has_static_value(size), has_static_value(2.5)
        both = sym_and(size == 4, size > 1), sym_or(size == 3, size == 9)
        return x + 1, known, both, guard_or_true(size > 5), guard_or_false(size < 5)

    check(ask, torch.ones(4), fullgraph=True)


def test_questions_about_symbols():
    def ask(x):
        size = x.shape[0]
        known = statically_known_true(size > 3), has_static_value(size)
        y = x + 1 if guard_or_false(size > 6) else x - 1
        return (y * 2 if sym_and(size > 2, size < 9) else y), known

    counter = CountingBackend()
    minidynamo.reset()
    fast = minidynamo.compile(ask, backend=counter, fullgraph=True, dynamic=True)
    for size, known in ((4, False), (5, False), (7, True), (8, True), (12, True)):
        x = torch.ones(size)
        y, (_, static) = fast(x)
        assert torch.equal(y, ask(x)[0]) and not static, known
    assert len(counter.graphs) == 3


def test_questions_about_the_trace():
    """Eager has no symbols; a trace says what it has, and guards nothing."""

    def ask(x):
        found = has_free_symbols(x), has_free_symbols((x.shape[0], 2)), has_free_symbols(3)
        return x + 1, *found, has_free_unbacked_symbols(x), has_free_unbacked_symbols([x.shape])

    check(ask, torch.ones(4), fullgraph=True, graphs=1)
    counter = CountingBackend()
    fast = minidynamo.compile(ask, backend=counter, fullgraph=True, dynamic=True)
    for size in (4, 5, 9):
        assert fast(torch.ones(size))[1:] == (True, True, False, False, False)
    assert len(counter.graphs) == 1


def test_defaults_where_the_answer_depends_on_data():
    def ask(x):
        n = x.sum().item()
        if guard_or_false(n > 3):
            return x + 1
        return x + 2 if guard_or_true(n > 100) else x

    fast = minidynamo.compile(ask, backend="eager", fullgraph=True)
    x = torch.tensor([1, 2])
    assert torch.equal(fast(x), x + 2)


def test_numbers_asked_for_are_guarded():
    hint = getattr(symbolic_shapes, "guarding_hint_or_throw", guard_scalar)  # of newer torch

    def ask(x):
        return x + 1, guard_scalar(x.shape[0]), hint(x.shape[0]), guard_scalar(2.5)

    counter = CountingBackend()
    minidynamo.reset()
    fast = minidynamo.compile(ask, backend=counter, fullgraph=True, dynamic=True)
    for size in (4, 5, 4):
        assert_same(fast(torch.ones(size)), ask(torch.ones(size)))
    assert len(counter.graphs) == 2


def test_questions_of_functions_without_operators():
    """Eager knows the size: left to it, the function would give another answer."""

    def ask(x):
        before = statically_known_true(x.shape[0] > 9)
        torch._check(x.shape[0] >= 10)
        return before, statically_known_true(x.shape[0] > 9), has_static_value(x.shape[0])

    x = torch.zeros(10)
    minidynamo.mark_dynamic(x, 0)
    assert minidynamo.compile(ask, backend="eager", fullgraph=True)(x) == (False, True, False)
