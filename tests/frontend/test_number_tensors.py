"""Tensors made of sizes stay symbolic, and tensors that hold known numbers are used as numbers."""

from __future__ import annotations

import pytest
import torch
from testing import CountingBackend, assert_same, check

import minidynamo
from minidynamo import events
from minidynamo.inductor import metrics

E = torch.arange(45.0).view(9, 5)


def made(x):
    n = x.size(0)
    return torch.tensor(n) * 2, torch.tensor([n, 2 * n]), torch.as_tensor([[n, 2.5]])


def made_of_a_kind(x):
    n = x.size(0)
    return torch.tensor((n,), device="cpu"), torch.tensor(n, dtype=torch.float64) / 3


def shaped(x):
    return torch.tensor(x.shape), torch.tensor(x.size(), dtype=torch.float64) / 3


def precise(x):
    n = x.size(0)
    return torch.tensor([n * 0.1, 0.1], dtype=torch.float64) - 0.1


def mixed(x):
    return torch.tensor([x.sum(), x.size(0), 1])


def halves(x):
    return E / torch.tensor(x.size(0) / 2).sqrt()


def bounds(x):
    span = torch.tensor(min(x.size(0), 3))
    e = E.clone()
    e[: span + 1] = 0
    return e, E[4 - span : 4 + span, :], E[span * 1 :]


def items(x):
    n = torch.tensor(x.size(0))
    return E * n.item(), E + int(n), n.item() + 1


def clamped(x):
    n = torch.tensor(x.size(0))
    i = torch.arange(9)
    return i.clamp(0, n - 1), torch.clamp(i, 1, max=n), torch.clip(i, min=n), i.clip(n, n + 2)


def constants(x):
    n = torch.tensor(2)
    e = E.clone()
    e[n] = 1
    e[n, 1] = 7
    return e, E[n], E[:, n - 1], E[..., n], E[n - 1 : n + 2], x * n.item()


def written(x):
    n = torch.tensor(x.size(0))
    n.add_(1)
    m = torch.tensor(2)
    m.mul_(2)
    return E[:m], E * n


def masks(x):
    flag = torch.tensor(1, dtype=torch.uint8)
    return x + torch.tensor(x.size(0) > 3), E * flag


PROGRAMS = [
    made,
    made_of_a_kind,
    shaped,
    precise,
    mixed,
    halves,
    bounds,
    items,
    clamped,
    constants,
    written,
    masks,
]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_no_break_and_no_graph_for_each_size(fn):
    backend = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend)
    breaks = []
    with events.subscribe(breaks.append, events.GraphBreakEvent):
        for n in (4, 5, 6, 7, 4):
            x = torch.arange(float(n))
            assert_same(fn(x), compiled(x))
    if fn is not written:
        assert not breaks
    assert len(backend.graphs) <= 2


def test_a_number_that_was_overwritten_is_not_used():
    def fn(x):
        n = torch.tensor(x.size(0))
        n.mul_(0)
        return E[: n + 1]

    compiled = minidynamo.compile(fn, backend="eager")
    for n in (3, 4, 5):
        x = torch.arange(float(n))
        assert_same(fn(x), compiled(x))


@pytest.mark.parametrize("fn", [bounds, constants, clamped])
def test_inductor(fn):
    metrics.reset()
    compiled = minidynamo.compile(fn)
    for n in (4, 5):
        x = torch.arange(float(n))
        assert_same(fn(x), compiled(x))
    assert metrics.uncompiled_graphs == 0


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.tensor([x[:1], 2.0]),
        lambda x: torch.tensor([x[:1, None], x[1:2, None]]),
        lambda x: torch.tensor([[x[0]], [x[:1]]]),
        lambda x: torch.tensor([x, x]),
    ],
)
def test_tensors_in_lists_are_their_one_item(fn):
    check(fn, torch.arange(3.0), graphs=None)


# -- tensors where operators take numbers ----------------------------------------------------------

