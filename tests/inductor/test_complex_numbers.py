"""Operators on complex numbers: kernels of their parts, with ATen's results also at the edges."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo import events
from minidynamo.inductor import metrics

EDGES = [0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan, 1e30, 1e-30, 3e38]


@pytest.fixture(autouse=True)
def errors_are_told():
    minidynamo.reset()
    metrics.reset()
    with minidynamo.config.patch(raise_internal_errors=True):
        yield


def numbers(*size, dtype=torch.complex64):
    return torch.randn(*size, dtype=dtype)


def called(fn, *args):
    """The operators that the compiled function's plan calls, without views."""
    texts = []
    with events.subscribe(lambda event: texts.append(event.text), events.OutputCodeEvent):
        fn(*args)
    words = "\n".join(texts).split()
    names = {
        word.partition("(")[0] for word in words if word.startswith("aten.") and "(" in word
    }
    return names - {"aten.view_as_real", "aten.view_as_complex"}


def as_parts(result):
    return torch.view_as_real(result.resolve_conj()) if result.is_complex() else result


OPERATORS = {
    "add": lambda z, w: z + w,
    "sub": lambda z, w: z - w,
    "mul": lambda z, w: z * w,
    "div": lambda z, w: z / w,
    "by real numbers": lambda z, w: (z + w.real, z - w.real, z * w.real, z / w.real),
    "real numbers by": lambda z, w: (w.real - z, w.real * z, w.imag / z),
    "by a number": lambda z, w: (z + 2, z - 2, z * 2, z / 2, 3 - z, z * 1j, z + 2j),
    "neg": lambda z, w: -z,
    "conj": lambda z, w: (z.conj() * w, (z * w).conj().resolve_conj()),
    "reciprocal": lambda z, w: z.reciprocal(),
    "square": lambda z, w: z**2,
    "exp": lambda z, w: z.exp(),
    "sgn": lambda z, w: z.sgn(),
    "abs and angle": lambda z, w: (z.abs(), z.angle()),
    "polar": lambda z, w: torch.polar(z.real, w.imag),
    "complex": lambda z, w: torch.complex(w.imag, z.real),
    "where": lambda z, w: torch.where(z.real > w.imag, z, w),
    "equal": lambda z, w: (z == w, z != w),
    "mean": lambda z, w: z.view(-1, 2).mean(1),
}


def agrees(ours, theirs, ulps=8):
    a, b = as_parts(ours), as_parts(theirs)
    if not a.is_floating_point():
        return a == b
    close = (a - b).abs() <= ulps * torch.finfo(a.dtype).eps * b.abs()
    signs = (torch.signbit(a) == torch.signbit(b)) | a.isnan() | (b != 0)
    return ((a == b) | (a.isnan() & b.isnan()) | close) & signs


@pytest.mark.parametrize("name", OPERATORS)
def test_edges(name):
    """Infinities, NaNs, overflow and the signs of zeros are those of eager, with vectors of the
    processor or element by element: it differs between them.
    """
    pairs = torch.tensor(list(itertools.product(EDGES, EDGES)))
    count = len(pairs)
    z = torch.view_as_complex(pairs.repeat_interleave(count, 0))
    w = torch.view_as_complex(pairs.repeat(count, 1))
    if name == "polar":  # the sine of large angles is libm's in eager, whatever the processor's
        w = torch.where(w.imag.abs() > 1e4, 1, w)
    fn, step = OPERATORS[name], 2 if name == "mean" else 1
    got, want = minidynamo.compile(fn, fullgraph=True)(z, w), fn(z, w)
    single = [fn(z[i : i + step], w[i : i + step]) for i in range(0, len(z), step)]
    if not isinstance(want, tuple):
        got, want, single = (got,), (want,), [(each,) for each in single]
    for ours, theirs, others in zip(got, want, zip(*single, strict=True), strict=True):
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
        assert (agrees(ours, theirs) | agrees(ours, torch.cat(others))).all()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", OPERATORS)
def test_random_numbers(name, dtype):
    z, w = (numbers(40, 6, dtype=dtype).t() for _ in range(2))
    if name == "mean":
        z = z.contiguous()
    fn = OPERATORS[name]
    compiled = minidynamo.compile(fn, fullgraph=True)
    assert not called(compiled, z, w)
    got, want = compiled(z, w), fn(z, w)
    for ours, theirs in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want))):
        assert ours.dtype == theirs.dtype
        assert name == "abs and angle" or ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs)


def rotated(x, f):
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * f[:, None]).flatten(3)


def turned(x, f):
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real((z * f[:, None]).transpose(1, 2)).flatten(3)


def filtered(x, w):
    spectrum = torch.fft.rfft(x)
    return torch.fft.irfft(spectrum * w + spectrum.conj() / (1 + spectrum.abs()), n=x.shape[-1])


def activated(z, b):
    size = z.abs()
    return torch.complex(F.relu(z.real), F.relu(z.imag)) + z / (size + 0.1) * F.relu(size + b)


