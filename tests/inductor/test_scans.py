"""Running sums, products and extremes."""

import pytest
import torch
from inductor_testing import check, compiled

X = torch.randn(6, 5, 40)
LONG = torch.randn(3, 3000)
NAN = torch.where(X > 1.5, torch.nan, X)
TIES = torch.randint(-2, 3, (6, 5, 40))
SCANS = {
    "last": lambda x: torch.cumsum(x, -1),
    "first": lambda x: torch.cumsum(x, 0),
    "middle": lambda x: torch.cumsum(x, 1),
    "product": lambda x: torch.cumprod(x, -1),
    "product, first": lambda x: torch.cumprod(x, 0),
    "dtype": lambda x: torch.cumsum(x, -1, dtype=torch.float64),
    "of something": lambda x: torch.cumsum(x.sin() + 1, 1),
    "then something": lambda x: torch.cumsum(x, 1) * 2 + x,
    "then a sum": lambda x: torch.cumsum(x, -1).sum(-1),
    "twice": lambda x: torch.cumsum(torch.cumsum(x, -1), 0),
    "of ones": lambda x: torch.cumsum(torch.ones(x.shape[-1]), 0) * x,
    "of a broadcast": lambda x: torch.cumsum(x[:, :1].expand(x.shape), 1),
    "transposed": lambda x: torch.cumsum(x.transpose(0, -1), 0),
    "strided": lambda x: torch.cumsum(x[..., ::2], -1),
    "bool": lambda x: torch.cumsum(x > 0, -1),
    "bfloat16": lambda x: torch.cumsum(x.bfloat16(), -1),
    "half": lambda x: torch.cumsum(x.half(), 0),
    "double": lambda x: torch.cumsum(x.double(), -1),
    "of a softmax": lambda x: torch.cumsum(x.softmax(-1), -1),
    "normalised": lambda x: (y := torch.cumsum(x.abs(), -1)) / y.amax(-1, True),
}
EXTREMES = {
    "cummax": lambda x: torch.cummax(x, -1),
    "cummin": lambda x: torch.cummin(x, -1),
    "cummax, first": lambda x: torch.cummax(x, 0),
    "cummin, middle": lambda x: torch.cummin(x, 1),
    "logcumsumexp": lambda x: torch.logcumsumexp(x.float(), -1),
    "logcumsumexp, first": lambda x: torch.logcumsumexp(x.float(), 0),
}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("name", SCANS)
def test_scans(name):
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if name in ("bfloat16", "half") else CLOSE
    check(SCANS[name], X, externs=0, **tolerance)


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("x", [X, NAN, TIES], ids=["values", "nan", "ties"])
def test_extremes(name, x):
    # Of few rows nothing of a running logsumexp can be done side by side.
    few = name == "logcumsumexp" and x.numel() // x.shape[-1] < 8
    check(EXTREMES[name], x, externs=int(few), **CLOSE)


def test_integers_wrap():
    check(lambda x: torch.cumprod(x, 0), torch.full((70,), 3), externs=0)
    check(lambda x: torch.cumsum(x, 0), torch.full((70,), 100, dtype=torch.uint8), externs=0)
    check(lambda x: torch.cumsum(x, 0, dtype=torch.int8), torch.full((7,), 100), externs=0)


def test_infinities():
    x = torch.tensor([-torch.inf, -torch.inf, 1.0, torch.inf, 2.0, torch.nan, 1.0])
    check(lambda x: (x.cumsum(0), x.logcumsumexp(0), x.cummax(0)[0], x.cummin(0)[0]), x)


def test_sizes():
    for size in [(0,), (3, 0), (1,), (1, 1), ()]:
        x = torch.randn(size)
        check(lambda x: (torch.cumsum(x, 0), torch.cumprod(x, -1)), x, **CLOSE)


@pytest.mark.parametrize("size", [3, 16, 37, 1000])
def test_extremes_along_rows_are_those_of_eager(size):
    """Positions of equal values, zeros' signs, NaN, rows that grow, and integers of every width."""
    x = torch.randn(6, size)
    x[0, size // 2] = torch.nan
    x[1] = x[1].sort()[0]
    x[2] = x[2].round()
    x[3] = torch.where(x[3] > 0, 0.0, -0.0)
    x[4] = -torch.inf
    x[5, ::2] = torch.inf
    run = check(lambda x: (*x.cummax(-1), *x.cummin(-1)), x, externs=0, rtol=0, atol=0)
    values, _, smallest, _ = run(x)
    assert torch.equal(values[3].signbit(), x[3].cummax(-1)[0].signbit())
    assert torch.equal(smallest[3].signbit(), x[3].cummin(-1)[0].signbit())
    for dtype in (torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8):
        given = x.nan_to_num(0, 90, -90).mul(9).clamp(-100, 100).to(dtype)
        check(lambda x: (*x.cummax(-1), *x.cummin(-1)), given, externs=0, rtol=0, atol=0)
        if not dtype.is_floating_point:
            check(lambda x: (x.cumsum(-1), x.cumprod(-1)), given, externs=0)
            check(lambda x: x.cumsum(-1, dtype=x.dtype), given, externs=0)


def test_long_rows_are_exact():
    x = torch.rand(200_000)
    (result,) = compiled(lambda x: torch.cumsum(x, 0), x)(x)
    exact = torch.cumsum(x.double(), 0)
    assert ((result - exact).abs() / exact).max() < 1e-7
    check(lambda x: torch.cumsum(x, 1), LONG, externs=0, rtol=1e-5, atol=1e-4)


def test_a_scan_is_fused_with_its_rows():
    check(lambda x: (torch.cumsum(x * 2, -1) + 1).relu(), X, kernels=1, externs=0, **CLOSE)


def scan_and_sum(x):
    """The scan is compared with what a walk over the rows finds."""
    y = (x.exp() + 1).log().cumsum(0)
    return y, y > x.logsumexp(0).exp()


@pytest.mark.parametrize(
    "x", [X[0].double(), X.transpose(0, -1)[:5].double()], ids=["rows", "planes"]
)
def test_a_scan_that_two_walks_want_is_kept(x):
    check(scan_and_sum, x, kernels=1, externs=0)


def test_gradients():
    x = torch.randn(4, 30, requires_grad=True)
    (expected,) = torch.autograd.grad(x.cumsum(1).sin().sum(), x)
    (actual,) = torch.autograd.grad(compiled(lambda x: x.cumsum(1).sin(), x)(x)[0].sum(), x)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    "fn",
    [
        SCANS["last"],
        SCANS["first"],
        SCANS["product"],
        SCANS["normalised"],
        EXTREMES["cummax"],
        EXTREMES["logcumsumexp"],
    ],
)
@pytest.mark.parametrize("x", [X, LONG], ids=["short", "long"])
def test_in_triton(fn, x):
    pytest.importorskip("triton")
    for actual, expected in zip(
        compiled(fn, x, cpu_backend="triton")(x), compiled(fn, x)(x), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)
