"""Graph breaks in `except`, `finally` and `with`: the exception that is being handled is as in
eager, and the handlers and what follows them are captured.
"""

import contextlib
import sys
import traceback

import pytest
import torch
from testing import CountingBackend, assert_same, check, outcome

import minidynamo

x = torch.randn(4)


def opaque(value=None):
    return value


def fail(text):
    raise ValueError(text)


def handled():
    """The exception that is being handled: itself, the frames of its traceback, its links."""
    error = sys.exc_info()[1]
    if error is None:
        return None
    frames = [(s.name, s.lineno) for s in traceback.extract_tb(error.__traceback__)]
    cause, context = repr(error.__cause__), repr(error.__context__)
    return repr(error), frames, cause, context, error.__suppress_context__


for function in (opaque, fail, handled):
    minidynamo.disallow_in_graph(function)


def raised_in_graph(a):
    b = a + 1
    try:
        raise ValueError("a")
    except ValueError:
        seen = handled()
        b = b * 2
    return b.cos(), seen, handled()


def raised_by_a_break(a):
    b = a + 1
    try:
        fail("x")
    except ValueError:
        b = b * 2
        seen = handled()
        b = b * 3
    return b.cos() + 1, seen


def named(a):
    b = a + 1
    try:
        fail("x")
    except (KeyError, ValueError) as error:
        b = b * 2
        opaque()
        text = str(error)
    return b.cos(), text


def other_type_passes(a):
    b = a + 1
    try:
        try:
            fail("x")
        except KeyError:
            b = b * 2
    except ValueError:
        b = b * 3
        opaque()
    return b.cos()


def in_finally(a):
    b = a + 1
    try:
        try:
            fail("x")
        finally:
            b = b * 2
            first = handled()
            b = b * 3
    except ValueError:
        second = handled()
        b = b - 1
    return b.cos(), first, second


def in_finally_without_exception(a):
    b = a + 1
    try:
        b = b * 2
        opaque()
    finally:
        b = b * 3
        seen = handled()
    return b.cos(), seen


def raise_from(a):
    b = a + 1
    try:
        try:
            fail("x")
        except ValueError as error:
            opaque()
            b = b * 2
            raise KeyError("k") from error
    except KeyError:
        seen = handled()
        b = b - 1
    return b.cos(), seen


def raise_in_handler(a):
    b = a + 1
    try:
        try:
            raise ValueError("first")
        except ValueError:
            opaque()
            b = b * 2
            raise KeyError("second")
    except KeyError:
        seen = handled()
        b = b - 1
    return b.cos(), seen


def nested_handlers(a):
    b = a + 1
    try:
        raise ValueError("outer")
    except ValueError:
        first = handled()
        try:
            b = b * 2
            fail("inner")
        except ValueError:
            second = handled()
            b = b * 3
        third = handled()
        b = b + 1
    return b.cos(), first, second, third, handled()


def reraised(a):
    b = a + 1
    try:
        b = b * 2
        raise KeyError("k")
    except KeyError:
        opaque()
        b = b * 3
        raise


def reraised_and_caught(a):
    b = a + 1
    try:
        try:
            fail("x")
        except ValueError:
            opaque()
            b = b * 2
            raise
    except ValueError:
        seen = handled()
        b = b * 3
    return b.cos(), seen


def return_in_finally(a):
    b = a + 1
    try:
        fail("x")
    finally:
        b = b * 2
        opaque()
        return b.cos()  # noqa: B012


def else_branch(a):
    b = a + 1
    try:
        opaque()
    except ValueError:
        b = b * 2
    else:
        b = b * 3
        opaque()
    finally:
        b = b + 1
    return b.cos()


def in_callee(a):
    def inner(b):
        b = b * 2
        seen = handled()
        return b + 1, seen

    b = a + 1
    try:
        fail("x")
    except ValueError:
        b, seen = inner(b)
    return b.cos(), seen


