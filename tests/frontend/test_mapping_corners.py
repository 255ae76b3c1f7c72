"""Corners of dicts, sets and sizes: items that are indices, early answers, hidden entries."""

from __future__ import annotations

import collections
import copy
from collections import OrderedDict, deque

import pytest
import torch
from testing import assert_same, check

import minidynamo

X = torch.arange(4.0)


class Mapping:
    """A mapping by what an instance has."""

    def __init__(self, value):
        self.value = value
        self.keys = lambda: ["a", "b"]

    def __getitem__(self, key):
        return self.value


class Stored:
    def __init__(self, x):
        self.__dict__["x"] = x

    @property
    def x(self):
        return self.__dict__["x"]

    @x.setter
    def x(self, value):
        self.__dict__["x"] = value + 1


class Doubled:
    """A data descriptor that keeps its value under its own name."""

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner=None):
        return instance.__dict__[self.name] * 2

    def __set__(self, instance, value):
        instance.__dict__[self.name] = value

    def __delete__(self, instance):
        del instance.__dict__[self.name]


class Described:
    x = Doubled()


class DescribedDict(dict):
    x = Doubled()


def sizes_of_tensors(x, holder):
    table = {torch.Size([2, 1]): 3}
    return x * table[torch.Size([torch.tensor(2), True])]


def early_answers(x, holder):
    taken = []

    def items():
        for i in (1, 2, 3):
            taken.append(i)
            yield i

    answers = (
        {2, 4}.isdisjoint(items()),
        frozenset({1, 5}).issuperset(items()),
        {2: 1}.keys().isdisjoint(items()),
        {9: 1}.keys().isdisjoint([3]),
        {2}.issubset(items()),
        {2, 3}.intersection(items()),
        frozenset().intersection(items()),
    )
    return x + 1, answers, taken


def keys_of_the_instance(x, holder):
    made = dict(Mapping(x), c=1)
    made.update(Mapping(2))
    return x + made["a"], made


def hidden_entries(x, holder):
    first = holder.x
    holder.x = first + 1
    holder.__dict__["x"] = holder.__dict__["x"] * 3
    new = (
        type(holder)({"k": x})
        if isinstance(holder, dict)
        else type(holder).__new__(type(holder))
    )
    new.x = x
    return x + holder.x, new.x, new


def deleted_entry(x, holder):
    del holder.x
    return x + len(holder.__dict__)


def described(cls):
    holder = cls()
    holder.x = 5
    return holder


ROWS = [
    (sizes_of_tensors, None),
    (early_answers, None),
    (keys_of_the_instance, None),
    (hidden_entries, Stored(5)),
    (hidden_entries, described(Described)),
    (hidden_entries, described(DescribedDict)),
    (deleted_entry, described(Described)),
]


@pytest.mark.parametrize(("fn", "holder"), ROWS)
def test_as_eager(fn, holder):
    is_whole = fn is not sizes_of_tensors and not isinstance(holder, dict)
    check(fn, X, holder, graphs=1 if is_whole else None, fullgraph=is_whole)


def test_hidden_entries_are_guarded():
    holder = Stored(X)
    backend = check(lambda x, h: x + h.__dict__["x"], X, holder, fullgraph=True)
    assert backend.op_count == 1


LOG: list[tuple[str, int]] = []


class Number:
    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        LOG.append(("lt", self.value))
        return self.value < other.value


def given():
    for i in (3, 1, 4, 2):
        LOG.append(("given", i))
        yield i


def seen(value):
    LOG.append(("seen", value))
    return value


def extended(made):
    made.extend(i + len(made) for i in given())
    made += (len(made) for _ in range(2))
    return made


def extended_left(made):
    made.extendleft(i + len(made) for i in given())
    return list(made)


def updated_dict(made):
    made.update((i, len(made)) for i in given())
    return made


def updated_set(made):
    made.update(i + len(made) for i in given())
    made.difference_update(len(made) for _ in given())
    return made


