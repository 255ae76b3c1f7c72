"""What the inductor's tests share: compile a function's graph and compare with eager."""

import operator

import torch
import torch.fx

from minidynamo.inductor import metrics
from minidynamo.inductor.compile_fx import compile_fx


def as_tuple(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def graph_of(fn, args, results):
    """A graph module that calls `fn` in one node and returns its results as a tuple."""
    root, graph = torch.nn.Module(), torch.fx.Graph()
    inputs = tuple(graph.placeholder(f"x{i}") for i in range(len(args)))
    if isinstance(fn, torch.nn.Module):
        root.fn = fn
        value = graph.call_module("fn", inputs)
    else:
        value = graph.call_function(fn, inputs)
    if isinstance(results, (tuple, list)):
        value = tuple(
            graph.call_function(operator.getitem, (value, i)) for i in range(len(results))
        )
    else:
        value = (value,)
    graph.output(value)
    return torch.fx.GraphModule(root, graph)


def copies(args):
    """The arguments, on memory of their own where they are plain tensors."""
    return [
        arg.detach().clone().requires_grad_(arg.requires_grad)
        if isinstance(arg, torch.Tensor) and arg.is_contiguous()
        else arg
        for arg in args
    ]


def compiled(fn, *args, **options):
    """`fn` compiled for arguments like these; the callable returns a tuple."""
    results = fn(*copies(args))
    return compile_fx(graph_of(fn, args, results), copies(args), options=options)


def assert_same(actual, expected, **tolerance):
    """Values, dtypes, shapes and strides."""
    if not isinstance(expected, torch.Tensor):
        assert actual == expected
        return
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual, expected, equal_nan=True, **tolerance)


def check(fn, *args, kernels=None, externs=None, fallbacks=None, **tolerance):
    """Compile `fn`, run it, compare every result with eager's; returns what was compiled.

    kernels, externs: how many distinct kernels and operator calls the plan must have.
    """
    expected = as_tuple(fn(*copies(args)))
    metrics.reset()
    run = compiled(fn, *args)
    actual = run(*copies(args))
    for left, right in zip(actual, expected, strict=True):
        assert_same(left, right, **tolerance)
    if kernels is not None:
        assert metrics.generated_kernel_count == kernels
    if externs is not None:
        assert metrics.extern_calls == externs
    if fallbacks is not None:
        assert metrics.capture_fallbacks == fallbacks
    return run


CLOSE = {"rtol": 1e-4, "atol": 1e-5}
