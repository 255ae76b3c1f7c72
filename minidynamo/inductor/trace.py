"""The folder that `trace.enabled` writes for every compiled graph.

    <trace.debug_dir>/<date>_<process>_<number>/
        fx_graph.py                     what the front end captured
        inference_graph.py              the aten graph after all graph passes (forward_, backward_)
        inference_loops.txt             the operations before fusion
        inference_kernels.txt           the same in order after fusion
        inference_diagram.dot           with trace.graph_diagram: kernels and the memory they share
        schedule.txt                    the kernels with their operators, and what was not fused
        fusion.txt                      each decision, with the reason
        output_code.txt                 the plans and the sources of their kernels
        timing.txt                      milliseconds of each phase

`into(new_folder(gm))` is a context manager around compiling; `stage` hands over the text of one
stage.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch.fx

from minidynamo import events
from minidynamo.inductor import config

_numbers = itertools.count()


def new_folder(gm: torch.fx.GraphModule) -> Path | None:
    """A new folder for the graph, if `trace.enabled`."""
    if not config.trace_enabled:
        return None
    name = f"{time.strftime('%Y_%m_%d_%H_%M_%S')}_{os.getpid()}_{next(_numbers)}"
    path = Path(config.trace_debug_dir) / name
    path.mkdir(parents=True)
    (path / "fx_graph.py").write_text(_readable(gm))
    return path


def into(path: Path | None) -> AbstractContextManager[Any]:
    """Writes what is compiled inside of the block to the folder."""
    if path is None:
        return nullcontext()
    writer = _Writer(path)
    return events.subscribe(writer.listen, *writer.rows)


class _Writer:
    """Appends events of this thread to the files of one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.thread = threading.get_ident()
        self.rows: dict[type[events.Event], Callable[[Any], tuple[str, str]]] = {
            events.StageEvent: lambda e: (e.name, e.text),
            events.ScheduleEvent: lambda e: (
                "schedule.txt",
                events.VIEWS["schedule"][1](e) + "\n",
            ),
            events.FusionEvent: lambda e: ("fusion.txt", events.VIEWS["fusion"][1](e) + "\n"),
            events.OutputCodeEvent: lambda e: ("output_code.txt", e.text + "\n"),
            events.TimingEvent: lambda e: ("timing.txt", events.VIEWS["timing"][1](e) + "\n"),
        }

    def listen(self, event: Any) -> None:
        if threading.get_ident() == self.thread:
            name, text = self.rows[type(event)](event)
            with (self.path / name).open("a") as file:
                file.write(text)


def stage(name: str, text: Callable[[], str]) -> None:
    """Emit what a stage of compiling made; `text` is called only if somebody wants it."""
    if events.wants(events.StageEvent):
        events.emit(events.StageEvent(name, text()))


def graph_text(graph: torch.fx.GraphModule) -> Callable[[], str]:
    """The graph as Python code."""
    return lambda: _readable(graph)


def _readable(gm: torch.fx.GraphModule) -> str:
    return str(gm.print_readable(print_output=False)) + "\n"
