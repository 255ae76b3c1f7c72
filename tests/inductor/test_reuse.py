"""Outputs that take the memory of what their kernel is the last to read."""

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import CLOSE, check

import minidynamo
from minidynamo import events
from minidynamo.inductor.codegen.kernel import Kernel
from minidynamo.inductor.ir import Buffer
from minidynamo.inductor.loop_body import BodyBuilder
from minidynamo.inductor.reuse import with_reuse
from minidynamo.inductor.scheduler import make_kernel
from minidynamo.inductor.symbolic import loop_symbol, symbol_expr

F32, CPU = torch.float32, torch.device("cpu")
X, W, B = torch.randn(24, 16), torch.randn(16, 16) / 4, torch.randn(16)


def in_place(fn, *args, **tolerance):
    """Compile, compare with eager twice, and give the number of results that lie in place."""
    schedules = []
    with events.subscribe(schedules.append, events.ScheduleEvent):
        run = check(fn, *args, **(tolerance or CLOSE))
    again = [arg * 2 for arg in args]
    torch.testing.assert_close(list(run(*again)), _listed(fn(*again)), **CLOSE)
    return sum(step.in_place for schedule in schedules for step in schedule.steps)


def _listed(value):
    return list(value) if isinstance(value, (tuple, list)) else [value]


TAKEN = {
    "after a product": lambda x, w: (x @ w).relu() @ w,
    "as a result": lambda x, w: F.gelu(x @ w),
    "rows that are walked several times": lambda x, w: (x @ w).softmax(-1) @ w,
    "columns that are walked twice": lambda x, w: (x @ w).softmax(0) @ w,
    "one of two operands": lambda x, w: (x @ w) * (x * 3 + 1),
    "chain": lambda x, w: ((x @ w).relu() @ w).tanh() @ w,
    "results of rows": lambda x, w: torch.sort(x, -1)[0].exp(),
    "batches of rows": lambda x, w: F.linear(F.gelu(F.linear(x.view(4, 6, 16), w)), w),
    "another number of dimensions": lambda x, w: (x @ w).view(2, 12, 4, 4).tanh() * 2,
}
KEPT = {
    "an input": lambda x, w: x.relu() @ w,
    "a result of the graph": lambda x, w: (lambda y: (y, y.relu()))(x @ w),
    "a view of a result": lambda x, w: (lambda y: (y[1:], y.relu()))(x @ w),
    "read at other places": lambda x, w: (lambda y: y + y.roll(1, 0))(x @ w),
    "turned batches": lambda x, w: (x @ w).view(4, 6, 16).transpose(0, 1).exp().contiguous(),
    "repeated": lambda x, w: (x @ w)[None].expand(2, 24, 16).exp(),
    "another size": lambda x, w: (x @ w)[:, :8].exp() @ w[:8],
    "another dtype": lambda x, w: torch.sort((x @ w).double())[0],
    "another layout": lambda x, w: (x @ w).t().exp().contiguous() @ x,
    "a position of each row": lambda x, w: (x @ w) / (x @ w)[:, :1],
}


@pytest.mark.parametrize("name", TAKEN)
def test_memory_is_taken_over(name):
    assert in_place(TAKEN[name], X, W) >= 1


@pytest.mark.parametrize("name", KEPT)
def test_memory_that_somebody_needs_stays(name):
    assert in_place(KEPT[name], X, W) == 0


@pytest.mark.parametrize("name", ["chain", "batches"])
def test_symbolic_sizes(name):
    def batches(x, w):
        return F.linear(F.gelu(F.linear(x.view(-1, 5, 16), w)), w)

    fn = TAKEN["chain"] if name == "chain" else batches
    schedules = []
    with events.subscribe(schedules.append, events.ScheduleEvent):
        run = minidynamo.compile(fn, dynamic=True, fullgraph=True)
        for rows in (5, 25, 130):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(run(x, W), fn(x, W), **CLOSE)
    assert sum(step.in_place for schedule in schedules for step in schedule.steps) >= 1


def test_results_of_calls_are_apart():
    fn = minidynamo.compile(TAKEN["as a result"], fullgraph=True)
    first = fn(X, W)
    kept, second = first.clone(), fn(X + 1, W)
    assert torch.equal(first, kept) and first.data_ptr() != second.data_ptr()


