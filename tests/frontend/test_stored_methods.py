"""Methods of classes that are kept under another name: they are known by what they belong to."""

import pytest
import testing
import torch

import minidynamo

X = torch.tensor([1.0, 2.0, 4.0])


class Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.save_for_backward(x)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor * ctx.saved_tensors[0], None


class Plus(Times):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.save_for_backward(x)
        return x + factor


times = Times.apply


class HoldsApply(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function.apply
        self.more = [function.apply]

    def forward(self, x):
        return self.function(x * 2, 3) + times(x, 4) + self.more[0](x, 5)


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_apply_of_autograd_functions(needs_gradient):
    def fn(x, model, function):
        return model(x), function(x, 2), function.__self__.__name__

    minidynamo.reset()
    counter = testing.CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter)
    # Each `apply` is a new object; what it belongs to counts.
    for cls in (Times, Times, Plus, Times, Plus):
        results = []
        for run in (compiled, fn):
            x = X.clone().requires_grad_(needs_gradient)
            found = run(x, HoldsApply(cls), cls.apply)
            if needs_gradient:
                found[0].sum().backward()
            results.append((found, x.grad))
        testing.assert_same(*results)
    assert len(counter.graphs) == 2


class Numbers(int):
    pass


@pytest.mark.parametrize("cls", [int, Numbers])
def test_methods_of_classes_in_c(cls):
    def fn(x, read, given):
        number = read(given, "big")
        return x * number, type(number), read.__self__

    readers = (cls.from_bytes, cls.from_bytes, bool.from_bytes)
    calls = [(X, read, b"\x01\x02") for read in readers]
    testing.check_recompiles(fn, calls, graphs=2)
