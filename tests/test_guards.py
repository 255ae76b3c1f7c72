"""Guard sets: every kind of guard, what is fetched and held, how failures are explained."""

import collections
import gc
import sys
import traceback
import types
import weakref

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from minidynamo.guard_expr import from_sympy
from minidynamo.guards import Check, GuardSet, MemoryLayout, Predicate, explain_failure
from minidynamo.source import (
    AttrSource,
    BuiltinSource,
    CallSource,
    ClosureSource,
    ConstSource,
    DictItemSource,
    GlobalSource,
    GlobalsSource,
    InstanceAttrSource,
    InstanceDictSource,
    ListItemSource,
    LocalSource,
    TensorPropertySource,
    TypeSource,
)

X, Y = LocalSource("x"), LocalSource("y")
VALUE = InstanceAttrSource(X, "value")


def function(x, y=None): ...


class Holder:
    def __init__(self, value=None):
        self.value = value


class Frame:
    """As much of a frame as explaining a failure needs."""

    def __init__(self, func, **f_locals):
        self.func, self.code, self.f_locals = func, func.__code__, f_locals


def stack(lineno=12):
    return [
        traceback.FrameSummary("/home/user/train.py", 3, "main"),
        traceback.FrameSummary("/home/user/model.py", lineno, "forward"),
    ]


def guarded(*guards, fetch=(), of=function):
    guard_set = GuardSet()
    for guard in guards:
        guard_set.add(*guard, user_stack=stack())
    return guard_set.build(of.__code__, fetch)


def reason(program, x=None, y=None, of=function):
    """Why the program refuses the call; None if it does not. Both ways of running it agree."""
    passed, _ = program.check([x, y], of)
    failure = explain_failure(program, Frame(of, x=x, y=y))
    assert passed == (failure is None)
    if failure is None:
        return None
    text, _, where = str(failure).rpartition(", needed at ")
    assert where == "model.py:12 in forward"
    return text


point = collections.namedtuple("point", "x y")
shared = object()
a_list = [1]
a_global = 0
holder = Holder()

