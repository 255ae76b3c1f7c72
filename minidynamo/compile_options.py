"""`CompileOptions`: what one `compile()` call asked for, as the front end sees it."""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from .exc import BackendCompilerFailed
from .interruptions import pass_on

__all__ = ["BackendFn", "CompileOptions", "GuardFail"]

# (graph module, example inputs) -> callable(*inputs) -> the graph's outputs, a tuple or list
BackendFn = Callable[..., Callable[..., Any]]


class GuardFail(NamedTuple):
    """Why the compiled versions of `orig_code` do not fit a call."""

    reason: str
    orig_code: types.CodeType


@dataclass(frozen=True, eq=False)
class CompileOptions:
    """One configuration of `compile()`; equal ones (by `key()`) share their compiled code.

    backend: the function from the registry or the user's own. backend_name: its name in messages.
    fullgraph: a graph break is an error.
    dynamic: None: symbolic where a size changed; True: symbolic sizes; False: constants.
    mode, options: as given; `call_backend` hands them on.
    recompile_limit: in place of config.recompile_limit. owner: whatever has this configuration
    for itself alone. guard_fail_fn: called with a `GuardFail` before each recompilation.
    guard_filter_fn: says which guards are kept (guard_filter.py). shapes_spec: which sizes are
    symbolic (shape_specs.py).
    """

    backend: BackendFn
    backend_name: str
    fullgraph: bool = False
    dynamic: bool | None = None
    mode: str | None = None
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    recompile_limit: int | None = None
    owner: object = None
    guard_fail_fn: Callable[[GuardFail], Any] | None = None
    guard_filter_fn: Callable[[Any], Any] | None = None
    shapes_spec: Any = None

    def call_backend(self, graph_module: Any, example_inputs: Any) -> Any:
        """Run the backend; as in torch `mode=` and `options=` are passed only where given.

        Raises BackendCompilerFailed when it raises or returns what cannot be called.
        """
        extra: dict[str, Any] = {}
        if self.mode not in (None, "default"):
            extra["mode"] = self.mode
        if self.options:
            extra["options"] = dict(self.options)
        try:
            compiled = self.backend(graph_module, example_inputs, **extra)
            if not callable(compiled):
                raise TypeError(f"a backend returns a callable, not {type(compiled).__name__}")
        except BackendCompilerFailed:
            raise
        except Exception as error:
            raise self.failure(error) from error
        return compiled

    def failure(self, error: Exception) -> BackendCompilerFailed:
        """What to raise where the backend raised `error`."""
        pass_on(error)
        return BackendCompilerFailed(self.backend_name, error)

    def key(self) -> Hashable:
        """Equal for configurations that may share compiled code."""
        options = frozenset((name, _frozen(value)) for name, value in self.options.items())
        mode = self.mode or "default"
        own = (
            self.recompile_limit,
            id(self.owner),
            id(self.guard_fail_fn),
            id(self.guard_filter_fn),
            id(self.shapes_spec),
        )
        return (_compared(self.backend), self.fullgraph, self.dynamic, mode, options, own)


def _compared(backend: BackendFn) -> Hashable:
    """Backends may be equal, as in torch: `obj.method` is another object each time. One that cannot
    be hashed, as a frozen dataclass with a list cannot, counts by identity.
    """
    try:
        hash(backend)
    except TypeError:
        return id(backend)
    return backend


def _frozen(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return ("dict", frozenset((key, _frozen(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(_frozen, value))
    if isinstance(value, (bool, int, float, str, bytes, type(None))):
        return (type(value).__name__, value)
    return ("object", id(value))
