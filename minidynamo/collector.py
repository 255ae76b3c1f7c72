"""The garbage collector rests while the compiler is imported."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["importing"]

# CPython 3.12 freezes some 400 objects when it starts; a program, when torch is there, 100,000s.
_OF_THE_INTERPRETER = 2_000


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """For imports of many modules: some 100,000 objects that live as long as the process.

    The collector would walk over them and over all that torch made, several times and in vain: a
    quarter of the time of a first call. What is there at the end counts as old, unless the program
    froze objects itself: those may not be mixed with others. Not for imports in the midst of
    compiling, whose garbage would count as old, too.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() < _OF_THE_INTERPRETER:
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
        gc.enable()