def stopped(made):
    try:
        made.extend(1 // (i - 4) for i in given())
    except ZeroDivisionError:
        made.append(9)
    return made


def extremes(made):
    numbers = (Number(i) for i in given())
    return max(given(), key=seen), min(numbers).value, max((3, 5), key=seen)


@pytest.mark.parametrize(
    ("fn", "made"),
    [
        (extended, [1]),
        (extended, deque([1], maxlen=4)),
        (extended_left, deque([1], maxlen=3)),
        (updated_dict, {}),
        (updated_set, {1}),
        (stopped, [1]),
        (extremes, None),
    ],
)
def test_what_gives_items_sees_what_was_done_with_them(fn, made):
    def run(x, made):
        LOG.clear()
        return x + 1, fn(made), list(LOG)

    check(run, X, made, graphs=1, fullgraph=True)


def attributes_of_a_new_ordered_dict(x):
    table = collections.OrderedDict(a=1)
    table.shown, table.x = ["a"], x
    other, deep = copy.copy(table), copy.deepcopy(table)
    return vars(other), vars(deep), other.shown is table.shown, vars(table.copy()), x + 1


def attributes_of_an_ordered_dict(x, table):
    table.shown = ["a"]
    deep = copy.deepcopy(table)
    deep.shown.append(2)
    return vars(copy.copy(table)), vars(deep), table.__reduce_ex__(2)[:3], x + 1


def no_attributes(x):
    table = collections.OrderedDict(a=1)
    return table.__reduce_ex__(2)[:4], vars(copy.deepcopy(table)), x + 1


@pytest.mark.parametrize("fn", [attributes_of_a_new_ordered_dict, no_attributes])
def test_copies_of_new_ordered_dicts(fn):
    check(fn, X, fullgraph=True)


def test_copies_of_ordered_dicts():
    check(attributes_of_an_ordered_dict, X, collections.OrderedDict(b=2))


def test_an_ordered_dict_that_lost_its_items():
    """dict.clear knows nothing of the order."""

    def fn(x, table):
        dict.clear(table)
        y = x + 1
        minidynamo.graph_break()
        return y, len(table)

    for _ in range(2):
        table = collections.OrderedDict(a=1)
        y, length = minidynamo.compile(fn, backend="eager")(X, table)
        assert torch.equal(y, X + 1)
        assert length == dict.__len__(table) == 0


def test_items_of_an_ordered_dict_are_set_past_its_class():
    def fn(x, table):
        dict.__setitem__(table, "b", x)
        return list(table.items()), x + 1

    check(fn, X, collections.OrderedDict(a=1, b=2), fullgraph=True)


class OwnKeys:
    """What reads such a mapping by its own methods gets other items."""

    def keys(self):
        LOG.append("keys")
        return ["z"]

    def __getitem__(self, key):
        LOG.append(key)
        return 9


class OwnIter(OwnKeys):
    def __iter__(self):
        return dict.__iter__(self)


class Init:
    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.count = len(args)


UNIONS = (
    lambda a: a | {"q": 1},
    lambda a: {"q": 1} | a,
    lambda a: a.copy(),
    lambda a: dict.copy(a),
    lambda a: a | collections.OrderedDict(q=1),
    lambda a: collections.defaultdict(int, q=1) | a,
)


@pytest.mark.parametrize("base", [dict, collections.OrderedDict])
@pytest.mark.parametrize("own", [OwnKeys, OwnIter, Init])
def test_unions_and_copies_of_mappings_with_own_methods(base, own):
    cls = type("Own", (own, base), {})

    def fn(x, given):
        LOG.clear()
        results = []
        for mapping in (given, cls(a=1)):
            for union in UNIONS:
                made = union(mapping)
                count = getattr(made, "count", None)
                results.append((type(made), count, [*dict.items(made)], list(LOG)))
        return x + 1, results

    def outcome(function):
        given = cls(b=2)
        return function(X, given)[1]

    assert outcome(minidynamo.compile(fn, backend="eager", fullgraph=True)) == outcome(fn)


class OwnDefault(Init, collections.defaultdict):
    pass


def test_unions_of_subclasses_of_defaultdict():
    def fn(x):
        table = OwnDefault(list, a=1)
        made = [table | {"b": 2}, {"b": 2} | table, table.copy()]
        return x + 1, [(type(m), m.default_factory, m.count, [*m.items()]) for m in made]

    check(fn, X, fullgraph=True)


class Kept(list):
    pass


class KeptSet(set):
    pass


class Pair(tuple):
    pass


class Named(collections.namedtuple("Named", "first second")):
    pass


class Counted(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value + 1)

    def __getstate__(self):
        return {"count": len(self)}


class Rebuilt(list):
    def __reduce__(self):
        return Rebuilt, (), {"length": len(self)}, iter([7])


MADE = (
    lambda: Kept([1, [2]]),
    lambda: KeptSet([1]),
    lambda: Pair([1, [2]]),
    lambda: Named(1, [2]),
    lambda: Counted(a=1),
    lambda: Rebuilt([1, 2]),
    lambda: OwnDefault(list, a=[1]),
    lambda: collections.Counter("aab"),
)


@pytest.mark.parametrize("make", MADE)
def test_copies_of_subclasses_of_containers(make):
    def fn(x, given):
        new = make()
        results = []
        for old in (given, new):
            if hasattr(old, "__dict__"):
                old.note = ["n"]
            for made in (copy.copy(old), copy.deepcopy(old)):
                note = getattr(made, "note", None)
                known = vars(made) if hasattr(made, "__dict__") else None
                results.append((made, type(made), known, made is old))
                results.append(note is getattr(old, "note", 0))
        return x + 1, results

    check(fn, X, make(), fullgraph=True)


class Names(dict):
    """Items by attributes: the special methods are those of dict under other names."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__
    __neg__ = dict.copy


class Defaults(Names):
    __getattr__ = dict.get


@pytest.mark.parametrize("kind", [Names, Defaults])
def test_special_methods_that_are_methods_of_dict(kind):
    def fn(x):
        names = kind(given=1)
        names.doubled = x * 2
        names["gone"] = names.keys = 3
        del names.gone
        errors = []
        for act in (lambda: names.absent, lambda: delattr(names, "absent")):
            try:
                act()
            except KeyError as error:
                errors.append(str(error))
        return names.doubled + 1, names.given, errors, -names, vars(names)

    check(fn, X)


class Logged(deque):
    """Counts its constructions, which are told the items and the bound."""

    made: list = []

    def __init__(self, items=(), maxlen=None):
        self.made.append((len(items), maxlen))
        super().__init__(items, maxlen)

    def __new__(cls, *args):
        cls.made.append("new")
        return super().__new__(cls)


class Reversed(deque):
    def __iter__(self):
        return reversed([self[index] for index in range(len(self))])


@pytest.mark.parametrize("maxlen", [None, 3])
@pytest.mark.parametrize("kind", [Logged, Reversed])
def test_deques_of_a_subclass_are_made_by_calls_of_it(kind, maxlen):
    def fn(x):
        Logged.made.clear()
        items = kind([1, 2], maxlen)
        items.label = "not copied"
        others = [items + items, items * 2, 2 * items, items.copy(), copy.copy(items)]
        found = [([*deque.__reversed__(o)], o.maxlen, type(o) is kind, vars(o)) for o in others]
        return x + 1, found, list(Logged.made)

    check(fn, X)


def test_deques_of_a_subclass_that_makes_something_else():
    class Other(deque):
        pass

    def fn(x, items):
        Other.__new__ = lambda cls, *args: [42]
        texts = []
        for act in (lambda: items * 2, lambda: items + items, lambda: items.copy()):
            try:
                act()
            except TypeError as error:
                texts.append(str(error))
        del Other.__new__
        return x + 1, texts

    check(fn, X, Other([1]))


def test_items_that_are_moved_to_the_end_of_an_ordered_dict():
    def fn(x, given):
        made = OrderedDict((number, x + number) for number in range(4))
        for number in (0, 2, 0, 3):
            made.move_to_end(number)
        for key in ("b", "a", "c"):
            given.move_to_end(key)
        given["b"] = 7
        given.move_to_end("a", last=False)
        return made, list(made), list(given.items())

    def given():
        return OrderedDict(a=1, b=2, c=3, d=4)

    check(fn, X, given())
    plain, compiled = given(), given()
    fn(X, plain)
    minidynamo.compile(fn, backend="eager")(X, compiled)
    assert list(plain.items()) == list(compiled.items())


def bypassed_by_update(x, ordered):
    dict.update(ordered, {"z": x})
    return x + ordered["z"], len(ordered), "z" in ordered, str(ordered), ordered == {}


def bypassed_by_clear(x, ordered):
    dict.clear(ordered)
    text = repr(ordered)
    ordered.clear()
    ordered["q"] = 1
    return x + 1, text, list(ordered)


def bypassed_by_others(x, ordered):
    popped = dict.pop(ordered, "a"), dict.setdefault(ordered, "c", 5)
    dict.__setitem__(ordered, "d", 6)
    ordered.update(d=7)
    return x + len(ordered), popped, ordered.get("a"), ordered == {"b": 2, "c": 5, "d": 7}


@pytest.mark.parametrize(
    "fn", [bypassed_by_update, bypassed_by_clear, bypassed_by_others], ids=lambda f: f.__name__
)
def test_methods_of_dict_bypass_the_order_of_an_ordereddict(fn):
    def fresh(x):
        return fn(x, collections.OrderedDict(a=1, b=2))

    check(fresh, torch.ones(2), fullgraph=True)
    compiled = minidynamo.compile(fn, backend="eager")
    assert_same(fresh(X), compiled(X, collections.OrderedDict(a=1, b=2)))


def test_what_shows_a_bypassed_order_is_left_to_eager():
    def listed(x):
        ordered = collections.OrderedDict(a=1)
        dict.__ior__(ordered, {"z": 2})
        return x + 1, list(ordered)

    def returned(x):
        ordered = collections.OrderedDict(a=1)
        dict.__setitem__(ordered, "z", 2)
        return x + 1, ordered

    def popped(x):
        ordered = collections.OrderedDict(a=1)
        dict.__setitem__(ordered, "z", 2)
        try:
            ordered.pop("z")
        except KeyError:
            return x + 1

    for fn in (listed, returned, popped):
        check(fn, torch.ones(2), graphs=None)
        with pytest.raises(minidynamo.exc.Unsupported, match="own methods changed"):
            minidynamo.compile(fn, backend="eager", fullgraph=True)(torch.ones(2))
