"""Guards on attributes and dict items notice every way of changing them, and nothing else.

The programs are made from raw tables and nothing else of the package is imported, so that this runs
on every CPython version, with or without torch. Each program is run until it has its snapshot
(which compares dict and class versions) before anything is changed.
"""

import collections
import contextlib
import gc
import sys
import types
import weakref

import pytest

with contextlib.suppress(ImportError):
    import torch  # noqa: F401  (loads the libraries that the extension may need)

_C = pytest.importorskip("minidynamo._C")
if not hasattr(_C, "GuardProgram"):
    pytest.skip("built without guard programs", allow_module_level=True)


def function(o): ...


def program(nodes, checks, fetch=()):
    return _C.GuardProgram(nodes, checks, [], list(fetch))


def holds(guards, value):
    return guards.check([value], function)[0]


def warm(guards, value):
    """Run until unchanged objects are compared by their snapshot."""
    for _ in range(3):
        assert holds(guards, value)
    assert guards.statistics["words"] > 0
    walks = guards.statistics["walks"]
    assert holds(guards, value)
    assert guards.statistics["walks"] == walks
    return guards


class Plain:
    shadowed = "of the class"

    def __init__(self):
        self.a = 1
        self.b = "text"
        self.c = None


class Slotted:
    __slots__ = ("__dict__", "a_slot")


def plain():
    return Plain()


def with_dict_taken():
    o = Plain()
    o.__dict__  # noqa: B018
    return o


def with_dict_set():
    o = Plain()
    o.__dict__ = {"a": 1, "b": "text", "c": None}
    return o


def slotted():
    o = Slotted()
    o.a, o.b, o.c = 1, "text", None
    return o


def module():
    o = types.ModuleType("made_here")
    o.a, o.b, o.c = 1, "text", None
    return o


def a_function():
    def o(): ...

    o.a, o.b, o.c = 1, "text", None
    return o


MAKERS = [plain, with_dict_taken, with_dict_set, slotted, module, a_function]


def attribute_program(name, kind, expected):
    nodes = [(-1, "LOCAL", 0), (0, "INSTANCE_DICT", None), (1, "DICT_ITEM", name)]
    return program(nodes, [(2, kind, expected)])


def swap_dict(o):
    if isinstance(o, types.ModuleType):
        pytest.skip("the dict of a module cannot be swapped")
    o.__dict__ = {**o.__dict__, "a": 2}


def through_descriptor(o):
    object.__setattr__(o, "a", 2)


def popitem_and_add(o):
    while "a" in o.__dict__:
        o.__dict__.popitem()
    o.a = 2


def change_by_exec(o):
    exec("a = 2", {}, o.__dict__)


def merged(o):
    namespace = o.__dict__
    namespace |= {"a": 2}


CHANGES = {
    "attribute": lambda o: setattr(o, "a", 2),
    "object.__setattr__": through_descriptor,
    "item": lambda o: o.__dict__.__setitem__("a", 2),
    "update": lambda o: o.__dict__.update(a=2),
    "update by pairs": lambda o: o.__dict__.update([("a", 2)]),
    "|=": merged,
    "pop": lambda o: o.__dict__.pop("a"),
    "popitem": popitem_and_add,
    "delete": lambda o: delattr(o, "a"),
    "delete item": lambda o: o.__dict__.__delitem__("a"),
    "clear": lambda o: o.__dict__.clear(),
    "delete and add": lambda o: (delattr(o, "a"), setattr(o, "a", 2)),
    "clear and setdefault": lambda o: (o.__dict__.clear(), o.__dict__.setdefault("a", 2)),
    "exec": change_by_exec,
    "another dict": swap_dict,
    "equal of another type": lambda o: setattr(o, "a", True),
}


