"""The event stream and its logs."""

import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest

from minidynamo import events, set_logs

ROOT = Path(__file__).resolve().parent.parent
CODE = (lambda: None).__code__


@pytest.fixture(autouse=True)
def silent():
    yield
    set_logs()


def test_nobody_listening():
    assert not events.wants(events.TimingEvent)
    events.emit(events.TimingEvent("phase", 0.0, 1.0))
    with events.timed("phase"):
        pass


def test_listeners_get_the_kinds_they_asked_for():
    heard = []
    with events.subscribe(heard.append, events.CacheEvent, events.TimingEvent) as subscription:
        assert events.wants(events.CacheEvent) and not events.wants(events.GuardEvent)
        events.emit(events.CacheEvent("kernel", "abc", True))
        events.emit(events.GuardEvent(CODE, ["x is y"]))
    events.emit(events.CacheEvent("kernel", "abc", True))
    assert heard == [events.CacheEvent("kernel", "abc", True)]
    subscription.close()


def test_listening_to_everything():
    heard = []
    with events.subscribe(heard.append):
        events.emit(events.GuardEvent(CODE, []))
        events.emit(events.CacheEvent("kernel", "abc", False))
    assert [type(event).__name__ for event in heard] == ["GuardEvent", "CacheEvent"]


def test_timed_phases_nest_and_survive_exceptions():
    heard = []
    with events.subscribe(heard.append, events.TimingEvent):
        with pytest.raises(KeyError), events.timed("outer"), events.timed("inner"):
            raise KeyError
        with events.timed("after"):
            pass
    assert [(event.phase, event.depth) for event in heard] == [
        ("inner", 1),
        ("outer", 0),
        ("after", 0),
    ]
    assert all(event.seconds >= 0 and event.thread == threading.get_ident() for event in heard)


def some_stack():
    return traceback.extract_stack(limit=1)


def test_logs_print_their_views(capsys):
    set_logs("recompiles", graph_breaks=True, guards=False)
    assert events.active_logs() == ("graph_breaks", "recompiles")
    stack = some_stack()
    events.emit(
        events.GraphBreakEvent("call of print", "it prints", hints=["do not"], user_stack=stack)
    )
    events.emit(events.RecompileEvent(CODE, ["len(x) was 3, is 4"]))
    events.emit(events.GuardEvent(CODE, ["x is y"]))
    text = capsys.readouterr().err
    assert "[graph_breaks] graph break: call of print: it prints\n  Hint: do not" in text
    assert "in some_stack" in text and "len(x) was 3, is 4" in text
    assert "x is y" not in text
    set_logs("guards, +graph_breaks", "bytecode,")
    assert events.active_logs() == ("bytecode", "graph_breaks", "guards")
    set_logs()
    events.emit(events.RecompileEvent(CODE, ["again"]))
    assert capsys.readouterr().err == ""


EXAMPLES = [
    events.FrameEvent(CODE, "compiled", "0", "", 0.5),
    events.BytecodeEvent(CODE, CODE),
    events.GuardEvent(CODE, ["x is y"]),
    events.FusionEvent("a", "b", False, "sizes differ"),
    events.ScheduleEvent("inference", [events.Step("cpp", ["aten.sin.default"])]),
    events.KernelEvent("k0", "cpp", "void k0();"),
    events.OutputCodeEvent("g0", "alloc ...", "/tmp/g0"),
    events.AutotuneEvent("mm", {"a": 1.0, "b": 0.5}, "b"),
    events.CacheEvent("kernel", "abc", True),
    events.TimingEvent("phase", 0.0, 1.0),
]


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_every_view_can_be_printed(event, capsys):
    set_logs("all")
    events.emit(event)
    assert len(capsys.readouterr().err) > 10


def test_the_text_of_a_schedule_shows_equal_steps_once():
    kernel = events.Step("cpp", ["aten.mul.Tensor", "aten.mul.Scalar"], ["a.py:1  x * y * 2"])
    call = events.Step("call", ["aten.mm.default"], ["a.py:2  x @ y"])
    refusals = [(0, 1, "too long"), (1, 2, "too long"), (2, 3, "too long"), (0, 2, "why")]
    event = events.ScheduleEvent("forward", [kernel, call, kernel, call], refusals)
    assert events.VIEWS["schedule"][1](event).splitlines() == [
        "forward graph: 2 kernels, 2 calls of operators",
        "  1. cpp kernel (2 alike): mul",
        "       a.py:1  x * y * 2",
        "  2. call (2 alike): mm",
        "       a.py:2  x @ y",
        "  not fused, too long: 1 + 2 (2 times), 2 + 1",
        "  not fused, why: 1 + 1",
    ]


def test_the_text_of_a_schedule_is_bounded():
    lines = [f"a.py:{number}  x" for number in range(9)]
    steps = [
        events.Step("cpp", [f"aten.op{at}_{n}.default" for n in range(40)], lines)
        for at in range(500)
    ]
    refusals = [(at, at + 1, "why") for at in range(499)]
    text = events.VIEWS["schedule"][1](events.ScheduleEvent("forward", steps, refusals))
    assert len(text.splitlines()) < 110 and len(text) < 12000
    assert "op3_11, and 28 more" in text and "  and 476 more" in text
    assert "and 7 more" in text and "6 + 7, and 493 more" in text


def test_unknown_logs_are_refused():
    with pytest.raises(ValueError, match="did you mean 'graph_breaks'"):
        set_logs("graph_brakes")
    with pytest.raises(ValueError, match="unknown log 'gards'"):
        set_logs(gards=True)


def test_logs_from_the_environment():
    program = "from minidynamo import events; print(events.active_logs())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "MINIDYNAMO_LOGS": "graph_breaks, recompiles"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "('graph_breaks', 'recompiles')", done.stderr
