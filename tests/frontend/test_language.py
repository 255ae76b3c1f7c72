"""The language: generators that outlive a graph, globals by three routes, patterns, deleted names,
exceptions that leave the function; and an opcode table for every version.
"""

import contextlib
import sys
import types

import pytest
import testing
import torch

import minidynamo
from minidynamo.bytecode import OPS
from minidynamo.opcodes import OPCODES

X = torch.arange(3.0)
TOTAL = 0
ME = sys.modules[__name__]


def check(fn, *args, graphs=None):
    return testing.check(fn, *args, graphs=graphs)


# -- opcodes ---------------------------------------------------------------------------------------

# Only in coroutines and async generators, module level code, `except*`: such code is
# not captured, or the graph breaks there. CALL_KW of 3.13 becomes CALL when it is decoded.
NOT_TRACED = {
    "CALL_KW",
    "ASYNC_GEN_WRAP",
    "BEFORE_ASYNC_WITH",
    "CALL_INTRINSIC_2",
    "CHECK_EG_MATCH",
    "END_ASYNC_FOR",
    "EXIT_INIT_CHECK",
    "GET_AITER",
    "GET_ANEXT",
    "GET_AWAITABLE",
    "IMPORT_STAR",
    "INTERPRETER_EXIT",
    "LOAD_CLASSDEREF",
    "PREP_RERAISE_STAR",
    "PRINT_EXPR",
    "RETURN_CONST",
}


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_canonical_opcode_has_a_handler(name):
    assert (name in OPCODES) is not (name in NOT_TRACED)


# -- generators that outlive the graph ---------------------------------------------------------


def echo(first, *more, step=1, **named):
    while True:
        try:
            got = yield first
        except ValueError:
            got = 100
        if got is not None:
            first += got * step


def through(iterable):
    result = yield from iterable
    yield result


class Thrower:
    def __init__(self):
        self.count = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        return self.count

    def throw(self, *error):
        raise StopIteration(77)


def used(generator, act):
    """What is done with a generator outside of the graph."""
    return [
        testing.outcome(act, (generator,), {}),
        next(generator, None),
        next(generator, None),
        generator.__name__,
    ]


ACTS = [next, lambda g: g.send(None), lambda g: g.throw(ValueError), lambda g: g.close()]
ADVANCES = [
    lambda g: None,
    next,
    lambda g: (next(g), g.send(5)),
    lambda g: (next(g), g.throw(ValueError)),
]
MAKERS = [
    lambda: echo(1),
    lambda: echo(1, 2, 3, step=2, other=4),
    lambda: through(echo(1)),
    lambda: through(through(echo(2))),
]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("advance", ADVANCES)
@pytest.mark.parametrize("make", MAKERS)
def test_returned_generators(make, advance, act):
    def fn(x):
        generator = make()
        advance(generator)
        return x + 1, generator

    for function in (fn, minidynamo.compile(fn, backend="eager")):
        x, generator = function(X)
        result = used(generator, act) if act is not None else None
        if function is fn:
            expected = result
    assert result == expected
    assert torch.equal(x, X + 1)


@pytest.mark.parametrize("advance", ADVANCES)
@pytest.mark.parametrize("make", MAKERS)
def test_generators_behind_a_graph_break(make, advance):
    def fn(x):
        generator = make()
        advance(generator)
        minidynamo.graph_break()
        return x + next(generator), generator.throw(ValueError), generator.send(3)

    check(fn, X)


@pytest.mark.parametrize("error", [ValueError, KeyError, GeneratorExit, StopIteration])
@pytest.mark.parametrize("inner", [lambda: echo(1), lambda: [1, 2], Thrower, lambda: range(3)])
def test_throw_into_yield_from(inner, error):
    def fn(x):
        generator = through(inner())
        first = next(generator)
        try:
            return x + 1, first, generator.throw(error)
        except (Exception, GeneratorExit) as raised:
            return x + 2, first, type(raised), str(raised)

    check(fn, X)


@pytest.mark.parametrize("count", range(4))
def test_generator_with_cells_and_cleanup(count):
    def fn(x):
        last = 3

        def inner():
            nonlocal last
            try:
                for last in range(5):
                    yield last * x
            finally:
                last = "end"

        generator = inner()
        for _ in range(count):
            next(generator)
        return x + 1, generator, lambda: last

    for function in (fn, minidynamo.compile(fn, backend="eager")):
        x, generator, last = function(X)
        seen = [last(), next(generator).tolist(), last(), generator.close(), last()]
        if function is fn:
            expected = seen
    assert seen == expected


@contextlib.contextmanager
def noted(log):
    log.append("in")
    try:
        yield len(log)
    finally:
        log.append("out")


def test_break_inside_of_a_context_manager_made_of_a_generator():
    def fn(x, log):
        with noted(log) as depth:
            x = x + depth
            minidynamo.graph_break()
            x = x * 2
        return x, list(log)

    check(fn, X, [])


# -- globals ---------------------------------------------------------------------------------------


def bump(value):
    global TOTAL
    TOTAL += value
    return TOTAL


