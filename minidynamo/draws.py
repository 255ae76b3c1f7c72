"""Calls of random number generators by the traced code.

They are made for real, in the program's order, before the graph runs. What they give is unknown
while tracing: numbers are symbols that no guard can be about, and come into the graph as `item()`
of a tensor; arrays are inputs of the graph.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import sympy
import torch

from ._C import disabled
from .bytecode import Instruction, current
from .exc import Unsupported
from .source import CallSource, LoadContext, Source, source

if TYPE_CHECKING:
    from torch.fx.node import Node

    from .output_graph import OutputGraph

# A local of the generated code: the tuple of all that was drawn.
DRAWS_NAME = "__md_tmp_draws"


@source
class DrawSource(Source):
    """What one of the calls gave. It is made after the guards were checked, so none is about it."""

    index: int
    text = "<random value {index}>"

    def emit_load(self, context: LoadContext | None = None) -> list[Instruction]:
        load = [Instruction("LOAD_FAST", DRAWS_NAME), Instruction("LOAD_CONST", self.index)]
        return [*load, Instruction("BINARY_SUBSCR")]


def _states() -> tuple[Any, torch.Tensor]:
    return random.getstate(), torch.random.get_rng_state()


# Of nested traces, the states of the generators that are due behind them.
_kept: list[tuple[Any, torch.Tensor]] = []


@contextmanager
def kept_seeds() -> Iterator[None]:
    """What tracing draws is none of the program's."""
    _kept.append(_states())
    try:
        yield
    finally:
        python_state, torch_state = _kept.pop()
        random.setstate(python_state)
        torch.random.set_rng_state(torch_state)


@contextmanager
def lasting_seeds() -> Iterator[None]:
    """The program's own code runs while tracing: what it draws, and seeds that it sets, count."""
    before = _states()
    yield
    after = _states()
    if _kept and (before[0] != after[0] or not torch.equal(before[1], after[1])):
        _kept[-1] = after


def is_drawn(place: Source | None) -> bool:
    """Whether a source starts from what was drawn."""
    while place is not None and not isinstance(place, DrawSource):
        place = getattr(place, "base", None)
    return place is not None


@dataclass(frozen=True, slots=True)
class Draw:
    """One call. function: the callable, or the name of a method of what `owner` gives.

    args, kwargs: constants, or the DrawSource of a result before.
    """

    function: Callable[..., Any] | str
    owner: Source | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


def _as_tensor(number: Any) -> torch.Tensor:
    dtype = torch.float64 if isinstance(number, float) else torch.int64
    return torch.tensor(number, dtype=dtype)


def unknown_number(output: OutputGraph, kind: type) -> Any:
    """A symbolic number of type `kind` that no operation of the graph makes."""
    env = output.shape_env
    made = env.create_unbacked_symfloat() if kind is float else env.create_unbacked_symint()
    env.pending_fresh_unbacked_symbols.remove(made.node.expr)
    output.shapes.has_data_dependent = True
    return made


class Draws:
    """The calls of one graph, in order, and the symbols that stand for their results."""

    def __init__(self) -> None:
        self.calls: list[Draw] = []
        self._symbols: dict[sympy.Symbol, Source] = {}
        self.has_items = False

    def add(self, output: OutputGraph, draw: Draw) -> DrawSource:
        """Record a call; it cannot be undone. A body may be run once, often or never."""
        if output.body is not None:
            why = "it is called in the body of a higher-order operator"
            raise Unsupported("random number", str(draw.function), why)
        output.side_effects.note()
        self.calls.append(draw)
        return DrawSource(len(self.calls) - 1)

    def number(self, output: OutputGraph, kind: type, place: Source) -> Any:
        """A symbolic number of type `kind` for what `place` gives."""
        made = unknown_number(output, kind)
        self._symbols[made.node.expr] = place
        return made

    def has(self, symbol: sympy.Symbol) -> bool:
        return symbol in self._symbols

    def add_item(self, output: OutputGraph, symbol: sympy.Symbol, value: Any) -> Node:
        """The node with the number: `item()` of a new input."""
        place = CallSource(self._symbols[symbol], _as_tensor)
        real = torch.zeros((), dtype=torch.float64 if not symbol.is_integer else torch.int64)
        given = output.add_input(real, place)
        node = output.root_graph.call_method("item", (given,))
        node.meta.update(example_value=value, unbacked_bindings={symbol: ()})
        output.note_first(node)
        self.has_items = True
        return node

    def prepare(self, output: OutputGraph) -> None:
        """Before the backend is called: it may trace the `item()` anew."""
        if self.has_items:
            env = output.shape_env
            env.settings = replace(env.settings, allow_scalar_outputs=True)

    def emit(self, context: LoadContext) -> list[Instruction]:
        """Code that makes the calls."""
        if not self.calls:
            return []
        owners = list(dict.fromkeys(c.owner for c in self.calls if c.owner is not None))
        loads = [inst for owner in owners for inst in owner.emit_load(context)]
        load = [Instruction("LOAD_CONST", disabled(_maker(self.calls, owners)))]
        return [
            *current.emit_call(load, loads, len(owners)),
            Instruction("STORE_FAST", DRAWS_NAME),
        ]


def _maker(calls: list[Draw], owners: list[Source]) -> Callable[..., tuple[Any, ...]]:
    places = [-1 if call.owner is None else owners.index(call.owner) for call in calls]

    def make(*objects: Any) -> tuple[Any, ...]:
        results: list[Any] = []

        def given(value: Any) -> Any:
            return results[value.index] if isinstance(value, DrawSource) else value

        for call, place in zip(calls, places, strict=True):
            function: Any = call.function
            if place >= 0:
                function = getattr(objects[place], function)
            named = {name: given(value) for name, value in call.kwargs.items()}
            results.append(function(*map(given, call.args), **named))
        return tuple(results)

    return make
