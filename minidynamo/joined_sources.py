"""Sources of what is computed from several objects, as `a % b` of two arguments.

Guard programs fetch each object out of one other, so none fetches these: generated code loads them,
and what is asked of them is a predicate over the objects that they are computed from.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from .bytecode import Instruction, current
from .constant_values import constant_key
from .guard_checks import Check, Predicate
from .source import LoadContext, Source, source


@source
class JoinedSource(Source):
    """`function(*bases)`: a function of the compiler's own without side effects."""

    bases: tuple[Source, ...]
    function: Callable[..., Any]
    label: str

    def _key(self) -> tuple[Any, ...]:
        return *self.bases, ("function", id(self.function))

    @property
    def name(self) -> str:
        return self.label

    def emit_load(self, context: LoadContext | None = None) -> list[Instruction]:
        loads = [base.emit_load(context) for base in self.bases]
        function = [Instruction("LOAD_CONST", self.function)]
        return current.emit_call(function, list(itertools.chain(*loads)), len(loads))


_ANSWERS: dict[Check, Callable[[Any, Any], bool]] = {
    Check.TYPE_IS: lambda value, expected: type(value) is expected,
    Check.CONST_EQ: lambda value, expected: constant_key(value) == constant_key(expected),
}


def is_joined(place: Source | None) -> bool:
    """Whether a source is computed from several objects."""
    return isinstance(place, JoinedSource)


def predicate(function: Callable[..., Any], text: str, places: Sequence[Source]) -> Predicate:
    """The same question about objects that guard programs can fetch."""
    others: dict[Source, int] = {}
    parts = [part_of(place, others) for place in places]
    answer = function

    def ask(*values: Any) -> Any:
        try:
            found = [part(values) for part in parts]
        except (ArithmeticError, ValueError):
            return False  # `a % b` of 0.0 is another call's error, which the program raises
        return answer(*found)

    return Predicate(ask, text, tuple(others))


def part_of(place: Source, others: dict[Source, int]) -> Callable[[Sequence[Any]], Any]:
    """What a source gives, as a function of the values of `others`, to which its own are added."""
    if not isinstance(place, JoinedSource):
        at = others.setdefault(place, len(others))
        return lambda values: values[at]
    function, inner = place.function, [part_of(base, others) for base in place.bases]
    return lambda values: function(*[part(values) for part in inner])


def asked_of(place: JoinedSource, kind: Check, expected: Any, text: str) -> Predicate:
    """The predicate that stands for a guard on a joined source."""
    answer = _ANSWERS[kind]
    return predicate(lambda value: answer(value, expected), text, [place])
