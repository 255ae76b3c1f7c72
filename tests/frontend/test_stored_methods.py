"""Methods of classes that are kept under another name: they are known by what they belong to."""

import functools

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


class Items(list):
    pass


ATTRIBUTES = {
    "of a method": lambda m: (m.__name__, m.__qualname__, m.__doc__, m.__module__),
    "absent": lambda m: (hasattr(m, "__dict__"), getattr(m, "__wrapped__", 3), m.no_such),
    "wrapped": lambda m: functools.wraps(m)(lambda: 1).__qualname__,
    "of a slot": lambda m: (m.__self__.__len__.__qualname__, m.__self__.__len__.__module__),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
@pytest.mark.parametrize("owner", [[1, 2], Items([3]), {"a": 1}, {1}, (1,), "text", X])
def test_attributes_of_methods_in_c(name, owner):
    method = {dict: "get", set: "add", str: "join", torch.Tensor: "add", tuple: "index"}

    def fn(x, owner):
        read = getattr(owner, method.get(type(owner), "append"))
        return x + 1, ATTRIBUTES[name](read)

    testing.check(fn, X, owner)


class Fields:
    def __init__(self):
        self.first, self.second = 1, 2


def test_the_last_attribute_taken_out():
    def fn(x, owner):
        taken = [vars(owner).popitem(), owner.__dict__.popitem()]
        return x + 1, taken, owner.__dict__, owner.__dict__.popitem()

    testing.check(fn, X, Fields())


def test_attributes_of_methods_of_classes():
    def fn(x):
        methods = Numbers.from_bytes, Numbers.mro, ValueError("a").with_traceback
        return x + 1, [(m.__qualname__, m.__module__, hasattr(m, "__dict__")) for m in methods]

    testing.check(fn, X)
