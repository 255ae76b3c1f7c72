"""torch.cond with branches that return other numbers or sizes, or that put back what they change.

What is expected is the same program with `if`.
"""

from __future__ import annotations

import pytest
import torch
from testing import CountingBackend, assert_same
from torch import nn
from torch.func import functional_call

import minidynamo

LAYER = nn.Linear(3, 3)
OTHER = {name: value.detach() * 2 for name, value in LAYER.named_parameters()}
X = torch.arange(1.0, 10.0).reshape(3, 3)
STATE = {"scale": 2.0, "names": ["a"]}


def chosen(pred, yes, no, operands):
    return yes(*operands) if pred else no(*operands)


def numbers(x, cond):
    n, y, m = cond(x.sum() > 0, lambda a: (2, a + 1, 7), lambda a: (3, a * 2, 7), (x,))
    return x.new_ones(n, 4) + 1, y * m, n * 2, n + x.shape[0], m


def sizes(x, cond):
    y = cond(x.sum() > 0, lambda a: a[:2] * 3, lambda a: a[:1] - 5, (x,))
    return y.sum(), y + 1, y.cos().mean(0), y.shape, torch.cat([y, x])


def longer(x, cond):
    parts = cond(
        x.sum() > 0,
        lambda a: {"part": torch.cat([a, a]), "n": 6},
        lambda a: {"part": a.sin(), "n": 3},
        (x,),
    )
    return parts["part"].cos(), parts["n"] + 1


def swapped(x, cond):
    y = cond(x.sum() > 0, lambda a: functional_call(LAYER, OTHER, (a,)), lambda a: a - 1, (x,))
    return y, LAYER.weight.sum(), list(OTHER)


def put_back(x, cond):
    def scaled(a):
        before = STATE["scale"]
        STATE["scale"] = 5.0
        try:
            return a * STATE["scale"]
        finally:
            STATE["scale"] = before

    y = cond(x.sum() > 0, scaled, lambda a: a * STATE["scale"], (x,))
    return y + STATE["scale"], dict(STATE)


PROGRAMS = [numbers, sizes, longer, swapped, put_back]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_like_a_plain_branch(fn, backend):
    counter = CountingBackend(backend=backend)
    compiled = minidynamo.compile(fn, backend=counter, fullgraph=True)
    for x in (X, -X, X * 2, -X - 1):
        assert_same(fn(x, chosen), compiled(x, torch.cond))
    assert len(counter.graphs) == 1
    assert STATE == {"scale": 2.0, "names": ["a"]}


@pytest.mark.parametrize("fn", [sizes, longer], ids=lambda fn: fn.__name__)
def test_other_sizes(fn):
    counter = CountingBackend()
    compiled = minidynamo.compile(fn, backend=counter, dynamic=True)
    for x in (torch.ones(3, 4), -torch.ones(3, 4), torch.ones(5, 4), -torch.ones(4, 5)):
        assert_same(fn(x, chosen), compiled(x, torch.cond))
    assert len(counter.graphs) == 1


def test_what_was_put_back_is_guarded():
    counter = CountingBackend()
    compiled = minidynamo.compile(put_back, backend=counter, fullgraph=True, dynamic=False)
    try:
        for scale in (2.0, 3.0, 3.0):
            STATE["scale"] = scale
            for x in (X, -X):
                assert_same(put_back(x, chosen), compiled(x, torch.cond))
    finally:
        STATE["scale"] = 2.0
    assert len(counter.graphs) == 2


def refused(yes, no):
    def fn(x):
        return torch.cond(x.sum() > 0, yes, no, (x,))

    with pytest.raises(minidynamo.exc.Unsupported) as caught:
        minidynamo.compile(fn, backend="eager", fullgraph=True)(X)
    return caught.value.kind


@pytest.mark.parametrize(
    ("yes", "no"),
    [
        (lambda a: 1.5, lambda a: 2.5),
        (lambda a: True, lambda a: False),
        (lambda a: a.int(), lambda a: a + 1),
        (lambda a: (a + 1, 2), lambda a: (2, a + 1)),
        # torch has no order of strides for both.
        (lambda a: a.t() + 1, lambda a: a + 1),
    ],
)
def test_results_that_cannot_be_merged(yes, no):
    assert refused(yes, no) == "branches differ"


@pytest.mark.parametrize(
    "change",
    [
        lambda a: STATE.update(scale=3.0),
        lambda a: STATE.update(extra=1),
        lambda a: STATE.update(scale=STATE.pop("scale")),  # it moves to the end
        lambda a: STATE["names"].append("b"),
    ],
)
def test_changes_that_last(change):
    before = {"scale": 2.0, "names": ["a"]}
    assert refused(lambda a: (change(a), a + 1)[1], lambda a: a - 1) == "side effect in a body"
    assert before == STATE and list(STATE) == list(before)
