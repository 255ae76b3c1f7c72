"""Tensors that are given as `out=`: of the right dtype and shape, and of others."""

import pytest
import torch
from testing import check

import minidynamo

X = torch.linspace(-2, 2, 6).reshape(2, 3)


def test_out_argument():
    def fn(x):
        out = torch.empty_like(x)
        torch.add(x, 1, out=out)
        result = torch.mul(x, 2, out=x)
        return out, result is x

    check(fn, X, fullgraph=True)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, v, n: torch.sort(x, out=(v, n.long())),
        lambda x, v, n: torch.linalg.solve(torch.eye(5), x, out=v),
        lambda x, v, n: torch.linalg.solve_ex(torch.eye(5), x, out=(v, n[0].int())),
        lambda x, v, n: torch.topk(x, 5, out=(v, n.long())),
    ],
)
def test_out_argument_with_holes(operation):
    """Some meta functions lay it out anew, which would be the graph's idea of the input."""

    def fn(x, out):
        operation(x, out[:, 0], out[:, 1].clone())
        return out + 1

    def given(x, values, numbers):
        return operation(x, values, numbers)

    for _ in range(2):  # fake tensors remember calls, and not what became of out=
        check(fn, X[0].new_tensor([3.0, 1, 2, 5, 4]), torch.zeros(5, 2), graphs=None)
        minidynamo.reset()
        x, out = torch.randn(5), torch.zeros(5, 2, 2)
        expected = out.clone()
        given(x, expected[:, 0, 0], expected[:, 0, 1])
        minidynamo.compile(given)(x, out[:, 0, 0], out[:, 0, 1])
        torch.testing.assert_close(out, expected)


def test_out_argument_that_is_resized():
    def given(x, out):
        out.add_(1)
        torch.add(x, 1, out=out)
        return out * 2

    check(given, X, torch.ones(0), graphs=None, breaks=1)
    check(given, X, torch.ones(2, 3), fullgraph=True)

    def view(x):
        out = x[0:0]
        torch.add(x, 1, out=out)
        return out * 2

    check(view, X, graphs=None, breaks=1)

    check(given, X, torch.ones(2, 3).double(), fullgraph=True)
    check(given, X, torch.ones(2, 3).long(), graphs=None)
    check(lambda x, out: torch.complex(x, x, out=out), X, X.clone(), graphs=None)
    check(lambda x, out: torch.aminmax(x, out=out), X, (X.sum(), X.sum().long()), graphs=None)

    def rank(x, out):
        return torch.linalg.matrix_rank(x, out=out) + 1

    check(rank, X, torch.tensor(7), graphs=None, breaks=1, backend="inductor")

    def own(x):
        return torch.add(x, 1, out=x.new_empty(0)) * 2

    check(own, X, fullgraph=True)


IN_DTYPE_OF_OUT = [torch.sum, torch.mean, torch.prod, torch.cumsum, torch.nansum]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("function", [torch.add, torch.mul, torch.gt, torch.div])
def test_out_argument_that_is_converted_to(function, backend):
    def fn(x, out):
        function(x, 3, out=out)
        return out * 2

    for dtype in (torch.float64, torch.float16, torch.complex64, torch.float32):
        check(
            fn, X, torch.ones(2, 3, dtype=dtype), fullgraph=True, backend=backend, graphs=None
        )
        numbers = torch.arange(6).reshape(2, 3)
        check(
            fn,
            numbers,
            torch.ones(2, 3, dtype=dtype),
            fullgraph=True,
            backend=backend,
            graphs=None,
        )
    check(
        fn,
        X,
        torch.ones(6, 3, dtype=torch.double)[::3],
        fullgraph=True,
        backend=backend,
        graphs=None,
    )


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("function", IN_DTYPE_OF_OUT)
def test_out_argument_that_says_in_which_dtype_to_compute(function, backend):
    """To the last digit: float32 sums would not be those of float64."""

    def fn(x, out):
        function(x, dim=1, out=out)
        return out + 1

    x = torch.arange(1, 101).reshape(2, 50) / 300
    shape = function(x, dim=1).shape
    out = torch.ones(shape, dtype=torch.float64)
    expected = fn(x, out.clone())
    found = minidynamo.compile(fn, fullgraph=True, backend=backend)(x, out)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)
    numbers = (x * 300).to(torch.int32)
    if function is not torch.mean:
        check(fn, numbers, torch.ones(shape, dtype=torch.int32), fullgraph=True)


def test_out_argument_that_is_not_converted_to():
    def fn(x, out):
        torch.sum(x, 1, dtype=torch.float32, out=out)
        return out

    def product(x, out):
        return torch.mm(x, x.t(), out=out)

    def converted(x, out):
        return torch.exp(x, out=out)

    for function, shape, dtype in (
        (fn, (2,), torch.float64),
        (product, (2, 2), torch.float64),
        (converted, (2, 3), torch.int64),
    ):
        for compiled in (function, minidynamo.compile(function)):
            with pytest.raises(RuntimeError, match="dtype|cast"):
                compiled(X, torch.ones(shape, dtype=dtype))


def test_random_numbers_are_not_drawn_to_look_at_out():
    def fn(x, out):
        torch.bernoulli(x, out=out)
        return out + torch.rand(2, 3)

    compiled, x = minidynamo.compile(fn, backend="eager"), torch.full((2, 3), 0.5)
    torch.manual_seed(0)
    expected = fn(x, torch.ones(2, 3).double())
    torch.manual_seed(0)
    torch.testing.assert_close(compiled(x, torch.ones(2, 3).double()), expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64])
def test_random_integers_of_another_dtype(dtype):
    def fn(out):
        return torch.randint(17, (4,), out=out) + 1

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    results = []
    for call in (fn, compiled):
        torch.manual_seed(0)
        results.append([call(torch.empty(4, dtype=dtype)) for _ in range(2)])
    assert torch.equal(torch.stack(results[0]), torch.stack(results[1]))
