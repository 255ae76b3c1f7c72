"""How a new set came about: generated code makes it that way again, since the order of iteration
depends on which elements came when, and on those that have gone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from .constant import is_value

_KINDS = (set, frozenset)
# A set that came about of sets that came about of sets: how far back that is kept.
_DEEPEST = 40


@dataclasses.dataclass(frozen=True)
class Past:
    """method: set, frozenset or a method of these that gives a new set; operands and the arguments
    of changes: a Past for a new set, other iterables of hash keys as they are.
    """

    method: Callable[..., Any]
    operands: tuple[Any, ...]
    changes: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    depth: int = 0

    @staticmethod
    def of(
        method: Callable[..., Any],
        operands: tuple[Any, ...],
        changes: Iterable[tuple[str, tuple[Any, ...]]],
    ) -> Past | None:
        """None if it goes too far back."""
        steps = tuple(changes)
        given = [*operands, *(value for _, values in steps for value in values)]
        depth = max((value.depth + 1 for value in given if isinstance(value, Past)), default=0)
        return None if depth > _DEEPEST else Past(method, operands, steps, depth)

    def is_plain(self) -> bool:
        """Whether all elements that it mentions are plain values."""
        given = [*self.operands, *(value for _, values in self.changes for value in values)]
        return all(map(_is_plain, given))

    def only_grew(self) -> bool:
        """Whether no element went, which leaves its place taken."""
        kinds = {name for name, _ in self.changes}
        return self.method in _KINDS and kinds <= {"add", "update"}

    def made(self, cls: type) -> Any:
        """Run by generated code, too: the set, of the class `cls`."""
        operands = [_real(given) for given in self.operands]
        if cls not in _KINDS and self.method not in _KINDS:
            operands = [self.method(*operands)]
        made = new_set(cls, *operands) if cls not in _KINDS else self.method(*operands)
        for name, arguments in self.changes:
            getattr(set, name)(made, *(_real(given) for given in arguments))
        return made


def _is_plain(given: Any) -> bool:
    if isinstance(given, Past):
        return given.is_plain()
    return is_value(tuple(given) if isinstance(given, (dict, list)) else given)


def _real(given: Any) -> Any:
    if not isinstance(given, Past):
        return given
    return given.made(set)


def is_alike(made: Any, model: Any) -> bool:
    """Whether both sets have the same elements in the same order and as much room."""
    return list(made) == list(model) and made.__sizeof__() == model.__sizeof__()


def new_set(cls: type, elements: Iterable[Any] = ()) -> Any:
    """Run by generated code: a set of the class `cls`."""
    if issubclass(cls, frozenset):
        return frozenset.__new__(cls, elements)
    result: Any = set.__new__(cls)
    set.update(result, elements)
    return result


def replay_on(
    names: tuple[tuple[str, bool], ...], real: set[Any], arguments: tuple[Any, ...]
) -> None:
    """Run by generated code: the operations one by one, so that the order is right too."""
    left = iter(arguments)
    for name, has_argument in names:
        if has_argument:
            getattr(set, name)(real, next(left))
        else:
            getattr(set, name)(real)


def plain_kind(cls: type) -> type:
    """set or frozenset."""
    return frozenset if issubclass(cls, frozenset) else set
