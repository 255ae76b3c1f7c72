"""From an aten graph to a plan and its kernels: the passes after the look into the disk cache.

compiled = compile_plan(graph, kind)        # a CompiledPlan, to run and to keep
lowered, steps = schedule_graph(graph, kind)    # only the decisions
"""

from __future__ import annotations

import dataclasses

import torch
import torch.fx

from minidynamo import events
from minidynamo.inductor import config, metrics, step_text, trace
from minidynamo.inductor.codegen.assemble import PlanAssembler
from minidynamo.inductor.codegen.kernel import Kernel
from minidynamo.inductor.codegen.plan import Plan
from minidynamo.inductor.gradients import WRITES
from minidynamo.inductor.graph import GraphLowering
from minidynamo.inductor.ir import ExternOp
from minidynamo.inductor.kept_results import freed_inputs
from minidynamo.inductor.runtime.cpp_toolchain import compile_library
from minidynamo.inductor.runtime.plan_store import CompiledPlan
from minidynamo.inductor.scheduler import schedule

__all__ = ["Plan", "compile_plan", "load_kernels", "schedule_graph"]


def compile_plan(
    graph: torch.fx.GraphModule,
    kind: str,
) -> CompiledPlan:
    """Compile a graph that the graph passes went over: the rest of the passes, in order."""
    before = metrics.counts()
    lowered, steps = schedule_graph(graph, kind)
    if config.trace_graph_diagram:
        trace.stage(f"{kind}_diagram.dot", step_text.diagram(steps))
    with events.timed("codegen"):
        assembler = PlanAssembler(lowered, torch.get_num_threads())
        plan = _with_versions(assembler.build(steps), graph)
    with events.timed("kernel_compile"):
        library = load_kernels(plan)
    counts = {name: count - before[name] for name, count in metrics.counts().items()}
    return CompiledPlan(
        plan.to_dict(),
        library,
        tuple(str(node.target) for node in graph.graph.find_nodes(op="get_attr")),
        assembler.triton.callables,
        counts,
    )


def _with_versions(
    plan: Plan,
    graph: torch.fx.GraphModule,
) -> Plan:
    """Version counters move as often as the program wrote."""
    given = graph.graph.find_nodes(op="placeholder")
    counts = {i: int(i in plan.mutated_inputs) for i in range(len(given))}
    counts |= {i: node.meta[WRITES] for i, node in enumerate(given) if WRITES in node.meta}
    slots = [slot for slot, count in counts.items() for _ in range(count)]
    return dataclasses.replace(plan, mutated_inputs=tuple(slots))


def schedule_graph(
    graph: torch.fx.GraphModule, kind: str
) -> tuple[GraphLowering, list[Kernel | ExternOp]]:
    """Decide what runs, without generating it."""
    with events.timed("lowering"):
        lowered = GraphLowering(graph, free_layout=kind == "inference").run()
    metrics.increment("ir_nodes_pre_fusion", len(lowered.operations))
    trace.stage(f"{kind}_loops.txt", step_text.steps_text(lowered.operations))
    with events.timed("scheduling"):
        freed = zip(lowered.inputs, freed_inputs(graph), strict=True)
        given = {buffer.name for buffer, is_freed in freed if buffer and is_freed}
        steps = schedule(lowered, kind, given)
    trace.stage(f"{kind}_kernels.txt", step_text.steps_text(steps))
    return lowered, steps


def load_kernels(
    plan: Plan,
) -> str | None:
    """Path of the library with the plan's C++ kernels, None if it has none."""
    sources = {
        kernel.symbol: kernel.source for kernel in plan.kernels if kernel.language == "cpp"
    }
    return str(compile_library(sources, plan.header)) if sources else None
