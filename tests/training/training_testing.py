"""The harness of the training tests: a program written over `comp`, run twice, once with
`comp` doing nothing and once with `comp` compiling, and compared in everything it returns.

    @scenario(graphs=1)
    def program(comp):
        model = comp(...)
        ...
        return results
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo import events

BACKENDS = ("aot_eager", "inductor")


def assert_same(want: Any, got: Any, tolerance: float, path: str = "result") -> None:
    """Equal structure, types, dtypes, requires_grad and values."""
    assert type(want) is type(got), f"{path}: {want!r} is not {got!r}"
    if isinstance(want, torch.Tensor):
        assert want.requires_grad == got.requires_grad, f"{path}.requires_grad"
        assert want.stride() == got.stride(), f"{path}.stride(): {want.stride()} {got.stride()}"
        options = {"rtol": tolerance * 10, "atol": tolerance, "equal_nan": True}
        torch.testing.assert_close(want, got, msg=lambda text: f"{path}: {text}", **options)
    elif isinstance(want, (tuple, list)):
        assert len(want) == len(got), path
        for i, (a, b) in enumerate(zip(want, got, strict=True)):
            assert_same(a, b, tolerance, f"{path}[{i}]")
    else:
        assert want == got, f"{path}: {want!r} is not {got!r}"


def scenario(
    graphs: int | None = 1,
    breaks: int | None = 0,
    tolerance: float = 1e-5,
    backends: tuple[str, ...] = BACKENDS,
) -> Callable[..., Any]:
    """Makes a test of a program: same results, and so many graphs and graph breaks."""

    def decorate(program: Callable[..., Any]) -> Callable[..., None]:
        @pytest.mark.parametrize("backend", backends)
        @functools.wraps(program, assigned=("__name__", "__doc__", "__module__"))
        def test(backend: str) -> None:
            run(program, backend, graphs, breaks, tolerance)

        del test.__wrapped__
        return test

    return decorate


def run(
    program: Any, backend: str, graphs: int | None, breaks: int | None, tolerance: float
) -> None:
    torch.manual_seed(0)
    want = program(lambda fn: fn)
    torch.manual_seed(0)
    made: list[Any] = []
    broken: list[Any] = []
    with (
        events.subscribe(made.append, events.GraphEvent),
        events.subscribe(broken.append, events.GraphBreakEvent),
    ):
        got = program(lambda fn: minidynamo.compile(fn, backend=backend))
    assert_same(want, got, tolerance)
    texts = [str(event.graph.graph) for event in made]
    assert graphs is None or len(made) == graphs, "\n".join(texts)
    assert breaks is None or len(broken) == breaks, [(b.kind, b.context) for b in broken]


def noise(*size: int, seed: int = 0, **options: Any) -> torch.Tensor:
    """A tensor of fixed random numbers that does not move the global generator."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).requires_grad_(
        options.pop("requires_grad", False)
    )


def gradients(module: nn.Module) -> list[torch.Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def state(module: nn.Module) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in module.state_dict().values()]


def mlp() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


class ConvNet(nn.Module):
    """Convolutions, batch norm, pooling, log-softmax; images of 3 channels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.norm2 = nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16)
        self.last = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.norm1(self.first(x))), 2)
        x = torch.relu(self.norm2(self.second(x)))
        return nn.functional.log_softmax(self.last(x.mean((2, 3))), -1)
