"""Exceptions in traced code: raised, caught, inspected, leaving the function."""

import pytest
import testing
import torch

X = torch.arange(4.0)


def check(fn, *args, breaks=0, graphs=None):
    """Without graph breaks unless said otherwise; how many graphs does not matter."""
    return testing.check(fn, *args, breaks=breaks, graphs=graphs)


class MyError(Exception):
    pass


class Detailed(ValueError):
    def __init__(self, code, **extra):
        super().__init__(f"code {code}")
        self.code = code
        self.extra = extra

    def __str__(self):
        return f"<{self.code}>"


def fail(kind, *args):
    raise kind(*args)


@pytest.mark.parametrize(
    "act",
    [
        lambda: fail(ValueError, "text", 2),
        lambda: fail(KeyError, "k"),
        lambda: fail(MyError),
        lambda: fail(MyError, 1, [2]),
        lambda: fail(StopIteration, 3),
        lambda: {}["x"],
        lambda: [][0],
        lambda: 1 / 0,
        lambda: int("a"),
        lambda: None.foo,
        lambda: [].foo,
        lambda: undefined_name,  # noqa: F821
        lambda: tuple("ab")["a"],
        lambda: next(iter(())),
        lambda: fail(Detailed, 7),
    ],
)
def test_caught(act):
    def fn(x):
        try:
            act()
        except Exception as error:
            return (
                x + 1,
                type(error),
                error.args,
                str(error),
                repr(error),
                isinstance(error, LookupError),
            )

    check(fn, X)


def test_matching():
    def fn(x, kind):
        try:
            fail(kind, "a")
        except (KeyError, IndexError) as error:
            return x + 1, "lookup", str(error)
        except ValueError:
            return x + 2, "value"
        except Exception:
            return x + 3, "other"
        finally:
            x = x * 2

    for kind in (KeyError, IndexError, ValueError, MyError):
        check(fn, X, kind)


def test_else_and_finally():
    def fn(x, n):
        log = []
        try:
            log.append("try")
            if n:
                raise MyError(n)
        except MyError as error:
            log.append(error.args)
        else:
            log.append("else")
        finally:
            log.append("finally")
        return x + 1, log

    check(fn, X, 0)
    check(fn, X, 3)


def test_reraise_and_cause():
    def fn(x):
        try:
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise MyError("outer") from error
        except MyError as error:
            return x + 1, repr(error.__cause__), error.__suppress_context__, str(error)

    check(fn, X)


def test_bare_raise():
    def fn(x):
        try:
            try:
                raise ValueError("v")
            except ValueError:
                raise
        except ValueError as error:
            return x + 1, str(error)

    check(fn, X)


def test_from_none():
    def fn(x):
        try:
            try:
                {}["a"]
            except KeyError:
                raise MyError from None
        except MyError as error:
            return x + 1, error.__cause__, error.__suppress_context__

    check(fn, X)


def test_context():
    def fn(x):
        try:
            try:
                {}["a"]
            except KeyError:
                raise MyError
        except MyError as error:
            return x + 1, repr(error.__context__)

    check(fn, X)


def test_user_exception_attributes():
    def fn(x):
        try:
            raise Detailed(5, where=x)
        except Detailed as error:
            error.note = "n"
            error.args = (1, 2)
            return error.code, error.extra["where"] + 1, error.note, error.args, str(error)

    check(fn, X)


def test_exception_leaves_the_function():
    def fn(x, n):
        y = x + 1
        if n:
            raise Detailed(n)
        return y

    check(fn, X, 0)
    check(fn, X, 3)


def test_exception_leaves_after_side_effects():
    def fn(x, items):
        items.append(x + 1)
        raise MyError("after")

    check(fn, X, [])


def test_exception_as_value():
    def fn(x):
        error = MyError("a", 1)
        error.tag = "t"
        other = KeyError("k")
        return error, other, x + 1, isinstance(error, MyError)

    def shown(x):
        error, other, y, is_mine = fn(x)
        return repr(error), repr(other), y, is_mine

    check(shown, X)
    compiled = testing.minidynamo.compile(fn, backend="eager", fullgraph=True)
    error, other, _, _ = compiled(X)
    assert type(error) is MyError and error.args == ("a", 1) and error.tag == "t"
    assert type(other) is KeyError and other.args == ("k",)


def test_exception_kept_over_a_graph_break():
    def fn(x):
        error = MyError("kept", 2)
        print(end="")
        return x + 1, repr(error)

    check(fn, X, breaks=1)


def test_exception_argument():
    def fn(x, error):
        return x + len(error.args), str(error), isinstance(error, ValueError), error.args[0]

    check(fn, X, ValueError("a", 2))


def test_assert():
    scope = {}
    exec("def fn(x, n):\n assert n > 2, f'too small: {n}'\n return x + n\n", scope)
    check(scope["fn"], X, 3)
    check(scope["fn"], X, 1)


def test_with_and_exceptions():
    class Manager:
        def __init__(self, log):
            self.log = log

        def __enter__(self):
            self.log.append("enter")
            return self

        def __exit__(self, kind, error, traceback):
            self.log.append((kind, str(error)))
            return kind is KeyError

    def fn(x, kind):
        log = []
        try:
            with Manager(log):
                fail(kind, "inside")
            log.append("swallowed")
        except ValueError:
            log.append("caught")
        return x + 1, log

    check(fn, X, KeyError)
    check(fn, X, ValueError)


def test_raise_what_is_no_exception():
    def fn(x):
        try:
            raise 3
        except TypeError as error:
            return x + 1, str(error)

    check(fn, X)


def test_nested_handlers_restore():
    def fn(x):
        out = []
        for kind in (ValueError, KeyError, MyError):
            try:
                try:
                    fail(kind, "a")
                except ValueError:
                    out.append("v")
                    fail(KeyError, "b")
            except KeyError as error:
                out.append(str(error))
            except Exception:
                out.append("e")
        return x + 1, out

    check(fn, X)


def test_add_note():
    def fn(x):
        try:
            error = MyError("a")
            error.add_note("more")
            raise error
        except MyError as caught:
            return x + 1, caught.__notes__

    check(fn, X)