@pytest.mark.parametrize("make", MAKERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_every_change_of_an_attribute_is_noticed(make, change):
    o = make()
    guards = warm(attribute_program("a", "CONST_EQ", 1), o)
    change(o)
    assert not holds(guards, o)
    o.a = 1
    assert holds(guards, o)
    change(o)
    assert not holds(guards, o)


@pytest.mark.parametrize("make", MAKERS, ids=lambda f: f.__name__)
def test_specialised_stores_are_noticed(make):
    """CPython rewrites hot attribute stores to ones that go past the ordinary dict functions."""

    def store(o, value):
        o.a = value

    o = make()
    for _ in range(200):
        store(o, 1)
    guards = warm(attribute_program("a", "CONST_EQ", 1), o)
    for value in (2, 1, 3, 1, 1.0, 1):
        store(o, value)
        assert holds(guards, o) == (type(o.a) is int and o.a == 1)


@pytest.mark.parametrize("make", MAKERS, ids=lambda f: f.__name__)
def test_same_object_again_is_no_change(make):
    o = make()
    guards = warm(attribute_program("a", "CONST_EQ", 1), o)
    o.a = 1
    o.__dict__["a"] = 1
    o.__dict__.update(a=1)
    assert holds(guards, o)


@pytest.mark.parametrize("make", MAKERS, ids=lambda f: f.__name__)
def test_other_attributes_do_not_matter(make):
    o = make()
    guards = warm(attribute_program("a", "CONST_EQ", 1), o)
    walks = guards.statistics["walks"]
    for i in range(20):
        o.b = i
        setattr(o, f"new_{i}", i)
        assert holds(guards, o)
    del o.c
    assert holds(guards, o)
    assert guards.statistics["walks"] == walks, "a change elsewhere needs no walk"
    assert guards.statistics["repairs"] > 0


def test_new_float_at_the_address_of_the_old():
    """Freed floats are used again: the address alone says nothing."""
    o = Plain()
    o.a = float("2.5")
    guards = warm(attribute_program("a", "CONST_EQ", float("2.5")), o)
    for value in ("3.5", "2.5", "4.5", "-2.5", "2.5"):
        del o.a
        o.a = float(value)
        assert holds(guards, o) == (value == "2.5")


def test_lacking_attribute():
    o = Plain()
    nodes = [(-1, "LOCAL", 0), (0, "INSTANCE_DICT", None)]
    guards = warm(program(nodes, [(1, "DICT_LACKS", "shadowed")]), o)
    o.shadowed = "of the instance"
    assert not holds(guards, o)
    del o.shadowed
    assert holds(guards, o)
    o.__dict__["shadowed"] = None
    assert not holds(guards, o)


def test_objects_without_a_dict_lack_everything():
    nodes = [(-1, "LOCAL", 0), (0, "INSTANCE_DICT", None)]
    lacks = program(nodes, [(1, "DICT_LACKS", "a")])
    has = program(nodes, [(1, "DICT_HAS", "a")])
    for value in (1, "text", (), [], object(), len):
        assert holds(lacks, value)
        assert not holds(has, value)
    f = a_function()
    assert not holds(lacks, f)

    def bare(): ...

    for _ in range(4):
        assert holds(lacks, bare)
    bare.a = 1
    assert not holds(lacks, bare)


def test_instance_dict_of_a_class_is_refused():
    nodes = [(-1, "LOCAL", 0), (0, "INSTANCE_DICT", None)]
    assert not holds(program(nodes, [(1, "DICT_LACKS", "a")]), Plain)


def test_dicts_stay_readable_and_alive():
    o = Plain()
    guards = warm(attribute_program("a", "CONST_EQ", 1), o)
    namespace = o.__dict__
    o.d = 4
    assert namespace == {"a": 1, "b": "text", "c": None, "d": 4}
    namespace["e"] = 5
    assert o.e == 5
    assert vars(o) is namespace
    assert holds(guards, o)
    del o
    gc.collect()
    assert namespace["e"] == 5


class TestDictItems:
    nodes = [(-1, "LOCAL", 0), (0, "DICT_ITEM", "a")]

    @pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.defaultdict])
    def test_kinds_of_dicts(self, kind):
        d = kind()
        d["a"], d["b"] = 1, 2
        guards = warm(program(self.nodes, [(1, "CONST_EQ", 1), (0, "LEN_EQ", 2)]), d)
        d["b"] = 3
        assert holds(guards, d)
        d["c"] = 3
        assert not holds(guards, d)
        del d["c"]
        assert holds(guards, d)
        d["a"] = 2
        assert not holds(guards, d)

    def test_subclass(self):
        class Loud(dict):
            def __getitem__(self, key):
                raise AssertionError("asked")

        d = Loud(a=1)
        guards = warm(program(self.nodes, [(1, "CONST_EQ", 1)]), d)
        d["a"] = 2
        assert not holds(guards, d)

    @pytest.mark.parametrize("key", [1, True, 1.5, None, "k", b"k", (1, ("x", None)), 1j])
    def test_constant_keys(self, key):
        d = {key: "here", "other": 0}
        guards = warm(
            program([(-1, "LOCAL", 0), (0, "DICT_ITEM", key)], [(1, "CONST_EQ", "here")]), d
        )
        d["other"] = 1
        assert holds(guards, d)
        d[key] = "there"
        assert not holds(guards, d)

    def test_object_keys_by_identity(self):
        class Key:
            def __hash__(self):
                return 1

            def __eq__(self, other):
                raise AssertionError("compared")

        key, other = Key(), Key()
        d = {key: 1}
        nodes = [(-1, "LOCAL", 0), (0, "DICT_ITEM", key)]
        guards = warm(program(nodes, [(1, "CONST_EQ", 1), (0, "DICT_HAS", key)]), d)
        lacks = program(nodes[:1], [(0, "DICT_LACKS", other)])
        d[key] = 2
        assert not holds(guards, d)
        assert holds(lacks, d)

    def test_order_of_keys(self):
        d = {"a": 1, "b": 2}
        o = Plain()
        o.d = d
        nodes = [(-1, "LOCAL", 0), (0, "INSTANCE_DICT", None), (1, "DICT_ITEM", "d")]
        guards = warm(program(nodes, [(2, "DICT_KEYS", ("a", "b"))]), o)
        d["a"] = 5
        assert holds(guards, o)
        d["a"] = d.pop("a")
        assert not holds(guards, o)
        d["b"] = d.pop("b")
        assert holds(guards, o)

    def test_order_of_an_ordered_dict(self):
        """move_to_end changes no item, so no version."""
        d = collections.OrderedDict(a=1, b=2)
        guards = program(self.nodes[:1], [(0, "DICT_KEYS", ("a", "b"))])
        first = program([(-1, "LOCAL", 0), (0, "DICT_KEY", 0)], [(1, "CONST_EQ", "a")])
        value = program([(-1, "LOCAL", 0), (0, "DICT_VALUE", 0)], [(1, "CONST_EQ", 1)])
        for _ in range(4):
            assert holds(guards, d) and holds(first, d) and holds(value, d)
        d.move_to_end("a")
        assert not holds(guards, d) and not holds(first, d) and not holds(value, d)
        d.move_to_end("b")
        assert holds(guards, d) and holds(first, d) and holds(value, d)

    def test_types_of_keys(self):
        guards = program(self.nodes[:1], [(0, "DICT_KEYS", (1, "b"))])
        assert holds(guards, {1: 0, "b": 0})
        assert not holds(guards, {True: 0, "b": 0})
        assert not holds(guards, {1.0: 0, "b": 0})

    def test_positions(self):
        d = {"a": 1, "b": 2, "c": 3}
        nodes = [(-1, "LOCAL", 0), (0, "DICT_KEY", 1), (0, "DICT_VALUE", 2)]
        guards = warm(program(nodes, [(1, "CONST_EQ", "b"), (2, "CONST_EQ", 3)]), d)
        del d["a"]
        assert not holds(guards, d)
        d["z"] = 3
        assert not holds(guards, d)
        assert holds(guards, {"z": 0, "b": 0, "y": 3})


