"""Regions, exceptions, tracing, threads, recursion and the callback's own behaviour."""

import contextlib
import gc
import signal
import sys
import threading
import traceback
import weakref

import pytest
from hook_support import _C, Compiler, blocks_grown, marked, replaced


def helper(a):
    return "orig", a


def caller(a):
    return helper(a)


def raising(a):
    mark = "orig"
    raise ValueError(mark, a)


def outer(a):
    return raising(a)


def test_regions_are_checked():
    with pytest.raises(TypeError):
        _C.Region(3)
    with pytest.raises(TypeError):
        _C.enter_region(3)
    with pytest.raises(TypeError):
        _C.leave_region("x")
    region = _C.Region(print)
    assert region.callback is print and region.run_only is False
    assert weakref.ref(region)() is region


def test_enter_and_leave():
    first, second = replaced(helper), Compiler()
    assert _C.current_region() is None
    previous = _C.enter_region(first.region)
    assert previous is None and _C.current_region() is first.region and _C.active_count() == 1
    assert helper(1) == ("new", 1)
    inner = _C.enter_region(second.region)
    assert inner is first.region and helper(1) == ("orig", 1)
    nothing = _C.enter_region(None)
    assert _C.active_count() == 0 and not _C.is_installed() and helper(1) == ("orig", 1)
    _C.leave_region(nothing)
    assert _C.current_region() is second.region
    _C.leave_region(inner)
    assert _C.current_region() is first.region and helper(1) == ("new", 1)
    _C.leave_region(previous)
    assert _C.current_region() is None and not _C.is_installed()


def test_the_callback_runs_outside():
    states = []

    def callback(frame):
        states.append((_C.current_region(), _C.active_count(), _C.is_installed()))
        helper(1)
        return _C.SKIP

    compiler = Compiler(default=callback)
    assert compiler.run(caller, 1) == ("orig", 1)
    assert states == [(None, 0, False)] * len(states) and len(states) == 3


def test_nested_compiled_functions_use_their_own_region():
    inner = replaced(helper)
    fast = inner.compiled(helper)

    def middle(a):
        return fast(a), helper(a), _C.current_region()

    compiler = Compiler()
    for _ in range(3):
        assert compiler.compiled(middle)(1) == (("new", 1), ("orig", 1), compiler.region)
    assert helper.__code__ in compiler.asked and helper.__code__ in inner.asked


def test_answers():
    gc.collect()  # entries of regions that the tests before left
    compiler = Compiler({caller: _C.SKIP_RECURSIVE, helper: lambda frame: None})
    compiled = compiler.compiled(caller)
    for _ in range(3):
        assert compiled(1) == ("orig", 1)
    assert compiler.names == ["caller"]
    compiler.run(helper, 1)
    compiler.run(helper, 1)
    assert compiler.asked.count(helper.__code__) == 2
    compiler = Compiler({caller: _C.ONCE})
    for count in (1, 2):
        assert compiler.compiled(caller)(1) == ("orig", 1)
        assert compiler.names == ["caller"] * count
    compiler = Compiler({helper: lambda frame: (_C.Entry(None, marked(frame.code)),)})
    for count in (1, 2):
        assert compiler.compiled(helper)(1) == ("new", 1)
        assert compiler.names == ["helper"] * count and not _C.entries(helper.__code__)
    assert repr(_C.SKIP) == "SKIP" and repr(_C.SKIP_RECURSIVE) == "SKIP_RECURSIVE"
    with pytest.raises(TypeError, match="must return an Entry"):
        Compiler(default=3).compiled(helper)(1)


def test_frame_info():
    def make(x):
        def fn(a, b=2, *args, c=3, **kwargs):
            return lambda: (a, args, x)

        return fn

    fn = make(5)
    seen = []
    compiler = Compiler({fn: seen.append})
    assert compiler.run(fn, [1], 2, 3, z=4)() == ([1], (3,), 5)
    (info,) = seen
    assert info.code is fn.__code__ and info.func is fn and info.globals is globals()
    assert info.f_locals == {"a": [1], "b": 2, "args": (3,), "c": 3, "kwargs": {"z": 4}}
    assert list(info.f_locals) == ["a", "b", "c", "args", "kwargs"]
    assert info.closure == fn.__closure__ and info.builtins is fn.__builtins__
    assert info.region is compiler.region and info.entries == [] and info.failed == 0
    with pytest.raises(TypeError):
        type(info)()


