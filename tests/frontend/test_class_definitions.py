"""Classes that the captured code defines, and assertions of unittest in it."""

import abc
import unittest

import pytest
import torch
from testing import check, check_recompiles

import minidynamo

x = torch.arange(3.0)


def with_members(x):
    class Box:
        """Holds a number."""

        scale = 3
        held = [1, 2]
        label: int = 4

        def __init__(self, value):
            self.value = value

        def __len__(self):
            return 5

        @property
        def more(self):
            return self.value + 1

        @more.setter
        def more(self, value):
            self.value = value * 10

        @staticmethod
        def twice(value):
            return value * 2

        @classmethod
        def of(cls, value):
            return cls(value)

        def shifted(self):
            return x + self.value

    box = Box(2)
    box.more = 7
    names = [Box.__name__, Box.__doc__, Box.__module__, *Box.__annotations__]
    total = box.more + Box.twice(3) + Box.of(4).value + len(box) + Box.scale + sum(Box.held)
    return box.shifted() + total, names


def inheriting(x):
    class Left:
        def __init__(self):
            self.first = 1

        def speak(self):
            return 10

    class Right(Left):
        def __init__(self):
            super().__init__()
            self.second = 2

        def speak(self):
            return super().speak() + 5

    right = Right()
    assert isinstance(right, Left) and Right.__mro__[1] is Left
    return x + right.speak() + right.first + right.second


def comparing(x):
    class Same:
        def __eq__(self, other):
            return True

        def __hash__(self):
            return 4

    class Numbers(list):
        def __getitem__(self, index):
            return 10 + super().__getitem__(index)

    class Small:
        __slots__ = ["kept"]

    try:
        Small().other = 1
    except AttributeError:
        x = x + 1
    return x + len({Same(), Same()}) + (Same() == 3) + Numbers([1, 2])[0]


def counting(x):
    seen = 0

    class Countdown:
        def __init__(self):
            self.left = 3

        def __iter__(self):
            return self

        def __next__(self):
            nonlocal seen
            seen += 1
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return self.left

    return x + sum(Countdown()) + len(list(Countdown())), seen


def raising(x):
    class Refused(ValueError):
        pass

    class Swallows:
        def __enter__(self):
            return 1

        def __exit__(self, *error):
            return error[0] is Refused

    with Swallows() as one:
        raise Refused("no")
    try:
        raise Refused("yes")
    except ValueError as error:
        return x + one, str(error), type(error) is Refused


def storing(x):
    class Plain:
        kept = x + 1

        def total(self):
            return self.kept + self.later

    Plain.later = x * 2
    return Plain().total()


def marking(x):
    def marked(function):
        function.mark = 2
        return function

    class Plain:
        @marked
        def answer(self):
            return 3

    return x + Plain().answer() + Plain.answer.mark


def refused(x):
    class Both(int, str):
        pass

    return x


@pytest.mark.parametrize(
    "function",
    [with_members, inheriting, comparing, counting, raising, storing, marking],
    ids=lambda function: function.__name__,
)
def test_captured(function):
    check(function, x, fullgraph=True)


def test_errors_of_the_class_itself():
    check(refused, x, graphs=0)


# What leaves the frame is of a class of its own at each call.


def returned(x):
    class Box:
        def __init__(self, value):
            self.value = value

    return Box, Box(x + 1), Box.__init__


def raised(x):
    class Refused(ValueError):
        pass

    raise Refused(x.shape)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_escaping_classes_are_made_anew(part):
    minidynamo.reset()
    compiled = minidynamo.compile(lambda x: returned(x)[part], backend="eager")
    first, second = compiled(x), compiled(x)
    assert first is not second
    assert (type(first) is type(second)) is (part != 1)
    with pytest.raises(minidynamo.exc.Unsupported, match="class made while tracing"):
        minidynamo.compile(returned, backend="eager", fullgraph=True)(x)


def test_escaping_exceptions_are_of_a_class_made_anew():
    compiled = minidynamo.compile(raised, backend="eager")
    kinds = []
    for _ in range(2):
        with pytest.raises(ValueError) as caught:
            compiled(x)
        kinds.append(caught.type)
    assert kinds[0] is not kinds[1]


def alive_at_a_break(x):
    class Box:
        def value(self):
            return x + 1

    before = Box().value()
    minidynamo.graph_break()
    return before + Box().value()


def test_classes_that_live_on_behind_a_break():
    check(alive_at_a_break, x, graphs=2, calls=1)


made = []


def hooked(x):
    class Hooked:
        def __init_subclass__(cls):
            made.append(cls)

    class Below(Hooked):
        pass

    return x + len(made)


def test_hooks_run_at_each_call():
    made.clear()
    compiled = minidynamo.compile(hooked, backend="eager")
    assert torch.equal(compiled(x), x + 1)
    assert torch.equal(compiled(x), x + 2)


# Guards: what bodies and methods read may change.

scale = 2


