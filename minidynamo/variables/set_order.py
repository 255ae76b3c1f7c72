"""In which order a set is iterated whose elements are hashed by their addresses.

The program's own objects have theirs, so the set is made once more of them; that another call's
objects give the same order is guarded. Objects that the graph makes have no address yet, and in
eager another one in each run: with fullgraph they come in the order of insertion.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..joined_sources import JoinedSource
from .base import NotConstant, unsupported
from .constant import is_value
from .set_pasts import OF_ONE, Past
from .user_keys import UserKey

if TYPE_CHECKING:
    from ..source import Source
    from ..symbolic_convert import Translator
    from .base import VariableTracker
    from .sets import SetVariable

Table = set[Any] | frozenset[Any]
History = list[tuple[str, tuple[Any, ...]]]

_BY_IDENTITY = (type, types.FunctionType, types.BuiltinFunctionType)
# `__hash__` -> the hash of an object that has it.
_ADDRESSES: dict[Any, Callable[[Any], int]] = {
    object.__hash__: object.__hash__,
    torch.Tensor.__hash__: id,
}
# Kinds of hash keys that say nothing of the classes of what the elements hold.
NESTED = (tuple, frozenset)


def has_real_hash(key: Any) -> bool:
    """Whether the hash of what stands for an element is that of the element."""
    return is_value(key) or isinstance(key, _BY_IDENTITY)


def _is_its_key(made: SetVariable, key: Any) -> bool:
    """Whether an element may be made of its key: else it may hold objects of other classes."""
    if not isinstance(key, NESTED) or key not in made.known:
        return True
    try:
        return is_value(made.known[key].as_python_constant())
    except NotConstant:
        return False


def others(made: SetVariable) -> list[Any]:
    """The hash keys that elements may not be made of."""
    return [key for key in made.table if not _is_its_key(made, key)]


def snapshot(made: SetVariable) -> SetVariable:
    """The set as it is now, which comes about as it did."""
    kind = type(made)
    past = made.past()
    unlike = frozenset(others(made))
    if not isinstance(past, Past) or not past.gives(set, made.table, unlike):
        return kind(set(made.table), made.known, set)
    result = kind(past.made(set), made.known, set)
    result.made_by = made.made_by
    result.changes = [*made.changes]
    result.pasts = {**made.pasts}
    return result


def _asks_no_more() -> bool:
    items = iter((1, 2))
    return {1}.issubset(items) and next(items, None) == 2


# Whether an intersection of this CPython stops when it has found all elements.
ASKS_NO_MORE = _asks_no_more()


def forget(made: SetVariable, name: str, argument: Any) -> None:
    """Elements that have gone: an equal one may come that holds other objects."""
    if name in ("discard", "remove"):
        if isinstance(argument, NESTED):
            made.known.pop(argument, None)
    elif name not in ("add", "update", "pop"):
        made.known = {
            key: element
            for key, element in made.known.items()
            if not isinstance(key, NESTED) or key in made.table
        }


def in_order(
    name: str,
    own: dict[Any, VariableTracker],
    given: dict[Any, VariableTracker],
    count: int,
    keys: Any,
) -> dict[Any, VariableTracker]:
    """The elements of a set and of what its method is given, in the order in which a result takes
    them; of equal ones the first. count: of the set; keys: of what is given, in its container.
    """
    # Of a symmetric difference that is what is left of a copy of the given.
    is_first = name in ("symmetric_difference", "__xor__")
    if name in ("intersection", "intersection_update", "__and__"):
        is_first = len(keys) <= count or not isinstance(keys, (set, frozenset))
    first, second = (given, own) if is_first else (own, given)
    return {**first, **second, **first}


def again(
    made: set[Any],
    changes: Iterable[tuple[str, tuple[Any, ...]]],
) -> set[Any]:
    """Run by generated code: the set, changed as the traced code changed it."""
    for name, arguments in changes:
        getattr(made, name)(*arguments)
    return made


def popped(elements: Any) -> list[Any]:
    """What `ordered_keys` takes for `set.pop`."""
    return [elements.pop()]


def has_known_order(made: SetVariable) -> bool:
    """Whether the table is iterated as the real set is."""
    if len(made.table) <= 1:
        return True
    return made.order_is_known and all(map(has_real_hash, made.table))


def ordered_keys(
    tx: Translator,
    made: SetVariable,
    take: Callable[[Table], list[Any]] = list,
) -> list[Any]:
    """The hash keys in the order of iteration, or what else `take` takes from the set; breaks the
    graph where it is not known.
    """
    if has_known_order(made):
        return take(made.table)
    found = _order_by_address(tx, made, take)
    if found is None:
        why = "the iteration order of this set is not known"
        unsupported("order of a set", repr(made), why)
    return found


def _order_by_address(
    tx: Translator,
    made: SetVariable,
    take: Callable[[Table], list[Any]],
) -> list[Any] | None:
    """The order of a set that the frame made; None if it is not known."""
    if made.inserted is None or not made.order_is_known:
        return None
    if made.cls not in (set, frozenset):
        return None
    history = [("add", (key,)) for key in made.inserted]
    history += made.changes
    keys = list(dict.fromkeys(_mentioned(history)))
    if any(isinstance(key, UserKey) for key in keys):
        return None
    places = _places(tx, made, keys)
    if places is not None:
        return _guarded_order(tx, places, keys, _numbered(history, keys), take)
    if tx.output.options.fullgraph:
        return [key for key in keys if key in made.table]
    return None


def _places(
    tx: Translator,
    made: SetVariable,
    keys: list[Any],
) -> dict[int, tuple[Source, Any]] | None:
    """Index of a key -> where the program has the object and the object; without plain values.
    None if the graph makes one of them.
    """
    places = {}
    for index, key in enumerate(keys):
        if has_real_hash(key):
            continue
        variable = made.known.get(key)
        if variable is None or variable.source is None:
            return None
        real = tx.output.side_effects.real_of(variable)
        if type(real).__hash__ not in _ADDRESSES:
            return None
        places[index] = variable.source, real
    return places


def _guarded_order(
    tx: Translator,
    places: dict[int, tuple[Source, Any]],
    keys: list[Any],
    history: History,
    take: Callable[[Table], list[Any]],
) -> list[Any]:
    # The guard must not hold the program's objects.
    plain = [None if index in places else key for index, key in enumerate(keys)]
    addressed = list(places)

    def order(*found: Any) -> tuple[int, ...]:
        stand_ins = list(plain)
        for index, item in zip(addressed, found, strict=True):
            stand_ins[index] = _ADDRESSES.get(type(item).__hash__, id)(item)
        back = {key: index for index, key in enumerate(stand_ins)}
        made = _made_again(history, stand_ins)
        return tuple(back[item] for item in take(made))

    sources = tuple(source for source, _ in places.values())
    label = f"order of a set of {', '.join(source.name for source in sources)}"
    result = order(*(real for _, real in places.values()))
    tx.guard(JoinedSource(sources, order, label), "CONST_EQ", result)
    return [keys[index] for index in result]


def _mentioned(
    history: History,
) -> list[Any]:
    """All elements, those that came and went too."""
    found: list[Any] = []
    for name, arguments in history:
        if name in OF_ONE:
            found += arguments
            continue
        for given in arguments:
            found += given
    return found


def _numbered(
    history: History,
    keys: list[Any],
) -> History:
    """The history with the indices of the keys in their places."""
    index = {key: number for number, key in enumerate(keys)}
    result: History = []
    for name, arguments in history:
        if name in OF_ONE:
            numbers: Any = [index[key] for key in arguments]
        else:
            numbers = [type(given)(index[key] for key in given) for given in arguments]
        result.append((name, tuple(numbers)))
    return result


def _made_again(
    history: History,
    stand_ins: list[Any],
) -> set[Any]:
    changes = []
    for name, arguments in history:
        if name in OF_ONE:
            given = [stand_ins[number] for number in arguments]
        else:
            given = [
                type(numbers)(stand_ins[number] for number in numbers) for numbers in arguments
            ]
        changes.append((name, tuple(given)))
    return again(set(), changes)
