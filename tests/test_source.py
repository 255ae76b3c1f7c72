"""Sources: the code that loads an object and the guard program that fetches it give the same."""

import builtins
import functools
import gc
import types
import weakref

import pytest
import torch

from minidynamo import source_calls
from minidynamo.bytecode import Instruction, assemble, current
from minidynamo.guards import FETCH_OPS, GuardSet
from minidynamo.source import (
    AttrSource,
    BuiltinSource,
    BuiltinsSource,
    CallSource,
    CellContentsSource,
    CellSource,
    ClassAttrSource,
    ClosureSource,
    ConstSource,
    DictItemSource,
    DictKeySource,
    DictValueSource,
    FuncClosureCellSource,
    FuncClosureTupleSource,
    FuncCodeSource,
    FuncDefaultsSource,
    FuncDefaultsTupleSource,
    FuncGlobalsSource,
    FuncKwDefaultsDictSource,
    FuncKwDefaultsSource,
    GlobalSource,
    GlobalsSource,
    InstanceAttrSource,
    InstanceDictSource,
    ListItemSource,
    LoadContext,
    LocalSource,
    MethodFuncSource,
    MethodSelfSource,
    ModuleItemSource,
    SlotSource,
    Source,
    SuperAttrSource,
    TensorPropertySource,
    TupleItemSource,
    TypeSource,
    WeakrefSource,
    iterator_index_source,
    iterator_sequence_source,
    partial_source,
)

a_global = object()


class Base:
    def method(self): ...


class Thing(Base):
    attribute = "of the class"

    def __init__(self):
        self.own = object()

    @property
    def computed(self):
        return self.own

    def method(self): ...


class Slotted:
    __slots__ = ("a_slot",)


class LoudDict(dict):
    def __getitem__(self, key):
        raise AssertionError("asked")


def make_function():
    captured = object()

    def function(x=None, *, key=captured):
        return captured

    return function


KEY = Thing()
LINEAR = torch.nn.Sequential(torch.nn.Linear(2, 3))
X = LocalSource("x")

# name of the user's expression -> (source, value of the argument x, the object or its value)
CASES = {}


def case(name, source, x, expected):
    assert name not in CASES
    CASES[name] = (source, x, expected)


thing, function, slotted = Thing(), make_function(), Slotted()
slotted.a_slot = object()
partial = functools.partial(function, thing, key=KEY)
items = {"k": object(), 1: object(), (1, "x"): object(), KEY: object()}
sequence = [object(), object()]
tensor = torch.ones(6, 4)[1:, ::2]

