"""Instances of autograd functions, which torch warns of: `F().apply(x)`."""

import warnings

import pytest
import torch
from testing import CountingBackend, assert_same

import minidynamo


class Scaled(torch.autograd.Function):
    factor = 3.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0] * 10


class Named(Scaled):
    def __init__(self, name):
        super().__init__()
        self.name = name


def applied(x):
    return Scaled().apply(x) + 1


def applied_twice(x):
    functions = [Scaled() for _ in range(2)]
    return functions[0].apply(functions[1].apply(x)) * functions[0].factor


def with_attributes(x):
    function = Named("a")
    function.count = len(function.name)
    return function.apply(x) * function.count


def kept(x):
    function = Named("abc")
    return function.apply(x), function


def called(x):
    return Scaled()(x)


def ran(fn, x):
    x = x.clone().requires_grad_()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = fn(x)
        except RuntimeError as error:
            result = str(error)
    if isinstance(result, tuple):
        result, instance = result
        assert type(instance) is Named and vars(instance) == {"name": "abc"}
    if isinstance(result, torch.Tensor):
        result.sum().backward()
    said = [(str(w.message), w.category, w.filename, w.lineno) for w in caught]
    return result, x.grad, said


@pytest.mark.parametrize("fn", [applied, applied_twice, with_attributes, kept])
def test_instances_of_autograd_functions(fn):
    minidynamo.reset()
    backend = CountingBackend()
    compiled = minidynamo.compile(fn, backend=backend, fullgraph=True)
    for x in (torch.arange(3.0), torch.ones(3)):
        assert_same(ran(fn, x), ran(compiled, x))
    assert len(backend.graphs) == 1


def test_the_errors_of_old_programs():
    compiled = minidynamo.compile(called, backend="eager")
    assert_same(ran(called, torch.ones(3)), ran(compiled, torch.ones(3)))


def test_warnings_that_are_errors():
    compiled = minidynamo.compile(applied, backend="eager")
    for fn in (applied, compiled):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(DeprecationWarning, match="Scaled"):
                fn(torch.ones(3))
