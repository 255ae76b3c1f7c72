"""What compiled functions do for now, as `set_stance` chose: read where nothing compiled fits a
call. Torch's own stance counts where none was chosen here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._C import follow_stance, force_eager, reset

__all__ = ["STANCES", "Stance", "current", "follow_torch", "made_by", "switch"]

_TORCH = "torch._dynamo.eval_frame"

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


DEFAULT = Stance()
_chosen = DEFAULT
_of_torch = DEFAULT
_followed = False
_make: Callable[[str, Any], Stance] = Stance


def made_by(make: Callable[[str, Any], Stance]) -> None:
    """Let `make(name, force_backend)` say what the stances of torch's compiler are here."""
    global _make
    _make = make


def current() -> Stance:
    """The stance in force: what was chosen here, else what torch.compiler.set_stance chose."""
    follow_torch()
    return _in_force()


def _in_force() -> Stance:
    return _of_torch if _chosen == DEFAULT else _chosen


def switch(stance: Stance) -> Stance:
    """Put `stance` in force, in all threads; gives what was chosen here before."""
    global _chosen
    former, forced = _chosen, _forced_backend()
    _chosen = stance
    _changed(forced)
    return former


def follow_torch() -> None:
    """Let the stance of torch's own compiler count, once a program has imported that."""
    global _followed
    module = None if _followed else sys.modules.get(_TORCH)
    if module is not None:
        _followed = True
        follow_stance(vars(module), _torch_changed)


def _torch_changed(stance: Any) -> None:
    global _of_torch
    forced = _forced_backend()
    try:
        _of_torch = _make(stance.stance, stance.backend)
    except RuntimeError as error:
        _of_torch = Stance(backend=_failing(error))
    _changed(forced)


def _failing(error: RuntimeError) -> Callable[..., Any]:
    """A backend that fails: torch raises where a function is called, not where it is told."""

    def backend(gm: Any, example_inputs: Any) -> Any:
        raise error

    return backend


def _forced_backend() -> Any:
    stance = _in_force()
    return stance.backend if stance.name == "default" else None


def _changed(forced: Any) -> None:
    force_eager(_in_force().name == "force_eager")
    if _forced_backend() is not forced:
        reset()  # what other backends compiled is not to be used
