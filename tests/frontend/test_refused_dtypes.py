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
    "in_place_complex_number": lambda a: a.clone().mul_(1j),
    "operator_of_a_complex_number": lambda a: a.int().__iadd__(2j),
    "boolean_alpha": lambda a: torch.sub(a, 1, alpha=True),
    "alpha_of_bools": lambda a: torch.add(a > 1, a > 1, alpha=1.5),
    "complex_number_in_a_float": lambda a: a + torch.full((3,), 1j, dtype=torch.float32),
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


def test_refused_with_a_symbolic_argument():
    def f(a, dim):
        return F.glu(a, dim)

    compiled = minidynamo.compile(f, dynamic=True, backend="inductor")
    rows = torch.arange(8.0).view(2, 4)
    torch.testing.assert_close(compiled(rows, -1), f(rows, -1))
    with pytest.raises(NotImplementedError, match="not implemented for 'Char'"):
        compiled(rows.char(), -1)


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


# Numbers that a dtype does not hold: some operators refuse them, others wrap them around.
TOO_LARGE = {
    "clamp": lambda a: a.char().clamp(max=2**20),
    "where": lambda a: torch.where(a > 1, 2**35, a.int()),
    "full_like": lambda a: torch.full_like(a.byte(), 300),
    "full": lambda a: torch.full((2,), 70000.0, dtype=torch.half),
    "full_of_nan": lambda a: torch.full((2,), float("nan"), dtype=torch.int32),
    "new_full": lambda a: a.half().new_full((2,), 1e5),
    "masked_fill": lambda a: a.half().masked_fill(a > 1, -1e9),
    "masked_fill_of_floats": lambda a: a.masked_fill(a > 1, -1e39),
    "fill": lambda a: a.char().fill_(value=-129),
    "index_fill": lambda a: a.byte().index_fill(0, torch.tensor([0]), 256),
    "scatter": lambda a: a.char().scatter(0, torch.tensor([0]), 128),
    "pad": lambda a: F.pad(a.half(), (1, 1), value=1e6),
    "alpha": lambda a: torch.add(a.char(), a.char(), alpha=300),
    "addcmul": lambda a: torch.addcmul(*[a.char()] * 3, value=300),
    "steps": lambda a: torch.linspace(0, 300, 4, dtype=torch.int8),
    "threshold": lambda a: F.threshold(a.char(), 300, 301),
    "diagonal": lambda a: a.char().repeat(3, 1).fill_diagonal_(300),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_number_that_does_not_fit(name):
    check(TOO_LARGE[name], torch.arange(3.0), graphs=None, backend="inductor")


def test_numbers_that_wrap_or_fit():
    def f(a):
        char, half = a.char(), a.half()
        wrapped = char + 300, char * 2**33, char == 2**40, char & 0xFFFF, char // 300
        halves = half + 70000, half * 1e10, half < 1e6, half.masked_fill(a > 1, float("-inf"))
        moved = char.expand(300, 3), char.byte().clamp(min=-5), half.clamp(max=65504.0)
        return wrapped, halves, moved, torch.full((2,), 1e39, dtype=torch.double)

    check(f, torch.arange(3.0), graphs=None, fullgraph=True, backend="inductor")