ASKED = {
    "full_like": lambda x, n: torch.full_like(x, n),
    "full": lambda x, n: torch.full((3,), n, dtype=torch.float64),
    "new_full": lambda x, n: x.new_full((2,), n),
    "alpha": lambda x, n: (torch.add(x, x, alpha=n), torch.sub(x, x * 3, alpha=n)),
    "value": lambda x, n: torch.addcmul(x, x, x, value=n),
    "elu": lambda x, n: torch.nn.functional.elu(x, n),
    "threshold": lambda x, n: torch.threshold(x, n, -n),
    "roll": lambda x, n: x.roll(n.long()),
    "select": lambda x, n: x.select(0, n.long()),
    "written": lambda x, n: x.clone().sub_(x * 3, alpha=n).mul_(2),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ASKED)
def test_tensors_where_numbers_are_asked_for(name, dtype):
    """As in eager the number is read out of the tensor, in the graph: floats under fullgraph."""
    fn, x = ASKED[name], torch.arange(6.0) - 2
    minidynamo.reset()
    backend = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=dtype.is_floating_point)
    for number in (2, 3):
        n = torch.tensor(number, dtype=dtype)
        assert_same(compiled(x, n), fn(x, n))
    assert len(backend.graphs) == 1


def test_sizes_that_are_tensors_are_read_once():
    """What found out that the operator asks for a number leaves nothing in the graph."""

    def fn(x, n):
        return x.new_zeros((x.shape[0], n)) + 1

    x = torch.arange(6.0)
    minidynamo.reset()
    backend = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend)
    for number in (2, 3):
        n = torch.tensor(number)
        assert_same(compiled(x, n), fn(x, n))
    (graph,) = backend.graphs
    called = [str(node.target) for node in graph.graph.nodes if node.op == "call_method"]
    assert called == ["item", "new_zeros"]


# With the number of graphs for the numbers 2, 5, 4 and 2 again.
READ = {
    "branch": (lambda x, n: x + 1 if n.item() > 3 else x - 1, 2),
    "range": (lambda x, n: sum(x * i for i in range(n.item())), 3),
    "list": (lambda x, n: x * [1, 2, 3, 4, 5, 6][n], 3),
    "index": (lambda x, n: x[n] * 2, 1),
    "operator": (lambda x, n: torch.arange(0, 6, n) * 2, 1),
    "pad": (lambda x, n: torch.nn.functional.pad(x, (n, n)), 1),
    "unfold": (lambda x, n: x.unfold(0, n, 1).sum(1), 3),
}


@pytest.mark.parametrize("name", READ)
def test_numbers_of_inputs_are_read_where_the_program_needs_to_know_them(name):
    fn, graphs = READ[name]
    minidynamo.reset()
    backend, x = CountingBackend(), torch.arange(6.0)
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for number in (2, 5, 4, 2):
        n = torch.tensor(number)
        assert_same(compiled(x, n), fn(x, n))
    assert len(backend.graphs) == graphs


def test_floats_of_inputs_are_read():
    def fn(x, n):
        return x + 1 if n.item() > 0 else x - 1

    minidynamo.reset()
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for number in (2.0, 0.0, -0.0, -1.5, float("nan"), float("inf"), 3.0, 0.0):
        n = torch.tensor(number, dtype=torch.float64)
        assert_same(compiled(torch.ones(2), n), fn(torch.ones(2), n))


@pytest.mark.parametrize("whole", [False, True], ids=["itself", "what it is a part of"])
def test_numbers_of_inputs_that_were_written_to_are_not_read(whole):
    def fn(x, n, memory):
        memory += 1
        return x + 1 if n.item() > 3 else x - 1

    memory = torch.tensor([1, 2, 3])
    n = memory[2]
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    with pytest.raises(minidynamo.exc.Unsupported, match="data-dependent"):
        compiled(torch.ones(2), n, memory if whole else n)


