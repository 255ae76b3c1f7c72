"""Names of attributes made of symbolic numbers: they are looked at, so the numbers in them are
constants; one graph serves all numbers that give the same name.
"""

from __future__ import annotations

import pytest
import torch
from testing import CountingBackend, assert_same
from torch import nn

import minidynamo


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        for n in range(3):
            self.register_buffer(f"b_{n}", torch.full((2,), float(n)))
        self.k_0, self.k_1, self.k_2 = 10, 11, 12
        self.x_4 = 14


class Plain:
    def __init__(self):
        self.b_0 = self.b_1 = self.b_2 = torch.zeros(2)


def set_on_a_module(held, x, n):
    setattr(held, f"b_{n % 3}", x * n)
    return x + getattr(held, "b_" + str(n % 3))


def set_on_an_object(held, x, n):
    plain = Plain()
    setattr(plain, f"b_{n % 3}", n)
    setattr(held, "{}_{}".format("k", n % 3), n)
    return x + getattr(plain, f"b_{n % 3}"), vars(held)["k_0"]


def set_in_the_dict(held, x, n):
    held.__dict__["k" + f"_{n % 3}"] = x
    return x + n, held.__dict__["_".join(["k", str(n % 3)])]


def got_from_the_dict(held, x, n):
    found = held.__dict__
    return x + n, found.get(f"k_{n % 3}"), found.get(f"x_{n % 3 + 2}"), f"k_{n % 3}" in found


def popped_from_the_dict(held, x, n):
    found = held.__dict__
    found.setdefault(f"new_{n % 3}", 7)
    del found[f"k_{n % 3}"]
    return x + n, found.pop(f"new_{n % 3}", None), found.pop(f"new_{n % 3}", None)


def missing_in_the_dict(held, x, n):
    try:
        return held.__dict__[f"none_{n % 3}"]
    except KeyError as error:
        return x + n, error.args


def among_others(held, x, n):
    return hasattr(held, f"x_{n % 3 + 2}"), x.chunk(n % 3 + 1), {f"a{n % 3}": n}[f"a{n % 3}"]


def of_sums_of_floats(held, x, n):
    """Guards on them would add the numbers in another order."""
    a = n * 0.5
    text = f"{a * 0.1 + n + 1e-10}"
    return x + n, text in held.__dict__, hasattr(held, text)


USES = [
    set_on_a_module,
    set_on_an_object,
    set_in_the_dict,
    got_from_the_dict,
    popped_from_the_dict,
    missing_in_the_dict,
    among_others,
]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_names(use):
    minidynamo.reset()
    counter = CountingBackend()
    broken = []
    compiled = minidynamo.compile(use, backend=counter)
    with minidynamo.events.subscribe(broken.append, minidynamo.events.GraphBreakEvent):
        for n in (1, 2, 3, 4, 5, 6, 7, 8):
            real, traced = Buffers(), Buffers()
            x = torch.arange(6.0)
            assert_same(use(real, x, n), compiled(traced, x, n))
            assert vars(real).keys() == vars(traced).keys()
            assert_same(vars(real)["_buffers"], vars(traced)["_buffers"])
    assert not broken
    assert len(counter.graphs) == 4  # the first number is a constant


def test_names_of_sums_of_floats():
    minidynamo.reset()
    compiled = minidynamo.compile(of_sums_of_floats, backend="eager")
    held = Buffers()
    for n in (1.3, 0.9, 17.2, 0.3):
        x = torch.ones(2)
        assert_same(of_sums_of_floats(held, x, n), compiled(held, x, n))
