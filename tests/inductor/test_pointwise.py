"""Pointwise operators against eager, dtype by dtype, many operators a graph."""

import functools

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import assert_same, check, compiled

import minidynamo
from minidynamo.inductor import metrics

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 2e-6},
    torch.float64: {},
    torch.bfloat16: {"rtol": 2e-2, "atol": 1e-2},
    torch.float16: {"rtol": 4e-3, "atol": 2e-3},
}
UNARY = [
    *"abs neg sign square reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p".split(),
    *"sin cos tan".split(),
    *"asin acos atan tanh asinh acosh atanh erf erfc lgamma floor ceil trunc round frac".split(),
    *"sigmoid relu isnan isinf isfinite isposinf isneginf signbit logical_not deg2rad".split(),
    *"rad2deg sinc nan_to_num digamma positive".split(),
]
ACTIVATIONS = [
    *"silu mish gelu logsigmoid hardsigmoid hardswish hardtanh leaky_relu elu selu celu".split(),
    *"softplus softsign relu6 tanhshrink hardshrink softshrink".split(),
]
SCALARS = [
    lambda x: x + 1,
    lambda x: x * 2.5,
    lambda x: 1 - x,
    lambda x: x / 3,
    lambda x: x // 3,
    lambda x: x % 3,
    lambda x: torch.fmod(x, 3),
    lambda x: torch.div(x, 3, rounding_mode="trunc"),
    lambda x: torch.div(x, 1.5, rounding_mode="floor"),
    lambda x: x**2,
    lambda x: x**3,
    lambda x: x**0,
    lambda x: x.clamp(0, 2),
    lambda x: x.clamp(min=1),
    lambda x: x.clamp_max(1),
    lambda x: x.eq(1),
    lambda x: x.lt(2.5),
    lambda x: torch.where(x > 1, x, 0),
    lambda x: x.masked_fill(x > 1, 2),
]
FLOAT_ONLY = [
    lambda x: x**0.5,
    lambda x: x**-1.0,
    lambda x: x**1.7,
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: torch.logit(x, eps=0.125),
    lambda x: F.threshold(x, 0.1, 20),
]
INTEGER_ONLY = [
    lambda x: x << 2,
    lambda x: x >> 1,
    lambda x: x & 5,
    lambda x: x | 1,
    lambda x: x ^ 3,
    lambda x: ~x,
]
BINARY = [
    *"add sub mul div maximum minimum fmax fmin eq ne lt le gt ge logical_and logical_or".split(),
    *"logical_xor remainder fmod floor_divide".split(),
]
FLOAT_BINARY = "atan2 hypot copysign xlogy logaddexp logaddexp2 heaviside pow".split()


def values(dtype, count=333, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(count, generator=generator) > 0.5
    if dtype.is_floating_point:
        edges = [0.0, -0.0, torch.nan, 1.0, -1.0, 0.5, 2.5, -2.5, 1e-3, 30.0, -30.0, 88.0]
        return torch.cat([torch.tensor(edges), torch.randn(count, generator=generator) * 3]).to(
            dtype
        )
    low = 0 if dtype == torch.uint8 else -50
    return torch.randint(low, 50, (count,), generator=generator).to(dtype)


def run_all(functions, *args):
    """Those of `functions` that eager accepts, in one graph."""
    known = []
    for function in functions:
        try:
            function(*args)
        except (RuntimeError, TypeError, IndexError):
            continue
        known.append(function)
    results = compiled(lambda *a: tuple(f(*a) for f in known), *args)(*args)
    tolerance = max(
        (TOLERANCE.get(arg.dtype, {}) for arg in args), key=lambda t: t.get("rtol", 0.0)
    )
    for function, actual in zip(known, results, strict=True):
        assert_same(actual, function(*args), **tolerance)
    return len(known)


def named(module, names):
    return [getattr(module, name) for name in names]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unary_floats(dtype):
    functions = named(torch, UNARY) + named(F, ACTIVATIONS) + SCALARS + FLOAT_ONLY
    assert run_all(functions, values(dtype)) > 70


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool], ids=str)
def test_unary_integers(dtype):
    bits = INTEGER_ONLY[2:] if dtype == torch.bool else INTEGER_ONLY
    assert run_all(named(torch, UNARY) + SCALARS + bits, values(dtype)) > 30


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8, torch.bool], ids=str)
def test_binary(dtype):
    y = values(dtype, seed=1)
    if not dtype.is_floating_point and dtype != torch.bool:
        y = torch.where(y == 0, torch.ones_like(y), y)
    functions = named(torch, BINARY + (FLOAT_BINARY if dtype.is_floating_point else []))
    assert run_all(functions, values(dtype), y) > 10


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_conversions(dtype):
    x = values(dtype)
    if dtype.is_floating_point:
        x = x.nan_to_num(0).clamp(0, 100)
    targets = [*FLOATS, *INTEGERS, torch.bool]
    run_all([lambda x, t=target: x.to(t) for target in targets], x)