class Hostile:
    """A key that runs code when it is compared with a str of the same hash."""

    calls = 0

    def __init__(self, action=lambda: None):
        self.action = action

    def __hash__(self):
        return hash("a")

    def __eq__(self, other):
        Hostile.calls += 1
        self.action()
        return False


class TestHostileKeys:
    def test_lookup_is_right(self):
        d = {Hostile(): 0, "a": 1}
        guards = program([(-1, "LOCAL", 0), (0, "DICT_ITEM", "a")], [(1, "CONST_EQ", 1)])
        lacks = program([(-1, "LOCAL", 0)], [(0, "DICT_LACKS", "a")])
        for _ in range(4):
            assert holds(guards, d)
            assert not holds(lacks, d)
        assert guards.statistics["careful_walks"] == 4
        del d["a"]
        assert not holds(guards, d)
        assert holds(lacks, d)

    def test_keys_that_change_everything_while_compared(self):
        o = Plain()
        inner = {}

        def action():
            inner.clear()
            o.__dict__.clear()
            o.fresh = [object() for _ in range(50)]
            gc.collect()

        nodes = [
            (-1, "LOCAL", 0),
            (0, "INSTANCE_DICT", None),
            (1, "DICT_ITEM", "inner"),
            (2, "DICT_ITEM", "a"),
            (1, "DICT_ITEM", "b"),
        ]
        guards = program(nodes, [(3, "CONST_EQ", 1), (4, "CONST_EQ", "text")], [3, 4, 2])
        for _ in range(5):
            inner.update({Hostile(action): 0, "a": 1})
            o.inner, o.b = inner, "text"
            assert not holds(guards, o)

    def test_key_in_a_dict_with_other_keys_is_not_compared(self):
        class Other:
            def __hash__(self):
                return 12345

            def __eq__(self, other):
                raise AssertionError("compared")

        d = {Other(): 0, "a": 1, 5: 2}
        guards = warm(
            program([(-1, "LOCAL", 0), (0, "DICT_ITEM", "a")], [(1, "CONST_EQ", 1)]), d
        )
        d[6] = 7
        assert holds(guards, d)

    def test_error_in_a_comparison(self):
        def action():
            raise RuntimeError("in __eq__")

        key = Hostile()
        d = {key: 0, "a": 1}
        key.action = action
        guards = program([(-1, "LOCAL", 0), (0, "DICT_ITEM", "a")], [(1, "CONST_EQ", 1)])
        lacks = program([(-1, "LOCAL", 0)], [(0, "DICT_LACKS", "a")])
        assert not holds(guards, d)
        assert not holds(lacks, d)

        def interrupt():
            raise KeyboardInterrupt

        key.action = interrupt
        with pytest.raises(KeyboardInterrupt):
            holds(guards, d)