# (kind, expected, a value that passes, one that does not, and why)
KINDS = {
    "type": ("TYPE_IS", int, 5, True, "type(x.value) (bool) is no longer int"),
    "subclass": ("TYPE_IS", dict, {}, collections.OrderedDict(), None),
    "identity": ("ID_IS", holder, holder, Holder(), "x.value is no longer the same Holder"),
    "identity of a function": ("ID_IS", len, len, sum, "x.value (sum) is no longer len"),
    "identity of a list": ("ID_IS", a_list, a_list, [1], None),
    "none": ("IS_NONE", None, None, 0, "x.value (0) is no longer None"),
    "not none": ("NOT_NONE", None, 0, None, "x.value is now None"),
    "true": ("CONST_EQ", True, True, False, "x.value (False) is no longer True"),
    "int is no bool": ("CONST_EQ", 1, 1, True, "x.value (True) is no longer 1"),
    "int": ("CONST_EQ", 10**20, int("1" + "0" * 20), 10**20 + 1, None),
    "float": ("CONST_EQ", 0.5, 0.5, 0.25, "x.value (0.25) is no longer 0.5"),
    "negative zero": ("CONST_EQ", 0.0, 0.0, -0.0, "x.value (-0.0) is no longer 0.0"),
    "nan": ("CONST_EQ", float("nan"), float("nan"), 0.0, None),
    "complex": ("CONST_EQ", 1 + 0j, complex(1, 0), complex(1, -0.0), None),
    "str": ("CONST_EQ", "abc", "ab" + chr(99), "abd", "x.value ('abd') is no longer 'abc'"),
    "bytes": ("CONST_EQ", b"abc", bytes([97, 98, 99]), bytearray(b"abc"), None),
    "tuple": ("CONST_EQ", (1, (2.0, "x")), (1, (2.0, "x")), (1, (2, "x")), None),
    "tuple of zeros": (
        "CONST_EQ",
        (0.0,),
        (0.0,),
        (-0.0,),
        "x.value ((-0.0,)) is no longer (0.0,)",
    ),
    "named tuple": ("CONST_EQ", point(1, 2), point(1, 2), (1, 2), None),
    "size": (
        "CONST_EQ",
        torch.Size([2, 3]),
        torch.ones(2, 3).shape,
        torch.ones(3, 2).shape,
        None,
    ),
    "slice": ("CONST_EQ", slice(1, None, 2), slice(1, None, 2), slice(1, None), None),
    "range": ("CONST_EQ", range(3), range(0, 3), range(4), None),
    "set": ("CONST_EQ", {1, "a", 2.0}, {2.0, "a", 1}, {1, "a", 2}, None),
    "frozenset": ("CONST_EQ", frozenset({1}), frozenset([1]), frozenset({True}), None),
    "device": (
        "CONST_EQ",
        torch.device("cpu"),
        torch.device("cpu"),
        torch.device("meta"),
        None,
    ),
    "dtype": ("CONST_EQ", torch.float32, torch.float32, torch.float64, None),
    "list": ("CONST_EQ", [1, [2]], [1, [2]], [1, [3]], None),
    "bool": ("BOOL_IS", True, [0], [], "bool(x.value) is no longer True"),
    "bool of an object": ("BOOL_IS", True, Holder(), collections.deque(), None),
    "length of a list": (
        "LEN_EQ",
        2,
        [1, 2],
        [1],
        "length of x.value: expected 2, found 1",
    ),
    "length of a str": ("LEN_EQ", 2, "ab", "a", None),
    "length of a set": ("LEN_EQ", 1, {1}, set(), None),
    "length of a deque": ("LEN_EQ", 1, collections.deque([1]), collections.deque(), None),
    "no length": ("LEN_EQ", 1, (1,), 5, None),
    "key": ("DICT_HAS", "k", {"k": 1}, {"l": 1}, "x.value no longer has 'k'"),
    "no key": ("DICT_LACKS", "k", {"l": 1}, {"k": 1}, "x.value now has 'k'"),
    "key of no dict": ("DICT_LACKS", "k", {}, [], None),
    "keys": ("DICT_KEYS", ("a", 1), {"a": 0, 1: 0}, {"a": 0}, "x.value no longer has 1"),
    "order of keys": (
        "DICT_KEYS",
        ("a", 1),
        {"a": 0, 1: 0},
        {1: 0, "a": 0},
        "x.value has its keys in another order",
    ),
    "more keys": ("DICT_KEYS", ("a",), {"a": 0}, {"a": 0, "b": 0}, "x.value now has 'b'"),
    "attribute": (
        "HAS_ATTR",
        "value",
        holder,
        object(),
        "x.value no longer has the attribute 'value'",
    ),
    "no attribute": (
        "LACKS_ATTR",
        "value",
        object(),
        holder,
        "x.value now has the attribute 'value'",
    ),
}


