"""Gamma, error and Bessel functions, binary search; results that are laid out like their input."""

import math

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import check, compiled

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, -2.0, -2.5, 1e-40, 3e38, -3e38]
FUNCTIONS = [
    torch.digamma,
    torch.lgamma,
    torch.erfinv,
    torch.special.erfcx,
    torch.i0,
    torch.special.i0e,
    torch.special.i1,
    torch.special.i1e,
    torch.special.modified_bessel_i0,
    torch.special.modified_bessel_i1,
]


@pytest.fixture(scope="module")
def results():
    every = torch.arange(0, 1 << 32, 1 << 20, dtype=torch.int64).to(torch.int32)
    ranges = [torch.linspace(-a, a, 2011) for a in (0.01, 1.0, 4.0, 20.0, 110.0)]
    ranges.append(torch.tensor([1.0, 2.0]).nextafter(torch.tensor([[0.0], [3.0]])).flatten())
    x = torch.cat([torch.tensor(SPECIAL), every.view(torch.float32), *ranges])
    run = compiled(lambda x: tuple(f(x) for f in FUNCTIONS), x)
    return x, dict(zip(FUNCTIONS, run(x)))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_special_functions(results, function):
    x, values = results
    exact = function(x.double())
    torch.testing.assert_close(
        values[function], exact.float(), rtol=2.4e-7, atol=1.5e-45, equal_nan=True
    )


def test_special_functions_of_other_dtypes():
    run = lambda x: (torch.digamma(x), torch.i0(x), x.lgamma(), x.erfinv())  # noqa: E731
    for dtype in (torch.bfloat16, torch.float64, torch.int64):
        check(run, (torch.randn(40) * 3).to(dtype), rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_bucketize(dtype, count):
    def run(x, edges):
        return (
            torch.bucketize(x * 2, edges),
            torch.bucketize(x, edges, right=True, out_int32=True) + 1,
        )

    x = torch.randint(-20, 20, (5, 9)).to(dtype)
    edges = torch.randint(-20, 20, (count,)).to(dtype)
    if dtype.is_floating_point:
        x[0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    check(run, x, edges.sort()[0], externs=0)
    check(run, x, edges, externs=0)  # also where the edges are not sorted


def test_searchsorted_in_rows():
    def run(rows, x):
        return torch.searchsorted(rows, x.sin(), side="right"), torch.searchsorted(rows[0], x)

    check(run, torch.randn(3, 20).sort()[0], torch.randn(3, 11), externs=0)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_results_laid_out_like_the_input(layout):
    x = torch.randn(2, 4, 6, 8).contiguous(memory_format=layout)
    pooled, places = F.max_pool2d(x, 2, return_indices=True)

    def run(x, pooled, places):
        return F.channel_shuffle(x, 2), F.max_unpool2d(pooled, places, 2)

    results = compiled(run, x, pooled, places)(x, pooled, places)
    for actual, expected in zip(results, run(x, pooled, places)):
        assert torch.equal(actual, expected) and actual.stride() == expected.stride()


@pytest.mark.parametrize("training", [True, False])
def test_statistics_of_half_precision(training):
    def run(x, w, b, mean, var):
        out = torch._native_batch_norm_legit(x, w, b, mean, var, training, 0.5, 1e-5)[0]
        return out, mean + 1

    x, *rest = torch.rand(6, 3, 5), *torch.rand(4, 3)
    given = [t.bfloat16() for t in (x, *rest)]
    check(run, *given, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_whole_powers_of_two(dtype):
    """The power may be infinite, or zero, where the product is neither; a float is one of two."""
    x = torch.tensor([2.0**-20, -0.0, 3.0, math.inf, 0.75], dtype=dtype)
    whole = torch.tensor([30, 2000, -3, -4000, 1])
    for exponent in (
        whole,
        whole.to(torch.uint8),
        whole[2],
        whole.clamp(-9, 9).to(dtype) + 0.5,
    ):
        check(lambda x, n: torch.ldexp(x * 2, n) + 1, x, exponent)
    check(torch.ldexp, whole, whole.clamp(-9, 9).to(dtype) + 0.5)
