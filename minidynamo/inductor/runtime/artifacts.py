"""What a process compiled or loaded, as bytes: to fill the disk caches of other machines.

    saved, info = save_cache_artifacts()      # behind a first call of everything
    load_cache_artifacts(saved)               # elsewhere, before the first call

The bytes hold machine code, which loading lets later calls run: they have to come from a trusted
place. What was compiled for another CPU or version is never looked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from ...exc import UserError
from .cache import store

__all__ = ["CacheInfo", "load_cache_artifacts", "save_cache_artifacts"]

_MAGIC = b"minidynamo cache 1\n"
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class CacheInfo:
    """What was saved or loaded: kind of file ("plan", "lib", ...) -> keys."""

    artifacts: Mapping[str, list[str]]


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _info(rows: list[tuple[str, str, int]]) -> CacheInfo:
    kinds: dict[str, list[str]] = {}
    for kind, key, _ in rows:
        kinds.setdefault(kind, []).append(key)
    return CacheInfo(kinds)


def save_cache_artifacts() -> tuple[bytes, CacheInfo] | None:
    """Everything in the disk cache that this process wrote or read; None if that is nothing."""
    files = store()
    rows, payloads = [], []
    for kind, key in list(files.used):
        payload = files.get(kind, key)
        if payload is not None:
            rows.append((kind, key, len(payload)))
            payloads.append(payload)
    if not rows:
        return None
    head = json.dumps(rows).encode()
    body = b"".join([len(head).to_bytes(8, "little"), head, *payloads])
    return _MAGIC + _digest(body) + body, _info(rows)


def load_cache_artifacts(serialized_artifacts: bytes) -> CacheInfo | None:
    """Put what `save_cache_artifacts()` gave into the disk cache; None where it cannot be written.

    Raises TypeError for what is no bytes, UserError for bytes that are damaged or of another kind.
    """
    if not isinstance(serialized_artifacts, (bytes, bytearray, memoryview)):
        kind_ = type(serialized_artifacts).__name__
        raise TypeError(
            f"load_cache_artifacts: serialized_artifacts must be bytes, not {kind_}"
        )
    data = bytes(serialized_artifacts)
    start = len(_MAGIC) + _DIGEST_BYTES
    body = data[start:]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) : start] != _digest(body):
        raise UserError(
            "load_cache_artifacts: these bytes are damaged, or not of save_cache_artifacts()"
            " of this version"
        )
    at = 8 + int.from_bytes(body[:8], "little")
    rows = [(kind, key, size) for kind, key, size in json.loads(body[8:at])]
    files = store()
    for kind, key, size in rows:
        if files.put(kind, key, body[at : at + size]) is None:
            return None
        at += size
    return _info(rows)
