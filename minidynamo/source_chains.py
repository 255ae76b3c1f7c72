"""The links of sources, from what they load to the variable that they start from."""

from __future__ import annotations

from collections.abc import Container, Iterator

import torch

from .source import ClassAttrSource, ConstSource, Source

__all__ = ["chain", "is_kept_by_class"]


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