@pytest.mark.parametrize(
    "left", [torch.float32, torch.bfloat16, torch.int64, torch.uint8], ids=str
)
def test_promotion(left):
    functions = named(torch, "add mul div maximum lt eq where atan2".split()[:-2])
    for right in (torch.float64, torch.float16, torch.int32, torch.bool):
        run_all(functions, values(left, 50), values(right, 50, 1))
        run_all(functions, values(left, 50), values(right, 1, 1)[-1])


def test_ternary():
    x, y = values(torch.float32), values(torch.float32, seed=1)
    run_all(
        [
            lambda x, y: torch.where(x > y, x, y),
            lambda x, y: torch.addcmul(x, y, y, value=2),
            lambda x, y: torch.addcdiv(x, y, x, value=0.5),
            lambda x, y: torch.lerp(x, y, 0.3),
            lambda x, y: torch.add(x, y, alpha=3),
            lambda x, y: torch.rsub(x, y, alpha=2),
            lambda x, y: x.clamp(y, y + 1),
        ],
        x,
        y,
    )


def test_zeros_keep_their_sign():
    def run(x, y):
        bounded = x.clamp(0, 1), x.clamp_min(0), x.clamp(max=0), F.relu6(x)
        return (x.relu(), *bounded, torch.add(x, y, alpha=2), torch.sub(y, x, alpha=3))

    x = torch.tensor([0.0, -0.0, 1, -1, torch.inf, torch.nan, -torch.inf, 3e38, -3e38] * 2)
    y = x.flip(0)
    for actual, expected in zip(compiled(run, x, y)(x, y), run(x, y)):
        assert actual.nan_to_num(7).equal(expected.nan_to_num(7))
        known = ~expected.isnan()
        assert actual.signbit()[known].equal(expected.signbit()[known])


def test_shifts_beyond_the_width():
    x = torch.tensor([255, 254, 129, 128, 3, 0] * 6, dtype=torch.uint8)
    counts = torch.tensor([0, 1, 7, 8, 31, 255], dtype=torch.uint8).repeat_interleave(6)
    check(lambda x, n: (x >> n, x << n), x, counts)
    check(lambda x, n: (x >> n, x << n), x.to(torch.int8), counts.to(torch.int8))


def test_a_chain_is_one_kernel():
    check(lambda x: ((x + 1) * 2 - x).exp().relu(), torch.randn(100, 30), kernels=1, externs=0)


