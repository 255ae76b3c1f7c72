"""Functions that are nodes of the graph without being looked at see what the frame has changed."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools

import pytest
import sympy
import torch
from testing import CountingBackend, assert_same

import minidynamo
from minidynamo.variables.code_reach import CodeReach

X = torch.arange(6.0).reshape(2, 3)
SCALE = 2.0
ITEMS = [1.0]


class Settings:
    __slots__ = ("slot", "__dict__")

    def __init__(self):
        self.reset()

    def reset(self):
        self.scale, self.slot, self.other = 3.0, 4.0, 0.0

    @property
    def twice(self):
        return self.scale * 2


SETTINGS = Settings()
LAYER = torch.nn.Linear(1, 1)
LAYER.settings = SETTINGS


def reset():
    global SCALE
    SCALE = 2.0
    ITEMS[:] = [1.0]
    SETTINGS.reset()
    counter.value = 0.0


def counter():
    return counter.value


def _helper():
    return SETTINGS.twice


READERS = {
    "global": lambda x: x * SCALE,
    "attribute": lambda x: x * SETTINGS.scale,
    "slot": lambda x: x * SETTINGS.slot,
    "property by a helper": lambda x: x * _helper(),
    "getattr": lambda x: x * getattr(SETTINGS, "scale"),  # noqa: B009
    "items": lambda x: x * sum(ITEMS),
    "of a module": lambda x: x * LAYER.settings.scale,
    "of a function": lambda x: x * counter(),
    "partial": functools.partial(lambda settings, x: x * settings.scale, SETTINGS),
    "default": lambda x, settings=SETTINGS: x * settings.scale,
    "closure": (lambda settings: lambda x: x * settings.scale)(SETTINGS),
}


def change():
    global SCALE
    SCALE += 1
    ITEMS.append(4.0)
    SETTINGS.scale += 1
    SETTINGS.slot += 1
    counter.value += 1


def compare(fn, graphs, fullgraph=False):
    backend = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=fullgraph)
    for _ in range(2):
        reset()
        expected = fn(X)
        reset()
        assert_same(expected, compiled(X))
    assert graphs in (None, len(backend.graphs))


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("mark", [minidynamo.allow_in_graph, minidynamo.nonstrict_trace])
def test_an_opaque_function_sees_changes(name, mark):
    reader = mark(READERS[name])

    def fn(x):
        before = reader(x)
        change()
        return before, reader(x.sin()), SCALE, SETTINGS.scale

    compare(fn, None)


def test_code_of_libraries_is_not_looked_through():
    """Sympy alone is more than is; its code would read all that the frame changed."""
    reach = CodeReach([lambda n: sympy.Symbol(n), lambda: SETTINGS.scale])
    assert reach.reads(SETTINGS) and not reach.reads(sympy.Symbol)


@torch.autocast("cpu", enabled=False)
def _in_full_precision(x):
    return x @ x.T


def test_what_autocast_notes_is_its_own():
    many = [[] for _ in range(50_000)]  # more than are looked through
    reader = minidynamo.allow_in_graph(lambda x: x * len(many))

    def fn(x):
        return reader(_in_full_precision(x))

    compare(fn, 1, fullgraph=True)


@torch.library.custom_op("minidynamo_opaque::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SETTINGS.scale


@scaled.register_fake
def _(x):
    return torch.empty_like(x)


def test_an_operator_sees_changes():
    def by_name(x):
        SETTINGS.scale = 7.0
        return torch.ops.minidynamo_opaque.scaled(x)

    def by_function(x):
        SETTINGS.scale = 7.0
        return scaled(x)

    def in_a_body(x):
        SETTINGS.scale = 7.0
        return torch.utils.checkpoint.checkpoint(
            lambda y: scaled(y).sin(), x, use_reentrant=False
        )

    for fn in (by_name, by_function, in_a_body):
        compare(fn, 0)


def test_what_it_does_not_read_is_no_break():
    unrelated, table = Settings(), []

    def fn(x):
        unrelated.scale = 9.0
        SETTINGS.other = 5.0
        table.append(1)
        return scaled(x) * SETTINGS.scale

    compare(fn, 1, fullgraph=True)


MANY = [object() for _ in range(21_000)]
CALLBACKS = []


@minidynamo.allow_in_graph
def ask_callbacks(x):
    return x + sum(callback() for callback in CALLBACKS if MANY)


def test_cells_that_the_frame_made_are_not_read():
    """However much such a function reaches: here it may read all that existed."""

    def fn(x):
        scale = 1.0

        def scaled_by():
            return scale

        scale = 2.0
        return ask_callbacks(x) * scaled_by()

    compare(fn, 1, fullgraph=True)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_settings_of_torch_are_in_force_in_the_graph(backend):
    @minidynamo.allow_in_graph
    def ask(x):
        y = ask_callbacks(x) @ x.mT
        return y, y.sum() + torch.is_grad_enabled()

    def fn(x):
        with torch.autocast("cpu", torch.bfloat16):
            low = ask(x)
            with torch.no_grad():
                high = ask(x)
        return low, high, ask(x)

    counter = CountingBackend(backend=backend)
    x = X.reshape(1, -1).clone().requires_grad_()
    found = minidynamo.compile(fn, backend=counter, fullgraph=True)(x)
    assert_same(fn(x), found)
    assert [y.dtype for (y, _) in found] == [torch.bfloat16, torch.bfloat16, torch.float32]
    assert [y.requires_grad for (y, _) in found] == [True, False, True]
    assert len(counter.graphs) == 1


def test_cells_that_the_frame_handed_on_are_read():
    def fn(x):
        scale = 1.0
        CALLBACKS[:] = [lambda: scale]
        scale = 5.0
        return ask_callbacks(x) * scale

    compare(fn, None)
    CALLBACKS.clear()


def test_cells_of_outer_functions_are_read():
    scale = 1.0

    @minidynamo.allow_in_graph
    def read(x):
        return x * scale if MANY else x

    def fn(x):
        nonlocal scale
        scale = 1.0
        before = read(x)
        scale = 3.0
        return before, read(x), scale

    compare(fn, None)


@dataclasses.dataclass(frozen=True)
class Pair:
    x: torch.Tensor
    y: torch.Tensor
    by: int = 5
    rest: list = dataclasses.field(default_factory=lambda: [1])

    def __post_init__(self):
        object.__setattr__(self, "by", self.by + 1)


@dataclasses.dataclass(frozen=True)
class Nested:
    pair: Pair
    kind: str


@minidynamo.allow_in_graph
def of_pair(pair, *, other=None):
    more = 0 if other is None else other.pair.y * len(other.kind)
    return pair.x * pair.by + pair.y + pair.rest[0] + more


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_frozen_dataclasses_as_arguments(backend):
    def fn(x, given):
        made = Pair(x + 1, x * 2)
        return of_pair(made) + of_pair(given, other=Nested(given, "ab")) * 2

    minidynamo.reset()
    counter = CountingBackend(backend=backend)
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for by in (3, 3, 4):
        given = Pair(X, X + by, by)
        assert_same(fn(X, given), compiled(X, given))
    assert len(counter.graphs) == 2


Inner = collections.namedtuple("Inner", "a b")  # noqa: PYI024
Outer = collections.namedtuple("Outer", "x inner kind many")  # noqa: PYI024


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


@minidynamo.allow_in_graph
def of_nested(made, *, more=None):
    total = made.x + made.inner.a * made.inner.b + made.many[0].a + len(type(made).__name__)
    if made.kind is Kind.TWO:
        total = -total
    return total if more is None else total + more.a.b


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_named_tuples_of_named_tuples_as_arguments(backend):
    # The text of a graph shows them by `repr`, which is none of these.
    def fn(x, given):
        made = Outer(x, Inner(x, 2), Kind.ONE, [Inner(1, 2)])
        return of_nested(made) + of_nested(given, more=Inner(Inner(1, x), None))

    minidynamo.reset()
    counter = CountingBackend(backend=backend)
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for kind in (Kind.ONE, Kind.ONE, Kind.TWO):
        given = Outer(X, Inner(X, 3), kind, [Inner(4, 5)])
        assert_same(fn(X, given), compiled(X, given))
    assert len(counter.graphs) == 2
