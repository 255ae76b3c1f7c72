"""Reductions over inner, outer and all dimensions."""

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import CLOSE, check, compiled
from torch._subclasses import FakeTensorMode

import minidynamo

DIMS = [None, 0, 1, 2, (0, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_float(dims):
    def fn(x):
        args = () if dims is None else (dims,)
        results = [x.sum(*args), x.mean(*args), x.var(*args), x.std(*args), x.amax(dims or ())]
        if not isinstance(dims, tuple):
            results += [x.argmax(*args), x.argmin(*args), x.prod(*args), (x > 0).all(*args)]
        if isinstance(dims, int):
            results += [*x.max(dims), *x.min(dims, True), x.logsumexp(dims), x.sum(dims, True)]
        return results

    # Sums of a thousand numbers of size 1 that cancel: 1e-4 is a few units of their rounding.
    check(fn, torch.randn(16, 33, 65), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8],
)
def test_dtypes(dtype):
    def fn(x):
        results = [x.sum(), x.sum(0), x.sum(1), x.amax(0), x.amin(1), x.argmax(1), x.any(0)]
        if dtype.is_floating_point:
            results += [x.mean(1), x.mean(), x.softmax(1), x.log_softmax(0)]
        return results

    low = dtype in (torch.bfloat16, torch.float16)
    check(
        fn,
        (torch.randn(40, 70) * 3).abs().to(dtype),
        **({"rtol": 2e-2, "atol": 1e-2} if low else {}),
    )


def test_bool():
    check(lambda x: (x.sum(), x.sum(0), x.any(1), x.all(0), x.all()), torch.rand(40, 70) > 0.5)


def test_nan_and_infinity():
    x = torch.randn(16, 33, 65)
    x[3, 4, 5], x[7], x[:, 3] = float("nan"), float("-inf"), float("inf")
    check(
        lambda x: (
            x.amax(-1),
            x.amin(0),
            x.argmax(-1),
            x.argmax(0),
            x.argmin(),
            x.sum(-1),
            x.softmax(-1),
            x.logsumexp(0),
        ),
        x,
        **CLOSE,
    )


def test_first_of_equal_elements():
    x = torch.zeros(5, 1000)
    x[:, 300:400] = 1
    check(lambda x: (x.argmax(1), x.argmin(1), x.argmax(), x.t().argmax(0)), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_positions_count_in_their_own_order(dtype):
    # Walks over one tensor in different orders are one walk only where no position depends on it.
    x = (torch.randn(5, 20) * 1000).to(dtype)
    check(lambda x: (x.argmax(), x.t().argmax()), x, kernels=2)
    check(lambda x: (x.t().argmin(), x.argmin(), x.amax()), x)
    check(lambda x: (x.view(5, 4, 5).permute(1, 2, 0).argmax(), x.view(4, 25).argmax()), x)
    check(lambda x: (x.view(4, 25).argmax(), x.argmax()), x, kernels=1)
    check(lambda x: (x.view(5, 4, 5).permute(1, 0, 2).flatten(1).argmax(1), x.t().argmax(0)), x)


def test_sums_stay_accurate():
    x = torch.randn(1_000_003) + 1000
    check(lambda x: (x.sum(), x.mean(), x.var()), x, rtol=1e-6, atol=1e-4)
    check(lambda x: x.sum(0), torch.rand(200_000, 3), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_equal_elements_are_their_own_mean(dtype):
    def fn(x):
        norms = [F.layer_norm(x, (7, 11)), F.group_norm(x, 2), F.instance_norm(x)]
        norms.append(F.batch_norm(x.transpose(0, 1), None, None, training=True))
        return [*norms, x.var((2, 3)), torch.var_mean(x, -1)[1]]

    values = torch.tensor([65504.0, 1e4 / 3, -777.7, 0.1, 1e-7, 0.0]).to(dtype)
    x = values[None, :, None, None].expand(4, 6, 7, 11).transpose(0, 1).contiguous()
    *zeros, mean = compiled(fn, x)(x)
    assert torch.equal(mean, x[..., 0])
    assert [float(zero.abs().max()) < 1e-4 for zero in zeros] == [True] * 5


def test_variances_that_overflow_are_infinite():
    x = torch.full((2, 33), 1e20)
    x[1, ::2] = -1e20
    check(lambda x: (x.var(-1), F.layer_norm(x, (33,))), x)


@pytest.mark.parametrize("shape", [(3, 1 << 17), (1 << 16, 5), (1 << 12, 130), (1, 1 << 18)])
def test_few_long_rows_and_many_short_ones(shape):
    check(
        lambda x: (x.sum(-1), x.sum(0), x.softmax(-1), x.softmax(0), x.argmin(-1)),
        torch.randn(shape),
        rtol=1e-4,
        atol=1e-4,
    )


def test_empty():
    check(
        lambda x: (
            x[:0].sum(),
            x[:0].mean(),
            x[:, :0].sum(1),
            x[:, :0].prod(1),
            x[:0].softmax(1),
        ),
        torch.randn(4, 5),
    )


def test_scalars_and_single_elements():
    check(
        lambda x: (x[0, 0].sum(), x[0, 0].softmax(0), x[0, 0].max(), x[:1, :1].argmax()),
        torch.randn(2, 3),
    )


def test_strided_inputs():
    check(lambda x: (x.sum(0), x.sum(1), x.softmax(-1)), torch.randn(20, 30).t(), **CLOSE)
    check(lambda x: (x.sum(0), x.sum(1)), torch.randn(30, 40)[:, ::2], **CLOSE)
    check(lambda x: (x.sum(0), x.mean(1)), torch.randn(1, 40).expand(30, 40), **CLOSE)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_softmax_is_one_kernel(dim):
    check(lambda x: x.softmax(dim), torch.randn(16, 33, 65), kernels=1, **CLOSE)
    check(lambda x: x.log_softmax(dim), torch.randn(16, 33, 65), kernels=1, **CLOSE)


def test_norms_are_one_kernel():
    x, w = torch.randn(16, 33, 65), torch.randn(65)
    check(lambda x, w: F.layer_norm(x, (65,), w, w), x, w, kernels=1, **CLOSE)
    check(lambda x: F.layer_norm(x, (33, 65)), x, kernels=1, **CLOSE)
    check(lambda x, w: F.rms_norm(x, (65,), w), x, w, kernels=1, **CLOSE)
    check(
        lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w,
        x,
        w,
        kernels=1,
        **CLOSE,
    )


def test_residual_norm_and_activation_are_one_kernel():
    x, w = torch.randn(16, 33, 65), torch.randn(65)
    check(
        lambda x, y, w: F.gelu(F.layer_norm(x + y, (65,), w, w)),
        x,
        x + 1,
        w,
        kernels=1,
        **CLOSE,
    )


def test_norms_of_turned_memory():
    x, w = torch.randn(2, 24, 9, 11), torch.randn(24)

    def norm(x, w):
        return F.layer_norm(x.permute(0, 2, 3, 1), (24,), w, w).permute(0, 3, 1, 2)

    # One kernel walks by columns, and turns what it writes in blocks.
    check(norm, x, w, kernels=1, **CLOSE)
    check(lambda x, w: norm(x * 2, w).relu() + x, x, w, **CLOSE)
    check(lambda x: F.rms_norm(x.mT, (9,)), x, **CLOSE)
    check(lambda x: F.rms_norm(x.permute(0, 2, 3, 1), (24,)), x, **CLOSE)


def _keeps_strides(fn, *args):
    """Whether torch's fake result is laid out as its real one: group_norm's is not in 2.14."""
    with FakeTensorMode() as mode:
        fake = fn(*map(mode.from_tensor, args))
    return fake.stride() == fn(*args).stride()


def test_convolutional_norms():
    x, w, v = torch.randn(4, 6, 9, 11), torch.randn(6), torch.rand(6)
    channels_last = x.to(memory_format=torch.channels_last)
    check(lambda x, w, v: F.batch_norm(x, w, v, w, w), x, w, v, kernels=1, **CLOSE)
    check(lambda x, w, v: F.batch_norm(x, w, v, w, w), channels_last, w, v, kernels=1, **CLOSE)
    check(
        lambda x, w: F.batch_norm(x, None, None, w, w, training=True), x, w, kernels=1, **CLOSE
    )
    check(lambda x, w: F.group_norm(x, 3, w, w), x, w, kernels=1, **CLOSE)
    for groups in (1, 2, 3, 6):
        fn = lambda x, w: F.group_norm(x, groups, w, w).relu()  # noqa: B023, E731
        if _keeps_strides(fn, channels_last, w):
            check(fn, channels_last, w, **CLOSE)
    far = channels_last + 300
    run = compiled(lambda x: F.group_norm(x, 2), far)
    torch.testing.assert_close(
        run(far)[0], F.group_norm(far.double(), 2).float(), atol=3e-4, rtol=0
    )
    check(lambda x: F.instance_norm(x), x, **CLOSE)


def test_siblings_share_one_walk():
    check(
        lambda x: (x.sum(-1), x.amax(-1), (x * x).sum(-1)),
        torch.randn(64, 200),
        kernels=1,
        **CLOSE,
    )


def test_softmax_through_a_transpose_is_one_kernel():
    def fn(x):
        flat = (x + 1).transpose(0, 1).reshape(33 * 16, 65).softmax(-1)
        return flat.view(33, 16, 65).transpose(0, 1).contiguous()

    check(fn, torch.randn(16, 33, 65), kernels=1, **CLOSE)


@pytest.mark.parametrize("shape", [(2,), (3, 5), (4, 3, 20), (2, 100)])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_extremes_of_bools(shape, share):
    x = torch.rand(shape) < share

    def fn(x):
        return x.amax(0), x.amin(-1, True), x.max(), x.min(), *x.max(-1), *x.min(0)

    check(fn, x, externs=0)


@pytest.mark.parametrize("dim", [0, 1])
def test_sums_of_many_numbers_are_accurate(dim):
    x = torch.rand(2048, 2048)
    (total,) = compiled(lambda x: (x * 2).sum(dim), x)(x)
    exact = (x.double() * 2).sum(dim)
    assert ((total - exact).abs() / exact).max() < 5e-7


@pytest.mark.parametrize("columns", [1, 3, 16, 33, 48, 64, 100, 129])
def test_tall_narrow_columns(columns):
    x = torch.rand(3000, columns)
    check(lambda x: ((x * 2).sum(0), x.amax(0), x.argmin(0)), x, **CLOSE)


LONG = {
    "all": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "deviation": lambda x: x.std(),
    "columns": lambda x: x.view(-1, 2).sum(0),
    "middle": lambda x: x.view(4, -1, 4).sum(1),
    "transposed": lambda x: x.view(1024, -1).t().sum(1),
    "beside a scan": lambda x: x.sum() + x.cumsum(0)[-1] * 0,
    "of computed positions": lambda x: x[torch.arange(x.numel()) ^ 1].sum(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LONG)
def test_the_error_does_not_grow_with_the_length(name, dtype):
    fn, x = LONG[name], (torch.rand(1 << 20) * 0.01 + 0.01).to(dtype)
    (actual,) = compiled(fn, x)(x)
    exact = fn(x.double())

    def error(value):
        return ((value.double() - exact) / exact).abs().max().item()

    # Accumulated in float32; the result is rounded to the dtype. A loop with a scan in it sums in
    # fewer chunks.
    limit = (1e-6 if name == "beside a scan" else 6e-7) + (
        torch.finfo(dtype).eps if dtype != torch.float32 else 0
    )
    assert error(actual) <= 2 * error(fn(x)) + limit


@pytest.mark.parametrize("place, spread", [(0, 1), (3e5, 1), (1e38, 1e36), (-1e-38, 1e-38)])
def test_variances_far_from_zero(place, spread):
    """In double precision, as eager has them: right to the last place wherever the mean is."""

    def fn(x):
        return x.var(-1), x.std(0), x.std(), *torch.var_mean(x, 0), *torch.std_mean(x, -1)

    x = (torch.randn(48, 70, dtype=torch.float64) * spread + place).float()
    x[3, 0] = place + 20 * spread  # a first element far from the others
    for actual, exact in zip(compiled(fn, x)(x), fn(x.double())):
        torch.testing.assert_close(actual, exact.float(), rtol=2e-7, atol=1e-45)


@pytest.mark.parametrize("pool", [F.avg_pool2d, F.max_pool2d])
def test_values_kept_where_an_outer_dimension_is_vectorised(pool):
    """The lanes are channels, whose elements are 16 apart in the result."""
    scale, shift = torch.randn(2, 16, 1, 1), torch.randn(2, 16, 1, 1)

    def fn(x):
        y = pool(x * scale + shift, 3, 1, 1)
        return F.group_norm(y, 1), y - y.mean((1, 2, 3), keepdim=True)

    check(fn, torch.randn(2, 16, 4, 4), **CLOSE)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int64, torch.float32, torch.uint8])
def test_sums_into_bools(dtype, dynamic):
    def fn(x):
        kept = [x.sum(d, dtype=torch.bool) for d in (0, 1, (0, 1))]
        return [*kept, x.prod(0, dtype=torch.bool), x.sum(dtype=torch.bool)]

    run = minidynamo.compile(fn, fullgraph=True, dynamic=dynamic)
    for rows in (4, 6):
        # Even numbers of true ones in the first column, and of halves, which are true.
        x = torch.zeros(rows, 3, dtype=dtype)
        x[:2, 0] = 2
        x[1, 1] = 0.5 if dtype.is_floating_point else 1
        for got, wanted in zip(run(x), fn(x), strict=True):
            assert got.dtype == torch.bool and torch.equal(got, wanted)
