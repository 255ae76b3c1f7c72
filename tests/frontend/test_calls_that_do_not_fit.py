"""Builtins say what they say in eager about calls with other arguments than they take."""

from __future__ import annotations

import collections
import operator

import pytest
import torch
from testing import check

X = torch.arange(4.0)
DICT, LIST, SET, DEQUE = {1: 2}, [1, 2], {1}, collections.deque([1])
ORDERED = collections.OrderedDict(a=1)


class Listed(list):
    pass


CALLS = {
    "copy": lambda: DICT.copy(1),
    "append": lambda: LIST.append(),
    "append 2": lambda: LIST.append(1, 2),
    "append by name": lambda: LIST.append(x=1),
    "subclass": lambda: Listed().append(1, 2),
    "sort": lambda: LIST.sort(1),
    "sort by name": lambda: LIST.sort(x=1),
    "add": lambda: SET.add(),
    "frozenset": lambda: frozenset(SET).copy(1),
    "rotate": lambda: DEQUE.rotate(1, 2, 3),
    "move_to_end": lambda: ORDERED.move_to_end(),
    "get": lambda: DICT.get(),
    "get by name": lambda: DICT.get(key=1),
    "update": lambda: DICT.update(1, 2),
    "len": lambda: len(1, 2),
    "isinstance": lambda: isinstance(1),
    "map": lambda: map(),
    "enumerate": lambda: enumerate(),
    "getattr": lambda: getattr(1),
    "slice": lambda: slice(),
    "sorted": lambda: sorted(),
}


@pytest.mark.parametrize("name", CALLS)
def test_text_of_the_type_error(name):
    call = CALLS[name]

    def fn(x):
        try:
            call()
        except TypeError as error:
            return x + 1, str(error)

    check(fn, X, fullgraph=True)


def test_left_of_iterators():
    def fn(x):
        elements, items, pairs = {1, 2, 3}, [1, 2, 3], {1: 2, 3: 4}
        made = [iter(elements), iter(items), iter(pairs), iter(pairs.items())]
        found = [item.__length_hint__() for item in made]
        for item in made:
            next(item)
        items.append(4)
        elements.add(5)
        return x + 1, found, [operator.length_hint(item) for item in made]

    check(fn, X, fullgraph=True)
