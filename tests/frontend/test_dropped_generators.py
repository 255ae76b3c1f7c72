"""Generators dropped while they are suspended in a `try` or `with` run their cleanup then."""

import contextlib

import pytest
import testing
import torch

import minidynamo

X = torch.tensor([1.0, 2.0])
SEEN: list = []


def count(log, name, n=3):
    try:
        for i in range(n):
            yield i
    finally:
        log.append(name)


def local(x):
    """Two of them end with the frame, in the order of its variables."""
    log = []
    later = second = None
    first = count(log, "first")
    second = count(log, "second")
    later = count(log, "later")
    return log, later is None, x + next(first) + next(later) + next(second)


def called(x):
    def helper(log):
        generator = count(log, "of the helper")
        value = next(generator)
        log.append("in the helper")
        return value

    log = []
    value = helper(log)
    log.append("behind")
    return log, x + value


def given(x):
    def helper(generator, log):
        log.append(next(generator))

    log = []
    kept = count(log, "kept")
    helper(count(log, "given"), log)
    helper(kept, log)
    log.append("behind")
    return log, x + next(kept)


def unwound(x):
    """The loop's generator ends in front of the handler."""
    log = []
    try:
        for i in count(log, "of the loop"):
            x = x + i
            raise ValueError
    except ValueError:
        log.append("handler")
    return log, x


def unwound_callee(x):
    def helper(log):
        for i in count(log, "of the helper"):
            raise ValueError(i)

    log = []
    with contextlib.suppress(ValueError):
        helper(log)
    log.append("behind")
    return log, x + 1


def replaced(x):
    log = []
    generator = count(log, "first")
    next(generator)
    generator = count(log, "second")
    log.append("between")
    next(generator)
    other = generator
    del generator
    log.append(next(other))
    other = None
    return log, x + 1


def returned(x):
    def helper(log):
        generator = count(log, "end")
        return next(generator), generator

    log = []
    value, generator = helper(log)
    log.append(next(generator))
    return log, x + value


def held_by_a_list(x):
    log = []
    items = [count(log, "end")]
    return log, x + next(items[0])


class Closing:
    def __init__(self, log):
        self.log = log

    def __iter__(self):
        return self

    def __next__(self):
        return 1

    def close(self):
        self.log.append("closed")


def delegated_to_an_object(x):
    def outer(log):
        yield from Closing(log)

    log = []
    generator = outer(log)
    value = next(generator)
    generator = outer(log)
    log.append("between")
    value += next(generator)
    generator.close()
    log.append("behind")
    return log, x + value


def delegated(x):
    def outer(log):
        try:
            yield from count(log, "inner")
        finally:
            log.append("outer")

    log = []
    generator = outer(log)
    return log, x + next(generator)


def in_a_block(x):
    @contextlib.contextmanager
    def block(log):
        log.append("enter")
        try:
            yield
        finally:
            log.append("leave")

    def helper(log):
        generator = count(log, "end")
        return next(generator)

    log = []
    with block(log):
        value = helper(log) + helper(log)
        log.append("behind")
    return log, x + value


def writes_to_a_tensor(x):
    def doubled(y):
        try:
            yield y * 2
        finally:
            y.add_(1)

    copy = x.clone()
    generator = doubled(copy)
    return copy, next(generator)


def writes_to_a_global(x):
    generator = count(SEEN, tuple(x.shape))
    return x + next(generator)


def behind_a_branch(x):
    log = []
    generator = count(log, "end")
    branch = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
    return log, branch + next(generator)


WHOLE = [
    unwound,
    unwound_callee,
    local,
    called,
    given,
    replaced,
    returned,
    held_by_a_list,
    delegated,
    delegated_to_an_object,
    in_a_block,
    writes_to_a_tensor,
    writes_to_a_global,
    behind_a_branch,
]


@pytest.mark.parametrize("function", WHOLE, ids=lambda f: f.__name__)
def test_captured_whole(function):
    minidynamo.reset()
    counter = testing.CountingBackend()
    compiled = minidynamo.compile(function, backend=counter, fullgraph=True)
    for x in (X, X, torch.ones(3)):
        SEEN.clear()
        expected = function(x), list(SEEN)
        SEEN.clear()
        testing.assert_same(expected, (compiled(x), list(SEEN)))
    assert len(counter.graphs) == 2


def dropped_in_a_call(x):
    log = []
    value = next(count(log, "end"))
    log.append("behind")
    return log, x + value


def held_by_another(x):
    def outer(log):
        inner = count(log, "inner")
        next(inner)
        try:
            yield 1
        finally:
            log.append("outer")

    log = []
    generator = outer(log)
    return log, x + next(generator)


def taken_from_a_list(x):
    log = []
    items = [count(log, "end")]
    next(items[0])
    items.clear()
    log.append("behind")
    return log, x + 1


def fails(x):
    def failing():
        try:
            yield 1
        finally:
            raise ValueError("nobody can catch it")

    generator = failing()
    return x + next(generator)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "function", [dropped_in_a_call, held_by_another, taken_from_a_list, fails]
)
def test_other_moments_are_left_to_eager(function):
    minidynamo.reset()
    testing.assert_same(function(X), minidynamo.compile(function, backend="eager")(X))
    with pytest.raises(minidynamo.exc.Unsupported, match="generator left unfinished"):
        minidynamo.compile(function, backend="eager", fullgraph=True)(X)


def unwound_behind_a_break(x):
    try:
        for i in count(SEEN, "of the loop"):
            x = x + i
            minidynamo.graph_break()
            raise ValueError
    except ValueError:
        SEEN.append("handler")
    return x


def unwound_by_a_callee(x):
    def broken():
        minidynamo.graph_break()
        raise ValueError

    try:
        for i in count(SEEN, "of the loop"):
            x = x + i
            broken()
    except ValueError:
        SEEN.append("handler")
    return x


def left_behind_a_break(x):
    for i in count(SEEN, "of the loop"):
        x = x + i
        minidynamo.graph_break()
        break
    SEEN.append("behind")
    return x


@pytest.mark.parametrize(
    "function", [unwound_behind_a_break, unwound_by_a_callee, left_behind_a_break]
)
def test_generators_from_in_front_of_a_break(function):
    compiled = minidynamo.compile(function, backend="eager")
    for x in (X, X, torch.ones(3)):
        SEEN.clear()
        expected = function(x), list(SEEN)
        SEEN.clear()
        testing.assert_same(expected, (compiled(x), list(SEEN)))
