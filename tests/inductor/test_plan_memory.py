"""Planned memory: what lies in the arena, what must not, threads, the limit on idle memory."""

import itertools
import sys
import threading

import pytest
import torch
from plan_testing import ADD_ONE, DOUBLE, call, executor, matrix, vector
from torch.profiler import ProfilerActivity, profile

import minidynamo
from minidynamo import _C
from minidynamo.inductor.codegen.plan import (
    AsStrided,
    Extern,
    Free,
    Input,
    PlanBuilder,
    PyCall,
    Ref,
    Reuse,
    Symbol,
)

keeping = pytest.mark.parametrize("keep", [True, False])


def chain(n: int, length: int, **options):
    """`length` kernels one after the other, each into a buffer of its own."""
    b = PlanBuilder()
    slot = b.input(vector("x", n))
    slots = []
    for index in range(length):
        new = b.alloc((n,), (1,), "float32")
        call(b, (DOUBLE, ADD_ONE)[index % 2], slot, new, n)
        if slots:
            b.add(Free((slot,)))
        slot = new
        slots.append(new)
    return executor(b.finish((Ref(slot),)), **options)


@keeping
def test_a_chain_needs_two_buffers(keep):
    run = chain(1000, 9, keep_memory=keep)
    info = run.info
    assert info["planned_slots"] == 8 and info["steps"] == 10
    assert info["arena_bytes"] == 4096 + 4000  # the first rounded up to 256 bytes
    x = torch.randn(1000)
    expected = x
    for index in range(9):
        expected = expected * 2 if index % 2 == 0 else expected + 1
    for _ in range(2):
        assert torch.equal(run(x)[0], expected)


def test_buffers_alive_together_lie_apart():
    b = PlanBuilder()
    x = b.input(vector("x", 5))
    sizes = (5, 5, 5, 5)
    slots = [b.alloc((n,), (1,), "float32") for n in sizes]
    for slot in slots:
        call(b, DOUBLE, x, slot, 5)
    total = b.slot()
    b.add(Extern("aten::stack", "", (tuple(map(Ref, slots)),), {}, (total,)))
    run = executor(b.finish((Ref(total),)))
    assert run.info["planned_slots"] == 4
    x = torch.randn(5)
    assert torch.equal(run(x)[0], (x * 2).expand(4, 5))


@keeping
def test_reuse_and_views_share_the_buffer(keep):
    b = PlanBuilder()
    x = b.input(matrix("x", 4, 4))
    first = b.alloc((4, 4), (4, 1), "float32")
    call(b, DOUBLE, x, first, 16)
    bottom = b.slot()
    b.add(AsStrided(bottom, first, (2, 4), (4, 1), 8))
    product = b.slot()
    b.add(Extern("aten::mm", "", (Ref(bottom), Ref(x)), {}, (product,)))
    again = b.slot()
    b.add(Reuse(again, first, (8,), (1,), "float32"))
    call(b, ADD_ONE, x, again, 8)
    result = b.alloc((8,), (1,), "float32")
    call(b, DOUBLE, again, result, 8)
    run = executor(b.finish((Ref(product), Ref(result))), keep_memory=keep)
    assert run.info["planned_slots"] == 3 and run.info["arena_bytes"] == 64
    x = torch.randn(4, 4)
    for _ in range(2):
        product, result = run(x)
        assert torch.equal(product, (x * 2)[2:] @ x)
        assert torch.equal(result, (x.flatten()[:8] + 1) * 2)


def unplanned(build) -> dict:
    b = PlanBuilder()
    x = b.input(vector("x"))
    y = b.alloc((8,), (1,), "float32")
    call(b, DOUBLE, x, y, 8)
    outputs = build(b, y)
    run = executor(b.finish(outputs), callables={"f": lambda t: t})
    assert torch.equal(run(torch.ones(8))[0], torch.full((8,), 2.0))
    return run.info


def _output(b, y):
    return (Ref(y),)


def _view_output(b, y):
    b.add(AsStrided(b.slot(), y, (8,), (1,)))
    return (Ref(y + 1),)


def _aliasing_operator(b, y):
    b.add(Extern("aten::view", "", (Ref(y), (8,)), {}, (b.slot(),)))
    return (Ref(y + 1),)


