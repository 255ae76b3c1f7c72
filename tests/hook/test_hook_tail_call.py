"""TailCall: generated code that ends in a call of another function."""

import gc
import sys
import threading
import traceback
import weakref

import pytest
from hook_support import _C, Compiler, blocks_grown

tail_call = _C.tail_call


class Big:
    pass


def stack_depth():
    frame = sys._getframe(1)
    count = 0
    while frame is not None:
        count += 1
        frame = frame.f_back
    return count


depths = []


def start(n):
    return "orig"


def start_generated(n):
    return tail_call(step, n, 0)


def step(n, total):
    return "orig"


def step_generated(n, total):
    if n % 1000 == 0:
        depths.append(stack_depth())
    return total if n == 0 else tail_call(step, n - 1, total + 1)


CHAIN = {
    start: lambda frame: _C.Entry(None, start_generated.__code__),
    step: lambda frame: _C.Entry(None, step_generated.__code__),
}


@pytest.mark.parametrize("needs_hook", [True, False])
@pytest.mark.parametrize("direct", [True, False])
def test_a_long_chain(direct, needs_hook):
    table = {
        start: lambda frame: _C.Entry(None, start_generated.__code__, needs_hook=needs_hook),
        step: lambda frame: _C.Entry(None, step_generated.__code__, needs_hook=needs_hook),
    }
    compiler = Compiler(table)
    compiled = compiler.compiled(start)
    for _ in range(2):
        depths.clear()
        result = compiled(100_000) if direct else compiler.run(start, 100_000)
        assert result == 100_000
        assert len(depths) == 101 and len(set(depths)) == 1
    assert len([code for code in compiler.asked if code is step.__code__]) == 1
    assert _C.active_count() == 0 and not _C.is_installed()
    (entry,) = _C.entries(step.__code__, compiler.region)
    assert entry.hits == 2 * 100_001
    assert compiler.run(start, 100) == 100  # with the hook in the frame of run()'s function


def lambda_code(source):
    """Code of a lambda written as text; what it names are globals of this module."""
    return compile(source, "<made>", "eval").co_consts[0]


def finish(a, b=2, *args, k=5):
    return a, b, args, k


def test_a_chain_ends_in_eager():
    for source, expected in [
        ("lambda n: tail_call(finish, n, 3, 4)", (1, 3, (4,), 5)),
        ("lambda n: tail_call(finish, n)", (1, 2, (), 5)),
    ]:
        code = lambda_code(source)
        compiler = Compiler({start: lambda frame: _C.Entry(None, code)})
        for _ in range(3):
            assert compiler.compiled(start)(1) == expected
            assert compiler.run(start, 1) == expected
        assert finish.__code__ in compiler.asked


def test_any_callable():
    for target, args, expected in [("list", "(n,)", [3]), ("dict", "", {}), ("max", "n, 7", 7)]:
        made = lambda_code(f"lambda n: tail_call({target}, {args})")
        compiler = Compiler({start: lambda frame: _C.Entry(None, made)})
        for _ in range(3):
            assert compiler.compiled(start)(3) == expected
            assert compiler.run(start, 3) == expected


def failing(n):
    raise ValueError(n)


def test_tracebacks_show_the_function_that_runs_now():
    compiler = Compiler(
        {
            start: lambda frame: _C.Entry(None, start_to_failing.__code__),
            failing: lambda frame: _C.Entry(None, failing.__code__.replace()),
        }
    )
    for run in (compiler.compiled(start), lambda n: compiler.run(start, n)) * 2:
        with pytest.raises(ValueError) as error:
            run(1)
        names = [frame.name for frame in traceback.extract_tb(error.value.__traceback__)]
        assert names[-1] == "failing" and "start" not in names
        assert "start_to_failing" not in names


def start_to_failing(n):
    return tail_call(failing, n)


def test_wrong_arguments():
    made = lambda_code("lambda n: tail_call(failing, n, n)")
    compiler = Compiler({start: lambda frame: _C.Entry(None, made)})
    for run in (compiler.compiled(start), lambda n: compiler.run(start, n)) * 2:
        with pytest.raises(TypeError, match="takes 1 positional"):
            run(1)
        assert _C.active_count() == 0
    with pytest.raises(TypeError):
        tail_call()
    with pytest.raises(TypeError):
        tail_call(3)


watched = []


def freeing(n):
    return "orig"


def freeing_generated(n):
    big = Big()
    watched.append(weakref.ref(big))
    kept = Big()
    watched.append(weakref.ref(kept))
    return tail_call(freed, kept)


def freed(kept):
    return "orig"


def freed_generated(kept):
    alive = [ref() is not None for ref in watched]
    del kept
    return alive, [ref() is not None for ref in watched]


