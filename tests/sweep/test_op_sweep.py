"""A few operators of the sweep, chosen by a seed; `make sweep` runs all of them."""

import random

import pytest
import torch

pytest.importorskip("expecttest")  # what torch's table of operators needs

from sweep_cases import VARIANTS, Case, cases, is_supported, names
from sweep_check import Compiler, Different, check, compare

SEED, COUNT = 7, 36
# Cases that eager and torch.compile do not agree on either, or that need a graph break.
ALLOWED = ("ok", "skip", "break")
# Shapes or strides that torch 2.11 works out for fake tensors and its kernels do not give.
WRONG_IN_211 = {
    "nn.functional.embedding_bag bfloat16 mixed": "exception",
    "fft.ihfft2 int64 function": "stride",
    "nn.functional.pad.replicate float32 channels_last": "stride",
}


OUT = ("out_strided", "out_alias", "out_grad")


def chosen():
    rare = ("reference", "special", "grad_strided", *OUT)
    variants = [v for v in VARIANTS if v not in rare]
    todo = cases(["float32", "int64", "bfloat16", "bool"], variants)
    return random.Random(SEED).sample(todo, COUNT)


@pytest.fixture(scope="module")
def compiler():
    return Compiler("minidynamo")


@pytest.mark.parametrize("part", range(12))
def test_a_sample_of_all_operators(compiler, part):
    for case in chosen()[part::12]:
        result = check(compiler, case, 2)
        known = WRONG_IN_211.get(case.key()) if torch.__version__ < "2.12" else None
        assert result.kind in (*ALLOWED, known), f"{case.key()}: {result.reason}"


def test_a_sample_of_outputs_of_all_sorts(compiler):
    for variant in OUT:
        todo = cases(["float64", "int32"], [variant])
        for case in random.Random(SEED).sample(todo, 4):
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
    x = torch.randn(4, 5)
    compare([x], [x.clone()], None, False)
    with pytest.raises(Different):
        compare([change(x)], [x], None, False)
