"""Objects of the program's own subclasses of int, float and str."""

import pytest
import torch
from testing import CountingBackend, assert_same, check, check_recompiles

import minidynamo
from minidynamo import symbolic_convert

X = torch.arange(6.0).reshape(2, 3) + 1


class Count(int):
    unit = "piece"

    def doubled(self):
        return self * 2

    @property
    def half(self):
        return self / 2


class Scale(float):
    def __mul__(self, other):
        return "scaled", float(self) * other


class Tag(str):
    def __new__(cls, text, owner=None):
        made = super().__new__(cls, text.strip())
        made.owner = owner
        return made

    def __str__(self):
        return f"<{self.upper()}>"


class Mixed(Count):
    def __eq__(self, other):
        return isinstance(other, int) and int(self) % 10 == int(other) % 10

    def __hash__(self):
        return int(self) % 10


def arithmetic(x, n):
    numbers = (
        n + 1,
        1 + n,
        n - 2.5,
        2.5 - n,
        -n,
        abs(n),
        n // 2,
        n % 3,
        2**n,
        n / 4,
        divmod(n, 2),
    )
    more = (n & 1, 7 ^ n, n << 1, True + n, 1j * n, round(n), float(n), int(n), bool(n), n * n)
    return x + 1, numbers, more, [type(number) for number in (*numbers, *more)]


def comparison(x, n):
    return x + 1, n == 3, 3 == n, n < 2.5, 2.5 < n, n != None, n == "3", n >= n, n in (1, 3)  # noqa: E711


def with_tensors(x, n):
    y = x * n + n - (n - x) / n
    y += n
    return y, x > n, n > x, x == n, n == x, torch.full((n,), float(n)), x.repeat(1, n), x**n


def methods(x, n):
    kinds = isinstance(n, int), isinstance(n, Count), type(n) is Count, callable(n)
    own = n.doubled(), n.half, n.unit, n.bit_length(), n.real, n.to_bytes(2, "big")
    return x + 1, kinds, own, f"{n} {n:03d} {n!r}", str(n), hasattr(n, "owner")


def sequences(x, n):
    items = list(range(n))
    return (
        x + 1,
        items,
        [1, 2] * n,
        "ab" * n,
        items[n - 1],
        items[:n],
        [0, 1, 2, 3][n],
        (1,) * n,
    )


def instance_attributes(x, n):
    n.seen = n + 1
    return x + n.seen, n.seen


def made_inside(x):
    n = Count(2) + Count("3")
    tag = Tag(" a ", owner=n)
    return x * Count(4), n, type(Count(7)), tag, tag.owner, Scale(1.5)


@pytest.mark.parametrize(
    "fn",
    [arithmetic, comparison, with_tensors, methods, sequences, instance_attributes],
    ids=lambda fn: fn.__name__,
)
def test_ints(fn):
    check(fn, X, Count(3), fullgraph=True)


def test_objects_made_inside():
    check(made_inside, X, fullgraph=True)


def test_floats_and_overridden_operators():
    def fn(x, s):
        return (
            x * s,
            s + x,
            s * 2,
            2 * s,
            s.is_integer(),
            s.hex(),
            -s,
            s == 1.5,
            x.clamp(max=s + 0),
        )

    check(fn, X, Scale(1.5), fullgraph=True)


def test_own_multiplication_is_asked_before_the_tensor():
    def fn(x, s):
        kind, y = s * x
        return kind, y

    check(fn, X, Scale(1.5), fullgraph=True)


def test_texts():
    def fn(x, t):
        texts = (
            t + "b",
            "b" + t,
            t * 2,
            t[0],
            t.upper(),
            str(t),
            f"{t}",
            f"{t:>4}",
            repr(t),
            len(t),
        )
        tests = (
            "a" in t,
            t == "a",
            "a" == t,
            t < "b",
            bool(t),
            list(t),
            t.owner,
            isinstance(t, str),
        )
        return x + 1, texts, tests, t.startswith(t), {"a": 1}.get(t)

    check(fn, X, Tag("a", owner=3), fullgraph=True, graphs=None)
    check(lambda x, t: (x + 1, {t: 2}["a"]), X, Tag("a"), graphs=None)


