"""Exceptions: contexts, cells and globals that are deleted again, classes whose metaclass would be
asked, attributes that are checked, tracebacks behind graph breaks.
"""

import re
import traceback
import types

import pytest
import testing
import torch

import minidynamo

X = torch.arange(3.0)


def check(fn, *args, graphs=None, **options):
    return testing.check(fn, *args, graphs=graphs, **options)


def outcome_of(action):
    try:
        return action()
    except Exception as error:
        return type(error), str(error)


def test_a_name_of_a_handler_that_inner_functions_see():
    def f(x):
        y = x + 1

        def show():
            return repr(e)  # noqa: F821

        try:
            missing  # noqa: B018, F821
        except NameError:
            shown = show()
        return y, shown

    check(f, X, graphs=1, breaks=0)


def test_a_reraised_exception_keeps_its_context():
    def f(x, speaks):
        y = x + 1
        try:
            try:
                raise KeyError
            except KeyError as first:
                a = first
                try:
                    raise ValueError
                except ValueError as second:
                    b = second
                    try:
                        raise TypeError
                    except TypeError as third:
                        c = third
                        if speaks:
                            print(end="")
                        raise a  # noqa: B904
        except KeyError as error:
            assert error is a
        return y, a.__context__ is c, c.__context__ is b, b.__context__

    check(f, X, False, graphs=1)
    check(f, X, True)


def test_an_exception_from_outside_of_the_graph_gets_a_context():
    def f(x):
        y = x + 1
        try:
            try:
                first = ValueError(1)
                raise first
            finally:
                print(end="")
                second = OSError(2)
                y = y * 2
                raise second
        except OSError as error:
            return y, error is second, error.__context__ is first

    check(f, X)


class Choosy(type):
    def __subclasscheck__(cls, other):
        raise ValueError("asked")


class Choice(Exception, metaclass=Choosy):
    pass


def test_except_does_not_ask_the_metaclass():
    def f(x):
        y = x + 1
        try:
            raise KeyError
        except (Choice, TypeError):
            return y
        except KeyError:
            return y * 2

    check(f, X, graphs=1)


def test_attributes_of_exceptions_are_checked():
    def f(x):
        error = Exception(1)
        found = [
            outcome_of(lambda: setattr(error, "__cause__", 1)),
            outcome_of(lambda: setattr(error, "__context__", x)),
            outcome_of(lambda: setattr(error, "__suppress_context__", 3)),
            outcome_of(lambda: setattr(error, "__cause__", None)),
            outcome_of(lambda: delattr(error, "__cause__")),
            outcome_of(lambda: delattr(error, "args")),
            outcome_of(lambda: error.add_note(3)),
        ]
        error.__notes__ = 4
        found.append(outcome_of(lambda: error.add_note("b")))
        return x + 1, found

    check(f, X, graphs=1)


def test_init_of_an_exception_again():
    def f(x):
        error = ImportError("text", name="n")
        error.__init__()
        return x + 1, error.msg, error.args, error.name

    check(f, X)


def test_tracebacks_of_exceptions_that_went_through_handlers():
    def fail():
        try:
            return 1 / 0
        finally:
            print(end="")

    def f(x):
        y = x + 1
        try:
            fail()
        except ZeroDivisionError as error:
            traceback = error.__traceback__
        names = []
        while traceback is not None:
            code = traceback.tb_frame.f_code
            names.append((code.co_name, traceback.tb_lineno - code.co_firstlineno))
            traceback = traceback.tb_next
        return y, names

    check(f, X)


def test_globals_that_come_and_go():
    def f(x):
        global COMES_AND_GOES
        y = x + 1
        COMES_AND_GOES = 3
        try:
            raise ValueError("hello")
        except ValueError as error:
            del COMES_AND_GOES
            return y, str(error)

    check(f, X, graphs=1)
    assert "COMES_AND_GOES" not in globals()
    compiled = minidynamo.compile(f, backend="eager")
    for _ in range(2):
        globals()["COMES_AND_GOES"] = 9
        assert compiled(X)[1] == "hello"
        assert "COMES_AND_GOES" not in globals()


def test_a_generator_that_raises_stop_iteration():
    def stops(x):
        yield x + 1
        raise StopIteration("stop")

    def leaks(x):
        yield next(iter(()))

    def f(x):
        found = []
        for generator in (stops(x), leaks(x)):
            try:
                found += list(generator)
            except RuntimeError as error:
                cause = error.__cause__
                found.append((str(error), type(cause), cause.args, cause is error.__context__))
        try:
            raise
        except RuntimeError as error:
            return found, str(error)

    check(f, X, graphs=1)


def test_what_is_thrown_into_generators():
    def echo():
        while True:
            try:
                yield 1
            except KeyError:
                yield 2

    def f(x):
        generator = echo()
        next(generator)
        found = [outcome_of(lambda: generator.throw(thrown)) for thrown in ("text", 3, list)]
        return x + generator.throw(KeyError), found

    check(f, X, graphs=1)


# -- tracebacks of exceptions that outlive their handlers ------------------------------------------