class TestKinds:
    @pytest.mark.parametrize("name", KINDS)
    def test_passes_and_fails(self, name):
        kind, expected, good, bad, why = KINDS[name]
        program = guarded((VALUE, kind, expected))
        x = Holder(good)
        for _ in range(4):
            assert reason(program, x) is None
        for _ in range(2):
            x.value = bad
            for _ in range(3):
                found = reason(program, x)
                assert found is not None
                assert why is None or found == why
            x.value = good
            assert reason(program, x) is None
        assert reason(program, Holder(bad)) is not None
        assert reason(program, Holder(good)) is None

    @pytest.mark.parametrize("name", KINDS)
    def test_as_an_argument(self, name):
        kind, expected, good, bad, _ = KINDS[name]
        program = guarded((X, kind, expected))
        for _ in range(2):
            assert reason(program, good) is None
            assert reason(program, bad) is not None

    @pytest.mark.parametrize("name", KINDS)
    def test_is_described(self, name):
        kind, expected, *_ = KINDS[name]
        guards = GuardSet()
        guards.add(VALUE, kind, expected, stack())
        (line,) = guards.describe()
        assert "x.value" in line
        assert line.endswith("  # model.py:12 in forward")

    def test_every_kind_is_tested(self):
        elsewhere = {
            Check.TYPE_VERSION,
            Check.CLASS_LACKS,
            Check.TENSOR_MATCH,
            Check.ALIAS,
            Check.NOT_ALIAS,
            Check.NOT_ALIASED_GROUP,
            Check.MEMORY_LAYOUT,
            Check.PREDICATE,
            Check.EXPR,
            Check.GLOBAL_STATE,
        }
        assert {Check(kind) for kind, *_ in KINDS.values()} | elsewhere == set(Check)

    def test_class_version(self):
        class Changing:
            pass

        program = guarded((TypeSource(X), "TYPE_VERSION", Changing), (X, "TYPE_IS", Changing))
        x = Changing()
        for _ in range(4):
            assert reason(program, x) is None
        Changing.new = 1
        assert reason(program, x) == "class type(x) or a base of it was changed"
        del Changing.new
        assert reason(program, x) is None
        program = guarded((TypeSource(X), "CLASS_LACKS", "new"))
        assert reason(program, x) is None
        Changing.new = 1
        assert reason(program, x) == "class type(x) now defines 'new'"

    def test_alias(self):
        same = guarded((X, "ALIAS", Y))
        other = guarded((X, "NOT_ALIAS", Y))
        a, b = Holder(), Holder()
        assert reason(same, a, a) is None
        assert reason(same, a, b) == "x and y are no longer the same object"
        assert reason(other, a, b) is None
        assert reason(other, a, a) == "x and y are now the same object"

    def test_memory_layout(self):
        memory = torch.zeros(10)
        layout = MemoryLayout.of((X, Y), [memory[:4], memory[2:6]], [True, False])
        assert layout.placements == ((True, 0, 0), (False, 0, 2))
        program = guarded((None, "MEMORY_LAYOUT", layout))
        text = "x, y now overlap in memory in another way, and one of them is written to"
        for _ in range(2):
            assert reason(program, memory[:4], memory[2:6]) is None
            assert reason(program, memory[:4], memory[3:7]) == text
            assert reason(program, memory[:4], torch.zeros(4)) == text
        apart = MemoryLayout.of((X, Y), [memory[:4], memory[4:6]], [True, False])
        assert apart.placements == ((True, -1, 0), (False, -1, 0))
        program = guarded((None, "MEMORY_LAYOUT", apart))
        for _ in range(2):
            assert reason(program, memory[2:6], memory[6:]) is None
            assert reason(program, memory[2:6], memory[5:]) == text
            assert reason(program, memory[2:2], memory) is None
            assert reason(program, memory.to_sparse(), memory) is None
            assert reason(program, 3, memory) is None
        reading = MemoryLayout.of((X, Y), [memory, memory], [False, False])
        assert reason(guarded((None, "MEMORY_LAYOUT", reading)), memory, memory) is None

    def test_group_of_different_objects(self):
        members = tuple(ListItemSource(X, i) for i in range(20))
        program = guarded((None, "NOT_ALIASED_GROUP", members))
        objects = [Holder() for _ in range(20)]
        for _ in range(3):
            assert reason(program, objects) is None
        objects[3] = Holder()
        assert reason(program, objects) is None
        objects[17] = objects[3]
        for _ in range(3):
            assert reason(program, objects) == "x[3] and x[17] are now the same object"
        objects[17] = Holder()
        assert reason(program, objects) is None
        assert reason(program, objects[:19]) == "x[19] is no longer there"

    def test_predicate(self):
        one = Predicate(lambda x: x > 3, "x is more than 3")
        program = guarded((X, "PREDICATE", one))
        assert reason(program, 4) is None
        assert reason(program, 3) == "x is more than 3 no longer holds"
        two = Predicate(lambda x, y: x < y, "x is less than y", others=(Y,))
        program = guarded((X, "PREDICATE", two))
        assert reason(program, 1, 2) is None
        assert reason(program, 2, 1) == "x is less than y no longer holds"

    def test_error_in_a_predicate_is_reported(self):
        program = guarded((X, "PREDICATE", Predicate(lambda x: x.missing, "x")))
        with pytest.raises(AttributeError):
            program.check([1, None], function)

    def test_missing_object(self):
        program = guarded((InstanceAttrSource(VALUE, "inner"), "NOT_NONE"))
        x = Holder(Holder())
        assert reason(program, x) == "x.value.inner is no longer there"
        x.value.inner = 1
        assert reason(program, x) is None
        del x.value
        assert reason(program, x) == "x.value is no longer there"

    def test_unknown_kind(self):
        with pytest.raises(ValueError, match="NOT_A_KIND"):
            GuardSet().add(X, "NOT_A_KIND")

    @pytest.mark.parametrize(
        "source", [LocalSource("z"), ClosureSource("z")], ids=["argument", "free variable"]
    )
    def test_foreign_variable(self, source):
        guards = GuardSet()
        guards.add(source, "NOT_NONE")
        with pytest.raises(ValueError, match="z"):
            guards.build(function.__code__)


