"""Exceptions thrown into generators: where they go on, and their contexts and causes."""

import itertools

import pytest
import torch
from testing import check


def chain(error):
    """The exception and its contexts, outermost first: type, text, cause, context suppressed."""
    found = []
    while error is not None:
        cause = type(error.__cause__).__name__
        found.append((type(error).__name__, str(error), cause, error.__suppress_context__))
        error = error.__context__
    return found


def plain():
    yield 1
    yield 2


def handling():
    try:
        raise KeyError("own")
    except KeyError:
        yield 1
        yield 2


def catching():
    try:
        yield 1
    except ValueError as error:
        yield chain(error)
    yield 3


def raising():
    try:
        yield 1
    except ValueError:
        raise IndexError("next")  # noqa: B904  the context is what is looked at


def stopping():
    yield 1
    raise StopIteration


def delegating(inner):
    try:
        yield from inner()
    except IndexError:
        yield 5


def delegating_handler(inner):
    try:
        raise KeyError("outer")
    except KeyError:
        yield from inner()


class Thrower:
    def __iter__(self):
        return self

    def __next__(self):
        return 1

    def throw(self, *args):
        raise OSError("iterator")


INNER = [plain, handling, catching, raising, stopping, Thrower]


def use(generator, error, steps):
    seen = []
    try:
        for _ in range(steps):
            next(generator)
        seen.append(generator.throw(error))
        seen.append(next(generator))
    except Exception as caught:
        seen.append(chain(caught))
    try:
        generator.throw(TypeError("again"))
    except Exception as caught:
        seen.append(chain(caught))
    generator.close()
    return seen


@pytest.mark.parametrize("handled", [False, True])
@pytest.mark.parametrize("inner", INNER, ids=lambda f: f.__name__)
def test_throw(inner, handled):
    """All of it at several places, outside of a handler and inside of one."""

    def fn(x):
        outers = [lambda: delegating(inner), lambda: delegating_handler(inner)]
        outers += [inner] if inner is not Thrower else []
        seen = []
        for outer, steps, kind in itertools.product(outers, range(4), range(3)):
            error = (ValueError("v"), StopIteration(3), ValueError)[kind]
            try:
                if handled:
                    raise LookupError("caller")
                seen.append(use(outer(), error, steps))
            except LookupError:
                seen.append(use(outer(), error, steps))
        return x + 1, seen

    check(fn, torch.ones(2), graphs=1)


def test_what_a_closed_generator_returns_is_seen_once():
    def fn(x):
        def generator():
            try:
                yield 1
            finally:
                return x * 2  # noqa: B012

        def delegates(inner):
            yield (yield from inner)

        first, second = generator(), generator()
        next(first), next(second)
        closed = first.close(), second.close()
        try:
            next(first)
        except StopIteration as stop:
            return x + 1, closed, stop.args, list(delegates(second)), first.close()

    check(fn, torch.ones(2), graphs=1)


@pytest.mark.parametrize("error", [StopIteration(), RuntimeError("e"), GeneratorExit])
def test_exceptions_that_leave_a_generator_and_the_one_it_delegates_to(error):
    def fn(x):
        log = []

        def inner():
            try:
                yield 1
            except ValueError:
                yield 2
            finally:
                log.append("inner")

        def outer():
            yield from inner()

        generator = outer()
        next(generator)
        for use in (lambda: generator.throw(error), lambda: next(generator), generator.close):
            try:
                log.append(use())
            except BaseException as found:
                log.append((type(found).__name__, str(found)))
        return x + 1, log

    check(fn, torch.ones(2), graphs=1)


def test_a_delegating_generator_whose_inner_one_ignores_its_end():
    def fn(x):
        def inner():
            try:
                yield 1
            except GeneratorExit:
                yield 2

        def outer():
            yield from inner()

        generator = outer()
        next(generator)
        try:
            generator.close()
        except RuntimeError as error:
            return x + 1, str(error)

    check(fn, torch.ones(2), graphs=1)


@pytest.mark.parametrize("thrown", [1, "a", int, None])
def test_what_is_no_exception_thrown_into_a_delegated_generator(thrown):
    def fn(x):
        noted = []

        def inner():
            try:
                yield 1
            except BaseException as error:
                noted.append(type(error))
                raise

        def outer():
            try:
                yield from inner()
            except BaseException as error:
                noted.append(str(error))
                yield 3

        generator = outer()
        next(generator)
        return x + 1, generator.throw(thrown), noted, next(generator, "end")

    check(fn, torch.ones(2))
