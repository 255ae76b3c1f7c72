"""Tensors and operators that kernels know nothing of: right all the same, or a clear error."""

import pytest
import torch
import torch.nn.functional as F
from torch.fx import symbolic_trace

import minidynamo
from minidynamo.inductor import metrics
from minidynamo.inductor.compile_fx import compile_fx


def same(fn, *args, **options):
    minidynamo.reset()
    expected, actual = fn(*args), minidynamo.compile(fn, **options)(*args)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    torch.testing.assert_close(actual, expected)


NARROW = [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_dtypes_without_arithmetic(dtype):
    given = torch.arange(5).float().to(dtype)
    same(lambda x: x.to(torch.float32).sin() + 1, given, fullgraph=True)
    minidynamo.reset()
    x = torch.rand(5)
    actual = minidynamo.compile(lambda x: (x * 2).to(dtype), fullgraph=True)(x)
    assert actual.dtype == dtype
    assert torch.equal(actual.view(torch.uint8), (x * 2).to(dtype).view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers(dtype):
    z = torch.randn(4, 3, dtype=dtype)
    same(lambda z: ((z * 2 + 1).real.sin(), z.abs())[0] + z.imag, z, fullgraph=True)
    same(lambda z: z @ z.mH + 1j, z, fullgraph=True)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x @ x) @ (x @ x),
        lambda x: torch.linalg.matrix_power(x, -4),
        lambda x: torch.native_dropout(x @ x, 0.5, False)[0] @ x @ x,
    ],
)
def test_views_that_their_schemas_do_not_mention(fn):
    """The memory under `_unsafe_view` is not used again while the view is."""
    same(fn, torch.randn(2, 2, 2, dtype=torch.complex64))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_operators_that_conjugate_lazily_in_a_training_graph(backend):
    z = torch.randn(3, 3, dtype=torch.complex64)
    run = minidynamo.compile(torch.linalg.pinv, backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(run(z.requires_grad_()).detach() @ z, torch.eye(3) + 0j)


def test_quantised_tensors():
    q = torch.quantize_per_tensor(torch.randn(6), 0.1, 0, torch.quint8)
    same(lambda q: torch.relu(q).dequantize() + 1, q)


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
@pytest.mark.filterwarnings("ignore:Sparse CS")
def test_sparse_tensors(layout):
    s = getattr(torch.eye(4), layout)()
    same(lambda s: (s * 2).to_dense() + 1, s)
    same(lambda s, y: (s @ y).relu() + 1, s, torch.randn(4, 4))
    same(lambda y: getattr(y.relu(), layout)().to_dense() * 2, torch.randn(4, 4))


def test_nested_tensors():
    n = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    minidynamo.reset()
    actual = minidynamo.compile(lambda n: n * 2)(n)
    assert [part.tolist() for part in actual.unbind()] == [[2.0] * 2, [2.0] * 3]


@pytest.fixture(scope="module")
def unknown_operators():
    """Operators that fake tensors cannot run: (of a Library, made by custom_op)."""
    library = torch.library.Library("minidynamo_unusual", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")

    @torch.library.custom_op("minidynamo_unusual::thrice", mutates_args=())
    def thrice(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    yield torch.ops.minidynamo_unusual.twice, thrice
    library._destroy()


@pytest.mark.parametrize("which", [0, 1])
def test_operators_without_a_fake_implementation(unknown_operators, which):
    operator = unknown_operators[which]
    same(lambda x: operator(x.sin()) + 1, torch.randn(5))
    minidynamo.reset()
    with pytest.raises(
        (minidynamo.exc.Unsupported, minidynamo.exc.TorchRuntimeError),
        match=("twice.*no meta function", "thrice.*no fake impl")[which],
    ):
        minidynamo.compile(lambda x: operator(x.sin()) + 1, fullgraph=True)(torch.randn(5))


@pytest.fixture(scope="module")
def with_number():
    library = torch.library.Library("minidynamo_numbers", "DEF")
    library.define("scaled(Tensor x, int k) -> (Tensor, SymInt, Tensor)")

    def scaled(x, k):
        return x * k, x.shape[0] + k, x.sum(0)

    library.impl("scaled", scaled, "CPU")
    torch.library.register_fake("minidynamo_numbers::scaled", scaled, lib=library)
    yield torch.ops.minidynamo_numbers.scaled
    library._destroy()


@pytest.mark.parametrize("dynamic", [False, True, None])
def test_operators_that_give_numbers(with_number, dynamic):
    """As fused attention on a GPU gives numbers of tokens."""

    def use(x):
        product, number, total = with_number(x, 3)
        return (product * number).relu(), total + 1, number

    minidynamo.reset()
    compiled = minidynamo.compile(use, dynamic=dynamic, fullgraph=True)
    for size in (4, 6, 9):
        x = torch.randn(size, 5)
        want, got = use(x), compiled(x)
        torch.testing.assert_close(got[:2], want[:2])
        assert got[2] == want[2]


@pytest.mark.parametrize("first", [1, -3])
def test_views_at_positions_that_depend_on_data(first):
    """Their offset is a symbol that no input of the compiled piece tells."""
    same(lambda x, i: x.narrow(1, i, 2), torch.randn(4, 5), torch.tensor(first), fullgraph=True)


def test_gradients_of_complex_matrices():
    """A complex diagonal whose strides are not eager's is put back: no kernel copies it."""
    x = torch.randn(2, 5, 5, dtype=torch.complex64, requires_grad=True)
    for run in (torch.linalg.qr, minidynamo.compile(lambda x: torch.linalg.qr(x))):
        q, r = run(x)
        (grad,) = torch.autograd.grad([q, r], x, [torch.ones_like(q), torch.ones_like(r)])
        if run is torch.linalg.qr:
            expected = grad
    torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_of_no_elements(loss, reduction):
    minidynamo.reset()
    metrics.reset()
    found = []
    for call in (loss, minidynamo.compile(lambda *args, **how: loss(*args, **how))):
        x = torch.empty(0, 3, requires_grad=True)
        result = call(x, torch.empty(0, 3), reduction=reduction)
        result.sum().backward()
        found.append((result, x.grad))
    torch.testing.assert_close(found[1], found[0], equal_nan=True)
    assert metrics.uncompiled_graphs == 0


def test_functionalization_of_the_thread():
    """Random numbers that a graph drew were tensors without memory there."""
    draw = compile_fx(symbolic_trace(lambda x: (x + torch.rand_like(x),)), [torch.ones(64)])
    torch.manual_seed(0)
    (expected,) = draw(torch.ones(64))
    x = torch.ones(64)
    torch._enable_functionalization(reapply_views=True)
    try:
        torch.manual_seed(0)
        (found,) = draw(x)
    finally:
        torch._disable_functionalization()
    assert torch.equal(found, expected)


@torch.library.custom_op(
    "tests_unusual::of_rows", mutates_args=(), tags=(torch.Tag.needs_contiguous_strides,)
)
def of_rows(x: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
    assert all(tensor.is_contiguous() for tensor in (x, *others))
    return x + sum(others)


@of_rows.register_fake
def _(x, others):
    return torch.empty(x.shape)


def test_an_operator_that_asks_for_contiguous_operands():
    def fn(x, y):
        return of_rows(x.t(), [y, (y * 2).t(), x[:, 0].expand(3, 3)])

    def expected(x, y):
        return x.t() + y + (y * 2).t() + x[:, 0].expand(3, 3)

    x, y = torch.randn(2, 3, 3)
    for dynamic in (False, True):
        minidynamo.reset()
        result = minidynamo.compile(fn, fullgraph=True, dynamic=dynamic)(x, y)
        torch.testing.assert_close(result, expected(x, y))
