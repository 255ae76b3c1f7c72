"""What sizes, strides and numbers were at earlier compilations of a frame: what changed is dynamic.

    history = history_of(code)
    sizes, strides = history.tensor("x", tensor)    # of each dimension: has it changed?
    history.number("n", 3)                          # has it changed?

The rules are those of torch's automatic dynamic shapes: a dimension whose size differed at two
compilations is dynamic from then on; strides are looked at only where no size changed, and a stride
that follows from the other sizes (of contiguous memory, say) has not changed with them.
"""

from __future__ import annotations

import types
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from . import markers
from .source import AttrSource, InstanceAttrSource, Source
from .utils import dropping


class _Changed:
    def __repr__(self) -> str:
        return "changed"


CHANGED: Final = _Changed()


@dataclass(slots=True)
class _Seen:
    """Sizes and strides of a tensor; an item is CHANGED when two compilations disagreed."""

    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]


class History:
    """What one code object's compilations saw, by the name of the source."""

    def __init__(self) -> None:
        self._tensors: dict[str, _Seen] = {}
        self._numbers: dict[str, Any] = {}
        self._criteria: dict[str, dict[int, list[Callable[..., Any]]]] = {}
        # A stance left the first call to eager.
        self.ran_in_eager = False
        # For each compile configuration, how often a part behind a graph break was compiled again.
        self._again: weakref.WeakKeyDictionary[Any, Counter[Any]] = weakref.WeakKeyDictionary()

    def count_again(self, options: object, of: Hashable) -> int:
        """Count one more version of a part behind a graph break, `of` some modules; the number."""
        counts = self._again.setdefault(options, Counter())
        counts[of] += 1
        return counts[of]

    def tensor(
        self, name: str, tensor: torch.Tensor
    ) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
        """Record a tensor; of each dimension, whether its size and whether its stride changed.

        A different number of dimensions, or a number in its place, means that all sizes changed.
        """
        known = tuple(map(int, tensor.shape))
        sizes: tuple[Any, ...] = known
        strides = stride_pattern(known, tuple(map(int, tensor.stride())))
        seen = self._tensors.get(name)
        if name in self._numbers:
            sizes = (CHANGED,) * len(sizes)
        elif seen is not None:
            sizes, strides = _merged(seen.sizes, sizes), _merged(seen.strides, strides)
        self._tensors[name] = _Seen(sizes, strides)
        size_changed = tuple(size is CHANGED for size in sizes)
        if any(size_changed):
            return size_changed, (False,) * len(sizes)
        return size_changed, tuple(stride is CHANGED for stride in strides)

    def mark(self, name: str, dims: Sequence[int], ndim: int) -> None:
        """From now on these dimensions count as changed (the user marked them dynamic)."""
        seen = self._tensors.get(name)
        if seen is not None and len(seen.sizes) == ndim:
            sizes = [CHANGED if d in dims else size for d, size in enumerate(seen.sizes)]
            seen.sizes = tuple(sizes)

    def expect_tensor(self, name: str, sizes: Sequence[int | None]) -> None:
        """A tensor of such sizes, None where they change, will be what a compilation sees."""
        changing = [dim for dim, size in enumerate(sizes) if size is None]
        if changing and name not in self._tensors and name not in self._numbers:
            strides = (CHANGED,) * len(sizes)
            self._tensors[name] = _Seen(
                tuple(CHANGED if s is None else s for s in sizes), strides
            )
        self.mark(name, changing, len(sizes))

    def expect_number(self, name: str) -> None:
        """The number of that name changes."""
        if name not in self._tensors:
            self._numbers[name] = CHANGED

    def criteria(self, name: str, tensor: torch.Tensor) -> dict[int, list[Callable[..., Any]]]:
        """The criteria that this tensor or an earlier one at its place was marked with."""
        said = markers.criteria(tensor)
        if said:
            self._criteria[name] = said
        known = self._criteria.get(name, {})
        return {dim: checks for dim, checks in known.items() if dim < tensor.dim()}

    def number(self, name: str, value: float) -> bool:
        """Record an int or float; whether it changed, or a tensor was in its place."""
        known = self._numbers.setdefault(name, CHANGED if name in self._tensors else value)
        if known is not CHANGED and known != value:  # 2 and 2.0 are two constants, as for torch
            self._numbers[name] = CHANGED
        return self._numbers[name] is CHANGED


def _merged(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(old) != len(new):
        return (CHANGED,) * len(new)
    return tuple(a if a == b else CHANGED for a, b in zip(old, new, strict=True))


def stride_pattern(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Any, ...]:
    """Strides, where one is the product of another dimension's size and stride, as ("of", dim)."""
    order = sorted(range(len(sizes)), key=lambda dim: (strides[dim], -dim))
    pattern: list[Any] = list(strides)
    spans: dict[int, int] = {}
    for dim in order:
        if strides[dim] in spans:
            pattern[dim] = ("of", spans[strides[dim]])
        spans.setdefault(sizes[dim] * strides[dim], dim)
    return tuple(pattern)


_histories: dict[int, tuple[weakref.ref[types.CodeType], History]] = {}


def history_of(code: types.CodeType) -> History:
    """The history of a code object, which lives as long as that (or until `forget`)."""
    key = id(code)
    found = _histories.get(key)
    if found is None or found[0]() is not code:
        ref = weakref.ref(code, dropping(_histories, key))
        found = _histories[key] = (ref, History())
    return found[1]


# Of classes, the attributes that traced code gave ints.
_counters: weakref.WeakKeyDictionary[type, set[str]] = weakref.WeakKeyDictionary()


def note_counter(
    cls: type,
    attribute: str,
) -> None:
    """Traced code gave an attribute of an object an int: it changes as the program goes on."""
    _counters.setdefault(cls, set()).add(attribute)


def is_counter(
    source: Source | None,
    modules: Mapping[Source, type],
) -> bool:
    """Whether it is an attribute that traced code gave ints in modules of the same class."""
    if not isinstance(source, (AttrSource, InstanceAttrSource)):
        return False
    owner = modules.get(source.base)
    return owner is not None and source.attribute in _counters.get(owner, ())


def may_be_counter(
    source: Source | None,
    kind: type = object,
) -> bool:
    """Whether traced code gave attributes of that name ints, in objects of a class of `kind`."""
    if not isinstance(source, (AttrSource, InstanceAttrSource)):
        return False
    found = (names for cls, names in _counters.items() if issubclass(cls, kind))
    return any(source.attribute in names for names in found)


def forget() -> None:
    """Start over, as `reset` does."""
    _histories.clear()
    _counters.clear()
