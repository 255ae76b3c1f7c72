"""Forward and backward plans joined by a node of autograd in C++: as in eager, and as before."""

import gc
import logging
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import minidynamo
from minidynamo import _C
from minidynamo.inductor import differentiable, stored_steps

WRONG_VERSION = "modified by an inplace operation"


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """The graphs that were joined, in order."""
    graphs = []
    attach = differentiable.Joined.attach

    def noting(self, wrapped):
        graphs.append(attach(self, wrapped))
        return graphs[-1]

    stored = stored_steps._Stored.graph

    def noting_stored(self):
        graphs.append(stored(self))
        return graphs[-1]

    monkeypatch.setattr(differentiable.Joined, "attach", noting)
    monkeypatch.setattr(stored_steps._Stored, "graph", noting_stored)
    return graphs


def is_joined(graphs):
    return bool(graphs) and all(
        isinstance(g, _C.DifferentiableGraph) and g.is_armed for g in graphs
    )


def leaf(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).requires_grad_()


def pair(fn, **options):
    return fn, minidynamo.compile(fn, fullgraph=True, **options)


def chain(x, w):
    return (torch.sin(x) * w + x).relu()


def several(x, w):
    y = x.exp() @ w
    return y, y.sum(), x.shape[0], (x > 0), (x * w).detach()


def transposed(x, w):
    return (x * w).t(), torch.cat([x, w]).sin()


def flattened(x, w):
    return (x * w).exp().view(-1), x.sigmoid()


def apart(x, w):
    return x.cos(), w.sin()


def saved_outputs(x, w):
    return x.exp(), (x * w).tanh(), (x + w).sigmoid()


def of_a_view(x, w):
    return x.t() @ w.sin()


def positions_too(x, w):
    y = x * w
    return y.max(-1).values, y.argmax(-1)


def linear(x, w):
    return torch.nn.functional.linear(x.view(1, *x.shape), w)


PROGRAMS = [positions_too, linear, chain, several, transposed, flattened, apart]
PROGRAMS += [saved_outputs, of_a_view]


