"""How a new set came about: generated code makes it that way again, since the order of iteration
depends on which elements came when, and on those that have gone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .base import unsupported
from .constant import is_value

if TYPE_CHECKING:
    from ..source import Source

_KINDS = (set, frozenset)
# Methods of sets that take an element; others take an iterable of them.
OF_ONE = frozenset({"add", "discard", "remove"})
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

    def is_plain(self, others: frozenset[Any]) -> bool:
        """Whether all elements that it mentions are plain values, but for those with these keys."""
        given = [*self.operands, *(value for _, values in self.changes for value in values)]
        return all(_is_plain(value, others) for value in given)

    def only_grew(self) -> bool:
        """Whether no element went, which leaves its place taken."""
        kinds = {name for name, _ in self.changes}
        return self.method in _KINDS and kinds <= {"add", "update"}

    def made(self, cls: type, *elements: Any) -> Any:
        """Run by generated code, too: the set, of the class `cls`; with these elements where it
        has equal ones.
        """
        instead = {element: element for element in elements}
        operands = [_real(given, instead) for given in self.operands]
        for place, given in enumerate(self.operands[1:], 1):
            if isinstance(given, Past) and given is self.operands[0]:
                operands[place] = operands[0]
        if cls not in _KINDS and self.method not in _KINDS:
            operands = [self.method(*operands)]
        made = new_set(cls, *operands) if cls not in _KINDS else self.method(*operands)
        for name, arguments in self.changes:
            if name in OF_ONE:
                getattr(set, name)(made, *(instead.get(key, key) for key in arguments))
            else:
                reals = (made if given is OWN else _real(given, instead) for given in arguments)
                getattr(set, name)(made, *reals)
        return made

    def gives(
        self,
        cls: type,
        table: Any,
        others: frozenset[Any],
    ) -> bool:
        """Whether that set is iterated as `table` is, now and after the next change."""
        return self.is_plain(others) and is_alike(self.made(cls), table)


# As argument of a change: the set that is changed.
OWN = Past(set, ())


def _is_plain(
    given: Any,
    others: frozenset[Any],
) -> bool:
    if isinstance(given, Past):
        return given.is_plain(others)
    if isinstance(given, frozenset) and given & others:
        return False  # made of others, it could be in another order
    return is_value(tuple(given) if isinstance(given, (dict, list)) else given)


def _real(given: Any, instead: dict[Any, Any]) -> Any:
    if isinstance(given, Past):
        return given.made(set, *instead)
    if not instead or isinstance(given, frozenset):
        return given
    items = [instead.get(key, key) for key in given]
    return dict.fromkeys(items) if isinstance(given, dict) else type(given)(items)


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


def plain_kind(
    cls: type,
) -> type:
    """set or frozenset."""
    return frozenset if issubclass(cls, frozenset) else set


def ordered_elements(
    value: Any,
) -> tuple[Any, ...]:
    """The elements of a set, also of a subclass with an `__iter__` of its own."""
    return tuple(set.__iter__(value) if isinstance(value, set) else frozenset.__iter__(value))


def table_of(value: Any, family: type, source: Source) -> Any:
    """A set whose methods are C's, with the elements in the order of `value`."""
    own = type(value).__mro__[: type(value).__mro__.index(family)]
    if not any(_METHODS_IN_C[family] & vars(base).keys() for base in own):
        return value
    table = family(value)
    if ordered_elements(table) != ordered_elements(value):
        unsupported("order of a set", source.name, "its class has methods of its own")
    return table


_METHODS_IN_C: dict[type, set[str]] = {
    family: vars(family).keys() - {"__doc__", "__init__", "__new__"}
    for family in (set, frozenset)
}
