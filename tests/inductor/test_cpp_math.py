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
    torch.asin: 1.1,
    torch.acos: 1.1,
    torch.atan: 1.1,
    torch.sinh: 1.8,
    torch.cosh: 1.8,
    torch.asinh: 1.9,
    torch.acosh: 1.9,
    torch.atanh: 1.9,
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


@pytest.mark.parametrize("march", ["x86-64", "x86-64-v3"])
def test_narrower_machines(march, tmp_path):
    """The header's other branches: 4 and 8 lanes, without the instructions of this machine."""
    names = "exp exp2 expm1 log log2 log10 log1p sin cos tan tanh erf erfc sqrt rsqrt".split()
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
