"""What reaches the backend: mutation, aliases, random numbers, structure of results, options."""

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


def test_inputs_and_their_views_as_results():
    x = torch.randn(4, 6)
    same, turned = compiled(lambda x: (x, x.t()), x)(x)
    assert same is x
    assert turned.data_ptr() == x.data_ptr() and turned._base is not None


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