class TestClasses:
    def make(self):
        class Base:
            inherited = 1

            def method(self): ...

        class Derived(Base):
            own = 2

        return Base, Derived

    def guards(self, name, kind, expected):
        nodes = [(-1, "LOCAL", 0), (0, "TYPE", None), (1, "CLASS_ATTR", name)]
        return program(nodes, [(2, kind, expected)])

    def test_store_to_the_class(self):
        _, derived = self.make()
        o = derived()
        guards = warm(self.guards("own", "CONST_EQ", 2), o)
        derived.unrelated = 5
        assert holds(guards, o)
        derived.own = 3
        assert not holds(guards, o)
        derived.own = 2
        assert holds(guards, o)
        del derived.own
        assert not holds(guards, o)

    def test_store_to_a_base(self):
        base, derived = self.make()
        o = derived()
        guards = warm(self.guards("inherited", "CONST_EQ", 1), o)
        base.inherited = 3
        assert not holds(guards, o)
        base.inherited = 1
        assert holds(guards, o)
        derived.inherited = 4
        assert not holds(guards, o)
        del derived.inherited
        assert holds(guards, o)

    def test_bases_exchanged(self):
        _, derived = self.make()

        class Other:
            inherited = 7

        o = derived()
        guards = warm(self.guards("inherited", "CONST_EQ", 1), o)
        derived.__bases__ = (Other,)
        assert not holds(guards, o)

    def test_class_of_the_object_exchanged(self):
        base, derived = self.make()
        o = derived()
        nodes = [(-1, "LOCAL", 0), (0, "INSTANCE_DICT", None), (1, "DICT_ITEM", "a")]
        o.a = derived()
        guards = warm(program(nodes, [(2, "TYPE_IS", derived), (0, "TYPE_IS", derived)]), o)
        o.a.__class__ = base
        assert not holds(guards, o)
        o.a.__class__ = derived
        assert holds(guards, o)
        o.__class__ = base
        assert not holds(guards, o)

    def test_many_changes(self):
        """Past some number of changes CPython gives a class no version any more (3.13)."""
        _, derived = self.make()
        o = derived()
        guards = warm(self.guards("own", "CONST_EQ", 2), o)
        whole = self.whole_class(derived)
        for i in range(1500):
            derived.counter = i
            assert holds(guards, o)
        del derived.counter
        for _ in range(4):
            assert holds(whole, o)
        derived.own = 3
        assert not holds(guards, o)
        assert not holds(whole, o)
        derived.own = 2
        assert holds(guards, o)
        assert holds(whole, o)

    def test_super_attribute(self):
        base, derived = self.make()
        o = derived()
        nodes = [(-1, "LOCAL", 0), (0, "TYPE", None), (1, "SUPER_ATTR", ("method", derived))]
        method = base.method
        guards = warm(program(nodes, [(2, "ID_IS", method)]), o)
        derived.method = len
        assert holds(guards, o)
        base.method = len
        assert not holds(guards, o)
        base.method = method
        assert holds(guards, o)
        del base.method
        assert not holds(guards, o)

    def test_super_attribute_of_builtin_classes(self):
        class Mixin:
            def keys(self): ...

            def __hash__(self): ...

            def added(self): ...

        class Both(dict, Mixin):
            pass

        for name in ("keys", "__hash__", "added", "__getitem__", "__init_subclass__", "absent"):
            expected = next((vars(c)[name] for c in Both.__mro__[1:] if name in vars(c)), None)
            nodes = [(-1, "LOCAL", 0), (0, "TYPE", None), (1, "SUPER_ATTR", (name, Both))]
            guards = program(nodes, [], [2])
            for _ in range(4):
                passed, fetched = guards.check([Both()], function)
                assert passed == (name != "absent")
                assert not passed or fetched[0] is expected

    def whole_class(self, cls):
        nodes = [(-1, "LOCAL", 0), (0, "TYPE", None)]
        return program(nodes, [(1, "TYPE_VERSION", _C.ClassContents(cls))])

    def test_whole_class(self):
        base, derived = self.make()
        o = derived()
        guards = warm(self.whole_class(derived), o)
        o.attribute = 1
        assert holds(guards, o)
        changes = [
            (lambda: setattr(base, "new", 1), lambda: delattr(base, "new")),
            (lambda: setattr(base, "inherited", 5), lambda: setattr(base, "inherited", 1)),
            (
                lambda: setattr(derived, "inherited", 1),
                lambda: delattr(derived, "inherited"),
            ),
        ]
        for change, restore in changes:
            change()
            for _ in range(3):
                assert not holds(guards, o)
            restore()
            for _ in range(3):
                assert holds(guards, o)
        base.method = lambda self: None
        assert not holds(guards, o)
        assert not holds(guards, base())

    def test_whole_class_of_all_kinds_of_attributes(self):
        class Rich(dict):
            __slots__ = ("__weakref__", "slot")
            number = 5
            mapping = {"a": 1}
            items = [1]

            @property
            def computed(self): ...

            @staticmethod
            def static(): ...

            @classmethod
            def of_class(cls): ...

            def method(self): ...

        o = Rich()
        guards = warm(self.whole_class(Rich), o)
        for name in [*vars(Rich)]:
            if name in ("__slots__", "__doc__", "__module__", "__hash__", "__weakref__"):
                continue
            value = vars(Rich)[name]
            setattr(Rich, name, None)
            assert not holds(guards, o)
            setattr(Rich, name, value)
            assert holds(guards, o), name
        old = vars(Rich)["computed"]
        Rich.computed = property(lambda self: 1)
        assert not holds(guards, o)
        Rich.computed = old
        assert holds(guards, o)
        Rich.unrelated = 1
        del Rich.unrelated
        assert holds(guards, o)

    def test_whole_class_does_not_keep_it_alive(self):
        def make():
            class Rich:
                mapping = {}

                @property
                def computed(self):
                    return Rich

                @staticmethod
                def static():
                    return Rich

                def method(self):
                    return Rich

            Rich.mapping["self"] = Rich
            return Rich

        cls = make()
        guards = self.whole_class(cls)
        assert holds(guards, cls())
        watched = weakref.ref(cls)
        del cls
        gc.collect()
        assert watched() is None
        assert not holds(guards, Plain())

    def test_name_that_no_class_defines(self):
        base, derived = self.make()
        o = derived()
        nodes = [(-1, "LOCAL", 0), (0, "TYPE", None)]
        guards = warm(program(nodes, [(1, "CLASS_LACKS", "missing")]), o)
        derived.other = 1
        assert holds(guards, o)
        base.missing = 1
        assert not holds(guards, o)
        del base.missing
        assert holds(guards, o)

    def test_slots(self):
        class Node:
            __slots__ = ("next", "value")

        o = Node()
        o.value = 1
        o.next = Node()
        nodes = [(-1, "LOCAL", 0), (0, "SLOT", Node.value), (0, "SLOT", Node.next)]
        guards = warm(program(nodes, [(1, "CONST_EQ", 1), (2, "TYPE_IS", Node)], [2]), o)
        assert guards.check([o], function)[1] == (o.next,)
        o.value = 2
        assert not holds(guards, o)
        o.value = 1
        assert holds(guards, o)
        del o.next
        assert not holds(guards, o)
        assert not holds(guards, Plain())


