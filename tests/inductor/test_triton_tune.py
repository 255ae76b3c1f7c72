"""Tilings to choose from: all of them compute the same, and the measured one is taken."""

from types import SimpleNamespace

import pytest
import torch
from triton_testing import builder, run, same

from minidynamo.exc import TritonCompileError
from minidynamo.inductor.codegen.kernel import KernelArg, KernelSpec
from minidynamo.inductor.runtime import triton_tune
from minidynamo.inductor.runtime.triton_launch import Target
from minidynamo.inductor.symbolic import symbol_expr

FLOAT = torch.float32


def at(b, *strides):
    symbols = (*b.iters, *b.reduces)
    return sum((symbol_expr(s) * k for s, k in zip(symbols, strides, strict=True)), start=0)


def specification(b, *args):
    named = [KernelArg(f"a{i}", dtype, numel, role) for i, (dtype, numel, role) in args]
    return KernelSpec(b.finish(), tuple(named))


def doubled(rows, columns):
    b = builder([rows, columns])
    index = at(b, columns, 1)
    b.store(
        "a1", index, b.op("add", b.load("a0", index, FLOAT), b.load("a0", index, FLOAT)), FLOAT
    )
    n = rows * columns
    return specification(b, *enumerate([(FLOAT, n, "in"), (FLOAT, n, "out")])), lambda x: x + x


def transposed(rows, columns):
    b = builder([rows, columns])
    value = b.load("a0", at(b, 1, rows), FLOAT)
    b.store("a1", at(b, columns, 1), value, FLOAT)
    n = rows * columns
    spec = specification(b, *enumerate([(FLOAT, n, "in"), (FLOAT, n, "out")]))
    return spec, lambda x: x.view(columns, rows).t().reshape(-1)


def totals(rows, columns):
    b = builder([rows], [columns])
    value = b.reduction("max", b.load("a0", at(b, columns, 1), FLOAT))
    b.store("a1", symbol_expr(b.iters[0]), value, FLOAT)
    spec = specification(b, *enumerate([(FLOAT, rows * columns, "in"), (FLOAT, rows, "out")]))
    return spec, lambda x: x.view(rows, columns).amax(1)


KERNELS = [
    doubled(40, 70),
    transposed(33, 40),
    totals(5, 30),
    totals(3, 2500),
    totals(1, 20000),
]


@pytest.mark.parametrize(
    "spec, expected", KERNELS, ids=["pointwise", "transposed", "short", "rows", "long"]
)
def test_all_tilings_compute_the_same(spec, expected):
    kernels = triton_tune.candidates(spec, "kernel")
    assert len(kernels) > 2
    assert len({(k.source, *k.blocks.values(), k.num_warps) for k in kernels}) == len(kernels)
    x = torch.randn(spec.args[0].numel)
    for kernel in kernels:
        out = torch.empty(spec.args[1].numel)
        run(kernel, x, out)
        same(out, expected(x))


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A GPU on which a kernel takes as many milliseconds as `times` says; None: it does not fit."""
    state = SimpleNamespace(times=lambda kernel: 1.0, timed=[])

    def launcher(kernel, spec, device, hints):
        if state.times(kernel) is None:
            raise TritonCompileError(["triton"], "out of shared memory")
        state.timed.append(kernel)
        return lambda: None, []

    kept = {}
    cache = SimpleNamespace(
        get=lambda kind, key: kept.get((kind, key)),
        put=lambda kind, key, data: kept.update({(kind, key): data}),
    )
    monkeypatch.setattr(triton_tune, "_launcher", launcher)
    monkeypatch.setattr(triton_tune, "measure", lambda launch: state.times(state.timed[-1]))
    monkeypatch.setattr(triton_tune, "store", lambda: cache)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name="GPU")
    )
    return state


def test_the_quickest_is_taken_and_kept(machine):
    spec = totals(3, 2500)[0]
    kernels = triton_tune.candidates(spec, "k")
    wanted = kernels[len(kernels) // 2]
    machine.times = lambda kernel: 0.5 if kernel == wanted else 1.0
    assert triton_tune.fastest(spec, "k", torch.device("cuda", 0)) == wanted
    assert len(machine.timed) == len(kernels)
    assert triton_tune.fastest(spec, "k", torch.device("cuda", 0)) == wanted
    assert len(machine.timed) == len(kernels)  # found on disk


def test_what_does_not_fit_is_left_out(machine):
    spec = totals(3, 2500)[0]
    kernels = triton_tune.candidates(spec, "k")
    machine.times = lambda kernel: None if kernel == kernels[0] else 1.0
    assert triton_tune.fastest(spec, "k", torch.device("cuda", 0)) == kernels[1]
    machine.times = lambda kernel: None
    other = totals(4, 2500)[0]
    first = triton_tune.candidates(other, "k")[0]
    assert triton_tune.fastest(other, "k", torch.device("cuda", 0)) == first


@pytest.mark.parametrize("arch", [80, 90])
def test_all_tilings_fit_onto_a_gpu(arch):
    for spec, _ in (KERNELS[1], KERNELS[3]):
        for kernel in triton_tune.candidates(spec, "kernel"):
            binary = triton_tune.compile_kernel(kernel, Target("cuda", arch), (0, 1))
            assert binary.shared <= 160 * 1024


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu():
    spec = KernelSpec(
        *[getattr(totals(64, 5000)[0], n) for n in ("body", "args")], device="cuda"
    )
    kernel = triton_tune.fastest(spec, "kernel", torch.device("cuda", 0))
    assert kernel in triton_tune.candidates(spec, "kernel")
