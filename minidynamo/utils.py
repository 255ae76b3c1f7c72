"""Helpers that several layers need: error texts about names, one-time warnings, `counters`, entries
that end with an object.

A helper with one user lives beside that user, so this file stays under 100 lines.
"""

from __future__ import annotations

import collections
import difflib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

__all__ = [
    "class_dict",
    "counters",
    "dropping",
    "forget_warnings",
    "known_names",
    "plural",
    "warn_once",
]

# What happened since the process started, or since counters.clear(), by torch's names:
# "frames": total (offered to the front end), ok (compiled); "graph_break": by message;
# "stats": unique_graphs, calls_captured. Read by programs; nothing here depends on it.
counters: collections.defaultdict[str, collections.Counter[str]]
counters = collections.defaultdict(collections.Counter)

_PACKAGE = os.path.dirname(__file__) + os.sep
_warned: set[str] = set()
_warned_lock = threading.Lock()


def dropping(entries: MutableMapping[int, Any], key: int) -> Callable[[object], None]:
    """What a weak reference calls when its object is freed: takes `key` out of `entries`.

    It holds `entries` itself: when the interpreter ends, names of modules are gone before the last
    objects are.
    """

    def drop(_dead: object) -> None:
        entries.pop(key, None)

    return drop


def known_names(name: object, known: Iterable[str]) -> str:
    """Second half of an "unknown name" message: the nearest known name and all, sorted."""
    ordered = sorted(known)
    close = difflib.get_close_matches(str(name), ordered, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(ordered) or '(none)'}"


def plural(count: int, noun: str) -> str:
    """`plural(2, "graph break")` is "2 graph breaks"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def warn_once(message: str, key: str | None = None) -> bool:
    """Issue `message` as a UserWarning the first time that `key` (default: the message) is seen.

    It names the line of the program that led here. Returns whether it was issued.
    `minidynamo.reset()` forgets the keys.
    """
    with _warned_lock:
        if (key or message) in _warned:
            return False
        _warned.add(key or message)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)
    return True


def forget_warnings() -> None:
    """Let every one-time warning be issued again."""
    with _warned_lock:
        _warned.clear()


# `vars(cls)`, but that a metaclass may define `__dict__`, too.
class_dict: Callable[[type], Mapping[str, Any]] = vars(type)["__dict__"].__get__


def is_distributed(cls: type) -> bool:
    """Whether it is DTensor, a tensor that lies on several processes, or derived from it."""
    return any(
        base.__name__ == "DTensor" and base.__module__ == "torch.distributed.tensor"
        for base in cls.__mro__
    )
