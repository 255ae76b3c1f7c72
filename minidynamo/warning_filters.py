"""Warnings while something is compiled: `with no_warning_raises(): ...`

torch's own code warns where it asks the program's tensors for what the program never asked, and
where it uses what is deprecated. A program that makes errors of its warnings is not to fail of it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def no_warning_raises() -> Iterator[None]:
    """Without the filters that raise. Where there are none, nothing changes: entering
    `catch_warnings` makes Python forget which warnings were shown once.
    """
    if not any(action == "error" for action, *_ in warnings.filters):
        yield
        return
    with warnings.catch_warnings():
        milder = [entry for entry in warnings.filters if entry[0] != "error"]
        warnings.filters[:] = milder  # type: ignore[index]
        yield
