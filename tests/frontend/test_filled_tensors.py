"""torch.full, torch.full_like and new_full with a tensor's number."""

import pytest
import torch
from testing import check, check_recompiles

x = torch.randn(2, 3)
NUMBERS = {
    "float32": torch.tensor(2.5),
    "bfloat16": torch.tensor(2.5, dtype=torch.bfloat16),
    "int64": torch.tensor(7),
    "bool": torch.tensor(True),
    "complex64": torch.tensor(1 + 2j),
}


def with_full(x, t):
    return torch.full((2, 3), t) * x, torch.full((2,), t, dtype=torch.float64)


def like(x, t):
    return torch.full_like(x, t), x.new_full((4,), t), x.new_full((2,), t, dtype=torch.float64)


def laid_out(x, t):
    return torch.full_like(x.t(), t), torch.full_like(
        x, t, memory_format=torch.contiguous_format
    )


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program", [with_full, like, laid_out])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int64", "bool"])
def test_one_graph(program, kind, backend):
    graphs = 1 if backend == "eager" else None
    backend = None if backend == "eager" else backend
    check(program, x, NUMBERS[kind], graphs=graphs, fullgraph=True, backend=backend)


def test_levels_of_a_pyramid():
    def anchors(x, strides):
        return torch.cat([x.new_full((n + 1, 1), s) for n, s in enumerate(strides)])

    check(anchors, x, torch.tensor([8.0, 16.0, 32.0]), graphs=1)
    check_recompiles(anchors, [(x, torch.ones(2)), (x, torch.ones(3))], graphs=2)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (torch.tensor(300), torch.uint8),
        (torch.tensor(1e30), torch.float16),
        (torch.tensor(1e300, dtype=torch.float64), torch.float32),
        (torch.tensor(2.5), torch.int32),
        (NUMBERS["complex64"], torch.complex128),
    ],
)
def test_numbers_that_may_not_fit_are_read_by_eager(given, dtype):
    def f(x, t):
        return x + 1, torch.full((2,), t, dtype=dtype)

    check(f, x, given, graphs=None)


def test_numbers_with_gradients_and_results_that_want_them():
    check(
        lambda x, t: x.new_full((2,), t), x, torch.tensor(1.5, requires_grad=True), graphs=None
    )
    check(
        lambda x, t: torch.full((2,), t, requires_grad=True) * 2, x, torch.ones(()), graphs=None
    )
    check(lambda x, t: torch.full((2,), t), x, torch.ones(1), graphs=None)


def test_what_only_the_functions_that_fill_refuse():
    t = torch.tensor(2.5)
    check(lambda x, t: torch.full(3, t), x, t, graphs=None)
    check(lambda x, t: x.new_full(3, t), x, t, graphs=None)
    check(
        lambda x, t: torch.full((3,), t, memory_format=torch.contiguous_format),
        x,
        t,
        graphs=None,
    )