class TestExpressions:
    rows = TensorPropertySource(X, "size", 0)
    columns = TensorPropertySource(X, "size", 1)

    @pytest.mark.parametrize(
        ("expression", "good", "bad"),
        [
            (("==", ("%", rows, 8), 0), (16, 1), (17, 1)),
            (("<", ("*", 2, rows, columns), 100), (7, 7), (8, 7)),
            (("<=", ("-", rows, columns), 3), (5, 2), (6, 2)),
            ((">", ("//", rows, 4), columns), (8, 1), (7, 1)),
            ((">=", ("+", rows, columns, 1), 5), (2, 2), (2, 1)),
            (("!=", ("**", rows, 2), 9), (2, 1), (3, 1)),
            (("==", ("max", rows, columns), ("min", 5, 7)), (5, 2), (6, 2)),
            (("or", ("==", rows, 1), ("==", columns, 1)), (4, 1), (4, 2)),
            (("and", ("<", rows, 9), ("<", columns, 9)), (8, 8), (8, 9)),
            (("not", ("==", rows, columns)), (8, 9), (9, 9)),
            (("==", ("//", ("-", 0, rows), 2), -3), (5, 1), (4, 1)),
            (("==", ("%", ("-", 0, rows), 4), 3), (5, 1), (4, 1)),
        ],
        ids=str,
    )
    def test_over_sizes(self, expression, good, bad):
        program = guarded((None, "EXPR", expression))
        for _ in range(2):
            assert reason(program, torch.empty(good)) is None
            text = reason(program, torch.empty(bad))
            assert f"no longer holds: x.size({'0' if 'size(0)' in text else '1'})" in text
        assert reason(guarded((X, "NOT_NONE")), 5) is None

    def test_text(self):
        program = guarded((None, "EXPR", ("==", ("%", ("+", self.rows, self.columns), 8), 0)))
        assert reason(program, torch.empty(5, 4)) == (
            "((x.size(0) + x.size(1)) % 8) == 0 no longer holds: x.size(0) is 5, x.size(1) is 4"
        )

    def test_over_ints_strides_and_offsets(self):
        y = torch.ones(6, 4)[2:]
        stride, offset = (
            TensorPropertySource(Y, "stride", 0),
            TensorPropertySource(Y, "storage_offset"),
        )
        program = guarded((None, "EXPR", ("==", offset, ("*", X, stride))))
        assert reason(program, 2, y) is None
        assert reason(program, 3, y) is not None
        assert reason(program, "2", y) is not None
        assert reason(program, 10**30, y) is not None
        assert reason(program, 2, "no tensor") is not None

    def test_overflow_and_division_by_zero_fail(self):
        big = guarded((None, "EXPR", ("<", X, ("**", X, 10))))
        assert reason(big, 3) is None
        assert reason(big, 10**7) is not None
        assert reason(guarded((None, "EXPR", ("==", ("//", 6, X), 3))), 2) is None
        for expression in (("//", 6, X), ("%", 6, X)):
            assert reason(guarded((None, "EXPR", ("!=", expression, 77))), 0) is not None

    def test_on_subclasses_with_python_dispatch(self):
        inner = torch.ones(3, 2)
        x = TwoTensor(inner, inner.clone())
        program = guarded((None, "EXPR", ("==", self.rows, 3)))
        assert reason(program, x) is None
        assert reason(program, type(x)(inner[:2], inner[:2])) is not None

    def test_from_sympy(self):
        import sympy
        from torch.utils._sympy.functions import FloorDiv, Mod

        a, b = sympy.symbols("a b", integer=True, positive=True)
        sources = {a: self.rows, b: self.columns}
        for expression, good, bad in [
            (sympy.Eq(Mod(a, 8), 0), (8, 1), (9, 1)),
            (sympy.Ne(FloorDiv(a, 2), b), (8, 1), (8, 4)),
            (sympy.And(a * b + 1 < 20, a > 2), (3, 6), (3, 7)),
            (sympy.Or(a <= 2, sympy.Not(sympy.Ge(b, 3))), (3, 2), (3, 3)),
            (sympy.Eq(sympy.Max(a, b) ** 2, 16), (4, 1), (3, 2)),
        ]:
            program = guarded((None, "EXPR", from_sympy(expression, sources)))
            assert reason(program, torch.empty(good)) is None
            assert reason(program, torch.empty(bad)) is not None
        with pytest.raises(ValueError, match="sin"):
            from_sympy(sympy.sin(a) < 1, sources)
        with pytest.raises(ValueError, match="no native guard"):
            from_sympy(sympy.Eq(2**a, 4), sources)

    @pytest.mark.parametrize(
        "expression", [("+", 1), ("not", 1, 2), ("??", 1, 2), ("==", 1, 2, 3)], ids=str
    )
    def test_malformed(self, expression):
        with pytest.raises((ValueError, KeyError)):
            guarded((None, "EXPR", expression))


