"""Symbolic sizes in the inductor: values and gradients over several sizes, from one kernel each."""
# ruff: noqa: E501  (one row, one line)

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minidynamo
from minidynamo import config, events
from minidynamo.inductor import config as inductor_config
from minidynamo.inductor import metrics
from minidynamo.inductor.loop_body import BodyBuilder
from minidynamo.inductor.size_hints import hint_of, size_symbols
from minidynamo.inductor.sizes import plan_size
from minidynamo.inductor.symbolic import Symbol, Undecided, loop_symbol, symbol_expr


def rows(*sizes, width=3):
    torch.manual_seed(len(sizes))  # gradients of a division by a norm have no bound
    return [(torch.randn(n, width),) for n in sizes]


def pointwise(x):
    return x * 2 + x.shape[0], (x.sin() + 1).relu(), x / x.shape[0], x.shape[0] * x.numel()


def broadcast(x):
    return x + x[:1], (x[:, None] - x[None]).abs().sum(-1), x * x.sum(0, keepdim=True)


def reductions(x):
    return x.sum(0), x.mean(), x.var(0), x.std(), x.amax(0), x.argmax(1), x.amin(), x.prod(1)


def normalised(x):
    return (
        x.softmax(0),
        x.log_softmax(1),
        F.layer_norm(x, x.shape[1:]),
        x / x.norm(dim=1, keepdim=True),
    )


def products(x):
    w = torch.ones(3, 5)
    return x @ w, x.t() @ x, F.linear(x, w.t()).relu(), torch.bmm(x[None], w[None])


def views(x):
    n, m = x.shape
    return (
        x.reshape(-1) * 2,
        x.t().contiguous(),
        x.reshape(n * m, 1) + 1,
        x.repeat(2, 3) + 1,
    )


