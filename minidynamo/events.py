"""The stream of typed events that every phase writes; logs, `explain()` and reports are its views.

    if events.wants(events.GraphBreakEvent):                 # one dict lookup when nobody listens
        events.emit(events.GraphBreakEvent(...))
    with events.timed("lowering"): ...                       # a TimingEvent, when wanted

    with events.subscribe(callback, events.GraphEvent): ...  # in the emitting thread

`MINIDYNAMO_LOGS=graph_breaks,recompiles` and `set_logs(graph_breaks=True)` print the views named in
`VIEWS` to stderr.
An exception raised by a listener propagates into the compiler, so listeners do not raise.
"""

from __future__ import annotations

import collections
import dis
import io
import logging
import os
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from .exc import format_user_stack
from .utils import known_names, plural

__all__ = [
    "Event",
    "Subscription",
    "active_logs",
    "emit",
    "set_logs",
    "subscribe",
    "timed",
    "wants",
]

UserStack = Sequence[traceback.FrameSummary]


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all; subscribing to it is subscribing to everything."""


@dataclass(frozen=True, slots=True)
class FrameEvent(Event):
    """A frame was offered to the compiler.

    outcome: "start", then one of "compiled", "skipped", "eager" or "failed"; reason says why.
    """

    code: types.CodeType
    outcome: str
    frame_id: str = ""
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class BytecodeEvent(Event):
    """A frame was rewritten from `original` to `modified`."""

    original: types.CodeType
    modified: types.CodeType


@dataclass(frozen=True, slots=True)
class GuardEvent(Event):
    """The guards that one compiled version of `code` stands under, one readable line each."""

    code: types.CodeType
    guards: Sequence[str]


@dataclass(frozen=True, slots=True)
class GraphBreakEvent(Event):
    """Capture ended at `user_stack` (outermost frame first).

    kind: the stable name of the row in the table of graph breaks; reason: one sentence.
    """

    kind: str
    reason: str
    context: str = ""
    hints: Sequence[str] = ()
    user_stack: UserStack = ()


@dataclass(frozen=True, slots=True)
class GraphEvent(Event):
    """A graph was captured.

    graph: the torch.fx.GraphModule handed to the backend; ops: the targets of its calls in order.
    """

    graph: Any
    ops: Sequence[Any]
    name: str = ""
    user_stack: UserStack = ()


@dataclass(frozen=True, slots=True)
class AotGraphEvent(Event):
    """The graph after AOTAutograd. kind: "inference", "forward" or "backward"."""

    graph: Any
    kind: str


@dataclass(frozen=True, slots=True)
class FusionEvent(Event):
    """The scheduler's decision about two nodes: fused or not, and why."""

    first: str
    second: str
    fused: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """What a compiled graph runs at one place. language: "cpp", "triton", or "call" of an operator;
    operators: the aten operators in it; lines: the user's ("model.py:12  y = x * 2"); in_place: how
    many results take the memory of what it is the last to read.
    """

    language: str
    operators: Sequence[str]
    lines: Sequence[str] = ()
    in_place: int = 0