class TestSequences:
    def test_list(self):
        o = Plain()
        o.a = [Plain(), 5]
        nodes = [
            (-1, "LOCAL", 0),
            (0, "INSTANCE_DICT", None),
            (1, "DICT_ITEM", "a"),
            (2, "LIST_ITEM", 0),
            (3, "INSTANCE_DICT", None),
            (4, "DICT_ITEM", "a"),
            (2, "LIST_ITEM", -1),
        ]
        guards = warm(program(nodes, [(5, "CONST_EQ", 1), (6, "CONST_EQ", 5)]), o)
        changes = [
            lambda: o.a[0].__setattr__("a", 2),
            lambda: o.a.__setitem__(0, Plain()),
            lambda: o.a.append(6),
            lambda: o.a.pop(),
            lambda: o.a.insert(0, None),
            lambda: o.a.pop(0),
            lambda: o.a.clear(),
            lambda: o.a.extend([Plain(), 5]),
            lambda: o.a.reverse(),
            lambda: o.a.sort(key=lambda x: isinstance(x, int)),
            lambda: setattr(o, "a", (Plain(), 5)),
            lambda: setattr(o, "a", [Plain(), 5]),
        ]
        for change in changes:
            change()
            good = isinstance(o.a, list) and len(o.a) > 1 and type(o.a[-1]) is int
            good = good and o.a[-1] == 5 and isinstance(o.a[0], Plain) and o.a[0].a == 1
            for _ in range(3):
                assert holds(guards, o) == good

    def test_list_at_the_same_address_with_other_items(self):
        nodes = [(-1, "LOCAL", 0), (0, "LIST_ITEM", 0), (1, "INSTANCE_DICT", None)]
        nodes.append((2, "DICT_ITEM", "a"))
        guards = program(nodes, [(3, "CONST_EQ", 1)])
        for i in range(300):
            o = Plain()
            o.a = 1 if i % 3 else 2
            assert holds(guards, [o, None][: 1 + i % 2]) == (o.a == 1)

    def test_tuple(self):
        o = Plain()
        o.a = (1, Plain())
        nodes = [
            (-1, "LOCAL", 0),
            (0, "INSTANCE_DICT", None),
            (1, "DICT_ITEM", "a"),
            (2, "TUPLE_ITEM", 0),
            (2, "TUPLE_ITEM", 1),
            (4, "INSTANCE_DICT", None),
            (5, "DICT_ITEM", "a"),
        ]
        guards = warm(program(nodes, [(3, "CONST_EQ", 1), (6, "CONST_EQ", 1)], [4]), o)
        for i in range(50):
            o.a = (1 if i % 3 else 2, Plain())
            o.b = i
            passed, fetched = guards.check([o], function)
            assert passed == bool(i % 3)
            assert not passed or fetched[0] is o.a[1]
        named = collections.namedtuple("named", "x y")
        o.a = named(1, Plain())
        assert holds(guards, o)
        o.a = (1,)
        assert not holds(guards, o)