def bare_raise_in_callee(a):
    def inner():
        raise  # noqa: PLE0704

    b = a + 1
    try:
        try:
            fail("x")
        except ValueError:
            inner()
    except ValueError as error:
        opaque()
        return b.cos(), str(error)


def raised_in_callee(a):
    def inner(b):
        b = b * 2
        if b is not None:
            raise ValueError("inner")

    b = a + 1
    try:
        inner(b)
    except ValueError:
        seen = handled()
        b = b * 3
    return b.cos(), seen


def raised_by_a_builtin(a):
    table = {"a": a}
    try:
        b = table["b"]
    except KeyError:
        seen = handled()
        b = a * 2
    return b.cos(), seen


def in_a_loop(a):
    seen = []
    for i in range(4):
        try:
            a = a + 1
            if i == 2:
                raise ValueError("i")
            opaque()
        except ValueError:
            a = a * 2
            seen.append(handled())
        finally:
            a = a - 1
            opaque()
    return a, seen


def continue_and_break(a):
    for i in range(5):
        try:
            if i == 1:
                continue
            fail("x")
        except ValueError:
            a = a * 2
            if i == 3:
                break
        finally:
            opaque()
            a = a + 1
    return a


def traceback_is_used(a):
    b = a + 1
    try:
        raise ValueError("v")
    except ValueError as error:
        frames = [s.name for s in traceback.extract_tb(error.__traceback__)]
        b = b * 2
    return b.cos(), frames


def text_of_traceback(a):
    b = a + 1
    try:
        fail("v")
    except ValueError:
        text = traceback.format_exc().splitlines()[-1]
        b = b * 2
    return b.cos(), text


FUNCTIONS = [
    raised_in_graph,
    raised_by_a_break,
    named,
    other_type_passes,
    in_finally,
    in_finally_without_exception,
    raise_from,
    raise_in_handler,
    nested_handlers,
    reraised,
    reraised_and_caught,
    return_in_finally,
    else_branch,
    in_callee,
    bare_raise_in_callee,
    raised_in_callee,
    raised_by_a_builtin,
    in_a_loop,
    continue_and_break,
    traceback_is_used,
    text_of_traceback,
]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_handler(fn):
    check(fn, x, graphs=None, calls=3)
    assert sys.exc_info() == (None, None, None)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_handler_of_a_callee(fn):
    def outer(a):
        result = fn(a.sin())
        return result[0] * 2, result

    check(outer, x, graphs=None, calls=2)
    assert sys.exc_info() == (None, None, None)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_handler_while_another_exception_is_handled(fn):
    minidynamo.reset()
    compiled = minidynamo.compile(fn, backend=CountingBackend())
    try:
        raise KeyError("around")
    except KeyError as around:
        for _ in range(2):
            assert_same(outcome(fn, (x,), {}), outcome(compiled, (x,), {}))
            assert sys.exc_info()[1] is around


def test_what_follows_a_handler_is_captured():
    check(raised_by_a_break, x, graphs=3)
    check(raised_in_graph, x, graphs=2)
    check(nested_handlers, x, graphs=4)


def test_context_of_an_exception_that_leaves():
    def f(a):
        b = a + 1
        try:
            raise ValueError("first")
        except ValueError:
            opaque()
            b = b * 2
            fail("second")
        return b

    def links(fn):
        try:
            fn(x)
        except ValueError as error:
            tb = [(s.name, s.lineno) for s in traceback.extract_tb(error.__traceback__)]
            context = error.__context__
            inner = [(s.name, s.lineno) for s in traceback.extract_tb(context.__traceback__)]
            return str(error), tb[-2:], str(context), inner

    compiled = minidynamo.compile(f, backend=CountingBackend())
    for _ in range(2):
        assert links(compiled) == links(f)


# -- with -----------------------------------------------------------------------------------------


class Manager:
    """A context manager that notes what happens, and may swallow exceptions."""

    def __init__(self, log, swallow=False):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, type_, error, tb):
        self.log.append((type_, str(error), tb is None))
        return self.swallow


