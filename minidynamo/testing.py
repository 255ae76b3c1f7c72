"""Backends and helpers for tests of programs, by the names of `torch._dynamo.testing`.

counter = CompileCounter()
compile(f, backend=counter)(x)
assert counter.frame_count == 1 and counter.op_count == 2
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
import sys
import unittest
import unittest.mock
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from . import config
from .backends.aot_autograd import aot_autograd
from .backends.registry import lookup_backend
from .eval_frame import optimize_assert, reset
from .events import AotGraphEvent, subscribe
from .markers import graph_break

__all__ = [
    "AotEagerAndRecordGraphs",
    "CompileCounter",
    "CompileCounterWithBackend",
    "EagerAndRecordGraphs",
    "InductorAndRecordGraphs",
    "clone_me",
    "collect_results",
    "empty_line_normalizer",
    "expectedFailureCodegenDynamic",
    "expectedFailureDynamic",
    "expectedFailureDynamicWrapper",
    "make_test_cls_with_patches",
    "normalize_gm",
    "rand_strided",
    "reduce_to_scalar_loss",
    "remove_optimized_module_prefix",
    "remove_trailing_space",
    "requires_bwd_pass",
    "reset_rng_state",
    "same",
    "standard_test",
    "strip_comment",
    "unsupported",
]

F = TypeVar("F", bound=Callable[..., Any])


class CompileCounter:
    """Runs graphs in eager; counts them (frame_count) and the calls in them (op_count)."""

    def __init__(self) -> None:
        self.clear()

    def __call__(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.frame_count += 1
        self.graphs.append(gm)
        self.op_count += sum("call" in node.op for node in gm.graph.nodes)
        return gm.forward

    def clear(self) -> None:
        """Forget everything counted."""
        self.frame_count = 0
        self.op_count = 0
        self.graphs: list[Any] = []


class CompileCounterWithBackend(CompileCounter):
    """Counts, and compiles with the backend of that name."""

    def __init__(self, backend: str) -> None:
        super().__init__()
        lookup_backend(backend)  # an unknown one is an error here
        self.backend = backend

    def __call__(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        super().__call__(gm, example_inputs)
        return lookup_backend(self.backend)(gm, example_inputs)


class EagerAndRecordGraphs:
    """Runs graphs in eager and keeps them in `graphs`."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []

    def __call__(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(gm)
        return gm.forward


class AotEagerAndRecordGraphs:
    """Keeps captured graphs in `graphs`, AOTAutograd's in `fw_graphs` and `bw_graphs`."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.fw_graphs: list[Any] = []
        self.bw_graphs: list[Any] = []

    def __call__(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        def keep(graphs: list[Any]) -> Callable[[Any, Sequence[Any]], Any]:
            def compiler(graph: Any, _inputs: Sequence[Any]) -> Any:
                graphs.append(graph)
                return graph.forward

            return compiler

        self.graphs.append(gm)
        return aot_autograd(
            gm,
            example_inputs,
            fw_compiler=keep(self.fw_graphs),
            bw_compiler=keep(self.bw_graphs),
        )


class InductorAndRecordGraphs:
    """Compiles with inductor; keeps captured graphs and those that inductor compiled."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.inductor_graphs: list[Any] = []

    def __call__(self, gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(gm)

        def keep(event: AotGraphEvent) -> None:
            self.inductor_graphs.append(event.graph)

        with subscribe(keep, AotGraphEvent):
            return lookup_backend("inductor")(gm, example_inputs)


def same(a: Any, b: Any, *, tol: float = 1e-4, equal_nan: bool = False) -> bool:
    """Whether two nests of tensors and plain values are alike: types, shapes, dtypes, values."""
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        return torch.allclose(a, b, rtol=tol, atol=tol, equal_nan=equal_nan)
    if isinstance(a, (list, tuple)):
        pairs = zip(a, b, strict=False) if isinstance(b, (list, tuple)) else ()
        alike = type(a) is type(b) and len(a) == len(b)
        return alike and all(same(x, y, tol=tol, equal_nan=equal_nan) for x, y in pairs)
    if isinstance(a, Mapping):
        alike = isinstance(b, Mapping) and a.keys() == b.keys()
        return alike and all(same(a[k], b[k], tol=tol, equal_nan=equal_nan) for k in a)
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (equal_nan and a != a and b != b) or abs(a - b) <= tol
    return bool(type(a) is type(b) and a == b)


def rand_strided(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    extra_size: int = 0,
) -> torch.Tensor:
    """A tensor of random values with these sizes and strides."""
    steps = [(n - 1) * s for n, s in zip(size, stride, strict=True)]
    needed = (1 + sum(steps) if 0 not in size else 0) + extra_size
    kind = torch.float32 if not (dtype.is_floating_point or dtype.is_complex) else dtype
    values = torch.randn(needed, dtype=kind, device=device)
    return torch.as_strided(values.to(dtype), tuple(size), tuple(stride))


def unsupported(a: Any, b: Any) -> Any:
    """Breaks the graph and returns `b`."""
    graph_break()
    return b


# -- models and their results ----------------------------------------------------------------------


def clone_me(x: torch.Tensor | None) -> torch.Tensor | None:
    """A leaf with the same values, which requires grad if `x` does."""
    return None if x is None else x.detach().clone().requires_grad_(x.requires_grad)


def remove_optimized_module_prefix(name: str) -> str:
    """The name that a parameter of an OptimizedModule has in the original."""
    return name.removeprefix("_orig_mod.")


def collect_results(
    model: torch.nn.Module, prediction: Any, loss: Any, example_inputs: Any
) -> list[Any]:
    """Everything that two runs of a training step are compared by: results, parameters, buffers,
    and gradients (zeros where there is none).
    """
    grads, parameters, buffers = {}, {}, {}
    for name, parameter in model.named_parameters():
        name = remove_optimized_module_prefix(name)
        grad = parameter.grad
        grads[f"{name}.grad"] = torch.zeros_like(parameter) if grad is None else grad
        parameters[name] = parameter
    for name, buffer in model.named_buffers():
        buffers[remove_optimized_module_prefix(name)] = buffer
    results = [prediction, loss, grads, parameters, buffers]
    for example in example_inputs:
        given = example if isinstance(example, (tuple, list)) else [example]
        results += [value.grad for value in given if isinstance(value, torch.Tensor)]
    return results


def requires_bwd_pass(out: Any) -> bool:
    """Whether a tensor in the result requires grad. Raises NotImplementedError for other kinds."""
    if isinstance(out, torch.Tensor):
        return out.requires_grad
    if isinstance(out, (list, tuple)):
        return any(map(requires_bwd_pass, out))
    if out is None or isinstance(out, int):
        return False
    raise NotImplementedError(f"requires_bwd_pass of {type(out).__name__}")


def reduce_to_scalar_loss(out: Any) -> Any:
    """The mean over all tensors in a nest. Raises NotImplementedError for other kinds."""
    if isinstance(out, torch.Tensor):
        return out.sum() / out.numel()  # mean() refuses integers
    if hasattr(out, "logits"):
        return reduce_to_scalar_loss(out.logits)
    if isinstance(out, Mapping):
        out = list(out.values())
    if isinstance(out, (list, tuple)):
        return sum(map(reduce_to_scalar_loss, out)) / len(out)
    raise NotImplementedError(f"reduce_to_scalar_loss of {type(out).__name__}")


def reset_rng_state() -> None:
    """Seed the generators of torch, Python and numpy."""
    torch.manual_seed(1337)
    random.seed(1337)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(1337)


# -- texts of graphs -------------------------------------------------------------------------------


def strip_comment(code: str) -> str:
    """Without lines that are comments: they name files."""
    return re.sub(r"(?m)^ *#.*\n?", "", code)


def remove_trailing_space(code: str) -> str:
    """Without space at the ends of lines."""
    return "\n".join(line.rstrip() for line in code.split("\n"))


def normalize_gm(gm_str: str) -> str:
    """What `print_readable()` gives, without what differs from machine to machine."""
    text = remove_trailing_space(strip_comment(gm_str))
    return re.sub(r"\n{3,}", "\n\n", text)


def empty_line_normalizer(code: str) -> str:
    """Without empty lines."""
    return re.sub(r"[\r\n]+", "\n", code)


# -- test cases ------------------------------------------------------------------------------------


def standard_test(
    self: unittest.TestCase,
    fn: Callable[..., Any],
    nargs: int,
    expected_ops: int | None = None,
    expected_ops_dynamic: int | None = None,
    expected_frame_count: int = 1,
) -> None:
    """Compile `fn(*nargs tensors)` as one graph and compare it with eager, twice, on two inputs."""
    if not config.assume_static_by_default and expected_ops_dynamic is not None:
        expected_ops = expected_ops_dynamic
    counter = CompileCounter()
    reset()
    compiled = optimize_assert(counter)(fn)
    inputs = [[torch.randn(10, 10) for _ in range(nargs)] for _ in range(2)]
    expected = [fn(*given) for given in inputs]
    for _ in range(2):
        for given, wanted in zip(inputs, expected, strict=True):
            self.assertTrue(same(compiled(*given), wanted))
    reset()
    self.assertEqual(counter.frame_count, expected_frame_count)
    if expected_ops is not None:
        self.assertEqual(counter.op_count, expected_ops)


def make_test_cls_with_patches(
    cls: type,
    cls_prefix: str,
    fn_suffix: str,
    *patches: tuple[Any, str, Any],
    xfail_prop: str | None = None,
    decorator: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda fn: fn,
) -> type:
    """A copy of a class of tests whose tests run with attributes set.

    patches: (object, attribute, value). Tests that have the attribute `xfail_prop` are expected to
    fail.
    """
    made = type(cls_prefix + cls.__name__, cls.__bases__, {})
    made.__qualname__ = made.__name__
    for name in dir(cls):
        value = getattr(cls, name)
        if not name.startswith("test_"):
            if not hasattr(made, name):
                setattr(made, name, value)
            continue
        if not callable(value):
            setattr(made, name, value)
            continue
        test = _patched(value, patches)
        test.__name__ = name + fn_suffix
        if xfail_prop is not None and hasattr(value, xfail_prop):
            test = unittest.expectedFailure(test)
        setattr(made, name + fn_suffix, decorator(test))
    return made


def _patched(test: Callable[..., Any], patches: Sequence[tuple[Any, str, Any]]) -> Any:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for target, attribute, value in patches:
                stack.enter_context(unittest.mock.patch.object(target, attribute, value))
            return test(*args, **kwargs)

    return run


def _marker(attribute: str) -> Callable[[F], F]:
    def mark(fn: F) -> F:
        setattr(fn, attribute, True)
        return fn

    return mark


# Marks that `xfail_prop` of `make_test_cls_with_patches` names.
expectedFailureDynamic = _marker("_expected_failure_dynamic")
expectedFailureCodegenDynamic = _marker("_expected_failure_codegen_dynamic")
expectedFailureDynamicWrapper = _marker("_expected_failure_dynamic_wrapper")
