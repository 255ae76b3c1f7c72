"""Random numbers: reproducible, distributed as eager's, eager's own ones on request."""

import math

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import check, compiled

import minidynamo
from minidynamo.inductor import metrics

N = 40_000
# name -> (function, mean, standard deviation, smallest, largest)
DRAWS = {
    "rand": (lambda x: torch.rand(N), 0.5, 12**-0.5, 0, 1),
    "rand double": (lambda x: torch.rand(N, dtype=torch.float64), 0.5, 12**-0.5, 0, 1),
    "rand half": (lambda x: torch.rand(N, dtype=torch.float16), 0.5, 12**-0.5, 0, 0.9996),
    "rand bfloat16": (lambda x: torch.rand(N, dtype=torch.bfloat16), 0.498, 12**-0.5, 0, 0.997),
    "rand_like": (lambda x: torch.rand_like(x), 0.5, 12**-0.5, 0, 1),
    "randn": (lambda x: torch.randn(N), 0, 1, -7, 7),
    "randn double": (lambda x: torch.randn(N, dtype=torch.float64), 0, 1, -9, 9),
    "randn_like": (lambda x: torch.randn_like(x), 0, 1, -7, 7),
    "randint": (lambda x: torch.randint(10, (N,)), 4.5, 8.25**0.5, 0, 9),
    "randint low": (lambda x: torch.randint(-5, 5, (N,)), -0.5, 8.25**0.5, -5, 4),
    "randint wide": (
        lambda x: torch.randint(0, 1 << 40, (N,)) / (1 << 40),
        0.5,
        12**-0.5,
        0,
        1,
    ),
    "randint_like": (lambda x: torch.randint_like(x, 3), 1, (2 / 3) ** 0.5, 0, 2),
    "bernoulli": (lambda x: torch.bernoulli(x * 0 + 0.25), 0.25, 0.1875**0.5, 0, 1),
    "bernoulli_": (lambda x: x.clone().bernoulli_(0.25), 0.25, 0.1875**0.5, 0, 1),
    "uniform_": (lambda x: torch.empty(N).uniform_(-1, 3), 1, 16**0.5 * 12**-0.5, -1, 3),
    "normal_": (lambda x: torch.empty(N).normal_(2, 3), 2, 3, -20, 24),
    "exponential_": (lambda x: torch.empty(N).exponential_(2), 0.5, 0.5, 1e-30, 20),
    "geometric_": (lambda x: torch.empty(N).geometric_(0.5), 2, 2**0.5, 1, 64),
    "log_normal_": (
        lambda x: torch.empty(N).log_normal_(0, 0.5),
        math.exp(0.125),
        math.exp(0.125) * (math.exp(0.25) - 1) ** 0.5,
        0,
        100,
    ),
    "dropout": (lambda x: F.dropout(x * 0 + 1, 0.5), 1, 1, 0, 2),
}
X = torch.zeros(N)


@pytest.mark.parametrize("name", DRAWS)
def test_distributions(name):
    fn, mean, deviation, low, high = DRAWS[name]
    metrics.reset()
    run = compiled(fn, X)
    assert metrics.extern_calls <= 1  # the seed's
    torch.manual_seed(11)
    (first,) = run(X)
    (second,) = run(X)
    torch.manual_seed(11)
    (again,) = run(X)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    expected = fn(X)
    assert (first.dtype, first.shape) == (expected.dtype, expected.shape)
    x = first.double()
    assert abs(x.mean() - mean) < 5 * deviation / N**0.5 + 1e-3
    assert abs(x.std() - deviation) < 0.05 * deviation
    assert low <= x.min() and x.max() <= high


def test_draws_are_independent():
    (a, b) = compiled(lambda x: (torch.randn(N), torch.randn(N)), X)(X)
    assert abs((a * b).mean()) < 5 / N**0.5
    assert abs((a[1:] * a[:-1]).mean()) < 5 / N**0.5


