"""The inductor backend: the list of its passes, and nothing else.

compiled = compile_fx(gm, example_inputs)       # a callable over gm's inputs

What comes after the look into the disk cache is in `compile_plan.py`, imported when it is needed.
"""

from __future__ import annotations

import importlib
import logging
import operator
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.fx
import torch.utils._pytree
from torch._C import _functorch
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from minidynamo import _C, events
from minidynamo import config as front_end
from minidynamo.compile_lock import compiling
from minidynamo.exc import KernelCompileError, NoCompiler
from minidynamo.fake_results import sized_fake_mode
from minidynamo.inductor import (
    config,
    freezing,
    grad_modes,
    lazy_bits,
    lowering,
    metrics,
    overlaps,
    trace,
)
from minidynamo.inductor.aot import NOT_COMPILABLE, CannotTrace, compile_aot, lie_apart
from minidynamo.inductor.capture import capture_inference
from minidynamo.inductor.captured_numbers import NotCapturable
from minidynamo.inductor.decompositions import decomposition_table, training_decompositions
from minidynamo.inductor.detached import with_own_memory
from minidynamo.inductor.gradients import WRITES, WRITTEN, keeping_versions
from minidynamo.inductor.inner_leaves import without_inner_leaves
from minidynamo.inductor.passes import (
    attention,
    complex_numbers,
    data_checks,
    depthwise_filters,
    devices,
    drawn_rows,
    filled,
    foreach,
    gpu_products,
    image_layouts,
    in_place,
    masked_writes,
    narrow_products,
    pieces,
    product_sums,
    simplify,
    unstack,
    unused_results,
)
from minidynamo.inductor.runtime import cudagraphs, plan_store
from minidynamo.inductor.segments import Segments, needs_segments, split
from minidynamo.inductor.size_floats import make_tensors
from minidynamo.inductor.sizes import has_symbols
from minidynamo.inductor.symbolic import Undecided
from minidynamo.interruptions import pass_on
from minidynamo.transform_levels import close_transforms

assert lowering.pointwise  # the modules of the package fill the table of lowerings

GRAPH_PASSES = [
    foreach.expand_foreach,
    complex_numbers.split_complex,
    narrow_products.widen_products,
    depthwise_filters.lay_out_filters,
    attention.fuse_attention,
    in_place.drop_old_parts,
    filled.join_parts,
    unstack.read_pieces,
    *simplify.PASSES,
    unused_results.drop_vectors,
    product_sums.join_products,
    pieces.move_into_pieces,
    devices.bring_to_gpu,
    gpu_products.align_products,
    gpu_products.add_biases_later,
]
log = logging.getLogger("minidynamo.inductor")


