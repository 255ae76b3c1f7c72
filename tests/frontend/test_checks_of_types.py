"""isinstance() with hints, unions and protocols, and attributes of `list[int]`: as in Python."""

import collections
import collections.abc
import types
import typing

import pytest
import torch

import minidynamo


def compare(function, expected_graphs=1):
    """Runs the function plainly and as one graph; the results have to be equal."""
    graphs = []

    def backend(graph_module, inputs, **kwargs):
        graphs.append(graph_module)
        return graph_module.forward

    x = torch.ones(3)
    expected = function(x)
    found = minidynamo.compile(function, backend=backend, fullgraph=True)(x)
    assert found[:-1] == expected[:-1]
    assert torch.equal(found[-1], expected[-1])
    assert len(graphs) == expected_graphs
    return expected


def answer(value, classes):
    """What isinstance says, or the message of its error."""
    try:
        return isinstance(value, classes)
    except TypeError as error:
        return str(error)


@typing.runtime_checkable
class HasName(typing.Protocol):
    name: str


@typing.runtime_checkable
class HasRun(typing.Protocol):
    def run(self): ...


class NotAskable(typing.Protocol):
    def run(self): ...


class OfName(HasName):
    pass


class Named:
    def __init__(self):
        self.name = "a"

    def run(self):
        return 3


class Stopped:
    run = None


class Late:
    def __init__(self):
        self.run = 4


class Registered:
    pass


HasName.register(Registered)

HINTS = [
    list[int],
    int | list[int],
    int | list,
    (int, list[int]),
    (list[int], int),
    (list, list[int]),
    collections.abc.Callable[[int], int],
    typing.List,  # noqa: UP006
    typing.List[int],  # noqa: UP006
    typing.Union[int, list],  # noqa: UP007
    typing.Union[list[int], int],  # noqa: UP007
    typing.Optional[int],  # noqa: UP007, UP045
    typing.Any,
    typing.ClassVar,
    typing.ClassVar[int],
    typing.Final[int],
    typing.Sequence,
    typing.Sized,
    typing.Hashable,
    typing.TypeVar("T"),
    torch.Tensor | int,
    3,
    (int, 3),
    (3, int),
]
PROTOCOLS = [HasName, HasRun, NotAskable, OfName, (HasName, NotAskable), (int, NotAskable)]


@pytest.mark.parametrize("hint", HINTS, ids=str)
def test_hints_answer_as_in_python(hint):
    def function(x):
        values = (3, [1], {}, None, "a", len, x, Named(), Named)
        return [answer(value, hint) for value in values], x + 1

    compare(function)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_protocols_ask_for_members(protocol):
    def function(x):
        values = (Named(), Stopped(), Late(), Registered(), [], 3, len, x)
        return [answer(value, protocol) for value in values], x + 1

    compare(function)


def test_a_class_that_implements_a_protocol_asks_for_itself():
    """The implementation was taken for the protocol: whatever had the members passed."""

    def function(x):
        return isinstance(Named(), OfName), isinstance(Named(), HasName), x + 1

    assert compare(function)[:2] == (False, True)


class ThreeOnly(type):
    def __instancecheck__(cls, value):
        return value == 3


class Three(metaclass=ThreeOnly):
    pass


def test_classes_are_asked_in_order():
    """What is wrong with a later item is an error only if no earlier one fits."""

    def function(x):
        first, second = answer(3, (Three, 4)), answer(3, (4, Three))
        return first, second, answer("3", (Three, 4)), answer(4, Three | str), x + 1

    compare(function)


class Box:
    __class_getitem__ = classmethod(types.GenericAlias)
    size = 4

    @classmethod
    def made(cls, count):
        return cls.__name__, count

    def volume(self):
        return self.size**3


def test_attributes_of_generic_aliases_are_those_of_the_class():
    """Special methods of the alias itself were found instead: list[int].__getitem__(a, 0) was an
    error.
    """

    def function(x):
        kind, values = list[int], [1, 2]
        kind.append(values, 3)
        table = dict[int, int].fromkeys([1], 2)
        dict[int, int].__setitem__(table, 2, 5)
        item = kind.__getitem__(values, 0), kind.__len__(values)
        return values, item, table, kind.__origin__, kind.__args__, x + 1

    compare(function)


def test_attributes_of_aliases_of_classes_of_the_program():
    box = Box()

    def function(x):
        kind = Box[int]
        found = kind.size, kind.made(3), kind.volume(box), kind.__name__
        return found, hasattr(kind, "nope"), x + 1

    compare(function)


def test_calls_of_generic_aliases_are_traced():
    def function(x):
        box = Box[int]()
        counts = collections.Counter[str]("aab")
        return list[int]((1, 2)), dict[str, int](a=1), box.size, counts["a"], x + 1

    compare(function)


def test_the_class_of_an_alias_is_kept_on_the_object():
    def function(x):
        box = Box[int]()
        return box.__orig_class__ == Box[int], x + 1

    assert compare(function)[0]


class Slotted:
    __slots__ = ()
    __class_getitem__ = classmethod(types.GenericAlias)


class Refusing:
    __class_getitem__ = classmethod(types.GenericAlias)

    def __setattr__(self, name, value):
        raise ValueError(name)


def test_objects_that_can_not_keep_their_alias():
    def function(x):
        slotted = Slotted[int]()
        try:
            Refusing[int]()
        except ValueError as error:
            return hasattr(slotted, "__orig_class__"), str(error), x + 1

    assert compare(function)[:2] == (False, "__orig_class__")


Item = typing.TypeVar("Item")


class Pairs(typing.Dict[Item, Item]):  # noqa: UP006
    pass


class Items(typing.List[Item]):  # noqa: UP006
    pass


def test_containers_keep_their_alias():
    def function(x):
        made = Pairs[int](a=1), Items[str]([1])
        kept = [value.__orig_class__ == type(value)[int] for value in made]
        return kept, hasattr(Pairs(), "__orig_class__"), list[int]([2]), made[0]["a"], x + 1

    assert compare(function)[:2] == ([True, False], False)


def test_numbers_too_long_to_be_written_out():
    """The message of a failed guard was an error: Python writes out 4,300 digits at most."""

    def function(x, number):
        return x + number.bit_length()

    compiled = minidynamo.compile(function, backend="eager", dynamic=False)
    for exponent in (20_000, 20_001, 20_002):
        number = 7**exponent
        assert torch.equal(compiled(torch.ones(2), number), function(torch.ones(2), number))
