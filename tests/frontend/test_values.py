"""Values of builtin types: each expression gives what plain Python gives, errors with their text.

A row is one expression over `x` (a tensor), `n` (an int), `s` (a str), `d` (a dict), `items` (a
list); what it raises is compared too.
"""

# ruff: noqa: E501  (one row, one line)
from __future__ import annotations

import collections
import copy
import functools
import math
import operator
import re
import types
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from typing import NamedTuple

import pytest
import torch
from testing import check, check_recompiles

X = torch.arange(3.0)
Pair = collections.namedtuple("Pair", "left right", defaults=[5])


class Typed(NamedTuple):
    a: int
    b: str = "b"

    def twice(self):
        return self.a * 2


class Key:
    """Hashes by value."""

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        return hash(self.value)

    def __eq__(self, other):
        return isinstance(other, Key) and other.value == self.value


NAMES = {
    "ChainMap": ChainMap,
    "Counter": Counter,
    "OrderedDict": OrderedDict,
    "UserDict": UserDict,
    "UserList": UserList,
    "defaultdict": defaultdict,
    "deque": deque,
    "Pair": Pair,
    "Typed": Typed,
    "Key": Key,
    "types": types,
    "operator": operator,
    "functools": functools,
    "copy": copy,
    "torch": torch,
    "re": re,
}


def program(expression):
    """A function that evaluates the expression, and shows its error as a value."""
    text = (
        "def fn(x, n, s, d, items):\n"
        "    try:\n"
        f"        result = {expression}\n"
        "    except Exception as error:\n"
        "        result = type(error).__name__, str(error)\n"
        "    return x + 1, result\n"
    )
    scope = dict(NAMES)
    exec(text, scope)
    return scope["fn"]


def run(expression):
    arguments = X, 3, "spam eggs", {"a": 1, "b": 2, 3: "c"}, [3, 1, 2]
    check(program(expression), *arguments, graphs=None)


NUMBERS = """
n // 2, n % 2, divmod(n, 2), -n // 2, n ** 2, n ** -1, pow(n, 2, 5), pow(n, -1, 5)
n / 0
n % 0
divmod(n, 0)
n << 2, n >> 1, n & 1, n | 4, n ^ 7, ~n
n << -1
n + s
n * s, n * [1], n * (1, 2)
s * 1.5
n.bit_length(), n.real, n.imag, n.numerator, n.denominator, n.conjugate()
n.to_bytes(2, "big"), int.from_bytes(b"\\x01\\x02", "little")
int("12"), int("ff", 16), int("0b11", 0), int(" 7 "), int(2.9), int(True)
int("x")
int("1", 99)
int([])
int("12", base=n)
float("1.5"), float("inf"), float(n), float(" 2e3 ")
float("abc")
float([])
complex(1, 2), complex("1+2j"), complex(n), complex(1, 2) * 2j, abs(3 + 4j), (1 + 2j).conjugate()
complex("x")
complex(1, 2) < 3
round(2.5), round(3.5), round(2.567, 2), round(1234, -2), round(n, 1), round(True)
round(s)
bool(n), bool(0), bool(""), bool("0"), bool([]), bool(None), not n
abs(-n), abs(-2.5), abs(True)
abs(s)
min(n, 2), max(n, 2.5, 7), min(items), max(s), min([], default=n), max(items, key=lambda i: -i)
min([])
max()
min(n)
max(1, s)
sum(items), sum(items, 10), sum([[1], [2]], []), sum(i / 2 for i in items)
sum(["a"], "")
sum([1, s])
bin(n), oct(n), hex(255), chr(97), ord("a"), bin(-5)
chr(-1)
ord("ab")
hex(1.5)
(0.1 + 0.2) == 0.3, 1e308 * 10, -0.0, float("nan") != float("nan")
(2.5).is_integer(), (0.5).as_integer_ratio(), (0.1).hex(), float.fromhex("0x1.8p1")
0.0 ** -1
2.0 // 0.0
n == 3.0, n is None, n < 2.5, n != "3"
n < s
1 < n < 5 > 2, n in (1, 3), n not in items
isinstance(True, int), issubclass(bool, int), type(n) is int
True + True, True & False, True ^ True, ~True
n.__add__(2), n.__radd__(2), n.__add__("a"), n.__eq__("a"), (2).__rsub__(n)
"""