def test_division_by_zero_raises_as_in_eager():
    x = torch.arange(4)
    run = compiled(lambda x, y: x // y, x, x + 1)
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        run(x, x)


@pytest.mark.parametrize(
    "size", [(0,), (1,), (), (7,), (16,), (17,), (3, 0, 2), (1, 1), (2, 31)]
)
def test_sizes(size):
    check(lambda x: (x * 2 + 1).exp(), torch.randn(size))


def test_large_enough_for_threads():
    check(lambda x: (x * 2 + 1).tanh(), torch.randn(300_001), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_comparisons_are_of_what_is_stored(dtype):
    """Computed in float32, a value differs from its own largest, which was rounded."""
    x = torch.randn(64, dtype=dtype)
    check(lambda x: (F.gelu(x) == F.gelu(x).amax(), x.sin() < 0.1, x == 0.1), x)
    check(lambda x: x == 0.1, torch.full((3,), 0.1, dtype=dtype))
    leaf, other = (x.clone().requires_grad_() for _ in range(2))
    minidynamo.compile(lambda x: F.gelu(x).amax())(leaf).backward()
    F.gelu(other).amax().backward()
    assert torch.equal(leaf.grad != 0, other.grad != 0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_activations_where_their_pieces_meet(dtype):
    functions = [
        F.hardswish,
        F.hardsigmoid,
        F.relu6,
        F.hardtanh,
        F.hardshrink,
        lambda x: F.softshrink(x, 0.3),
        lambda x: F.softshrink(x, 1.0),
        F.elu,
        F.selu,
    ]
    ends = [
        -6.0,
        -3.0,
        -1.0,
        -0.3,
        -0.0,
        0.0,
        0.3,
        0.5,
        1.0,
        3.0,
        6.0,
        torch.nan,
        0.301,
        torch.inf,
    ]
    given = torch.tensor(ends, dtype=dtype)

    def run(x):
        return tuple(fn(x) for fn in functions)

    results = []
    for fn in (run, minidynamo.compile(run)):
        x = given.clone().requires_grad_()
        values = fn(x)
        gradients = [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for y in values]
        results.append([*values, *gradients])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, equal_nan=True, **TOLERANCE[dtype])


def test_gradients_of_softshrink_with_symbolic_sizes():
    compiled = minidynamo.compile(lambda x: F.softshrink(x, 0.3), dynamic=True)
    metrics.reset()
    for size in (3, 5):
        x = torch.linspace(-1, 1, size, requires_grad=True)
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
        assert torch.equal(gradient, (x.detach().abs() > 0.3).float())
    assert metrics.uncompiled_graphs == 0


def test_powers_of_doubles():
    """Within two units in the last place of the C library's; what is not ordinary as that."""
    generator = torch.Generator().manual_seed(0)
    x = torch.exp(torch.randn(4000, dtype=torch.float64, generator=generator) * 60)
    y = torch.randn(4000, dtype=torch.float64, generator=generator) * 6
    near = 1 + torch.randn(4000, dtype=torch.float64, generator=generator) * 1e-3
    run = minidynamo.compile(lambda x, y: x**y)
    for base, power in (
        (x, y),
        (near, y * 4e4),
        (1e-300 * x.clamp(1e-8, 1), y.clamp(-1, 1.05)),
    ):
        expected = base**power
        unit = torch.nextafter(expected, torch.full_like(expected, torch.inf)) - expected
        error = (run(base, power) - expected).abs()
        assert (error <= 2 * unit)[expected.isfinite() & (expected < 1e308)].all()
    ends = [0.0, 1.0, 2.0, 0.5, 3.0, 7.0, torch.inf, 1e308, 5e-324, 2000.0, 1e300]
    ends = torch.tensor([*ends, *(-x for x in ends), torch.nan], dtype=torch.float64)
    base, power = (x.contiguous() for x in torch.meshgrid(ends, ends, indexing="ij"))
    for given in (base, base.abs().clamp(5e-324, 1e308)):
        torch.testing.assert_close(
            run(given, power), given**power, equal_nan=True, rtol=4e-16, atol=0
        )


def test_products_of_16_bits_are_rounded_within_cross_and_addr():
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.bfloat16, torch.float16):
        a, b = (torch.randn(50, 3, generator=generator).to(dtype) for _ in range(2))
        column, row = (torch.randn(n, generator=generator).to(dtype) for n in (30, 40))
        start = torch.randn(30, 40, generator=generator).to(dtype)
        exact = {"rtol": 0, "atol": 0}
        check(lambda a, b: torch.linalg.cross(a, b), a, b, **exact)
        check(lambda x, a, b: torch.addr(x, a, b), start, column, row, **exact)
        check(
            lambda x, a, b: torch.addr(x, a, b, beta=0.3, alpha=1.7),
            start,
            column,
            row,
            **exact,
        )
    wide = start.double(), column.double(), row.double()
    check(lambda x, a, b: torch.addr(x, a, b, beta=0.3, alpha=1.7), *wide)


def test_rounding_to_bfloat16_and_back():
    """In one kernel, without the 16 bits in between: ties, NaN, infinities and denormal numbers."""
    torch.manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (4099,), dtype=torch.int32)
    bits[:8] = torch.tensor(
        [0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800001, 0x7FC12345, 0x00000001, 0x00018000, 0],
        dtype=torch.int32,
    )

    def fn(x):
        y = x.bfloat16().float()
        # What NaN becomes depends on where eager finds it.
        return y.view(torch.int32).masked_fill(y.isnan(), 0), y.isnan(), y * 0.5 + 1

    check(fn, bits.view(torch.float32))


def test_rounded_sums_are_kept_for_the_next_walk():
    def fn(x, y):
        z = x + y
        return torch.nn.functional.layer_norm(z, (260,)), z

    check(fn, *(torch.randn(5, 260).bfloat16() for _ in range(2)), kernels=1)


def test_long_chains_of_cheap_operations():
    # Longer than Python's stack is deep for values without memory.
    def steps(x):
        for _ in range(400):
            x = x.t() + 1.5
        return x

    check(steps, torch.randn(4, 4), fallbacks=0)
    check(lambda x: functools.reduce(lambda y, _: y.flip(0), range(300), x), torch.randn(4, 4))