def _composite_operator(b, y):
    b.add(Extern("aten::dropout", "", (Ref(y), 0.5, False), {}, (b.slot(),)))
    return (Ref(y + 1),)


def _python_call(b, y):
    b.add(PyCall("f", (Ref(y),), {}, (b.slot(),)))
    return (Ref(y + 1),)


@pytest.mark.parametrize(
    "build", [_output, _view_output, _aliasing_operator, _composite_operator, _python_call]
)
def test_what_can_be_seen_outside_is_not_planned(build):
    assert unplanned(build)["planned_slots"] == 0


def test_empty_buffers():
    b = PlanBuilder()
    x = b.input(vector("x", 0))
    y = b.alloc((0,), (1,), "float32")
    call(b, DOUBLE, x, y, 0)
    z = b.slot()
    b.add(Extern("aten::neg", "", (Ref(y),), {}, (z,)))
    w = b.alloc((0, 3), (3, 1), "float32")
    out = executor(b.finish((Ref(z), Ref(w))))(torch.ones(0))
    assert out[0].shape == (0,) and out[1].shape == (0, 3)


@keeping
def test_inference_mode_and_normal_mode_share_an_executor(keep):
    b = PlanBuilder()
    x = b.input(matrix("x", 4, 4))
    y = b.alloc((4, 4), (4, 1), "float32")
    call(b, DOUBLE, x, y, 16)
    z = b.alloc((4, 4), (4, 1), "float32")
    b.add(Extern("aten::mm", "out", (Ref(y), Ref(x)), {"out": Ref(z)}, (None,)))
    w = b.alloc((4, 4), (4, 1), "float32")
    call(b, DOUBLE, z, w, 16)
    run = executor(b.finish((Ref(w),)), keep_memory=keep)
    assert run.info["planned_slots"] == 2
    x = torch.randn(4, 4)
    expected = (x * 2) @ x * 2
    with torch.inference_mode():
        assert torch.allclose(run(x)[0], expected)
    assert torch.allclose(run(x)[0], expected)
    assert run.info["idle_states"] == 1


def test_idle_memory_has_a_limit():
    before = _C.plan_memory_limit(3_000_000)
    try:
        runs = [chain(100_000, 3) for _ in range(8)]
        x = torch.randn(100_000)
        for _ in range(2):
            for run in runs:
                assert torch.equal(run(x)[0], (x * 2 + 1) * 2)
        assert sum(run.info["idle_states"] for run in runs) == 3
        assert runs[-1].info["idle_states"] == 1 and runs[0].info["idle_states"] == 0
        arenas, _ = _C.plan_memory_kept()
        assert 0 < arenas <= 3_000_000
        runs.clear()
        del run
        assert _C.plan_memory_kept()[0] < arenas
        assert _C.plan_memory_limit(0) == 3_000_000
        assert _C.plan_memory_kept() == (0, 0)
    finally:
        _C.plan_memory_limit(before)
    with pytest.raises((OverflowError, TypeError)):
        _C.plan_memory_limit(-1)


def test_large_outputs_come_from_a_pool():
    before = _C.plan_memory_limit(0)
    _C.plan_memory_limit(100_000_000)
    try:
        n = 1_000_000
        run = chain(n, 1)
        x = torch.ones(n)
        out = run(x)[0]
        address = out.data_ptr()
        view = out[5:]
        del out
        assert _C.plan_memory_kept()[1] == 0  # the view keeps it
        assert run(x)[0].data_ptr() != address
        del view
        first, second = run(x)[0], run(x)[0]
        assert address in (first.data_ptr(), second.data_ptr())
        assert first.data_ptr() != second.data_ptr()
        first.resize_(2 * n)  # leaves the block for the ordinary allocator
        assert torch.equal(first[:n], torch.full((n,), 2.0))
        del first, second
        assert _C.plan_memory_kept()[1] > 8_000_000
        _C.plan_memory_limit(5_000_000)
        assert _C.plan_memory_kept()[1] < 5_000_000
    finally:
        _C.plan_memory_limit(before)


