"""The functions that generated code and guard programs call to get at an object.

They are what a source stands for where no instruction does: see CallSource and its like in
source.py.
None of them runs code of the user.
"""

from __future__ import annotations

import collections
import gc
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from .utils import class_dict


def class_attribute(cls: type, name: str, after: type | None = None) -> Any:
    """`cls.name` as the MRO has it (from behind class `after`, if given), without binding."""
    mro = cls.__mro__
    for base in mro[mro.index(after) + 1 if after is not None else 0 :]:
        if name in class_dict(base):
            return class_dict(base)[name]
    raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")


def builtins_of(module_globals: dict[str, Any]) -> dict[str, Any]:
    """The dict of builtins that functions with these globals use."""
    found = module_globals["__builtins__"]
    return found if isinstance(found, dict) else vars(found)


def instance_dict(value: Any) -> dict[str, Any] | None:
    """The real instance dict, or None; no code of the user is run."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def dict_key_at(mapping: Mapping[Any, Any], index: int) -> Any:
    """The key at a position of a mapping; raises IndexError when it is shorter."""
    for key in itertools.islice(_dict_type(mapping).keys(mapping), index, None):
        return key
    raise IndexError(f"a dict has no key {index}")


def dict_value_at(mapping: Mapping[Any, Any], index: int) -> Any:
    """The value at a position of a mapping; raises IndexError when it is shorter."""
    for value in itertools.islice(_dict_type(mapping).values(mapping), index, None):
        return value
    raise IndexError(f"a dict has no value {index}")


def _dict_type(mapping: Mapping[Any, Any]) -> Any:
    """The builtin type whose methods see the items: a class may define its own."""
    types = (collections.OrderedDict, dict)
    return next((cls for cls in types if isinstance(mapping, cls)), type(mapping))


def iterator_sequence(iterator: Any) -> Any:
    """What a list, tuple, str, range or dict iterator iterates; None when it is exhausted.

    For a range iterator on CPython 3.12 and later it is the range of what is left.
    """
    reduced = iterator.__reduce__() if type(iterator) is type(iter(range(0))) else ()
    found = reduced[1] if reduced else gc.get_referents(iterator)
    return found[0] if found else None


def iterator_index(iterator: Any) -> int:
    """How many items of `iterator_sequence` were handed out; -1 when the iterator is exhausted.

    A dict iterator does not tell its position: the answer is right unless the dict was resized
    meanwhile, which makes the iterator's next step raise anyhow.
    """
    sequence = iterator_sequence(iterator)
    if sequence is None:
        return -1
    if isinstance(sequence, dict):
        return len(sequence) - iterator.__length_hint__()
    reduced = iterator.__reduce__()
    return reduced[2] or 0 if len(reduced) > 2 else -1


ABSENT: Any = object()


class CachedResult:
    """What the cache of an `lru_cache` function has for some arguments, or ABSENT: their result,
    or what holds it, where the cache has a limit.
    """

    def __init__(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """`lru_cache_make_key`."""
        mark = _parts_of_cache(function)[1]
        parameters: dict[str, Any] = getattr(function, "cache_parameters", dict)()
        is_typed = parameters.get("typed", False)
        values = (*args, *kwargs.values())
        key: Any = tuple(args)
        if kwargs:
            key += (mark, *(part for item in kwargs.items() for part in item))
        if is_typed:
            key += tuple(type(value) for value in values)
        elif len(values) == 1 and not kwargs and type(args[0]) in (int, str):
            key = args[0]
        self.key = key

    def __call__(self, function: Any) -> Any:
        try:
            return _parts_of_cache(function)[0].get(self.key, ABSENT)
        except TypeError:  # no argument is hashed
            return ABSENT


def _parts_of_cache(function: Any) -> tuple[dict[Any, Any], Any]:
    """Its dict, and the mark that is before keywords in keys (see `lru_cache_tp_traverse`)."""
    held = gc.get_referents(function)
    place = max(i for i, item in enumerate(held) if type(item) is object)
    return held[place - 2], held[place]
