"""A few operators of the sweep, chosen by a seed; `make sweep` runs all of them."""

import random

import pytest

pytest.importorskip("expecttest")  # what torch's table of operators needs

from sweep_cases import VARIANTS, Case, cases, is_supported, names
from sweep_check import Compiler, Different, check, compare

SEED, COUNT = 7, 36
# Cases that eager and torch.compile do not agree on either, or that need a graph break.
ALLOWED = ("ok", "skip", "break")


def chosen():
    todo = cases(["float32", "int64", "bfloat16", "bool"], VARIANTS)
    return random.Random(SEED).sample(todo, COUNT)


@pytest.fixture(scope="module")
def compiler():
    return Compiler("minidynamo")


@pytest.mark.parametrize("part", range(12))
def test_a_sample_of_all_operators(compiler, part):
    for case in chosen()[part::12]:
        result = check(compiler, case, 2)
        assert result.kind in ALLOWED, f"{case.key()}: {result.reason}"


def test_the_table_is_large():
    assert len(names()) > 600
    assert is_supported(Case("add", "float32", "function"))
    assert not is_supported(Case("add", "bool", "grad"))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x + 1e-3,
        lambda x: x.double(),
        lambda x: x[:-1],
        lambda x: x.t().contiguous().t(),
        lambda x: 3,
    ],
)
def test_a_difference_is_seen(change):
    import torch

    x = torch.randn(4, 5)
    compare([x], [x.clone()], None, False)
    with pytest.raises(Different):
        compare([change(x)], [x], None, False)
