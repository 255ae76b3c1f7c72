"""What compiled functions do for now, as `set_stance` chose: read where nothing compiled fits a
call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._C import force_eager

__all__ = ["STANCES", "Stance", "current", "switch"]

STANCES = (
    "default",
    "aot_eager_then_compile",
    "eager_on_recompile",
    "eager_then_compile",
    "fail_on_recompile",
    "force_eager",
)


@dataclass(frozen=True)
class Stance:
    """name: one of STANCES. backend, backend_name: in place of every configuration's own, with
    "aot_eager_then_compile" for the first version of a frame alone; None: its own.
    """

    name: str = "default"
    backend: Any = None
    backend_name: str = ""


_current = Stance()


def current() -> Stance:
    """The stance in force."""
    return _current


def switch(stance: Stance) -> None:
    """Put `stance` in force, in all threads."""
    global _current
    _current = stance
    force_eager(stance.name == "force_eager")
