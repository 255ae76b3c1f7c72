"""Backends by name.

    @register_backend
    def mine(gm, example_inputs): return gm.forward
    compile(f, backend="mine")            # or backend=mine, any callable

A backend takes a torch.fx.GraphModule and its example inputs and returns a callable that takes the
inputs and returns the graph's outputs as a tuple or list. Our own are named by module and attribute
and imported at the first look-up; those of other packages come from the entry-point group
`torch_dynamo_backends`, the one that torch itself reads.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ..collector import importing
from ..compile_options import BackendFn
from ..exc import InvalidBackend
from ..utils import known_names

__all__ = [
    "BUILTIN_BACKENDS",
    "backend_name",
    "get_default_backend",
    "list_backends",
    "lookup_backend",
    "register_backend",
    "set_default_backend",
]

ENTRY_POINT_GROUP = "torch_dynamo_backends"

# name -> (module, attribute, tags)
BUILTIN_BACKENDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "inductor": ("minidynamo.backends.inductor", "inductor", ()),
    "cudagraphs": ("minidynamo.backends.inductor", "cudagraphs", ()),
    "eager": ("minidynamo.backends.debugging", "eager", ("debug",)),
    **{
        name: ("minidynamo.backends.debugging", name, ("debug",))
        for name in ("eager_noexcept", "eager_debug", "pre_dispatch_eager")
    },
    "aot_eager": ("minidynamo.backends.debugging", "aot_eager", ("debug",)),
    "aot_eager_default_partitioner": (
        "minidynamo.backends.debugging",
        "aot_eager",
        ("debug",),
    ),
    "aot_eager_decomp_partition": (
        "minidynamo.backends.debugging",
        "aot_eager_decomp_partition",
        ("debug",),
    ),
}

_registered: dict[str, BackendFn] = {}
_tags: dict[str, tuple[str, ...]] = {name: row[2] for name, row in BUILTIN_BACKENDS.items()}
_installed: dict[str, EntryPoint] | None = None
_default: str | BackendFn = "inductor"
_lock = threading.RLock()


def register_backend(
    compiler_fn: BackendFn | None = None, name: str | None = None, tags: Iterable[str] = ()
) -> Any:
    """Make `compiler_fn` known as `name` (default: its `__name__`); returns it. Also a decorator.

    tags: words for `list_backends(exclude_tags=)`. Raises TypeError for what cannot be called and
    ValueError when the name is taken by another backend.
    """
    if compiler_fn is None:
        return lambda fn: register_backend(fn, name=name, tags=tags)
    if not callable(compiler_fn):
        raise TypeError(f"register_backend: compiler_fn must be callable, not {compiler_fn!r}")
    name = getattr(compiler_fn, "__name__", None) if name is None else name
    if not isinstance(name, str) or not name:
        raise TypeError(
            f"register_backend: name must be a str, not {name!r}; by default it is the __name__"
            f" of {compiler_fn!r}"
        )
    tags = _words("register_backend: tags", tags)
    with _lock:
        taken = (
            name in BUILTIN_BACKENDS or _registered.get(name, compiler_fn) is not compiler_fn
        )
        if taken:
            raise ValueError(f"register_backend: the name {name!r} is taken")
        _registered[name] = compiler_fn
        _tags[name] = tags
    return compiler_fn


def _words(what: str, words: Iterable[str]) -> tuple[str, ...]:
    if isinstance(words, (list, tuple, set, frozenset)) and all(
        isinstance(word, str) for word in words
    ):
        return tuple(words)
    kind = type(words).__name__
    raise TypeError(f"{what} must be a list or tuple of str, not {kind} {words!r}")


def _entry_points() -> dict[str, EntryPoint]:
    global _installed
    with _lock:
        if _installed is None:
            _installed = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
        return _installed


def list_backends(exclude_tags: Iterable[str] | None = ("debug", "experimental")) -> list[str]:
    """Sorted names that `compile(backend=)` takes, without those with a tag in `exclude_tags`."""
    given = () if exclude_tags is None else exclude_tags
    excluded = set(_words("list_backends: exclude_tags", given))
    names = {*BUILTIN_BACKENDS, *_registered, *_entry_points()}
    return sorted(name for name in names if not excluded & set(_tags.get(name, ())))


def lookup_backend(compiler_fn: str | BackendFn) -> BackendFn:
    """The backend called `compiler_fn`; a callable is returned as it is.

    Raises InvalidBackend, with the known names, for an unknown one, and TypeError for another type.
    """
    if callable(compiler_fn):
        return compiler_fn
    if not isinstance(compiler_fn, str):
        kind = type(compiler_fn).__name__
        raise TypeError(f"backend must be a name or a callable, not {kind} {compiler_fn!r}")
    if compiler_fn in _registered:
        return _registered[compiler_fn]
    if compiler_fn in BUILTIN_BACKENDS:
        module, attribute, _ = BUILTIN_BACKENDS[compiler_fn]
        with importing():
            found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    elif compiler_fn in _entry_points():
        found = _entry_points()[compiler_fn].load()
    else:
        raise InvalidBackend(compiler_fn, known_names(compiler_fn, list_backends(())))
    with _lock:
        return _registered.setdefault(compiler_fn, found)


def set_default_backend(backend: str | BackendFn | None) -> None:
    """What `compile()` uses where it is given no backend, from now on; None: "inductor" again.

    Raises InvalidBackend for an unknown name, and TypeError for another type.
    """
    global _default
    chosen = "inductor" if backend is None else backend
    lookup_backend(chosen)
    _default = chosen


def get_default_backend() -> str | BackendFn:
    """What `compile()` uses where it is given no backend."""
    return _default


def backend_name(backend: str | BackendFn) -> str:
    """What messages call this backend."""
    return backend if isinstance(backend, str) else getattr(backend, "__name__", repr(backend))
