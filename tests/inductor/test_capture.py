"""What reaches the backend: mutation, aliases, random numbers, structure of results, options."""

import math

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import as_tuple, check, compiled

import minidynamo
from minidynamo import events
from minidynamo.inductor import config, metrics
from minidynamo.inductor.compile_fx import compile_fx


def test_updates_of_own_values_are_captured():
    def fn(x):
        y = x * 2
        y += 1
        y.mul_(3)
        return y.view(-1) + 1, y, F.relu(x + 1, inplace=True)

    check(fn, torch.randn(16, 33), kernels=1, fallbacks=0)


def test_a_value_changed_through_an_alias():
    def stale(x):
        y = x * 2
        z = y.view(-1)
        y.add_(1)
        return z * 2

    def view(x):
        y = x * 2
        y[0] = 3
        y[:, 1].add_(5)
        return y

    check(stale, torch.randn(6, 7), fallbacks=0)
    check(view, torch.randn(6, 7), fallbacks=0)


def test_values_laid_out_anew():
    def fn(x):
        y = x * 2
        z = y.view(-1)
        y.unsqueeze_(0).transpose_(0, 2)
        y[0] = 5
        y.squeeze_()
        return y, z + 1, (x + 1).t_().add_(1)

    check(fn, torch.randn(6, 7), fallbacks=0)


def test_one_of_several_results_laid_out_anew():
    def fn(x):
        q, r = torch.linalg.qr(x)
        q.t_()
        values, _ = torch.sort(x, 0)
        values.unsqueeze_(0).transpose_(0, 2)
        least, places = x.min(1, keepdim=True)
        places.squeeze_(1)
        return q * 2, r + 1, values - 1, least, places + 1

    check(fn, torch.randn(6, 7), fallbacks=0)
    check(fn, torch.randn(5, 3), fallbacks=0)


def test_initialization_of_weights():
    def fn(x):
        torch.nn.init.orthogonal_(x)
        return x

    run = minidynamo.compile(fn, fullgraph=True)
    for shape in ((3, 5), (5, 3)):
        torch.manual_seed(0)
        wanted = fn(torch.empty(shape))
        torch.manual_seed(0)
        torch.testing.assert_close(run(torch.empty(shape)), wanted)


def test_boolean_mask_assignment():
    def fn(x):
        y = x.clone()
        y[y > 0] = 0
        return y

    check(fn, torch.randn(6, 7))


def test_inputs_are_mutated():
    def fn(x, y):
        x.add_(y)
        return x * 2

    x, y = torch.randn(5), torch.randn(5)
    mine, theirs = x.clone(), x.clone()
    (actual,) = compiled(fn, x.clone(), y)(mine, y)
    expected = fn(theirs, y)
    assert torch.equal(mine, theirs) and torch.allclose(actual, expected)


def whole(x, y):
    x.mul_(2).add_(y)
    return x.sin()


def parts(x, y):
    x[0] = y[1]
    x[:, 1:3].add_(y[:, :2])
    x.mT[2].neg_()
    return x.sum()


def views_of_new_values(x, y):
    part = x[1:]
    x.mul_(2)
    x[0].add_(x[1] * part[0])
    x.T.diagonal().sub_(x.unbind(1)[2].sum())
    return part + 1, x.mT[1:] * 2, x.chunk(2, 1)[1].sum()


def lists(x, y):
    torch._foreach_mul_([x[0], y], 3.0)
    torch._foreach_add_([x, y], [y.sin(), y.cos()], alpha=0.5)


def exchanged(x, y):
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


def given_as_out(x, y):
    torch.maximum(x, y, out=y)
    torch.sum(x, 1, out=y.view(-1)[:4])
    z = torch.empty(5)
    torch.amax(y, 0, out=z)
    return torch.mul(y, 2, out=torch.empty_like(y)), z + 1


def by_position(x, y):
    x.index_put_((torch.tensor([2, 0]),), y[:2], accumulate=True)
    y[y > 0] = 0.5
    x.index_fill_(0, torch.tensor([0]), 2.0)
    x.index_add_(0, torch.tensor([0]), x[:1] * 1)
    x.neg_()


def behind_others(x):
    return torch.cat([x[:1], x])[1:]


LAYOUTS = [torch.Tensor.clone, lambda x: x.t().contiguous().t(), behind_others]