def test_failed_entries_are_counted():
    infos = []

    def callback(frame):
        infos.append((frame.failed, len(frame.entries)))
        value = frame.f_locals["a"]
        return _C.Entry(lambda values, f: values[0] == value, marked(helper.__code__))

    compiler = Compiler({helper: callback})
    compiled = compiler.compiled(helper)
    for i in range(3):
        assert compiled(i) == ("new", i)
    assert infos == [(0, 0), (1, 1), (2, 2)]


def test_run_only():
    compiler = replaced(helper)
    compiler.region.run_only = True
    compiled = compiler.compiled(caller)
    assert compiled(1) == ("orig", 1) and compiler.asked == []
    compiler.region.run_only = False
    assert compiled(1) == ("new", 1)
    compiler.region.run_only = True
    assert compiled(1) == ("new", 1)


def test_skip_code():
    scope = {}
    exec("def low(a): return 'orig', a\ndef high(a): return low(a)", scope)
    low, high = scope["low"], scope["high"]
    compiler = replaced(low)
    _C.skip_code(high.__code__)
    assert compiler.compiled(high)(1) == ("new", 1) and compiler.names == ["low"]
    _C.skip_code(high.__code__, True)
    assert compiler.compiled(high)(1) == ("orig", 1)
    _C.skip_code(low.__code__, recursive=True)
    assert compiler.compiled(low)(1) == ("orig", 1)
    _C.reset()
    assert compiler.compiled(low)(1) == ("orig", 1) and compiler.names == ["low"]
    with pytest.raises(TypeError):
        _C.skip_code(low)


def test_skip_keeps_the_entries():
    compiler = Compiler(
        {
            helper: lambda frame: _C.Entry(
                lambda values, f: values[0] == 1, marked(helper.__code__)
            )
        }
    )
    compiled = compiler.compiled(helper)
    assert compiled(1) == ("new", 1)
    compiler.answers[helper.__code__] = _C.SKIP
    assert compiled(2) == ("orig", 2)
    assert compiled(1) == ("new", 1) and compiled(3) == ("orig", 3)
    assert len(compiler.asked) == 2


# Exceptions -------------------------------------------------------------------------------------