def test_a_number_is_what_it_was_where_it_is_read():
    def fn(x, n):
        k = n.item()
        n += 4
        return x[:k] if k > 1 else x

    minidynamo.reset()
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    x, ours, eagers = torch.arange(9.0), torch.tensor(0), torch.tensor(0)
    for _ in range(3):
        assert_same(compiled(x, ours), fn(x, eagers))
        assert_same(ours, eagers)


@pytest.mark.parametrize("name", ["full_like", "alpha", "elu", "roll", "written"])
def test_numbers_that_are_asked_for_are_compiled(name):
    fn, x = ASKED[name], torch.arange(6.0) - 2
    minidynamo.reset()
    compiled = minidynamo.compile(fn, fullgraph=True)
    for number in (2.0, 3.0):
        n = torch.tensor(number)
        torch.testing.assert_close(compiled(x, n), fn(x, n))


def added_in_place(b):
    t = torch.tensor([0.5])
    view = t.view(())
    t.add_(b)
    return view.item()


KNOWN = {
    "difference": lambda b: (torch.tensor(0.5) - b).item(),
    "quotient_of_an_int": lambda b: (torch.tensor(3) * (int(b * 10) / 2)).item(),
    "bool": lambda b: (torch.tensor(1) + (b > 0.2)).item(),
    "kept": lambda b: ((t := torch.tensor(2.0)) * b).item() + t.item(),
    "in_place": added_in_place,
    "in_a_list": lambda b: (torch._foreach_add_(k := [torch.tensor(2.0)], b), k[0].item())[1],
    "list": lambda b: torch._foreach_mul([torch.tensor(2.0), torch.tensor(3.0)], b)[1].item(),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", KNOWN)
def test_known_tensors_and_symbolic_numbers_give_no_known_tensor(name, backend):
    fn = KNOWN[name]
    for dynamic in (True, None):
        minidynamo.reset()
        compiled = minidynamo.compile(fn, backend=backend, dynamic=dynamic)
        for number in (0.1, 0.25, 0.7):
            assert compiled(number) == fn(number)


def added_in_a_list(x):
    known = [torch.tensor(0.0), torch.tensor(1.0)]
    view = known[1].view(1)
    torch._foreach_add_(known, [x[0], x[1]])
    return known[0].item(), view.item()


def copied_in_a_list(x):
    known = [torch.tensor(0.0), torch.tensor(1.0)]
    torch._foreach_copy_(known, [x[0], x[1]])
    return known[0].item() + 1


def counted_in_a_list(x):
    steps = [torch.tensor(0.0), torch.tensor(1.0)]
    torch._foreach_add_(steps, 1)
    return x * steps[0].item()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_known_tensors_that_are_written_to_in_lists(backend):
    for fn in added_in_a_list, copied_in_a_list:
        minidynamo.reset()
        compiled = minidynamo.compile(fn, backend=backend)
        for x in torch.tensor([3.0, 2.0]), torch.tensor([5.0, 4.0]):
            assert compiled(x) == fn(x)


def test_known_tensors_in_lists_stay_known():
    minidynamo.reset()
    compiled = minidynamo.compile(counted_in_a_list, backend="eager", fullgraph=True)
    assert_same(compiled(torch.ones(2)), counted_in_a_list(torch.ones(2)))


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.bool, torch.complex64])
def test_numbers_that_the_dtype_refuses(dtype):
    """Beside symbols and tensors, too, there is no real part instead of the exception."""
    half = torch.tensor(0.5)

    def of_complex(x, n):
        return torch.tensor([[n, 2j]], dtype=dtype), torch.as_tensor([x.sum(), 2j], dtype=dtype)

    def of_size(x, n):
        return torch.tensor([x.size(0), 2j], dtype=dtype)

    def of_tensor(x, n):
        return torch.tensor([half, n], dtype=dtype)

    def of_complex_tensor(x, n):
        return torch.tensor([x.sum() * 1j, n], dtype=dtype)

    for fn in (of_complex, of_size, of_tensor, of_complex_tensor):
        check(fn, torch.ones(3), 4, graphs=None, dynamic=True)
