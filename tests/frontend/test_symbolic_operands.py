"""Symbolic numbers beside operands that are no numbers: texts, sequences, objects with reflected
methods.
"""

import pytest
import torch
from testing import check_recompiles


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
