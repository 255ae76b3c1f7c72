"""What a tensor of the frame is to autograd (a leaf, a view) is asked with a guard."""

from __future__ import annotations

import itertools

import pytest
import torch
from testing import CountingBackend

import minidynamo


def leaf():
    return torch.ones(2).requires_grad_()


def made():
    return torch.ones(2).requires_grad_() * 2


def kept():
    tensor = made()
    tensor.retain_grad()
    return tensor


KINDS = {
    "leaf": leaf,
    "made": made,
    "kept": kept,
    "plain": lambda: torch.ones(2),
    "view": lambda: torch.ones(4)[:2],
    "view of a leaf": lambda: torch.ones(4).requires_grad_()[:2],
    "view of what was made": lambda: torch.ones(4).requires_grad_().mul(1)[:2],
    "cut off": lambda: made().detach().requires_grad_(),
}


def written(x):
    try:
        x.add_(1)
    except RuntimeError:
        return "refused", x * 2
    return "written", x * 2


def given_other_data(x):
    x.data = x.detach() * 3
    return x.is_leaf, x * 2


def with_hook(x):
    try:
        handle = x.register_post_accumulate_grad_hook(lambda t: None)
    except RuntimeError:
        return "refused", x * 2
    handle.remove()
    return "done", x * 2


QUESTIONS = {
    "is_leaf": lambda x: (x.is_leaf, x * 2),
    "grad_fn": lambda x: (x.grad_fn is None, x * 2),
    "_base": lambda x: (x._base is None, x * 2),
    "_is_view": lambda x: (x._is_view(), x * 2),
    "the same one": lambda x: (x.contiguous().is_leaf, x.contiguous() * 2),
    "a branch": lambda x: (0, x * 2 if x.is_leaf else x * 3),
    "written": written,
    "given other data": given_other_data,
    "with a hook": with_hook,
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_are_guarded(name):
    fn = QUESTIONS[name]
    for order in itertools.permutations(KINDS, 2):
        minidynamo.reset()
        compiled = minidynamo.compile(fn, backend="eager")
        for kind in order:
            (want, expected), (got, result) = fn(KINDS[kind]()), compiled(KINDS[kind]())
            assert got == want, order
            assert torch.equal(result, expected), order
            assert result.requires_grad == expected.requires_grad, order


def test_leaves_and_others_share_a_graph_where_nobody_asks():
    counter = CountingBackend()
    compiled = minidynamo.compile(lambda x: x.sin() * 2, backend=counter)
    for make in (leaf, made, KINDS["view of a leaf"], kept):
        assert torch.equal(compiled(make()), make().sin() * 2)
    assert len(counter.graphs) == 1


def test_writes_without_gradients_need_no_guard():
    """A step of an optimizer, say."""
    counter = CountingBackend()

    def fn(x):
        with torch.no_grad():
            x.mul_(3)
        return x * 1

    compiled = minidynamo.compile(fn, backend=counter)
    for make in (leaf, made):
        assert torch.equal(compiled(make()), fn(make()))
    assert len(counter.graphs) == 1
