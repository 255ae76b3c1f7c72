"""User-defined objects: attribute lookup, stores, descriptors, special methods, new objects."""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import sys
import weakref

import torch
from testing import check, check_recompiles

X = torch.arange(6.0).reshape(2, 3)


class Point:
    scale = 2

    def __init__(self, x, y):
        self.x = x
        self.y = y

    def norm(self):
        return self.x * self.x + self.y * self.y

    @property
    def total(self):
        return self.x + self.y

    @total.setter
    def total(self, value):
        self.x = value - self.y

    @classmethod
    def of(cls, value):
        return cls(value, value + cls.scale)

    @staticmethod
    def double(value):
        return value * 2


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class Fallback:
    def __init__(self):
        self.known = 3

    def __getattr__(self, name):
        if name.startswith("dyn_"):
            return len(name)
        raise AttributeError(name)


class Intercepting:
    def __getattribute__(self, name):
        if name == "magic":
            return 42
        return super().__getattribute__(name)


class Recording:
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)
        object.__setattr__(self, "last", name)

    def __delattr__(self, name):
        self.__dict__["deleted"] = name
        super().__delattr__(name)


class Doubling:
    """A data descriptor written in Python."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        return self if obj is None else getattr(obj, self.name) * 2

    def __set__(self, obj, value):
        setattr(obj, self.name, value)

    def __delete__(self, obj):
        delattr(obj, self.name)


class Described:
    field = Doubling()

    def __init__(self, value):
        self.field = value

    @functools.cached_property
    def cached(self):
        return self.field + 1


class Sequence:
    def __init__(self, items):
        self.items = list(items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

    def __setitem__(self, index, value):
        self.items[index] = value

    def __delitem__(self, index):
        del self.items[index]


class Vector:
    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        if isinstance(other, Vector):
            return Vector(self.value + other.value)
        return NotImplemented

    def __radd__(self, other):
        return Vector(other + self.value)

    def __iadd__(self, other):
        self.value = self.value + other
        return self

    def __neg__(self):
        return Vector(-self.value)

    def __eq__(self, other):
        return isinstance(other, Vector) and self.value is other.value

    def __hash__(self):
        return 7

    def __call__(self, factor, *, plus=0):
        return self.value * factor + plus

    def __bool__(self):
        return self.value is not None

    def __contains__(self, item):
        return item == 3


@dataclasses.dataclass
class Config:
    width: int
    names: list = dataclasses.field(default_factory=list)
    scale: float = 1.5


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: int = 2


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Flag(enum.IntFlag):
    A = 1
    B = 2


# -- attributes ------------------------------------------------------------------------------------


def test_instance_and_class_attributes():
    def fn(p, x):
        return x * p.x + p.y * p.scale + Point.scale

    check(fn, Point(2, 3), X, fullgraph=True)


def test_methods_properties_classmethods():
    def fn(p, x):
        q = Point.of(x)
        return q.norm() + p.total + p.double(x) + Point.double(p.x), type(q) is Point

    check(fn, Point(2, 3), X, fullgraph=True)


def test_stores_are_replayed():
    def fn(p, x):
        p.x = x + 1
        p.new = [x, p.x]
        p.total = 10
        del p.y
        return p.x + 1

    check(fn, Point(2, 3), X, fullgraph=True)


def test_attribute_value_guards():
    p = Point(2, 3)

    def fn(x):
        return x * p.x

    def change(i):
        p.x = [2, 2, 5, 5][i]

    check_recompiles(fn, [(X,)] * 4, graphs=2, change=change)


def test_absent_attribute_is_guarded():
    p = Point(2, 3)

    def fn(x):
        return x * (p.extra if hasattr(p, "extra") else 1)

    def change(i):
        if i == 1:
            p.extra = 4

    check_recompiles(fn, [(X,)] * 3, graphs=2, change=change)


def test_class_attribute_change_is_seen():
    class Local:
        factor = 2

    obj = Local()

    def fn(x):
        return x * obj.factor

    def change(i):
        Local.factor = [2, 3, 3, 4, "no", 2.5][i]

    # A number that changed is symbolic from then on.
    check_recompiles(fn, [(X,)] * 4, graphs=2, change=change)
    check_recompiles(fn, [(X,)] * 6, graphs=None, change=change)


def test_changing_class_does_not_recompile_for_ever():
    """A class that is stored to in each call is guarded by the attributes that are read."""

    class Local:
        factor = 2
        calls = 0

    obj = Local()

    def fn(x):
        return x * obj.factor

    def change(i):
        Local.calls += 1

    check_recompiles(fn, [(X,)] * 8, graphs=2, change=change)


def test_instance_shadows_class_later():
    p = Point(1, 2)

    def fn(x):
        return x * p.scale

    def change(i):
        if i == 2:
            p.scale = 7

    check_recompiles(fn, [(X,)] * 4, graphs=2, change=change)


def test_method_replaced_on_class():
    class Local:
        def f(self, x):
            return x + 1

    obj = Local()

    def fn(x):
        return obj.f(x)

    def change(i):
        if i == 1:
            Local.f = lambda self, x: x + 2

    check_recompiles(fn, [(X,)] * 3, graphs=2, change=change)


def test_slots():
    def fn(s, x):
        s.b = s.a + x
        s.a = 5
        new = Slotted(x)
        return s.b + new.a, hasattr(new, "b"), s.a, s.b

    check(lambda a, x: fn(Slotted(a), x), 2, X, fullgraph=True)


def test_getattr_fallback():
    def fn(f, x):
        return x + f.known + f.dyn_abc + getattr(f, "nothing", 100)

    check(fn, Fallback(), X, fullgraph=True)


def test_getattribute():
    def fn(o, x):
        o.y = 2
        return x + o.magic + o.y

    check(fn, Intercepting(), X, fullgraph=True)


def test_setattr_and_delattr_of_the_class():
    def fn(r, x):
        r.a = x
        r.b = 2
        del r.a
        return r.last, r.deleted, hasattr(r, "a"), x + 1

    check(fn, Recording(), X, fullgraph=True)


def test_python_descriptors_and_cached_property():
    def fn(d, x):
        d.field = d.field + 1
        first = d.cached
        d.field = 100
        return x + d.field + first + d.cached, Described(x).field

    check(fn, Described(2), X, fullgraph=True)


def test_instance_dict():
    def fn(p, x):
        p.__dict__["z"] = x
        keys = list(p.__dict__)
        p.__dict__.update(w=1)
        return x + vars(p)["x"], keys, "z" in p.__dict__, p.__dict__.get("nope", 3), p.w

    check(fn, Point(2, 3), X, fullgraph=True)


def test_missing_attribute_error():
    def fn(p, x):
        try:
            return p.nothing
        except AttributeError as error:
            return x + 1, str(error)

    check(fn, Point(2, 3), X, fullgraph=True)


def test_missing_attribute_uncaught():
    def fn(p, x):
        y = x + 1
        return p.nothing + y

    check(fn, Point(2, 3), X, graphs=None)


# -- special methods -------------------------------------------------------------------------------


def test_sequence_protocol():
    def fn(s, x):
        s[0] = x
        del s[1]
        total = 0
        for item in s:
            total = total + item
        return total, len(s), 4 in Sequence([1, 4]), bool(Sequence([])), s[-1]

    check(fn, Sequence([1, 2, 3]), X, fullgraph=True)


def test_operators():
    def fn(v, x):
        w = v + Vector(x)
        u = x.shape[0] + w
        u += 2
        n = -u
        return n.value, n(2, plus=1), 3 in n, bool(n), v == v, v != w

    check(fn, Vector(3), X, fullgraph=True)


def test_unsupported_operands_raise():
    def fn(v, x):
        try:
            v + "text"
        except TypeError as error:
            return x + 1, str(error)

    check(fn, Vector(3), X, fullgraph=True)


def test_user_hash_in_dict():
    def fn(x):
        key = Vector(x)
        table = {key: 1}
        table[key] = 2
        return len(table), table[key], x + 1

    check(fn, X, fullgraph=True)


def test_iterator_protocol():
    class Countdown:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            if self.n == 0:
                raise StopIteration
            self.n -= 1
            return self.n

    def fn(x):
        for i in Countdown(3):
            x = x + i
        return x, list(Countdown(2)), sum(Countdown(4))

    check(fn, X, fullgraph=True)


def test_context_manager():
    class Manager:
        def __init__(self):
            self.log = []

        def __enter__(self):
            self.log.append("enter")
            return self

        def __exit__(self, kind, value, traceback):
            self.log.append(kind)
            return kind is KeyError

    def fn(m, x):
        with m as same:
            x = x + 1
        with m:
            raise KeyError("a")
        return x, m.log, same is m

    check(fn, Manager(), X, fullgraph=True)


# -- new objects -----------------------------------------------------------------------------------


def test_new_object_is_returned():
    def fn(x):
        p = Point(x + 1, [x])
        p.me = p
        return p, p

    def same(x):
        a, b = fn(x)
        return a is b, a.me is a, a.x, a.y

    check(same, X, fullgraph=True)
    check(lambda x: Point(x + 1, [x]), X, fullgraph=True)


def test_new_object_stored_in_argument():
    def fn(p, x):
        p.child = Point(x, 1)
        p.child.parent_y = p.y
        return p.child.norm()

    check(fn, Point(2, 3), X, fullgraph=True)


def test_dataclasses():
    def fn(c, x):
        new = Config(c.width + 1)
        new.names.append(x)
        frozen = Frozen(3)
        other = dataclasses.replace(c, scale=2.0)
        kept = Config(4, [1])
        return (
            new.names,
            x * c.scale + frozen.b,
            Config(1) == Config(1),
            other.scale,
            frozen,
            kept,
        )

    check(fn, Config(3, ["a"]), X, fullgraph=True)


def test_frozen_dataclass_as_key():
    def fn(x):
        table = {Frozen(1): x}
        return table[Frozen(1)] + 1, Frozen(1) == Frozen(1, 2)

    check(fn, X, fullgraph=True)


def test_frozen_dataclass_refuses_stores():
    def fn(f, x):
        try:
            f.a = 3
        except dataclasses.FrozenInstanceError as error:
            return x + 1, str(error)

    check(fn, Frozen(1), X, fullgraph=True)


def test_enum():
    def fn(c, x):
        if c is Color.RED:
            x = x + 1
        value = Color(2)
        return (
            x + c.value,
            value.name,
            [m.name for m in Color],
            c == Color["RED"],
            Flag.A | Flag.B,
        )

    check(fn, Color.RED, X, fullgraph=True)
    check_recompiles(fn, [(Color.RED, X), (Color.BLUE, X), (Color.RED, X)], graphs=2)


def test_bound_methods_as_values():
    def fn(p, x):
        method = p.norm
        return method() + x, method.__self__ is p, method.__func__ is Point.norm

    check(fn, Point(2, 3), X, fullgraph=True)


def test_object_escapes_through_graph_break():
    def fn(x):
        p = Point(x, 1)
        p.x = p.x + 1
        print(end="")
        p.y = p.x * 2
        return p

    check(fn, X, graphs=2)


def test_same_object_by_two_routes():
    p = Point(1, 2)

    def fn(a, b, x):
        a.x = x + 1
        return b.x * 2

    check_recompiles(fn, [(p, p, X)], graphs=1)
    check_recompiles(fn, [(p, Point(1, 3), X), (p, p, X)], graphs=2)


def test_identity_of_objects_is_guarded():
    p, q = Point(1, 2), Point(1, 2)

    def fn(a, b, x):
        return x + 1 if a is b else x + 2

    check_recompiles(fn, [(p, q, X), (p, p, X), (q, p, X)], graphs=2)


def test_opaque_objects_pass_through():
    token = iter([1]).__reduce__  # a C object that nothing is known of

    def fn(x):
        other = token
        return other, x + 1

    check(fn, X, graphs=1)


def test_members_of_objects_made_by_pybind_are_looked_at_again():
    def fn(schema, x):
        return x + 1 if schema.is_mutable else x.sin(), schema.name

    read, written = (
        op._schema for op in (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)
    )
    check_recompiles(fn, [(read, X), (written, X), (read, X)], graphs=2, fullgraph=True)


def test_object_in_closure():
    p = Point(2, 3)

    def fn(x):
        p.x = p.x * 0 + 3
        return x * p.x

    check(fn, X, graphs=None)


def test_unset_slot():
    def fn(a, x):
        s = Slotted(a)
        try:
            return s.b
        except AttributeError as error:
            return x + s.a, str(error), getattr(s, "b", None)

    check(fn, 2, X, fullgraph=True)
    slotted = Slotted(1)

    def existing(x):
        return x * getattr(slotted, "b", 5)

    def change(i):
        if i == 1:
            slotted.b = 7

    check_recompiles(existing, [(X,)] * 3, graphs=2, change=change)


def test_store_then_delete_then_store():
    def fn(p, x):
        p.z = 1
        del p.z
        p.x = x
        del p.x
        p.x = x + 1
        return p.x, hasattr(p, "z"), list(p.__dict__)

    check(fn, Point(2, 3), X, fullgraph=True)


def test_weak_reference():
    p = Point(2, 3)
    ref = weakref.ref(p)

    def fn(x):
        target = ref()
        return x * target.x if target is not None else x

    check(fn, X, fullgraph=True)


def test_cached_functions():
    calls = []

    @functools.lru_cache
    def settings(n):
        calls.append(n)
        return Point(n, [n])

    def fn(x):
        return x * settings(3).x + len(settings(3).y)

    check(fn, X, fullgraph=True)
    assert calls == [3]


def test_environment(monkeypatch):
    def fn(x):
        flag = os.environ.get("MD_TEST_FLAG")
        return x + 1 if flag is None else x * len(os.getenv("MD_TEST_FLAG", "abc"))

    def change(i):
        if i == 1:
            monkeypatch.setenv("MD_TEST_FLAG", "on")
        elif i == 2:
            monkeypatch.setenv("MD_TEST_FLAG", "off")

    check_recompiles(fn, [(X,)] * 4, graphs=3, change=change)


def test_settings_of_the_interpreter():
    limit = sys.getrecursionlimit()

    def change(i):
        sys.setrecursionlimit(limit + (i > 1))

    def fn(x):
        return x + sys.getrecursionlimit(), sys.get_int_max_str_digits()

    try:
        check_recompiles(fn, [(X,)] * 4, graphs=2, change=change)
    finally:
        sys.setrecursionlimit(limit)
