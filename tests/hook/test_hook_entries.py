"""The life of entries and regions: dropped while in use, freed with what they are on."""

import gc
import os
import subprocess
import sys
import weakref

import pytest
from hook_support import _C, Compiler, blocks_grown, marked, replaced


class Big:
    pass


def helper(a):
    return "orig", a


def fresh(source="def fn(a):\n return 'orig', a", name="fn"):
    """A function whose code nobody else holds."""
    scope = {}
    exec(source, scope)
    return scope.pop(name)


def entry_with_data(code, guards=None):
    entry = _C.Entry(guards, code)
    entry.data = Big()
    return entry, weakref.ref(entry.data)


def test_attributes():
    entry = _C.Entry(None, helper.__code__, needs_hook=False)
    assert entry.guards is None and entry.code is helper.__code__ and entry.hits == 0
    assert entry.valid is True and entry.needs_hook is False and entry.inputs_slot is False
    assert entry.data is None
    entry.data = 3
    entry.hits = 7
    assert (entry.data, entry.hits) == (3, 7)
    with pytest.raises(AttributeError):
        entry.code = None


def test_entries_are_freed_with_the_code():
    fn = fresh()
    entry, watch = entry_with_data(marked(fn.__code__))
    compiler = Compiler({fn: entry})
    assert compiler.run(fn, 1) == ("new", 1) and compiler.compiled(fn)(1) == ("new", 1)
    compiler.answers.clear()
    compiler.asked.clear()
    del entry
    assert watch() is not None
    del fn
    gc.collect()
    assert watch() is None


def test_entries_are_freed_with_the_region():
    entry, watch = entry_with_data(marked(helper.__code__))
    compiler = Compiler({helper: entry})
    assert compiler.run(helper, 1) == ("new", 1)
    del entry, compiler
    gc.collect()
    assert watch() is None


def test_reset():
    entry, watch = entry_with_data(marked(helper.__code__))
    compiler = Compiler({helper: entry})
    compiled = compiler.compiled(helper)
    assert compiled(1) == compiled(1) == ("new", 1)
    other = Compiler()
    other.run(helper, 1)
    compiler.answers.clear()
    del entry
    _C.reset()
    assert watch() is None and _C.entries(helper.__code__) == []
    assert compiled(1) == ("orig", 1)
    assert compiler.asked.count(helper.__code__) == 2
    other.run(helper, 1)
    assert other.asked.count(helper.__code__) == 2  # SKIP is forgotten too


def test_invalid_entries_are_dropped_at_the_next_look():
    entry, watch = entry_with_data(marked(helper.__code__))
    compiler = Compiler({helper: entry})
    compiled = compiler.compiled(helper)
    assert compiled(1) == compiled(1) == ("new", 1)
    entry.valid = False
    compiler.answers.clear()
    del entry
    assert watch() is not None
    assert compiled(1) == ("orig", 1)
    assert watch() is None and compiled(1) == ("orig", 1)


def resetting(a):
    _C.reset()
    gc.collect()
    mark = "orig"
    return mark, a


def test_reset_inside_the_running_code():
    compiler = replaced(resetting)
    compiled = compiler.compiled(resetting)
    for _ in range(4):
        assert compiled([1]) == ("new", [1])
        assert compiler.run(resetting, [1]) == ("new", [1])
    assert _C.entries(resetting.__code__) == []


def test_the_code_is_replaced_and_freed_while_it_runs():
    fn = fresh("""
def fn(a):
    hook(fn_holder[0])
    mark = 'orig'
    return mark, a
""")
    holder = [fn]

    def drop(function):
        function.__code__ = (lambda a: ("other", a)).__code__
        gc.collect()

    fn.__globals__.update(hook=drop, fn_holder=holder)
    compiler = replaced(fn)
    assert compiler.run(fn, 1) == ("new", 1)
    assert compiler.run(fn, 1) == ("other", 1)


@pytest.mark.parametrize("result", [True, False])
def test_guards_that_change_the_list(result):
    compiler = Compiler()
    code = marked(helper.__code__)

    def reset_guard(values, func):
        _C.reset()
        return result

    def invalidating(values, func):
        for entry in _C.entries(helper.__code__, compiler.region):
            entry.valid = False
        return result

    def recursing(values, func):
        if values[0] > 0:
            compiler.run(helper, values[0] - 1)
            compiled(values[0] - 1)
        return result

    def adding(values, func):
        if len(_C.entries(helper.__code__, compiler.region)) < 5:
            former = compiler.answers[helper.__code__]
            compiler.answers[helper.__code__] = lambda frame: _C.Entry(
                lambda v, f: v[0] < 0, code
            )
            compiler.run(helper, -5)
            compiler.answers[helper.__code__] = former
        return result

    for guard in (reset_guard, invalidating, recursing, adding):
        compiler.answers[helper.__code__] = lambda frame: _C.Entry(guard, code)
        compiled = compiler.compiled(helper)
        for _ in range(3):
            for value in (compiled(2), compiler.run(helper, 2)):
                assert value in (("orig", 2), ("new", 2))
                if result and guard is not adding:
                    assert value == ("new", 2)
        _C.reset()


