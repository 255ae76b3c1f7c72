"""Code objects to canonical listings, cached per code object."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import CodeType

from ..utils import dropping
from .analysis import index_of, live_locals
from .current import dialect
from .decoder import Decoder
from .instruction import Instruction


@dataclass(slots=True)
class _Decoded:
    reference: weakref.ref[CodeType]  # removes the row from the cache
    listing: list[Instruction]
    index: dict[Instruction, int] | None = None
    live: list[frozenset[str]] | None = None


#: By id.  Not a WeakKeyDictionary: code objects hash and compare by value, constants included, and
#: ours hold arbitrary objects.
_cache: dict[int, _Decoded] = {}


def decode(code: CodeType) -> list[Instruction]:
    """The canonical instructions of ``code`` in layout order.

    Cached for as long as the code object lives: neither the list nor its instructions may be
    changed (see ``copy_instructions``).  Raises BytecodeError for code that no compiler makes and
    for code with a cell and a free variable of one name (CPython 3.12 and 3.13 make such for some
    inlined comprehensions, and confuse the two themselves).
    """
    return _decoded(code).listing


def instruction_index(code: CodeType) -> dict[Instruction, int]:
    """Position of each instruction in ``decode(code)``; cached, not to be changed."""
    row = _decoded(code)
    if row.index is None:
        row.index = index_of(row.listing)
    return row.index


def live_names(code: CodeType) -> list[frozenset[str]]:
    """``live_locals(decode(code))``; cached, not to be changed."""
    row = _decoded(code)
    if row.live is None:
        row.live = live_locals(row.listing)
    return row.live


def prime_cache(code: CodeType, instructions: list[Instruction]) -> None:
    """Make ``decode(code)`` answer ``instructions``, the listing ``code`` was assembled from."""
    key = id(code)
    _cache[key] = _Decoded(weakref.ref(code, dropping(_cache, key)), instructions)


def _decoded(code: CodeType) -> _Decoded:
    row = _cache.get(id(code))
    if row is None:
        prime_cache(code, Decoder(code, dialect).run())
        row = _cache[id(code)]
    return row