case("x", X, thing, thing)
case("x.own", AttrSource(X, "own"), thing, thing.own)
case("x.computed", AttrSource(X, "computed"), thing, thing.own)
case("x.__dict__", InstanceDictSource(X), thing, thing.__dict__)
case("x.own (item)", InstanceAttrSource(X, "own"), thing, thing.own)
case("torch.nn", InstanceAttrSource(X, "nn"), torch, torch.nn)
case("x[0]", ModuleItemSource(X, "_modules", "0"), LINEAR, LINEAR[0])
weight = ModuleItemSource(ModuleItemSource(X, "_modules", "0"), "_parameters", "weight")
case("x[0].weight", weight, LINEAR, LINEAR[0].weight)
case("x.a_slot", SlotSource(X, Slotted.a_slot), slotted, slotted.a_slot)
case("x.func", partial_source(X, "func"), partial, function)
case("x.args", partial_source(X, "args"), partial, partial.args)
case("x.keywords", partial_source(X, "keywords"), partial, partial.keywords)
case("x.__code__", FuncCodeSource(X), function, function.__code__)
case("x.__globals__", FuncGlobalsSource(X), function, globals())
case("x.__defaults__", FuncDefaultsTupleSource(X), function, function.__defaults__)
case("x.__defaults__[0]", FuncDefaultsSource(X, 0), function, None)
case("x.__kwdefaults__", FuncKwDefaultsDictSource(X), function, function.__kwdefaults__)
default = function.__kwdefaults__["key"]
case("x.__kwdefaults__['key']", FuncKwDefaultsSource(X, "key"), function, default)
case("x.__closure__", FuncClosureTupleSource(X), function, function.__closure__)
case("x.__closure__[0]", FuncClosureCellSource(X, 0), function, function.__closure__[0])
case("x.cell_contents", CellContentsSource(X), function.__closure__[0], default)
contents = CellContentsSource(FuncClosureCellSource(X, 0))
case("x.__closure__[0].cell_contents", contents, function, default)
case("x.__self__", MethodSelfSource(X), thing.method, thing)
case("x.__self__ (C)", MethodSelfSource(X), sequence.append, sequence)
case("x.__func__", MethodFuncSource(X), thing.method, Thing.method)
case("type(x)", TypeSource(X), thing, Thing)
case("type(x).method", ClassAttrSource(TypeSource(X), "method"), thing, Thing.method)
inherited = SuperAttrSource(TypeSource(X), "method", Thing)
case("super(Thing, type(x)).method", inherited, thing, Base.method)
case("x['k']", DictItemSource(X, "k"), items, items["k"])
case("x[1]", DictItemSource(X, 1), items, items[1])
case("x[(1, 'x')]", DictItemSource(X, (1, "x")), items, items[1, "x"])
case("x[<Thing object>]", DictItemSource(X, KEY), items, items[KEY])
case("x['k'] (raw)", DictItemSource(X, "k", raw=True), LoudDict(items), items["k"])
case("list(x)[3]", DictKeySource(X, 3), items, KEY)
case("list(x.values())[3]", DictValueSource(X, 3), items, items[KEY])
case("x[1] (list)", ListItemSource(X, 1), sequence, sequence[1])
case("x[-2]", ListItemSource(X, -2), sequence, sequence[0])
case("x[0] (tuple)", TupleItemSource(X, 0), tuple(sequence), sequence[0])
case("x()", WeakrefSource(X), weakref.ref(thing), thing)
case("x[1:] (call)", CallSource(X, lambda x: x[1], "{base}[1:]"), sequence, sequence[1])
case("<what x iterates>", iterator_sequence_source(X), iter(sequence), sequence)
case("<position of x>", iterator_index_source(X), iter(sequence), 0)
case("x.size(0)", TensorPropertySource(X, "size", 0), tensor, 5)
case("x.size(-1)", TensorPropertySource(X, "size", -1), tensor, 2)
case("x.stride(1)", TensorPropertySource(X, "stride", 1), tensor, 2)
case("x.storage_offset()", TensorPropertySource(X, "storage_offset"), tensor, 4)
case("a_global", GlobalSource("a_global"), None, a_global)
case("globals()", GlobalsSource(), None, globals())
case("len", BuiltinSource("len"), None, len)
case("vars(__builtins__)", BuiltinsSource(), None, vars(builtins))
case("Thing", ConstSource(Thing), None, Thing)
case("answer", ConstSource(42, "answer"), None, 42)


def template(x): ...


def loaded(source, x):
    """What the source's code pushes, in a function of x."""
    instructions = [
        *current.emit_prologue((), ()),
        *source.emit_load(LoadContext()),
        Instruction("RETURN_VALUE"),
    ]
    return types.FunctionType(assemble(instructions, template.__code__), globals())(x)


def fetched(source, x):
    """What the guard program gives, by walking and from its snapshot."""
    program = GuardSet().build(template.__code__, [source])
    found = []
    for _ in range(4):
        passed, objects = program.check([x], template)
        assert passed, program.failure([x], template)
        found += objects
    if isinstance(found[0], int):
        assert found == found[:1] * 4
    else:
        assert all(each is found[0] for each in found)
    return found[0]


@pytest.mark.parametrize("name", CASES)
def test_loading_and_fetching_agree(name):
    source, x, expected = CASES[name]
    for found in (loaded(source, x), fetched(source, x)):
        assert found is expected or (type(found) is int and found == expected)


@pytest.mark.parametrize("name", CASES)
def test_name_is_the_expression(name):
    source = CASES[name][0]
    expected = {"torch.nn": "x.nn"}.get(name, name.partition(" (")[0] if " (" in name else name)
    assert source.name == expected
    assert source.name in repr(source)


def test_every_fetch_op_is_covered():
    ops = set()
    pending = [source for source, _, _ in CASES.values()] + [ClosureSource("x")]
    while pending:
        step = pending.pop().guard_step()
        ops.add(step.op)
        pending += [step.base] if step.base is not None else []
    assert ops == set(FETCH_OPS)


