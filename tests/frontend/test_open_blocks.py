"""A graph that raises, begun in a `with` block: the block is left all the same."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import minidynamo


def in_block(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        minidynamo.graph_break()
        y = torch.ones(3) * 2
        x.sin_()
    return y


def behind_block(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        minidynamo.graph_break()
        y = torch.ones(3) * 2
    x.sin_()
    return y


def in_outer_block(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = torch.ones(3) * 2
        with torch.enable_grad():
            minidynamo.graph_break()
            y = y + 1
        x.sin_()
    return y


def before_another_break(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        minidynamo.graph_break()
        y = torch.ones(3, 3) @ torch.ones(3, 3)
        x.sin_()
        minidynamo.graph_break()
    return y


def in_caller(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return in_block(x) + 1


def in_handler(x: torch.Tensor) -> torch.Tensor:
    try:
        raise ValueError
    except ValueError:
        with torch.no_grad():
            minidynamo.graph_break()
            x.sin_()
    return x


def states() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args), states()
    except RuntimeError as error:
        return str(error)[:40], states()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    "function",
    [in_block, behind_block, in_outer_block, before_another_break, in_caller, in_handler],
)
def test_modes_are_put_back(function: Callable[..., Any], grad: bool, backend: str) -> None:
    compiled = minidynamo.compile(function, backend=backend)
    overlapping = torch.ones(1, 3).expand(3, 3)
    with torch.set_grad_enabled(grad):
        expected = outcome(function, overlapping)
        for _ in range(2):
            found = outcome(compiled, overlapping)
            torch.set_grad_enabled(grad)
            torch.set_autocast_enabled("cpu", False)
            assert found == expected
        assert "unsupported operation" in expected[0]
        x = torch.ones(3, 3)
        torch.testing.assert_close(compiled(x.clone()), function(x.clone()))


class Noted:
    def __init__(self, log: list[Any], name: str, error: Exception | None = None) -> None:
        self.log, self.name, self.error = log, name, error

    def __enter__(self) -> Noted:
        self.log.append(("enter", self.name))
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.log.append(("exit", self.name))
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def noted(log: list[Any], name: str) -> Iterator[None]:
    log.append(("begin", name))
    try:
        yield
    finally:
        log.append(("end", name))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("fails", [False, True])
def test_managers_are_left_once_and_in_order(fails: bool, backend: str) -> None:
    def function(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
        error = KeyError("left") if fails else None
        with Noted(log, "a"), noted(log, "b"), Noted(log, "c", error):
            minidynamo.graph_break()
            x.sin_()
        return x

    compiled = minidynamo.compile(function, backend=backend)
    overlapping = torch.ones(1, 3).expand(3, 3)
    logs: list[list[Any]] = [[], []]
    for call, log in zip((function, compiled), logs, strict=True):
        with pytest.raises(KeyError if fails else RuntimeError) as raised:
            call(overlapping, log)
        assert (type(raised.value.__context__) is RuntimeError) == fails
        del raised
        assert sys.exc_info() == (None, None, None)
    assert logs[0] == logs[1]
    assert len(logs[0]) == 6


def test_functions_around_the_break() -> None:
    log: list[Any] = []

    def inner(x: torch.Tensor) -> torch.Tensor:
        with Noted(log, "inner"):
            minidynamo.graph_break()
            y = x * 2
            x.sin_()
        return y

    def function(x: torch.Tensor) -> torch.Tensor:
        with Noted(log, "outer"):
            return inner(x + 0) + inner(x)

    compiled = minidynamo.compile(function, backend="eager")
    overlapping = torch.ones(1, 3).expand(3, 3)
    for call in (function, compiled):
        with pytest.raises(RuntimeError, match="unsupported operation"):
            call(overlapping)
    assert log[: len(log) // 2] == log[len(log) // 2 :]
    x = torch.rand(3)
    torch.testing.assert_close(compiled(x.clone()), function(x.clone()))