def frames_of(error):
    return [(f.name, f.lineno, f.line) for f in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("direct", [True, False])
def test_exceptions_have_the_same_traceback(direct):
    with pytest.raises(ValueError) as eager:
        outer(1)
    compiler = replaced(raising)
    for _ in range(3):
        with pytest.raises(ValueError) as got:
            if direct:
                compiler.compiled(raising)(1)
            else:
                compiler.compiled(outer)(1)
        expected = frames_of(eager.value)[2 if direct else 1 :]
        assert frames_of(got.value)[1:] == expected
        assert got.value.args == ("new", 1)
        assert not _C.is_installed() and _C.current_region() is None


def test_the_callback_raises():
    class CompileError(Exception):
        pass

    def callback(frame):
        raise CompileError(frame.code.co_name)

    big = [0]
    compiler = Compiler({helper: callback, gen: callback})
    for _ in range(3):
        with pytest.raises(CompileError) as error:
            compiler.compiled(caller)(big)
        assert [name for name, *_ in frames_of(error.value)][1:] == [
            "caller",
            "__call__",
            "callback",
        ]
        with pytest.raises(CompileError):
            compiler.compiled(gen)(big)
    del error
    gc.collect()
    assert sys.getrefcount(big) == 2
    assert _C.active_count() == 0

    def attempt():
        with contextlib.suppress(CompileError):
            compiler.compiled(caller)(1)

    assert blocks_grown(attempt) < 20


def gen(a):
    yield "orig", a


def test_unfit_entries():
    def two(a, b):
        return a

    def free(a):
        return wanted

    wanted = 3

    def star(*a):
        return a

    for other in (two, free, star):
        compiler = Compiler({helper: lambda frame: _C.Entry(None, other.__code__)})
        with pytest.raises(TypeError, match="cannot stand in"):
            compiler.run(helper, 1)
        assert _C.entries(helper.__code__) == []
    entry = _C.Entry(None, marked(helper.__code__))
    first = Compiler({helper: entry})
    assert first.run(helper, 1) == ("new", 1)
    with pytest.raises(TypeError, match="installed already"):
        Compiler({helper: entry}).run(helper, 1)
    with pytest.raises(TypeError, match="guards must be"):
        _C.Entry(3, helper.__code__)
    with pytest.raises(TypeError):
        _C.Entry(None, helper)
    with pytest.raises(ValueError, match="plain local"):
        _C.Entry(None, helper.__code__, inputs_slot=True)


def test_errors_in_guards_are_failures(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: reported.append(info.exc_type))

    def guards(values, func):
        raise KeyError("guard")

    compiler = Compiler({helper: lambda frame: _C.Entry(guards, marked(helper.__code__))})
    compiled = compiler.compiled(helper)
    assert compiled(1) == ("orig", 1)
    assert compiled(1) == ("orig", 1)
    assert len(compiler.asked) == 2 and set(reported) == {KeyError}


def test_guards_that_call_python_are_not_offered():
    def check(values, func):
        return helper(values[0])[0] == "orig"

    compiler = Compiler({caller: lambda frame: _C.Entry(check, caller.__code__)})
    for _ in range(3):
        assert compiler.run(caller, 1) == ("orig", 1)
        assert compiler.compiled(caller)(1) == ("orig", 1)
    assert "check" not in compiler.names


@pytest.fixture
def interrupts():
    """A shell starts what runs in the background with the signal ignored."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def test_keyboard_interrupt(interrupts):
    def interrupted(a):
        signal.raise_signal(signal.SIGINT)
        return "orig", helper(a)

    compiler = replaced(interrupted)
    for _ in range(5):
        for run in (compiler.compiled(interrupted), lambda a: compiler.run(interrupted, a)):
            with pytest.raises(KeyboardInterrupt):
                run(1)
            assert _C.active_count() == 0 and not _C.is_installed()


# Tracing ------------------------------------------------------------------------------------------


def test_settrace_runs_the_original():
    compiler = replaced(helper)
    compiled = compiler.compiled(caller)
    assert compiled(1) == ("new", 1)
    fast = compiler.compiled(helper)
    events = []

    def tracer(frame, event, arg):
        events.append((event, frame.f_code.co_name))
        return tracer

    sys.settrace(tracer)
    try:
        result = compiled(1), fast(2)
    finally:
        sys.settrace(None)
    assert result == (("orig", 1), ("orig", 2))
    assert events == [
        ("call", "caller"),
        ("line", "caller"),
        ("call", "helper"),
        ("line", "helper"),
        ("return", "helper"),
        ("return", "caller"),
        ("call", "helper"),
        ("line", "helper"),
        ("return", "helper"),
        *events[9:],
    ]
    assert compiled(1) == ("new", 1) and fast(1) == ("new", 1)


def test_trace_functions_are_not_offered():
    compiler = Compiler()

    def tracer(frame, event, arg):
        helper(1)

    def body():
        sys.settrace(tracer)
        try:
            return caller(1)
        finally:
            sys.settrace(None)

    assert compiler.run(body) == ("orig", 1)
    assert "tracer" not in compiler.names


def test_setprofile_keeps_running_compiled_code():
    compiler = replaced(helper)
    compiled = compiler.compiled(caller)
    compiled(1)
    events = []

    def profiler(frame, event, arg):
        if event in ("call", "return"):
            events.append((event, frame.f_code.co_name))
            raising.__name__

    sys.setprofile(profiler)
    try:
        result = compiled(1)
    finally:
        sys.setprofile(None)
    assert result == ("new", 1)
    assert events[:4] == [
        ("call", "caller"),
        ("call", "helper"),
        ("return", "helper"),
        ("return", "caller"),
    ]
    assert "profiler" not in compiler.names


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="sys.monitoring came with 3.12")
def test_monitoring():
    monitoring = sys.monitoring
    compiler = replaced(helper)
    compiled = compiler.compiled(caller)
    compiled(1)
    started = []
    monitoring.use_tool_id(3, "test")
    try:
        monitoring.register_callback(
            3, monitoring.events.PY_START, lambda code, offset: started.append(code.co_name)
        )
        monitoring.set_events(3, monitoring.events.PY_START)
        results = [compiled(1), compiler.compiled(helper)(2)]
        monitoring.set_events(3, 0)
    finally:
        monitoring.free_tool_id(3)
    assert results == [("new", 1), ("new", 2)]
    assert [name for name in started if name in ("caller", "helper")] == [
        "caller",
        "helper",
        "helper",
    ]


# Threads ------------------------------------------------------------------------------------------


def test_other_threads_are_not_offered():
    compiler = replaced(helper)
    inside, leave = threading.Event(), threading.Event()
    results = []

    def body():
        inside.set()
        leave.wait(10)
        return helper(1)

    def other():
        inside.wait(10)
        assert _C.is_installed() and _C.current_region() is None
        results.append(helper(2))
        leave.set()

    thread = threading.Thread(target=other)
    thread.start()
    assert compiler.run(body) == ("new", 1)
    thread.join()
    assert results == [("orig", 2)]


def test_threads_with_regions_of_their_own():
    barrier = threading.Barrier(4)
    failures = []

    def work(index):
        def mine(a):
            return "orig", a, index

        compiler = replaced(mine)
        compiled = compiler.compiled(mine)
        barrier.wait()
        for i in range(2000):
            value = compiler.run(mine, i) if i % 7 == 0 else compiled(i)
            if value != ("new", i, index):
                failures.append(value)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == [] and _C.active_count() == 0 and not _C.is_installed()


def test_one_compiled_function_in_many_threads():
    compiler = replaced(caller)
    compiled = compiler.compiled(caller)
    results = []

    def work():
        for i in range(1000):
            results.append(compiled(i) == ("orig", i))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 3000


# Recursion ------------------------------------------------------------------------------------


def depth(n):
    return "orig" if n == 0 else depth(n - 1)


@contextlib.contextmanager
def recursion_limit(limit):
    former = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        yield
    finally:
        sys.setrecursionlimit(former)


@pytest.mark.parametrize("compile_it", [True, False])
def test_deep_recursion(compile_it):
    compiler = replaced(depth) if compile_it else Compiler()
    with recursion_limit(9000):
        assert compiler.run(depth, 8000) == ("new" if compile_it else "orig")


def test_recursion_past_the_c_stack():
    compiler = replaced(depth)
    compiler.run(depth, 3)
    with recursion_limit(250_000):
        result = compiler.run(depth, 200_000)
    assert result in ("new", "orig")
    assert _C.active_count() == 0


def test_endless_recursion_raises():
    def endless(n):
        return endless(n + 1)

    compiled_endless = None

    def through_callable(n):
        return compiled_endless(n + 1)

    compiler = Compiler({endless: lambda frame: _C.Entry(None, endless.__code__)})
    for _ in range(3):
        with pytest.raises(RecursionError):
            compiler.run(endless, 0)
    compiler = Compiler(
        {through_callable: lambda frame: _C.Entry(None, through_callable.__code__)}
    )
    compiled_endless = compiler.compiled(through_callable)
    for _ in range(3):
        with pytest.raises(RecursionError):
            compiled_endless(0)
    with recursion_limit(1_000_000), pytest.raises(RecursionError):
        compiled_endless(0)
    assert _C.active_count() == 0 and not _C.is_installed()


def test_small_thread_stacks():
    compiler = replaced(depth)
    compiler.run(depth, 3)
    results = []

    def work():
        results.append(compiler.run(depth, 20_000))

    former = threading.stack_size(512 * 1024)
    try:
        with recursion_limit(30_000):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    finally:
        threading.stack_size(former)
    assert results in (["new"], ["orig"])


def test_frames_too_large_for_the_chunk():
    compiler = replaced(depth, stack=900)
    compiler.run(depth, 3)
    assert compiler.run(depth, 300) == "new"
    assert blocks_grown(lambda: compiler.run(depth, 100), 3, 20) < 20