def slices(x):
    n = x.shape[0]
    return x[1:] * 2, x[::2] + 1, x[: n // 2] * 3, x[-3:] * 2, x[n - 2] + 1, x[: n - 2, 1] * 2


def joined(x):
    return (
        torch.cat([x, x.flip(0) * 2]),
        torch.stack([x, x + 1], 1).sum(0),
        torch.roll(x, 1, 0) + 1,
    )


def made(x):
    n = x.shape[0]
    return (
        torch.arange(n) * 2,
        torch.zeros(n, 3) + x,
        torch.full((n,), 2.5),
        torch.eye(n) * 2,
        x.new_ones(n + 1),
    )


def chosen(x):
    i = torch.arange(x.shape[0])
    return (
        torch.where(i[:, None] > x.shape[0] // 2, x, -x),
        x.tril(),
        x[i] * 2,
        x.masked_fill(x > 0, 0),
    )


def padded(x):
    return F.pad(x, (1, 2)) * 2, F.pad(x, (0, 0, 3, 1), value=2.0), x.cumsum(0) + 1


def written(x):
    y = torch.empty_like(x)
    y[:] = x
    y[0] = 0
    return y * 2


def sized_by_floats(x):
    n = x.shape[0]
    return (
        x[: int(n * 0.5)] + 1,
        torch.zeros(int(n * 1.37)) + x.sum(),
        x.new_ones(math.ceil(n / 3), 2) * 2,
        F.interpolate(x[None, None], scale_factor=2.0) + 1,
        F.interpolate(x[None, None], scale_factor=(1.5, 1.0), mode="bilinear"),
    )


def sized_by_quotients(x):
    n = x.shape[0]
    count = int(x.numel() / (n * 3 / 2 / 1.5))  # windows, of a number of parts
    return x.new_zeros(count, abs(n - 9)) + n, x.view(-1, n // int(n / 1.0 / 1.0), 3) * abs(
        n - 6
    )


def sorted_(x):
    return torch.sort(x, 0).values + 1, torch.topk(x, 2, 0).values


PROGRAMS = [
    pointwise,
    broadcast,
    reductions,
    normalised,
    products,
    views,
    slices,
    joined,
    made,
    chosen,
    padded,
    written,
    sized_by_floats,
    sized_by_quotients,
    sorted_,
]


def compile_(fn, **options):
    minidynamo.reset()
    metrics.reset()
    return minidynamo.compile(fn, **options)


@pytest.mark.parametrize("fn", PROGRAMS)
def test_values(fn):
    compiled, graphs = compile_(fn), []
    with events.subscribe(graphs.append, events.GraphEvent):
        for (x,) in rows(4, 5, 7, 33):
            minidynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-5)
    assert len(graphs) == 1
    assert metrics.uncompiled_graphs == 0


def sized_by_products(x):
    n = x.shape[0]
    return x.new_zeros(int(n * 0.7 * 3)), x.sin().repeat(int(n * 3 * 0.7 + 0.1), 1)


@pytest.mark.parametrize("grad", [False, True])
def test_floats_are_multiplied_in_the_order_of_the_program(grad):
    compiled = compile_(sized_by_products, dynamic=True)
    for n in (4, 10, 20, 30):
        x = torch.randn(n, 2, requires_grad=grad)
        torch.testing.assert_close(compiled(x), sized_by_products(x))


@pytest.mark.parametrize(
    "fn",
    [
        pointwise,
        broadcast,
        normalised,
        products,
        views,
        slices,
        joined,
        chosen,
        sized_by_floats,
        sized_by_quotients,
    ],
)
def test_gradients(fn):
    compiled = compile_(fn)

    def total(results):
        return sum(r.sum() for r in results if isinstance(r, torch.Tensor) and r.requires_grad)

    for (x,) in rows(4, 9):
        x.requires_grad_()
        minidynamo.maybe_mark_dynamic(x, 0)
        expected = torch.autograd.grad(total(fn(x)), x)
        actual = torch.autograd.grad(total(compiled(x)), x)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_large_sizes_run_in_parallel():
    def f(x):
        return (x * 2 + 1).relu(), x.sum(1), x.sum(0)

    compiled = compile_(f, dynamic=True)
    for n, m in ((8, 9), (700, 300), (3, 100_000)):
        x = torch.randn(n, m)
        torch.testing.assert_close(compiled(x), f(x), rtol=1e-4, atol=1e-2)
    assert metrics.compiled_graphs == 1


def test_an_int_argument():
    def f(x, n):
        return x * n, torch.arange(n), x.repeat(n), x / n

    compiled = compile_(f)
    for n in (3, 4, 5, 6):
        x = torch.randn(6)
        torch.testing.assert_close(compiled(x, n), f(x, n))
    assert metrics.compiled_graphs == 2


def test_a_negative_int_argument():
    def f(x, n):
        return x * n + n

    compiled = compile_(f, dynamic=True)
    for n in (3, -4, 0, 1):
        x = torch.randn(6)
        torch.testing.assert_close(compiled(x, n), f(x, n))
    assert metrics.compiled_graphs == 1


def test_writes_at_a_symbolic_position():
    """Looking for overlaps must not make the position a constant."""

    def fill(n, x):
        x[n] = -1
        part = x.clone()
        part[n] += n
        return part[n, None]

    metrics.reset()
    compiled = minidynamo.compile(fill, fullgraph=True, dynamic=True)
    mine, eager = torch.arange(7.0), torch.arange(7.0)
    for position in (2, 3, 4, 6):
        torch.testing.assert_close(compiled(position, mine), fill(position, eager))
        torch.testing.assert_close(mine, eager)
    assert metrics.compiled_graphs == 1
    torch.testing.assert_close(compiled(-7, mine), fill(-7, eager))
    assert metrics.compiled_graphs == 2 and not metrics.uncompiled_graphs
    with pytest.raises((IndexError, RuntimeError)):
        compiled(7, mine)


def test_a_float_argument():
    def f(x, s):
        return x * s + s, s * 2

    compiled = compile_(f)
    for s in (0.5, 0.25, 3.0, -1.5):
        x = torch.randn(6)
        torch.testing.assert_close(compiled(x, s), f(x, s))
    assert metrics.compiled_graphs == 2


def in_tuple(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, scale: x - float(scale),
        lambda x, scale: (x * float(float(scale)), x.shape[0] / float(scale) * x),
        lambda x, scale: torch.where(x > float(scale) + 1.0, x * float(scale), float(scale)),
    ],
)
def test_the_float_of_a_float_argument(fn, grad):
    run = minidynamo.compile(fn, fullgraph=True)
    metrics.reset()
    for number in (1.5, 2.25, -3.0, 0.1):
        x = torch.linspace(-4, 4, 7).requires_grad_(grad)
        for left, right in zip(*map(in_tuple, (run(x, number), fn(x, number))), strict=True):
            torch.testing.assert_close(left, right)
            if grad:
                both = [
                    torch.autograd.grad(y.sum(), x, retain_graph=True) for y in (left, right)
                ]
                torch.testing.assert_close(*both)
    assert metrics.uncompiled_graphs == 0


