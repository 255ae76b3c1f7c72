"""Positions of symbolic sizes in 32 bits: a kernel asks how large the sizes are, and one in 64 bits
does the work where they are too large.
"""

import pytest
import torch
import torch.nn.functional as F

import minidynamo
from minidynamo import events
from minidynamo.inductor.codegen import cpp, narrow


def gradual(x):
    rows, columns = x.shape[-2:]
    return x + torch.arange(rows).unsqueeze(1) * 2 - torch.arange(columns) / columns


def with_bias(x):
    rows, columns = x.shape[-2:]
    distance = (torch.arange(rows).unsqueeze(1) - torch.arange(columns)).abs()
    return (x - distance * 0.25).softmax(-1)


def flipped(x):
    return x[..., torch.arange(x.shape[-1]).neg() + (x.shape[-1] - 1)] * 2


def thirds(x):
    return torch.where(torch.arange(x.shape[-1]) % 3 == 0, x, -x)


def largest(x):
    return (x * 2).argmax(-1), x.argmin(-2), x.flatten().argmax()


def as_flags(x):
    return (x.argmax(-1, keepdim=True) == torch.arange(x.shape[-1])).float()


def replicated(x):
    return F.pad(x[None], (1, 2, 2, 1), mode="replicate")[0].relu()


def parts(x):
    n = x.shape[-1]
    return torch.cat([x, torch.arange(n).expand(*x.shape[:-1], n) * 0.5], -1)


def refused(x):
    return x[..., torch.arange(x.shape[-1]) + (x.shape[-1] - 20)]


FUNCTIONS = [gradual, with_bias, flipped, thirds, largest, as_flags, replicated, parts]
ASKING = [gradual, with_bias, largest, as_flags, replicated, parts]


@pytest.fixture
def least(monkeypatch):
    """Sizes above 20 are large."""
    for module in (cpp, narrow):
        monkeypatch.setattr(module, "SMALL", 20)


def check(fn, *shapes):
    found = []
    compiled = minidynamo.compile(fn, dynamic=True, fullgraph=True)
    with events.subscribe(found.append, events.KernelEvent):
        for shape in shapes:
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), fn(x))
    return "".join(event.source for event in found)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_small_and_large_sizes(least, fn):
    source = check(fn, (3, 9, 11), (3, 17, 6), (2, 31, 45), (2, 5, 70), (2, 64, 3))
    assert ("_large(ptrs" in source) == (fn in ASKING)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_usual_sizes_of_all_kinds(fn):
    check(fn, (3, 9, 11), (2, 131, 150), (2, 5, 700))


def test_sizes_that_are_large_from_the_start_are_not_asked_for(least):
    source = check(gradual, (2, 30, 40), (2, 10, 10))
    assert "_large" not in source and "i64, N" in source


def test_what_no_size_bounds_stays_wide():
    def places(x, at):
        return at * 3 + torch.arange(x.shape[0])

    compiled = minidynamo.compile(places, dynamic=True, fullgraph=True)
    for n in (5, 90):
        at = torch.randint(-(2**60), 2**60, (n,))
        assert torch.equal(compiled(torch.zeros(n), at), places(torch.zeros(n), at))


def test_failed_checks_of_either_kernel(least):
    compiled = minidynamo.compile(refused, dynamic=True, fullgraph=True)
    for n in (20, 12):
        x = torch.randn(2, n)
        assert torch.equal(compiled(x), refused(x))
    for n in (30, 21):
        with pytest.raises(IndexError, match="out of bounds"):
            compiled(torch.randn(2, n))
    x = torch.randn(2, 15)
    assert torch.equal(compiled(x), refused(x))


def test_positions_beyond_32_bits():
    def far(n, x):
        return x + torch.arange(n, n + x.shape[0]).double()

    compiled = minidynamo.compile(far, dynamic=True, fullgraph=True)
    for n in (1000, 2**27, 2**28 - 3, 2**28 + 5, 2**31 - 2, 2**31, 2**40, -(2**40)):
        x = torch.zeros(7, dtype=torch.double)
        assert torch.equal(compiled(n, x), far(n, x)), n
