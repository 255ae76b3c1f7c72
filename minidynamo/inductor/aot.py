"""The way through AOTAutograd, for graphs that are differentiated, mutate, or return views of
inputs.

`compile_aot(gm, inputs, compile_graph, decompositions)` returns a callable over gm's inputs.
AOTAutograd splits the graph into functional pieces (inference; or forward and backward), each of
which `compile_graph` makes a callable of, and wraps them with what replays mutations and aliases
and connects autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from minidynamo import events

CompileGraph = Callable[[torch.fx.GraphModule, str], Callable[..., Any]]


class _Boxed:
    """A compiled graph by AOTAutograd's calling convention: one list of inputs, which the call may
    empty.
    """

    _boxed_call = True

    def __init__(self, compiled: Callable[..., Any]) -> None:
        boxed = getattr(compiled, "boxed", None)
        self._call = boxed if boxed is not None else (lambda inputs: compiled(*inputs))

    def __call__(self, inputs: list[Any]) -> Any:
        return self._call(inputs)


def compile_aot(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    compile_graph: CompileGraph,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """A callable with gm's semantics whose functional graphs are made by `compile_graph`."""
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    def compiler(kind: str) -> Callable[..., Any]:
        def compile_one(
            graph: torch.fx.GraphModule, _inputs: Sequence[Any]
        ) -> Callable[..., Any]:
            if events.wants(events.AotGraphEvent):
                events.emit(events.AotGraphEvent(graph, kind))
            return _Boxed(compile_graph(graph, kind))

        return compile_one

    with events.timed("aot_autograd"):
        return aot_module_simplified(
            gm,
            inputs,
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            partition_fn=min_cut_rematerialization_partition,
            decompositions=dict(decompositions),
        )