def test_strided_inputs():
    def f(x):
        return x * 2, x.contiguous() + 1

    compiled = compile_(f, dynamic=True)
    for n in (4, 6, 9):
        x = torch.randn(5, n).t()
        for ours, theirs in zip(compiled(x), f(x), strict=True):
            torch.testing.assert_close(ours, theirs)
            assert ours.stride() == theirs.stride()


def test_channels_last_convolution():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
    )
    model.eval()
    compiled = compile_(model, dynamic=True)
    with torch.no_grad():
        for n in (8, 10, 14):
            x = torch.randn(2, 3, n, n)
            torch.testing.assert_close(compiled(x), model(x))


class Block(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(b, t, d))


@pytest.mark.parametrize("training", [False, True])
def test_attention(training):
    torch.manual_seed(0)
    model = Block()
    compiled = compile_(model)
    for length in (5, 6, 9, 17):
        x = torch.randn(2, length, 16, requires_grad=training)
        with torch.set_grad_enabled(training):
            expected, actual = model(x), compiled(x)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        if training:
            grads = [torch.autograd.grad(y.sum(), x)[0] for y in (expected, actual)]
            torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
    assert metrics.compiled_graphs == 2
    assert metrics.uncompiled_graphs == 0


def test_comparisons_of_sizes_are_proven_or_refused():
    n = symbol_expr(Symbol("n", lower=2, hint=8))
    assert n > 1 and n >= 2 and n + 1 > n and not n < 2 and 0 < n and n - 2 >= 0
    for question in (lambda: n > 2, lambda: n < 100, lambda: n - 3 >= 0, lambda: int(n)):
        with pytest.raises(Undecided):
            question()


def test_sizes_that_may_be_negative_prove_nothing():
    n = symbol_expr(Symbol("n", lower=-1))
    with pytest.raises(Undecided):
        assert n >= 0
    with pytest.raises(Undecided):
        assert n * n >= 0