def tensors_of(results):
    results = results if isinstance(results, tuple) else (results,)
    return [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_values_and_gradients(program, dynamic, made):
    found = []
    for call in pair(program, dynamic=dynamic):
        for n in (4, 4, 4) if not dynamic else (4, 6, 5):
            x, w = leaf(n, n), leaf(n, n, seed=1)
            results = call(x, w)
            used = tensors_of(results)
            sum((i + 1) * (r * r).sum() for i, r in enumerate(used)).backward(retain_graph=True)
            sum(r.sum() for r in used).backward()
            kinds = [
                (r.requires_grad, r.is_leaf, r._version) if isinstance(r, torch.Tensor) else r
                for r in (results if isinstance(results, tuple) else (results,))
            ]
            found.append((results, x.grad, w.grad, kinds))
    for (expected, gx, gw, kinds), (results, hx, hw, others) in zip(
        found[:3], found[3:], strict=True
    ):
        torch.testing.assert_close(results, expected)
        torch.testing.assert_close((hx, hw), (gx, gw))
        assert others == kinds
    assert is_joined(made)


@pytest.mark.parametrize("chosen", [0, 1])
def test_gradients_of_unused_outputs_are_none(chosen, made):
    found = []
    for call in pair(apart):
        for _ in range(2):
            x, w = leaf(4, 4), leaf(4, 4, seed=1)
            call(x, w)[chosen].sum().backward()
            found.append((x.grad, w.grad))
    for gradients in found:
        assert [g is None for g in gradients] == [chosen == 1, chosen == 0]
    torch.testing.assert_close(found[3], found[0])
    assert is_joined(made)


@pytest.mark.parametrize("program", [chain, transposed, flattened])
def test_tangents_of_any_layout(program, made):
    def tangents(values):
        for value in values:
            spread = torch.randn(value.numel() * 2).view(*value.shape, 2)[..., 0]
            swapped = torch.randn(value.t().shape).t() if value.dim() == 2 else spread
            yield spread, swapped, torch.ones(()).expand(value.shape), torch.ones_like(value)

    _, call = pair(program)
    for _ in range(2):
        x, w = leaf(4, 4), leaf(4, 4, seed=1)
        expected, results = tensors_of(program(x, w)), tensors_of(call(x, w))
        for given in zip(*tangents(expected), strict=True):
            wanted = torch.autograd.grad(expected, (x, w), given, retain_graph=True)
            found = torch.autograd.grad(results, (x, w), given, retain_graph=True)
            torch.testing.assert_close(found, wanted)
    assert is_joined(made)


def test_images_in_channels_last(made):
    def program(x, weight):
        return torch.nn.functional.conv2d(x, weight).relu() * 2

    call = minidynamo.compile(program, fullgraph=True)
    for form in (torch.contiguous_format, torch.channels_last, torch.contiguous_format):
        x = leaf(2, 3, 8, 8).detach().contiguous(memory_format=form).requires_grad_()
        weight = leaf(4, 3, 3, 3, seed=1)
        expected, result = program(x, weight), call(x, weight)
        assert result.stride() == expected.stride()
        given = torch.randn(expected.shape)
        wanted = torch.autograd.grad(expected, (x, weight), given)
        torch.testing.assert_close(torch.autograd.grad(result, (x, weight), given), wanted)
    assert is_joined(made)


@pytest.mark.parametrize(
    ("program", "write"),
    [
        (chain, lambda x, w, r: x.mul_(2)),
        (chain, lambda x, w, r: w.add_(1)),
        (of_a_view, lambda x, w, r: x.mul_(2)),
        (of_a_view, lambda x, w, r: x[0].zero_()),
        (saved_outputs, lambda x, w, r: r[0].mul_(2)),
        (flattened, lambda x, w, r: r[0].mul_(2)),
        (flattened, lambda x, w, r: r[1][0].mul_(2)),
    ],
)
def test_writes_to_what_is_saved(program, write, made):
    call = minidynamo.compile(program, fullgraph=True)
    for each in (program, call, call):
        x, w = leaf(4, 4), leaf(4, 4, seed=1)
        results = each(x, w)
        with torch.no_grad():
            write(x, w, results)
        with pytest.raises(RuntimeError, match=WRONG_VERSION):
            sum(r.sum() for r in tensors_of(results)).backward()
    assert is_joined(made)


def test_writes_to_results_that_are_not_saved(made):
    def program(x, w):
        return x * 3, x * w

    found = []
    call = minidynamo.compile(program, fullgraph=True)
    for each in (program, call, call):
        x, w = leaf(4), leaf(4, seed=1)
        first, second = each(x, w)
        first.mul_(second)
        first.sum().backward()
        found.append((first, x.grad, w.grad))
    torch.testing.assert_close(found[1:], [found[0]] * 2)
    assert is_joined(made)


def test_a_second_backward_needs_the_graph(made):
    call = minidynamo.compile(chain, fullgraph=True)
    for _ in range(2):
        result = call(leaf(4), leaf(4, seed=1)).sum()
        result.backward()
        with pytest.raises(RuntimeError, match="second time"):
            result.backward()
    assert is_joined(made)


def test_hooks(made):
    call = minidynamo.compile(several, fullgraph=True)
    for _ in range(2):
        x, w = leaf(4, 4), leaf(4, 4, seed=1)
        seen, packed = [], []
        x.register_hook(lambda g: seen.append("x") or g * 2)
        w.register_post_accumulate_grad_hook(lambda t: seen.append("w"))

        def pack(tensor, packed=packed):
            packed.append(tensor.shape)
            return tensor.clone()

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            result = call(x, w)[0]
        result.register_hook(lambda g: seen.append("y"))
        result.grad_fn.register_hook(lambda a, b: seen.append("node"))
        result.sum().backward()
        assert sorted(seen) == ["node", "w", "x", "y"]
        assert packed
        twin = leaf(4, 4)
        several(twin, w)[0].sum().backward()
        torch.testing.assert_close(x.grad, twin.grad * 2)
    assert is_joined(made)


def test_saved_on_the_cpu_and_checkpointed(made):
    call = minidynamo.compile(chain, fullgraph=True)
    x, w = leaf(4), leaf(4, seed=1)
    wanted = torch.autograd.grad(chain(x, w).sum(), (x, w))
    for _ in range(2):
        with save_on_cpu():
            result = call(x, w).sum()
        torch.testing.assert_close(torch.autograd.grad(result, (x, w)), wanted)
        result = torch.utils.checkpoint.checkpoint(call, x, w, use_reentrant=False).sum()
        torch.testing.assert_close(torch.autograd.grad(result, (x, w)), wanted)
        y = x.detach().requires_grad_()
        torch.utils.checkpoint.checkpoint(call, y, w, use_reentrant=True).sum().backward()
        torch.testing.assert_close(y.grad, wanted[0])
    assert is_joined(made)


def test_what_is_saved_is_let_go(made):
    call = minidynamo.compile(saved_outputs, fullgraph=True)
    # torch 2.11 keeps the inputs of a compilation for a while.
    call(leaf(64, 64) * 1, leaf(64, 64))
    for _ in range(3):
        x = leaf(64, 64) * 1
        results = call(x, leaf(64, 64, seed=1))
        kept = [weakref.ref(r) for r in results]
        total = sum(r.sum() for r in results)
        watched = weakref.ref(x)
        del results, x
        total.backward()
        del total
        gc.collect()
        assert watched() is None
        assert all(r() is None for r in kept)
    assert is_joined(made)


def test_dropped_without_a_backward(made):
    call = minidynamo.compile(chain, fullgraph=True)
    call(leaf(8) * 1, leaf(8))
    for _ in range(3):
        x = leaf(8) * 1
        result = call(x, leaf(8, seed=1))
        watched = weakref.ref(x)
        del x, result
        gc.collect()
        assert watched() is None
    assert is_joined(made)


def test_graphs_that_outlive_the_interpreter():
    """A result in a cycle is freed when Python ends; its node holds a size."""
    program = """
import minidynamo, torch

@minidynamo.compile(dynamic=True)
def total(x):
    return x.sum(0)

kept = [total(torch.randn(3, 4, requires_grad=True))]
kept.append(kept)
del kept
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_statistics_are_written(made):
    def steps(module, call):
        counts = []
        for i in range(3):
            x = leaf(4, 3, 5, 5, seed=i)
            call(x).square().sum().backward()
            counts.append((module.running_mean._version, module.num_batches_tracked.item()))
        return counts, module.running_mean, module.running_var, module.weight.grad, x.grad

    eager, ours = torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    expected = steps(eager, eager)
    found = steps(ours, minidynamo.compile(ours, fullgraph=True))
    torch.testing.assert_close(found, expected)
    assert is_joined(made)


def test_inputs_whose_gradients_nobody_wants(made):
    call = minidynamo.compile(chain, fullgraph=True)
    for first, second in [(True, True), (True, False), (False, True), (False, False)]:
        for _ in range(2):
            x = leaf(4).detach().requires_grad_(first)
            w = leaf(4, seed=1).detach().requires_grad_(second)
            result = call(x, w)
            assert result.requires_grad == (first or second)
            if first or second:
                result.sum().backward()
            assert (x.grad is not None, w.grad is not None) == (first, second)
    with torch.no_grad():
        assert not call(leaf(4), leaf(4, seed=1)).requires_grad


def test_only_some_gradients_are_asked_for(made):
    call = minidynamo.compile(chain, fullgraph=True)
    for _ in range(2):
        x, w = leaf(4), leaf(4, seed=1)
        wanted = torch.autograd.grad(chain(x, w).sum(), w)
        torch.testing.assert_close(torch.autograd.grad(call(x, w).sum(), w), wanted)
        (unused,) = torch.autograd.grad(call(x, w).sum(), leaf(4), allow_unused=True)
        assert unused is None
    assert is_joined(made)


def test_in_other_threads(made):
    call = minidynamo.compile(chain, fullgraph=True)
    x, w = leaf(16), leaf(16, seed=1)
    wanted = torch.autograd.grad(chain(x, w).sum(), (x, w))
    found = []

    def work():
        for _ in range(20):
            found.append(torch.autograd.grad(call(x, w).sum(), (x, w)))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 60
    torch.testing.assert_close(found, [wanted] * 60)
    assert is_joined(made)


def test_an_error_in_the_backward_pass(made):
    call = minidynamo.compile(chain, fullgraph=True)
    for _ in range(2):
        result = call(leaf(4), leaf(4, seed=1))
        with pytest.raises(RuntimeError, match="shape"):
            result.backward(torch.ones(5))
        failing = call(leaf(4), leaf(4, seed=1))

        def refuse(gradient):
            raise ValueError("not this one")

        failing.register_hook(refuse)
        with pytest.raises(ValueError, match="not this one"):
            failing.sum().backward()
    assert is_joined(made)


def test_autocast(made):
    def program(x, w):
        return (x @ w).relu()

    call = minidynamo.compile(program, fullgraph=True)
    for inside in (False, True, False):
        x, w = leaf(8, 8), leaf(8, 8, seed=1)
        found = []
        for each in (program, call):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                result = each(x, w)
                if inside:
                    found.append((result, *torch.autograd.grad(result.float().sum(), (x, w))))
            if not inside:
                found.append((result, *torch.autograd.grad(result.float().sum(), (x, w))))
        torch.testing.assert_close(found[1], found[0])
    assert is_joined(made)


def test_determinism_must_not_begin_between(made):
    call = minidynamo.compile(chain, fullgraph=True)
    for _ in range(2):
        result = call(leaf(4), leaf(4, seed=1)).sum()
        torch.use_deterministic_algorithms(True)
        try:
            with pytest.raises(RuntimeError, match="use_deterministic_algorithms"):
                result.backward()
        finally:
            torch.use_deterministic_algorithms(False)
    assert is_joined(made)


def test_anomalies_are_detected(made):
    def program(x):
        return x.sqrt() * 2

    call = minidynamo.compile(program, fullgraph=True)
    for _ in range(2):
        with torch.autograd.detect_anomaly(check_nan=True), pytest.warns(UserWarning):
            x = torch.zeros(2, requires_grad=True)
            with pytest.raises(RuntimeError, match="returned nan values"):
                (call(x) * 0).sum().backward()
    assert is_joined(made)


@pytest.mark.parametrize("kind", ["view of an input", "written input", "input returned"])
def test_aliases_and_writes(kind, made):
    def view(x, w):
        return x[1:], x * w

    def written(x, w):
        w.mul_(2)
        return x * w

    def returned(x, w):
        return x, x * w

    program = {"view of an input": view, "written input": written, "input returned": returned}[
        kind
    ]
    call = minidynamo.compile(program, fullgraph=True)
    found = []
    for each in (program, call, call):
        x, w = leaf(4), leaf(4, seed=1).detach()
        results = each(x, w)
        sum(r.sum() for r in tensors_of(results)).backward()
        found.append((results, x.grad, w))
    torch.testing.assert_close(found[1:], [found[0]] * 2)
    assert is_joined(made)


def test_a_wrong_description():
    graph = _C.DifferentiableGraph(lambda *args: args)
    assert graph(1, 2) == (1, 2)
    spec = {"inputs": 1, "outputs": 1, "results": 1, "differentiable": [0], "gradients": [3]}
    spec |= {
        "arguments": [],
        "tangents": ["contiguous_format"],
        "shared": [],
        "parts": [(0, "input", 1)],
        "watched": [],
        "together": [[]],
        "moved": [],
        "kept": [],
    }
    spec["deterministic"] = True
    with pytest.raises(ValueError, match="gradients: 3 is not below 1"):
        graph.arm(spec, None, None, None, None)
    spec["gradients"] = [0]
    spec["tangents"] = ["rows"]
    with pytest.raises(ValueError, match="no memory format rows"):
        graph.arm(spec, None, None, None, None)
    spec["tangents"] = ["contiguous_format"]
    with pytest.raises(ValueError, match="parts: 1 is not below 1"):
        graph.arm(spec, None, None, None, None)
    assert not graph.is_armed
    with pytest.raises(KeyError):
        graph.arm({}, None, None, None, None)


@pytest.mark.parametrize("has_history", [False, True])
def test_batched_tangents(has_history, made):
    def f(x, w):
        y = (x @ w).tanh()
        return y.sum(1), y.amax(0)

    def passes(call):
        x, w = (torch.linspace(-1, 1, 12).view(s).requires_grad_() for s in ((4, 3), (3, 4)))
        results = call(x, w)
        tangents = [torch.eye(4)[:3], torch.eye(4)[1:]]
        batch = torch.autograd.grad(
            results, (x, w), tangents, is_grads_batched=True, create_graph=has_history
        )
        assert all(g.requires_grad == has_history for g in batch)
        if has_history:
            batch += torch.autograd.grad(sum(g.square().sum() for g in batch), (x, w))
        else:
            with pytest.raises(RuntimeError, match="second time"):
                torch.autograd.grad(results, x, tangents, is_grads_batched=True)
        whole = torch.autograd.functional.jacobian(call, (x, w), vectorize=True)
        return [*batch, *(part for row in whole for part in row)]

    compiled = minidynamo.compile(f)
    for ours, eagers in zip(passes(compiled), passes(f), strict=True):
        torch.testing.assert_close(ours, eagers)
    assert len(made) == 1


def test_constants_of_a_backward_graph_of_unknown_sizes():
    """AOTAutograd compiles it with the forward graph, while a mode for fake tensors is on."""

    def f(x, w):
        return (x.exp() * torch.tensor([1.5, 2.5])).sum(1) * w

    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    loggers = [
        logging.getLogger(f"torch.{name}")
        for name in ("_functorch._aot_autograd.graph_compile", "_subclasses.fake_tensor")
    ]
    compiled = minidynamo.compile(f, fullgraph=True, dynamic=True)
    for logger in loggers:
        logger.addHandler(handler)
    try:
        for size in (3, 5):
            ours, eagers = ([leaf(size, 2), leaf(size, seed=1)] for _ in range(2))
            compiled(*ours).sum().backward()
            f(*eagers).sum().backward()
            for x, y in zip(ours, eagers, strict=True):
                torch.testing.assert_close(x.grad, y.grad)
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert not told
