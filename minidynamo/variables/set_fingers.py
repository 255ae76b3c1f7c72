"""Which element `set.pop` takes of a set of the program: a set remembers where the last one was.

After `PySetObject` and `set_pop` of CPython's Objects/setobject.c.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ..source import CallSource
from .base import unsupported

if TYPE_CHECKING:
    from ..symbolic_convert import Translator
    from .sets import SetVariable

# Words of a set, after the header that every object has.
_MASK, _TABLE, _FINGER = 2, 3, 5
# Words of an entry of its table; the hash of a place whose element has gone.
_ENTRY, _GONE = 2, -1


def _words(
    address: int,
    count: int,
) -> Any:
    return (ctypes.c_ssize_t * count).from_address(address)


def next_popped(
    value: set[Any],
) -> int:
    """The index of the element that `value.pop()` takes, in the order of iteration."""
    fields = _words(id(value) + object.__basicsize__, _FINGER + 1)
    start = fields[_FINGER] & fields[_MASK]
    entries = _words(fields[_TABLE], start * _ENTRY)
    places = range(0, start * _ENTRY, _ENTRY)
    before = sum(entries[at] != 0 and entries[at + 1] != _GONE for at in places)
    return before % set.__len__(value)


def _is_known() -> bool:
    """Whether sets of this CPython are laid out like that."""
    for size in (5, 50):
        sample = set(range(0, 7 * size, 7))
        for step in range(size, 0, -1):
            expected = list(sample)[next_popped(sample)]
            if sample.pop() != expected:
                return False
            if step % 3 == 0:
                sample.add(-step)
    return True


_IS_KNOWN = _is_known()


def upcoming(
    tx: Translator,
    made: SetVariable,
) -> Any:
    """The hash key of what `pop` takes; breaks the graph after changes of another kind."""
    if (
        not _IS_KNOWN
        or made.source is None
        or any(name != "pop" for name, _ in made.operations)
    ):
        unsupported("order of a set", repr(made), "which element pop() takes is not known")
    if made.leaving is None:  # as long as nothing was taken, all elements are there
        first = next_popped(made.real)
        source = CallSource(made.source, next_popped, "<what {base}.pop() takes>")
        tx.guard(source, "CONST_EQ", first)
        keys = list(made.known) or list(made.original)
        made.leaving = [*keys[first:], *keys[:first]]
    return made.leaving[len(made.operations)]