def _lines_of(error):
    return [(frame.name, frame.line) for frame in traceback.extract_tb(error.__traceback__)]


def _raises_inside():
    raise ValueError("inside")


def _returned(x, kept):
    try:
        _raises_inside()
    except ValueError as error:
        found = error
    return x + 1, found


def _stored(x, kept):
    try:
        _raises_inside()
    except ValueError as error:
        kept.append(error)
    return x + 1, kept[0]


def _kept_across_a_break(x, kept):
    try:
        [][1]
    except IndexError as error:
        found = error
    x = x * 2
    minidynamo.graph_break()
    return x + 1, found


def _with_its_cause(x, kept):
    try:
        try:
            _raises_inside()
        except ValueError as error:
            raise KeyError("outside") from error
    except KeyError as error:
        found = error
    kept.append(found.__cause__)
    return x + 1, found


def _in_a_group(x, kept):
    try:
        try:
            _raises_inside()
        except ValueError as error:
            raise ExceptionGroup("group", [error]) from None
    except ExceptionGroup as error:
        kept += [error, *error.exceptions]
    try:
        raise kept[0]
    except ExceptionGroup as error:
        return x + 1, error


@pytest.mark.parametrize(
    "fn", [_returned, _stored, _kept_across_a_break, _with_its_cause, _in_a_group]
)
def test_tracebacks_of_exceptions_that_are_kept(fn):
    x = torch.arange(3.0)
    compiled = minidynamo.compile(fn, backend="eager")
    for _ in range(2):
        kept, found_kept = [], []
        _, expected = fn(x, kept)
        _, found = compiled(x, found_kept)
        assert type(found) is type(expected)
        assert _lines_of(found) == _lines_of(expected)
        assert list(map(_lines_of, found_kept)) == list(map(_lines_of, kept))


def test_kept_exceptions_under_fullgraph():
    check(_returned, torch.arange(3.0), [], graphs=1, fullgraph=True)


def _hides_a_builtin(x):
    global len
    len = 3
    x = x + len
    minidynamo.graph_break()
    del len
    return x * 2, len, len([1, 2])  # noqa: F821


def test_a_deleted_global_that_hid_a_builtin():
    check(_hides_a_builtin, X, graphs=2)


def test_traceback_of_an_exception_from_outside():
    def fn(x, error):
        try:
            raise error
        except ValueError:
            return x + 1

    compiled = minidynamo.compile(fn, backend="eager")
    for call in (fn, compiled, compiled):
        error = ValueError("outside")
        call(X, error)
        assert [line for _, line in _lines_of(error)] == ["raise error"]


def test_traceback_of_another_exception():
    def fail():
        raise ValueError("a")

    def fn(x, shown):
        try:
            try:
                fail()
            except ValueError as error:
                raise RuntimeError("b").with_traceback(error.__traceback__) from error
        except RuntimeError as error:
            entries = traceback.extract_tb(error.__traceback__) if shown else []
            return x + 1, [(entry.name, entry.lineno) for entry in entries]

    check(fn, torch.ones(2), False, fullgraph=True)
    check(fn, torch.ones(2), True, graphs=None)


def test_identity_of_tracebacks():
    seen = []

    def raising():
        try:
            raise ValueError("a")
        except ValueError as error:
            seen.append(error.__traceback__)
            raise

    def fn(x):
        seen.clear()
        try:
            raising()
        except ValueError as error:
            answers = [error.__traceback__ is seen[0], error.__traceback__ == seen[0]]
            again = error.__traceback__
            try:
                raise IndexError().with_traceback(again)
            except IndexError as other:
                answers += [other.__traceback__ is again, other.__traceback__ != again]
                same = other.__traceback__ is other.__traceback__
        seen.clear()
        return x + 1, answers, same

    check(fn, X, fullgraph=True)
    assert fn(X)[1:] == ([False, False, False, True], True)


def test_what_an_error_of_a_constant_call_keeps():
    def caught(x, text):
        try:
            re.compile(text)
        except re.error as error:
            return x + 1, error.pattern, error.pos, error.with_traceback(None).msg, vars(error)

    def kept(x):
        try:
            re.compile("(b))")
        except re.error as error:
            error.pos += 1
            return x + 1, error

    check(caught, X, "(a))", graphs=1, breaks=0)
    error = minidynamo.compile(kept, backend="eager", fullgraph=True)(X)[1]
    assert (error.pattern, error.pos, str(error)) == ("(b))", 4, kept(X)[1].args[0])


def test_a_getattr_of_a_module_that_raises():
    module = types.ModuleType("module")

    def refuse(name):
        raise ValueError(f"no {name}")

    def fn(x):
        y = x + 1
        try:
            return y + module.missing
        except ValueError as error:
            return y + 2, str(error)

    for module.__getattr__ in (refuse, "not callable"):
        minidynamo.reset()
        compiled = minidynamo.compile(fn, backend="eager")
        assert str(outcome_of(lambda c=compiled: c(X))) == str(outcome_of(lambda: fn(X)))
