"""Compiled graphs on disk: what a graph compiles to is looked up before it is lowered.

    key = graph_key(gm, kind, threads)      # None: this graph is not kept
    found = load(key)                       # a CompiledPlan, or None
    save(key, compiled)

The key is the text of the aten graph with the geometry of every value in it, the flags, the
machine, and the versions of torch, of the compilers and of this package's own sources. Constants
are part of the graph by their geometry and are given to the executor anew. A symbolic size is
known by its expression and the least values of its symbols. Plans that call Python functions are
not kept.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.fx

from minidynamo import _C, events
from minidynamo.exc import CppCompileError
from minidynamo.inductor import config
from minidynamo.inductor.gradients import WRITES
from minidynamo.inductor.runtime.cache import content_key, plan_cache, store
from minidynamo.inductor.runtime.cpp_toolchain import (
    cpu_flags,
    find_compiler,
    openmp_library,
)
from minidynamo.inductor.sizes import Facts, exact_text, simplified

__all__ = [
    "CompiledPlan",
    "NotKept",
    "Texts",
    "devices",
    "graph_key",
    "load",
    "name_of",
    "save",
    "stamp",
    "versions",
]

_NAMED = (torch.dtype, torch.device, torch.memory_format, torch.layout)


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """What the passes make of one graph.

    Attributes:
        plan: `Plan.to_dict()`.
        library: path of the C++ kernels, None without any.
        constants: names of the graph module's attributes that the plan takes, in order.
        callables: Python functions that the plan calls, by name.
        counts: what compiling added to the counters of `metrics`.
    """

    plan: dict[str, Any]
    library: str | None
    constants: tuple[str, ...]
    callables: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


class NotKept(Exception):
    """The graph holds something whose meaning a text does not give."""


def graph_key(gm: torch.fx.GraphModule, kind: str, threads: int) -> str | None:
    """The name of everything that compiling `gm` depends on, or None."""
    try:
        lines = list(Texts().lines(gm))
    except NotKept:
        return None
    flags = json.dumps(config.to_dict(), sort_keys=True, default=str)
    state = [kind, str(threads), flags, str(torch.get_default_dtype())]
    state.append(f"{torch.backends.mkldnn.enabled} {torch.get_float32_matmul_precision()}")
    state.append(f"{torch.are_deterministic_algorithms_enabled()}")
    given = devices(node.meta.get("val") for node in gm.graph.nodes)
    return content_key(versions(), *given, *state, "\n".join(lines))


def load(key: str) -> CompiledPlan | None:
    """What `save` stored, if all files it needs are still there."""
    found = plan_cache().get(key)
    data = None if found is None else json.loads(found.plan_json)
    if data is not None and any(_kept_file(path) is None for path in _cubins(data["plan"])):
        data = None
    if events.wants(events.CacheEvent):
        events.emit(events.CacheEvent("plan", key, data is not None))
    if found is None or data is None:
        return None
    library = str(found.library) if found.library else None
    return CompiledPlan(data["plan"], library, tuple(data["constants"]), {}, data["counts"])


def save(key: str, compiled: CompiledPlan) -> bool:
    """Keep a plan; False where it cannot be kept."""
    if compiled.callables or any(step["step"] == "pycall" for step in compiled.plan["steps"]):
        return False
    if any(_kept_file(path) is None for path in _cubins(compiled.plan)):
        return False
    data = {
        "plan": compiled.plan,
        "constants": compiled.constants,
        "counts": dict(compiled.counts),
    }
    library = Path(compiled.library) if compiled.library else None
    return plan_cache().put(key, json.dumps(data, separators=(",", ":")), library)


def name_of(executor: Any) -> str | None:
    """The key of the plan that it runs, if that was found or kept and needs nothing besides."""
    return getattr(executor, "key", None)


def _cubins(plan: Mapping[str, Any]) -> Iterator[str]:
    for step in plan["steps"]:
        if "cubin" in step:
            yield step["cubin"]


def _kept_file(path: str) -> Path | None:
    """The file, if it lies in the store and is whole."""
    file = Path(path)
    files = store()
    if file.parent.parent != files.folder:
        return None
    return files.path(file.parent.name, file.name)


# -- the key ---------------------------------------------------------------------------------------


class Texts:
    """Writes down the values of one graph: its nodes by their positions, sizes once for all."""

    def __init__(self) -> None:
        self.number: dict[torch.fx.Node, int] = {}
        self.sizes: dict[Any, str] = {}
        self.facts: Facts | None = None

    def lines(self, gm: torch.fx.GraphModule) -> Iterator[str]:
        """One line a node."""
        for position, node in enumerate(gm.graph.nodes):
            self.number[node] = position
            target = node.target if isinstance(node.target, str) else _target(node.target)
            if node.op == "placeholder" or node.op == "output":
                target = ""
            value = node.meta.get("val")
            if node.op == "get_attr":
                value = operator.attrgetter(str(node.target))(gm)
            args = (self.text(node.args), self.text(node.kwargs))
            kind = "opaque " if node.meta.get("opaque") else f"{node.meta.get(WRITES, '')} "
            yield f"{node.op} {target} {args[0]} {args[1]} {kind}{self.text(value)}"

    def text(self, value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return f"%{self.number[value]}"
        if value is None or type(value) in (bool, int, float, complex, str):
            return repr(value)
        if isinstance(value, _NAMED):
            return str(value)
        if isinstance(value, (tuple, list)):
            return f"({', '.join(map(self.text, value))})"
        if isinstance(value, dict):
            return ", ".join(f"{key}={self.text(item)}" for key, item in value.items())
        if isinstance(value, torch.Tensor):
            return self.geometry(value)
        if isinstance(value, torch.SymInt):
            return self.size(value)
        raise NotKept

    def size(self, value: Any) -> str:
        if type(value) is int:
            return str(value)
        if not isinstance(value, torch.SymInt):
            raise NotKept
        expr = value.node.expr
        if expr not in self.sizes:
            self.facts = self.facts or Facts.noted(value.node.shape_env)
            self.sizes[expr] = _size_text(value, self.facts)
        return self.sizes[expr]

    def geometry(self, tensor: torch.Tensor) -> str:
        """dtype, device, sizes and strides; for constants of a GPU also how they are aligned."""
        if tensor.layout != torch.strided:
            raise NotKept
        numbers = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
        texts = ", ".join(map(self.size, numbers))
        align = ""
        if (
            tensor.device.type not in ("cpu", "meta")
            and type(tensor) is not _fake_tensor_type()
        ):
            align = str(tensor.data_ptr() % 16)
        ndim = len(tensor.shape)
        return f"{tensor.dtype} {tensor.device} {ndim} ({texts}) {align}"


def _target(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if getattr(target, "__module__", "") == "_operator":
        return f"operator.{target.__name__}"
    raise NotKept


def _size_text(value: torch.SymInt, facts: Facts) -> str:
    env = value.node.shape_env
    expr = simplified(value)
    symbols = sorted(expr.free_symbols, key=str)
    ranges = env.var_to_range  # a nested tensor's ragged size has none
    lowest = ", ".join(f"{s}>={ranges[s].lower}" for s in symbols if s in ranges)
    known = facts.text(expr)
    return f"{exact_text(value.node.expr)} = {exact_text(expr)} ({lowest}) {known}"


@cache
def _fake_tensor_type() -> type:
    return torch._subclasses.fake_tensor.FakeTensor


@cache
def versions() -> str:
    """Everything outside of the graph and the flags that the text of a kernel or plan depends on;
    it does not change while the process lives.
    """
    try:
        compiler = find_compiler().identity
    except CppCompileError:
        compiler = ""
    parts = [
        torch.__version__,
        compiler,
        openmp_library() or "",
        stamp(Path(__file__).parents[1]),
    ]
    return "\n".join([*parts, " ".join(sorted(cpu_flags()))])


def stamp(package: Path) -> str:
    """Names, sizes and times of a package's sources, and of the extension."""
    entries = []
    for folder, _, names in os.walk(package):
        for name in sorted(names):
            if name.endswith((".py", ".h")):
                info = os.stat(os.path.join(folder, name))
                entries.append(f"{folder}/{name} {info.st_size} {info.st_mtime_ns}")
    info = os.stat(_C.__file__)
    own = f"{_C.__file__} {info.st_size} {info.st_mtime_ns}"
    return "\n".join([*sorted(entries), own])


def devices(values: Iterable[Any]) -> list[str]:
    """The GPUs on which a graph with these values runs."""
    found = {
        v.device for v in values if isinstance(v, torch.Tensor) and v.device.type == "cuda"
    }
    return [
        f"{device} {torch.cuda.get_device_name(device)} {torch.cuda.get_device_capability(device)}"
        for device in sorted(found, key=str)
    ]
