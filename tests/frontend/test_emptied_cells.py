"""Closure cells that are empty, or become so: what was traced with one kind is not used for the
other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from testing import CountingBackend, assert_same

import minidynamo

x = torch.ones(3)


@dataclass
class Cell:
    """A function over a cell, and what fills and empties it from outside."""

    fn: Any
    fill: Any
    empty: Any
    results: list[Any] = field(default_factory=list)


def with_cell(make):
    def made() -> Cell:
        y = 1

        def fill(value):
            nonlocal y
            y = value

        def empty():
            nonlocal y
            del y

        def read():
            return y

        def forget():
            nonlocal y
            del y
            fill(3)

        empty()
        return Cell(make(read, forget), fill, empty)

    return made


@with_cell
def reads(read, forget):
    def fn(x):
        try:
            return x + read()
        except NameError as error:
            return x - 1, str(error)

    return fn


@with_cell
def reads_and_ignores(read, forget):
    def fn(x):
        try:
            read()
        except NameError:
            return x - 1
        return x + 1

    return fn


@with_cell
def deletes(read, forget):
    def fn(x):
        try:
            forget()
        except NameError as error:
            return x - 1, str(error)
        return x + 1

    return fn


def own_read() -> Cell:
    y = 1
    del y

    def fill(value):
        nonlocal y
        y = value

    def empty():
        nonlocal y
        del y

    def fn(x):
        try:
            y  # noqa: B018
        except NameError as error:
            return x - 1, str(error)
        return x + 1

    return Cell(fn, fill, empty)


def run(made, compiled):
    cell = made()
    fn = compiled(cell.fn)
    for _ in range(2):
        cell.results.append(fn(x))
        cell.fill(5)
        cell.results.append(fn(x))
        cell.results.append(fn(x))
        cell.empty()
    return cell.results


@pytest.mark.parametrize("made", [reads, reads_and_ignores, deletes, own_read])
def test_a_cell_that_is_filled_and_emptied(made):
    backend = CountingBackend()
    found = run(made, lambda fn: minidynamo.compile(fn, backend=backend, fullgraph=True))
    assert_same(run(made, lambda fn: fn), found)
    assert len(backend.graphs) == 2


def test_a_variable_deleted_in_the_first_call_is_not_there_in_the_second():
    def make():
        y = 1

        def forget(x):
            nonlocal y
            del y
            return x + 1

        def fn(x):
            return forget(x)

        return fn

    compiled = minidynamo.compile(make(), backend="eager")
    assert_same(x + 1, compiled(x))
    with pytest.raises(NameError, match="cannot access free variable 'y'"):
        compiled(x)
