"""Modes and options of the inductor backend, and their validation.

An option is a flag of `minidynamo.inductor.config`; a mode is a name for a set of options. Names of
modes are those of torch.compile. An option may be spelt as there ("trace.enabled") or as the flag
(trace_enabled). Options without an effect yet say so in their documentation; options of torch that
have no counterpart (`inductor/config_inert.py`) are taken with a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config_module import check_value, flag_of, spellings
from ..exc import UserError
from ..inductor import config as inductor_config
from ..utils import known_names

__all__ = [
    "list_mode_options",
    "list_options",
    "mode_options",
    "validate_mode",
    "validate_options",
]

_MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "lite": {"fallback_by_default": True},
    "reduce-overhead": {"triton.cudagraphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
    "max-autotune": {"max_autotune": True, "triton.cudagraphs": True},
}


def list_mode_options(mode: str | None = None) -> dict[str, Any]:
    """Mode -> the options it stands for; with `mode`, that one's options.

    Raises UserError for an unknown mode.
    """
    if mode is not None:
        return mode_options(mode)
    return {name: dict(options) for name, options in _MODES.items()}


def list_options() -> list[str]:
    """Names that `options=` may have, with those that torch.compile spells with a dot."""
    return spellings(inductor_config)


def mode_options(mode: str | None) -> dict[str, Any]:
    """The options of `mode`; None is "default"."""
    validate_mode(mode)
    return dict(_MODES[mode or "default"])


def validate_mode(mode: str | None) -> None:
    """Raises UserError, with the known modes, for an unknown one."""
    if mode is not None and mode not in _MODES:
        raise UserError(f"unknown mode {mode!r}; {known_names(mode, _MODES)}")


def validate_options(options: Mapping[str, Any]) -> None:
    """Raises UserError for an unknown option (with the known ones) or a value it cannot have."""
    for name, value in options.items():
        try:
            flag = flag_of(inductor_config, name)
        except AttributeError:
            known = known_names(name, list_options())
            raise UserError(f"unknown option {name!r}; {known}") from None
        try:
            check_value(inductor_config, flag, value)
        except (TypeError, ValueError) as error:
            raise UserError(f"option {name!r}: {error}") from error
