"""The vector mathematics of generated kernels against double precision."""

import ctypes
import math
import subprocess

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import compiled

from minidynamo.inductor.codegen.assemble import cpp_prefix
from minidynamo.inductor.runtime.cpp_toolchain import FLAGS, find_compiler

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 1e-40, -1e-40, 3.4e38, -3.4e38]

# Function -> largest error in units in the last place.
ULPS = {
    torch.exp: 1.1,
    torch.exp2: 1.1,
    torch.expm1: 1.6,
    torch.log: 1.0,
    torch.log2: 1.2,
    torch.log10: 1.1,
    torch.log1p: 1.1,
    torch.sin: 1.7,
    torch.cos: 1.7,
    torch.tan: 1.2,
    torch.tanh: 1.5,
    torch.erf: 1.5,
    torch.sqrt: 0.51,
    torch.rsqrt: 1.6,
    torch.asin: 1.9,
    torch.acos: 1.2,
    torch.atan: 1.5,
    torch.sinh: 0.51,
    torch.cosh: 0.51,
    torch.asinh: 0.51,
    torch.acosh: 0.51,
    torch.atanh: 1.5,
    torch.erfc: 0.51,
    torch.reciprocal: 0.51,
    F.softplus: 1.9,
    F.logsigmoid: 1.9,
}


def samples():
    every = (
        torch.arange(0, 1 << 32, 65521, dtype=torch.int64).to(torch.int32).view(torch.float32)
    )
    ranges = [torch.linspace(-a, a, 20011) for a in (0.01, 1.0, 4.0, 110.0)]
    return torch.cat([torch.tensor(SPECIAL), every, *ranges])


def error_in_ulps(actual, exact):
    rounded = exact.to(torch.float32)
    toward = torch.nextafter(rounded.abs(), torch.tensor(math.inf))
    ulp = (toward - rounded.abs()).double().clamp_min(2.0**-149)
    error = (actual.double() - exact).abs() / ulp
    return error[torch.isfinite(rounded) & torch.isfinite(actual)]


@pytest.fixture(scope="module")
def results():
    x = samples()
    functions = list(ULPS)
    run = compiled(lambda x: tuple(f(x) for f in functions), x)
    return x, dict(zip(functions, run(x)))


@pytest.mark.parametrize("function", ULPS, ids=lambda f: f.__name__)
def test_error(results, function):
    x, values = results
    exact, actual = function(x.double()), values[function]
    assert error_in_ulps(actual, exact).max() <= ULPS[function]
    rounded = exact.to(torch.float32)
    special = ~torch.isfinite(rounded) | ~torch.isfinite(actual)
    # Within an ulp of the largest number, either side of overflow is right.
    border = exact.abs().sub(torch.finfo(torch.float32).max).abs() < 1e32
    assert torch.equal(
        actual[special & ~border].nan_to_num(7), rounded[special & ~border].nan_to_num(7)
    )


@pytest.mark.parametrize(
    "function",
    [torch.sin, torch.tan, torch.tanh, torch.expm1, torch.log1p, torch.erf, torch.sqrt],
)
def test_zero_keeps_its_sign(results, function):
    _, values = results
    assert torch.signbit(values[function][:2]).tolist() == [False, True]


def test_pow():
    base = torch.cat([torch.tensor(SPECIAL), torch.linspace(-20, 20, 1000).exp()])
    power = torch.cat([torch.tensor(SPECIAL), torch.linspace(-3, 3, 1000)])
    x = base[:, None].expand(-1, power.numel()).reshape(-1)
    y = power[None, :].expand(base.numel(), -1).reshape(-1)
    (actual,) = compiled(lambda x, y: (torch.pow(x, y),), x, y)(x, y)
    exact = torch.pow(x.double(), y.double())
    normal = exact.abs() > 1.2e-38
    assert error_in_ulps(actual[normal], exact[normal]).max() <= 1.0
    lost = torch.isnan(actual) != torch.isnan(exact)
    assert not lost.any()


def test_exp_of_doubles():
    special = [
        0.0,
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        709.782712893384,
        709.79,
        1e300,
        -1e300,
    ]
    special += [-745.13, -745.2, -708.5, 2.0**-60, -(2.0**-1074)]
    x = torch.cat(
        [
            torch.tensor(special, dtype=torch.float64),
            torch.linspace(-740, 709.7, 50_001, dtype=torch.float64),
            torch.randn(50_000, dtype=torch.float64),
        ]
    )
    (actual,) = compiled(lambda x: (torch.exp(x),), x)(x)
    expected = torch.exp(x)
    torch.testing.assert_close(actual, expected, rtol=2.0**-51, atol=5e-324, equal_nan=True)
    assert (actual == 0).equal(expected == 0) and actual.isinf().equal(expected.isinf())


# Function of doubles -> largest error in units in the last place, eager's own (below 1) included.
ULPS_OF_DOUBLES = {
    **dict.fromkeys([torch.asin, torch.acos, torch.atan, torch.sinh, torch.cosh], 2.5),
    **dict.fromkeys([torch.asinh, torch.acosh, torch.atanh, torch.log1p, torch.expm1], 3.5),
    **dict.fromkeys([torch.log, torch.log2, torch.log10, torch.exp2, torch.erf], 2.0),
    **dict.fromkeys([torch.sin, torch.cos, torch.tan, torch.tanh], 3.5),
    torch.erfc: 5.0,
}


