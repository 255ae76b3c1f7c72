"""The harness of the front end's tests: a user's function, run in eager and compiled, compared in
everything.

check(fn, x, graphs=1)                        # values, exceptions, mutated arguments, graph count
check(fn, x, graphs=2, breaks=1)
with recompiles(fn) as again: again(x); again(y)
"""

from __future__ import annotations

import copy
import math
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import minidynamo


@dataclass
class CountingBackend:
    """Keeps graphs and has them run by a backend, in eager if it is not named."""

    graphs: list[torch.fx.GraphModule] = field(default_factory=list)
    backend: str = "eager"

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: list[Any]
    ) -> Callable[..., Any]:
        self.graphs.append(gm)
        return minidynamo.lookup_backend(self.backend)(gm, example_inputs)

    @property
    def op_count(self) -> int:
        return sum(n.op.startswith("call_") for gm in self.graphs for n in gm.graph.nodes)


def outcome(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """("value", result) or ("raised", type, text)."""
    try:
        return "value", fn(*args, **kwargs)
    except Exception as error:
        return "raised", type(error), str(error)


def assert_same(left: Any, right: Any, path: str = "result") -> None:
    """Equal types and values; tensors to a tight tolerance, NaN equal NaN; objects by their
    attributes.
    """
    assert type(left) is type(right), f"{path}: {type(left)} is not {type(right)}"
    if isinstance(left, torch.Tensor):
        torch.testing.assert_close(left, right, equal_nan=True, msg=lambda m: f"{path}: {m}")
        assert left.requires_grad == right.requires_grad, f"{path}.requires_grad"
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), f"{path}: length {len(left)} is not {len(right)}"
        for index, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_same(a, b, f"{path}[{index}]")
    elif isinstance(left, dict):
        assert list(left) == list(right), f"{path}: keys {list(left)} are not {list(right)}"
        for key in left:
            assert_same(left[key], right[key], f"{path}[{key!r}]")
    elif isinstance(left, float) and math.isnan(left):
        assert math.isnan(right), path
    elif isinstance(left, type) and left.__module__ == right.__module__ == "builtins":
        assert left is right, f"{path}: {left} is not {right}"
    elif isinstance(left, types.FunctionType):
        assert left.__code__ is right.__code__, path
    elif type(left).__eq__ is object.__eq__ and hasattr(left, "__dict__"):
        assert_same(_plain(left), _plain(right), f"{path}.__dict__")
    else:
        assert left == right, f"{path}: {left!r} is not {right!r}"


def _plain(value: Any) -> dict[str, Any]:
    return {key: item for key, item in vars(value).items() if not key.startswith("__")}


def check(
    fn: Callable[..., Any],
    *args: Any,
    graphs: int | None = 1,
    breaks: int | None = None,
    ops: int | None = None,
    fullgraph: bool = False,
    calls: int = 2,
    backend: Any = None,
    dynamic: bool | None = None,
    **kwargs: Any,
) -> CountingBackend:
    """`fn(*args)` in eager and compiled, `calls` times each on copies: results, exceptions and
    arguments agree.

    graphs: how many graphs are captured over all calls (None: not checked); breaks: how many of the
    captures end in a graph break; ops: operations in all graphs.
    """
    minidynamo.reset()
    counter = CountingBackend()
    options: Any = {"fullgraph": fullgraph, "dynamic": dynamic}
    compiled = minidynamo.compile(fn, backend=backend or counter, **options)
    broken: list[Any] = []
    with minidynamo.events.subscribe(broken.append, minidynamo.events.GraphBreakEvent):
        for _ in range(calls):
            expected_args, actual_args = (
                copy.deepcopy((args, kwargs)),
                copy.deepcopy((args, kwargs)),
            )
            expected = outcome(fn, *expected_args)
            actual = outcome(compiled, *actual_args)
            assert_same(expected, actual)
            assert_same(expected_args, actual_args, "arguments")
    found = "\n".join(str(event) for event in broken)
    if graphs is not None:
        assert len(counter.graphs) == graphs, f"{len(counter.graphs)} graphs\n{found}"
    if breaks is not None:
        assert len(broken) == breaks, f"{len(broken)} breaks\n{found}"
    if ops is not None:
        assert counter.op_count == ops, [str(gm.graph) for gm in counter.graphs]
    return counter


def check_recompiles(
    fn: Callable[..., Any],
    calls: list[tuple[Any, ...]],
    graphs: int | None,
    change: Callable[[int], None] | None = None,
    **options: Any,
) -> CountingBackend:
    """Call with each argument tuple in turn (after `change(i)`), eager beside compiled; `graphs` in
    all (None: not checked). `options` are `compile`'s.
    """
    minidynamo.reset()
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, **options)
    for index, args in enumerate(calls):
        if change is not None:
            change(index)
        expected_args, actual_args = copy.deepcopy(args), copy.deepcopy(args)
        assert_same(outcome(fn, expected_args, {}), outcome(compiled, actual_args, {}))
        assert_same(expected_args, actual_args, "arguments")
    assert graphs in (None, len(counter.graphs)), f"{len(counter.graphs)} graphs"
    return counter