STRINGS = """
s.upper(), s.title(), s.capitalize(), s.swapcase(), s.casefold()
s.split(), s.split("a"), s.split("a", 1), s.rsplit(None, 1), s.splitlines(), s.partition(" ")
s.rpartition("x"), s.find("a"), s.rfind("s"), s.index("e"), s.count("g"), s.replace("g", "G", 1)
s.index("zz")
s.split("")
s.startswith(("x", "sp")), s.endswith("s"), s.removeprefix("sp"), s.removesuffix("gs")
s.startswith(1)
s.center(15, "*"), s.ljust(12), s.rjust(12, "."), s.zfill(12), "\\t".expandtabs(4)
s.center(5, "ab")
s.strip("s"), s.lstrip("sp"), s.rstrip("sg"), " x ".strip()
s.isalpha(), s.isdigit(), s.isspace(), s.islower(), s.isidentifier(), s.isascii(), "²".isdigit()
s.encode(), s.encode("ascii").decode(), s.translate({97: "A", 101: None}), str.maketrans("a", "b")
"é".encode("ascii")
b"\\xff".decode()
",".join(["a", "b"]), "".join(c for c in s), "-".join(d for d in "abc")
",".join([1])
s[0], s[-1], s[2:5], s[::-1], s[::2], s[100:]
s[100]
s["a"]
s + "!", s * 2, "a" in s, s < "t", s == "spam eggs"
s + n
"%s %d %5.2f %x %r %%" % (s, n, 1.5, 255, "a"), "%(a)s" % {"a": 1}, "%-5s|" % s
"%d" % s
"%s %s" % (1,)
"%d" % 1 % 2
"{} {1}".format(1, 2)
"{0} {1} {0!r:>6} {x}".format(s, n, x=5), "{:>10}|{:^5}|{:+d}".format(s, n, n)
"{a}".format()
"{[0]} {.real}".format(items, n), "{:{}}".format(n, 5)
f"{n:05d} {s!r:>12} {1.5:.3e} {n=} {255:#x} {1000000:,} {0.25:%}"
f"{s:d}"
format(n, "08b"), format(1.5, ".2f"), format(s, ">12"), format(None, ""), format(True)
format(n, "z")
repr(s), str(n), ascii("é"), repr([s, n, {1: 2}, (1,), None, 1.5, b"x"]), str({"a": [1]})
str(b"ab", "ascii"), str(), bytes(3), bytes([1, 2]), b"ab" + b"c", b"abc"[1], b"abc"[1:]
bytes([300])
bytes("a")
b"a" + s
b"a b".split(), b"ab".hex(), bytes.fromhex("6162"), b"%d" % n, b"abc".find(b"c"), b"ab" < b"b"
s.isnumeric(), s.isprintable(), s.isdecimal(), s.isalnum(), s.istitle(), s.isupper()
s.nope
s.upper(1)
sorted(s), list(enumerate("ab", 1)), list(zip("ab", "cd")), list(reversed("abc"))
hash(s) == hash("spam eggs"), len(s), len(b"abc"), s is s
"a" < 1
re.sub("a", "b", s), re.match("sp(a)m", s).group(1), re.findall("[a-z]+", s)
"""