class TestSets:
    def test_repetitions_are_dropped(self):
        guards = GuardSet()
        for expected in (1, 1, True, 1.0, 1):
            guards.add(VALUE, "CONST_EQ", expected)
        assert len(guards) == 3
        assert [type(guard.expected) for guard in guards] == [int, bool, float]

    def test_first_stack_stays(self):
        guards = GuardSet()
        guards.add(X, "NOT_NONE", user_stack=stack(1))
        guards.add(X, "NOT_NONE", user_stack=stack(2))
        assert guards.describe() == ["x is not None  # model.py:1 in forward"]

    def test_rollback(self):
        guards = GuardSet()
        guards.add(X, "NOT_NONE")
        mark = guards.mark()
        guards.add(Y, "NOT_NONE")
        guards.rollback(mark)
        assert guards.describe() == ["x is not None"]
        guards.add(Y, "NOT_NONE")
        assert len(guards) == 2

    def test_building_ends_a_set(self):
        class Local:
            pass

        guards = GuardSet()
        guards.add(X, "TYPE_IS", Local, stack())
        guards.add(TypeSource(X), "TYPE_VERSION", Local)
        guards.add(InstanceAttrSource(ConstSource(Local), "a"), "CONST_EQ", 1)
        lines = guards.describe()
        program = guards.build(function.__code__)
        assert guards.describe() == lines
        with pytest.raises(RuntimeError):
            guards.build(function.__code__)
        with pytest.raises(RuntimeError):
            guards.add(X, "NOT_NONE")
        watched = weakref.ref(Local)
        del Local
        gc.collect()
        assert watched() is None
        assert not program.check([1, None], function)[0]

    def test_builtins_must_not_be_hidden(self):
        namespace = {"__builtins__": __builtins__}
        exec("def f(x): return len(x)", namespace)
        f = namespace["f"]
        program = guarded((BuiltinSource("len"), "ID_IS", len), of=f)
        for _ in range(4):
            assert program.check([None], f)[0]
        namespace["len"] = len
        failure = explain_failure(program, Frame(f, x=None))
        assert str(failure) == "globals() now has 'len', needed at model.py:12 in forward"
        del namespace["len"]
        assert program.check([None], f)[0]

    def test_closures_and_globals(self):
        def outer():
            captured = 1

            def inner(x):
                return captured, a_global

            def change(value):
                nonlocal captured
                captured = value

            return inner, change

        inner, change = outer()
        namespace = inner.__globals__
        namespace["a_global"] = 1
        program = guarded(
            (ClosureSource("captured"), "CONST_EQ", 1),
            (GlobalSource("a_global"), "CONST_EQ", 1),
            of=inner,
        )
        for _ in range(4):
            assert program.check([None], inner)[0]
        change(2)
        assert reason(program, of=inner) == "captured (2) is no longer 1"
        change(1)
        other, _ = outer()
        assert program.check([None], other)[0]
        namespace["a_global"] = 2
        assert reason(program, of=inner) == "a_global (2) is no longer 1"
        del namespace["a_global"]
        assert reason(program, of=inner) == "a_global is no longer there"

    def test_type_of_a_guarded_object_is_a_constant(self):
        guards = GuardSet()
        for i in range(10):
            item = ListItemSource(X, i)
            guards.add(item, "TYPE_IS", Holder)
            guards.add(TypeSource(item), "NOT_NONE")
        assert guards.build(function.__code__).statistics["nodes"] == 12

    def test_fetched_objects_and_their_order(self):
        x = Holder([1, 2])
        fetch = [VALUE, ListItemSource(VALUE, 1), X, VALUE, AttrSource(X, "value")]
        program = guarded((X, "TYPE_IS", Holder), fetch=fetch)
        for _ in range(4):
            passed, found = program.check([x, None], function)
            assert passed
            assert [id(each) for each in found] == [
                id(x.value),
                id(2),
                id(x),
                id(x.value),
                id(x.value),
            ]
        x.value = [3, 4]
        assert program.check([x, None], function)[1] == ([3, 4], 4, x, [3, 4], [3, 4])
        assert program.check([5, None], function) == (False, None)
        assert guarded((X, "NOT_NONE")).check([5, None], function) == (True, None)