def test_an_operator_that_may_return_its_argument():
    def fn(x, w):
        y = x @ w
        z = torch.ops.aten.dropout(y, 0.5, False)
        return z, y.exp() @ w

    torch.testing.assert_close(list(check(fn, X, W, **CLOSE)(X, W)), list(fn(X, W)), **CLOSE)


def test_training():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 16)]
    module = torch.nn.Sequential(*layers, torch.nn.LayerNorm(16), torch.nn.ReLU())
    module(X).sum().backward()
    expected = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    compiled = minidynamo.compile(module, fullgraph=True)
    for _ in range(2):
        module.zero_grad()
        compiled(X).sum().backward()
        torch.testing.assert_close([p.grad for p in module.parameters()], expected, **CLOSE)


def test_explain_says_so():
    with torch.no_grad():
        text = str(minidynamo.explain(lambda x, w: (x @ w).relu() @ w)(X, W))
    assert "cpp kernel, in place: relu" in text


# -- without a compiler ----------------------------------------------------------------------------


def buffer(name, kind="computed", alias=()):
    return Buffer(name, F32, (8,), (1,), CPU, kind, alias)


def double(source, target, buffers, shift=0) -> Kernel:
    x = loop_symbol("x0", 8 - shift)
    b = BodyBuilder([x])
    value = b.load(source, symbol_expr(x) + shift, F32)
    b.store(target, symbol_expr(x), b.op("add", value, value), F32)
    return make_kernel(b.finish(), buffers, ())


def reuses(kernels, buffers, kept=()):
    steps = with_reuse(kernels, buffers, set(kept))
    return [[(new.name, old.name) for new, old in step.reuses] for step in steps]


def test_a_chain_of_kernels():
    buffers = {b.name: b for b in (buffer("x", "input"), *map(buffer, "abc"))}
    chain = [double(*pair, buffers) for pair in ("xa", "ab", "bc")]
    assert reuses(chain, buffers, {"c"}) == [[], [("b", "a")], [("c", "b")]]
    assert reuses(chain, buffers, {"a", "c"}) == [[], [], [("c", "b")]]
    assert reuses(chain[:2] + [double("a", "c", buffers)], buffers) == [[], [], [("c", "a")]]
    taken = with_reuse(chain, buffers, {"c"})[1]
    assert [arg.role for arg in taken.spec.args] == ["inout"]
    assert [b.name for b in taken.buffers] == ["b"]


def test_elements_that_move_stay():
    buffers = {b.name: b for b in (buffer("x", "input"), *map(buffer, "ab"))}
    chain = [double("x", "a", buffers), double("a", "b", buffers, shift=1)]
    assert reuses(chain, buffers) == [[], []]


def test_views_keep_their_memory_alive():
    base = buffer("a")
    buffers = {b.name: b for b in (buffer("x", "input"), base, buffer("b"), buffer("c"))}
    buffers["v"] = buffer("v", "extern", (base,))
    chain = [double(*pair, buffers) for pair in ("xa", "ab", "vc")]
    assert reuses(chain, buffers) == [[], [], []]


def test_results_take_no_memory_with_room_around_it():
    def fn(x):
        x[..., ::2] = 1
        return x + 1

    run = minidynamo.compile(fn, dynamic=True)
    base = torch.zeros(3, 9)
    result = run(base[1:])
    assert torch.equal(result, base[1:] + 1)
    assert result.storage_offset() == 0
    assert result.untyped_storage().nbytes() == result.nbytes


def test_a_rows_result_is_not_written_over_what_its_walk_reads():
    """Results that need no sum come in front of the walk over the rows."""

    def fn(x, z):
        y = z.expand(40, 3, 1).contiguous()
        y[:, 2:3, 0] = (y[:, 0].sum(-1) + x[:, 0])[:, None]
        first = y[:, 0, -1] * 1
        y[:, 1, 0:1] = z[:, -3, 0:1]
        y[:, 0, 0] = x[:, 1].sin()
        return y.sum(1), first

    x, z = torch.arange(160.0).view(40, 4).cos(), torch.arange(120.0).view(40, 3, 1).sin()
    given = z.clone(), z.clone()
    minidynamo.reset()
    found = minidynamo.compile(fn)(x, given[0])
    torch.testing.assert_close(found, fn(x, given[1]))
    torch.testing.assert_close(*given)
