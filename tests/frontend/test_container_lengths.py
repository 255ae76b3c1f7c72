"""Containers whose class has a `__len__` that says something else than how many items they hold."""

from __future__ import annotations

import pytest
import torch
from testing import check_recompiles

import minidynamo

X = torch.arange(6.0).reshape(2, 3)


def without_length(base):
    class Container(base):
        def __len__(self):
            raise NotImplementedError("no length")

    return Container


class Lying(tuple):
    def __len__(self):
        return 7

    def __getitem__(self, index):
        return "item"


def each(x, container):
    return [x * item for item in container]


def stored(x, container):
    if isinstance(container, tuple):
        return x * tuple.__len__(container)
    return x * sum(container)


def measured(x, container):
    return x * len(container)


def check_each(fn, containers, graphs):
    """`fn(x, container)`, eager beside compiled. They are no arguments: those are compared."""
    held = [None]

    def change(index):
        held[0] = containers[index]

    return check_recompiles(lambda x: fn(x, held[0]), [(X,)] * len(containers), graphs, change)


@pytest.mark.parametrize("base", [tuple, list, dict])
def test_a_length_that_is_none(base):
    cls = without_length(base)
    first, second = ({1: 2}, {1: 2, 3: 4}) if base is dict else ((1, 2), (1, 2, 3))
    for fn, graphs in [(each, 2), (stored, 2), (measured, 0)]:
        check_each(fn, [cls(items) for items in (first, second, first)], graphs)


def test_the_length_of_the_storage_is_guarded():
    assert check_each(stored, [Lying((1, 2)), Lying((1, 2))], 1).op_count == 1
    check_each(stored, [Lying((1, 2)), Lying((1, 2, 3))], 2)
    check_each(measured, [Lying((1, 2)), (1, 2)], 2)


def test_reached_after_a_break():
    def fn(x, items):
        x = x + 1
        minidynamo.graph_break()
        return [x * item for item in items], len(items)

    check_each(fn, [Lying((1, 2)), Lying((1, 2))], 2)
