"""Compiling fails in the middle of a frame: handlers and contexts of the program are obeyed."""

import pytest
import torch

import minidynamo

X = torch.ones(2)


class Noted:
    def __init__(self, log, name):
        self.log, self.name = log, name

    def __enter__(self):
        self.log.append(f"in {self.name}")

    def __exit__(self, kind, error, trace):
        self.log.append(f"out {self.name}: {kind and kind.__name__}")


def opaque():
    """Not traced."""


minidynamo.disallow_in_graph(opaque)


def in_with_and_finally(log, x):
    with torch.no_grad(), Noted(log, "a"):
        try:
            x = x + 1
            opaque()
            x = x * 2
        finally:
            log.append("finally")
    return x


def callee(log, x):
    with Noted(log, "inner"):
        try:
            x = x + 1
            opaque()
            return x * 2
        finally:
            log.append("inner finally")


def in_callee(log, x):
    try:
        return callee(log, x) - 1
    finally:
        log.append("outer finally")


def in_two_callees(log, x):
    with Noted(log, "outer"):
        return in_callee(log, x) * 2


def caught_by_the_program(log, x):
    try:
        return callee(log, x) + 1
    except minidynamo.exc.BackendCompilerFailed as error:
        log.append(str(error.inner_exception))
        return x


def in_handler(log, x):
    try:
        raise ValueError
    except ValueError:
        x = x + 1
        opaque()
        return x * 2
    finally:
        log.append("finally")


EXPECTED = {
    in_with_and_finally: ["in a", "finally", "out a: BackendCompilerFailed"],
    callee: ["in inner", "inner finally", "out inner: BackendCompilerFailed"],
    in_callee: [
        *["in inner", "inner finally", "out inner: BackendCompilerFailed"],
        "outer finally",
    ],
    in_two_callees: [
        *["in outer", "in inner", "inner finally", "out inner: BackendCompilerFailed"],
        *["outer finally", "out outer: BackendCompilerFailed"],
    ],
    caught_by_the_program: [
        *["in inner", "inner finally", "out inner: BackendCompilerFailed"],
        "refused",
    ],
    in_handler: ["finally"],
}


@pytest.mark.parametrize("fn", EXPECTED, ids=lambda fn: fn.__name__)
def test_backend_refuses_the_second_graph(fn):
    count = 0

    def backend(gm, inputs):
        nonlocal count
        count += 1
        if count == 2:
            raise RuntimeError("refused")
        return gm.forward

    compiled = minidynamo.compile(fn, backend=backend)
    log: list[str] = []
    if fn is caught_by_the_program:
        torch.testing.assert_close(compiled(log, X), X)
    else:
        with pytest.raises(minidynamo.exc.BackendCompilerFailed, match="refused"):
            compiled(log, X)
    assert log == EXPECTED[fn]
    assert torch.is_grad_enabled()
    # The next call compiles what is missing.
    again, expected = [], []
    torch.testing.assert_close(compiled(again, X), fn(expected, X))
    assert again == expected
