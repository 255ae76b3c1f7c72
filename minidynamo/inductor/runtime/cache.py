"""Everything compiled, kept on disk between processes.

    key = content_key(header, source, flags)
    path = store().path("lib", key)              a verified file, or None
    path = store().put("lib", key, payload)      the file, or None when nothing can be written

    cached = plan_cache().get(key)               a graph's plan and library, or None
    plan_cache().put(key, plan_json, library)

Files lie in `config.cache_dir` (environment: MINIDYNAMO_CACHE_DIR), in a folder that only the user
can read and write; any other folder is refused. They are written under another name and renamed,
so a reader never sees half a file, and end with a checksum: a damaged file is removed and counts
as absent. A disk that is full or read-only costs one warning and the caching, nothing else. The
least recently used files go when all together pass `MAX_BYTES`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minidynamo import config
from minidynamo.utils import warn_once

__all__ = ["CachedPlan", "PlanCache", "Store", "content_key", "plan_cache", "store"]

FORMAT = "v1"
MAX_BYTES = 1 << 30
_MAGIC = b"\nmd:sum1:"
_DIGEST_BYTES = 32
_TRAILER_BYTES = len(_MAGIC) + _DIGEST_BYTES
_PUTS_BETWEEN_SWEEPS = 64


def content_key(*parts: str | bytes) -> str:
    """The name of what these parts determine: 40 hexadecimal digits. The split matters."""
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _checksum(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest()


class Store:
    """Named, checksummed files of several kinds in one private folder.

    The checksum stands behind the payload, where loaders of shared libraries and cubins do not
    look, so that `path` can be handed to them as it is.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.folder = self.root / FORMAT
        # (kind, key) of what was written or found, in order.
        self.used: dict[tuple[str, str], None] = {}
        self._puts = 0
        self._lock = threading.Lock()

    def path(self, kind: str, key: str) -> Path | None:
        """The verified file, or None."""
        return None if self.get(kind, key) is None else self._file(kind, key)

    def get(self, kind: str, key: str) -> bytes | None:
        """The payload, or None when there is none or it is damaged (then the file is removed)."""
        file = self._file(kind, key)
        try:
            if not self._is_private():
                return None
            content = file.read_bytes()
        except OSError:
            return None
        payload, trailer = content[:-_TRAILER_BYTES], content[-_TRAILER_BYTES:]
        if trailer != _MAGIC + _checksum(payload):
            with contextlib.suppress(OSError):
                file.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(file)
        self.used[kind, key] = None
        return payload

    def put(self, kind: str, key: str, payload: bytes) -> Path | None:
        """Write a file; None (and one warning) where that is not possible."""
        file = self._file(kind, key)
        temporary = file.with_name(f".{key}.{os.getpid()}.{threading.get_ident()}")
        try:
            self._make_private()
            file.parent.mkdir(mode=0o700, exist_ok=True)
            try:
                temporary.write_bytes(payload + _MAGIC + _checksum(payload))
                os.replace(temporary, file)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            warn_once(
                f"minidynamo compiles without a disk cache: {error}", key="cache-unusable"
            )
            return None
        self.used[kind, key] = None
        self._count_put()
        return file

    def remove(self, kind: str, key: str) -> None:
        """Forget a file; nothing happens when there is none."""
        with contextlib.suppress(OSError):
            self._file(kind, key).unlink()

    def sweep(self, max_bytes: int = MAX_BYTES) -> int:
        """Remove the least recently used files until at most `max_bytes` are left.

        Returns how many bytes are left.
        """
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        for _, size, file in entries:
            if total <= max_bytes:
                break
            with contextlib.suppress(OSError):
                os.unlink(file)
                total -= size
        return total

    def _file(self, kind: str, key: str) -> Path:
        return self.folder / kind / key

    def _entries(self) -> Iterator[tuple[float, int, str]]:
        with contextlib.suppress(OSError):
            for kind in os.scandir(self.folder):
                for entry in os.scandir(kind.path):
                    with contextlib.suppress(OSError):
                        info = entry.stat(follow_symlinks=False)
                        yield info.st_mtime, info.st_size, entry.path

    def _count_put(self) -> None:
        with self._lock:
            self._puts += 1
            due = self._puts % _PUTS_BETWEEN_SWEEPS == 1
        if due:
            self.sweep()

    def _is_private(self) -> bool:
        """Whether nobody but the user can have put files into the folder."""
        info = os.lstat(self.folder)
        own = stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid()
        return own and not info.st_mode & 0o077 and self._parent_is_safe()

    def _parent_is_safe(self) -> bool:
        """Whether nobody else can put another folder in the place of ours."""
        info = os.stat(self.root)
        others_write = bool(info.st_mode & 0o022) and not info.st_mode & stat.S_ISVTX
        return not others_write and info.st_uid in (0, os.geteuid())

    def _make_private(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir(mode=0o700)
        info = os.lstat(self.folder)
        if stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and info.st_mode & 0o077:
            self.folder.chmod(0o700)
        if not self._is_private():
            raise PermissionError(f"others can write to {self.folder}, or it is not ours")


@dataclass(frozen=True, slots=True)
class CachedPlan:
    """A graph in compiled form: the JSON text of its plan, and its kernels where it has any."""

    plan_json: str
    library: Path | None


class PlanCache:
    """Plans of whole graphs, by a key of everything that compiling the graph depends on.

    A plan whose library is gone or damaged counts as absent.
    """

    def __init__(self, files: Store) -> None:
        self.files = files

    def get(self, key: str) -> CachedPlan | None:
        """The plan stored under the key, or None."""
        payload = self.files.get("plan", key)
        if payload is None:
            return None
        library_key, _, plan_json = payload.decode().partition("\n")
        library = self.files.path("lib", library_key) if library_key else None
        if library_key and library is None:
            return None
        return CachedPlan(plan_json, library)

    def put(self, key: str, plan_json: str, library: Path | None) -> bool:
        """Store a plan. `library` is what `compile_library` returned.

        Returns False, storing nothing, when the disk cannot be used.
        """
        if library is not None and library.parent != self.files.folder / "lib":
            return False  # the library itself could not be stored
        name = "" if library is None else library.name
        return self.files.put("plan", key, f"{name}\n{plan_json}".encode()) is not None


_stores: dict[str, Store] = {}


def store() -> Store:
    """The store in `config.cache_dir`."""
    root = os.path.expanduser(config.cache_dir)
    return _stores.setdefault(root, Store(root))


def plan_cache() -> PlanCache:
    """The plans in `config.cache_dir`."""
    return PlanCache(store())
