"""Exceptions that are being handled: sys.exc_info, `raise` in a callee, tracebacks, ExitStack."""

import contextlib
import gc
import inspect
import sys
import traceback
import weakref

import pytest
import torch
from testing import CountingBackend, assert_same, check

import minidynamo

x = torch.arange(4.0) + 1


@contextlib.contextmanager
def noted(log, number):
    log.append(number)
    try:
        yield number
    finally:
        log.append(-number)


@contextlib.contextmanager
def replacing():
    try:
        yield
    except BaseException:
        raise ValueError("replaced")  # noqa: B904


def stack_of_managers(a):
    log = []
    try:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(noted(log, 1))
            stack.callback(log.append, "called")
            second = stack.enter_context(noted(log, 2))
            stack.enter_context(torch.no_grad())
            raise KeyError("inside")
    except KeyError as error:
        return a + first + second, log, error.args


def managers_that_replace(a):
    try:
        with replacing():
            raise IndexError
    except ValueError as error:
        return a + 1, type(error.__context__)


def exceptions_of_now(a):
    found = [sys.exc_info()[0], sys.exception()]
    try:
        _ = 1 / 0
    except ZeroDivisionError as outer:
        found.append(sys.exc_info()[1] is outer)
        try:
            raise ValueError
        except ValueError:
            found.append(sys.exc_info()[0])
        found.append(sys.exception() is outer)
    return a + 1, found, sys.exc_info()


def raised_again_by_a_callee(a):
    def again():
        raise

    try:
        try:
            raise KeyError("first")
        except KeyError:
            again()
    except KeyError as error:
        return a + 1, error.args


def tracebacks_dropped(a):
    try:
        raise KeyError
    except KeyError as error:
        had = error.__traceback__ is not None
        error.__traceback__ = None
        return a + 1, had, error.__traceback__, error.with_traceback(None) is error


@pytest.mark.parametrize(
    "fn",
    [
        stack_of_managers,
        managers_that_replace,
        exceptions_of_now,
        raised_again_by_a_callee,
        tracebacks_dropped,
    ],
    ids=lambda fn: fn.__name__,
)
def test_one_graph(fn):
    check(fn, x, graphs=1)


def test_tracebacks_that_are_looked_at_are_real():
    def f(a):
        b = a + 1
        try:
            raise KeyError
        except KeyError as error:
            names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            moved = ValueError("moved")
            moved.__traceback__ = sys.exc_info()[2]
        return b, names, moved.__traceback__.tb_lineno > 0

    check(f, x, graphs=None)


def test_an_exception_that_a_caller_handles():
    def f(a):
        return a + (1 if sys.exc_info()[0] is None else 2)

    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter)
    assert_same(compiled(x), x + 1)
    try:
        raise KeyError
    except KeyError:
        assert_same(compiled(x), x + 2)
    assert_same(compiled(x), x + 1)


def test_too_deep_a_recursion_in_a_handler():
    """At the edge of the stack everything raises that is called: nothing may stay handled."""

    @minidynamo.disable(recursive=False)
    def again():
        return fn()

    def fn():
        try:
            return again()
        except ValueError:
            return -1

    minidynamo.reset()
    compiled = minidynamo.compile(fn, backend="eager")
    former = sys.getrecursionlimit()
    left = []
    for depth in range(250, 262):
        sys.setrecursionlimit(len(inspect.stack(0)) + depth)
        try:
            compiled()
        except RecursionError:
            pass
        finally:
            sys.setrecursionlimit(former)
        left.append(sys.exc_info()[0])
    assert left == [None] * 12


def test_generators_handle_what_handles_who_resumed_them():
    def reraises():
        try:
            raise
        except KeyError:
            yield "key"
        yield sys.exc_info()[0]

    def asks():
        yield sys.exc_info()[0]
        try:
            int("a")
        except ValueError as error:
            yield type(error.__context__), sys.exc_info()[0]
        yield sys.exc_info()[0]
        raise LookupError

    def delegates():
        yield from asks()

    def fn(a, make):
        found = []
        first = reraises()
        try:
            raise KeyError
        except KeyError:
            found.append(next(first))
            second = make()
            found.append(next(second))
        found.append(next(first))
        try:
            raise OSError
        except OSError:
            found.append(next(second))
        found.append(next(second))
        try:
            raise EOFError
        except EOFError:
            try:
                next(second)
            except LookupError as error:
                found.append(type(error.__context__))
        return a + 1, found

    check(fn, x, asks, graphs=1, fullgraph=True)
    check(fn, x, delegates, graphs=1, fullgraph=True)


@pytest.mark.parametrize("chained", [False, True])
def test_a_break_in_a_handler_keeps_nothing_alive(chained):
    """The frame that the exception's traceback holds has handed its locals on."""

    class Held:
        pass

    def refuse(held):
        raise LookupError(held)

    def handles(a):
        held = Held()
        seen = weakref.ref(held)
        try:
            try:
                refuse(held)
            except LookupError:
                minidynamo.graph_break()
                if chained:
                    raise KeyError from None
        except KeyError as error:
            error.__context__ = None
        held = None
        return a + 1, seen() is None

    def passes(a):
        held = Held()
        seen = weakref.ref(held)
        try:
            refuse(held)
        except LookupError as error:
            minidynamo.graph_break()
            a = a + len(error.args)
        held = None
        return a + 1, seen() is None

    for fn in (handles, passes):
        compiled = minidynamo.compile(fn, backend="eager")
        assert fn(x)[1] is True
        assert_same(compiled(x), fn(x))


def raises():
    raise RuntimeError("raised")


def catches(a):
    try:
        raises()
    except RuntimeError:
        return a + 1


def throws(a):
    def items():
        try:
            yield a
        except ValueError:
            yield a + 1

    made = items()
    return next(made) + made.throw(ValueError())


def closes(a):
    def items():
        try:
            yield a + 1
        finally:
            pass

    made = items()
    first = next(made)
    made.close()
    try:
        next(made)
    except StopIteration:
        return first


def stops(a):
    def items():
        yield a
        raise StopIteration

    try:
        return list(items())
    except RuntimeError as error:
        return a + len(error.args)


def breaks(a):
    a = a + 1
    minidynamo.graph_break()
    return a * 2


@pytest.mark.parametrize("fn", [catches, throws, closes, stops, breaks])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_an_exception_that_the_tracer_met_keeps_no_input_alive(fn, fullgraph):
    """Without a collection: a local of one of the tracer's frames that the exception's traceback
    holds does not lead back to the exception.
    """
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=fullgraph)

    def called():
        given = torch.ones(3)
        try:
            assert_same(compiled(given), fn(given))
        except minidynamo.exc.Unsupported as error:
            assert fullgraph and fn is breaks, error
        return weakref.ref(given)

    assert_dies_at_once(called)


def test_a_backend_that_failed_keeps_no_input_alive():
    def fails(module, inputs):
        raise ValueError("refused")

    def called():
        given = torch.ones(3)
        with contextlib.suppress(minidynamo.exc.BackendCompilerFailed):
            minidynamo.compile(breaks, backend=fails)(given)
        return weakref.ref(given)

    assert_dies_at_once(called)


def assert_dies_at_once(called):
    gc.collect()
    gc.disable()
    try:
        assert called()() is None
    finally:
        gc.enable()
