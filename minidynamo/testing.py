"""Backends and helpers for tests of programs, by the names of `torch._dynamo.testing`.

counter = CompileCounter()
compile(f, backend=counter)(x)
assert counter.frame_count == 1 and counter.op_count == 2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .backends.aot_autograd import aot_autograd
from .backends.registry import lookup_backend
from .events import AotGraphEvent, subscribe
from .markers import graph_break

__all__ = [
    "AotEagerAndRecordGraphs",
    "CompileCounter",
    "CompileCounterWithBackend",
    "EagerAndRecordGraphs",
    "InductorAndRecordGraphs",
    "rand_strided",
    "same",
    "unsupported",
]


class CompileCounter:
    """Runs graphs in eager; counts them (frame_count) and the calls in them (op_count)."""

    def __init__(self) -> None:
        self.clear()

    def __call__(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.frame_count += 1
        self.graphs.append(gm)
        self.op_count += sum("call" in node.op for node in gm.graph.nodes)
        return gm.forward

    def clear(self) -> None:
        """Forget everything counted."""
        self.frame_count = 0
        self.op_count = 0
        self.graphs: list[Any] = []


class CompileCounterWithBackend(CompileCounter):
    """Counts, and compiles with the backend of that name."""

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.backend = backend

    def __call__(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        super().__call__(gm, example_inputs)
        return lookup_backend(self.backend)(gm, example_inputs)


class EagerAndRecordGraphs:
    """Runs graphs in eager and keeps them in `graphs`."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []

    def __call__(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(gm)
        return gm.forward


class AotEagerAndRecordGraphs:
    """Keeps captured graphs in `graphs`, AOTAutograd's in `fw_graphs` and `bw_graphs`."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.fw_graphs: list[Any] = []
        self.bw_graphs: list[Any] = []

    def __call__(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        def keep(graphs: list[Any]) -> Callable[[Any, Sequence[Any]], Any]:
            def compiler(graph: Any, _inputs: Sequence[Any]) -> Any:
                graphs.append(graph)
                return graph.forward

            return compiler

        self.graphs.append(gm)
        return aot_autograd(
            gm,
            example_inputs,
            fw_compiler=keep(self.fw_graphs),
            bw_compiler=keep(self.bw_graphs),
        )


class InductorAndRecordGraphs:
    """Compiles with inductor; keeps captured graphs and those that inductor compiled."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.inductor_graphs: list[Any] = []

    def __call__(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(gm)

        def keep(event: AotGraphEvent) -> None:
            self.inductor_graphs.append(event.graph)

        with subscribe(keep, AotGraphEvent):
            return lookup_backend("inductor")(gm, example_inputs)


def same(a: Any, b: Any, *, tol: float = 1e-4, equal_nan: bool = False) -> bool:
    """Whether two nests of tensors and plain values are alike: types, shapes, dtypes, values."""
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        return torch.allclose(a, b, rtol=tol, atol=tol, equal_nan=equal_nan)
    if isinstance(a, (list, tuple)):
        pairs = zip(a, b, strict=False) if isinstance(b, (list, tuple)) else ()
        alike = type(a) is type(b) and len(a) == len(b)
        return alike and all(same(x, y, tol=tol, equal_nan=equal_nan) for x, y in pairs)
    if isinstance(a, Mapping):
        alike = isinstance(b, Mapping) and a.keys() == b.keys()
        return alike and all(same(a[k], b[k], tol=tol, equal_nan=equal_nan) for k in a)
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (equal_nan and a != a and b != b) or abs(a - b) <= tol
    return bool(type(a) is type(b) and a == b)


def rand_strided(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    extra_size: int = 0,
) -> torch.Tensor:
    """A tensor of random values with these sizes and strides."""
    steps = [(n - 1) * s for n, s in zip(size, stride, strict=True)]
    needed = (1 + sum(steps) if 0 not in size else 0) + extra_size
    kind = torch.float32 if not (dtype.is_floating_point or dtype.is_complex) else dtype
    values = torch.randn(needed, dtype=kind, device=device)
    return torch.as_strided(values.to(dtype), tuple(size), tuple(stride))


def unsupported(a: Any, b: Any) -> Any:
    """Breaks the graph and returns `b`."""
    graph_break()
    return b