def moved(z, w):
    x = torch.cat([z.mT, w.mT.conj()], 1)[:, 1:-1]
    x = F.pad(x, (1, 0))[:, 1:]
    x = torch.where(x.real > 0, x, x.roll(1, 0)).sum(-1, keepdim=True) * x.mean(0)
    first, second = x[..., :2].unbind(-1)
    return x.unsqueeze(0).expand(2, -1, -1)[1], first * second


def written(z, w):
    out = torch.zeros(6, 8, dtype=z.dtype)
    out[1:4, :5] = z * w
    out[0] = 2j
    return out * out


CASES = {
    "rotary": (rotated, lambda: (torch.randn(2, 5, 3, 8), numbers(5, 4))),
    "rotary, heads first": (turned, lambda: (torch.randn(2, 5, 3, 8), numbers(5, 4))),
    "filters": (filtered, lambda: (torch.randn(3, 20), numbers(11))),
    "activations": (activated, lambda: (numbers(5, 7), torch.randn(7))),
    "moves": (moved, lambda: (numbers(6, 5), numbers(6, 5))),
    "writes": (written, lambda: (numbers(3, 5), numbers(5))),
}


def step(fn, args):
    """Results and gradients."""
    args = [arg.detach().clone().requires_grad_() for arg in args]
    results = fn(*args)
    results = results if isinstance(results, tuple) else (results,)
    sum(as_parts(r).mul(0.7).cos().sum() for r in results).backward()
    return [r.detach() for r in results], [arg.grad for arg in args]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, dynamic):
    fn, make = CASES[name]
    args = make()
    compiled = minidynamo.compile(fn, fullgraph=True, dynamic=dynamic)
    for _ in range(2):
        for ours, theirs in zip(step(compiled, args), step(fn, args), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
            assert [x.stride() for x in ours] == [x.stride() for x in theirs]
        args = make()


@pytest.mark.parametrize("name", ["rotary", "rotary, heads first", "activations", "writes"])
def test_no_operator_on_complex_numbers_is_called(name):
    fn, make = CASES[name]
    assert not called(minidynamo.compile(fn), *make())


def test_one_kernel_between_transforms():
    args = CASES["filters"][1]()
    assert called(minidynamo.compile(filtered), *args) == {"aten._fft_r2c", "aten._fft_c2r"}
    assert metrics.generated_kernel_count == 1


def test_other_sizes_and_dtypes_compile_again():
    compiled = minidynamo.compile(activated, fullgraph=True, dynamic=False)
    for size, dtype in ((7, torch.complex64), (9, torch.complex64), (9, torch.complex128)):
        args = numbers(5, size, dtype=dtype), torch.randn(size)
        torch.testing.assert_close(compiled(*args), activated(*args))
    assert metrics.compiled_graphs == 3


def test_results_that_are_views_of_results():
    def fn(z, w):
        product = z * w
        return product, product.real, torch.view_as_real(product), product.mT

    z, w = numbers(4, 5), numbers(4, 5)
    ours, theirs = minidynamo.compile(fn)(z, w), fn(z, w)
    torch.testing.assert_close(ours, theirs)
    for result in (ours, theirs):
        result[1].zero_()
        assert result[0].real.eq(0).all() and result[3].real.eq(0).all()
    torch.testing.assert_close(ours, theirs)


def test_a_view_of_what_nobody_keeps():
    def fn(z):
        rows = torch.view_as_real(z * 2)
        return rows, rows[..., 0]

    z = numbers(4, 5)
    ours, theirs = minidynamo.compile(fn)(z), fn(z)
    torch.testing.assert_close(ours, theirs)
    ours[0].zero_()
    assert ours[1].eq(0).all()


def test_inputs_that_are_written():
    def fn(z, w):
        z.mul_(w)
        w.real.add_(z.imag)
        z[0] = w[1].conj()
        return z.abs() + w.real

    args = numbers(4, 5), numbers(4, 5)
    ours, theirs = [[x.clone() for x in args] for _ in range(2)]
    torch.testing.assert_close(minidynamo.compile(fn)(*ours), fn(*theirs))
    torch.testing.assert_close(ours, theirs)


def test_conjugates_as_inputs_and_results():
    def fn(z, w):
        return (z * w).conj(), z.conj(), z.imag * 2, torch.matmul(z, w.mT)

    z, w = numbers(4, 5).conj(), numbers(5, 4).mH
    ours, theirs = minidynamo.compile(fn)(z, w), fn(z, w)
    torch.testing.assert_close(ours, theirs)
    assert [x.stride() for x in ours] == [x.stride() for x in theirs]


def three_factors(z, w):
    return z.conj() * w * z


@pytest.mark.parametrize("lazy", list(itertools.product([False, True], repeat=3)))
def test_conjugates_as_gradients_and_saved_inputs(lazy):
    def make(is_lazy):
        rows = numbers(1, 5).expand(4, 5)
        return rows.conj() if is_lazy else rows

    z, w, grad = map(make, lazy)
    results = []
    for run in (minidynamo.compile(three_factors), three_factors):
        args = [x.detach().requires_grad_() for x in (z, w)]
        results.append(torch.autograd.grad(run(*args), args, grad))
    torch.testing.assert_close(*results)


def test_inputs_that_become_conjugates():
    compiled = minidynamo.compile(torch.vdot, fullgraph=True)
    args = numbers(5), numbers(5)
    for lazy in itertools.product([False, True], repeat=2):
        given = [x.conj() if is_lazy else x for x, is_lazy in zip(args, lazy, strict=True)]
        torch.testing.assert_close(compiled(*given), torch.vdot(*given))


def test_products_of_matrices_take_and_give_numbers():
    def fn(z, w):
        return (z.exp() @ (w * 1j)).abs()

    args = numbers(4, 5), numbers(5, 6)
    compiled = minidynamo.compile(fn, fullgraph=True)
    assert called(compiled, *args) == {"aten.mm.out"} and metrics.generated_kernel_count <= 3
    torch.testing.assert_close(compiled(*args), fn(*args))


def test_promotion():
    def fn(z, d, i, h):
        return z * d, z + i, z * h, z.to(torch.complex128) + d, d + 1j, i * 2j

    z, d = numbers(6), torch.randn(6, dtype=torch.float64)
    args = z, d, torch.arange(6), torch.randn(6).half()
    ours, theirs = minidynamo.compile(fn)(*args), fn(*args)
    assert [x.dtype for x in ours] == [x.dtype for x in theirs]
    torch.testing.assert_close(ours, theirs)


def test_parts_that_are_one_number():
    """Of real tensors as complex ones, and of what is computed from these."""

    def fn(z, x, y):
        w = x.to(torch.complex64)
        shifted = x + 2j
        return (
            w / y, w / shifted, z / shifted, shifted / y, shifted / z, (x * 3j).exp() / 4,
            shifted.abs(), shifted.angle(), shifted.sgn(), shifted.conj() * z, z / w.conj(),
            shifted.sum(), shifted.mean(0), shifted * shifted, -shifted, shifted.reciprocal(),
            torch.cat([shifted, z]), torch.where(x > 0, shifted, z), shifted == z, z == w,
            torch.view_as_real(shifted), shifted.real, shifted.imag, shifted**2, w.clone(),
            (shifted[None] * x[:, None]).mT, 1j / z, 2 / shifted, z - shifted, w - 1j, 1j - w,
        )  # fmt: skip

    args = numbers(7), torch.randn(7), torch.randn(7)
    ours, theirs = minidynamo.compile(fn, fullgraph=True)(*args), fn(*args)
    assert [(x.dtype, x.stride()) for x in ours] == [(x.dtype, x.stride()) for x in theirs]
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("n", [3, 2.5])
def test_symbolic_numbers(n):
    def fn(z, n):
        filled = (z * 2).fill_(n) * z + torch.full((4, 1), n, dtype=z.dtype)
        return z * n, z / n, n - z, z + n, n / z, z * z.shape[0] / z.shape[1], filled

    compiled, z = minidynamo.compile(fn, dynamic=True), numbers(4, 5)
    for given in (n, n + 1):
        torch.testing.assert_close(compiled(z, given), fn(z, given))


def test_real_and_half_results_of_complex_operands():
    def fn(z, w):
        made = torch.zeros_like(z, dtype=torch.float32), z.new_zeros(3, dtype=torch.float64)
        more = (
            torch.full_like(z * w, 2, dtype=torch.int64),
            z.new_full((2,), 3, dtype=torch.int8),
        )
        half = torch.ones_like(z, dtype=torch.complex32).real.float()
        return *made, *more, half, F.pad(z * w, (1, 1), value=2.5), (z * w).to(torch.complex32)

    args = numbers(4, 5), numbers(4, 5)
    ours, theirs = minidynamo.compile(fn)(*args), fn(*args)
    assert [x.dtype for x in ours] == [x.dtype for x in theirs]
    for a, b in zip(ours[:-1], theirs[:-1], strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(ours[-1].to(torch.complex64), theirs[-1].to(torch.complex64))


def test_views_of_results_of_operands_in_other_orders():
    def fn(z, w):
        mixed = z / (w + 2.5)
        return mixed.view(2, 8).abs(), (mixed * w).view(8, 2), mixed.mT * w.sgn()

    args = numbers(4, 4), numbers(4, 4).t()
    ours, theirs = minidynamo.compile(fn, fullgraph=True)(*args), fn(*args)
    assert [x.stride() for x in ours] == [x.stride() for x in theirs]
    torch.testing.assert_close(ours, theirs)


def test_steps_of_a_loop_are_one_kernel():
    def fn(c):
        z, count = torch.zeros_like(c), torch.zeros(c.shape, dtype=torch.int64)
        for _ in range(6):
            z = z * z + c
            count = count + (z.abs() < 2)
        return count

    c = numbers(30, 40)
    compiled = minidynamo.compile(fn, fullgraph=True)
    assert not called(compiled, c) and metrics.generated_kernel_count == 1
    assert compiled(c).equal(fn(c))