class Base:
    factor = 3


def reading(x, extra):
    class Below(Base):
        own = scale

        def total(self):
            return x + self.own + self.factor + extra

    return Below().total()


def change(index):
    global scale
    scale = 2 + (index > 0)
    Base.factor = 3 + (index > 1)


def test_what_a_class_reads_is_guarded():
    calls = [(x, 1), (x, 1), (x, 1), (x, 1)]
    check_recompiles(reading, calls, 3, change, fullgraph=True)
    change(0)


def abstract(x):
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self): ...

        @property
        @abc.abstractmethod
        def name(self): ...

    class Square(Shape):
        name = "square"

        def area(self):
            return x * 2

    seen = []
    for made in (Shape, Square):
        try:
            seen.append(made().area())
        except TypeError as error:
            seen.append(str(error))
    return seen


def test_abstract_classes_have_no_objects():
    """Making one raises the TypeError of eager."""
    check(abstract, x, fullgraph=True)


# Assertions of unittest are traced.


class Assertions(unittest.TestCase):
    def runTest(self):
        pass


def asserting(x, count):
    case = Assertions()
    case.assertEqual([1, {"a": 2}], [1, {"a": 2}])
    case.assertIn(1, {1, 2})
    case.assertRaises(ValueError, int, "a")
    with case.assertRaisesRegex(ValueError, "invalid") as caught:
        int("a")
    case.assertIn("literal", str(caught.exception))
    case.assertEqual(count, 1)
    return x + 1


def test_assertions_of_unittest():
    check(asserting, x, 1, fullgraph=True)
    minidynamo.reset()
    compiled = minidynamo.compile(asserting, backend="eager")
    with pytest.raises(AssertionError, match="2 != 1"):
        compiled(x, 2)


# Classes made by type(name, bases, namespace).


def made_by_type(x):
    class Base:
        scale = 2

    names = {"more": lambda self, value: value + self.scale, "kept": x}
    made = type("Made", (Base,), names)
    names["late"] = 1
    said = []
    for given in (("Made", 3, {}), ("Made", ()), ("Made", (int, str), {})):
        try:
            type(*given)
        except TypeError as error:
            said.append(str(error))
    plain = type("Plain", (), {}).__module__
    return made().more(x), made.kept * 2, plain, hasattr(made, "late"), said


def test_classes_made_by_type():
    check(made_by_type, x, fullgraph=True)


class Meta(type):
    pass


@pytest.mark.parametrize("meta", [type, Meta])
def test_metaclasses_called_with_what_makes_no_class(meta):
    def fn(x, calls):
        texts = []
        for args, named in calls:
            try:
                texts.append(meta(*args, **named))
            except TypeError as error:
                texts.append(str(error))
        return x + 1, texts

    wrong = [(), (5, 6), (5, (), {}), ("a", (), 3), (1, 2, 3, 4)]
    check(fn, x, [(args, {}) for args in wrong])
    check(fn, x, [((5,), {}), ((x,), {})])
    check(fn, x, [((5,), {"named": 1}), ((5, 6), {"named": 1})], graphs=None)


def test_prepare_of_a_metaclass_runs_once():
    prepared = []

    class Prepares:
        def __new__(cls, name, bases, namespace):
            return super().__new__(cls)

        @classmethod
        def __prepare__(cls, name, bases):
            prepared.append(name)
            return {}

    def fn(x):
        y = x + 1

        class Made(metaclass=Prepares):
            pass

        return y, type(Made) is Prepares

    check(fn, x, calls=1)
    assert prepared == ["Made"] * 2


def test_a_classcell_that_is_no_cell():
    def fn(x):
        y = x + 1
        try:

            class Made:
                __classcell__ = 42

        except TypeError as error:
            return y, str(error)

    check(fn, x)


def test_the_cell_of_a_class_in_one_that_names_the_outer_cell():
    class Outer:
        def fn(self, x):
            y = x + 1

            class Inner:
                outer = __class__

                def own():
                    return __class__

            return y * 2, Inner.outer is Outer, Inner.own() is Inner

    check(Outer().fn, x, graphs=2, calls=1)


def test_class_getitem_of_classes_made_inside():
    def fn(x):
        seen = []

        class Base:
            def __class_getitem__(cls, item):
                seen.append(item)
                return cls.__name__, item

        class Derived(Base):
            pass

        class Short:
            def __class_getitem__(cls):
                pass

        found = [Base[1], Derived[2, 3], Base[x][1] is x]
        for wrong in (lambda: Base()[1], lambda: Short[1]):
            try:
                found.append(wrong())
            except TypeError as error:
                found.append(str(error))
        return x + 1, found, seen

    check(fn, x, fullgraph=True)


def test_constants_of_a_class_made_by_type_leave_the_graph():
    def fn(x):
        made = type("Made", (), {"number": 1, "name": "made"})
        return x + made.number, made.number, made().name

    check(fn, x, fullgraph=True)
