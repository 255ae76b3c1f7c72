"""The builtin functions on traced values."""

import copy
import math

import pytest
import testing
import torch

import minidynamo

X = torch.arange(4.0)


def check(fn, *args, breaks=0, graphs=None):
    """Without graph breaks unless said otherwise; how many graphs does not matter."""
    return testing.check(fn, *args, breaks=breaks, graphs=graphs)


class Vector:
    def __init__(self, *parts):
        self.parts = list(parts)

    def __len__(self):
        return len(self.parts)

    def __repr__(self):
        return f"Vector{tuple(self.parts)}"

    def __eq__(self, other):
        return isinstance(other, Vector) and self.parts == other.parts

    def __lt__(self, other):
        return self.parts < other.parts

    def __hash__(self):
        return hash(tuple(self.parts))

    def __abs__(self):
        return sum(abs(p) for p in self.parts)

    def __int__(self):
        return int(self.parts[0])

    def __index__(self):
        return self.parts[0]

    def __round__(self, n=0):
        return Vector(*(round(p, n) for p in self.parts))

    def __format__(self, spec):
        return f"<{spec}>"

    def __bool__(self):
        return bool(self.parts[0])

    def __divmod__(self, other):
        return (self.parts[0] // other, self.parts[0] % other)


@pytest.mark.parametrize(
    "use",
    [
        lambda x, n: (len(x), len([1]), len({}), len("abc"), len(range(n))),
        lambda x, n: (
            isinstance(x, torch.Tensor),
            isinstance(n, int),
            isinstance(n, (str, int)),
        ),
        lambda x, n: (isinstance(x, torch.nn.Parameter), isinstance(n, int | str)),
        lambda x, n: (isinstance(x, torch.FloatTensor), isinstance(x, torch.LongTensor)),
        lambda x, n: (
            isinstance([], list),
            isinstance((), (list, dict)),
            isinstance(None, type(None)),
        ),
        lambda x, n: (isinstance(lambda: 1, type(lambda: 1)), isinstance(print, object)),
        lambda x, n: isinstance(n, "int"),
        lambda x, n: (
            issubclass(bool, int),
            issubclass(int, (str, float)),
            issubclass(type(n), int),
        ),
        lambda x, n: issubclass(n, int),
        lambda x, n: (
            type(x),
            type(n),
            type([]),
            type(None),
            type({}) is dict,
            type(x) is torch.Tensor,
        ),
        lambda x, n: (
            callable(len),
            callable(n),
            callable(lambda: 1),
            callable(int),
            callable(x),
        ),
        lambda x, n: (
            hasattr(x, "shape"),
            hasattr(n, "foo"),
            hasattr([], "append"),
            hasattr({}, "x"),
        ),
        lambda x, n: (getattr(x, "shape"), getattr(n, "foo", 5), getattr([1], "copy")()),
        lambda x, n: getattr(n, "foo"),
        lambda x, n: (
            max(1, n, 3),
            min([4, n]),
            max([1, -5], key=abs),
            min([], default="none"),
        ),
        lambda x, n: max([]),
        lambda x, n: min(()),
        lambda x, n: (max("abc"), max({"b": 1, "a": 2}), max((1, 2), (1, 3)), min({3, 1})),
        lambda x, n: (sum([1, 2]), sum([x, x]), sum([[1], [2]], []), sum((), start=3)),
        lambda x, n: sum(["a"], ""),
        lambda x, n: (any([0, n]), all([0, n]), any([]), all([]), any(v for v in [0])),
        lambda x, n: (
            abs(-n),
            abs(x),
            divmod(7, n),
            pow(n, 2),
            pow(2, 3, 5),
            round(2.567, 1),
            round(2.5),
        ),
        lambda x, n: (round(x), pow(x, 2), divmod(7.5, 2)),
        lambda x, n: (
            int("12"),
            int(2.9),
            int("ff", 16),
            float("1.5"),
            complex(1, 2),
            bool([]),
            int(),
        ),
        lambda x, n: int("zz"),
        lambda x, n: (
            str(n),
            repr("a"),
            str([1, "b"]),
            repr({"a": (1,)}),
            ascii("é"),
            str(),
            str(None),
        ),
        lambda x, n: (
            format(n, "05d"),
            f"{n:>4}",
            f"{n!r:>3}",
            f"{'a'}{n}",
            "{} {}".format(n, [1]),
        ),
        lambda x, n: ("%d %s" % (n, "a"), "%s" % n, "-".join(["a", "b"]), "abc"[::-1], "a" * n),
        lambda x, n: (
            chr(97),
            ord("a"),
            hex(255),
            oct(8),
            bin(5),
            "a,b".split(","),
            "Ab".lower(),
        ),
        lambda x, n: (
            list(range(n)),
            tuple("ab"),
            set([1, 1]),
            frozenset((2,)),
            dict(a=1),
            list(()),
        ),
        lambda x, n: (tuple([x, 1]), list((x,)), dict([("k", x)]), dict({"a": x}, b=n)),
        lambda x, n: (
            sorted([3, 1]),
            sorted("hello"),
            sorted([1, 2], reverse=True),
            list(reversed([1])),
        ),
        lambda x, n: (slice(1, n), range(1, 10, n)[1], range(3) == range(0, 3), 2 in range(5)),
        lambda x, n: (
            hash(3) == hash(3.0),
            hash("a") == hash("a"),
            hash((1, 2)) == hash((1, 2)),
        ),
        lambda x, n: hash([]),
        lambda x, n: (
            math.sqrt(n),
            math.pi,
            math.floor(2.7),
            math.prod([2, n]),
            math.isnan(math.nan),
        ),
        lambda x, n: len(5),
        lambda x, n: iter(5),
        lambda x, n: next([]),
        lambda x, n: abs("a"),
        lambda x, n: -"a",
        lambda x, n: range("a"),
        lambda x, n: list(5),
        lambda x, n: reversed({1}),
        lambda x, n: dict([1]),
        lambda x, n: (n if n else 3, n and "yes", n or "no", not n, n is None, n is not None),
        lambda x, n: ([] == [], () == (), None is None, n == 3 == True),
    ],
)
def test_values(use):
    def fn(x, n):
        try:
            return x + 1, use(x, n)
        except (TypeError, ValueError, AttributeError) as error:
            return x + 1, type(error).__name__, str(error)

    check(fn, X, 3)


@pytest.mark.parametrize(
    "use",
    [
        lambda v: (
            len(v),
            bool(v),
            abs(v),
            int(v),
            str(v),
            repr([v]),
            f"{v}",
            f"{v:q}",
            f"{v!s}",
        ),
        lambda v: (v == Vector(3, 4), v != Vector(3, 4), v < Vector(9, 9), v > Vector(9, 9)),
        lambda v: (
            round(v),
            round(v, 1),
            divmod(v, 2),
            [1, 2, 3, 4][v],
            range(v),
            hash(v) == hash((3, 4)),
        ),
        lambda v: v <= v,
        lambda v: v + 1,
        lambda v: (
            max(v, Vector(1)),
            sorted([v, Vector(1)]),
            v in [Vector(3, 4)],
            {v: 1}[Vector(3, 4)],
        ),
        lambda v: (
            isinstance(v, Vector),
            type(v),
            hasattr(v, "parts"),
            getattr(v, "nope", None),
        ),
        lambda v: float(v),
    ],
)
def test_user_objects(use):
    def fn(x, v):
        try:
            result = use(v)
        except TypeError as error:
            result = str(error)
        return x + 1, repr(result)

    check(fn, X, Vector(3, 4))


def test_setattr_delattr():
    class Holder:
        pass

    def fn(x, holder):
        setattr(holder, "value", x + 1)
        setattr(holder, "gone", 1)
        delattr(holder, "gone")
        try:
            delattr(holder, "never")
        except AttributeError as error:
            return str(error), hasattr(holder, "value")

    check(fn, X, Holder())


def test_vars():
    class Holder:
        def __init__(self):
            self.a = 1

    def fn(x, holder):
        return x + vars(holder)["a"], sorted(vars(holder))

    check(fn, X, Holder())


@pytest.mark.parametrize(
    "use",
    [
        lambda x: print("", end=""),
        lambda x: str(x),
        lambda x: f"{x.sum()}",
        lambda x: "%s" % x.sum(),
        lambda x: [1, 2, 3][x.sum().int() // 6],
        lambda x: range(x.sum().int()),
        lambda x: "a" * x.sum().int(),
        lambda x: locals(),
        lambda x: x.sum() in [1.0, 6.0],
        lambda x: max([x.sum(), x.min()]),
        lambda x: sorted([x.sum(), x.min()]),
    ],
)
def test_what_breaks_the_graph(use):
    def fn(x):
        y = x + 1
        result = use(x)
        return y, repr(result) if not isinstance(result, type) else result.__name__

    check(fn, X, breaks=None)
    with pytest.raises(minidynamo.exc.Unsupported):
        minidynamo.reset()
        minidynamo.compile(fn, backend="eager", fullgraph=True)(X)


def test_id_of_arguments():
    def fn(x, items):
        return x + 1, id(items) == id(items)

    check(fn, X, [1])


def test_id_of_numbers():
    def fn(x, a, b):
        return x + a * b, id(a) == id(b), id(a) != id(b), id(3) == id(a), {id(b): 1}.get(id(a))

    # The third call makes symbols of them, which serve until two are one number.
    numbers = [(1, 2), (4, 5), (6, 7), (8, 9), (3, 5), (7, 7), (9, 9), (5, 9)]
    with minidynamo.config.patch(check_new_guards=True):
        testing.check_recompiles(fn, [(X, *pair) for pair in numbers], 4, fullgraph=True)


def test_copies_of_equal_numbers():
    def fn(x, options):
        copied = copy.deepcopy(options)
        return x * copied["a"] + copied["b"], copied

    numbers = [(1.5, 1.5), (2.5, 3.5), (4.5, 4.5), (5.5, 5.5), (6.5, 7.5), (8.5, 8.5)]
    calls = [(X, dict(a=a, b=b)) for a, b in numbers]
    with minidynamo.config.patch(check_new_guards=True):
        testing.check_recompiles(fn, calls, 3, fullgraph=True)


def test_isinstance_with_metaclass():
    class Meta(type):
        def __instancecheck__(cls, instance):
            return instance == 3

    class Three(metaclass=Meta):
        pass

    def fn(x, n):
        return x + isinstance(n, Three), isinstance(4, Three)

    check(fn, X, 3)


def test_metaclasses_that_answer_change_something():
    asked = []

    class Meta(type):
        def __instancecheck__(cls, instance):
            asked.append(instance)
            return [] if instance == 4 else [1]

        def __subclasscheck__(cls, kind):
            asked.append(kind)
            return 42

    class Any(metaclass=Meta):
        pass

    def fn(x, n):
        asked.clear()
        answers = isinstance(n, (str, Any)), isinstance(4, Any | None), isinstance(Any(), Any)
        answers += issubclass(int, (str, (Any,))), issubclass(Any, Any), issubclass(int, int)
        match n:
            case Any():
                x = x * 2
        return x + 1, answers, list(asked)

    testing.check(fn, X, 3, calls=3, fullgraph=True)
    assert asked == [3, 4, int, Any, 3]


def test_isinstance_abstract():
    from collections.abc import Hashable, Iterable, Mapping, Sequence, Sized

    def fn(x, items, d):
        return (
            x + 1,
            [isinstance(v, Sequence) for v in (items, d, "a", x)],
            [isinstance(v, Mapping) for v in (items, d, x)],
            [isinstance(v, Iterable) for v in (items, d, 3)],
            isinstance(items, Sized),
            isinstance(items, Hashable),
        )

    check(fn, X, [1], {"a": 1})


def test_builtin_passed_around():
    def fn(x, f):
        table = {"len": len, "max": max}
        return (
            x + table["len"]([1]),
            f([1, 2]),
            list(map(int, "12")),
            [k(3) for k in (str, float)],
        )

    check(fn, X, sum)


def test_methods_as_values():
    def fn(x):
        items = []
        add = items.append
        add(x)
        add(1)
        upper = "abc".upper
        return (
            items,
            upper(),
            list(map(str.strip, [" a"])),
            list.__len__(items),
            str.join("-", "ab"),
        )

    check(fn, X)


def test_ascii_of_objects():
    class Text(str):
        pass

    class Shown:
        def __repr__(self):
            return "<\u00e9>"

    def fn(x):
        shown = Shown()
        return (
            x + 1,
            ascii(Text("\u00e9")),
            ascii(shown),
            f"{shown!a}",
            ascii([shown]),
            ascii("a"),
        )

    check(fn, X)