@pytest.mark.parametrize("lay_out", LAYOUTS)
@pytest.mark.parametrize(
    "fn", [whole, parts, views_of_new_values, lists, exchanged, given_as_out, by_position]
)
def test_writes_to_inputs_are_captured(fn, lay_out):
    def operands():
        weight = lay_out(torch.arange(20.0).view(4, 5) - 6).requires_grad_()
        return [weight, torch.linspace(-1, 1, 20).view(4, 5)]

    mine, theirs = operands(), operands()
    metrics.reset()
    with torch.no_grad():
        run = minidynamo.compile(fn, fullgraph=True)
        for _ in range(2):
            results = as_tuple(run(*mine)), as_tuple(fn(*theirs))
            torch.testing.assert_close(*results)
    assert metrics.capture_fallbacks == 0 and metrics.uncompiled_graphs == 0
    assert metrics.compiled_graphs == 1
    torch.testing.assert_close(mine, theirs)
    assert [x._version for x in mine] == [x._version for x in theirs]
    for call in run, fn:
        with pytest.raises(RuntimeError, match="requires grad"):
            call(*operands())


def test_running_statistics_without_gradients():
    norms = [torch.nn.BatchNorm2d(3) for _ in range(2)]
    run = minidynamo.compile(norms[0], fullgraph=True)
    metrics.reset()
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(4, 3, 5, 5)
            torch.testing.assert_close(run(x), norms[1](x))
    assert metrics.capture_fallbacks == 0
    for mine, theirs in zip(norms[0].buffers(), norms[1].buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine._version == theirs._version


def scaled(x, y, f):
    x.mul_(f).add_(y, alpha=1 - f)
    return (x * (f / 3) - math.sqrt(f)) / (x.shape[0] + f)


@pytest.mark.parametrize("dynamic", [True, None])
def test_symbolic_floats_are_captured(dynamic):
    run = minidynamo.compile(scaled, fullgraph=True, dynamic=dynamic)
    metrics.reset()
    with torch.no_grad():
        for i, number in enumerate([0.1, 0.7, 3.5]):
            mine, theirs = torch.ones(4 + (i > 1)), torch.ones(4 + (i > 1))
            y = torch.rand(len(mine))
            torch.testing.assert_close(run(mine, y, number), scaled(theirs, y, number))
            torch.testing.assert_close(mine, theirs)
    assert metrics.capture_fallbacks == 0 and metrics.uncompiled_graphs == 0
    assert metrics.compiled_graphs == 1 if dynamic else metrics.compiled_graphs <= 3


def padded_to_a_power_of_two(x):
    size = 2 ** math.ceil(math.log2(x.shape[0]))
    return torch.nn.functional.pad(x, (0, size - x.shape[0])).view(-1, size // 4).sin()


def up_to_a_logarithm(x):
    return x[: int(math.log(x.shape[0])) + 1] * 2


@pytest.mark.parametrize("fn", [padded_to_a_power_of_two, up_to_a_logarithm])
@pytest.mark.parametrize("is_trained", [False, True])
def test_sizes_made_by_logarithms(fn, is_trained):
    run = minidynamo.compile(fn, fullgraph=True, dynamic=True)
    metrics.reset()
    for size in (5, 9, 8, 16, 17, 100, 1023, 1024, 1025):
        x = torch.randn(size, requires_grad=is_trained)
        y = x.detach().clone().requires_grad_(is_trained)
        mine, theirs = run(x), fn(y)
        torch.testing.assert_close(mine, theirs)
        if is_trained:
            mine.sum().backward(), theirs.sum().backward()
            torch.testing.assert_close(x.grad, y.grad)
    assert metrics.uncompiled_graphs == 0 and metrics.compiled_graphs == 1


def test_floats_round_as_in_the_program():
    def fn(x, f, g):
        return x + ((f + 1e8) - 1e8) * g

    run = minidynamo.compile(fn, fullgraph=True, dynamic=True)
    for f, g in [(0.3, 2.0), (1.7, 0.1)]:
        x = torch.zeros(3, dtype=torch.float64)
        assert torch.equal(run(x, f, g), fn(x, f, g))


def test_writes_to_memory_that_inputs_share():
    def fn(x, y):
        x.mul_(2)
        return y + 1

    run = minidynamo.compile(fn, fullgraph=True)
    for first, second in [(0, 6), (6, 0), (0, 3), (0, 0), (4, 5)]:
        results = []
        metrics.reset()
        for f in run, fn:
            memory = torch.arange(12.0)
            y = f(memory[first : first + 6], memory[second : second + 6])
            results.append((y, memory))
        torch.testing.assert_close(*results)
        assert metrics.capture_fallbacks == 0 or {first, second} != {0, 6}


def test_parameters_in_one_storage():
    def step(*weights):
        torch._foreach_mul_([*weights], 0.5)
        for weight in weights:
            weight.mT.add_(weight.mT.sum())
        torch._foreach_add_([weights[0][0]], [weights[1][1]])

    metrics.reset()
    run = minidynamo.compile(step, fullgraph=True)
    results = []
    for f in run, step:
        memory = torch.arange(24.0).requires_grad_()
        with torch.no_grad():
            f(*(part.view(2, 4) for part in memory.split(8)))
        results.append(memory)
    torch.testing.assert_close(*results)
    assert metrics.capture_fallbacks == 0 and metrics.uncompiled_graphs == 0


def test_inputs_and_their_views_as_results():
    x = torch.randn(4, 6)
    same, turned = compiled(lambda x: (x, x.t()), x)(x)
    assert same is x
    assert turned.data_ptr() == x.data_ptr() and turned._base is not None


def test_strides_of_single_elements():
    def fn(x):
        return x.unfold(0, 1, 1) * x.sum()

    check(fn, torch.randn(4, 5))  # its strides are (5, 1, 5)


def test_plain_results():
    check(lambda x: (x + 1, None, 3, x * 2), torch.randn(3))
    check(lambda x: (lambda y: (y, y, y * 2))(x + 1), torch.randn(3))


def test_nested_and_bare_results():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_method("sin", (x,))
    graph.output({"a": y, "b": [y, 3]})
    value = torch.randn(3)
    result = compile_fx(torch.fx.GraphModule({}, graph), [value])(value)
    assert torch.allclose(result["a"], value.sin()) and result["b"][1] == 3


def test_random_numbers_are_eagers():
    def fn(x):
        return F.dropout(x, 0.5, training=True), torch.rand(3), torch.bernoulli(x.sigmoid())

    x = torch.randn(50)
    run = compiled(fn, x, fallback_random=True)
    torch.manual_seed(3)
    expected = fn(x)
    torch.manual_seed(3)
    for actual, wanted in zip(run(x), expected, strict=True):
        assert torch.equal(actual, wanted)


def test_grad_mode_decides():
    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        metrics.reset()
        assert not as_tuple(compiled(lambda x: x * 2, x)(x))[0].requires_grad
        assert metrics.capture_fallbacks == 0
    (result,) = as_tuple(compiled(lambda x: x * 2, x)(x))
    result.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_autocast_is_in_the_graph():
    a = torch.randn(8, 8)

    def fn(a):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return a @ a

    check(fn, a, rtol=2e-2, atol=1e-2)


def test_options_are_flags_of_the_backend():
    with pytest.raises(AttributeError, match="no_such"):
        compiled(lambda x: x + 1, torch.randn(3), no_such=1)
    before = config.to_dict()
    compiled(lambda x: x + 1, torch.randn(3), cpu_linear="aten")
    assert config.to_dict() == before


def test_events_show_what_was_made():
    seen = []
    with (
        events.subscribe(seen.append, events.KernelEvent),
        events.subscribe(seen.append, events.OutputCodeEvent),
    ):
        compiled(lambda x: x.exp() + 1, torch.randn(8))
    kernel, output = seen
    assert kernel.language == "cpp" and "exp(" in kernel.source
    assert kernel.name in output.text


def test_equal_kernels_are_made_once():
    def fn(x):
        first = x.exp().sum(-1).view(4, 2) @ x.view(4, 16)[:2]
        return first.view(8, 8).exp().sum(-1)

    check(fn, torch.randn(8, 8), kernels=1, rtol=1e-4, atol=1e-4)
    assert metrics.kernel_calls == 2


def test_zeros_without_memory():
    """Of which torch asks meta tensors for the shapes of results."""

    def fn(x):
        return torch.func.hessian(lambda t: torch.stack([t[0] ** 2 * t[1], t.prod()]).sum())(x)

    metrics.reset()
    x = torch.randn(2)
    torch.testing.assert_close(minidynamo.compile(fn)(x), fn(x))
    assert metrics.uncompiled_graphs == 0