class TestSecondPhase:
    def test_properties_and_calls(self):
        class Lazy:
            value = 3
            calls = 0

            @property
            def computed(self):
                Lazy.calls += 1
                return [self.value]

        x = Lazy()
        computed = AttrSource(X, "computed")
        length = CallSource(computed, len)
        program = guarded(
            (ListItemSource(computed, 0), "CONST_EQ", 3),
            (length, "CONST_EQ", 1),
            fetch=[computed, length],
        )
        for i in range(1, 5):
            passed, found = program.check([x, None], function)
            assert passed and found == ([3], 1)
            assert Lazy.calls == i
        x.value = 4
        assert reason(program, x) == "x.computed[0] (4) is no longer 3"

    def test_exceptions_fail(self):
        class Raising:
            def __getattr__(self, name):
                raise RuntimeError(name)

            def __len__(self):
                raise RuntimeError

            __bool__ = __len__

        assert reason(guarded((AttrSource(X, "a"), "NOT_NONE")), Raising()) is not None
        for guard in (
            ("LEN_EQ", 1),
            ("BOOL_IS", True),
            ("HAS_ATTR", "a"),
            ("LACKS_ATTR", "a"),
        ):
            assert reason(guarded((X, *guard)), Raising()) is not None
        assert reason(guarded((CallSource(X, len), "CONST_EQ", 1)), Raising()) is not None

    def test_interrupts_pass_through(self):
        class Interrupting:
            @property
            def a(self):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            guarded((AttrSource(X, "a"), "NOT_NONE")).check([Interrupting(), None], function)

    def test_code_that_destroys_what_was_looked_at(self):
        class Destroying:
            def __init__(self):
                self.inner = Holder(Holder())
                self.list = [Holder()]

            @property
            def bomb(self):
                self.__dict__.clear()
                self.garbage = [Holder() for _ in range(100)]
                gc.collect()
                return 1

        inner = InstanceAttrSource(InstanceAttrSource(X, "inner"), "value")
        item = ListItemSource(InstanceAttrSource(X, "list"), 0)
        program = guarded(
            (AttrSource(X, "bomb"), "CONST_EQ", 1),
            (inner, "TYPE_IS", Holder),
            (item, "TYPE_IS", Holder),
            (inner, "NOT_ALIAS", item),
            fetch=[inner, item],
        )
        for _ in range(5):
            passed, found = program.check([Destroying(), None], function)
            assert passed
            assert [type(each) for each in found] == [Holder, Holder]
            assert found[0].value is None

    def test_programs_that_run_themselves(self):
        depth = []

        class Recursive:
            @property
            def again(self):
                if len(depth) < 5:
                    depth.append(1)
                    assert program.check([x, 1], function) == (True, (5, x.value))
                return 5

        x = Recursive()
        x.value = Holder()
        again = AttrSource(X, "again")
        program = guarded((again, "CONST_EQ", 5), fetch=[again, VALUE])
        assert program.check([x, 1], function) == (True, (5, x.value))
        assert len(depth) == 5


