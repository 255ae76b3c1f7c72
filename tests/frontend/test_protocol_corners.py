"""Corners of CPython's protocols: hints of length, unpacking, slots that are None, patterns."""

import array
import collections.abc
import datetime
import decimal
import enum
import operator
import re
import types

import pytest
import torch
from testing import check, check_recompiles

import minidynamo

x = torch.linspace(-1, 1, 4)


class Sized:
    """Says what was asked of it, in order."""

    def __init__(self, log, length=2):
        self.log = log
        self.answer = length

    def __len__(self):
        self.log.append("length")
        return self._result()

    def _result(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def __iter__(self):
        self.log.append("iterator")
        return iter([1, 2])


class HintOnly:
    def __init__(self, log, length=2):
        self.log = log
        self.answer = length

    __iter__ = Sized.__iter__
    _result = Sized._result

    def __length_hint__(self):
        self.log.append("hint")
        return self._result()


class Numbers(list):
    def __len__(self):
        raise ValueError("no length")


TAKERS = {
    "list": list,
    "tuple": tuple,
    "sorted": sorted,
    "set": set,
    "extend": lambda value: [].extend(value),
    "star": lambda value: [0, *value],
    "arguments": lambda value: max(*value),
    "slice": lambda value: [5].__setitem__(slice(0, 1), value),
    "unpacked": lambda value: operator.add(*value),
    "hint": operator.length_hint,
    "hint or": lambda value: operator.length_hint(value, 7),
}
ANSWERS = [2, -1, "many", NotImplemented, ValueError("v"), TypeError("t")]


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
@pytest.mark.parametrize("cls", [Sized, HintOnly])
def test_lengths_are_asked_for(take, cls):
    def fn(x):
        out = []
        for answer in ANSWERS:
            log = []
            try:
                out.append((take(cls(log, answer)), log))
            except (TypeError, ValueError) as error:
                out.append((type(error), str(error), log))
        return out, x + 1

    check(fn, x)


def test_length_of_a_subclass_of_list_is_asked_for():
    def fn(x, make):
        try:
            return make(Numbers([1, 2])), x + 1
        except ValueError as error:
            return str(error), x - 1

    for make in (list, tuple, sorted, set):
        check(fn, x, make)


def test_unpacking_takes_one_more_than_wanted():
    def numbers(log):
        for number in range(5):
            log.append(number)
            yield number

    def fn(x):
        log, out = [], []
        listed = iter([1, 2, 3, 4])
        pairs = iter({"a": 1, "b": 2, "c": 3}.items())
        for iterator in (numbers(log), listed, pairs, map(log.append, "abcd")):
            try:
                _a, _b = iterator
            except ValueError as error:
                out.append(str(error))
            out.append(list(iterator))
        return log, out, x + 1

    check(fn, x)


class Refuses:
    __iter__ = None
    __contains__ = None
    __reversed__ = None

    def __getitem__(self, index):
        return [1, 2][index]

    def __len__(self):
        return 2


REFUSED = {
    "iter": iter,
    "list": list,
    "in": lambda value: 1 in value,
    "reversed": lambda value: list(reversed(value)),
    "for": lambda value: [item for item in value],
}


@pytest.mark.parametrize("use", REFUSED.values(), ids=REFUSED)
def test_slots_that_are_none(use):
    def fn(x):
        return x + 1, use(Refuses())

    check(fn, x)


def test_causes():
    def fn(x):
        out = []
        for cause in (3, int, KeyError, KeyError("k"), None):
            try:
                raise ValueError("v") from cause
            except (TypeError, ValueError) as error:
                out.append((str(error), repr(error.__cause__), error.__suppress_context__))
        return out, x + 1

    check(fn, x)


class Asked(collections.abc.Mapping):
    """A mapping that says how it was asked."""

    def __init__(self, log):
        self.log = log

    def get(self, key, default=None):
        self.log.append(key)
        return {"a": 1, "none": None}.get(key, default)

    def __getitem__(self, key):
        raise AssertionError

    def __len__(self):
        return 2

    def __iter__(self):
        return iter("ab")


def test_mapping_patterns_call_get():
    def fn(x):
        log = []
        match Asked(log):
            case {"a": 2}:
                found = "two"
            case {"a": 1, "b": _}:
                found = "both"
            case {"none": None, "a": one}:
                found = one
        return log, found, x + 1

    check(fn, x)


def test_too_many_patterns_for_a_builtin_class():
    def fn(x):
        try:
            match 3:
                case int(_, _):
                    return x
        except TypeError as error:
            return str(error), x + 1

    check(fn, x)


class Watched:
    """Notes each attribute that is looked up on it."""

    seen = []

    def __getattribute__(self, name):
        type(self).seen.append(name)
        return super().__getattribute__(name)

    def __init__(self, value):
        self.__dict__["value"] = value

    value = property(lambda self: self.__dict__["value"])


def test_looking_at_an_object_runs_nothing_of_it():
    def fn(x, existing):
        made = Watched(x * 2)
        existing.first = [made]
        made.second = existing.first[0].value + x
        return made.second, {"made": made}

    compiled = minidynamo.compile(fn, backend="eager")
    logs = []
    for function in (fn, compiled, compiled):
        Watched.seen = []
        result, _ = function(x, Watched(3))
        torch.testing.assert_close(result, x * 3)
        logs.append(Watched.seen)
    assert logs[0] == logs[1] == logs[2]


class Slotted:
    __slots__ = ("first", "second")

    def __eq__(self, other):
        return (
            type(other) is Slotted
            and not hasattr(self, "first")
            and not hasattr(other, "first")
        )

    __hash__ = None


def test_empty_slots():
    def fn(x, existing):
        out = []
        existing.first = 1
        made = Slotted()
        made.second = x
        for target in (existing, made):
            for name in ("first", "second", "first", "third"):
                try:
                    delattr(target, name)
                except AttributeError as error:
                    out.append(str(error))
            try:
                target.third = 3
            except AttributeError as error:
                out.append(str(error))
        return out, x + 1

    check(fn, x, Slotted())


def test_slices_take_what_can_be_iterated_over():
    def fn(x):
        out = []
        for key in (slice(0, 1), slice(None, None, 2)):
            for value in (3, x.shape, {"a": 1, "b": 2}, None):
                items = [1, 2, 3, 4]
                try:
                    items[key] = value
                except (TypeError, ValueError) as error:
                    out.append(str(error))
                out.append(items)
        return out, x + 1

    check(fn, x)


def test_unpacking_takes_one_item_more_than_wanted():
    class Endless:
        def __init__(self):
            self.taken = []

        def __iter__(self):
            for i in range(1 << 30):
                self.taken.append(i)
                yield i

    def fn(x):
        items = Endless()
        try:
            a, b = items
        except ValueError as error:
            return x + 1, str(error), items.taken

    check(fn, x)


def test_what_is_not_reversible_and_slices_of_too_many_parts():
    class Counted:
        def __len__(self):
            return 3

    class Indexed(Counted):
        def __getitem__(self, index):
            return index

    class Refused(Indexed):
        __reversed__ = None

    def fn(x):
        found = []
        for kind in (Counted, Indexed, Refused):
            try:
                found.append(reversed(kind()))
                found.append(list(found.pop()))
            except TypeError as error:
                found.append(str(error))
        for parts in ((), (1, 2, 3, 4), (1, None, x, 2, 3)):
            try:
                found.append(slice(*parts))
            except TypeError as error:
                found.append(str(error))
        return x + 1, found

    check(fn, x)


class Counts:
    def __index__(self):
        return 2


class CountsItself(Counts):
    def __mul__(self, other):
        return "own", other

    __rmul__ = __mul__


class CountsNot(Counts):
    def __rmul__(self, other):
        return NotImplemented


class NoIteration:
    __iter__ = None


class RefusedIteration:
    def __iter__(self):
        raise TypeError("own words")


class NoContainer:
    __contains__ = None

    def __iter__(self):
        return iter([1])


class Answering(type):
    """A metaclass whose methods give odd answers."""

    def __contains__(cls, item):
        return item

    def __reversed__(cls):
        return iter([2, 1])


class Answers(metaclass=Answering):
    pass


class Iterated(type):
    def __iter__(cls):
        return iter([1, 2])


class Pair(metaclass=Iterated):
    pass


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class Letters(str):
    pass


class Shouted(str):
    def __str__(self):
        return self.upper()


ANSWERS = {
    "text times": lambda: ("a" * Counts(), Counts() * b"b", "a" * CountsNot()),
    "times of its own": lambda: ("a" * CountsItself(), CountsItself() * "a"),
    "list times": lambda: ([1] * Counts(), Counts() * (1,), [1] * CountsItself()),
    "text times a float": lambda: "a" * 2.5,
    "text times an object": lambda: "a" * NoIteration(),
    "in what is not iterable": lambda: 1 in NoIteration(),
    "in what refuses": lambda: 1 not in RefusedIteration(),
    "in no container": lambda: 1 in NoContainer(),
    "vars of a number": lambda: vars(3),
    "vars of slots": lambda: vars(Slotted.__new__(Slotted)),
    "reversed enum": lambda: list(reversed(Level)),
    "reversed class": lambda: (list(reversed(Answers)), 0 in Answers, "a" not in Answers),
    "reversed plain class": lambda: reversed(Pair),
    "in a class": lambda: (1 in Pair, 3 in Pair, list(Pair)),
    "in a plain class": lambda: 1 in Letters,
    "in a function": lambda: 1 in len,
    "in a module": lambda: 1 in operator,
    "function's item": lambda: len[0],
    "function's store": lambda: operator.setitem(len, 0, 1),
    "function's deletion": lambda: operator.delitem(len, 0),
    "length of a function": lambda: len(len),
    "dtype's item": lambda: torch.float32[0],
    "slice of no number": lambda: [0][NoIteration() :],
    "index of no number": lambda: operator.index(NoIteration()),
    "range of no number": lambda: range(NoIteration()),
    "insert at no number": lambda: [0].insert(NoIteration(), 1),
    "index of a list": lambda: range([]),
    "super of no class": lambda: super(NoIteration(), 1),
    "percent of a text": lambda: "%s and %r" % (Letters("a"), Letters("b")),
    "percent of one text": lambda: ("%s" % Letters("a"), "%s" % Shouted("a")),
    "percent on a text": lambda: Letters("%s %s") % (1, Shouted("k")),
    "percent of two texts": lambda: Letters("%s") % Letters("a"),
    "percent that does not fit": lambda: Letters("%d") % "a",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_of_texts_and_of_what_lacks_a_method(name):
    ask = ANSWERS[name]

    def fn(x):
        try:
            return x + 1, ask()
        except TypeError as error:
            return x + 1, str(error)

    check(fn, torch.ones(2), fullgraph=True)


def test_texts_are_repeated_as_often_as_a_size():
    def fn(x):
        return x + 1, "ab" * x.shape[0]

    check_recompiles(fn, [(torch.ones(n),) for n in (2, 3, 4)], graphs=None)


def subscripted(value):
    return value[0]


def emptied(value):
    del value[0]


def measured(value):
    return len(value)


def walked(value):
    return list(value)


def called(value):
    return value()


def searched(value):
    return 1 in value


def entered(value):
    with value:
        return 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: types.SimpleNamespace(a=1),
        lambda: datetime.date(2020, 1, 2),
        lambda: datetime.timedelta(1),
        lambda: decimal.Decimal("1.5"),
        lambda: collections.deque(),
        lambda: re.compile("a"),
        lambda: torch.float32,
        lambda: "text",
        lambda: None,
        lambda: types.SimpleNamespace,
        lambda: torch.ones(2),
        lambda: len,
    ],
)
def test_what_the_class_of_an_object_lacks(make):
    """The messages have the name that its C class has, and `with` asks for no attributes."""

    def fn(x, value, read):
        try:
            return x + 1, type(read(value))
        except (TypeError, IndexError) as error:
            return x - 1, type(error), str(error)

    reads = (subscripted, emptied, measured, walked, called, searched, entered)
    for read in reads:
        check(fn, x, make(), read, graphs=None)


@pytest.mark.parametrize("value", [array.array("i", [1, 2]), memoryview(b"ab")])
def test_sequences_of_c_are_reversible(value):
    def fn(x):
        try:
            return x + 1, list(reversed(value))
        except TypeError as error:
            return x - 1, str(error)

    check(fn, x, graphs=None)
