"""torch's AOTAutograd as a building block of backends. Importing it takes a second, so that is done
when the first graph is compiled, not with this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._C import disabled
from ..events import AotGraphEvent, emit, timed, wants
from ..inductor.aot import floats_stay_numbers

__all__ = ["aot_autograd"]

GraphCompiler = Callable[[Any, Sequence[Any]], Callable[..., Any]]


def aot_autograd(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    fw_compiler: GraphCompiler,
    bw_compiler: GraphCompiler | None = None,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
) -> Callable[..., Any]:
    """Compile `gm` by way of functional aten graphs; returns a callable over the inputs of `gm`.

    fw_compiler, bw_compiler(graph, inputs): make a callable of the inference or forward graph and
    of the backward graph (default: the same compiler). Mutation, aliasing and autograd are
    AOTAutograd's.
    """
    from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func

    def boxed(compiler: GraphCompiler, kind: str) -> GraphCompiler:
        def compile_graph(graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
            if wants(AotGraphEvent):
                emit(AotGraphEvent(graph, kind))
            compiled = compiler(graph, inputs)
            if not hasattr(compiled, "_boxed_call"):
                # Autograd may call it in the middle of a compiled region: not to be compiled again.
                return make_boxed_func(disabled(compiled))
            return compiled

        return compile_graph

    with timed("aot_autograd"), floats_stay_numbers():
        return aot_module_simplified(
            gm,
            example_inputs,
            fw_compiler=boxed(fw_compiler, "forward"),
            bw_compiler=boxed(bw_compiler or fw_compiler, "backward"),
            inference_compiler=boxed(fw_compiler, "inference"),
            decompositions=decompositions,
        )
