"""Graphs and kernels in Triton: under the interpreter against eager, and compiled for GPUs."""

import os
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import assert_same, compiled, copies
from triton_testing import assemble, builder, kernel_of, run, same

from minidynamo import events
from minidynamo.exc import TritonCompileError
from minidynamo.inductor.codegen import triton as printer
from minidynamo.inductor.codegen import triton_tile
from minidynamo.inductor.codegen.triton_tile import choose_tiling
from minidynamo.inductor.symbolic import Symbol, ValueRef, symbol_expr


def check(fn, *args, **tolerance):
    """Compile `fn` for Triton's interpreter, compare with eager; the sources of the kernels."""
    sources = []

    def keep(event):
        assert event.language == "triton"
        sources.append(event.source)

    expected = fn(*copies(args))
    with events.subscribe(keep, events.KernelEvent):
        call = compiled(fn, *args, cpu_backend="triton")
    actual = call(*copies(args))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for left, right in zip(actual, expected, strict=True):
        assert_same(left, right, **tolerance)
    return sources


X = torch.randn(9, 33)


# -- graphs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x.sin() * 2 + 1).relu(),
        lambda x: torch.sigmoid(x) * torch.tanh(x),
        lambda x: F.gelu(x) + F.silu(x),
        lambda x: (x * 5).to(torch.int32) // 3,
        lambda x: (x * 5).to(torch.int64) % -3,
        lambda x: x.clamp(-0.5, 0.5).round(),
        lambda x: torch.where(x > 0, x, x * 0.1),
        lambda x: (x > 0) & (x < 1) | ~(x == x),
        lambda x: torch.full_like(x, 3.5) + torch.arange(33),
    ],
)
def test_pointwise(fn):
    check(fn, X)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sum(),
        lambda x: x.mean(1, keepdim=True) + x,
        lambda x: x.var(0),
        lambda x: torch.softmax(x, -1),
        lambda x: torch.log_softmax(x, 0),
        lambda x: F.layer_norm(x, (33,)),
        lambda x: (x.argmax(1), x.argmin(0)),
        lambda x: (x.amax(1), x.amin(0), x.prod(1)),
        lambda x: ((x > 1).any(1), (x > -3).all(0)),
        lambda x: torch.logsumexp(x, 1),
    ],
)
def test_reductions(fn):
    check(fn, X, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision(dtype):
    check(lambda x: torch.softmax(x * 2, -1), X.to(dtype), rtol=1e-2, atol=1e-3)
    check(lambda x: x + 1, X.to(dtype))


def test_views_and_padding():
    check(lambda x: x.t().contiguous(), X)
    check(lambda x: x.reshape(3, 3, 33).permute(2, 0, 1) + 1, X)
    check(lambda x: F.pad(x, (2, 3), value=1.5) * 2, X)
    check(lambda x: torch.cat([x, x * 2], 1), X)
    check(lambda x: x.flip(0) + x[:, ::2].sum(1, keepdim=True), X, rtol=1e-4, atol=1e-5)


def test_indirect_indexing():
    index = torch.tensor([3, -1, 0, 8])
    check(lambda x, i: x[i] + 1, X, index)
    check(lambda x, i: F.embedding(i.abs(), x).sum(0), X, index, rtol=1e-4, atol=1e-5)
    check(lambda x, i: x.gather(1, i[None].abs().expand(9, 4)), X, index)


@pytest.fixture
def looped(monkeypatch):
    """Rows of 9000 do not stay in registers, and each walk over them reads memory."""
    monkeypatch.setattr(triton_tile, "PERSISTENT_ALONE", 8192)
    monkeypatch.setattr(triton_tile, "CACHED", 1)


def test_looped_rows(looped):
    def both(x):
        return torch.log_softmax(x, 1), (x - x.amax(1, True)).exp().sum(1)

    x = torch.randn(10, 9000)
    for fn in (lambda x: torch.softmax(x, 1), both):
        (source,) = check(fn, x)
        assert source.count("for ") == 2 and "exp_sum_step" in source
    for fn in (
        lambda x: ((x - x.amax(1, True)) * 2).exp().sum(1),
        lambda x: (x - x.amax(1, True)).sum(1),
        lambda x: (x - x.amax(1, True)).exp().prod(1),
        lambda x: (x - x.amin(1, True)).neg().exp().sum(1),
    ):
        (source,) = check(fn, x)
        assert source.count("for ") == 2 and "exp_sum_step" not in source


def test_softmax_of_long_rows_with_infinities(looped):
    """Lanes that have met nothing but -inf yet, rows of them, and what makes eager's row NaN."""
    x = torch.randn(10, 9000)
    x[0, :8900] = x[1] = x[2, 5] = -torch.inf
    x[3, 17] = x[4, 8999] = torch.inf
    x[5, 4000] = torch.nan
    for fn in (torch.softmax, torch.log_softmax):
        (source,) = check(lambda x, fn=fn: fn(x, 1), x)
        assert "exp_sum_step" in source


def test_looped_scans():
    """A row goes on with what its last piece ended with: such numbers overflow in other orders."""
    x = torch.cat([torch.tensor([1e20, -1e-20]).repeat(9000), -torch.zeros(5)])
    (source,) = check(lambda x: torch.cumprod(x, -1), x.expand(2, -1).clone())
    assert "for " in source
    wide = check(lambda x: torch.cumprod(x, 0), torch.randint(-9, 9, (20000,)) * 2 + 1)
    assert "for " in wide[0]
    check(
        lambda x: x.cummax(0)[0].reciprocal(),
        torch.cat([-torch.zeros(9000), -X.abs().flatten()]),
    )
    check(
        lambda x: (x.cumsum(-1), x.logcumsumexp(-1)), torch.randn(2, 9000), rtol=1e-4, atol=1e-4
    )


def test_nan_propagates_through_extremes():
    x = X.clone()
    x[2, 5] = x[3, 0] = float("nan")
    check(lambda x: (x.amax(1), x.amin(0), x.argmax(1)), x)
    check(lambda x: (torch.maximum(x, -x), x.clamp(min=0)), x)


def test_training():
    x = X.clone().requires_grad_()
    call = compiled(lambda x: F.layer_norm(x, (33,)).tanh(), x, cpu_backend="triton")
    (out,) = call(x)
    out.sum().backward()
    expected = X.clone().requires_grad_()
    F.layer_norm(expected, (33,)).tanh().sum().backward()
    torch.testing.assert_close(x.grad, expected.grad, rtol=1e-3, atol=1e-5)


def test_empty_tensors():
    check(lambda x: x[:0] + 1, X)
    check(lambda x: x[:, :0].sum(1), X)


# -- kernels -------------------------------------------------------------------------------------


def transposition(rows, columns):
    b = builder([columns, rows])
    x, y = map(symbol_expr, b.iters)
    value = b.load("a0", y * columns + x, torch.float32)
    b.store("a1", x * rows + y, value, torch.float32)
    numel = rows * columns
    return b.finish(), [(torch.float32, numel, "in"), (torch.float32, numel, "out")]


def test_transpositions_have_two_axes():
    body, args = transposition(40, 70)
    kernel = kernel_of(body, args)
    assert set(kernel.blocks) == {"YBLOCK", "XBLOCK"}
    x, out = torch.randn(40, 70), torch.empty(70, 40)
    run(kernel, x, out)
    same(out, x.t(), rtol=0, atol=0)
    assemble(kernel)


def test_masks_only_where_needed():
    for numel, masked in ((4096, False), (4097, True), (1, False)):
        b = builder([numel])
        index = symbol_expr(b.iters[0])
        b.store("a1", index, b.load("a0", index, torch.float32), torch.float32)
        kernel = kernel_of(
            b.finish(), [(torch.float32, numel, "in"), (torch.float32, numel, "out")]
        )
        assert ("mask" in kernel.source) == masked


def test_vector_instructions_for_aligned_pointers():
    b = builder([1 << 22])
    index = symbol_expr(b.iters[0])
    b.store("a1", index, b.load("a0", index, torch.float32), torch.float32)
    numel = 1 << 22
    kernel = kernel_of(
        b.finish(), [(torch.float32, numel, "in"), (torch.float32, numel, "out")]
    )
    assert all("ld.global.v4" in text for text in assemble(kernel))
    assert not any("ld.global.v4" in text for text in assemble(kernel, aligned=False))


def test_what_is_read_again_stays_in_the_cache():
    rows, length = 4, 40_000
    b = builder([rows], [length])
    (x,), (r,) = map(symbol_expr, b.iters), map(symbol_expr, b.reduces)
    value = b.load("a0", x * length + r, torch.float32)
    total = b.reduction("sum", value)
    scaled = b.op("mul", b.op("sub", value, total), b.load("a1", r, torch.float32))
    b.store("a2", x * length + r, scaled, torch.float32)
    numel = rows * length
    args = [
        (torch.float32, n, role) for n, role in ((numel, "in"), (length, "in"), (numel, "out"))
    ]
    kernel = kernel_of(b.finish(), args)
    policies = re.findall(r"(a\d) .*eviction_policy=\"(\w+)\"", kernel.source)
    assert policies == [("a0", "evict_last"), ("a0", "evict_first"), ("a1", "evict_last")]
    operands = torch.randn(rows, length), torch.randn(length)
    out = torch.empty(rows, length)
    run(kernel, *operands, out)
    same(
        out,
        (operands[0] - operands[0].sum(1, keepdim=True)) * operands[1],
        rtol=1e-3,
        atol=1e-3,
    )
    assert all(
        "L1::evict_first" in text and "L1::evict_last" in text for text in assemble(kernel)
    )


@pytest.mark.parametrize("rows", [1 << 15, 1 << 21])
def test_wide_indices_where_sizes_ask_for_them(rows):
    b = builder([rows], [1 << 13])
    x, r = map(symbol_expr, (*b.iters, *b.reduces))
    value = b.load("a0", x * (1 << 13) + r, torch.bfloat16)
    b.store("a1", x, b.reduction("sum", value), torch.float32)
    kernel = kernel_of(
        b.finish(), [(torch.bfloat16, rows << 13, "in"), (torch.float32, rows, "out")]
    )
    assert ("int64" in kernel.source) == (rows == 1 << 21)
    assemble(kernel)


def test_very_many_elements():
    b = builder([3 << 30])
    index = symbol_expr(b.iters[0])
    b.store("a0", index, b.index_expr(index * 4), torch.int64)
    kernel = kernel_of(b.finish(), [(torch.int64, 3 << 30, "out")])
    assert "tl.program_id(0).to(tl.int64)" in kernel.source
    assemble(kernel)


def test_atomic_add():
    b = builder([50])
    index = symbol_expr(b.iters[0])
    where = b.load("a0", index, torch.int64)
    value = b.load("a1", index, torch.float32)
    b.scatter("a2", symbol_expr(ValueRef(where, 7)), value, torch.float32)
    b.scatter(
        "a3", symbol_expr(ValueRef(where, 7)) * 0, b.constant(1, torch.int32), torch.int32
    )
    args = [(torch.int64, 50, "in"), (torch.float32, 50, "in")]
    args += [(torch.float32, 7, "inout"), (torch.int32, 1, "inout")]
    kernel = kernel_of(b.finish(), args)
    where, value = torch.randint(0, 7, (50,)), torch.randn(50)
    out, count = torch.zeros(7), torch.zeros(1, dtype=torch.int32)
    run(kernel, where, value, out, count)
    same(out, torch.zeros(7).index_add(0, where, value), rtol=1e-5, atol=1e-5)
    assert count.item() == 50
    assemble(kernel)


def test_scatter():
    b = builder([50])
    index = symbol_expr(b.iters[0])
    where = b.load("a0", index, torch.int64)
    value = b.load("a1", index, torch.float32)
    b.scatter("a2", symbol_expr(ValueRef(where, 60)), value, torch.float32, "set")
    args = [(torch.int64, 50, "in"), (torch.float32, 50, "in"), (torch.float32, 60, "inout")]
    kernel = kernel_of(b.finish(), args)
    where, value, out = torch.randperm(60)[:50], torch.randn(50), torch.zeros(60)
    run(kernel, where, value, out)
    same(out, torch.zeros(60).index_put((where,), value))
    assemble(kernel)


def test_atomic_add_of_narrow_integers_is_refused():
    b = builder([4])
    b.scatter("a0", symbol_expr(b.iters[0]), b.constant(1, torch.int8), torch.int8)
    with pytest.raises(printer.UnsupportedKernel, match="int8"):
        kernel_of(b.finish(), [(torch.int8, 4, "inout")])


def test_masked_loads_do_not_read():
    b = builder([6], [5])
    x, r = map(symbol_expr, (*b.iters, *b.reduces))
    inside = b.op("lt", b.index_expr(r), b.constant(3, torch.int64))
    with b.masked(inside):
        value = b.load("a0", x * (1 << 40), torch.float32)  # only the first row is in memory
        first = b.load("a0", x * 0, torch.float32)
    where = b.op("eq", b.index_expr(x), b.constant(-1, torch.int64))
    with b.masked(where):
        value = b.load("a0", x * (1 << 40) + 7, torch.float32)
    b.store("a1", x, b.reduction("sum", b.op("add", value, first)), torch.float32)
    kernel = kernel_of(b.finish(), [(torch.float32, 1, "in"), (torch.float32, 6, "out")])
    out = torch.empty(6)
    run(kernel, torch.tensor([2.0]), out)
    assert out.tolist() == [6.0] * 6
    assemble(kernel)


def test_sizes_known_only_at_run_time():
    size = Symbol("s0")
    n = symbol_expr(size)
    b = builder([n], [n * 2])
    x, r = map(symbol_expr, (*b.iters, *b.reduces))
    value = b.load("a0", x * (n * 2) + r, torch.float32)
    b.store("a1", x, b.reduction("sum", value), torch.float32)
    args = [(torch.float32, n * n * 2, "in"), (torch.float32, n, "out")]
    kernel = kernel_of(b.finish(), args, sizes=["s0"])
    for rows in (1, 7):
        x, out = torch.randn(rows, 2 * rows), torch.empty(rows)
        run(kernel, x, out, rows)
        same(out, x.sum(1), rtol=1e-5, atol=1e-5)
    assemble(kernel)


def test_tiles_fit_the_space():
    for iters, reduces in [
        ([1], []),
        ([3, 5], []),
        ([7], [1]),
        ([], [100000]),
        ([4096], [4096]),
    ]:
        b = builder(iters, reduces)
        value = b.constant(1, torch.float32)
        if reduces:
            value = b.reduction("sum", value)
        index = sum((symbol_expr(s) for s in b.iters), symbol_expr(Symbol("x", 1)) * 0)
        b.store("a0", index, value, torch.float32)
        spec = printer.KernelSpec(b.finish(), ())
        tiling = choose_tiling(spec)
        assert all(axis.block & (axis.block - 1) == 0 for axis in tiling.axes)
        elements = 1
        for axis in tiling.axes:
            elements *= axis.block
        assert elements <= 1 << 14 and tiling.num_warps in (1, 2, 4, 8, 16)


# -- without Triton, and beside TRITON_INTERPRET -------------------------------------------------


def test_missing_triton_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(TritonCompileError, match="pip install triton"):
        compiled(lambda x: x + 1, X, cpu_backend="triton")
    (out,) = compiled(lambda x: x + 1, X)(X)
    assert_same(out, X + 1)


_BOTH = """
import torch
from triton_testing import assemble, builder, kernel_of, run
from minidynamo.inductor.symbolic import symbol_expr
b = builder([8], [16])
x, r = map(symbol_expr, (*b.iters, *b.reduces))
value = b.op("exp", b.load("a0", x * 16 + r, torch.float32))
b.store("a1", x, b.reduction("max", value), torch.float32)
kernel = kernel_of(b.finish(), [(torch.float32, 128, "in"), (torch.float32, 8, "out")])
x, out = torch.randn(8, 16), torch.empty(8)
run(kernel, x, out)
torch.testing.assert_close(out, x.exp().amax(1))
assemble(kernel)
run(kernel, x, out)
"""


@pytest.mark.parametrize("interpret", ["0", "1"])
def test_one_process_compiles_and_interprets(interpret):
    path = os.pathsep.join([os.path.dirname(__file__), os.getcwd()])
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", _BOTH], check=True, env=environment, timeout=120)