def test_free_variables():
    captured = object()

    def function(x):
        return captured

    code = function.__code__
    for source, expected in [
        (ClosureSource("captured"), captured),
        (CellSource("captured"), function.__closure__[0]),
    ]:
        instructions = [
            *current.emit_prologue((), code.co_freevars),
            *source.emit_load(),
            Instruction("RETURN_VALUE"),
        ]
        rebuilt = types.FunctionType(
            assemble(instructions, code), globals(), closure=function.__closure__
        )
        assert rebuilt(None) is expected
        program = GuardSet().build(code, [source])
        for _ in range(4):
            assert program.check([None], function) == (True, (expected,))


def test_arguments_in_cells_are_loaded_from_there():
    assert LocalSource("x").emit_load(LoadContext())[0].opname == "LOAD_FAST"
    (load,) = LocalSource("x").emit_load(LoadContext(frozenset({"x"})))
    assert (load.opname, load.arg) == ("LOAD_DEREF", "x")


class TestEquality:
    def test_built_alike(self):
        def build():
            layers = ModuleItemSource(LocalSource("self"), "_modules", "layers")
            return InstanceAttrSource(ModuleItemSource(layers, "_modules", "0"), "training")

        assert build() == build()
        assert hash(build()) == hash(build())
        assert len({build(), build()}) == 1

    def test_kinds_differ(self):
        assert LocalSource("x") != GlobalSource("x")
        assert ListItemSource(X, 0) != TupleItemSource(X, 0)
        assert AttrSource(X, "a") != InstanceAttrSource(X, "a")
        assert X != "x"

    def test_keys_differ_by_type_and_bits(self):
        keys = [
            1,
            True,
            1.0,
            0.0,
            -0.0,
            "1",
            b"1",
            None,
            (1,),
            (True,),
            (0.0,),
            (-0.0,),
            1 + 0j,
        ]
        sources = [DictItemSource(X, key) for key in keys]
        assert len(set(sources)) == len(keys)
        assert set(sources) == {DictItemSource(X, key) for key in keys}

    def test_objects_by_identity(self):
        class Equal:
            def __eq__(self, other):
                raise AssertionError("compared")

            __hash__ = None

        first, second = Equal(), Equal()
        assert ConstSource(first) == ConstSource(first)
        assert ConstSource(first) != ConstSource(second)
        assert DictItemSource(X, first) == DictItemSource(X, first)
        assert DictItemSource(X, first) != DictItemSource(X, second)

    def test_frozen(self):
        with pytest.raises(AttributeError):
            X.local = "y"


def test_sources_that_keep_objects_alive_say_so():
    held = InstanceAttrSource(ConstSource(thing), "own")
    assert held.keeps_alive
    assert DictItemSource(X, KEY).keeps_alive
    assert SuperAttrSource(TypeSource(X), "method", Thing).keeps_alive
    assert not DictItemSource(TypeSource(X), "k").keeps_alive


class TestIterators:
    @pytest.mark.parametrize(
        "make",
        [lambda: [1, 2, 3], lambda: (1, 2, 3), lambda: "abc", lambda: {1: 2, 3: 4, 5: 6}],
    )
    def test_position_and_sequence(self, make):
        sequence = make()
        iterator = iter(sequence)
        for position in range(len(sequence)):
            assert source_calls.iterator_index(iterator) == position
            assert source_calls.iterator_sequence(iterator) is sequence
            next(iterator)
        assert next(iterator, None) is None
        assert source_calls.iterator_index(iterator) == -1
        assert source_calls.iterator_sequence(iterator) is None

    def test_range(self):
        iterator = iter(range(2, 20, 3))
        next(iterator)
        left = source_calls.iterator_sequence(iterator)
        assert list(left[source_calls.iterator_index(iterator) :]) == [5, 8, 11, 14, 17]
        assert list(iterator) == [5, 8, 11, 14, 17], "asking takes nothing away"


def test_descriptions_run_no_code_of_the_user():
    class Loud:
        def __repr__(self):
            raise AssertionError("asked")

        __str__ = __format__ = __repr__

    assert (
        DictItemSource(X, Loud()).name
        == "x[<test_descriptions_run_no_code_of_the_user.<locals>.Loud object>]"
    )
    assert "Loud" in ConstSource(Loud()).name


def test_sources_are_freed():
    value = Thing()
    watched = weakref.ref(value)
    source = InstanceAttrSource(ConstSource(value), "own")
    del source, value
    gc.collect()
    assert watched() is None
    assert isinstance(X, Source)
