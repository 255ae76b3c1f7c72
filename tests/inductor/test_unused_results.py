"""Decompositions of matrices whose vectors nobody reads."""

import pytest
import torch
from inductor_testing import CLOSE, check, compiled

from minidynamo import events

linalg = torch.linalg
VALUES_ONLY = {
    "svdvals": linalg.svdvals,
    "singular values of svd": lambda a: linalg.svd(a)[1] * 2,
    "eigvalsh": lambda a: linalg.eigvalsh(a + a.mT),
    "upper": lambda a: linalg.eigvalsh(a, UPLO="U"),
    "rank": linalg.matrix_rank,
    "condition": linalg.cond,
    "nuclear norm": lambda a: linalg.matrix_norm(a, "nuc"),
    "eigvals": linalg.eigvals,
}
ALL = {
    "svd": lambda a: tuple(linalg.svd(a, full_matrices=False)),
    "eigh": lambda a: tuple(linalg.eigh(a + a.mT)),
    "values of eig": lambda a: linalg.eig(a)[0],
}


def calls_of_libraries(fn, *args):
    """The lines of the plan that call operators of linear algebra."""
    texts = []
    with events.subscribe(lambda event: texts.append(event.text), events.OutputCodeEvent):
        compiled(fn, *args)
    return [line for line in "".join(texts).splitlines() if "= aten." in line]


@pytest.mark.parametrize("case", VALUES_ONLY)
def test_values_alone(case):
    matrix = torch.randn(3, 5, 5) + 3 * torch.eye(5)
    check(VALUES_ONLY[case], matrix, **CLOSE)
    (call,) = calls_of_libraries(VALUES_ONLY[case], matrix)
    assert "False" in call or "_linalg_eigvals" in call


@pytest.mark.parametrize("case", ALL)
def test_vectors_that_are_read(case):
    matrix = torch.randn(3, 5, 5) + 3 * torch.eye(5)
    fn = ALL[case]
    ours, eager = compiled(fn, matrix)(matrix), fn(matrix)
    for actual, expected in zip(
        ours, eager if isinstance(eager, tuple) else (eager,), strict=True
    ):
        torch.testing.assert_close(actual, expected, **CLOSE)
    (call,) = calls_of_libraries(fn, matrix)
    assert "eigvals" not in call and call.count("False") <= 1


def test_large_matrices_have_eagers_order():
    matrix = torch.randn(150, 150, dtype=torch.float64)
    check(linalg.eigvals, matrix, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("fn", [linalg.svdvals, linalg.eigvalsh, lambda a: linalg.cond(a)])
def test_gradients(fn):
    matrix = torch.randn(4, 4)
    ours, theirs = (matrix.clone().requires_grad_() for _ in range(2))
    compiled(fn, ours)(ours)[0].sum().backward()
    fn(theirs).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, **CLOSE)
