"""Exceptions that keep more than their arguments, and `functools.singledispatch`."""

import functools
import re

import pytest
import torch
from testing import CountingBackend, assert_same, check

import minidynamo

x = torch.arange(3.0)


def os_errors(a):
    plain = OSError("plain")
    found = [(plain.errno, plain.strerror, str(plain), plain.args)]
    error = OSError(13, "denied", "file")
    found.append((type(error).__name__, error.errno, error.filename, str(error), repr(error)))
    error = ConnectionError(1, "b", "c", None, "d")
    found.append((error.args, error.filename, error.filename2, str(error)))
    try:
        raise FileNotFoundError(2, "missing", "a.txt")
    except PermissionError:
        a = a * 2
    except OSError as error:
        found.append((error.strerror, error.args, a + error.errno))
    return found


def errors_that_leave(a):
    error = OSError(13, "denied", "file")
    module = ImportError("text", name="module", path="path")
    shown = (error.filename, error.filename2, module.name, module.path, module.msg)
    return a + 1, error, module, shown, str(error), type(error)


def keywords(a):
    try:
        raise NameError("text", name="word")
    except NameError as error:
        return a + 1, error.name, error.args


def wrong_keywords(a):
    try:
        return ImportError("text", names="word")
    except TypeError as error:
        return a + 1, str(error)


def unicode_errors(a):
    try:
        b"\xff".decode("utf8")
    except UnicodeDecodeError as error:
        found = (error.encoding, error.start, error.end, error.reason, error.object, str(error))
    try:
        "\xff".encode("ascii")
    except UnicodeError as error:
        return a + error.start, found, str(error)


def syntax_error(a):
    try:
        raise SyntaxError("bad", ("file", 1, 2, "text"))
    except SyntaxError as error:
        return a + error.lineno, error.msg, error.filename, str(error)


@pytest.mark.parametrize(
    "function",
    [os_errors, errors_that_leave, keywords, wrong_keywords, unicode_errors, syntax_error],
    ids=lambda function: function.__name__,
)
def test_captured(function):
    check(function, x, fullgraph=True)
    error = minidynamo.compile(function, backend=CountingBackend())(x)
    assert_same(error, function(x))
    for left, right in zip(error, function(x), strict=True):
        if isinstance(right, (OSError, ImportError)):
            for name in ("errno", "filename", "name", "path", "args"):
                assert getattr(left, name, None) == getattr(right, name, None)


def changed(a):
    error = OSError(13, "denied")
    error.errno = 5
    first = str(error)
    error.args = (1,)
    return a + 1, first, str(error), error.args


def made_by_a_subclass(a):
    class_ = Own
    try:
        raise class_(1, "text")
    except OSError as error:
        return a + error.mark, error.errno, str(error)


class Own(OSError):
    def __init__(self, number, text):
        super().__init__(number, text)
        self.mark = number + 1


def test_what_eager_makes():
    for function in (changed, made_by_a_subclass):
        check(function, x, graphs=1)


def test_uncaught():
    def f(a):
        raise FileNotFoundError(2, "missing", str(a.shape[0]))

    for call in (f, minidynamo.compile(f, backend=CountingBackend())):
        with pytest.raises(FileNotFoundError) as raised:
            call(x)
        assert (raised.value.errno, raised.value.filename) == (2, "3")


class Number(int):
    pass


def test_singledispatch():
    @functools.singledispatch
    def scale(value):
        return 2

    @scale.register
    def _of_int(value: int):
        return value + 1

    @scale.register(torch.Tensor)
    def _of_tensor(value):
        return value * 2

    class Owner:
        factor = 3

        @functools.singledispatchmethod
        def scaled(self, value):
            return 0

        @scaled.register
        def _of_int(self, value: int):
            return value * self.factor

    owner = Owner()

    def f(a, number):
        return scale(a) * scale(number) + scale("text") + owner.scaled(number)

    counter = CountingBackend()
    compiled = minidynamo.compile(f, backend=counter, fullgraph=True, dynamic=False)
    for number, graphs in ((3, 1), (True, 2), (2.5, 3), (3, 3)):
        assert_same(compiled(x, number), f(x, number))
        assert len(counter.graphs) == graphs
    scale.register(int, lambda value: value + 100)
    assert_same(compiled(x, 3), f(x, 3))
    scale.register(Number, lambda value: value + 1000)
    assert_same(compiled(x, Number(3)), f(x, Number(3)))
    assert scale.dispatch(Number)(1) == 1001


class Box:
    def __init__(self, **attributes):
        vars(self).update(attributes)


def views_are_live(a):
    box = Box(first=1, second=2)
    items, keys = vars(box).items(), vars(box).keys()
    box.third = 3
    shown = list(items), len(keys), "third" in keys, keys & {"first"}
    seen = []
    for name, value in vars(box).items():
        if name == "first":
            box.second = 20
        seen.append((name, value))
    return a + len(vars(box)), shown, seen, {**vars(box)}, list(reversed(vars(box)))


def changes_while_iterating(a):
    texts = []
    for change in ("add", "delete"):
        box = Box(first=1, second=2)
        try:
            for name in vars(box):
                if change == "add":
                    setattr(box, name + change, 1)
                else:
                    delattr(box, name)
        except RuntimeError as error:
            texts.append(str(error))
        texts.append(list(vars(box)))
    return a + 1, texts


