"""Integer division by tensors: rounding, the values that machines trap on, and zero; divisions by
numbers on GPUs.
"""

import pytest
import torch
from inductor_testing import check, compiled

import minidynamo

DIVISIONS = {
    "floor": lambda a, b: a // b,
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": lambda a, b: a % b,
    "fmod": lambda a, b: torch.fmod(a, b),
    "of a number": lambda a, b: 100 // b + a,
}


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_integer_division(name, dtype):
    low = 0 if dtype == torch.uint8 else -50
    a = torch.randint(low, 50, (301,)).to(dtype)
    b = torch.randint(max(low, -5), 5, (301,)).to(dtype)
    b[b == 0] = 3
    a[:3], b[:3] = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    if name in ("floor", "remainder") and dtype != torch.uint8:
        b[1] = -1  # of the others, eager itself dies
    check(DIVISIONS[name], a, b, externs=0)


@pytest.mark.parametrize("name", DIVISIONS)
def test_division_by_zero_raises(name):
    a = torch.arange(20)
    run = compiled(DIVISIONS[name], a, a + 1)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run(a, a - 3)


def test_promotion():
    a, b = torch.arange(-9, 9), torch.arange(1, 19, dtype=torch.int32)
    check(lambda a, b: (a // b, a % b, b // 3, a / b), a, b, externs=0)
    check(lambda a: a // torch.tensor(4) + a % torch.tensor(-3), a, externs=0)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_numbers_beside_tensors_of_operators_that_are_called(shape):
    # The library is called for divisors that the machine may trap on; a number is not an int64.
    def fn(a, b):
        a.floor_divide_(-1)
        return b // -1, torch.div(b, -1, rounding_mode="trunc")

    first, second = torch.tensor(-128, dtype=torch.int8), torch.tensor(7, dtype=torch.int32)
    args = first.expand(shape).clone(), second.expand(shape).clone()
    expected_args = [a.clone() for a in args]
    results, expected = compiled(fn, *args)(*args), fn(*expected_args)
    for got, wanted in zip((*results, *args), (*expected, *expected_args), strict=True):
        assert got.dtype == wanted.dtype and torch.equal(got, wanted)


def divided_on_a_gpu(x, number, mode):
    """What ATen's kernels for CUDA compute: they multiply by the inverse, rounded."""
    wide = torch.promote_types(x.dtype, torch.float32)
    x, inverse = x.to(wide), 1 / torch.tensor(number, dtype=wide)
    if mode is None:
        return x * inverse
    if mode == "trunc":
        return torch.trunc(x * inverse)
    rest = torch.fmod(x, number)
    quotient = (x - rest) * inverse
    quotient = quotient - ((rest != 0) & ((rest < 0) != (number < 0))).to(wide)
    nearest = torch.floor(quotient)
    nearest = nearest + (quotient - nearest > 0.5).to(wide)
    return torch.where(quotient == 0, torch.copysign(torch.zeros(()), x * inverse), nearest)


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_divide_as_in_kernels_of_a_gpu(mode, dtype):
    pytest.importorskip("triton")
    x = (torch.randn(500) * 20).to(dtype)
    for number in (3, 255.0, -0.7, 1e-30):

        def fn(x, number=number):
            return torch.div(x, number, rounding_mode=mode)

        (result,) = compiled(fn, x, cpu_backend="triton")(x)
        wanted = divided_on_a_gpu(x, number, mode).to(dtype)
        assert torch.equal(result, wanted), number
        rounding = {"rtol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5}
        if mode is None:
            torch.testing.assert_close(result, fn(x), atol=0, **rounding)


def test_numbers_divide_integers_and_zeros_on_a_gpu():
    pytest.importorskip("triton")
    x = torch.arange(-20, 20)
    for number in (0.0, float("inf"), float("nan"), 7):

        def fn(x, number=number):
            return x / number

        (result,) = compiled(fn, x, cpu_backend="triton")(x)
        torch.testing.assert_close(result, fn(x), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_lists_are_divided_by_numbers_on_a_gpu(dtype):
    """Eager's kernels for lists divide, where those for tensors multiply by the inverse."""
    pytest.importorskip("triton")
    xs = [(torch.randn(500) * 20).to(dtype), torch.randn(7, 9).to(dtype)]

    def fn(x, y):
        several = torch._foreach_div([x, y], [0.7, 49.0])
        return *several, *torch._foreach_div([x, y], 49.0), *torch._foreach_div([x], 3)

    compiled = minidynamo.compile(fn, fullgraph=True, options={"cpu_backend": "triton"})
    for result, wanted in zip(compiled(*xs), fn(*xs), strict=True):
        assert torch.equal(result, wanted)
