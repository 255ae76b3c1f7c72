"""What CPython does at the edges of functions, cells, comparisons and exceptions."""

import abc
import cmath
import collections
import contextlib
import copy
import functools
import importlib
import struct
import sys
import types

import pytest
import testing
import torch

import minidynamo

X = torch.arange(3.0)


def check(fn, *args, graphs=None, **options):
    return testing.check(fn, *args, graphs=graphs, **options)


# -- functions made inside -------------------------------------------------------------------------


def stored_defaults(x):
    def f(a, b=1, *, c=2):
        return a + b + c

    f.__defaults__ = (10,)
    f.__kwdefaults__ = {"c": 100}
    return x + f(0), f.__defaults__, f.__kwdefaults__


def keyword_defaults_in_place(x):
    def f(*, a=1):
        return a

    f.__kwdefaults__["a"] = 4
    return x + f(), f


def parts_of_a_function(x):
    def f(a, b: int = 2) -> str:
        return a

    f.__annotations__["c"] = float
    f.k = 1
    del f.k
    return x + f.__code__.co_argcount, f.__annotations__, f.__closure__, hasattr(f, "k"), f


def parts_that_are_refused(x):
    def f():
        return 1

    texts = []
    for name, value in (
        ("__defaults__", [1]),
        ("__kwdefaults__", 1),
        ("__name__", 1),
        ("__closure__", None),
        ("__globals__", {}),
    ):
        try:
            setattr(f, name, value)
        except (TypeError, AttributeError) as error:
            texts.append((type(error), str(error)))
    return x + 1, texts


def cell_contents(x):
    n = 3

    def f():
        return n

    f.__closure__[0].cell_contents = 7
    return x + f(), n


def calls_that_do_not_fit(x):
    def f(a, b=1, *, c):
        return a

    texts = []
    calls = [((), {}), ((1, 2, 3), {"c": 1}), ((1,), {"d": 1}), ((1,), {}), ((1,), {"a": 2})]
    for args, kwargs in calls:
        try:
            f(*args, **kwargs)
        except TypeError as error:
            texts.append(str(error))
    return x + 1, texts


def unbound_cells(x):
    n = 1

    def f():
        return n  # noqa: F821

    del n
    texts = []
    try:
        f()
    except NameError as error:
        texts.append((type(error), str(error)))
    try:
        texts.append(n)  # noqa: F821
    except UnboundLocalError as error:
        texts.append(str(error))
    try:
        del n  # noqa: F821
    except UnboundLocalError as error:
        texts.append(str(error))
    return x + 1, texts


@pytest.mark.parametrize(
    "program",
    [
        stored_defaults,
        keyword_defaults_in_place,
        parts_of_a_function,
        parts_that_are_refused,
        cell_contents,
        calls_that_do_not_fit,
        unbound_cells,
    ],
    ids=lambda program: program.__name__,
)
def test_functions_made_inside(program):
    check(program, X, graphs=1, breaks=0)


def test_a_changed_code_is_left_to_eager():
    def program(x):
        def f():
            return 1

        def g():
            return 2

        f.__code__ = g.__code__
        return x + f()

    check(program, X, graphs=1, breaks=1)


def test_defaults_count_from_the_end():
    def f(a, b=1):
        return a + b

    def change(index):
        f.__defaults__ = [(1,), (1, 6), (1,)][index]

    testing.check_recompiles(lambda x: f(x), [(X,)] * 3, graphs=2, change=change)


# -- operators -------------------------------------------------------------------------------------


class Base:
    def __eq__(self, other):
        ORDER.append("Base")
        return NotImplemented

    def __radd__(self, other):
        return "Base"

    __hash__ = None


class Family(abc.ABC):  # noqa: B024 (its subclasses are virtual)
    def __eq__(self, other):
        ORDER.append("Family")
        return NotImplemented

    def __add__(self, other):
        return "Family"

    __hash__ = None


Family.register(Base)
ORDER = []


def test_a_virtual_subclass_does_not_go_first():
    def f(x):
        ORDER.clear()
        equal = Family() == Base()
        return x + 1, equal, list(ORDER), Family() + Base()

    check(f, X, graphs=1)


class Shown:
    def __format__(self, spec):
        return 1.0


def details(x):
    found = []
    try:
        format(Shown(), "")
    except TypeError as error:
        found.append(str(error))
    part = [1, 2]
    cut = slice(part, 3)
    part.append(3)
    found.append(cut.start)
    items = [1, 2]

    def key(item):
        items.append(3)
        items.pop()
        return item

    try:
        items.sort(key=key)
    except ValueError as error:
        found.append(str(error))
    try:
        raise
    except RuntimeError as error:
        found.append(str(error))
    return x + 1, found, cut.start is part, copy.copy(cut).start is part


