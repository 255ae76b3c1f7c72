"""Matrix products large enough for oneDNN, of operands with all kinds of strides."""

import time

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import check

import minidynamo
from minidynamo.inductor import metrics
from minidynamo.inductor.lowering.linear import has_onednn

OPERANDS = {
    "every second row": lambda: (torch.randn(300, 400).t()[::2], torch.randn(300, 700)),
    "every second column": lambda: (torch.randn(200, 600)[:, ::2], torch.randn(300, 700)),
    "gaps on the right": lambda: (torch.randn(200, 300), torch.randn(1400, 600)[::2, ::2].t()),
    "one row": lambda: (torch.randn(1, 300).expand(200, 300), torch.randn(300, 700)),
    "transposed": lambda: (torch.randn(300, 200).t(), torch.randn(700, 300).t()),
    "rows apart": lambda: (torch.randn(200, 900)[:, 300:600], torch.randn(300, 700)),
}


@pytest.mark.parametrize("backend", ["onednn", "aten"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OPERANDS)
def test_strides(name, dynamic, backend):
    a, b = OPERANDS[name]()
    compiled = minidynamo.compile(torch.mm, dynamic=dynamic, options={"cpu_linear": backend})
    torch.testing.assert_close(compiled(a, b), a @ b, rtol=1e-4, atol=1e-4)


READ_ONCE = {
    "sums": (lambda a, b: torch.einsum("bij,bij->b", a, b), (5, 6, 7), (5, 6, 7)),
    "sum": (lambda a, b: (a.exp() @ b).cos(), (1, 300), (300, 1)),
    "products": (lambda a, b: (torch.bmm(a, b) + 1).relu(), (3, 20, 1), (3, 1, 30)),
    "product": (lambda a, b: (a @ b.sin()).t(), (20, 1), (1, 30)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", READ_ONCE)
def test_products_that_read_each_element_once(name, dtype):
    fn, *sizes = READ_ONCE[name]
    torch.manual_seed(0)
    a, b = (torch.randn(size).to(dtype).requires_grad_() for size in sizes)
    minidynamo.reset()
    metrics.reset()
    compiled = minidynamo.compile(fn, fullgraph=True)
    got, want = compiled(a, b), fn(a, b)
    assert metrics.extern_calls == 0
    exact = fn(a.double(), b.double())
    tolerance = 4 * torch.finfo(dtype).eps * exact.abs().max().item() + 1e-12
    torch.testing.assert_close(got.double(), exact, rtol=0, atol=4 * tolerance)
    assert got.stride() == want.stride() and got.dtype == dtype
    got = torch.autograd.grad(got.sum(), [a, b])
    torch.testing.assert_close(
        got, torch.autograd.grad(want.sum(), [a, b]), rtol=0.03, atol=0.05
    )


SUMMED = {
    "matrices by vectors": (lambda a, b: (a @ b[..., None])[..., 0], (100, 4, 5), (100, 5)),
    "vectors by matrices": (lambda a, b: a.softmax(-1) @ b, (3, 1, 65), (3, 65, 33)),
    "long vectors by matrices": (lambda a, b: a @ b, (2, 1, 3000), (2, 3000, 150)),
    "small matrices": (lambda a, b: a.exp() @ b.mT.sin(), (50, 3, 4), (50, 2, 4)),
    "a matrix by a vector": (lambda a, b: a @ b.cos(), (65, 33), (33,)),
    "a layer of one row": (lambda a, b: F.linear(a, b, b[:, 0]), (1, 9), (16, 9)),
}
# In 16 bits also those that are larger than MKL's overhead.
NARROW_SUMMED = {
    **SUMMED,
    "a large layer of one row": (
        lambda a, b: F.linear(a, b, b[:, 0]).relu(),
        (1, 600),
        (900, 600),
    ),
    "one row by rows": (lambda a, b: a @ b, (1, 600), (600, 900)),
    "rows by one column": (lambda a, b: (a @ b).sin(), (900, 600), (600, 1)),
    "a layer of one column": (lambda a, b: F.linear(a, b, b[:, 0]), (900, 600), (1, 600)),
}


@pytest.mark.parametrize(
    "name, dtype",
    [(name, dtype) for name in SUMMED for dtype in (torch.float32, torch.float64)]
    + [(name, dtype) for name in NARROW_SUMMED for dtype in (torch.bfloat16, torch.float16)],
)
def test_small_products_and_those_with_vectors_are_kernels(name, dtype):
    fn, *sizes = NARROW_SUMMED[name]
    torch.manual_seed(0)
    a, b = (torch.randn(size).to(dtype).requires_grad_() for size in sizes)
    minidynamo.reset()
    metrics.reset()
    got, want = minidynamo.compile(fn, fullgraph=True)(a, b), fn(a, b)
    assert metrics.extern_calls == 0
    wide = [x.detach().double().requires_grad_() for x in (a, b)]
    exact = fn(*wide)
    tolerance = 8 * torch.finfo(dtype).eps * exact.abs().max().item() + 1e-12
    torch.testing.assert_close(got.double(), exact, rtol=0, atol=4 * tolerance)
    assert got.stride() == want.stride() and got.dtype == dtype
    got, want, exact = (
        torch.autograd.grad(result.sum(), inputs)
        for result, inputs in ((got, [a, b]), (want, [a, b]), (exact, wide))
    )
    for ours, eagers, true in zip(got, want, exact, strict=True):
        assert (ours - true).abs().max() <= 3 * (eagers - true).abs().max() + tolerance


COMPUTED = {
    "few bits": lambda x, w, s: F.linear(x, (w * 9).to(torch.int8).float()) * s,
    "a masked weight": lambda x, w, s: F.linear(x, w * (w > 0), s),
    "weight norm": lambda x, w, s: F.linear(x, w * (s[:, None] / w.norm(dim=1, keepdim=True))),
    "rows by a column": lambda x, w, s: (w.sin() @ x.mT)[:, 0] + s,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_matrices_that_are_computed_for_one_vector_are_not_written(name):
    fn = COMPUTED[name]
    torch.manual_seed(0)
    args = torch.randn(1, 600), torch.randn(700, 600), torch.randn(700)
    minidynamo.reset()
    metrics.reset()
    got = minidynamo.compile(fn, fullgraph=True)(*args)
    assert metrics.extern_calls == 0
    exact = fn(*(arg.double() for arg in args)) if name != "few bits" else fn(*args).double()
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-4)


def test_single_products_of_matrices_are_the_librarys_to_the_last_bit():
    torch.manual_seed(0)
    for program, *sizes in (
        (torch.matmul, (4, 8), (8, 8)),
        (F.linear, (5, 16), (3, 16)),
        (F.linear, (1, 40), (30, 40)),
        (lambda x, w: F.linear(x, w, w[:, 0]), (5, 9), (16, 9)),
    ):
        for dtype in (torch.float32, torch.bfloat16)[: 1 if sizes[0][0] == 1 else 2]:
            x, w = (torch.randn(size, dtype=dtype) for size in sizes)
            assert torch.equal(minidynamo.compile(program, fullgraph=True)(x, w), program(x, w))


def test_larger_products_of_matrices_and_those_of_whole_numbers_are_calls():
    for sizes in [((33, 64), (64, 65)), ((3, 32, 64), (3, 64, 65)), ((1, 3000), (3000, 300))]:
        check(torch.matmul, *(torch.randn(size) for size in sizes), kernels=0, externs=1)
    check(torch.matmul, *(torch.randint(9, (5, 5)) for _ in range(2)), kernels=0, externs=1)
    check(torch.matmul, torch.randn(4, 0), torch.randn(0, 4), kernels=0, externs=1)


def test_what_is_not_finite_is_summed_as_in_eager():
    a, b = torch.ones(2, 1, 40), torch.zeros(2, 40, 1)
    a[0, 0, 3], a[1, 0, 5], b[1, 5, 0] = float("inf"), float("inf"), 2
    minidynamo.reset()
    got = minidynamo.compile(torch.bmm)(a, b)
    assert got[0].isnan().all() and got[1].isposinf().all()


@pytest.mark.parametrize(
    "multiply", [torch.mm, torch.matmul, torch.bmm], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_zeros_of_outer_products_have_the_signs_of_eager(multiply, dtype):
    a = torch.tensor([[-0.0], [1.0], [-1.0]], dtype=dtype)
    b = torch.tensor([[1.0, -1.0, -0.0, 0.0]], dtype=dtype)
    if multiply is torch.bmm:
        a, b = a[None], b[None]
    expected, got = multiply(a, b), minidynamo.compile(lambda x, y: multiply(x, y))(a, b)
    assert torch.equal(got, expected)
    assert torch.equal(got.signbit(), expected.signbit())


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "join",
    [
        lambda a, b, c: torch.cat([a @ b, c]),
        lambda a, b, c: torch.cat([a @ b, b @ c, c @ a], 1),
        lambda a, b, c: torch.cat([torch.addmm(c[0], a, b), c], 1) @ torch.cat([a, b]),
        lambda a, b, c: torch.cat([a @ b, b @ c]).relu().sum(1),
        lambda a, b, c: torch.cat([torch.bmm(a[None], b[None]), c[None]]),
        lambda a, b, c: torch.cat([torch.bmm(a[None], b[None]), c[None]], 2),
        lambda a, b, c: torch.cat([m := a @ b, m]),
        lambda a, b, c: (torch.cat([m := a @ b, c]), m),
        lambda a, b, c: torch.cat([a @ b, torch.cat([b @ c, c])]).add_(1),
        lambda a, b, c: torch.cat([(a @ b)[:3], c]),
        lambda a, b, c: (a @ b).clone(),
    ],
)
def test_products_that_are_joined(join, dynamic):
    minidynamo.reset()
    compiled = minidynamo.compile(join, dynamic=dynamic, fullgraph=True)
    for _ in range(2):
        given = [torch.randn(24, 24) for _ in range(3)]
        torch.testing.assert_close(compiled(*given), join(*given))


def test_products_are_written_where_they_are_joined():
    a, b, c = (torch.randn(24, 24) for _ in range(3))
    check(lambda a, b, c: torch.cat([a @ b, c], 1), a, b, c, kernels=1, externs=1)
    check(lambda a, b, c: torch.cat([a @ b, b @ c]), a, b, c, kernels=0, externs=2)
    check(lambda a, b, c: (a @ b).clone(), a, b, c, kernels=0, externs=1)


@pytest.mark.parametrize("dynamic", [None, True])
def test_parts_of_larger_matrices(dynamic):
    x, columns, rows = torch.randn(512, 128), torch.randn(128, 200), torch.randn(96, 300)

    def products(x, columns, rows):
        bias = rows[0, :96]
        return (
            x @ columns[:, :96],
            x @ rows[:, 7:135].t(),
            x @ columns[:, ::2],
            x @ (columns * 2)[:, 50:146],
            torch.addmm(bias, x, columns[:, 3:99]),
            x[:, :64] @ columns[64:, :96],
            columns[:, :96].t() @ x.t()[:, 5:400],
        )

    options = {"cpu_linear": "onednn" if has_onednn() else "aten"}
    compiled = minidynamo.compile(products, dynamic=dynamic, options=options)
    for ours, eager in zip(compiled(x, columns, rows), products(x, columns, rows), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)
        assert ours.stride() == eager.stride()

    def seconds(function):
        taken = []
        for _ in range(3):
            start = time.process_time()
            function(x, columns, rows)
            taken.append(time.process_time() - start)
        return min(taken)

    # With gaps between its rows or columns a weight takes oneDNN 1000 times as long.
    assert seconds(compiled) < 30 * seconds(products)