def test_objects_made_anew_for_each_call():
    """Fresh arguments come to lie where former ones were."""
    guards = attribute_program("a", "CONST_EQ", 1)
    for i in range(2000):
        o = Plain()
        o.a = 1 if i % 5 else 7
        assert holds(guards, o) == bool(i % 5)


def test_many_objects_in_turn():
    """Code that serves many layers: each gets a snapshot, up to a limit."""
    guards = attribute_program("a", "CONST_EQ", 1)
    for count in (8, 200):
        objects = [Plain() for _ in range(count)]
        for _ in range(4):
            for i, o in enumerate(objects):
                assert holds(guards, o), i
        objects[3].a = 2
        assert [holds(guards, o) for o in objects] == [i != 3 for i in range(count)]


def test_references_are_balanced():
    o, value = Plain(), Plain()
    o.a = [value]
    o.d = {"k": value}
    nodes = [
        (-1, "LOCAL", 0),
        (0, "INSTANCE_DICT", None),
        (1, "DICT_ITEM", "a"),
        (2, "LIST_ITEM", 0),
        (1, "DICT_ITEM", "d"),
        (4, "DICT_ITEM", "k"),
        (0, "GETATTR", "b"),
    ]
    checks = [(3, "TYPE_IS", Plain), (5, "ID_IS", value), (6, "CONST_EQ", "text")]
    guards = program(nodes, checks, [3, 5, 2, 6])
    watched = [o, value, o.a, o.d, o.__dict__, guards, function, Plain]
    before = [sys.getrefcount(x) for x in watched]
    arguments = [o]
    for _ in range(100_000):
        guards.check(arguments, function)
    o.b = "other"
    for _ in range(1000):
        assert not guards.check(arguments, function)[0]
    o.b = "text"
    for _ in range(100):
        o.c = object()
        assert guards.check(arguments, function)[0]
    del arguments
    assert [sys.getrefcount(x) for x in watched] == before