@contextlib.contextmanager
def generated(log):
    log.append("enter")
    try:
        yield 5
    except ValueError as error:
        log.append(str(error))
    finally:
        log.append("exit")


@contextlib.contextmanager
def plain(log):
    log.append("enter")
    yield 5
    log.append("exit")


def test_with_block_of_a_user():
    def f(a):
        log = []
        with Manager(log):
            b = a + 1
            opaque()
            b = b * 2
        return b.cos(), log

    check(f, x, graphs=2, breaks=1)


@pytest.mark.parametrize("swallow", [False, True])
def test_exception_in_a_with_block(swallow):
    def f(a, swallow):
        log = []
        try:
            with Manager(log, swallow):
                b = a + 1
                opaque()
                b = b * 2
                fail("w")
        except ValueError:
            log.append("caught")
        b = b * 3
        opaque()
        return b.cos(), log

    check(f, x, swallow, graphs=None)


@pytest.mark.parametrize("swallow", [False, True])
def test_exception_of_the_graph_in_a_with_block(swallow):
    def f(a, swallow):
        log = []
        try:
            with Manager(log, swallow):
                b = a + 1
                raise ValueError("w")
        except ValueError:
            log.append("caught")
        opaque()
        return b.cos(), log

    check(f, x, swallow, graphs=None)


@pytest.mark.parametrize("manager", [generated, plain])
def test_with_block_of_a_generator(manager):
    def f(a):
        log = []
        with manager(log) as k:
            b = a + k
            opaque()
            b = b * 2
        return b.cos(), log

    counter = check(f, x, graphs=None)
    assert counter.op_count == 3


def test_exception_in_a_with_block_of_a_generator():
    def f(a):
        log = []
        with generated(log) as k:
            b = a + k
            opaque()
            b = b * 2
            fail("g")
        return b.cos(), log

    check(f, x, graphs=None)


def test_generator_manager_in_the_callee():
    def inner(a, log):
        with generated(log) as k:
            b = a + k
            opaque()
            return b * 2

    def f(a):
        log = []
        return inner(a.sin(), log).cos(), log

    check(f, x, graphs=None)


def test_several_managers():
    def f(a):
        log = []
        with Manager(log), torch.no_grad(), plain(log):
            b = a * 2
            opaque()
            b = b + 1
            enabled = torch.is_grad_enabled()
        return b.cos(), enabled, torch.is_grad_enabled(), log

    check(f, x.clone().requires_grad_(), graphs=None)


def test_exit_stack():
    def f(a):
        log = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(Manager(log))
            b = a + 1
            opaque()
            b = b * 2
        return b.cos(), log

    check(f, x, graphs=None)


def test_suppress():
    def f(a):
        b = a + 1
        with contextlib.suppress(ValueError):
            b = b * 2
            fail("s")
        b = b * 3
        opaque()
        return b.cos()

    check(f, x, graphs=None)


def test_decorated_by_no_grad():
    @torch.no_grad()
    def inner(a):
        a = a * 2
        opaque()
        return a + 1, torch.is_grad_enabled()

    def f(a):
        b, enabled = inner(a.sin())
        return b.cos(), enabled, torch.is_grad_enabled()

    check(f, x.clone().requires_grad_(), graphs=2, breaks=1)


def test_autocast_over_a_break():
    def f(a):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            b = a @ a
            opaque()
            c = a @ a
        return b.dtype, c.dtype, b, c, torch.is_autocast_enabled("cpu")

    check(f, torch.randn(3, 3), graphs=2, breaks=1)


def test_break_inside_of_enter_and_exit():
    class Noisy(Manager):
        def __enter__(self):
            opaque()
            return super().__enter__()

        def __exit__(self, *exc):
            opaque()
            return super().__exit__(*exc)

    def f(a):
        log = []
        with Noisy(log):
            b = a + 1
            opaque()
            b = b * 2
        return b.cos(), log

    check(f, x, graphs=None)
