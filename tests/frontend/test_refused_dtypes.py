"""Operators that eager refuses for some dtypes, which fake tensors do not know."""

import traceback

import pytest
import torch
import torch.nn.functional as F
from testing import check

import minidynamo

REFUSED = {
    "minus_bool": lambda a: a - False,
    "bool_minus": lambda a: True - a,
    "function": lambda a: torch.sub(a, True),
    "in_place": lambda a: a.clone().sub_(True),
    "masks": lambda a: a - (a > 1),
    "boolean_alpha": lambda a: torch.sub(a, 1, alpha=True),
    "bits_of_floats": lambda a: a & 1,
    "abs_of_bools": lambda a: abs(a > 1),
    "loss_of_integers": lambda a: F.mse_loss(a.int(), a.int()),
    "loss_of_classes": lambda a: F.nll_loss(a.int()[None], torch.zeros(1, dtype=torch.int64)),
    "half_of_integers": lambda a: F.glu(a.int().repeat(2), 0),
    "places_of_bools": lambda a: (a > 1).argmax(),
    "product_of_bools": lambda a: torch.dot(a > 1, a > 1),
    "sum_of_complex_numbers": lambda a: torch.nansum(a + 1j),
    "padded_bools": lambda a: F.pad(a[None] > 1, (1, 1), "reflect"),
    "windows_of_integers": lambda a: F.unfold(a.int().expand(1, 1, 3, 3), 2),
    "softmax_of_integers": lambda a: F.softmax(a.int(), dim=0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    check(REFUSED[name], torch.arange(3.0), graphs=None, backend="inductor")


def test_line_of_the_error():
    def f(a, flag):
        b = a.sin()
        c = b - flag
        return c + 1

    compiled = minidynamo.compile(f, backend="eager")
    torch.testing.assert_close(compiled(torch.ones(3), 2), f(torch.ones(3), 2))
    with pytest.raises(RuntimeError, match="Subtraction") as raised:
        compiled(torch.ones(3), True)
    lines = [frame.lineno for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert lines[1] == f.__code__.co_firstlineno + 2


def test_taken():
    def f(a):
        mask = a > 1
        return a + True, a * mask, mask & True, abs(a.int()), a - 1, torch.sub(a, 1, alpha=2)

    check(f, torch.arange(3.0), fullgraph=True)
