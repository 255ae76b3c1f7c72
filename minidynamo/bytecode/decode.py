"""Code objects to canonical listings: one pass over ``co_code``, cached per code object."""

from __future__ import annotations

import weakref
from types import CodeType

from .current import dialect
from .decoder import Decoder
from .instruction import Instruction

#: id(code) -> (weak reference that removes the entry, listing).  Not a WeakKeyDictionary: code
#: objects hash and compare by value, constants included, and ours hold arbitrary objects.
_cache: dict[int, tuple[weakref.ref[CodeType], list[Instruction]]] = {}


def decode(code: CodeType) -> list[Instruction]:
    """The canonical instructions of ``code`` in layout order.

    Cached for as long as the code object lives: neither the list nor its instructions may be
    changed (see ``copy_instructions``).  Raises BytecodeError for code that no compiler makes and
    for code with a cell and a free variable of one name (CPython 3.12 and 3.13 make such for some
    inlined comprehensions, and confuse the two themselves).
    """
    cached = _cache.get(id(code))
    if cached is not None:
        return cached[1]
    listing = Decoder(code, dialect).run()
    prime_cache(code, listing)
    return listing


def prime_cache(code: CodeType, instructions: list[Instruction]) -> None:
    """Make ``decode(code)`` answer ``instructions``, the listing ``code`` was assembled from."""
    key = id(code)
    _cache[key] = (weakref.ref(code, lambda _: _cache.pop(key, None)), instructions)