def test_memory_that_is_not_kept_goes_back_to_the_pool():
    before = _C.plan_memory_limit(0)
    _C.plan_memory_limit(before)
    run = chain(1_000_000, 2, keep_memory=False)
    arenas, pool = _C.plan_memory_kept()
    out = run(torch.ones(1_000_000))[0]
    assert out[0] == 3
    assert _C.plan_memory_kept()[0] == arenas and _C.plan_memory_kept()[1] >= pool + 4_000_000


@keeping
def test_many_threads(keep):
    b = PlanBuilder()
    n = 65_536
    x = b.input(vector("x", n))
    y = b.alloc((n,), (1,), "float32")
    call(b, DOUBLE, x, y, n)
    z = b.slot()
    b.add(Extern("aten::neg", "", (Ref(y),), {}, (z,)))
    w = b.alloc((n,), (1,), "float32")
    call(b, ADD_ONE, z, w, n)
    run = executor(b.finish((Ref(w),)), single=True, keep_memory=keep)
    assert run.info["releases_gil"]
    problems = []

    def work(seed):
        torch.manual_seed(seed)
        for _ in range(20):
            x = torch.full((n,), float(seed))
            if not torch.equal(run(x), 1 - x * 2):
                problems.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not problems


def test_small_plans_keep_the_gil():
    assert not chain(8, 2).info["releases_gil"]


def test_symbolic_buffers_are_made_at_each_call():
    b = PlanBuilder()
    x = b.input(Input("x", size=("n",), stride=(1,)))
    b.symbols.append(Symbol("n", x, "size", 0))
    y = b.alloc(("n",), (1,), "float32")
    call(b, DOUBLE, x, y, "n")
    z = b.alloc(("n",), (1,), "float32")
    call(b, ADD_ONE, y, z, "n")
    b.add(Free((y,)))
    run = executor(b.finish((Ref(z),)))
    assert run.info["planned_slots"] == 0
    for n in (1, 1000, 3):
        assert torch.equal(run(torch.ones(n))[0], torch.full((n,), 3.0))


@pytest.mark.parametrize("length, planned", [(3, 2), (6, 0)])
def test_an_arena_holds_no_more_than_large_tensors_do(length, planned):
    b = PlanBuilder()
    x = b.input(vector("x", 100_000))
    slots = [x]
    for _ in range(length - 1):
        slots.append(b.alloc((100_000,), (1,), "float32"))
        call(b, DOUBLE, *slots[-2:], 100_000)
    out = b.alloc((100_000,), (1,), "float32")
    call(b, ADD_ONE, slots[-1], out, 100_000)
    for slot in slots[1:-1]:  # all are alive until here
        call(b, DOUBLE, slot, slots[-1], 100_000)
    run = executor(b.finish((Ref(out),)))
    assert run.info["planned_slots"] == planned
    assert run.info["arena_bytes"] <= 1024 * 1024
    for _ in range(2):
        given = torch.randn(100_000)
        assert torch.equal(run(given)[0], given * 2 ** (length - 1) + 1)


@pytest.mark.parametrize("length", [1, 4])
def test_memory_profiles_see_large_blocks(length):
    run, x = chain(1_000_000, length), torch.ones(1_000_000)
    run(x)
    assert run.info["arena_bytes"] == 0  # these are freed as early as can be
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        out = run(x)[0]
        del out
    events = recorded.profiler.kineto_results.events()
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
    held = list(itertools.accumulate(sizes))
    assert len(sizes) == 2 * length
    assert max(held) == 4_000_000 * min(length, 2) and held[-1] == 0


def test_the_gradient_of_log_sigmoid_keeps_no_memory_of_its_own():
    run = minidynamo.compile(torch.nn.functional.logsigmoid)
    x = torch.randn(500_000, requires_grad=True)
    run(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        out = run(x)
    events = recorded.profiler.kineto_results.events()
    assert sum(event.nbytes() for event in events if event.name() == "[memory]") == 2_000_000
    (ours,) = torch.autograd.grad(out.sum(), x)
    (eagers,) = torch.autograd.grad(torch.nn.functional.logsigmoid(x).sum(), x)
    torch.testing.assert_close(ours, eagers)