def test_functions_of_doubles():
    special = torch.tensor([*SPECIAL, 0.5, -0.5, 1e-310, 709.7, -745.0], dtype=torch.float64)
    ranges = (1e-9, 0.3, 1.0, 1.5, 6.0, 30.0, 400.0, 709.0, 1e5, 1e12, 1e100, 1e300)
    x = torch.cat(
        [special, *(torch.linspace(-a, a, 4001, dtype=torch.float64) for a in ranges)]
    )
    functions = list(ULPS_OF_DOUBLES)
    results = compiled(lambda x: tuple(f(x) for f in functions), x)(x)
    for function, actual in zip(functions, results):
        expected = function(x)
        assert actual.isnan().equal(expected.isnan()), function
        assert torch.signbit(actual)[~actual.isnan()].equal(
            torch.signbit(expected)[~actual.isnan()]
        )
        normal = expected.isfinite() & (expected.abs() > 1e-300)
        ulp = torch.nextafter(expected.abs(), torch.tensor(math.inf).double()) - expected.abs()
        error = ((actual - expected).abs() / ulp)[normal]
        assert error.max() <= ULPS_OF_DOUBLES[function], function
        assert (
            actual[~normal].nan_to_num(7).allclose(expected[~normal].nan_to_num(7), 0, 1e-312)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_functions_of_two_numbers(dtype):
    some = torch.cat([torch.tensor(SPECIAL), torch.randn(90), torch.randn(20) * 1e30])
    x, y = (t.reshape(-1).to(dtype) for t in torch.meshgrid(some, some, indexing="ij"))
    functions = (torch.fmod, torch.remainder, torch.nextafter, torch.atan2, torch.hypot)
    results = compiled(lambda x, y: tuple(f(x, y) for f in functions), x, y)(x, y)
    for function, actual in zip(functions, results):
        exact = function is torch.nextafter
        expected = function(x, y)
        if function in (torch.fmod, torch.remainder):
            # Exact in C; eager's own is not where the quotient is huge.
            exact, pairs = True, zip(x.tolist(), y.tolist())
            expected = torch.tensor([_modulo(function, a, b) for a, b in pairs], dtype=dtype)
        assert actual.isnan().equal(expected.isnan()), function
        assert torch.signbit(actual)[~actual.isnan()].equal(
            torch.signbit(expected)[~actual.isnan()]
        )
        close = dict(rtol=0.0, atol=0.0) if exact else dict(rtol=2.5e-7, atol=3e-45)
        torch.testing.assert_close(actual, expected, equal_nan=True, **close)


def _modulo(function, a, b):
    if math.isinf(a) or b == 0 or a != a or b != b:
        return math.nan
    rest = math.fmod(a, b)
    return rest + b if function is torch.remainder and rest and (rest < 0) != (b < 0) else rest


@pytest.mark.parametrize("march", ["x86-64", "x86-64-v3"])
def test_narrower_machines(march, tmp_path):
    """The header's other branches: 4 and 8 lanes, without the instructions of this machine."""
    names = "exp exp2 expm1 log log2 log10 log1p sin cos tan tanh erf erfc sqrt rsqrt "
    names = (names + "asin acos atan sinh cosh asinh acosh atanh").split()
    calls = "".join(
        f"for (i64 i = 0; i < n; i += N) st(out + {k} * n + i, md::{name}(ld<N>(in + i, All{{}})),"
        " All{});\n"
        for k, name in enumerate(names)
    )
    source = tmp_path / "math.cpp"
    source.write_text(
        f'{cpp_prefix()}\nextern "C" void run(const float* in, float* out, i64 n) {{\n'
        f"using namespace md; constexpr int N = BYTES / 4;\n{calls}}}\n"
    )
    flags = [flag for flag in FLAGS if not flag.startswith("-march")]
    library = tmp_path / "math.so"
    command = [*find_compiler().command, *flags, f"-march={march}", "-shared", str(source)]
    subprocess.run([*command, "-o", str(library)], check=True)
    x = samples()
    x = x[: x.numel() // 16 * 16].contiguous()
    out = torch.empty(len(names), x.numel())
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, out)]
    ctypes.CDLL(str(library)).run(*pointers, ctypes.c_int64(x.numel()))
    for name, actual in zip(names, out):
        assert error_in_ulps(actual, getattr(torch, name)(x.double())).max() < 1.8, name


ODD = "sin tan asin atan sinh tanh asinh atanh erf expm1 log1p".split()


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_numbers_alone_keep_the_sign_of_zero(shape):
    x = torch.full(shape, -0.0)
    one = torch.ones(shape)

    def fn(x, y):
        turned = torch.atan2(x, -y), torch.copysign(y, x), torch.atan2(-y, x)
        return *turned, *(getattr(torch, name)(x) for name in ODD)

    for actual, expected in zip(compiled(fn, x, one)(x, one), fn(x, one), strict=True):
        torch.testing.assert_close(actual, expected)
        assert torch.equal(actual.signbit(), expected.signbit())