class TestLifetimes:
    def test_compared_objects_are_not_kept_alive(self):
        class Local:
            def method(self): ...

        value, module = Local(), types.ModuleType("made_here")
        x = Holder(value)
        program = guarded(
            (VALUE, "ID_IS", value),
            (VALUE, "TYPE_IS", Local),
            (InstanceAttrSource(X, "module"), "ID_IS", module),
            (InstanceAttrSource(ConstSource(value), "a"), "CONST_EQ", 1),
            (InstanceDictSource(VALUE), "DICT_HAS", "a"),
        )
        x.module, value.a = module, 1
        for _ in range(4):
            assert program.check([x, None], function)[0]
        watched = [weakref.ref(each) for each in (value, module, Local)]
        del value, module, Local, x
        gc.collect()
        assert [each() for each in watched] == [None, None, None]
        assert not program.dead, "not known yet"
        assert not program.check([Holder(), None], function)[0]
        assert program.dead

    def test_new_object_at_the_address_of_a_dead_one(self):
        value = Holder()
        program = guarded((X, "ID_IS", value))
        assert program.check([value, None], function)[0]
        address = id(value)
        del value
        made = []
        for _ in range(1000):
            made.append(Holder())
            assert not program.check([made[-1], None], function)[0]
            if id(made[-1]) == address:
                break

    @pytest.mark.parametrize("make", [Holder, torch.Tensor])
    def test_keys_found_by_identity_may_die(self, make):
        key = make()
        checks = [("DICT_KEYS", (1, key)), ("DICT_HAS", key)]
        programs = [guarded((X, kind, expected)) for kind, expected in checks]
        programs.append(guarded((DictItemSource(X, key), "CONST_EQ", 2)))
        lacks = guarded((X, "DICT_LACKS", key))
        table = {1: 1, key: 2}
        for _ in range(3):
            assert all(program.check([table, None], function)[0] for program in programs)
            assert not lacks.check([table, None], function)[0]
        watched, address = weakref.ref(key), id(key)
        del key, checks
        table.popitem()
        assert watched() is None
        others = []
        while not others or (id(others[-1]) != address and len(others) < 1000):
            others.append(Holder())
        table[others[-1]] = 2
        assert not any(program.check([table, None], function)[0] for program in programs)
        assert lacks.check([table, None], function)[0]
        failures = [program.failure([table, None], function) for program in (*programs, lacks)]
        assert [failure is None for failure in failures] == [False, False, False, True]
        assert [program.dead for program in (*programs, lacks)] == [True, True, True, False]

    def test_constants_are_held(self):
        program = guarded((X, "CONST_EQ", float("1.5")), (Y, "ID_IS", [1]))
        gc.collect()
        assert program.check([float("1.5"), [1]], function)[0] is False
        assert guarded((X, "CONST_EQ", 1.5)).check([float("1.5"), None], function)[0]

    def test_programs_are_collected(self):
        x = Holder()
        predicate = Predicate(lambda x: bool(x.program), "x has its program")
        program = guarded((X, "PREDICATE", predicate), (VALUE, "ID_IS", None))
        x.program = program
        predicate.function.__dict__["cycle"] = program
        watched = weakref.ref(predicate.function)
        assert program.check([x, None], function)[0]
        del program, x, predicate
        gc.collect()
        assert watched() is None

    def test_references_are_balanced(self):
        x = Holder([Holder(), 2])
        item = ListItemSource(VALUE, 0)
        computed = CallSource(VALUE, tuple)
        program = guarded(
            (item, "TYPE_IS", Holder),
            (computed, "LEN_EQ", 2),
            (item, "NOT_ALIAS", X),
            fetch=[item, computed, X],
        )
        watched = [
            x,
            x.value,
            x.value[0],
            x.__dict__,
            program,
            program.layout,
            Holder,
            function,
        ]
        before = [sys.getrefcount(each) for each in watched]
        arguments = [x, None]
        for _ in range(20_000):
            assert program.check(arguments, function)[0]
        x.value.append(3)
        for _ in range(1000):
            assert not program.check(arguments, function)[0]
            assert program.failure(arguments, function) is not None
        del arguments
        assert [sys.getrefcount(each) for each in watched] == before