CONTAINERS = """
tuple([]) is (), tuple(i for i in []) is tuple({}), (lambda *a: a)() is (), tuple([]) is tuple("a")
items + [4], items * 2, items[0], items[-1], items[1:], items[::-1], items == [3, 1, 2], items < [4]
items[10]
items["a"]
items + (1,)
items.index(2), items.count(1), len(items), 2 in items, sorted(items), sorted(items, reverse=True)
items.index(9)
items.remove(9)
[].pop()
items.pop(9)
(items.append(5), items.insert(0, 9), items.extend("ab"), items.pop(), items.pop(0), items)
(items.sort(key=lambda i: -i), items.reverse(), items.copy(), items.clear(), items)
[1, "a"].sort()
sorted([1, "a"])
(items.__setitem__(slice(0, 2), [7, 8, 9]), items)
items.__setitem__(slice(0, 3, 2), [1])
(items.__delitem__(slice(None, None, 2)), items)
(items.__iadd__([1]), items.__imul__(2), items)
tuple(items), (1, 2) + (3,), (1, 2) * 2, (1, 2, 1).count(1), (1, 2).index(2), (1, 2) < (1, 3)
(1, 2).index(5)
(1,) + [2]
(1, 2)[5]
(1, [2]) == (1, [2]), hash((1, 2)) == hash((1, 2)), () is (), (1, 2)[:1]
hash((1, [2]))
Pair(1), Pair(1, 2)._replace(left=3), Pair(1)._asdict(), Pair._make([7, 8]), Pair._fields
Pair(1, 2).left, Pair(1)[1], Pair(1) == (1, 5), Pair._field_defaults, repr(Pair(1)), [*Pair(1)]
Pair()
Pair(1)._replace(nope=1)
Pair._make([1])
Typed(1).twice(), Typed(1)._replace(b="c"), Typed(2)._asdict(), Typed.__annotations__ == {}
Typed(1).nope
d["a"], d.get("z"), d.get("z", 5), len(d), "a" in d, list(d), list(d.items()), list(d.values())
d["zz"]
d.pop("zz")
{}.popitem()
d[[]]
{[]: 1}
d.pop("zz", n), d.setdefault("a", 9), d.setdefault("q", []), d.pop("a"), d.popitem(), d
(d.update({"a": 5}, z=6), d.update([("k", 1)]), d.update(zip("xy", [1, 2])), d)
d.update([1])
d.update([(1, 2, 3)])
d.update(5)
d | {"a": 9}, {"a": 9} | d, d == {3: "c", "b": 2, "a": 1}, d != {}, dict.fromkeys("ab", 0)
d | [(1, 2)]
(d.__ior__([("a", 7)]), d)
d.keys() & {"a", "q"}, d.keys() - {"a"}, d.keys() >= {"a"}, d.keys() == set(d), d.keys().isdisjoint("z")
d.keys() | ["z"] == {"z"}, ("a", 1) in d.items(), 2 in d.values(), d.items() >= {("a", 1)}
list(reversed(d)), list(reversed(d.items())), next(iter(d)), d.copy() is d, dict(d) == d
dict([("a", 1)], b=2), dict(a=1), dict({"x": 1}, x=2), {**d, "a": 0}, {k: v for k, v in zip("ab", items)}
dict([1])
dict(1)
[type(v).__name__ for v in (d.keys(), d.values(), d.items(), iter(d), reversed(d))]
{1, 2} | {3}, {1, 2} & {2}, {1, 2} - {2}, {1, 2} ^ {2, 3}, {1} < {1, 2}, {1, 2} == {2, 1}
{1} | [2]
{1}.union([2], (3,)), {1, 2}.intersection([2]), {1, 2}.difference([1]), {1}.symmetric_difference([2])
{1}.issubset([1, 2]), {1, 2}.issuperset([1]), {1}.isdisjoint([2]), len({1, 1}), 1 in {1}
{1}.remove(2)
set().pop()
{[]}
set(5)
frozenset([1, 2]) | {3}, {3} | frozenset([1]), hash(frozenset([1])) == hash(frozenset([1])), frozenset() == set()
frozenset([1]).add(2)
sorted({3, 1, 2}), sum({1, 2}), max({1, 5}), {frozenset([1]): 2}[frozenset([1])]
deque([1, 2, 3], maxlen=2), deque("abc"), deque([1, 2]) == deque([1, 2]), deque([1]) + deque([2])
(lambda q: (q.appendleft(0), q.rotate(1), q.extendleft([8, 9]), q.pop(), q.popleft(), q))(deque([1, 2]))
deque().pop()
deque([1]).remove(5)
deque([1], -1)
(lambda q: (q.insert(1, 5), q.index(5), q.count(1), q.reverse(), q[0], q.maxlen, q.copy(), q))(deque([1, 2]))
(lambda q: (q["a"].append(1), q["b"], dict(q), q.default_factory))(defaultdict(list))
defaultdict(None)["a"]
defaultdict(5)
(lambda q: (q.move_to_end("a"), q.popitem(last=False), list(q), q))(OrderedDict(a=1, b=2, c=3))
OrderedDict(a=1, b=2) == OrderedDict(b=2, a=1), OrderedDict(a=1) == {"a": 1}, list(reversed(OrderedDict(a=1, b=2)))
OrderedDict().popitem()
OrderedDict().move_to_end("x")
Counter("abca"), Counter("ab") + Counter("a"), Counter("aab") - Counter("a"), Counter("ab") & Counter("a")
Counter("aabbb").most_common(1), sorted(Counter("ab").elements()), Counter(a=1)["z"], Counter("ab").total()
(lambda c: (c.update("a"), c.subtract("ab"), c, +c, -c))(Counter("ab"))
ChainMap({"a": 1}, {"a": 2, "b": 3})["b"], dict(ChainMap({"a": 1}, {"b": 2})), ChainMap({}).new_child({"z": 1})["z"]
ChainMap({})["q"]
(lambda u: (u.update(b=2), u["b"], len(u), "a" in u, u.data))(UserDict(a=1))
(lambda u: (u.append(5), u + [1], u[0], len(u), u.data))(UserList([3]))
types.MappingProxyType({"a": 1})["a"], list(types.MappingProxyType({"a": 1}))
types.MappingProxyType({})["a"]
(lambda q: (q.a, setattr(q, "b", 5), q.b, q == types.SimpleNamespace(a=1, b=5)))(types.SimpleNamespace(a=1))
types.SimpleNamespace(a=1).zz
range(5)[2], range(5)[1:3], list(range(5, 0, -2)), len(range(0, 10, 3)), 4 in range(5), range(3) == range(0, 3)
range(5)[9]
range(1, 2, 0)
range(1.5)
range(5).index(3), range(5).count(9), range(2, 9, 3).start, range(2, 9, 3).stop, list(reversed(range(3)))
slice(1, 2).start, slice(None, 5).indices(3), slice(1) == slice(None, 1, None), items[slice(1, None)]
(lambda a, *b, c=1, **k: (a, b, c, k))(1, *items, **{"z": 2})
(lambda a: a)()
(lambda a: a)(1, 2)
(lambda a: a)(b=1)
{Key(1): "a"}[Key(1)], Key(1) in {Key(1)}, len({Key(1), Key(1), Key(2)}), Key(1) == 1
[i for i in items if i > 1], {i % 2 for i in items}, {i: -i for i in items}, list(i for i in items)
[a for a, b in [(1, 2)]], [i for j in [[1], [2]] for i in j], sum([[i] * i for i in items], [])
[*items, *"ab"], (*items,), {**{"a": 1}}, [*range(2)], {*items}
torch.Size([1, 2])[0], torch.Size([1, 2]) + (3,), torch.Size([2, 3]).numel(), torch.float32.is_floating_point
x.dtype, x.device.type, x.shape, x.layout, torch.device("cpu") == x.device, torch.contiguous_format
copy.copy(items) is items, copy.deepcopy(d) == d, copy.copy((1, 2)), copy.deepcopy([[1], {2: 3}])
all(items), any([]), any(i > 2 for i in items), list(map(str, items)), list(filter(None, [0, 1]))
list(zip(items, "ab", strict=True))
list(map(lambda a, b: a + b, items, items)), next(iter([]), 5), list(iter([1, 2, 3].pop, 1))
next(iter([]))
next(items)
iter(5)
len(5)
reversed(5)
list(enumerate(items, start=n)), dict(enumerate("ab")), list(reversed(items))
hasattr(items, "append"), getattr(items, "nope", 5), callable(len), callable(n)
getattr(items, "nope")
getattr(items, 5)
setattr(n, "a", 1)
isinstance(n, (str, int)), isinstance(n, int | str), isinstance(None, type(None)), isinstance(items, list)
isinstance(n, 5)
issubclass(5, int)
type(items)([1]), type(d).__name__, type(None), type(...), type(NotImplemented), ... is Ellipsis
operator.itemgetter(0, 1)(items), operator.attrgetter("real")(n), operator.methodcaller("upper")(s)
operator.itemgetter(9)(items)
operator.attrgetter("a.b")(n)
operator.truth(items), operator.concat([1], [2]), operator.countOf(items, 1), operator.indexOf(items, 2)
operator.length_hint(items), operator.contains(items, 1), operator.is_not(n, None), operator.index(n)
operator.index(1.5)
functools.reduce(lambda a, b: a * b, items), functools.reduce(operator.add, [], 5)
functools.reduce(operator.add, [])
functools.partial(pow, 2)(n), functools.partial(int, base=2)("101"), functools.partial(pow, 2).args
sorted(items, key=functools.cmp_to_key(lambda a, b: b - a))
"""


