"""The standard library in captured code: regular expressions, inspect, locals(), weak references,
methods of objects that are not traced.
"""

import collections
import contextlib
import contextvars
import datetime
import decimal
import enum
import inspect
import io
import pickle
import re
import weakref

import pytest
import testing
import torch

import minidynamo
from minidynamo.bytecode import current

X = torch.arange(3.0)
LAYER = re.compile(r"layer\.(\d+)\.(?P<kind>\w+)")
LEVEL = contextvars.ContextVar("level", default=3)
STREAM = io.StringIO()


class Plain:
    def __init__(self, value):
        self.value = value


def check(fn, *args, graphs=None, **options):
    return testing.check(fn, *args, graphs=graphs, **options)


# -- pickles ---------------------------------------------------------------------------------------


def test_pickles_of_constants():
    def cached(x, store, **kwargs):
        key = pickle.dumps(kwargs)
        if key not in store:
            store[key] = x.square().sum()
        return store[key] + 1, key

    check(cached, X, {}, graphs=1, breaks=0, upper=False)
    testing.check(cached, X, {}, fullgraph=True, sizes=[1, (2.5, None)], name=b"a")

    def key_of(x, value):
        return x + 1, pickle.dumps({"value": value})

    values = [1, True, 1.0, 0.0, -0.0, "a", "value", "a"]
    testing.check_recompiles(key_of, [(X, value) for value in values], graphs=7)


def test_pickles_of_what_may_be_one_object():
    def f(x, names):
        shared = [1]
        shared.append(shared)
        return x + 1, pickle.dumps(names), len(pickle.dumps(shared)), pickle.dumps(X.dtype)

    name = "".join(["a", "b"])
    for names in ([name, name], [name, "".join(["a", "b"])]):
        testing.check(f, X, names, graphs=None)


# -- regular expressions ---------------------------------------------------------------------------


def test_matches_of_constants():
    def f(x, name):
        match = LAYER.search(name)
        if match is None:
            return x - 1
        index, kind = match.groups()
        assert match.re is LAYER
        return x + int(index), kind, match["kind"], match.span(), match.groupdict()

    check(f, X, "model.layer.12.weight", graphs=1, breaks=0)
    testing.check_recompiles(f, [(X, "layer.1.a"), (X, "layer.2.b"), (X, "none")], graphs=3)


def test_functions_of_re():
    def f(x, text):
        found = [
            re.findall(r"\d", text),
            re.split(",", text),
            re.sub(r"(\d)", r"<\1>", text, count=1),
            re.subn("a", "b", text),
            re.escape("a.b"),
            [m.group(0) for m in re.finditer("[ab]", text)],
            bool(re.match(re.compile("A", re.I), text)),
            re.fullmatch("a", text),
        ]
        return x + len(found), found

    check(f, X, "a1,b2", graphs=1, breaks=0)


def test_errors_of_re_are_the_program_s():
    def f(x):
        try:
            re.compile("(")
        except re.error as error:
            return x + 1, str(error)
        return x

    check(f, X, graphs=1)


def test_replacement_by_a_function_is_left_to_eager():
    def f(x):
        y = x + 1
        found = []
        text = re.sub("[ab]", lambda m: found.append(m[0]) or "c", "xaybz")
        return y, text, found

    check(f, X, graphs=1)


def test_matches_leave_the_graph():
    def f(x):
        return x + 1, re.match("(a)(b)?", "ac"), re.compile("ab+")

    compiled = minidynamo.compile(f, backend="eager")
    _, match, pattern = compiled(X)
    assert match.groups() == ("a", None)
    assert pattern == re.compile("ab+")


# -- inspect ---------------------------------------------------------------------------------------


def test_inspect_asks_what_an_object_is():
    def f(x):
        asked = [len, f, Plain, Plain(1), Plain(1).__init__, x.add, inspect]
        tests = (inspect.isfunction, inspect.isclass, inspect.ismethod, inspect.ismodule)
        return x + 1, [[bool(test(value)) for value in asked] for test in tests]

    def g(x):
        return f(x)[0], inspect.isroutine(len), inspect.isbuiltin(len), inspect.isgenerator(x)

    check(g, X, graphs=1, breaks=0)


