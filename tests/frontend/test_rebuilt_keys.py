"""Keys with a `__hash__` or `__eq__` of their own are hashed again where a dict is built anew."""

import collections

import pytest
import torch
from testing import CountingBackend, check

import minidynamo


def _dict_of_closures(x):
    class Key(int):
        def __hash__(self):
            return 13

        def __eq__(self, other):
            return same or int(self) == int(other)

    same = False
    made = {Key(1): x + 1, Key(2): x + 2}
    same = True
    return [int(key) for key in made], list(made.values()), made


def _set_of_closures(x):
    class Key(int):
        def __hash__(self):
            return 13

        def __eq__(self, other):
            return bool(seen)

    seen = []
    made = {Key(1), Key(2)}
    seen = [x * 2]
    return [int(key) for key in made], seen


def _breaks_behind(x):
    class Key(int):
        def __hash__(self):
            return 13

        def __eq__(self, other):
            if len(made) > 1:
                made.clear()
            return False

    made = {}
    made = {Key(1): 1, Key(2): 2}
    copied = dict.fromkeys(made)
    return len(made), len(copied), x + 1


def test_equality_reads_a_cell_of_the_frame():
    check(_dict_of_closures, torch.ones(2), graphs=None)
    check(_set_of_closures, torch.ones(2), graphs=None)


def test_equality_reads_the_dict_that_is_rebuilt():
    check(_breaks_behind, torch.ones(2), graphs=None)


def _iterates(x):
    same = [False]

    class Key(int):
        def __hash__(self):
            return 13

        def __eq__(self, other):
            return same[0] or int(self) == int(other)

    made = {Key(1): x + 1, Key(2): x + 2}
    kept = {Key(1), Key(2)}
    same[0] = True
    return [int(key) for key in made], sorted(int(key) for key in kept)


def test_iterating_compares_nothing():
    check(_iterates, torch.ones(2), graphs=None)


# -- objects whose attributes are stored behind the graph ------------------------------------------


class Numbered:
    def __hash__(self):
        return hash(self.number)

    def __eq__(self, other):
        return self.number == other.number


def _key_of_an_existing_dict(x, key, table):
    key.number = 5
    table[key] = 1
    return x + 1, key


def _key_of_a_new_dict(x, key, table):
    key.number = 5
    return x + 1, key, {key: 1}


def _element_of_a_new_set(x, key, table):
    key.number = 5
    table["set"] = {key}
    return x + 1, key, frozenset([key])


def _key_of_an_ordered_dict(x, key, table):
    key.number = 5
    ordered = collections.OrderedDict()
    ordered[key] = x
    return x + 1, key, ordered


@pytest.mark.parametrize("number", [None, 4])
@pytest.mark.parametrize(
    "fn",
    [
        _key_of_an_existing_dict,
        _key_of_a_new_dict,
        _element_of_a_new_set,
        _key_of_an_ordered_dict,
    ],
)
def test_keys_whose_hash_depends_on_what_is_stored_later(fn, number):
    compiled = minidynamo.compile(fn, backend="eager")
    for call in (fn, compiled, compiled):
        key, table = Numbered(), {}
        if number is not None:
            key.number = number
        same = Numbered()
        same.number = 5
        _, found, *made = call(torch.ones(2), key, table)
        made += [table] if fn is _key_of_an_existing_dict else []
        made += [table["set"]] if fn is _element_of_a_new_set else []
        assert found is key and made
        assert all(same in container and key in container for container in made)


# -- what hashing and comparing reads elsewhere ----------------------------------------------------

SAME = [False]
BY_NAME = False


def _is_same(first, second):
    return SAME[0] or BY_NAME or first.number == second.number


class Compared:
    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return 7

    def __eq__(self, other):
        return _is_same(self, other)


def _new_ones(x, table, kept):
    made = {Compared(1): x, Compared(2): x + 1}
    elements = {Compared(1), Compared(2)}, frozenset([Compared(1), Compared(2)])
    SAME[0] = True
    return made, *elements


def _existing_ones(x, table, kept):
    for number in (1, 2):
        table[Compared(number)] = x
        kept.add(Compared(number))
    SAME[0] = True
    return [x + 1]


def _global_is_stored(x, table, kept):
    global BY_NAME
    made = {Compared(1): x, Compared(2): x + 1}
    kept |= {Compared(1), Compared(2)}
    BY_NAME = True
    return [made, x + 2]


def _nothing_is_stored(x, table, kept):
    made = {Compared(1): x, Compared(2): x + 1}
    kept.add(Compared(3))
    table[Compared(3)] = x
    return [made, x + 2]


@pytest.mark.parametrize(
    ("fn", "graphs"),
    [
        (_new_ones, None),
        (_existing_ones, None),
        (_global_is_stored, None),
        (_nothing_is_stored, 1),
    ],
)
def test_equality_reads_a_list_or_global_that_is_stored_later(fn, graphs):
    global BY_NAME
    backend = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend)
    found = []
    for call in (fn, compiled, compiled):
        SAME[0] = BY_NAME = False
        table, kept = {}, set()
        results = call(torch.ones(2), table, kept)
        sizes = [len(made) for made in [*results, table, kept]]
        found.append((sizes, SAME[0], BY_NAME))
    SAME[0] = BY_NAME = False
    assert found[0] == found[1] == found[2]
    assert graphs is None or len(backend.graphs) == graphs


def _cleared_by_equality(x):
    class Key:
        def __hash__(self):
            return 5

        def __eq__(self, other):
            if clears:
                made.clear()
            return False

    made = {}
    clears = False
    made[Key()] = 1
    made[Key()] = 2
    clears = True
    made[9] = 6
    return len(made), x + 1


@pytest.mark.parametrize("fn", [_cleared_by_equality, _breaks_behind, _dict_of_closures])
def test_equality_reads_a_cell_of_an_inlined_function(fn):
    check(lambda x: fn(x)[:2], torch.ones(2), graphs=None)


# -- dicts whose class iterates in its own way -----------------------------------------------------


class Hidden(dict):
    def __iter__(self):
        return iter(())

    def keys(self):
        return []

    def values(self):
        return []


def _changes_behind_a_break(x):
    made = Hidden()
    made[Compared(1)] = x
    made[Compared] = x + 1
    print(end="")
    first = dict.pop(made, Compared)
    key, value = dict.popitem(made)
    return first, key.number, value, dict.__len__(made)


def _reads_an_argument(x, table):
    return [(key.number, value + x) for key, value in dict.items(table)]


def test_items_of_a_dict_that_hides_them():
    check(_changes_behind_a_break, torch.ones(2), graphs=None)
    check(_reads_an_argument, torch.ones(2), Hidden({Compared(2): 3}), graphs=2)
