"""One thread compiles at a time: fake tensors, tracing and AOTAutograd keep state for the process.

    with compiling() as alone:          # False: others compile for so long that this call goes on
        ...

A thread that compiles runs code of the program (imports, constants), which may wait for another
thread; hence nobody waits for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Seconds.
PATIENCE = 60.0


class _Lock:
    """The lock of this process; a forked child has its own, which nobody holds."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.lock = threading.RLock()


_current = _Lock()
os.register_at_fork(after_in_child=_current.renew)


@contextmanager
def compiling() -> Iterator[bool]:
    """Meanwhile no other thread compiles; gives False where one did not end within PATIENCE."""
    lock = _current.lock
    if not lock.acquire(timeout=PATIENCE):
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