STORES = [
    lambda: globals().__setitem__("TOTAL", 5),
    lambda: setattr(ME, "TOTAL", 6),
    lambda: bump(2),
    lambda: ME.__dict__.update(TOTAL=7),
    lambda: globals().pop("TOTAL") and bump.__globals__.__setitem__("TOTAL", 9),
]
READS = [
    lambda: TOTAL,
    lambda: globals()["TOTAL"],
    lambda: ME.TOTAL,
    lambda: bump(1),
    lambda: "TOTAL" in globals(),
]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("store", STORES)
def test_globals_are_one(store, read):
    def fn(x):
        store()
        return x + 1, read(), TOTAL

    seen = []
    for function in (fn, minidynamo.compile(fn, backend="eager")):
        ME.TOTAL = 1
        seen.append([function(X)[1:], TOTAL, function(X)[1:], TOTAL])
    assert seen[0] == seen[1]


def test_a_changed_global_recompiles():
    def fn(x):
        return x + globals()["TOTAL"]

    def change(index):
        ME.TOTAL = index // 2

    testing.check_recompiles(fn, [(X,)] * 4, graphs=2, change=change)


# -- names -----------------------------------------------------------------------------------------


def test_a_deleted_argument_stays_deleted_behind_a_break():
    def fn(x, a):
        del a
        minidynamo.graph_break()
        return x, a  # noqa: F821

    check(fn, X, 1)


def test_what_a_raising_instruction_looked_at_is_no_constant():
    def fn(x, index, items):
        for item in iter((1, index)):
            items[index]
        return x + item, item

    testing.check_recompiles(
        fn, [(X, 2, [7]), (X, 2, [7]), (X, -1, [7]), (X, 0, [7])], graphs=2
    )


# -- exceptions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "caught", [(KeyError, (ValueError,)), (int,), [ValueError], 3, (ValueError, None)]
)
def test_what_except_refuses(caught):
    def fn(x):
        try:
            raise ValueError(1)
        except caught:
            return x
        return x + 1

    check(fn, X)


READY = RuntimeError("made before")


def lines(traceback):
    found = []
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == __file__:
            found.append((traceback.tb_frame.f_code.co_name, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found


def raise_in_finally(x):
    try:
        raise ValueError(1)
    finally:
        x.add_(1)


def raise_from(x):
    try:
        {}["a"]
    except KeyError as error:
        raise ValueError(2) from error


def raise_ready(x):
    with noted([]):
        raise READY


@pytest.mark.parametrize("fn", [raise_in_finally, raise_from, raise_ready])
def test_tracebacks_of_what_leaves_the_function(fn):
    seen = []
    for function in (fn, minidynamo.compile(fn, backend="eager")):
        READY.__traceback__ = None
        with pytest.raises((ValueError, RuntimeError)) as info:
            function(X.clone())
        error = info.value
        cause = None if error.__cause__ is None else lines(error.__cause__.__traceback__)
        seen.append((lines(error.__traceback__)[1:], cause, type(error.__context__)))
    assert seen[0] == seen[1]


# -- patterns --------------------------------------------------------------------------------------


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


def with_match_args(value):
    return types.new_class("Odd", (Point,), {}, lambda body: body.update(__match_args__=value))


@pytest.mark.parametrize(
    "class_",
    [Point, *map(with_match_args, [(), ("x",), ["x", "y"], None, ("x", 3), ("x", "x"), "xy"])],
)
@pytest.mark.parametrize("named", [False, True])
def test_class_patterns(class_, named):
    def positional(x, point):
        match point:
            case class_(a, b):
                return x + 1, a, b
            case _:
                return x + 2

    def mixed(x, point):
        match point:
            case class_(a, x=b):
                return x + 1, a, b
            case _:
                return x + 2

    check(mixed if named else positional, X, class_(1, 2))


@pytest.mark.parametrize(
    "subject",
    [
        1,
        "a",
        None,
        [1, 2, 3],
        (1,),
        [],
        {"a": 1},
        {"a": 1, "b": 2},
        {},
        Point(1, 2),
        Point(0, 0),
        2.5,
        True,
        b"x",
        {1, 2},
        ["go", 3],
        ["go", "x"],
        (1, (2, 3)),
    ],
)
def test_patterns(subject):
    def fn(x, subject):
        match subject:
            case Point(x=0):
                return x, "origin"
            case Point(a, b) if a < b:
                return x + a, b
            case True | None:
                return x, "singleton"
            case int() as number:
                return x + number
            case str() | bytes():
                return x, "text"
            case ["go", int(n) | str(n)]:
                return x, n
            case [first, [*inner]]:
                return x + first, inner
            case [first, *rest]:
                return x + first, rest
            case {"a": value, **more}:
                return x + value, more
            case float(value):
                return x + value
            case _:
                return x, "other"

    check(fn, X, subject)


def test_a_mapping_pattern_with_equal_keys():
    class Keys:
        one, same = "a", "a"

    def fn(x, subject):
        match subject:
            case {Keys.one: first, Keys.same: second}:
                return x, first, second

    check(fn, X, {"a": 1})
