"""torch's AOTAutograd as a building block of backends. Importing it takes a second, so that is done
when the first graph is compiled, not with this module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._C import disabled
from ..events import AotGraphEvent, emit, timed, wants
from ..inductor import lazy_bits
from ..inductor.aot import NOT_COMPILABLE, CannotTrace, floats_stay_numbers, make_aot
from ..inductor.detached import with_own_memory
from ..inductor.grad_modes import enters_inference_mode, in_other_mode, other_mode_part
from ..inductor.overlaps import refusal, with_eager_strides

__all__ = ["aot_autograd"]

log = logging.getLogger("minidynamo")
GraphCompiler = Callable[[Any, Sequence[Any]], Callable[..., Any]]


def aot_autograd(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    fw_compiler: GraphCompiler,
    bw_compiler: GraphCompiler | None = None,
    inference_compiler: GraphCompiler | None = None,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
    partition_fn: Callable[..., Any] | None = None,
    keep_inference_input_mutations: bool = False,
) -> Callable[..., Any]:
    """Compile `gm` by way of functional aten graphs; returns a callable over the inputs of `gm`.

    fw_compiler, bw_compiler, inference_compiler(graph, inputs): make a callable of the forward, the
    backward, and, without gradients, the only graph (default: `fw_compiler`). partition_fn: how a
    graph with gradients is cut in two. Mutation, aliasing and autograd are AOTAutograd's; a graph
    that it cannot take apart runs as it was captured.
    """
    from torch._functorch.partitioners import default_partition

    part = other_mode_part(gm)
    if part is not None:
        with torch.set_grad_enabled(not torch.is_grad_enabled()):
            compiled = aot_autograd(
                part,
                example_inputs,
                fw_compiler=fw_compiler,
                bw_compiler=bw_compiler,
                inference_compiler=inference_compiler,
                decompositions=decompositions,
                partition_fn=partition_fn,
                keep_inference_input_mutations=keep_inference_input_mutations,
            )
        return in_other_mode(compiled)

    compilers = {
        "forward": _boxed(fw_compiler, "forward"),
        "backward": _boxed(bw_compiler or fw_compiler, "backward"),
        "inference": _boxed(inference_compiler or fw_compiler, "inference"),
    }
    gm = lazy_bits.with_resolved_results(with_own_memory(gm))
    graph = with_eager_strides(gm)
    with timed("aot_autograd"), floats_stay_numbers():
        try:
            reason = refusal(gm)
            if reason or enters_inference_mode(gm):
                raise CannotTrace(reason or "a part of it runs in inference mode")
            return make_aot(
                graph,
                example_inputs,
                compilers,
                partition_fn=partition_fn or default_partition,
                decompositions=decompositions,
                keep_inference_input_mutations=keep_inference_input_mutations,
            )
        except (CannotTrace, *NOT_COMPILABLE) as reason:
            log.info("a graph runs as it was captured: %s", reason)
            return gm.forward


def _boxed(compiler: GraphCompiler, kind: str) -> GraphCompiler:
    from torch._functorch.aot_autograd import make_boxed_func

    def compile_graph(graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        if wants(AotGraphEvent):
            emit(AotGraphEvent(graph, kind))
        compiled = compiler(graph, inputs)
        if not hasattr(compiled, "_boxed_call"):
            # Autograd may call it in the middle of a compiled region: not to be compiled again.
            return make_boxed_func(disabled(compiled))
        return compiled

    return compile_graph