def test_text_and_hint_of_a_size():
    n, m = (
        symbol_expr(Symbol(name, lower=2, hint=hint)) for name, hint in (("n", 8), ("m", 3))
    )
    assert hint_of(n * m + 1) == 25 and hint_of((n + 1) // 2) == 4
    assert plan_size((n + 1) // 2 + 3) == "((n + 1) // 2) + 3" or "//" in str(
        plan_size((n + 1) // 2)
    )
    assert {symbol.name for symbol in size_symbols([n * m, 4])} == {"n", "m"}


def extremes(x):
    return x.argmax(0), x.argmin(0), x.transpose(0, 1).argmax()


@pytest.mark.parametrize("fn", [pointwise, reductions, normalised, slices, joined, extremes])
def test_triton_kernels_take_sizes(fn):
    pytest.importorskip("triton")
    with inductor_config.patch(cpu_backend="triton"):
        compiled = compile_(fn)
        for (x,) in rows(4, 5, 33):
            minidynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-5)
    assert metrics.compiled_graphs == 1 and metrics.uncompiled_graphs == 0


def test_triton_kernels_divide_by_products_of_sizes():
    pytest.importorskip("triton")
    with inductor_config.patch(cpu_backend="triton"):
        compiled = compile_(lambda x: x * 2, dynamic=True)
        for a, b, c in ((3, 8, 5), (4, 2, 18)):
            x = torch.rand(a, b, 2 * c)[..., ::2]
            assert torch.equal(compiled(x), x * 2)


def test_triton_kernels_with_sizes_compile_for_gpus():
    pytest.importorskip("triton")
    from triton_testing import assemble, kernel_of

    n = symbol_expr(Symbol("n", lower=2, hint=1000))
    x, r = loop_symbol("x0", n), loop_symbol("r0", n)
    b = BodyBuilder([x], [r])
    value = b.load("a0", symbol_expr(x) * n + symbol_expr(r), torch.float32)
    b.store("a1", symbol_expr(x), b.reduction("sum", value), torch.float32)
    arguments = [(torch.float32, n * n, "in"), (torch.float32, n, "out")]
    assemble(kernel_of(b.finish(), arguments, ["n"]))


def test_quotients_by_products_of_sizes():
    def fn(x, groups):
        return F.channel_shuffle(x, groups)

    run = compile_(fn, dynamic=True)
    for groups, size in ((2, (1, 4, 10, 10)), (3, (1, 6, 7, 7))):
        x = torch.randn(size, requires_grad=True)
        actual, expected = run(x, groups), fn(x, groups)
        assert torch.equal(actual, expected)
        weight = torch.randn(size)
        (left,) = torch.autograd.grad(actual, x, weight)
        (right,) = torch.autograd.grad(expected, x, weight)
        assert torch.equal(left, right)


def test_floats_that_the_gradient_needs():
    def fn(x, y, slope):
        return torch.addmm(x, x, y, alpha=slope) * slope

    run = compile_(fn, dynamic=True)
    for slope in (0.25, 0.5, 3.0):
        x, y = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
        actual, expected = run(x, y, slope), fn(x, y, slope)
        torch.testing.assert_close(actual, expected)
        left = torch.autograd.grad(actual.sum(), (x, y))
        torch.testing.assert_close(left, torch.autograd.grad(expected.sum(), (x, y)))


def test_kernel_extents_of_convolutions_are_constants():
    """Another image needs no new graph, another extent of the kernel does."""
    run = minidynamo.compile(
        lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2, padding=1), dynamic=True
    )
    metrics.reset()
    for extent, length, compiled in ((3, 8, 1), (3, 11, 1), (5, 9, 2)):
        x, w, b = torch.randn(2, 4, length), torch.randn(4, 3, extent), torch.randn(3)
        torch.testing.assert_close(run(x, w, b), F.conv_transpose1d(x, w, b, 2, 1))
        assert metrics.compiled_graphs == compiled


def test_an_operator_that_asks_for_sizes_in_cpp_specialises_them():
    def fn(x, index):
        return torch.take_along_dim(x, index % x.shape[0], 0) * 2

    run = compile_(fn, dynamic=True)
    metrics.reset()
    for count in (3, 4, 3):
        x, index = torch.randn(count, 5), torch.randint(0, 9, (count, 5))
        assert torch.equal(run(x, index), fn(x, index))
    assert metrics.compiled_graphs == 2


def test_a_gradient_whose_operator_has_no_symbolic_sizes_is_compiled():
    """The forward operator specialised them: the gradient's meta function gets plain integers."""

    def fn(x, samples):
        return F.fractional_max_pool3d(x, 2, output_size=(2, 2, 2), _random_samples=samples)

    run = compile_(fn, dynamic=True, fullgraph=True)
    metrics.reset()
    for size in (4, 5):
        x = torch.randn(1, 2, size, size, size, requires_grad=True)
        samples = torch.rand(1, 2, 3)
        results = [call(x, samples) for call in (run, fn)]
        gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in results]
        assert torch.equal(*results) and torch.equal(*gradients)
    assert (metrics.compiled_graphs, metrics.uncompiled_graphs) == (2, 0)


