"""Autograd functions whose two halves read what no argument of a node holds: objects, functions,
modules, tensors from elsewhere, and state that the frame has changed.
"""

import dataclasses
import types

import pytest
import testing
import torch

import minidynamo

SETTINGS = types.SimpleNamespace(scale=2.0)
FACTORS = [1.0]
GLOBAL_FACTOR = 3.0
WEIGHT = torch.tensor([1.0, 2.0, 4.0])


@dataclasses.dataclass
class Settings:
    scale: float
    weight: torch.Tensor | None = None


class ByObject(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, settings):
        ctx.settings = settings
        result = x * settings.scale
        if settings.weight is not None:
            ctx.save_for_backward(settings.weight)
            result = result * settings.weight
        return result

    @staticmethod
    def backward(ctx, grad):
        weight = ctx.saved_tensors[0] if ctx.saved_tensors else 1.0
        return grad * ctx.settings.scale * weight * 10, None


class ByFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, function):
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 + x, None


class BySurroundings(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * SETTINGS.scale * FACTORS[0] * GLOBAL_FACTOR

    @staticmethod
    def backward(ctx, grad):
        return grad * SETTINGS.scale


class ByTensor(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        middle = x * WEIGHT
        ctx.save_for_backward(middle, y)
        ctx.size = x.shape[0]
        return middle + y, middle > 2, "done"

    @staticmethod
    def backward(ctx, grad, _is_large, _text):
        middle, y = ctx.saved_tensors
        return grad * middle * ctx.size, grad * y * WEIGHT


def tripled(x):
    return x * 3


def with_gradient(fn):
    """`fn` and the gradient of its first result with regard to `x`."""

    def run(x, *args):
        result = fn(x, *args)
        first = result[0] if isinstance(result, tuple) else result
        return result, torch.autograd.grad(first.sum(), x)[0]

    return run


def x3():
    return torch.tensor([1.0, 2.0, 3.0], requires_grad=True)


def compiled_run(fn, **options):
    counter = testing.CountingBackend()
    return with_gradient(minidynamo.compile(fn, backend=counter, **options)), counter


ARGUMENTS = {
    "numbers": (ByObject, [Settings(2.0), Settings(3.0), Settings(2.0)], 2),
    "tensor": (ByObject, [Settings(2.0, WEIGHT), Settings(2.0, WEIGHT * 5)], 1),
    "function": (ByFunction, [tripled, torch.sin, lambda x: x + 1], 3),
    "module": (ByFunction, [torch.nn.ReLU(), torch.nn.Linear(3, 3)], 2),
    "builtin": (ByFunction, [abs], 1),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_no_node_holds(name):
    function, givens, graphs = ARGUMENTS[name]

    def fn(x, given):
        return function.apply(x, given) + 1

    run, counter = compiled_run(fn, fullgraph=True)
    for given in givens:
        testing.assert_same(with_gradient(fn)(x3(), given), run(x3(), given))
    assert len(counter.graphs) == graphs


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_objects_with_other_backends(backend):
    def fn(x, y):
        first = ByObject.apply(x, Settings(2.0, y))
        return first + ByTensor.apply(x, y)[0]

    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    y = torch.ones(3)
    testing.assert_same(with_gradient(fn)(x3(), y), with_gradient(compiled)(x3(), y))


def test_state_that_the_frame_changed():
    def fn(x):
        global GLOBAL_FACTOR
        SETTINGS.scale, FACTORS[0], GLOBAL_FACTOR = 5.0, 7.0, 11.0
        result = BySurroundings.apply(x)
        GLOBAL_FACTOR, FACTORS[0] = 3.0, 1.0
        return result + 1

    run, counter = compiled_run(fn, fullgraph=True)
    for scale in (2.0, 4.0):
        SETTINGS.scale = scale
        expected = with_gradient(fn)(x3())
        SETTINGS.scale = scale
        testing.assert_same(expected, run(x3()))
    assert len(counter.graphs) == 1 and SETTINGS.scale == 5.0


def test_tensors_from_elsewhere_and_other_results():
    def fn(x, y):
        return ByTensor.apply(x, y)

    run, counter = compiled_run(fn, fullgraph=True)
    y = torch.tensor([2.0, 3.0, 5.0])
    expected, actual = with_gradient(fn)(x3(), y), run(x3(), y)
    testing.assert_same(expected, actual)
    assert not actual[0][1].requires_grad and actual[0][2] == "done"
    WEIGHT.mul_(2)
    try:
        testing.assert_same(with_gradient(fn)(x3(), y), run(x3(), y))
    finally:
        WEIGHT.div_(2)
    assert len(counter.graphs) == 1


def test_one_tensor_as_two_arguments():
    class Weighted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, function, y):
            return function(x) + y

        @staticmethod
        def backward(ctx, grad):
            return grad * 2, None, grad * 5

    def fn(x):
        return Weighted.apply(x, tripled, x)

    run, counter = compiled_run(fn, fullgraph=True)
    testing.assert_same(with_gradient(fn)(x3()), run(x3()))
    assert len(counter.graphs) == 1


def test_second_derivatives():
    def fn(x):
        (grad,) = torch.autograd.grad(ByFunction.apply(x, tripled).sum(), x, create_graph=True)
        return grad

    compiled = minidynamo.compile(lambda x: ByFunction.apply(x, tripled), backend="eager")

    def run(x):
        (grad,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        return grad

    testing.assert_same(with_gradient(fn)(x3()), with_gradient(run)(x3()))


def test_what_the_halves_do_not_do_breaks_the_graph():
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, kept):
            kept.append(x.sin())
            return x.cos()

        @staticmethod
        def backward(ctx, grad):
            return grad, None

    class Writes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, function):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, grad):
            return grad * 2, None

    def keeps(x):
        kept = []
        return Keeps.apply(x, kept), kept[0].detach()

    def writes(x):
        y = x + 1
        return Writes.apply(y, tripled), y.detach()

    for fn in (keeps, writes):
        run, counter = compiled_run(fn)
        testing.assert_same(with_gradient(fn)(x3()), run(x3()))
        with pytest.raises(minidynamo.exc.Unsupported, match="autograd function"):
            minidynamo.compile(fn, backend="eager", fullgraph=True)(x3())