class TestTables:
    """The constructor refuses tables that make no sense."""

    @pytest.mark.parametrize(
        "tables",
        [
            ([(-1, "NO_SUCH_OP", None)], [], [], []),
            ([(0, "TYPE", None)], [], [], []),
            ([(-1, "TYPE", None)], [], [], []),
            ([(-1, "LOCAL", 0), (0, "LOCAL", 0)], [], [], []),
            ([(-1, "LOCAL", -1)], [], [], []),
            ([(-1, "GLOBALS", 5)], [], [], []),
            ([(-1, "LOCAL", 0)], [(1, "IS_NONE", None)], [], []),
            ([(-1, "LOCAL", 0)], [(0, "NO_SUCH_KIND", None)], [], []),
            ([(-1, "LOCAL", 0)], [(0, "TYPE_IS", 5)], [], []),
            ([(-1, "LOCAL", 0)], [], [("ALIAS", [0], None)], []),
            ([(-1, "LOCAL", 0)], [], [("ALIAS", [0, 7], None)], []),
            ([(-1, "LOCAL", 0)], [], [("EXPR", [0], [("load", 1)])], []),
            ([(-1, "LOCAL", 0)], [], [("EXPR", [0], [("+",)])], []),
            ([(-1, "LOCAL", 0)], [], [("GLOBAL_STATE", [], None)], []),
            ([(-1, "LOCAL", 0)], [], [], [1]),
            ([(-1, "LOCAL", 0), (0, "SLOT", len)], [], [], []),
            ([(-1, "LOCAL", 0), (0, "CALL", 5)], [], [], []),
            ([5], [], [], []),
        ],
        ids=str,
    )
    def test_refused(self, tables):
        from minidynamo import _C

        with pytest.raises((ValueError, TypeError)):
            _C.GuardProgram(*tables)

    def test_too_few_arguments(self):
        program = guarded((Y, "IS_NONE"))
        with pytest.raises(ValueError, match="more arguments"):
            program.check([1], function)


def test_dict_items_of_globals():
    program = guarded((DictItemSource(GlobalsSource(), "shared"), "ID_IS", shared))
    assert reason(program) is None