def test_locals_and_arguments_are_released():
    compiler = Compiler(
        {
            freeing: lambda frame: _C.Entry(None, freeing_generated.__code__),
            freed: lambda frame: _C.Entry(None, freed_generated.__code__),
        }
    )
    for run in (compiler.compiled(freeing), lambda n: compiler.run(freeing, n)) * 3:
        watched.clear()
        # The locals of the frame that ended are gone, and `del` frees the last reference.
        assert run(1) == ([False, True], [False, False])


def test_a_frame_object_keeps_its_locals():
    frames = []

    def keep():
        frames.append(sys._getframe(1))

    globals()["_keep"] = keep
    made = compile(
        "def f(n):\n big = [n]\n _keep()\n return tail_call(step, 0, big)", "<made>", "exec"
    ).co_consts[0]
    compiler = Compiler({start: lambda frame: _C.Entry(None, made), **{step: CHAIN[step]}})
    for run in (compiler.compiled(start), lambda n: compiler.run(start, n)):
        frames.clear()
        assert run(4) == [4]
        assert frames[0].f_locals == {"n": 4, "big": [4]}


def test_recursive_chains_and_nested_regions():
    def fn(n):
        return "orig"

    globals()["_fn"] = fn
    globals()["_cont"] = cont = lambda n, acc: "orig"
    fn_code = lambda_code("lambda n: tail_call(_cont, n, [])")
    cont_source = (
        "lambda n, acc: [*acc, 'end'] if n == 0 else tail_call(_cont, n - 1, acc + _fn(n // 2))"
    )
    cont_code = lambda_code(cont_source)
    compiler = Compiler(
        {
            fn: lambda frame: _C.Entry(None, fn_code),
            cont: lambda frame: _C.Entry(None, cont_code),
        }
    )

    def expected(n):
        acc = []
        for i in range(n, 0, -1):
            acc = acc + expected(i // 2)
        return [*acc, "end"]

    for n in (0, 1, 5, 12):
        assert compiler.compiled(fn)(n) == expected(n)
        assert compiler.run(fn, n) == expected(n)
    globals()["_fn"] = compiler.compiled(fn)
    assert compiler.compiled(fn)(12) == expected(12)
    assert compiler.run(fn, 12) == expected(12)


def test_tracing_starts_in_the_chain():
    def tracer(frame, event, arg):
        return None

    globals()["_tracer"] = tracer
    made = compile(
        "def f(n):\n import sys\n sys.settrace(_tracer)\n return tail_call(step, n, 0)",
        "<made>",
        "exec",
    ).co_consts[0]
    compiler = Compiler({**CHAIN, start: lambda frame: _C.Entry(None, made)})
    compiler.run(step, 3, 0)
    try:
        assert compiler.run(start, 5) == "orig"  # the continuation's original
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)
    try:
        assert compiler.compiled(start)(5) == "orig"
    finally:
        sys.settrace(None)


def test_compiled_continuations_of_every_kind():
    def gen(n):
        yield "orig"

    globals()["_gen"] = gen
    made = lambda_code("lambda n: tail_call(_gen, n)")
    other = compile("def f(n):\n yield n\n yield n + 1", "<made>", "exec").co_consts[0]
    compiler = Compiler(
        {start: lambda frame: _C.Entry(None, made), gen: lambda frame: _C.Entry(None, other)}
    )
    for _ in range(3):
        assert list(compiler.compiled(start)(5)) == [5, 6]
        assert list(compiler.run(start, 5)) == [5, 6]


def test_chains_leave_nothing_behind():
    compiler = Compiler(CHAIN)
    compiled = compiler.compiled(start)
    depths.clear()
    assert blocks_grown(lambda: (compiled(20), depths.clear())) < 20
    assert blocks_grown(lambda: (compiler.run(start, 20), depths.clear())) < 20

    broken = Compiler(
        {
            start: lambda frame: _C.Entry(None, start_to_failing.__code__),
            failing: lambda frame: _C.Entry(None, failing.__code__.replace()),
        }
    )

    def fail():
        with pytest.raises(ValueError):
            broken.compiled(start)(1)

    assert blocks_grown(fail, rounds=50) < 40


def test_chains_in_threads():
    compiler = Compiler(CHAIN)
    compiled = compiler.compiled(start)
    results = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def work():
        results.append(compiled(20_000))
        results.append(compiler.run(start, 20_000))

    threads = [threading.Thread(target=work) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert results == [20_000] * 6


def test_a_tail_call_result_is_collected_like_any_object():
    holder = []
    result = tail_call(print, holder)
    holder.append(result)
    assert gc.is_tracked(result)
    big = Big()
    holder.append(big)
    watch = weakref.ref(big)
    del result, holder, big
    gc.collect()
    assert watch() is None
