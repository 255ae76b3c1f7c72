"""Sizes of tensors that modules hold: which become symbolic, and the flags that say so."""

import pytest
import torch
from testing import CountingBackend, assert_same
from torch import nn

import minidynamo
from minidynamo import config


class Cache(nn.Module):
    """Keeps everything that it was given."""

    def __init__(self):
        super().__init__()
        self.seen = torch.zeros(2, 3)

    def forward(self, x):
        self.seen = torch.cat([self.seen, x])
        return self.seen.mean(0)


class BufferCache(Cache):
    def __init__(self):
        nn.Module.__init__(self)
        self.register_buffer("seen", torch.zeros(2, 3))


class Holder(nn.Module):
    """A module of torch's own with a tensor that is neither parameter nor buffer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x):
        self.inner.seen = torch.cat([self.inner.seen, x])
        return self.inner.seen.mean(0)


def graphs_of(model, calls=5, **flags):
    minidynamo.reset()
    counter = CountingBackend()
    eager, x = type(model)(), torch.ones(1, 3)
    for module in (eager, model) if isinstance(model, Holder) else ():
        module.inner.seen = torch.zeros(2, 3)
    with config.patch(**flags):
        compiled = minidynamo.compile(model, backend=counter)
        for _ in range(calls):
            assert_same(eager(x), compiled(x))
    return len(counter.graphs)


def test_a_plain_tensor_of_a_module_becomes_symbolic():
    assert graphs_of(Cache()) == 2


@pytest.mark.parametrize(
    "model, flag",
    [
        (BufferCache, "force_parameter_static_shapes"),
        (Holder, "force_nn_module_property_static_shapes"),
    ],
)
def test_flags_that_keep_sizes_constant(model, flag):
    assert graphs_of(model()) == 5
    assert graphs_of(model(), **{flag: False}) == 2


@pytest.mark.parametrize("first", [2, 4])
def test_what_changed_can_become_unbacked(first):
    def f(x):
        return x * 2, x.sum()

    minidynamo.reset()
    counter = CountingBackend()
    with config.patch(automatic_dynamic_shapes_mark_as="unbacked"):
        compiled = minidynamo.compile(f, backend=counter)
        for size in (first, 5, 1, 0, 7):
            x = torch.ones(size, 3)
            assert_same(f(x), compiled(x))
    assert len(counter.graphs) == 2
