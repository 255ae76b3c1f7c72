"""Inputs that the user listed by name in `torch.compiler.config`: `dynamic_sources` (or the
environment's TORCH_COMPILE_DYNAMIC_SOURCES) and `unbacked_sources`.

A list has names or regular expressions, with commas between: "L['x'], L['self'].scale".
"""

from __future__ import annotations

import re

import torch.compiler.config

_ROOT = re.compile(r"^[LG]\['(\w+)'\]")
_OF_MODULE = re.compile(r"\._(?:modules|parameters|buffers)\['([^']+)'\]")


def is_dynamic(name: str) -> bool:
    """Whether sizes, or the number, of the source of that name are symbolic from the start."""
    return _is_listed(name, torch.compiler.config.dynamic_sources) or is_unbacked(name)


def is_unbacked(name: str) -> bool:
    """Whether nothing is to be assumed of its sizes."""
    return _is_listed(name, getattr(torch.compiler.config, "unbacked_sources", ""))


def _is_listed(name: str, listed: str) -> bool:
    return bool(listed) and any(
        _names(entry.strip(), name) for entry in listed.split(",") if entry.strip()
    )


def _names(entry: str, name: str) -> bool:
    if _OF_MODULE.sub(r".\1", _ROOT.sub(r"\1", entry)) == name:
        return True
    root = re.match(r"\w+", name)
    if root is None:
        return False
    rest = name[root.end() :]
    spellings = [name, *(f"{kind}['{root.group()}']{rest}" for kind in "LG")]
    try:
        return any(re.fullmatch(entry, spelling) for spelling in spellings)
    except re.error:
        return False
