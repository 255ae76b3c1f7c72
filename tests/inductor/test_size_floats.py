"""Floats computed from sizes, with symbolic sizes: normalisations in training stay one graph."""

import copy
import math
import re

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo import events
from minidynamo.inductor import compile_fx, metrics


def make(kind):
    torch.manual_seed(0)
    return {
        "batch norm 1d": lambda: nn.BatchNorm1d(6),
        "batch norm 2d": lambda: nn.Sequential(
            nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        ),
        "transposed": lambda: nn.Sequential(Transposed(), nn.BatchNorm1d(6), nn.ReLU()),
        "instance norm": lambda: nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
        "group norm": lambda: nn.Sequential(nn.GroupNorm(3, 6), nn.SiLU()),
        "mean": lambda: Centred(),
    }[kind]()


class Transposed(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2).contiguous().transpose(1, 2)


class Centred(nn.Module):
    def forward(self, x):
        return (x - x.mean((0, 2), keepdim=True)) / (x.var() + x.shape[0] / x.shape[2])


SIZES = [(3, 6, 5), (4, 6, 7), (2, 6, 9), (5, 6, 3)]


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize(
    "kind",
    ["batch norm 1d", "batch norm 2d", "transposed", "instance norm", "group norm", "mean"],
)
def test_training_with_symbolic_sizes(kind, dynamic):
    eager = make(kind)
    ours = copy.deepcopy(eager)
    call = minidynamo.compile(ours, dynamic=dynamic, fullgraph=True)
    metrics.reset()
    for i, size in enumerate(SIZES):
        size = (*size, size[-1] + 2) if kind in ("batch norm 2d", "instance norm") else size
        found = []
        for module in (eager, call):
            generator = torch.Generator().manual_seed(i)
            x = torch.randn(size, generator=generator).requires_grad_()
            module.zero_grad()
            y = module(x)
            (y * torch.arange(y.numel()).view(y.shape).cos()).sum().backward()
            owner = eager if module is eager else ours
            gradients = [x.grad, *(p.grad for p in owner.parameters())]
            found.append((y, gradients, list(owner.buffers())))
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    assert metrics.uncompiled_graphs == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16])
def test_filled_with_a_size(dtype):
    def fn(x):
        n = x.shape[0] * 2 - 1
        return torch.full((n,), n, dtype=dtype), torch.full_like(x, n), x * torch.tensor(n)

    call = minidynamo.compile(fn, dynamic=True, fullgraph=True)
    for n in (3, 8, 5):
        x = torch.ones(n, 2)
        torch.testing.assert_close(call(x), fn(x), rtol=0, atol=0)


def test_operators_with_floats_of_sizes():
    def fn(x):
        share = x.shape[0] / (x.shape[1] * 3)
        half = x.shape[0] * 0.5
        return x + share, x * half, (2 - share) / x, x.double() - half, x.bfloat16() / share

    call = minidynamo.compile(fn, dynamic=True, fullgraph=True)
    for size in [(3, 4), (7, 2), (5, 9)]:
        x = torch.randn(size)
        torch.testing.assert_close(call(x), fn(x))


def test_numbers_given_to_operators_that_are_called():
    """Kernels know no complex numbers: the operators are called, with tensors for the numbers."""

    def fn(x, n):
        rows = x.shape[0]
        return x - n, n / x, x.sum() * rows, (x == n) | (rows != x), x.clone().mul_(n + rows)

    metrics.reset()
    call = minidynamo.compile(fn, dynamic=True, fullgraph=True)
    for size, n in [((3, 4), 2), ((7, 2), 5)]:
        x = torch.randn(size, dtype=torch.complex64)
        for got, wanted in zip(call(x, n), fn(x, n), strict=True):
            torch.testing.assert_close(got, wanted)
    assert metrics.uncompiled_graphs == 0


def test_pieces_know_sizes_that_their_inputs_do_not_show():
    def fn(x):
        y = torch.nn.functional.max_pool1d(x, 3, 1).relu()
        n = y.sum().item()
        z = torch.nn.functional.pad(y * n, (1, 1))
        return z, y - n

    with minidynamo.config.patch(capture_scalar_outputs=True):
        call = minidynamo.compile(fn, dynamic=True, fullgraph=True)
        metrics.reset()
        for n in (6, 9, 7):
            x = torch.randn(2, 3, n)
            torch.testing.assert_close(call(x), fn(x))
    assert metrics.uncompiled_graphs == 0


def test_a_forward_that_runs_operator_by_operator(monkeypatch):
    compile_or_run = compile_fx._compile_or_run

    def running(graph, kind):
        if kind == "forward":
            return compile_fx._run(graph, "as this test wants it", kind)
        return compile_or_run(graph, kind)

    monkeypatch.setattr(compile_fx, "_compile_or_run", running)
    norm = nn.BatchNorm1d(6)
    call = minidynamo.compile(lambda x: norm(x).relu(), dynamic=True, fullgraph=True)
    for n in (5, 7, 4):
        generator = torch.Generator().manual_seed(n)
        x = torch.randn(3, n, 6, generator=generator).transpose(1, 2).requires_grad_()
        expected = norm(x).relu()
        torch.testing.assert_close(call(x), expected)
        given = torch.rand(expected.shape)
        wanted = torch.autograd.grad(expected, x, given)
        # A plan, for memory that the operators of the forward pass do not lay out like this.
        torch.testing.assert_close(torch.autograd.grad(call(x), x, given), wanted)


class Scaled(nn.Module):
    def forward(self, x):
        return (x * -(1.0 / float(x.shape[0])) / math.sqrt(x.shape[-1])).sin()


@pytest.mark.parametrize("module", [nn.Sequential(nn.GroupNorm(2, 6), nn.SiLU()), Scaled()])
def test_both_passes_are_one_plan_that_saves_its_inputs(module):
    call = minidynamo.compile(module, dynamic=True, fullgraph=True)
    texts = []
    with events.subscribe(texts.append, events.OutputCodeEvent):
        for size in ((3, 6, 4, 5), (2, 6, 3, 7)):
            x = torch.randn(size, requires_grad=True)
            results = [f(x) for f in (call, module)]
            torch.testing.assert_close(*results)
            gradients = [torch.autograd.grad(y.exp().sum(), x)[0] for y in results]
            torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    assert len(texts) == 2
    # As large as the input is the result alone.
    forward = texts[0].text.partition("return")[0]
    shape = re.search(r"float32(\[s\d+, 6, s\d+, s\d+\]|\[s\d+, s\d+, s\d+, s\d+\])", forward)[
        1
    ]
    assert forward.count(f"empty(({shape[1:-1]})") == 1


@pytest.mark.parametrize("wants_grad", [False, True])
def test_sums_over_flattened_images(wants_grad):
    def fn(x):
        y = x.sigmoid()
        return y, (y * x).flatten(2).sum(2), y.flatten(2).amax(2), y.flatten(1)[:, 1:]

    call = minidynamo.compile(fn, dynamic=True, fullgraph=True)
    texts = []
    with events.subscribe(texts.append, events.OutputCodeEvent):
        for size in ((3, 6, 4, 5), (2, 7, 3, 8), (4, 2, 9, 2)):
            x = torch.randn(size, requires_grad=wants_grad)
            torch.testing.assert_close(call(x), fn(x))
    assert not re.search(r"\(\w+ / s\d+\)", "".join(event.text for event in texts))