def test_the_callback_changes_the_list():
    code = marked(helper.__code__)

    def callback(frame):
        _C.reset()
        compiler.answers[helper.__code__] = lambda frame: _C.Entry(None, code)
        compiler.run(helper, 1)
        compiler.answers[helper.__code__] = callback
        return _C.Entry(None, code)

    compiler = Compiler({helper: callback})
    for _ in range(3):
        assert compiler.run(helper, 2) == ("new", 2)
        _C.reset()


def test_finalizers_run_python_code():
    class Noisy:
        def __del__(self):
            log.append(helper(len(log)))
            _C.reset()

    log = []
    compiler = Compiler()
    for _ in range(5):
        entry = _C.Entry(None, marked(helper.__code__))
        entry.data = Noisy()
        compiler.answers[helper.__code__] = entry
        assert compiler.run(helper, 1) == ("new", 1)
        compiler.answers[helper.__code__] = _C.SKIP
        entry.valid = False
        del entry
        assert compiler.run(helper, 1) == ("orig", 1)
        _C.reset()
    assert len(log) == 5


def test_arguments_are_not_kept():
    def take(a, *args, **kwargs):
        return "orig"

    compiler = replaced(take)
    compiled = compiler.compiled(take)
    big = Big()
    for call in (compiled, lambda *args, **kw: compiler.run(take, *args, **kw)):
        for _ in range(3):
            assert call(big, big, k=big) == "new"
    watch = weakref.ref(big)
    del big
    assert watch() is None
    compiler.answers[take.__code__] = lambda frame: None
    _C.reset()
    big = Big()
    compiler.run(take, big)
    watch = weakref.ref(big)
    del big
    assert watch() is None


def test_fetched_tuples_are_not_kept():
    watches = []

    def guards(values, func):
        big = Big()
        watches.append(weakref.ref(big))
        return (big,)

    compiler = Compiler({helper: lambda frame: _C.Entry(guards, marked(helper.__code__))})
    compiler.run(helper, 1)
    compiler.run(helper, 1)
    compiler.compiled(helper)(1)
    assert len(watches) == 3 and all(watch() is None for watch in watches)


def test_reference_counts_stay():
    none = sys.getrefcount(None)
    big = Big()

    def make(x):
        return lambda a, b=big: ("orig", x, a)

    fn = make(big)
    compiler = replaced(fn)
    compiled = compiler.compiled(fn)
    objects = (fn, fn.__code__, big, compiler.region, compiler, fn.__closure__, fn.__defaults__)
    for call in (lambda: compiled(1), lambda: compiled(a=1), lambda: compiler.run(fn, 1)):
        counts = []
        for rounds in (5, 50):
            for _ in range(rounds):
                call()
            compiler.asked.clear()
            gc.collect()
            counts.append([sys.getrefcount(item) for item in objects])
        assert counts[0] == counts[1]
    assert abs(sys.getrefcount(None) - none) < 50


def test_compiling_again_and_again_leaves_nothing_behind():
    def once():
        fn = fresh()
        compiler = replaced(fn)
        compiled = compiler.compiled(fn)
        assert compiled(1) == compiled(1) == compiler.run(fn, 1) == ("new", 1)

    assert blocks_grown(once, 20, 60) < 60

    def with_reset():
        compiler = replaced(helper)
        compiler.run(helper, 1)
        compiler.compiled(helper)(1)
        _C.reset()

    assert blocks_grown(with_reset, 20, 60) < 60


SCRIPTS = {
    "in a region": "_C.enter_region(region); fast(1)",
    "with entries": "fast(1); kept = fast",
    "daemon thread": """
import threading, time
def spin():
    _C.enter_region(region)
    while True:
        fast(1)
        fn(2)
threading.Thread(target=spin, daemon=True).start()
time.sleep(0.05)
""",
    "in a finalizer": """
class Late:
    def __del__(self):
        fast(1)
        _C.reset()
sys.late = Late()
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_interpreter_exit(name):
    script = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from hook_support import _C, replaced
def fn(a): return "orig", a
compiler = replaced(fn)
region = compiler.region
fast = compiler.compiled(fn)
{SCRIPTS[name]}
print("done")
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "done\n"
