"""Keys with a `__hash__` or `__eq__` of their own are hashed again where a dict is built anew."""

import torch
from testing import check


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
