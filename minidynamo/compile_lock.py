"""One thread compiles at a time: fake tensors, tracing and AOTAutograd keep state for the process.

    with compiling() as alone:          # False: others compile for so long that this call goes on
        ...

Meanwhile the garbage collector looks at new objects seldom: a compiler's stay until it is done, and
to go through them again and again took an eighth of its time.

A thread that compiles runs code of the program (imports, constants), which may wait for another
thread; hence nobody waits for ever.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Seconds.
PATIENCE = 60.0
# New objects before the garbage collector looks at them.
YOUNG_OBJECTS = 50_000


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
    former = gc.get_threshold()
    seldom = (
        max(former[0], YOUNG_OBJECTS),
        *former[1:],
    )
    # 0 is a program's way to say that it collects garbage itself.
    if former[0]:
        gc.set_threshold(*seldom)
    try:
        yield True
    finally:
        if gc.get_threshold() == seldom:
            gc.set_threshold(*former)
        lock.release()
