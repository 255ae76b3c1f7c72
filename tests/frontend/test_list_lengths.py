"""The length of a list of the frame: counted without a look at its items."""

import torch
from testing import check, check_recompiles

from minidynamo.variables.lists import ExistingListVariable

X = torch.arange(3.0)


class Items(list):
    pass


def test_items_are_not_made_to_be_counted(monkeypatch):
    def no_items(self):
        raise AssertionError("the items are looked at")

    monkeypatch.setattr(ExistingListVariable, "_first_items", no_items)

    def f(x, items):
        if not items:
            return x
        items.append(1)
        return x * len(items) + items.__len__()

    for items in ([X, X], Items([1, 2, 3]), []):
        check(f, X, items, graphs=1 if items else 0)


def test_other_lengths_are_other_graphs():
    def f(x, items):
        return x + len(items)

    check_recompiles(f, [(X, [1, 2]), (X, [3, "a"]), (X, [1, 2, 3]), (X, [])], graphs=3)


def test_lengths_before_and_after_a_look():
    def f(x, items):
        first = len(items)
        items.append(x)
        second = len(items)
        y = items[0] + items[-1]
        items.pop(0)
        return y, first, second, len(items)

    check(f, X, [X + 1, X + 2], graphs=1)
