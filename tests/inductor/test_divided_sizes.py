"""Symbolic sizes that the guards call multiples of a number: patches, windows and groups."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic

import minidynamo
from minidynamo import events
from minidynamo.inductor.sizes import Facts, SizeTable, plan_size
from minidynamo.shape_env import ExactShapeEnv, note_checked


def patches(x):
    b, c, h, w = x.shape
    x = x.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1)
    return x.reshape(b, (h // 4) * (w // 4), 16 * c).sin()


def windows(x):
    b, c, h, w = x.shape
    x = x.view(b, c, h // 2, 2, w // 2, 2).transpose(3, 4).reshape(-1, 4)
    return x.softmax(-1) * 2


def padded_windows(x):
    b, c, h, w = x.shape
    y = F.pad(x, (0, (4 - w % 4) % 4, 0, (4 - h % 4) % 4))
    h, w = y.shape[2:]
    y = y.view(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, c)
    y = (y @ y.transpose(1, 2)).softmax(-1)
    return y, y.sum((1, 2)).view(b, h // 4, w // 4)


def unshuffled(x):
    return F.pixel_unshuffle(x, 2) * 2


def groups(x):
    rows = x.flatten(0, 2)
    return rows.view(rows.shape[0] // 8, 8, -1).mean(1)


def asserted(x):
    assert x.shape[2] % 4 == 0
    assert x.shape[2] % 6 == 0
    return x[:, :, : x.shape[2] // 3] * 2, x.cumsum(2) + x.shape[2] // 12


FUNCTIONS = [patches, windows, padded_windows, unshuffled, groups, asserted]


OTHERS = {padded_windows: [(2, 5, 25, 30), (3, 4, 9, 16), (2, 3, 7, 11)]}


def codes(call):
    texts = []
    with events.subscribe(texts.append, events.OutputCodeEvent):
        call()
    return [event.text for event in texts]


@pytest.mark.parametrize("backend", ["cpp", "triton"])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_values_and_gradients(fn, backend):
    compiled = minidynamo.compile(
        fn, dynamic=True, fullgraph=True, options={"cpu_backend": backend}
    )

    def run(*shapes):
        for shape in shapes:
            x = torch.randn(shape)
            given = [x.clone().requires_grad_(), x.clone().requires_grad_()]
            results = [f(t) for f, t in zip((compiled, fn), given, strict=True)]
            torch.testing.assert_close(*results)
            grads = []
            for result, t in zip(results, given, strict=True):
                parts = result if isinstance(result, tuple) else (result,)
                total = sum((part * part.detach().cos()).sum() for part in parts)
                grads.append(torch.autograd.grad(total, t)[0])
            torch.testing.assert_close(*grads)

    texts = codes(
        lambda: run((2, 3, 24, 32), (3, 4, 12, 8), (5, 4, 36, 16), *OTHERS.get(fn, ()))
    )
    assert len(texts) == 2
    for text in texts:
        plan = text.partition("k_")[0]
        assert not re.search(r"//\s*\(", plan)
        assert fn in (groups, padded_windows) or re.search(r"\(s\d+ // \d+\)", plan)


@pytest.mark.parametrize("fn, shape", [(patches, (2, 3, 24, 30)), (unshuffled, (2, 3, 7, 8))])
def test_other_sizes_are_refused_as_in_eager(fn, shape):
    compiled = minidynamo.compile(fn, dynamic=True)
    compiled(torch.randn(2, 3, 24, 32))
    for f in compiled, fn:
        with pytest.raises(RuntimeError, match=r"shape .* is invalid|divisible by"):
            f(torch.randn(shape))
    x = torch.randn(2, 3, 16, 40)
    torch.testing.assert_close(compiled(x), fn(x))


def halves(x):
    return x[: x.shape[0] // 2] * 2, x.sin()


def even_halves(x):
    assert x.shape[0] % 2 == 0
    return x[: x.shape[0] // 2] * 2, x.sin()


@pytest.mark.parametrize("order", [(halves, even_halves), (even_halves, halves)])
@pytest.mark.parametrize("wants_grad", [False, True])
def test_stored_plans_are_of_the_same_guards(order, wants_grad):
    for fn in order:
        compiled = minidynamo.compile(fn, dynamic=True)
        for rows in (8, 6, 12) if fn is even_halves else (8, 7, 12, 9):
            x = torch.randn(rows, 3, requires_grad=wants_grad)
            torch.testing.assert_close(compiled(x), fn(x))


def test_a_size_that_is_not_a_multiple_any_more():
    def fn(x):
        if x.shape[0] % 4 == 0:
            return x.view(-1, 4, x.shape[1]).sum(1)
        return x * 2

    compiled = minidynamo.compile(fn, dynamic=True, fullgraph=True)
    texts = codes(
        lambda: [
            torch.testing.assert_close(compiled(x), fn(x))
            for x in (torch.randn(rows, 3) for rows in (8, 12, 9, 10, 16))
        ]
    )
    assert len(texts) == 2


def test_guards_of_a_later_backward_pass_are_no_facts():
    env = ExactShapeEnv()
    size = env.create_symintnode(
        env.create_symbol(24, ConstantSource("n"), DimDynamic.DYNAMIC), hint=24
    )
    assert size % 4 == 0
    note_checked(env)
    assert size % 3 == 0
    assert Facts.noted(env).factors == {size.node.expr: 4}
    assert plan_size(SizeTable().convert(size // 2)) == f"2*({size} // 4)"


def test_a_plan_relies_on_the_facts_in_its_key():
    env = ExactShapeEnv()
    size = env.create_symintnode(
        env.create_symbol(24, ConstantSource("n"), DimDynamic.DYNAMIC), hint=24
    )
    assert size % 4 == 0
    key = Facts.noted(env).text(size.node.expr)
    assert size % 3 == 0
    assert Facts.of(env).text(size.node.expr) == key
    assert Facts.noted(env).text(size.node.expr) != key


def test_views_have_the_sizes_that_are_asked_for():
    """Views of other memory, and of too many elements, are torch's."""
    seen = []

    def backend(gm, example_inputs):
        (output,) = gm.graph.find_nodes(op="output")
        seen.append([str(tuple(n.meta["example_value"].shape)) for n in output.args[0]])
        return gm

    def fn(x):
        b, h, w = x.shape
        return (
            x.view(b, h // 4, 4, w),
            x.reshape(-1, w),
            x.transpose(1, 2).reshape(b, w, h // 4, 4),
        )

    compiled = minidynamo.compile(fn, backend=backend, dynamic=True, fullgraph=True)
    for shape in ((3, 8, 5), (2, 12, 7), (4, 16, 6)):
        x = torch.randn(shape)
        for ours, eager in zip(compiled(x), fn(x), strict=True):
            assert torch.equal(ours, eager) and ours.stride() == eager.stride()
            assert (ours._base is x) == (eager._base is x)
    ((views, flat, _),) = seen
    assert re.fullmatch(r"\(s\d+, \(s\d+//4\), 4, s\d+\)", views)
    assert "//" not in flat
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        compiled(torch.randn(3, 9, 5))