@dataclass(frozen=True, slots=True)
class ScheduleEvent(Event):
    """What a graph runs, in order, and why neighbours stay apart.

    kind: "inference", "forward" or "backward"; refusals: positions of two steps and the reason;
    uncompiled: why the graph has no steps, but runs operator by operator; notes: what else was
    decided.
    """

    kind: str
    steps: Sequence[Step] = ()
    refusals: Sequence[tuple[int, int, str]] = ()
    uncompiled: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class KernelEvent(Event):
    """A kernel was generated. language: "cpp" or "triton"; source: its text."""

    name: str
    language: str
    source: str
    origins: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class OutputCodeEvent(Event):
    """The product of one graph as readable text (a Plan's rendering), and where it is kept."""

    name: str
    text: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class StageEvent(Event):
    """What one stage of compiling a graph made, as text; name: of a file to keep it in."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class AutotuneEvent(Event):
    """A choice was measured: milliseconds of each candidate, and the one taken."""

    name: str
    timings: dict[str, float]
    chosen: str


@dataclass(frozen=True, slots=True)
class RecompileEvent(Event):
    """A code object is compiled again; failures: the guard that failed, per earlier version."""

    code: types.CodeType
    failures: Sequence[str]
    user_stack: UserStack = ()


@dataclass(frozen=True, slots=True)
class CacheEvent(Event):
    """A look into the disk cache. kind: what was looked for; hit: whether it was there."""

    kind: str
    key: str
    hit: bool


@dataclass(frozen=True, slots=True)
class TimingEvent(Event):
    """A phase ended after `seconds`; `start` is in time.perf_counter(), `depth` its nesting."""

    phase: str
    start: float
    seconds: float
    depth: int = 0
    thread: int = field(default_factory=threading.get_ident)


Listener = Callable[[Any], None]
# For each concrete event type the listeners to call; absent means nobody wants it.
_listeners: dict[type[Event], tuple[Listener, ...]] = {}
_subscriptions: list[Subscription] = []
_lock = threading.Lock()
_depth = threading.local()


class Subscription:
    """What `subscribe` returns: a context manager, or `close()` it."""

    def __init__(self, listener: Listener, kinds: tuple[type[Event], ...]) -> None:
        self.listener = listener
        self.kinds = kinds

    def close(self) -> None:
        """Stop listening; closing twice does nothing."""
        with _lock:
            if self in _subscriptions:
                _subscriptions.remove(self)
                _rebuild()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def subscribe(listener: Listener, *kinds: type[Event]) -> Subscription:
    """Call `listener(event)` for each event of `kinds` (default: all), where it is emitted."""
    if not callable(listener):
        raise TypeError(f"subscribe: listener must be callable, not {listener!r}")
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Event)):
            raise TypeError(f"subscribe: kinds must be classes of events, not {kind!r}")
    subscription = Subscription(listener, kinds or (Event,))
    with _lock:
        _subscriptions.append(subscription)
        _rebuild()
    return subscription


def _rebuild() -> None:
    table: dict[type[Event], tuple[Listener, ...]] = {}
    for kind in Event.__subclasses__():
        wanted = tuple(s.listener for s in _subscriptions if issubclass(kind, s.kinds))
        if wanted:
            table[kind] = wanted
    _listeners.clear()
    _listeners.update(table)


def wants(kind: type[Event]) -> bool:
    """Whether anybody listens for events of this type; ask before building a costly one."""
    return kind in _listeners


def emit(event: Event) -> None:
    """Hand `event` to its listeners, in the order in which they subscribed."""
    for listener in _listeners.get(type(event), ()):
        listener(event)


def timed(phase: str) -> AbstractContextManager[None]:
    """Emit a TimingEvent for the block, also when it raises; does nothing when nobody wants it."""
    return _timed(phase) if TimingEvent in _listeners else nullcontext()


@contextmanager
def _timed(phase: str) -> Iterator[None]:
    depth = getattr(_depth, "value", 0)
    _depth.value = depth + 1
    start = time.perf_counter()
    try:
        yield
    finally:
        _depth.value = depth
        emit(TimingEvent(phase, start, time.perf_counter() - start, depth))


def _where(code: types.CodeType) -> str:
    return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"


def _frame_text(event: FrameEvent) -> str:
    reason = f": {event.reason}" if event.reason else ""
    took = f" in {event.seconds * 1e3:.1f} ms" if event.seconds else ""
    return f"{event.frame_id} {_where(event.code)} {event.outcome}{took}{reason}".lstrip()


def _bytecode_text(event: BytecodeEvent) -> str:
    out = io.StringIO()
    for title, code in (("original", event.original), ("modified", event.modified)):
        out.write(f"{title} bytecode of {_where(event.original)}\n")
        dis.dis(code, file=out, depth=0)
    return out.getvalue().rstrip()


def _guard_text(event: GuardEvent) -> str:
    lines = "".join(f"\n  {line}" for line in event.guards)
    return f"{_where(event.code)}: {plural(len(event.guards), 'guard')}{lines}"


def _graph_break_text(event: GraphBreakEvent) -> str:
    lines = [f"graph break: {event.kind}: {event.reason}"]
    lines += [f"  Hint: {hint}" for hint in event.hints]
    lines += [f"  Context: {event.context}"] if event.context else []
    return "\n".join([*lines, format_user_stack(event.user_stack)]).rstrip()


def _graph_text(event: GraphEvent | AotGraphEvent) -> str:
    return event.graph.print_readable(print_output=False)


# The text of a schedule has at most so many rows, operators and lines a row, and pairs of rows
# a reason.
MAX_ROWS, MAX_OPERATORS, MAX_LINES, MAX_PAIRS = 24, 12, 2, 6


def _schedule_text(event: ScheduleEvent) -> str:
    """Equal steps share a numbered row; neighbours that stay apart are pairs of these numbers."""
    if event.uncompiled:
        return f"{event.kind} graph runs operator by operator: {event.uncompiled}".lstrip()
    rows: dict[tuple[str, ...], list[int]] = {}
    for position, step in enumerate(event.steps):
        names = dict.fromkeys(map(_short_operator, step.operators))
        place = ", in place" if step.in_place else ""
        rows.setdefault((step.language, place, *names), []).append(position)
    calls = sum(step.language == "call" for step in event.steps)
    counts = plural(len(event.steps) - calls, "kernel"), plural(calls, "call")
    lines = [f"{event.kind} graph: {counts[0]}, {counts[1]} of operators".lstrip()]
    for number, (key, positions) in enumerate([*rows.items()][:MAX_ROWS], 1):
        what = "call" if key[0] == "call" else f"{key[0]} kernel{key[1]}"
        alike = f" ({len(positions)} alike)" if len(positions) > 1 else ""
        lines.append(f"  {number}. {what}{alike}: {', '.join(_first(key[2:], MAX_OPERATORS))}")
        where = dict.fromkeys(line for at in positions for line in event.steps[at].lines)
        lines += [f"       {line}" for line in _first(where, MAX_LINES)]
    if len(rows) > MAX_ROWS:
        lines.append(f"  and {len(rows) - MAX_ROWS} more")
    row_at = {at: row for row, positions in enumerate(rows.values(), 1) for at in positions}
    lines += [f"  {note}" for note in _first(event.notes, MAX_ROWS)]
    return "\n".join([*lines, *_refusal_lines(event, row_at)])


def _refusal_lines(event: ScheduleEvent, row_at: dict[int, int]) -> Iterator[str]:
    found: dict[str, collections.Counter[str]] = {}
    for first, second, reason in event.refusals:
        pair = f"{row_at[first]} + {row_at[second]}"
        found.setdefault(reason, collections.Counter())[pair] += 1
    for reason, pairs in found.items():
        texts = [f"{pair} ({n} times)" if n > 1 else pair for pair, n in pairs.items()]
        yield f"  not fused, {reason}: {', '.join(_first(texts, MAX_PAIRS))}"


def _short_operator(name: str) -> str:
    """ "aten.mul.Tensor" is "mul"; other operators keep their names."""
    return name.split(".")[1] if name.startswith("aten.") else name


def _first(items: Iterable[str], most: int) -> list[str]:
    given = list(items)
    rest = len(given) - most
    return given if rest <= 0 else [*given[:most], f"and {rest} more"]


def _recompile_text(event: RecompileEvent) -> str:
    lines = "".join(f"\n  - {line}" for line in event.failures)
    return f"recompiling {_where(event.code)}, because{lines}"


def _autotune_text(event: AutotuneEvent) -> str:
    rows = sorted(event.timings.items(), key=lambda row: row[1])
    return f"{event.name}: {event.chosen}" + "".join(
        f"\n  {ms:9.4f} ms  {key}" for key, ms in rows
    )


# Name of the log -> the events it shows and how it prints one.
VIEWS: dict[str, tuple[type[Event], Callable[[Any], str]]] = {
    "frames": (FrameEvent, _frame_text),
    "bytecode": (BytecodeEvent, _bytecode_text),
    "guards": (GuardEvent, _guard_text),
    "graph_breaks": (GraphBreakEvent, _graph_break_text),
    "graph_code": (GraphEvent, _graph_text),
    "aot_graphs": (AotGraphEvent, _graph_text),
    "fusion": (
        FusionEvent,
        lambda e: (
            f"{e.first} + {e.second}: {'fused' if e.fused else 'not fused'} {e.reason}".rstrip()
        ),
    ),
    "schedule": (ScheduleEvent, _schedule_text),
    "kernel_code": (KernelEvent, lambda e: f"{e.language} kernel {e.name}\n{e.source}"),
    "output_code": (OutputCodeEvent, lambda e: f"{e.name} {e.path}\n{e.text}"),
    "autotuning": (AutotuneEvent, _autotune_text),
    "recompiles": (RecompileEvent, _recompile_text),
    "cache": (CacheEvent, lambda e: f"{'hit' if e.hit else 'miss'} {e.kind} {e.key}"),
    "timing": (TimingEvent, lambda e: f"{'  ' * e.depth}{e.phase}: {e.seconds * 1e3:.2f} ms"),
}
# What TORCH_LOGS calls some of them.
_TORCH_LOGS = {
    "graph": "graph_code",
    "post_grad_graphs": "aot_graphs",
    "recompiles_verbose": "recompiles",
}
_active_logs: dict[str, Subscription] = {}
_logger = logging.getLogger("minidynamo.logs")


class _StderrHandler(logging.StreamHandler[Any]):
    """Writes to what sys.stderr is at that moment, so that redirection works."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def set_logs(*names: str, **switches: bool) -> None:
    """Choose what is printed to stderr: `set_logs("graph_breaks")`, `set_logs(guards=True)`.

    The call replaces the former choice: `set_logs()` is silence. "all" is every view. Names may be
    joined by commas, as in MINIDYNAMO_LOGS. Names of TORCH_LOGS for the same are taken too, and its
    "+" for more of a kind has no effect. Raises ValueError for an unknown view.
    """
    named = [_view_of(name) for text in names for name in _split(text)]
    wanted = {*named, *(_view_of(name) for name, on in switches.items() if on)}
    unknown = sorted({*named, *map(_view_of, switches)} - {*VIEWS, "all"}, key=str)
    if unknown:
        raise ValueError(
            f"unknown log {unknown[0]!r}; {known_names(unknown[0], [*VIEWS, 'all'])}"
        )
    for subscription in _active_logs.values():
        subscription.close()
    _active_logs.clear()
    for name in VIEWS if "all" in wanted else sorted(wanted):
        _active_logs[name] = subscribe(_printer(name), VIEWS[name][0])


def _split(text: str) -> list[str]:
    if not isinstance(text, str):
        return [text]
    return [name.strip() for name in text.split(",") if name.strip()]


def _view_of(name: str) -> str:
    plain = name.removeprefix("+") if isinstance(name, str) else name
    return _TORCH_LOGS.get(plain, plain)


def active_logs() -> tuple[str, ...]:
    """Names of the views that are printed now."""
    return tuple(_active_logs)


def _printer(name: str) -> Listener:
    if not _logger.handlers:
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter("[%(view)s] %(message)s"))
        _logger.addHandler(handler)
        _logger.propagate = False
        _logger.setLevel(logging.INFO)
    render = VIEWS[name][1]
    return lambda event: _logger.info("%s", render(event), extra={"view": name})


def _logs_from_environment() -> None:
    text = os.environ.get("MINIDYNAMO_LOGS", "")
    try:
        if _split(text):
            set_logs(text)
    except ValueError as error:
        raise ValueError(f"environment variable MINIDYNAMO_LOGS={text!r}: {error}") from None


_logs_from_environment()
