"""Which modules an operation of the graph belongs to, in the meta of its node as torch has it:

nn_module_stack: {"id of the module[@n, in its n-th call after the first]": (path, class), ...}
source_fn_stack: [(name of the node, its target or the module of torch.nn that it is part of)]
"""

from __future__ import annotations

import collections
import contextlib
import re
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
from torch.fx.node import Node

from .source import GlobalSource, LocalSource, ModuleItemSource, Source

_LIBRARIES = ("torch.nn.modules.", "torch.ao.")
_CONTAINERS = "torch.nn.modules.container"
_TABLES = re.compile(r"\.__dict__\['_modules'\]\['([^']+)'\]")


def _is_of_library(cls: type) -> bool:
    return cls.__module__.startswith(_LIBRARIES)


class ModuleStack:
    """The modules whose calls are being traced."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, type]] = {}
        self._calls: collections.Counter[str] = collections.Counter()
        self._paths: dict[Source, str] = {}

    def begin(self, code: CodeType, arguments: dict[str, Any]) -> None:
        """A frame: that of a module of torch.nn which is compiled itself is in it."""
        module = arguments.get("self")
        cls: Any = type(module)  # what else its class is, is the program's code
        is_known = issubclass(cls, torch.nn.Module) and _is_of_library(cls)
        if is_known and getattr(cls.forward, "__code__", None) is code:
            self._open[str(id(module))] = "L['self']", cls

    @contextlib.contextmanager
    def within(self, module: Any, source: Source | None) -> Iterator[None]:
        """During a call of `module`; what the traced code makes is in none."""
        if source is None:
            yield
            return
        path = self._path(source)
        count = self._calls[path]
        self._calls[path] += 1
        key = f"{id(module)}@{count}" if count else str(id(module))
        self._open[key] = path, type(module)
        try:
            yield
        finally:
            del self._open[key]

    def _path(self, source: Source) -> str:
        """The expression, as torch has it: `L['self'].blocks.0`."""
        known = self._paths.get(source)
        if known is not None:
            return known
        if isinstance(source, (LocalSource, GlobalSource)):
            path = f"{'L' if isinstance(source, LocalSource) else 'G'}[{source.name!r}]"
        elif isinstance(source, ModuleItemSource):
            path = f"{self._path(source.base)}.{source.key}"
        else:
            base = getattr(source, "base", None)
            path = source.name
            if isinstance(base, Source) and path.startswith(base.name):
                path = self._path(base) + path.removeprefix(base.name)
            path = _TABLES.sub(r".\1", path)
        self._paths[source] = path
        return path

    def note(self, node: Node) -> None:
        """Write what the module's text names into the meta of a new node."""
        target: Any = node.target
        if self._open:
            node.meta["nn_module_stack"] = dict(self._open)
            innermost = next(reversed(self._open.values()))[1]
            if _is_of_library(innermost) and not innermost.__module__.startswith(_CONTAINERS):
                target = innermost
        if node.op.startswith("call_"):
            node.meta["source_fn_stack"] = [(node.name, target)]