def broken_loop(a, box):
    made = Box(first=1, second=2)
    for name, value in vars(made).items():
        minidynamo.graph_break()
        a = a + value
        setattr(made, name, value + 5)
    for value in vars(box).values():
        minidynamo.graph_break()
        a = a * value
    rest = iter(vars(box).items())
    next(rest)
    return a, vars(made), list(rest), list(vars(box).keys())


def test_going_over_instance_dicts():
    check(views_are_live, x, fullgraph=True)
    check(changes_while_iterating, x, fullgraph=True)
    check(broken_loop, x, Box(third=3, fourth=4), graphs=None)


def test_context_manager_gets_the_traceback_of_what_a_generator_turned_stop_iteration_into():
    class Swallow:
        def __enter__(self):
            return self

        def __exit__(self, kind, error, traceback):
            minidynamo.graph_break()
            self.seen = kind, str(error), traceback is not None, type(error.__cause__)
            return True

    def fn(x):
        def generator():
            raise StopIteration
            yield

        block = Swallow()
        with block:
            next(generator())
        return x + 1, block.seen

    check(fn, torch.ones(2))


class FilledByNew(OSError):
    pass


class FilledByInit(OSError):
    def __init__(self, message, code=3):
        super().__init__(code, message, "file")
        self.code = code


class NeverFilled(ConnectionError):
    def __init__(self, *, host):
        self.host = host


class WithNew(FilledByNew):
    def __new__(cls, first):
        made = super().__new__(cls, first, "second")
        made.mark = 1
        return made

    def __init__(self, first):
        self.first = first


DERIVED = {
    "no arguments": lambda: FilledByNew(),
    "a text": lambda: FilledByNew("text"),
    "a number alone": lambda: FilledByNew(2, "gone"),
    "a file": lambda: FilledByNew(11, "busy", "file"),
    "two files": lambda: FilledByNew(1, "a", "b", None, "c"),
    "too many": lambda: FilledByNew(1, 2, 3, 4, 5, 6),
    "its own __init__": lambda: FilledByInit("text", code=4),
    "an __init__ that fills nothing": lambda: NeverFilled(host="here"),
    "its own __new__": lambda: WithNew(5),
    "a keyword": lambda: FilledByNew(text="text"),
    "a keyword that does not fit": lambda: FilledByInit(text="text"),
}


@pytest.mark.parametrize("make", DERIVED.values(), ids=DERIVED)
def test_classes_derived_from_os_error(make):
    def state(error):
        return (
            *(type(error).__name__, str(error), repr(error), error.args, error.errno),
            *(error.strerror, error.filename, error.filename2, vars(error)),
        )

    def inside(x):
        try:
            raise make()
        except ConnectionError as error:
            return x + 1, state(error)
        except OSError as error:
            return x + 2, state(error)
        except TypeError as error:
            return x + 3, str(error)

    check(inside, x, graphs=1)
    compiled = minidynamo.compile(lambda x: (make(), x + 1), backend="eager")
    try:
        want = state(make())
    except TypeError as error:
        with pytest.raises(TypeError, match=re.escape(str(error))):
            compiled(x)
    else:
        assert state(compiled(x)[0]) == want


class FilledLater(OSError):
    def __init__(self, message):
        super().__init__(message)
        self.errno, self.filename = 7, "file"


def of_own_class():
    error = FilledByNew(2, "gone")
    error.filename, error.more = "file", 4
    return error


def of_python():
    error = OSError(13, "denied", "file")
    error.strerror, error.filename2 = "refused", "other"
    return error


def without_file():
    error = FilledByNew(1, "a", "b")
    error.filename = None
    return error


@pytest.mark.parametrize(
    "make", [of_own_class, of_python, without_file, lambda: FilledLater("m")]
)
def test_os_errors_whose_fields_are_set(make):
    def fn(x):
        error = make()
        shown = str(error), repr(error), error.args, error.errno, error.strerror
        return x + 1, shown, error.filename, error.filename2, vars(error)

    check(fn, x, graphs=1)
    compiled = minidynamo.compile(lambda x: (make(), x + 1), backend="eager", fullgraph=True)
    made, wanted = compiled(x)[0], make()
    assert (str(made), made.filename, made.filename2) == (
        *(str(wanted), wanted.filename, wanted.filename2),
    )


class Told(OSError):
    def __init__(self, tensor, more):
        super().__init__(tensor)
        self.more = more


def test_os_errors_of_one_tensor():
    def fn(a):
        found = []
        for make in (OSError, FileNotFoundError, lambda value: Told(value, a + 1)):
            try:
                raise make(a * 2)
            except OSError as error:
                found.append((error.args[0] + 1, error.errno, error.filename, len(error.args)))
        shown = OSError([1, 2])
        return found, error_of(a).more, str(shown), repr(shown), shown.args

    def error_of(a):
        return Told(a, a + 3)

    check(fn, x, fullgraph=True)
    error = minidynamo.compile(lambda a: OSError(a * 2), backend="eager", fullgraph=True)(x)
    assert_same(error.args, (x * 2,))
    assert type(error) is OSError and error.errno is None
