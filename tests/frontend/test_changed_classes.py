"""Special methods that a class gets after a function was compiled: no code names them."""

import collections
import operator

import pytest
import testing
import torch

import minidynamo

X = torch.tensor([1.0, 2.0])


def _first(value):
    (item,) = value
    return item


def _deleted(value):
    del value[0]


def _managed(value):
    with value as result:
        return result


def _attribute(value):
    value.kept = 5
    return vars(value)


# What is called, the special method that comes later, and what it gives.
LATER = [
    (lambda a, b: a == b, "__eq__", lambda *args: "equal"),
    (lambda a, b: a != b, "__eq__", lambda *args: True),
    (lambda a, b: a != b, "__ne__", lambda *args: "unequal"),
    (lambda a, b: [a].count(b), "__eq__", lambda *args: True),
    (lambda a, b: b in [1, a], "__eq__", lambda *args: True),
    (lambda a, b: (a, 1) == (b, 1), "__eq__", lambda *args: True),
    (lambda a, b: {1: a}.items() == {1: b}.items(), "__eq__", lambda *args: True),
    (lambda a, b: {1: a}.items() <= {1: b, 2: 3}.items(), "__eq__", lambda *args: True),
    (lambda a, b: {1: a}.items().isdisjoint({1: b}.items()), "__eq__", lambda *args: True),
    (lambda a, b: a < b, "__lt__", lambda *args: "less"),
    (lambda a, b: sorted([a, b])[0] is b, "__lt__", lambda *args: True),
    (lambda a, b: [1, 2][a], "__index__", lambda self: 1),
    (lambda a, b: next(a), "__next__", lambda self: 7),
    (lambda a, b: _first(a), "__iter__", lambda self: iter([3])),
    (lambda a, b: ",".join(a), "__iter__", lambda self: iter("ab")),
    (lambda a, b: bool(a), "__bool__", lambda self: False),
    (lambda a, b: f"{a:>3}", "__format__", lambda self, spec: f"as {spec}"),
    (lambda a, b: [] + a, "__radd__", lambda self, other: "joined"),
    (lambda a, b: _deleted(a), "__delitem__", lambda self, key: None),
    (lambda a, b: _deleted(a), "__setitem__", lambda self, key, value: None),
    (lambda a, b: operator.setitem(a, 0, 1), "__delitem__", lambda self, key: None),
    (lambda a, b: _managed(a), "__enter__", lambda self: 5),
    (lambda a, b: _attribute(a), "__setattr__", lambda self, name, value: None),
    (lambda a, b: a.missing, "__getattr__", lambda self, name: name + "!"),
    (lambda a, b: a.missing, "__getattribute__", lambda self, name: name + "?"),
]


@pytest.mark.parametrize("is_changed_before", [False, True])
@pytest.mark.parametrize(("use", "name", "method"), LATER)
def test_special_methods_that_come_later(use, name, method, is_changed_before):
    class Item:
        count = 0

    def fn(x, a, b):
        return x + 1, use(a, b)

    compiled = minidynamo.compile(fn, backend="eager")
    a, b = Item(), Item()

    def compare():
        testing.assert_same(
            testing.outcome(fn, (X, a, b), {}), testing.outcome(compiled, (X, a, b), {})
        )

    compare()
    if is_changed_before:  # it is guarded attribute by attribute from then on
        for Item.count in (1, 2):
            compare()
    setattr(Item, name, method)
    compare()
    delattr(Item, name)
    compare()


def test_counts_in_a_class_recompile_once():
    class Item:
        count = 0

    def fn(x, item):
        return x + (item == 3)

    backend, item = testing.CountingBackend(), Item()
    compiled = minidynamo.compile(fn, backend=backend)
    for Item.count in range(6):
        testing.assert_same(fn(X, item), compiled(X, item))
    assert len(backend.graphs) <= 2


def subclass(base, **attributes):
    return type("Own", (base,), attributes)()