@config.patch(capture_scalar_outputs=True)
def test_data_that_is_asserted_to_be_a_sum_of_sizes():
    """Of one tensor the graph needs nothing but its size."""

    def fn(x, y, z):
        n = (z + 7).item()
        torch._check(n == x.size(0) + y.size(0))
        return x + n

    x, y = torch.randn(16, 2), torch.randn(16, 2)
    for tensor in (x, y):
        minidynamo.mark_dynamic(tensor, 0)
    compiled = minidynamo.compile(fn, fullgraph=True)
    torch.testing.assert_close(compiled(x, y, torch.tensor(25)), x + 32)
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        compiled(x, y, torch.tensor(26))


@minidynamo.config.patch(raise_internal_errors=True)
def test_numbers_that_are_known_by_now():
    """A body of torch computes with sizes that another line has made constants."""

    def mean(x):
        loss = F.kl_div(x, x.abs(), reduction="batchmean")
        return loss + torch.stack(x.unbind(0), 0).sum()

    def pad(x):
        return F.pad((x * x.shape[0]).softmax(-2), [-1, -1], mode="reflect")

    for fn, shapes in ((mean, [(5,), (7,), (3,)]), (pad, [(3, 5), (6, 7), (2, 3)])):
        compiled = minidynamo.compile(fn, fullgraph=True, dynamic=True)
        for shape in shapes:
            x = torch.rand(shape)
            torch.testing.assert_close(compiled(x), fn(x))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_two_results_in_memory_of_another_kind(backend):
    """AOTAutograd would make one of them anew from the real numbers, by strides."""

    def fn(x):
        y = torch.view_as_complex((x * 1).unflatten(-1, (-1, 2)))
        return y, y[..., 1:]

    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True, dynamic=True)
    for n in (4, 6):
        x = torch.randn(n, requires_grad=True)
        actual, expected = compiled(x), fn(x)
        torch.testing.assert_close(actual, expected)
        gradients = [
            torch.autograd.grad(y.abs().square().sum(), x) for _, y in (actual, expected)
        ]
        torch.testing.assert_close(*gradients)


@minidynamo.config.patch(raise_internal_errors=True)
def test_a_part_of_a_known_size_is_moved_within_a_tensor():
    """Another input tells that the size is one of the numbers that are known."""

    def fn(x, y):
        n = y.shape[2] - 1
        moved = torch.slice_scatter(y, y.narrow(-1, 1, n), -1, 0, n)
        x.view(torch.int64).bitwise_and_(-2)
        return moved

    compiled = minidynamo.compile(fn, fullgraph=True, dynamic=True)
    for n, m in ((3, 2), (6, 3), (2, 5)):
        x, y = (
            torch.randn(1, n, m, n, dtype=torch.float64),
            torch.arange(n * n * m).view(n, m, n),
        )
        ours, eagers = x.clone(), x.clone()
        torch.testing.assert_close(compiled(ours, y), fn(eagers, y))
        assert torch.equal(ours, eagers)


FILLS = [
    lambda x, n: torch.full((2,), n * 100, dtype=x.dtype) + x,
    lambda x, n: torch.full_like(x, n * 100),
    lambda x, n: x.fill_(n * 100),
    lambda x, n: x.masked_fill(x > 0, n * 100),
]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("fn", FILLS)
def test_numbers_that_do_not_fit_are_refused(fn, dtype):
    compiled = minidynamo.compile(fn, dynamic=True)
    for n in (0, 1, 7, 40, 1):
        try:
            expected = fn(torch.ones(2, dtype=dtype), n)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error)[:40]):
                compiled(torch.ones(2, dtype=dtype), n)
        else:
            assert compiled(torch.ones(2, dtype=dtype), n).equal(expected)
