"""Keys with a `__hash__` or `__eq__` of their own are hashed again where a dict is built anew."""

import collections

import pytest
import torch
from testing import check

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
