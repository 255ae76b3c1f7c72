"""Operators that are there for what they do: each runs once, in order, wanted or not."""

import pytest
import torch
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.print import print as hop_print
from torch._library.effects import EffectType

import minidynamo
from minidynamo.inductor import metrics

DONE = []


@torch.library.custom_op("tests_effects::copied", mutates_args=())
def copied(x: torch.Tensor, name: str) -> torch.Tensor:
    DONE.append((name, *(round(item, 5) for item in x.tolist())))
    return x.clone()


@torch.library.custom_op("tests_effects::told", mutates_args=())
def told(x: torch.Tensor, name: str) -> None:
    DONE.append((name, *(round(item, 5) for item in x.tolist())))


@torch.library.custom_op("tests_effects::marked", mutates_args=())
def marked(name: str) -> None:
    DONE.append(name)


@torch.library.custom_op("tests_effects::raised", mutates_args={"y"})
def raised(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.add_(1)
    return x.clone()


@torch.library.custom_op("tests_effects::noted", mutates_args=())
def noted(x: torch.Tensor, name: str) -> torch.Tensor:
    DONE.append((name, *x.tolist()))
    return x.clone()


noted.register_fake(lambda x, name: torch.empty_like(x))
torch.fx.node.has_side_effect(torch.ops.tests_effects.noted.default)
raised.register_fake(lambda x, y: torch.empty_like(x))
copied.register_fake(lambda x, name: torch.empty_like(x))
told.register_fake(lambda x, name: None)
marked.register_fake(lambda name: None)
copied.register_autograd(lambda ctx, grad: (copied(grad, "unwanted"), (grad.clone(), None))[1])
for op in (copied, marked):
    op.register_effect(EffectType.ORDERED)


def unwanted(x):
    copied(x, "first")
    marked("between")
    copied(x + 1, "second")
    return x * 2


def writes_between(x):
    copied(x, "before")
    x.add_(1)
    told(x, "between")
    x.mul_(2)
    marked("after")
    return x


def in_the_backward_pass(x):
    y = copied(x, "forward").sin()
    told(y.detach(), "sine")
    return y


@pytest.mark.parametrize("fn", [unwanted, writes_between, in_the_backward_pass])
@pytest.mark.parametrize("needs_grad", [False, True])
def test_effects(fn, needs_grad):
    compiled = minidynamo.compile(fn, fullgraph=True)

    def run(function, size):
        DONE.clear()
        x = torch.arange(float(size), requires_grad=needs_grad)
        y = function(x * 1)
        if needs_grad:
            y.sum().backward()
        return y.detach(), x.grad, list(DONE)

    for size in (3, 3, 4, 5):
        *want, done = run(fn, size)
        *got, mine = run(compiled, size)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
        assert mine == done


def test_operators_of_torch_that_take_no_function(capsys):
    """`print` of torch's operators prints at every call, `out_dtype` computes in another type."""

    def fn(x, y):
        total = out_dtype(torch.ops.aten.mm.default, torch.int32, x, y) + 1
        hop_print("sum {} of {rows}", total.sum(), rows=x.shape[0])
        total.mul_(2)
        hop_print("then {}", total[0, 0])
        return total

    given = [torch.full((size, size), 100, dtype=torch.int8) for size in (2, 2, 3, 4)]
    want = [fn(x, x) for x in given], capsys.readouterr().out
    for backend in ("eager", "aot_eager", "inductor"):
        compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
        got = [compiled(x, x) for x in given]
        torch.testing.assert_close(got, want[0], rtol=0, atol=0)
        assert capsys.readouterr().out == want[1]


@pytest.mark.parametrize(
    ("fn", "is_compiled"),
    [
        (lambda x: (raised(x, x[1]), x + 1), False),
        (lambda x: (raised(x[0], x), x + 1), False),
        (lambda x: (raised(x, x), x + 1), False),
        (lambda x: (raised(x[0], x[1]), x + 1), True),
        (lambda x: (raised(x[:, 0], x[:, 1]), x + 1), True),
    ],
)
def test_memory_that_is_written_to_and_read(fn, is_compiled):
    x = torch.zeros(3, 2)
    y = x.clone()
    metrics.reset()
    actual, expected = minidynamo.compile(fn, fullgraph=True)(x), fn(y)
    torch.testing.assert_close((actual, x), (expected, y))
    assert metrics.uncompiled_graphs == (not is_compiled)


def test_what_torch_fx_was_told_has_side_effects():
    DONE.clear()

    def fn(x):
        noted(x, "seen")
        return x + x

    for grad in (False, True):
        x = torch.ones(2, requires_grad=grad)
        assert torch.equal(minidynamo.compile(fn, fullgraph=True)(x), x + x)
    assert DONE == [("seen", 1.0, 1.0)] * 2