def test_details():
    check(details, X)


def test_numbers_that_are_symbols_compare_as_numbers():
    def f(x, a, b):
        return x + a, a is b, a is not b, [a] == [b], a in [b], a == True  # noqa: E712

    compiled = minidynamo.compile(f, backend="eager", dynamic=True)
    for a, b in ((5, 5), (7, 8), (2.5, 3.5), (1, True), (2.0, 2)):
        testing.assert_same(compiled(X, a, b), f(X, a, b))


def test_equal_floats_are_guarded_by_value():
    def f(x, a, b):
        return x + a if a == b else x - a

    testing.check_recompiles(f, [(X, 2.5, 2.5), (X, 3.5, 3.5)], graphs=1, dynamic=True)
    testing.check_recompiles(f, [(X, 2.5, 2.5), (X, 3.5, 4.5)], graphs=2, dynamic=True)


# -- exceptions and classes ------------------------------------------------------------------------


def test_texts_of_exceptions_that_exist():
    def f(x, error):
        return x + 1, str(error)

    for error in (OSError(2, "no file", "name"), ExceptionGroup("many", [ValueError()])):
        check(f, X, error)

    def value(x, stop):
        return x + 1, stop.value

    stop = StopIteration(1)
    stop.value = 2
    check(value, X, stop)


def test_truth_of_not_implemented_warns():
    def f(x):
        return x + 1, not NotImplemented

    compiled = minidynamo.compile(f, backend="eager")
    with pytest.warns(DeprecationWarning):
        compiled(X)


def test_names_that_a_class_refuses():
    class C:
        pass

    def f(x):
        texts = []
        for name in ("C", "a\0b", b"C", "D"):
            try:
                C.__name__ = name
            except (TypeError, ValueError) as error:
                texts.append(str(error))
        return x + 1, texts, C.__name__

    check(f, X)


def test_annotations_of_a_class_without_them():
    class C:
        pass

    check(lambda x: (x + 1, C.__annotations__), X)


def test_names_that_a_module_lacks():
    def f(x):
        try:
            from math import nothing_of_this_name as found
        except ImportError as error:
            found = str(error)
        return x + 1, found

    check(f, X)


# -- what is being handled -------------------------------------------------------------------------


def reraise():
    raise


def handled():
    return sys.exc_info()[0], sys.exception()


@contextlib.contextmanager
def failing_at_exit(text, log):
    try:
        yield text
    except IndexError as error:
        log.append(str(error))
        raise
    finally:
        raise KeyError(text)


def raised_in_a_callee(x):
    try:
        try:
            raise ValueError("a")
        except ValueError:
            reraise()
    except ValueError as error:
        return x + 1, str(error), handled()[0], handled()[1] is error


def state_of_handlers(x):
    try:
        1 / 0
    except ZeroDivisionError as error:
        found = sys.exc_info()
        return x + 1, found[0], found[1] is error, found[2] is error.__traceback__


def traceback_of_what_was_not_raised(x):
    error = ValueError(1)
    return x + 1, error.__traceback__, error.with_traceback(None) is error


def stack_of_contexts(x):
    log = []
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(log.append, "last")
            stack.enter_context(failing_at_exit("a", log))
            stack.enter_context(failing_at_exit("b", log))
            stack.push(lambda *args: log.append(args[0]))
            raise IndexError("i")
    except KeyError as error:
        return x + 1, str(error), repr(error.__context__), log


def suppressed(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(ValueError))
        raise ValueError
    return x + 1


@pytest.mark.parametrize(
    "program",
    [
        raised_in_a_callee,
        state_of_handlers,
        traceback_of_what_was_not_raised,
        stack_of_contexts,
        suppressed,
    ],
    ids=lambda program: program.__name__,
)
def test_what_is_being_handled(program):
    check(program, X, graphs=1, breaks=0)


def test_tracebacks_that_are_looked_at_are_real():
    def f(x):
        x = x + 1
        try:
            raise ValueError("a")
        except ValueError as error:
            return x, error.__traceback__.tb_lineno

    check(f, X)


def test_handlers_outside_of_the_graph():
    compiled = minidynamo.compile(lambda x: (x + 1, handled()), backend="eager")
    assert compiled(X)[1] == (None, None)
    error = ValueError("outside")
    try:
        raise error
    except ValueError:
        assert compiled(X)[1] == (ValueError, error)
    assert compiled(X)[1] == (None, None)


# -- results of builtin types ----------------------------------------------------------------------


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


Pair = collections.namedtuple("Pair", "a b")


class NamesAll(type):
    def __getattr__(cls, name):
        return name