def rows(text):
    return [line for line in text.strip().splitlines() if line]


@pytest.mark.parametrize("expression", rows(NUMBERS))
def test_numbers(expression):
    run(expression)


@pytest.mark.parametrize("expression", rows(STRINGS))
def test_strings(expression):
    run(expression)


@pytest.mark.parametrize("expression", rows(CONTAINERS))
def test_containers(expression):
    run(expression)


# -- guards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "first", "second"),
    [
        (lambda v: len(v), [1], [1, 2]),
        (lambda v: v["a"], {"a": 1}, {"a": 2.5}),
        (lambda v: list(v), {"a": 1}, {"b": 1}),
        (lambda v: v.get("a", 0), {"a": 1}, {}),
        (lambda v: "a" in v, {"a"}, {"b"}),
        (lambda v: sorted(v), {1, 2}, {1, 3}),
        (lambda v: v.left, Pair(1), Pair("1")),
        (lambda v: v[0], (1,), (None,)),
        (lambda v: v.upper(), "a", "b"),
        (lambda v: v.maxlen, deque([1], 2), deque([1], 3)),
        (lambda v: list(v), deque([1]), deque([1, 2])),
        (lambda v: v.default_factory, defaultdict(int), defaultdict(list)),
        (lambda v: list(v), OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
        (lambda v: v.most_common(1), Counter("aab"), Counter("abb")),
        (lambda v: v["a"], ChainMap({}, {"a": 1}), ChainMap({"a": "2"}, {"a": 1})),
        (lambda v: v["a"], UserDict(a=1), UserDict(a="x")),
        (lambda v: v.a, types.SimpleNamespace(a=1), types.SimpleNamespace(a="1")),
        (lambda v: v.start, slice(1, 2), slice(5, 2)),
        (lambda v: list(v), range(2), range(3)),
        (lambda v: v, torch.float32, torch.float64),
        (lambda v: v, True, False),
        (lambda v: v, None, 1),
        (lambda v: v + b"b", b"a", b"c"),
        (lambda v: v * 2, 1j, 2j),
        (lambda v: type(v), 1, True),
        (lambda v: v.value, Key(1), Key("b")),
    ],
)
def test_changed_value_recompiles(read, first, second):
    def fn(x, value):
        return x + 1, str(read(value))

    check_recompiles(fn, [(X, first), (X, first), (X, second)], graphs=2)


@pytest.mark.parametrize(
    "number", [complex(1.0, math.nan), complex(math.inf, 2.0), complex(-0.0, 1.0), 2 - 3j]
)
def test_complex_numbers_in_graphs(number):
    def fn(x):
        return torch.log(torch.tensor([number])), x + number, torch.mul(x, other=number)

    check(fn, torch.tensor([complex(-0.0, -0.0)]), graphs=1)