SUBCLASSES = [
    lambda x: f"{subclass(dict, __format__=lambda self, spec: 'own' + spec)}",
    lambda x: f"{subclass(list, __format__=lambda self, spec: 'own' + spec):5}",
    lambda x: 1 in subclass(ValueError),
    lambda x: _managed(subclass(dict)),
    lambda x: _managed(subclass(collections.deque)),
    lambda x: _deleted(subclass(tuple, __setitem__=lambda *args: None)),
    lambda x: sum([1], subclass(str)),
    lambda x: [] + subclass(int),
    lambda x: () + subclass(int, __radd__=lambda self, other: NotImplemented),
]


@pytest.mark.parametrize("use", SUBCLASSES)
def test_subclasses_of_builtin_classes(use):
    testing.check(lambda x: (x + 1, use(x)), X)


class Comparing(dict):
    def __eq__(self, other):
        return "own"


class Asking(dict):
    def __getattribute__(self, name):
        return "own" if name == "label" else super().__getattribute__(name)


@pytest.mark.parametrize("value", [Comparing(), Asking()])
def test_given_subclasses_of_dict(value):
    value.label = 3
    testing.check(lambda x, value: (x == value, value.label, x + 1), X, value)


def test_attributes_of_given_exceptions():
    def fn(x, error):
        error.note = 1
        del error.note
        return x + 1, vars(error)

    testing.check(fn, X, ValueError())


class Slots:
    __slots__ = ("__dict__", "p")


class Inheriting(Slots):
    pass


def test_slots_are_no_items_of_the_dict():
    def fn(x, given):
        made = Inheriting()
        made.p = given.p = 1
        made.q = given.q = 2
        return x + 1, [("p" in o.__dict__, vars(o).get("p"), vars(o)) for o in (made, given)]

    testing.check(fn, X, Inheriting())


def test_deleting_what_a_class_lacks():
    class Base:
        inherited = 1

    class Item(Base):
        pass

    def fn(x, name):
        try:
            delattr(Item, name)
        except AttributeError as error:
            return x + 1, str(error)

    for name in ("missing", "inherited"):
        testing.check(fn, X, name)


class _Reader:
    def __get__(self, instance, owner):
        return 1


class _Writer:
    def __set__(self, instance, value):
        instance.__dict__["d"] = value * 2


class _Metaclass(type):
    pass


class _Checked(metaclass=_Metaclass):
    pass


class _Base:
    pass


def _reads(x, value):
    return x + value.d


def _writes(x, value):
    value.d = 3
    return x + value.d


def _makes(x, value):
    class Made(_Base):
        v = 1

    return x + Made.v


def _instances(x, value):
    return (
        x + 1,
        isinstance(4, _Checked),
        isinstance([1], (int, _Checked)),
        issubclass(int, _Checked),
    )


@pytest.mark.parametrize(
    ("fn", "descriptor", "cls", "method"),
    [
        (_reads, _Reader(), _Reader, "__set__"),
        (_reads, _Reader(), _Reader, "__delete__"),
        (_reads, _Writer(), _Writer, "__get__"),
        (_writes, _Base(), _Base, "__set__"),
        (_writes, _Reader(), _Reader, "__set__"),
        (_instances, None, _Metaclass, "__instancecheck__"),
        (_instances, None, _Metaclass, "__subclasscheck__"),
        (_makes, None, _Base, "__init_subclass__"),
    ],
)
def test_methods_of_descriptors_metaclasses_and_bases(fn, descriptor, cls, method, monkeypatch):
    value = type("Holder", (), {"d": descriptor})()
    value.__dict__["d"] = 9
    compiled = minidynamo.compile(fn, backend="eager")
    added = classmethod(lambda c: setattr(c, "v", 7))
    if method != "__init_subclass__":
        added = lambda *args: True  # noqa: E731
    for _ in range(2):
        testing.assert_same(compiled(X, value), fn(X, value))
        with monkeypatch.context() as patch:
            patch.setattr(cls, method, added, raising=False)
            testing.assert_same(compiled(X, value), fn(X, value))
    testing.assert_same(compiled(X, value), fn(X, value))