def compile_fx(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph of torch operations for inputs like these (fake or real tensors, ints).

    options: flags of `minidynamo.inductor.config` for this graph. The result takes the inputs
    positionally and returns a tuple of the graph's outputs. What goes wrong in here is a bug, which
    is told, and the graph runs operator by operator; with the flag `raise_internal_errors` it
    raises. Without a compiler for the kernels it raises NoCompiler.
    """
    part = grad_modes.other_mode_part(gm)
    if part is not None:
        with torch.set_grad_enabled(not torch.is_grad_enabled()):
            compiled = compile_fx(part, example_inputs, options=options)
        return grad_modes.in_other_mode(compiled)
    with config.patch(dict(options or {})):
        metrics.increment("compiled_graphs")
        flat, spec = flatten_outputs(gm)
        flat = lazy_bits.with_resolved_results(with_own_memory(without_inner_leaves(flat)))
        try:
            reason = overlaps.refusal(flat)
            if reason:
                raise CannotTrace(reason)
            drawn_rows.draw_for_rows(flat)
            graph = overlaps.with_eager_strides(flat)
            settings = _Settings(config.to_dict(), trace.new_folder(flat))
            with trace.into(settings.folder):
                compiled = _compile_modes(graph, example_inputs, settings)
        except (CannotTrace, *NOT_COMPILABLE) as error:
            # It cannot be described without running it.
            compiled = _run(flat, error)
        except Exception as error:
            compiled = _run_after_bug(flat, error)
        if spec is None:
            return compiled
        return lambda *args: torch.utils._pytree.tree_unflatten(list(compiled(*args)), spec)


@dataclass(frozen=True)
class _Settings:
    """What holds for every piece of one graph: its backward is compiled when it is first called,
    and the flags may be others by then.
    """

    flags: Mapping[str, Any]
    folder: Path | None

    def compile_later(self, graph: torch.fx.GraphModule, kind: str) -> Callable[..., Any]:
        """`compile_graph` under these settings."""
        if kind != "backward":
            return compile_graph(graph, kind)
        with compiling(), config.patch(self.flags), trace.into(self.folder):
            try:
                return compile_graph(graph, kind)
            except NoCompiler as error:  # the forward pass needed none, and its frame has run
                error.warn()
                return _run(graph, error, kind)


def _compile_modes(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], settings: _Settings
) -> Callable[..., Any]:
    if not grad_modes.enters_inference_mode(gm):
        return _compile_flat(gm, inputs, settings)
    part = grad_modes.inference_part(gm)
    if part is None:
        raise CannotTrace("a part of it runs in inference mode")
    with torch.inference_mode():
        compiled = _compile_flat(part, inputs, settings)

    def call(*args: Any) -> Any:
        with torch.inference_mode():
            return compiled(*args)

    return call


def _compile_flat(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], settings: _Settings
) -> Callable[..., Any]:
    data_checks.keep_checks(gm)
    masked_writes.choose(gm)
    mode = _fake_mode(inputs)
    fakes = [_fake(value, mode) for value in inputs]
    is_static = not has_symbols(fakes) and has_symbols(_values(gm))
    if is_static or any(isinstance(value, torch.SymBool) for value in fakes):
        # Numbers that depend on data: torch's own tracing knows how they are named.
        metrics.increment("capture_fallbacks")
        return compile_aot(gm, inputs, settings.compile_later, decomposition_table())
    graph = None
    depth = _functorch.get_dynamic_layer_stack_depth()
    with events.timed("capture"):
        try:
            graph = capture_inference(
                gm, fakes, mode, decomposition_table(), apart=lie_apart(inputs), real=inputs
            )
        except NotCapturable:
            metrics.increment("capture_fallbacks")
            # It may have stopped inside of a transform.
            close_transforms(depth)
    if graph is None:
        table = training_decompositions() if _is_trained(fakes) else decomposition_table()
        return compile_aot(gm, inputs, settings.compile_later, table)
    if events.wants(events.AotGraphEvent):
        events.emit(events.AotGraphEvent(graph, "inference"))
    frozen = None
    if config.freezing and not torch.is_grad_enabled() and not gm.meta.get(WRITTEN):
        with events.timed("freezing"), torch._C._DisableAutocast():
            frozen = freezing.freeze(graph, freezing.frozen_positions(gm, inputs))
    if frozen is not None:
        graph = frozen.graph
    compiled = _below_autocast(compile_graph(graph, "inference"), graph)
    if isinstance(compiled, _C.PlanExecutor):
        compiled.track_views()
    else:
        # Plans move version counters by themselves.
        given = graph.graph.find_nodes(op="placeholder")
        stay = [i for i, node in enumerate(given) if node.meta.get(WRITES) == 0]
        compiled = keeping_versions(compiled, stay) if stay else compiled
    return compiled if frozen is None else freezing.FrozenCall(frozen, compiled)


def _below_autocast(
    compiled: Callable[..., Any], graph: torch.fx.GraphModule
) -> Callable[..., Any]:
    """`compiled`, where it calls operators of a graph that has the casts of autocast in it. Plans
    run below autocast by themselves, and what AOTAutograd has compiled is called there.
    """
    if not torch._C._is_any_autocast_enabled():
        return compiled
    if compiled != graph.forward and not isinstance(compiled, Segments):
        return compiled

    def call(*args: Any) -> Any:
        with torch._C._DisableAutocast():
            return compiled(*args)

    return call


def _is_trained(fakes: Sequence[Any]) -> bool:
    tensors = (value for value in fakes if isinstance(value, torch.Tensor))
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def flatten_outputs(gm: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, Any]:
    """`gm` with a flat tuple as result, and how to rebuild the result from it (None: it is that
    already).
    """
    (output,) = gm.graph.find_nodes(op="output")
    result = output.args[0]
    if isinstance(result, (tuple, list)) and all(
        not isinstance(v, (tuple, list, dict)) for v in result
    ):
        return gm, None
    leaves, spec = torch.utils._pytree.tree_flatten(result)
    graph = torch.fx.Graph()
    copied: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.graph_copy(gm.graph, copied)
    graph.output(tuple(copied[v] if isinstance(v, torch.fx.Node) else v for v in leaves))
    flat = torch.fx.GraphModule(gm, graph)
    flat.meta.update(gm.meta)
    return flat, spec


def compile_graph(graph: torch.fx.GraphModule, kind: str) -> Callable[..., Any]:
    """Compile a functional aten graph, or find on disk what it compiles to; in pieces where numbers
    depend on data. One with symbolic sizes that plans cannot deal with runs node by node, and so
    does one on other devices.

    kind: `inference`, `forward` or `backward`.
    """
    if not _has_known_devices(graph):
        # Arithmetic with zeros that have no memory asks meta tensors for the shape alone.
        graph.graph.eliminate_dead_code()
    if not _has_known_devices(graph):
        return _run(graph, "there are no kernels for its devices", kind)
    if config.fallback_by_default:
        return _run(graph, "that is asked for", kind)
    make_tensors(graph)
    try:
        if needs_segments(graph):
            return split(graph, lambda piece: _compile_or_run(piece, kind))
    except Undecided as reason:
        return _run(graph, reason, kind)
    return _compile_or_run(graph, kind)


def _compile_or_run(graph: torch.fx.GraphModule, kind: str) -> Callable[..., Any]:
    try:
        _refuse_unknown_symbols(graph)
        # The graph names all devices: a default one is not for the compiler's own tensors.
        # Autocast's casts are in it: operators on fake tensors shall not be given others.
        with torch._C.DisableTorchFunction(), torch._C._DisableAutocast():
            return _compile_graph(graph, kind)
    except Undecided as reason:
        return _run(graph, reason, kind)
    except Exception as error:
        return _run_after_bug(graph, error, kind)


def _run_after_bug(
    graph: torch.fx.GraphModule, error: Exception, kind: str = ""
) -> Callable[..., Any]:
    """For arguments that eager refuses too: it says so when it runs."""
    pass_on(error)
    if front_end.raise_internal_errors or isinstance(error, NoCompiler):
        raise error
    trace_wanted = error if front_end.verbose else None
    if isinstance(error, KernelCompileError):  # the words of the C++ compiler, or of Triton
        log.warning("a graph runs operator by operator: %s", error, exc_info=trace_wanted)
    else:
        told = "a bug of minidynamo: its compiler failed on a graph, which runs operator by"
        log.warning("%s operator: %r", told, error, exc_info=trace_wanted)
    return _run(graph, error, kind)


def _refuse_unknown_symbols(graph: torch.fx.GraphModule) -> None:
    """A view at a position that depends on data has an offset that no input of the graph tells:
    only that of an input itself need not be known.
    """
    known: set[Any] = set()
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder":
            known |= free_unbacked_symbols(value)
        if not free_unbacked_symbols(value) <= known:
            raise Undecided(f"{node} has sizes or an offset that no input tells")


def _run(
    graph: torch.fx.GraphModule, reason: Exception | str, kind: str = ""
) -> Callable[..., Any]:
    metrics.increment("uncompiled_graphs")
    log.info("a graph runs operator by operator: %s", reason)
    if events.wants(events.ScheduleEvent):
        events.emit(events.ScheduleEvent(kind, uncompiled=str(reason)))
    return graph.forward


def _has_known_devices(graph: torch.fx.GraphModule) -> bool:
    """Whether all tensors are on CPU or GPUs: there are no kernels for meta tensors, say."""
    values = torch.utils._pytree.tree_leaves([n.meta.get("val") for n in graph.graph.nodes])
    types = {value.device.type for value in values if isinstance(value, torch.Tensor)}
    return types <= {"cpu", "cuda"}


def _compile_graph(graph: torch.fx.GraphModule, kind: str) -> Callable[..., Any]:
    with events.timed("graph_passes"):
        if kind == "inference":
            image_layouts.put_channels_last(graph)
        for graph_pass in GRAPH_PASSES:
            graph_pass(graph)
    trace.stage(f"{kind}_graph.py", trace.graph_text(graph))
    if config.schedule_only:
        _late().schedule_graph(graph, kind)
        return graph.forward
    with events.timed("plan_cache"):
        key = plan_store.graph_key(graph, kind, torch.get_num_threads())
        compiled = None
        if key is not None and not _details_are_wanted():
            compiled = plan_store.load(key)
    if compiled is None:
        compiled = _late().compile_plan(graph, kind)
        if key is not None and not plan_store.save(key, compiled):
            key = None
    else:
        for name, count in compiled.counts.items():
            metrics.increment(name, count)
    if events.wants(events.OutputCodeEvent):
        text = _late().Plan.from_dict(compiled.plan).render()
        events.emit(events.OutputCodeEvent("graph", text, compiled.library or ""))
    constants = tuple(operator.attrgetter(name)(graph) for name in compiled.constants)
    executor = _C.PlanExecutor(
        compiled.plan, compiled.library, constants, dict(compiled.callables)
    )
    executor.runs_no_python = not compiled.callables
    executor.key = None if constants else key
    if config.triton_cudagraphs:
        return cudagraphs.graphed(executor, compiled.plan, constants, kind)
    return executor


def _late() -> Any:
    """The passes that a graph found on disk does not need; importing them takes 60 ms."""
    return importlib.import_module("minidynamo.inductor.compile_plan")


def _details_are_wanted() -> bool:
    """Whether somebody listens to what only compiling tells."""
    kinds = (events.FusionEvent, events.KernelEvent, events.OutputCodeEvent, events.StageEvent)
    return events.wants(events.ScheduleEvent) or any(map(events.wants, kinds))


def _values(gm: torch.fx.GraphModule) -> list[Any]:
    """What the front end knows of the nodes' results."""
    return [node.meta.get("example_value") for node in gm.graph.nodes]


def _fake_mode(inputs: Sequence[Any]) -> FakeTensorMode:
    for value in inputs:
        if isinstance(value, FakeTensor):
            return value.fake_mode
    context = TracingContext.try_get()
    if context is not None and context.fake_mode is not None and has_symbols(inputs):
        return context.fake_mode
    return sized_fake_mode(allow_non_fake_inputs=True)


def _fake(value: Any, mode: FakeTensorMode) -> Any:
    """The fake tensor; one that the mode made before, with its symbolic sizes, is found again."""
    if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
        return mode.from_tensor(value, static_shapes=True)
    return value


class _CallableModule(types.ModuleType):
    """This module: `inductor.compile_fx(gm, inputs)` is its function's name, too."""

    __call__ = staticmethod(compile_fx)


sys.modules[__name__].__class__ = _CallableModule
