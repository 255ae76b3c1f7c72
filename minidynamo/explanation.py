"""`explain(fn)(*args)`: what is captured of a call, where it breaks, what it depends on, and which
kernels the default backend would make of it.

It runs the function once in a region of its own, listening to the event stream, so it neither uses
nor changes what is compiled already. Graphs run in eager; of the default backend only the decisions
are made, and no compiler runs.
"""

from __future__ import annotations

import functools
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import _C, events
from .backends.registry import lookup_backend
from .compile_options import CompileOptions
from .convert_frame import make_callback
from .eval_frame import innermost, with_frame

__all__ = ["BreakReason", "ExplainOutput", "explain"]


@dataclass
class BreakReason:
    """Why a graph ended: the text, and the user's frames, outermost first."""

    reason: str
    user_stack: Sequence[traceback.FrameSummary]
    graph_break: bool = True


@dataclass
class ExplainOutput:
    """The answer of `explain`; `str()` of it is the report.

    graphs: the torch.fx.GraphModules in the order of capture. ops_per_graph: the targets of their
    calls. schedules: what the default backend runs of each graph, a `ScheduleEvent` for each piece
    of it. out_guards: one readable line each. compile_times: phase -> seconds of each run of it.
    """

    graphs: list[Any] = field(default_factory=list)
    break_reasons: list[BreakReason] = field(default_factory=list)
    ops_per_graph: list[list[Any]] = field(default_factory=list)
    schedules: list[list[events.ScheduleEvent]] = field(default_factory=list)
    out_guards: list[str] = field(default_factory=list)
    compile_times: dict[str, list[float]] = field(default_factory=dict)

    @property
    def graph_count(self) -> int:
        """How many graphs were captured."""
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        """How many times capture had to stop."""
        return len(self.break_reasons)

    @property
    def op_count(self) -> int:
        """How many calls all the graphs have."""
        return sum(map(len, self.ops_per_graph))

    def __str__(self) -> str:
        lines = [
            f"Graph Count: {self.graph_count}",
            f"Graph Break Count: {self.graph_break_count}",
            f"Op Count: {self.op_count}",
            "Break Reasons:",
        ]
        for number, row in enumerate(self.break_reasons, 1):
            lines += [
                f"  Break Reason {number}:",
                f"    Reason: {row.reason}",
                "    User Stack:",
            ]
            stack = events.format_user_stack(row.user_stack)
            lines += [f"    {line}" for line in stack.splitlines()]
        lines.append("Ops per Graph:")
        for number, ops in enumerate(self.ops_per_graph, 1):
            lines += [f"  Ops {number}:", *(f"    {op_name(op)}" for op in ops)]
        lines.append("Kernels per Graph:")
        for number, schedules in enumerate(self.schedules, 1):
            texts = [events.VIEWS["schedule"][1](event) for event in schedules]
            lines += [f"  Kernels {number}:"]
            lines += [f"    {line}" for text in texts for line in text.splitlines()]
        lines.append("Out Guards:")
        lines += [f"  Guard {number}: {text}" for number, text in enumerate(self.out_guards, 1)]
        lines.append("Compile Times:")
        lines += [
            f"  {phase}: {', '.join(f'{seconds:.4f}' for seconds in runs)} s"
            for phase, runs in self.compile_times.items()
        ]
        return "\n".join(lines) + "\n"

    def record(self, event: events.Event) -> None:
        """Take one event of the stream into account."""
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)


def op_name(target: Any) -> str:
    """How reports name the target of a graph's call: "torch.nn.functional.linear", "sum"."""
    if isinstance(target, str):
        return target
    module, name = getattr(target, "__module__", None), getattr(target, "__name__", None)
    return str(target) if name is None else f"{module}.{name}" if module else name


def _on_graph(output: ExplainOutput, event: events.GraphEvent) -> None:
    output.graphs.append(event.graph)
    output.ops_per_graph.append(list(event.ops))
    output.schedules.append([])


def _on_schedule(output: ExplainOutput, event: events.ScheduleEvent) -> None:
    if output.schedules:  # none yet: the backward pass of what was compiled before
        output.schedules[-1].append(event)


def _on_break(output: ExplainOutput, event: events.GraphBreakEvent) -> None:
    lines = [f"{event.kind}: {event.reason}" if event.reason else event.kind]
    lines += [f"      Hint: {hint}" for hint in event.hints]
    output.break_reasons.append(BreakReason("\n".join(lines), event.user_stack))


def _on_guards(output: ExplainOutput, event: events.GuardEvent) -> None:
    output.out_guards.extend(event.guards)


def _on_timing(output: ExplainOutput, event: events.TimingEvent) -> None:
    output.compile_times.setdefault(event.phase, []).append(event.seconds)


_HANDLERS: dict[type[events.Event], Callable[[ExplainOutput, Any], None]] = {
    events.GraphEvent: _on_graph,
    events.GraphBreakEvent: _on_break,
    events.ScheduleEvent: _on_schedule,
    events.GuardEvent: _on_guards,
    events.TimingEvent: _on_timing,
}


def _backend(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Eager; what the default backend would do is heard in the stream."""
    try:
        lookup_backend("inductor")(gm, example_inputs, options={"schedule_only": True})
    except Exception as error:
        # compile() would raise it; here it is part of the report.
        reason = f"the backend raises {type(error).__name__}: {error}"
        events.emit(events.ScheduleEvent("", uncompiled=reason))
    return gm.forward  # type: ignore[no-any-return]


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run `fn` once and report how it is captured: `explain(fn)(*args)`, or `explain(fn, *args)`.

    Returns an `ExplainOutput`; what `fn` returns is dropped, what it raises is raised. Its side
    effects happen. `fn` may be what `compile()` returned.
    """
    if not callable(fn):
        raise TypeError(f"explain: fn must be callable, not {type(fn).__qualname__} {fn!r}")
    inner = innermost(fn)

    def explained(*args: Any, **kwargs: Any) -> ExplainOutput:
        output = ExplainOutput()
        thread = threading.get_ident()

        def listener(event: events.Event) -> None:
            if threading.get_ident() == thread:
                output.record(event)

        options = CompileOptions(backend=_backend, backend_name="inductor")
        region = _C.Region(make_callback(options))
        with events.subscribe(listener, *_HANDLERS):
            _C.compiled_function(with_frame(inner), region)(*args, **kwargs)
        return output

    if args or kwargs:
        return explained(*args, **kwargs)
    if not isinstance(inner, torch.nn.Module):
        functools.update_wrapper(explained, inner)
    return explained