def test_own_comparison_and_hash():
    def fn(x, n):
        return x + 1, n == 13, 13 == n, n != 4, {3: "three"}.get(n), n == Mixed(23)

    check(fn, X, Mixed(3), graphs=None)


def test_what_is_formatted_elsewhere():
    def fn(x, n, t):
        return x + 1, "%d" % n, "%s" % t, "{} {}".format(n, t), int(n), ",".join(["a", t])  # noqa: UP031, UP032

    check(fn, X, Count(3), Tag("a"), graphs=None)


def test_errors():
    def fn(x, n, action):
        try:
            return action(n)
        except (TypeError, AttributeError, ZeroDivisionError) as error:
            return x + 1, type(error), str(error)

    for action in (lambda n: n + "a", lambda n: n / 0, lambda n: n(), lambda n: n.missing):
        check(fn, X, Count(3), action, graphs=None)


def test_values_and_classes_are_guarded():
    def fn(x, n):
        return x * n, type(n)

    class Other(Count):
        pass

    calls = [(X, Count(3)), (X, Count(3)), (X, Count(4)), (X, Other(4)), (X, 4)]
    check_recompiles(fn, calls, 4)
    check_recompiles(fn, [(X, Scale(0.0)), (X, Scale(-0.0)), (X, Scale(0.0))], 2)


def test_a_long_computation_is_left_to_eager(monkeypatch):
    monkeypatch.setattr(symbolic_convert, "MAX_IDLE_INSTRUCTIONS", 2000)
    skipped = []

    def fn(x, n):
        total = 0
        for i in range(n):
            total += i
        return x + total

    def after_an_operation(x, n):
        y = x * 2
        total = 0
        for i in range(n):
            total += i
        return y + total

    with minidynamo.events.subscribe(skipped.append, minidynamo.events.FrameEvent):
        check(fn, X, 1000, graphs=0)
        check(after_an_operation, X, 1000, graphs=2)
    assert any("2000 instructions were traced" in event.reason for event in skipped)
    check(fn, X, 100, graphs=1)
    check(fn, X, 1000, graphs=1, fullgraph=True)


def test_a_long_computation_ends_anywhere(monkeypatch):
    def fn(x, args):
        y, log = x * 2, []
        for step in range(2):
            rows = [tuple([a[i] if i < len(a) else None for a in args]) for i in range(3)]
            log += [(lambda k=step: k + len(rows))(), f"{step}{rows!r:>4}"]
        while step:
            step, other = step - 1, step
        return y + other, rows, log

    for limit in range(4, 200):
        monkeypatch.setattr(symbolic_convert, "MAX_IDLE_INSTRUCTIONS", limit)
        check(fn, X, [range(2), range(1)], graphs=None)


def test_operations_start_the_count_anew(monkeypatch):
    monkeypatch.setattr(symbolic_convert, "MAX_IDLE_INSTRUCTIONS", 300)

    def fn(x):
        for _ in range(20):
            x = x + sum(i * i for i in range(5))
        return x

    counter = CountingBackend()
    assert_same(fn(X), minidynamo.compile(fn, backend=counter)(X))
    assert len(counter.graphs) == 1 and counter.op_count == 20


class Whispered(str):
    def __str__(self):
        return "not asked"


def test_join_takes_the_text_itself():
    def fn(x):
        pieces = [Whispered("a"), "b"]
        return (
            x + 1,
            ",".join(pieces),
            Whispered("-").join(tuple(pieces)),
            "".join(p for p in pieces),
        )

    def wrong(x):
        try:
            ",".join([Whispered("a"), 3])
        except TypeError as error:
            return x + 1, str(error)

    check(fn, X, graphs=1, breaks=0)
    check(wrong, X, graphs=1, breaks=0)


def test_texts_that_methods_leave_as_they_are_stay_objects():
    def fn(x):
        t, empty = Whispered("ab"), Whispered("")
        found = (
            t.format(1),
            t.format_map({}),
            t.partition("z")[0],
            t.rpartition("z")[2],
            t % (),
            str.format(t),
        )
        others = (
            t.partition("b")[0],
            t.rpartition("a")[2],
            empty.format(),
            Whispered("{}").format(t),
            Whispered("%%") % (),
        )
        return x + 1, [f is t for f in found], [type(o) is str for o in others]

    check(fn, X, fullgraph=True)
