"""Sums and products of torch.Size: whatever stands on its left, the result is a torch.Size."""

from __future__ import annotations

import operator
from typing import NamedTuple

import pytest
import torch
from testing import check_recompiles

CALLS = [(torch.ones(n, 2),) for n in (3, 4, 5, 6)]


class Pair(NamedTuple):
    a: int
    b: int


def added_in_place(n, s):
    joined = (n,)
    joined += s
    again = s
    again += (n,)
    again *= 2
    return joined, again


JOINED = {
    "a tuple": lambda n, s: (n,) + s,  # noqa: RUF005
    "an empty tuple": lambda n, s: () + s,
    "a part": lambda n, s: (n,) + s[1:],
    "a named tuple": lambda n, s: (Pair(n, 2) + s, s + Pair(n, 2)),
    "on both sides": lambda n, s: (1,) + s + (n,),  # noqa: RUF005
    "sum": lambda n, s: sum([s, s], (n,)),
    "in place": added_in_place,
    "repeated": lambda n, s: (2 * s, (n,) * 2 + s),
    "operator": lambda n, s: (operator.add((n,), s), operator.iadd((n,), s)),
    "concat makes a tuple": lambda n, s: (operator.concat((n,), s), operator.concat(s, (n,))),
    "methods": lambda n, s: (s.__radd__((n,)), (n,).__add__(s), s.__radd__([n])),
    "a bool": lambda n, s: (s + (True,), torch.Size((n, False))),  # noqa: RUF005
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("join", JOINED.values(), ids=JOINED)
def test_joined(join, dynamic):
    def fn(x):
        found = join(x.shape[0], x.shape)
        values = found if type(found) is tuple else (found,)
        return x + 1, found, [(type(value).__name__, repr(value)) for value in values]

    check_recompiles(fn, CALLS, None, fullgraph=True, dynamic=dynamic)


REFUSED = {
    "a float": lambda n, s: (1.5,) + s,  # noqa: RUF005
    "None": lambda n, s: s + (None,),  # noqa: RUF005
    "a symbolic float": lambda n, s: (n * 0.5,) + s,  # noqa: RUF005
    "text": lambda n, s: torch.Size((n, "a")),
    "a list on its right": lambda n, s: s + [n],
    "a list on its left": lambda n, s: [n] + s,
    "a number": lambda n, s: n + s,
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("join", REFUSED.values(), ids=REFUSED)
def test_refused(join, dynamic):
    def fn(x):
        try:
            return x + 1, join(x.shape[0], x.shape)
        except TypeError as error:
            return x + 2, str(error)

    check_recompiles(fn, CALLS, None, dynamic=dynamic)