def test_the_fallback_gives_eagers_numbers():
    def fn(x):
        a = torch.rand(3) + x[:3]
        b = F.dropout(x, 0.5)
        c = torch.randint(0, 9, (4,))
        d = torch.empty(5).exponential_()
        return a, b, c, d, torch.randn(2), torch.bernoulli(x.sigmoid()), torch.randperm(7)

    run = compiled(fn, X, fallback_random=True)
    torch.manual_seed(5)
    expected = fn(X)
    after = torch.rand(1)
    torch.manual_seed(5)
    for actual, wanted in zip(run(X), expected, strict=True):
        assert torch.equal(actual, wanted)
    assert torch.equal(torch.rand(1), after)


EAGERS = {
    "normal_": lambda x: torch.empty_like(x).normal_(1, 2),
    "uniform_": lambda x: (x * 2).t().uniform_(2, 3),
    "bernoulli_": lambda x: x.clone().bernoulli_(0.3),
    "bernoulli_ of a tensor": lambda x: torch.empty_like(x).bernoulli_(x.detach()),
    "dropout2d": lambda x: F.dropout2d(x.reshape(2, 5, 3, 2)),
    "kaiming_uniform_": lambda x: torch.nn.init.kaiming_uniform_(torch.empty(5, 4)),
    "a layer": lambda x: torch.nn.functional.linear(x, torch.nn.Linear(6, 3).weight.detach()),
    "random_": lambda x: torch.empty_like(x).random_(0, 10),
    "random_ from": lambda x: torch.empty_like(x, dtype=torch.int8).random_(-128, 127),
    "random_ from of bfloat16": lambda x: torch.empty_like(x, dtype=torch.bfloat16).random_(
        3, 90
    ),
    "random_ to the largest": lambda x: torch.empty_like(x, dtype=torch.int64).random_(2, None),
}


@pytest.mark.parametrize("grad", [False, True])
def test_draws_that_overwrite_a_tensor_are_eagers(grad):
    def fn(x):
        return [draw(x) for draw in EAGERS.values()]

    x = torch.rand(10, 6, requires_grad=grad)
    run = minidynamo.compile(fn, fullgraph=True)
    metrics.reset()
    torch.manual_seed(5)
    expected, after = fn(x), torch.rand(1)
    torch.manual_seed(5)
    for name, actual, wanted in zip(EAGERS, run(x), expected, strict=True):
        assert torch.equal(actual, wanted), name
    assert torch.equal(torch.rand(1), after)
    assert metrics.uncompiled_graphs == 0


