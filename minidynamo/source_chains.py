"""The links of sources, from what they load to the variable that they start from; and the sources
of the parts of constants.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

import torch

from .source import AttrSource, ClassAttrSource, ConstSource, Source, TupleItemSource

__all__ = ["WITH_PARTS", "chain", "is_kept_by_class", "is_kept_by_torchs", "numbers_in"]

# Constants whose parts may be numbers that change from call to call.
WITH_PARTS = (tuple, torch.Size, slice)


def chain(source: Source | None, end: Container[Source] = ()) -> Iterator[Source]:
    """A source, its base, and so on to the root, or to one in `end`."""
    link = source
    while link is not None and link not in end:
        yield link
        link = getattr(link, "base", None)


def is_kept_by_class(links: list[Source]) -> bool:
    """Whether a class, other than of nn.Modules, leads to what these links load."""
    if not isinstance(links[-1], ConstSource) or len(links) == 1:
        return False
    cls = links[-1].value
    is_attribute = isinstance(links[-2], ClassAttrSource) and isinstance(cls, type)
    return is_attribute and not issubclass(cls, torch.nn.Module)


def is_kept_by_torchs(source: Source, modules: Mapping[Source, type]) -> bool:
    """Whether one of torch's own modules leads to it first."""
    owner = next((link for link in chain(source) if link in modules), None)
    return owner is not None and modules[owner].__module__.startswith("torch.nn.")


def numbers_in(value: Any, source: Source) -> Iterator[tuple[float, Source]]:
    """The ints and floats in a constant (of one of WITH_PARTS), and how to load them."""
    parts: list[tuple[Any, Source]]
    if type(value) is slice:
        parts = [(getattr(value, name), AttrSource(source, name)) for name in _SLICE]
    else:
        parts = [(item, TupleItemSource(source, index)) for index, item in enumerate(value)]
    for part, inner in parts:
        if type(part) in WITH_PARTS:
            yield from numbers_in(part, inner)
        elif type(part) in (int, float):
            yield part, inner


_SLICE = ("start", "stop", "step")
