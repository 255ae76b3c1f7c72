"""Comparisons of objects that compare by identity, of tensors with what is none, and of dates."""

from __future__ import annotations

import datetime
import decimal
import functools
import operator

import pytest
import torch
from testing import check

X = torch.tensor([0, 1])
OPERATORS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
DATE = datetime.date(2024, 1, 1)
LATER = datetime.datetime(2025, 1, 1)


class Plain:
    pass


class Reflected:
    def __gt__(self, other):
        return "greater"

    def __lt__(self, other):
        return other + 1

    def __eq__(self, other):
        return 5


PAIRS = """
    ValueError('a')  ValueError('a')
    {1:2}.values()  {1:2}.values()
    iter([])  iter([])
    (i for i in [a])  1
    functools.partial(len)  functools.partial(len)
    a  'a'
    a  None
    a  Plain()
    a  [1]
    a  (1, 2)
    a  {}
    a  Reflected()
    a  len
    a  torch.float32
    a  1
    DATE  datetime.date(2025, 1, 1)
    DATE  LATER
    DATE  3
    decimal.Decimal('1.5')  2
    decimal.Decimal('1.5')  1.5
""".strip().splitlines()
SOURCE = """
def fn(a, left=None, right=None):
    found = []
    for function in OPERATORS:
        for operands in ((LEFT, RIGHT), (RIGHT, LEFT)):
            try:
                found.append(function(*operands))
            except TypeError as error:
                found.append(str(error))
    return a + 1, found
"""


@pytest.mark.parametrize("pair", [line.strip() for line in PAIRS])
def test_pairs(pair):
    names = {**globals(), "datetime": datetime, "decimal": decimal, "functools": functools}
    left, right = pair.split("  ")
    given = []
    if left.startswith(("DATE", "decimal")):  # objects that existed before
        given = [eval(left, names), eval(right, names)]
        left, right = "left", "right"
    exec(SOURCE.replace("LEFT", left).replace("RIGHT", right), names)
    check(names["fn"], X, *given, fullgraph=True)


def test_one_object():
    def fn(a):
        error, values, iterator = ValueError(1), {1: a}.values(), iter([a])
        partial = functools.partial(len)
        same = [v == v for v in (error, values, iterator, partial)]
        others = [v != v for v in (error, values, iterator, partial)]
        return a + 1, same, others, error in [1, error], iterator != 1, a in [None, "a"]

    check(fn, X, fullgraph=True)