# -- locals() --------------------------------------------------------------------------------------


def test_locals():
    def f(x, *rest, step=2, **named):
        cell = step + 1

        def inner(a, b=5):
            seen = dict(locals())
            return seen, cell

        y = x + 1
        found = locals()
        return y, sorted(found), found["step"], inner(1), named, vars() is None

    check(f, X, 1, 2, graphs=1)


def test_locals_behind_a_graph_break():
    def f(x):
        dead = 5
        y = x + dead
        print(end="")
        seen = locals()
        return y + 1, sorted(seen), seen["dead"]

    check(f, X, graphs=2)


def test_locals_twice():
    def f(x):
        first = locals()
        y = x + 1
        second = locals()
        return y, sorted(second), "first" in second

    check(f, X, graphs=1)


def _same_dict(x):
    first = locals()
    first["own"] = first["x"] = 1
    y = x + 1
    before = sorted(first)
    second = vars()
    del y
    third = locals()
    return x + 1, before, first is second, sorted(second), sorted(third), first["x"] is x


def _same_dict_inlined(x):
    return x + 1, _same_dict(x * 2), _same_dict(x)


def _same_dict_behind_a_break(x):
    first = locals()
    print(end="")
    y = x + 1
    second = locals()
    return first is second, sorted(first), y


def _same_dict_in_a_loop(x):
    seen = []
    for step in range(3):
        seen.append(locals())
        x = x + step
        print(end="")
    return x, [sorted(names) for names in seen], seen[0] is seen[1]


def _dict_is_not_kept(x):
    first = sorted(locals())
    y = x + 1
    print(end="")
    return first, sorted(locals()), y + 1


@pytest.mark.parametrize(
    ("fn", "graphs"),
    [
        (_same_dict, 1),
        (_same_dict_inlined, 1),
        (_same_dict_behind_a_break, 0),
        (_same_dict_in_a_loop, 0),
        (_dict_is_not_kept, 2),
    ],
)
def test_locals_gives_one_dict_for_a_frame(fn, graphs):
    with_one_dict = current.dialect.one_locals_dict
    check(fn, X, graphs=graphs if with_one_dict or graphs else None)


# -- what keeps objects alive ----------------------------------------------------------------------


def test_locals_that_are_not_used_any_more_keep_objects_alive():
    def f(x):
        target = Plain(3)
        reference = weakref.ref(target)
        y = x + 1
        print(end="")
        return y + reference().value

    def g(x, given):
        target = given.pop()
        reference = weakref.ref(target)
        print(end="")
        return x + reference().value

    check(f, X)
    for _ in range(2):
        assert torch.equal(
            minidynamo.compile(g, backend="eager")(X, [Plain(4)]), g(X, [Plain(4)])
        )


# -- objects that are not traced -------------------------------------------------------------------


def test_a_method_of_an_untraced_object_breaks_once():
    def f(x):
        y = x + 1
        return y * LEVEL.get()

    check(f, X, graphs=2, breaks=1)

    def g(x):
        STREAM.seek(0)
        return x + STREAM.write("abc")

    check(g, X, breaks=2)


# -- enums -----------------------------------------------------------------------------------------


def test_an_enum_that_is_being_made():
    class Unique(enum.Enum):
        def __init__(self, value):
            torch.ones(1) + 1
            if any(self.value == other.value for other in self.__class__):
                raise ValueError(f"{value} twice")

    def make():
        try:

            class Color(Unique):
                red = 1
                green = 2
                blue = 3
                lime = 2
        except ValueError as error:
            return str(error)
        return [color.name for color in Color]

    assert make() == "2 twice"
    assert minidynamo.compile(make, backend="eager")() == "2 twice"


def test_new_members_of_flags():
    class Permission(enum.IntFlag, boundary=enum.KEEP):
        READ = 1
        WRITE = 2

    def f(x, bits):
        both = Permission(bits) | Permission.READ
        return x + int(both), Permission.WRITE in both, both.name

    for bits in (2, 6, 8):
        check(f, X, bits)


