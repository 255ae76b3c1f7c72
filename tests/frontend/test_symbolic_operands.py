"""Symbolic numbers beside operands that are no numbers: texts, sequences, objects with reflected
methods.
"""

import pytest
import torch
from testing import assert_same, check_recompiles

import minidynamo


class Weight:
    def __init__(self, value):
        self.value = value

    def __rmul__(self, other):
        return other * self.value

    def __radd__(self, other):
        return other + self.value

    def __rsub__(self, other):
        return NotImplemented


def sized(*sizes):
    return [(torch.ones(n, 3),) for n in sizes]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * sum([2] * x.shape[0]),
        lambda x: (x * 2, x.shape[0] * [x.shape[1]], (x,) * len(x)),
        lambda x: (x * 2, "ab" * x.shape[0], x.shape[0] * b"c"),
        lambda x: [x + 1] * (x.shape[0] - 2),
    ],
)
def test_a_sequence_is_repeated_a_known_number_of_times(fn):
    check_recompiles(fn, sized(2, 3, 4, 3), graphs=3, fullgraph=True)


def test_objects_take_numbers_on_their_left():
    def f(x):
        return x * (x.shape[0] * Weight(3)) + (x.shape[0] + Weight(2))

    check_recompiles(f, sized(2, 3, 4, 5), graphs=2, fullgraph=True)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * (x.shape[0] - Weight(2)),
        lambda x: x * (x.shape[0] + None),
        lambda x: x * (x.shape[0] + [1]),
        lambda x: x * (x.shape[0] % "a"),
        lambda x: x * (None * x.shape[0]),
        lambda x: x * ([1] * (x.shape[0] * 0.5)),
    ],
)
def test_what_does_not_fit_raises(fn):
    check_recompiles(fn, sized(2, 3, 4), graphs=0)


def test_a_choice_between_a_size_and_a_number():
    def f(x):
        return x.new_ones(torch.sym_ite(x.shape[0] > 3, x.shape[0], 1))

    check_recompiles(f, sized(2, 4, 2, 4), graphs=2, fullgraph=True)


# -- integers that need more than 64 bits ----------------------------------------------------------


def _shifted(x, a, b):
    n = (a << 96) | (b << 80) | (a << 64) | a
    return x + 1 if n == 5 else x + 2, n, n >> 64


def _hashed(x, a, b):
    return x + ((a * 6364136223846793005 + 1442695040888963407) & 255)


def _generated(x, a, b):
    for _ in range(3):
        a = (a * 1103515245 + b) & 0x7FFFFFFF
    return x + a % 7


def _to_a_power(x, a, b):
    return x + (a * a * a * a) % 13, x * (b**9 % 11)


def _of_bytes(x, a, b):
    n = a
    for shift in (10, 20, 30, 40):
        n = (n << shift) + b
    return x + (n & 255), n < 1 << 128


@pytest.mark.parametrize("fn", [_shifted, _hashed, _generated, _to_a_power, _of_bytes])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_integers_that_need_more_than_64_bits(fn, backend):
    compiled = minidynamo.compile(fn, backend=backend)
    x = torch.arange(3.0)
    for a, b in ((3, 4), (5, 6), (123456789, 8), (1 << 40, 9), (0, 1), ((1 << 63) - 1, 1)):
        assert_same(fn(x, a, b), compiled(x, a, b))


def test_small_integers_are_computed_with_in_one_graph():
    calls = [(torch.arange(3.0), a, a + 1) for a in (3, 5, 12, 700, -4)]
    check_recompiles(lambda x, a, b: x * (a * b + a * 1000 - b // 3), calls, graphs=2)