OVER = {
    "normal_": lambda x: x.normal_(1, 2),
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "uniform_": lambda x: x.uniform_(),
    "exponential_": lambda x: x.exponential_(),
    "dropout in place": lambda x: F.dropout(x, 0.4, inplace=True),
    "kaiming_normal_": torch.nn.init.kaiming_normal_,
}
PLACES = {
    "whole": lambda x: x,
    "channels": lambda x: x[:, 1:3],
    "every second": lambda x: x[:, ::2],
    "transposed": lambda x: x.transpose(1, 2),
    "a column": lambda x: x[:, :, 1],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("draw", OVER)
def test_draws_over_tensors_that_do_not_lie_in_rows(draw, layout, dynamic):
    """Eager draws them in the order of memory, and normal numbers by another way than for rows."""

    def fn(x):
        results = []
        for place in PLACES.values():
            y = x * 2
            OVER[draw](place(y))
            results.append(y)
        return results

    options = {"fallback_random": True}
    run = minidynamo.compile(fn, fullgraph=True, dynamic=dynamic, options=options)
    for shape in ((4, 6, 5, 3), (2, 6, 7, 4)):
        x = torch.rand(shape).to(memory_format=layout)
        torch.manual_seed(5)
        expected, after = fn(x), torch.rand(1)
        torch.manual_seed(5)
        for name, actual, wanted in zip(PLACES, run(x), expected, strict=True):
            torch.testing.assert_close(actual, wanted, msg=name)
            assert actual.stride() == wanted.stride()
        assert torch.equal(torch.rand(1), after)


IN_ROWS = {
    "bernoulli": lambda x: torch.bernoulli(x, 0.3),
    "a method": lambda x: x.bernoulli(p=0.3),
    "dropout": lambda x: F.dropout(x, 0.4),
    "dropout of repeated rows": lambda x: F.dropout(x[:, :1].expand(-1, 4, -1), 0.4),
    "poisson": lambda x: torch.poisson(x * 5),
    "normal": lambda x: torch.normal(x, x),
    "normal of a mean": lambda x: torch.normal(x, 2.0),
    "normal of a deviation": lambda x: torch.normal(1.0, x),
    "rrelu": lambda x: F.rrelu(x - 0.5, training=True),
}


@pytest.mark.parametrize("grad", [False, True])
def test_draws_from_tensors_that_do_not_lie_in_rows(grad):
    def fn(x):
        return [
            draw(x if name.startswith(("dropout", "rrelu")) else x.detach())
            for name, draw in IN_ROWS.items()
        ]

    run = minidynamo.compile(fn, fullgraph=True, options={"fallback_random": True})
    x = torch.rand(5, 4, 3).transpose(0, 2).requires_grad_(grad)
    torch.manual_seed(5)
    expected, after = fn(x), torch.rand(1)
    torch.manual_seed(5)
    for name, actual, wanted in zip(IN_ROWS, run(x), expected, strict=True):
        torch.testing.assert_close(actual, wanted, msg=name)
        assert actual.stride() == wanted.stride(), name
    assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtypes", [(torch.half, torch.float), (torch.float, torch.double)])
def test_normal_numbers_have_the_dtype_of_their_mean(dtypes, dynamic):
    def fn(mean, deviation):
        drawn = torch.normal(mean, deviation), torch.normal(deviation, mean)
        drawn += torch.normal(mean, 2.0), torch.normal(1.0, deviation)
        return [x.to(x.dtype) * 1 for x in drawn], str([x.dtype for x in drawn])

    run = minidynamo.compile(
        fn, fullgraph=True, dynamic=dynamic, options={"fallback_random": True}
    )
    args = torch.ones(8, dtype=dtypes[0]), torch.ones(8, dtype=dtypes[1])
    torch.manual_seed(5)
    expected = fn(*args)
    torch.manual_seed(5)
    found = run(*args)
    torch.testing.assert_close(found[0], expected[0])
    assert found[1] == expected[1]


def test_bounds_of_random_that_do_not_fit():
    run = minidynamo.compile(lambda x: torch.empty_like(x).random_(-5, 3))
    with pytest.raises(RuntimeError, match="out of bounds for unsigned char"):
        run(torch.zeros(4, dtype=torch.uint8))


def test_a_generator_gives_its_numbers():
    generator = torch.Generator().manual_seed(9)
    expected = torch.rand(4, generator=torch.Generator().manual_seed(9))
    fn = minidynamo.compile(lambda x: x + torch.rand(4, generator=generator))
    assert torch.equal(fn(torch.zeros(4)), expected)


def test_the_same_mask_forward_and_backward():
    x = torch.randn(500, requires_grad=True)
    run = minidynamo.compile(lambda x: F.dropout(x.sin(), 0.4))
    (grad,) = torch.autograd.grad((y := run(x)).sum(), x)
    mask = y != 0
    assert 200 < mask.sum() < 400
    torch.testing.assert_close(grad, torch.where(mask, x.cos() / 0.6, 0.0))


def test_the_generator_moves_on_and_its_state_counts():
    run = compiled(lambda x: torch.rand(8), X)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    (first,) = run(X)
    assert not torch.equal(torch.get_rng_state(), state)
    torch.set_rng_state(state)
    assert torch.equal(run(X)[0], first)


def test_dropout_is_one_kernel():
    check(lambda x: F.dropout(x, 0.0) * 2, torch.randn(30), kernels=1)
    metrics.reset()
    compiled(lambda x: F.dropout(x.sin(), 0.3).relu(), X)
    assert (metrics.generated_kernel_count, metrics.extern_calls) == (1, 1)


def test_a_bad_probability_raises():
    run = compiled(torch.bernoulli, torch.rand(9))
    with pytest.raises(RuntimeError, match="p_in >= 0 && p_in <= 1"):
        run(torch.full((9,), 1.5))


@pytest.mark.parametrize("name", ["rand", "randn", "randint", "rand double", "rand half"])
def test_triton_draws_the_same_numbers(name):
    pytest.importorskip("triton")
    fn = DRAWS[name][0]
    torch.manual_seed(2)
    (cpp,) = compiled(fn, X)(X)
    torch.manual_seed(2)
    (triton,) = compiled(fn, X, cpu_backend="triton")(X)
    if name == "randn":
        torch.testing.assert_close(cpp, triton, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(cpp, triton)


TWICE = {
    "randn_like": torch.randn_like,
    "rand": lambda x: torch.rand(x.shape),
    "poisson": lambda x: torch.poisson(x.detach().abs() * 9),
    "alpha_dropout": lambda x: F.alpha_dropout(x, training=True),
    **{
        name: lambda x, name=name: getattr(torch.empty_like(x), name)()
        for name in ("uniform_", "normal_", "exponential_", "cauchy_", "log_normal_")
    },
    "geometric_": lambda x: torch.zeros(x.shape).geometric_(0.1),
}


@pytest.mark.parametrize("name", TWICE)
def test_two_draws_in_training_are_two(name):
    """The partitioner's own merging of equal nodes knows only some of the random operators."""

    def fn(x):
        return x * TWICE[name](x), x * TWICE[name](x)

    x = torch.rand(4, 64, requires_grad=True)
    for options in ({}, {"fallback_random": True}):
        minidynamo.reset()
        run = minidynamo.compile(fn, options=options)
        torch.manual_seed(7)
        one, other = run(x)
        assert not torch.equal(one, other)
        (grad,) = torch.autograd.grad(one.sum() + other.sum(), x)
        assert torch.isfinite(grad).all()
    torch.manual_seed(7)
    for actual, expected in zip((one, other), fn(x), strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    "draw", [torch.rand_like, lambda y: F.dropout(y, 0.5), torch.bernoulli]
)
def test_unread_numbers_of_a_training_step_move_the_generator_on(draw):
    weight = torch.randn(6, 6, requires_grad=True)

    def fn(x):
        y = (x @ weight).sigmoid()
        draw(y)
        return F.dropout(y, 0.5) + torch.rand(6)

    def step(fn):
        torch.manual_seed(0)
        weight.grad = None
        result = fn(torch.ones(6, 6))
        result.sum().backward()
        return result, weight.grad, torch.rand(3)

    metrics.reset()
    run = minidynamo.compile(fn, fullgraph=True, options={"fallback_random": True})
    for got, want in zip(step(run), step(fn), strict=True):
        torch.testing.assert_close(got, want)
    assert metrics.uncompiled_graphs == 0


def test_draws_of_a_step_with_a_symbolic_float_are_not_repeated():
    weight = torch.randn(6, 6, requires_grad=True)

    def fn(x, scale):
        torch.rand(2)
        return F.dropout(x @ weight, 0.5) * torch.rand(6) * scale

    def step(fn, scale):
        torch.manual_seed(0)
        weight.grad = None
        result = fn(torch.ones(6, 6), scale)
        result.square().sum().backward()
        return result, weight.grad, torch.rand(3)

    run = minidynamo.compile(fn, fullgraph=True, options={"fallback_random": True})
    for scale in (0.5, 0.7, 0.9):
        for got, want in zip(step(run, scale), step(fn, scale), strict=True):
            torch.testing.assert_close(got, want)
