"""Special methods of user's classes where CPython has rules of its own."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import sys
import types
import typing
import weakref

import pytest
import torch
from testing import check, check_recompiles

import minidynamo

X = torch.arange(3.0)
SCALE = [1]


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int = 1
    b: str = "b"


class BigHash:
    def __hash__(self):
        return 2**62 + 1


class Lower(dict):
    def __getitem__(self, key):
        return dict.__getitem__(self, key.lower())

    def __contains__(self, key):
        return dict.__contains__(self, key.lower())


class SetOnly:
    def __set__(self, owner, value):
        owner.__dict__["field"] = value


class WithSetOnly:
    field = SetOnly()


class Posing:
    __class__ = str


class Huge:
    def __len__(self):
        return sys.maxsize + 1


class Raising:
    def __eq__(self, other):
        raise ValueError("no")

    def __hash__(self):
        return 1


class Counting:
    calls = 0

    def __hash__(self):
        self.calls += 1
        return 5

    def __eq__(self, other):
        return self is other


class Colour(enum.Enum):
    RED = [1]
    BLUE = 2

    @property
    def scaled(self):
        return SCALE[0]

    def times(self, x):
        return x * len(self.name)


class Space(types.SimpleNamespace):
    def total(self):
        return self.a + 1


def error_of(function):
    try:
        return function()
    except Exception as error:
        return type(error).__name__, str(error)


def replace_key(d):
    for key in d:
        del d[key]
        d[key] = 0


def count_hashes():
    key = Counting()
    d = {key: 1}
    d.setdefault(key, 2)
    return key.calls, len(d)


@pytest.mark.parametrize(
    "make",
    [
        lambda: hash(Frozen()) == hash((1, "b")),
        lambda: hash(BigHash()),
        lambda: {Frozen(): 1}[Frozen(1, "b")],
        lambda: Lower(a=1)["A"],
        lambda: "A" in Lower(a=1),
        lambda: isinstance(Posing(), str),
        lambda: isinstance(Posing(), int),
        lambda: error_of(lambda: len(Huge())),
        lambda: error_of(lambda: bool(Huge())),
        lambda: error_of(lambda: {Raising(): 1} == {1: 1}),
        lambda: error_of(lambda: replace_key({0: 0})),
        lambda: error_of(lambda: replace_key(collections.OrderedDict(a=1))),
        count_hashes,
        lambda: Colour.RED.scaled,
        lambda: Colour.BLUE.times(3),
        lambda: Colour.RED.value is Colour.RED.value,
        lambda: Colour(2) is Colour["BLUE"],
        lambda: {Colour.BLUE: 1}[Colour.BLUE],
        lambda: Space(a=4).total(),
        lambda: repr(types.SimpleNamespace(a=1, b="x")),
        lambda: repr(Space(a=1)),
        lambda: types.SimpleNamespace(a=1) == types.SimpleNamespace(a=1),
        lambda: error_of(lambda: types.SimpleNamespace(a=1) < types.SimpleNamespace(a=2)),
        lambda: error_of(lambda: hash(types.SimpleNamespace())),
        lambda: error_of(lambda: dict(**{1: 2})),
        lambda: error_of(lambda: collections.defaultdict(1)),
        lambda: ({3: 4} | collections.defaultdict(int)).default_factory,
        lambda: error_of(lambda: iter(5, 5)),
        lambda: range(10)[: Frozen(3).a],
        lambda: isinstance(int.from_bytes, types.BuiltinMethodType),
    ],
)
def test_as_cpython(make):
    def fn(x):
        return x + 1, make()

    check(fn, X, graphs=None)


def test_descriptor_without_get_comes_after_the_instance_dict():
    def fn(x):
        holder = WithSetOnly()
        is_descriptor = holder.field is vars(WithSetOnly)["field"]
        holder.field = 42
        return x + 1, is_descriptor, holder.field

    check(fn, X)


def test_iterator_of_a_set_over_a_graph_break():
    def fn(x):
        iterator = iter({1, 2, 3})
        first = next(iterator)
        print(end="")
        return x + first, type(iterator).__name__, list(iterator)

    check(fn, X, graphs=None)


def test_special_method_stored_to_a_class():
    def fn(x):
        class Plain:
            pass

        Plain.__len__ = lambda self: 3
        return x + len(Plain())

    check(fn, X, graphs=None)


def test_namespace_recompiles():
    def fn(x, space):
        return x + space.a

    spaces = [types.SimpleNamespace(a=value) for value in (1.0, 1.0, True)]
    check_recompiles(fn, [(X, space) for space in spaces], graphs=2)


def test_enum_argument_recompiles():
    def fn(x, colour):
        return x + len(colour.name)

    check_recompiles(fn, [(X, Colour.RED), (X, Colour.RED), (X, Colour.BLUE)], graphs=2)


def test_property_of_an_enum_is_guarded():
    def fn(x):
        return x + Colour.RED.scaled

    def change(index):
        SCALE[0] = "value" if index == 9 else (1, 1, 2)[index]

    check_recompiles(fn, [(X,)] * 3, graphs=2, change=change)


class Louder(str):
    def __add__(self, other):
        return Louder("<" + str.__add__(self, other))


class Above(int):
    def __add__(self, other):
        return Above(int.__add__(self, other) + 100)

    def __lt__(self, other):
        return not int.__lt__(self, other)

    def __str__(self):
        return "above " + int.__repr__(self)


def test_methods_of_the_base_called_by_name():
    def fn(x, number):
        found = Louder("a") + "b", number + 3, number < 3, str(number)
        return x * (Above(1) + 1), [str(part) for part in found]

    assert check(fn, X, Above(2), graphs=1).op_count == 1
    check_recompiles(fn, [(X, Above(2)), (X, Above(3))], graphs=2)


class Liar:
    def __index__(self):
        return "x"

    def __str__(self):
        return 3


@pytest.mark.parametrize(
    "use",
    [
        lambda liar: [1][liar],
        lambda liar: (1, 2)[liar],
        lambda liar: range(liar),
        lambda liar: [1] * liar,
        lambda liar: [1].pop(liar),
        str,
        "{}".format,
    ],
)
def test_special_methods_that_return_the_wrong_type(use):
    def fn(x):
        try:
            return use(Liar())
        except TypeError as error:
            return x + 1, str(error)

    check(fn, X, graphs=1)


class Bits(enum.IntFlag):
    READ = 1
    WRITE = 2
    RUN = 4

    def __call__(self, x):
        return x * self.value


def test_sets_of_flags_in_the_graph():
    def fn(x, bits):
        return x * (Bits.READ | bits), bits(x), ~Bits.READ & bits

    check_recompiles(fn, [(X, Bits.RUN), (X, Bits.RUN | Bits.WRITE)], graphs=2)


def test_isinstance_of_a_proxy():
    def fn(x):
        return isinstance(weakref.proxy(SUBJECT), Liar), x + 1

    check(fn, X, graphs=None)


SUBJECT = Liar()


class Phase(enum.Enum):
    WARM = 1

    def __init__(self, value):
        self.hits = 0


def test_attributes_of_enum_members_are_guarded():
    def fn(x):
        return x + Phase.WARM.hits, Phase.WARM.value

    def change(index):
        Phase.WARM.hits = 0 if index == 9 else (1, 1, 2)[index]

    check_recompiles(fn, [(X,)] * 3, graphs=2, change=change)

    def counting(x):
        Phase.WARM.hits += 1
        return x * Phase.WARM.hits

    compiled = minidynamo.compile(counting, backend="eager")
    Phase.WARM.hits = 0
    assert [compiled(X)[1].item() for _ in range(3)] == [1, 2, 3]


class EqualToAll(type):
    def __eq__(cls, other):
        return True

    def __hash__(cls):
        return 1


class Chameleon(metaclass=EqualToAll):
    scale = 2


def test_class_that_equals_all_others():
    def fn(x, given):
        made = Chameleon()
        same = isinstance(made, Chameleon), type(made) is Chameleon, Chameleon == "any"
        minidynamo.graph_break()
        return x * made.scale * given.scale, same, isinstance(given, Chameleon)

    check(fn, X, Chameleon(), graphs=1)


class Numeric:
    def __int__(self):
        return 42

    def __float__(self):
        return 4.5

    def __complex__(self):
        return 1j

    def __round__(self, digits=None):
        return "rounded", digits


KINDS = [list, dict, set, tuple, frozenset, collections.deque, collections.OrderedDict]
NUMERIC = [type(f"Numeric{kind.__name__}", (Numeric, kind), {}) for kind in KINDS]


def test_containers_as_numbers():
    def fn(x):
        made = [cls() for cls in NUMERIC]
        numbers = [(int(m), float(m), complex(m), round(m), round(m, 2)) for m in made]
        return x + int(made[0]), numbers

    check(fn, X, graphs=1)


def test_new_object_of_nothing():
    def fn(x):
        try:
            object.__new__()
        except TypeError as error:
            return x + 1, str(error)

    check(fn, X, graphs=1)


class ScaledList(list):
    def __getitem__(self, index):
        return super().__getitem__(index) * 2


class ScaledTuple(tuple):
    def __getitem__(self, index):
        return super().__getitem__(index) * 2


class Other(dict):
    def items(self):
        return [("b", 2)]


class Empty(set):
    def __len__(self):
        return 7

    def __contains__(self, item):
        return False


@pytest.mark.parametrize("kind", [ScaledList, ScaledTuple])
def test_items_of_sequences_with_their_own_getitem(kind):
    def fn(x, items):
        plain = kind.__base__
        stored = (
            plain.__getitem__(items, 1),
            [*plain.__iter__(items)],
            items * 2,
            items + kind([1]),
        )
        return x * items[0], items[1], stored, plain.__len__(items)

    check(fn, X, kind([X, 3]), graphs=1)
    check_recompiles(fn, [(X, kind([X, 3])), (X, kind([X, 3])), (X, kind([X, 4]))], 2)


def test_a_pop_leaves_the_items_that_are_stored():
    def fn(x, items):
        return x + 1, list.pop(items)

    check(fn, X, ScaledList([1, 2, 3]), graphs=1)


def test_methods_of_the_base_class():
    def fn(x, d, s):
        asked = set.__len__(s), set.__contains__(s, 1), len(s), 1 in s
        return x + 1, dict.items(d), d.items(), asked

    check(fn, X, Other(a=1), Empty([1, 2]), graphs=1)
    check(fn, X, Other(a=1), Empty([1, len, torch.float]), graphs=1)


STATE = ["a", 1]


class Told(enum.Enum):
    A = 1
    B = 2

    def __str__(self):
        return STATE[0] + self.name

    def __repr__(self):
        return STATE[0] + "!"

    def __eq__(self, other):
        return STATE[1] == 1

    def __hash__(self):
        return STATE[1]

    def __len__(self):
        return STATE[1]


class ToldInt(enum.IntEnum):
    A = 1

    def __str__(self):
        return STATE[0]

    def __add__(self, other):
        return STATE[1] + int(self)

    def __lt__(self, other):
        return STATE[1] == 1


class ToldMeta(type):
    def __bool__(cls):
        return STATE[1] == 1

    def __eq__(cls, other):
        return STATE[1] == 1

    __hash__ = type.__hash__


class ToldClass(metaclass=ToldMeta):
    def __class_getitem__(cls, key):
        return STATE[0], key


@pytest.mark.parametrize(
    "use",
    [
        lambda: (str(Told.A), repr(Told.A), f"{Told.A}", f"{Told.A:>4}", "%s" % Told.A),
        lambda: ("{}".format(Told.B), str([Told.A]), str({"k": (Told.A,)})),
        lambda: (Told.A == 3, Told.A != 3, 3 == Told.A, Told.A in [3], [Told.A] == [3]),
        lambda: (hash(Told.A), len(Told.A), bool(Told.A), not Told.A, 1 if Told.A else 2),
        lambda: (str(ToldInt.A), ToldInt.A + 1, 1 + ToldInt.A, ToldInt.A < 0, ToldInt.A == 1),
        lambda: (bool(ToldClass), ToldClass == 3, ToldClass != 3, ToldClass[2]),
    ],
)
def test_members_and_classes_that_answer_otherwise_later(use):
    def fn(x):
        return x + 1, use()

    STATE[:] = "a", 1
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for state in (("a", 1), ("b", 0), ("a", 1), ("c", 7)):
        STATE[:] = state
        assert compiled(X)[1] == fn(X)[1]


@typing.runtime_checkable
class HasSize(typing.Protocol):
    size: int

    def grow(self): ...


def test_members_of_protocols_are_guarded():
    def fn(x, thing):
        return x + 1, isinstance(thing, HasSize)

    def thing(**members):
        return types.SimpleNamespace(**members)

    class Object:
        pass

    def made(**members):
        result = Object()
        vars(result).update(members)
        return result

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for members in ({}, {"size": 1}, {"size": 1, "grow": len}, {"size": 1, "grow": None}, {}):
        for kind in (made, thing):
            assert compiled(X, kind(**members))[1] == fn(X, kind(**members))[1]


class Asking(str, enum.Enum):
    """Its methods go on to those of the classes around."""

    A = "a"
    B = "b"

    def __str__(self):
        return str.__str__(self) + super().__str__()

    def __eq__(self, other):
        return super().__eq__(other)

    def __hash__(self):
        return super().__hash__()

    def __len__(self):
        return super().__len__() + 1


class Letter(str, enum.Enum):
    A = "a"


def test_methods_in_c_of_members_are_bound_once():
    """Asked of a member by name: the tracer looked for them until it was out of stack."""
    bound = Letter.A.__eq__

    def fn(a):
        told = Letter.A.__len__(), Letter.A.__eq__("a"), Letter.A.__contains__("a"), bound("b")
        return a + 1, told, Letter.A.__getitem__(0), Letter.A.__hash__() == hash("a")

    check(fn, X)

    def stores(a):
        Letter.A.__setattr__("seen", getattr(Letter.A, "seen", 0) + 1)
        return a + Letter.A.seen

    compiled = minidynamo.compile(stores, backend="eager")
    assert [int(compiled(X)[0]) for _ in range(3)] == [int(X[0]) + n for n in (1, 2, 3)]


class AskingNumber(enum.IntEnum):
    A = 1
    B = 2

    def __str__(self):
        return str(int(self))

    def __add__(self, other):
        return super().__add__(other) * 2

    def __lt__(self, other):
        return super().__lt__(other)

    def __bool__(self):
        return not super().__bool__()


class AskingMeta(abc.ABCMeta):
    def __instancecheck__(cls, instance):
        return hasattr(instance, "tag") and super().__instancecheck__(instance)

    def __subclasscheck__(cls, kind):
        return super().__subclasscheck__(kind)

    def __eq__(cls, other):
        return super().__eq__(other)

    def __hash__(cls):
        return super().__hash__()


class AskingClass(metaclass=AskingMeta):
    tag = 1


@pytest.mark.parametrize(
    "use",
    [
        lambda: (str(Asking.A), f"{Asking.A}", Asking.A == "a", "b" == Asking.A, len(Asking.B)),
        lambda: (Asking.A in ("b", "a"), {"a": 1}[Asking.A], Asking.A < Asking.B),
        lambda: (AskingNumber.A + 1, 1 + AskingNumber.B, f"{AskingNumber.B:03d}"),
        lambda: (f"{AskingNumber.B}", "%d %s" % (AskingNumber.A, AskingNumber.B)),
        lambda: (
            sorted([AskingNumber.B, AskingNumber.A]),
            bool(AskingNumber.A),
            X[AskingNumber.A],
        ),
        lambda: (isinstance(AskingClass(), AskingClass), isinstance(3, AskingClass)),
        lambda: (issubclass(AskingClass, AskingClass), issubclass(int, (str, AskingClass))),
        lambda: (
            AskingClass in [AskingClass],
            AskingClass not in (int,),
            {AskingClass: 1}[AskingClass],
        ),
    ],
)
def test_special_methods_of_members_and_metaclasses_go_on(use):
    check(lambda x: (x + 1, use()), X, graphs=1)