class Named(metaclass=NamesAll):
    pass


def kinds_of_results(x):
    table = {"a": 1, "b": 2}
    return (
        x + 1,
        table.keys() - frozenset("a"),
        type(table.keys() ^ frozenset("z")),
        type(reversed(range(3))),
        [].append.__name__,
        "%s-%r" % Pair(1, "a"),
        repr(Pair(1, 2)),
        float.fromhex("0x1.8p1"),
        int.from_bytes(b"\1\2", "big"),
        "all".translate(str.maketrans("l", "L")),
        cmath.sqrt(-1),
        struct.unpack("<I", struct.pack("<I", 5)),
        (1).__lt__("a"),
        type(Named()),
    )


def test_kinds_of_results():
    check(kinds_of_results, X, graphs=1, breaks=0)


def test_kinds_of_results_that_eager_finds():
    def f(x):
        texts = []
        for call in (lambda: type(), lambda: type(a=1), lambda: isinstance(1)):
            try:
                call()
            except TypeError as error:
                texts.append(str(error))
        return x + 1, range(10)[Index(1) : Index(5)], texts

    check(f, X)


def test_slots_of_objects_are_guarded_by_what_they_are_bound_to():
    table = {}

    def program():
        length = table.__len__
        return lambda x: x + length()

    add_length = program()
    testing.check_recompiles(lambda x: add_length(x), [(X,), (X,)], graphs=1)
    table["a"] = 1
    testing.check_recompiles(lambda x: add_length(x), [(X,)], graphs=1)


def test_annotations_of_wrapped_functions_are_one_dict():
    def f(x):
        def inner(y: int) -> int:
            return y

        @functools.wraps(inner)
        def outer(y):
            return inner(y)

        return x + 1, outer.__annotations__ is inner.__annotations__, outer.__annotations__

    check(f, X, graphs=1, breaks=0)


# -- iterators over lists that grew ----------------------------------------------------------------


def stopped_while_zipping(x, items):
    for item in [1, 2]:
        items.append(item)
    return x + 1, [p + q for p, q in zip(items, [1, *items, 1], strict=True)]


def stopped_behind_what_was_added(x, items):
    items += [3, 4]
    iterator = iter(items)
    found = [next(iterator) for _ in range(4)]
    minidynamo.graph_break()
    items.append(5)
    return x + 1, found, list(iterator)


def advanced_behind_what_was_added(x, items, iterator):
    items += [3, 4]
    found = [next(iterator), next(iterator), next(iterator)]
    minidynamo.graph_break()
    return x + 1, found, list(iterator)


def test_iterators_over_lists_that_grew():
    check(stopped_while_zipping, X, [1, 2])
    check(stopped_behind_what_was_added, X, [1, 2])
    compiled = minidynamo.compile(advanced_behind_what_was_added, backend="eager")
    items = [1, 2]
    _, found, rest = compiled(X, items, iter(items))
    assert (found, rest, items) == ([1, 2, 3], [4], [1, 2, 3, 4])


def test_first_import_of_a_submodule_of_a_loaded_package(tmp_path, monkeypatch):
    """`from package import module` imports the module before it asks the package for it."""
    package = tmp_path / "md_package"
    package.mkdir()
    (package / "__init__.py").write_text("known = 2\n")
    (package / "lazy.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("md_package")

    def forget():
        sys.modules.pop("md_package.lazy", None)
        vars(sys.modules["md_package"]).pop("lazy", None)

    def f(x):
        from md_package import known, lazy

        return x * known + lazy.value

    def missing(x):
        from md_package import nothing

        return x + nothing

    minidynamo.reset()
    compiled = minidynamo.compile(f, backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(X), X * 2 + 3)
        assert torch.equal(compiled(X), X * 2 + 3)
        forget()
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        minidynamo.compile(missing, backend="eager")(X)
    sys.modules.pop("md_package")


def test_annotations_of_a_module_that_are_deleted_twice():
    def f(x):
        module = types.ModuleType("made")
        module.__annotations__ = {}
        del module.__annotations__
        try:
            del module.__annotations__
        except AttributeError:
            return x + 1
        return x + 2

    check(f, X, graphs=None)


def test_a_text_that_was_computed_is_not_one_of_the_code():
    def f(x):
        first = second = "abcdef"
        made = first[:3] + second[3:]
        y = x + 1
        print(end="")
        again = "".join([made[:2], made[2:]])
        return y * 2, first is second, made is first, made is again, made

    def g(x):
        made = f(x)[-1]
        return x + 1, made is "abcdef"[:6], made is f(x)[-1]

    check(f, torch.ones(2), graphs=2)
    check(g, torch.ones(2), graphs=None)