def making_enums(x):
    kind = enum.Enum("Kind", collections.OrderedDict([("A", 3), ("B", 4)]))
    flags = enum.IntFlag("Flags", "READ WRITE")
    with contextlib.suppress(ValueError):
        kind(7)
    told = [
        kind(4).name,
        repr(kind.A),
        len(kind),
        kind.__members__["B"].value,
        kind.A is kind.A,
    ]
    told += [str(flags(3)), kind.A in {kind.A: 1}]
    return x * kind.B.value + (flags.READ | flags.WRITE), told


def test_enums_made_by_a_call():
    testing.check(making_enums, X, fullgraph=True)
    escaping = minidynamo.compile(
        lambda x: (x + 1, enum.Enum("Kind", "A B").A), backend="eager"
    )
    (_, first), (_, second) = escaping(X), escaping(X)
    assert first.name == "A" and first is not second and type(first) is not type(second)


class Hashed(enum.Enum):
    A = 1
    B = 2

    def __hash__(self):
        ASKED.append(self.name)
        return 7


ASKED = []


@pytest.mark.parametrize("look", [{1: 2}.get, {Hashed.A: 5}.get, {Hashed.B}.__contains__])
def test_members_with_a_hash_of_their_own_are_asked_at_each_call(look):
    testing.check(lambda x: (x + 1, ASKED.clear(), look(Hashed.A), list(ASKED)), X, graphs=None)


# -- hashes ----------------------------------------------------------------------------------------

DATES = [datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2), decimal.Decimal("2.5")]


def test_hashes_of_dates_and_decimals():
    def fn(x, index):
        return x + 1, hash(DATES[index])

    testing.check_recompiles(fn, [(X, 0), (X, 0), (X, 2)], graphs=2, fullgraph=True)
    DATES[2] = decimal.Decimal("3.5")
    testing.check(fn, X, 2, fullgraph=True)
    DATES[2] = decimal.Decimal("sNaN")
    testing.check(fn, X, 2, graphs=None)


# -- torch.fx --------------------------------------------------------------------------------------


def test_map_aggregate():
    Pair = collections.namedtuple("Pair", "a b")

    def fn(x):
        nest = [x, (x, 1), {"a": [2]}, slice(1, None), Pair(3, "b")]
        made = torch.fx.node.map_aggregate(nest, lambda a: a * 2 if a is not None else 0)
        return made, [type(item).__name__ for item in (made, *made)]

    testing.check(fn, X, fullgraph=True)


def test_methods_of_patterns_that_the_program_keeps():
    match, replace = re.compile("a+").match, re.compile("b").sub

    def f(a, text, split=re.compile(",").split):
        found = match(text)
        return a + (found is None), replace("c", text), split(text)

    testing.check(f, torch.ones(3), "aab,b", graphs=1, fullgraph=True)
    testing.check(
        lambda a, find: (a + 1, find("xaay").span()),
        torch.ones(3),
        re.compile("a+").search,
        graphs=1,
    )
    calls = [(torch.ones(3), re.compile(p).match) for p in ("a", "b")]
    testing.check_recompiles(lambda a, find: a + (find("ab") is None), calls, graphs=2)


def test_low_rank_decompositions():
    def f(a):
        u, s, v = torch.svd_lowrank(a, 2)
        principal = torch.pca_lowrank(a, 2)
        return u @ torch.diag(s) @ v.mT, [part.abs() for part in principal]

    rows = torch.randn(6, 2) @ torch.randn(2, 5)
    torch.manual_seed(0)
    testing.check(f, rows, graphs=1, fullgraph=True)


def test_immutable_lists_and_dicts_of_fx():
    def fn(x, items, mapping):
        items = torch.fx.immutable_collections.immutable_list(items)
        said = []
        for change in (lambda: items.append(x), lambda: mapping.update(a=1), items.clear):
            try:
                change()
            except TypeError as error:
                said.append(str(error).splitlines()[0])
        return x + len(items), said, torch.fx.node.map_aggregate(items, lambda a: a + 1)

    mapping = torch.fx.immutable_collections.immutable_dict({"b": 2})
    testing.check(fn, X, [1, (X, 2)], mapping, fullgraph=True)
