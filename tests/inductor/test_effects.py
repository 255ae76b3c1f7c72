"""Operators that are there for what they do: each runs once, in order, wanted or not."""

import pytest
import torch
from torch._library.effects import EffectType

import minidynamo

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
