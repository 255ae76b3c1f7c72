"""Values that kernels compute again instead of reading what another one stored."""

import pytest
import torch
from inductor_testing import check, compiled

from minidynamo import events
from minidynamo.inductor import metrics, recompute

TOLERANCE = {"rtol": 1e-4, "atol": 1e-3}
X, Y = torch.randn(48, 32), torch.randn(48, 32)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """As if the caches held nothing."""
    monkeypatch.setattr(recompute, "LEAST_BYTES", 1)


def notes_of(fn, *args):
    found = []
    with events.subscribe(lambda event: found.extend(event.notes), events.ScheduleEvent):
        check(fn, *args, **TOLERANCE)
    return found


def root(x):
    return (x * x + 1).sqrt()


def test_the_second_reader_computes_it_again():
    def fn(x):
        t = root(x)
        return (t * x).sum(0), t.sum(1)

    (note,) = notes_of(fn, X)
    assert note.startswith("computed again in 1 kernel instead of stored")
    assert note.endswith("aten.mul.Tensor, aten.add.Tensor, aten.sqrt.default")


def test_through_other_layouts_and_dtypes():
    def fn(x):
        t = root(x).bfloat16()
        return (t.float() * x).sum(0), t.float().sum(1)

    assert len(notes_of(fn, X)) <= 1


def gelu_chain(x):
    for _ in range(6):
        x = torch.nn.functional.gelu(x) + x
    return x


STORED = {
    "too dear": lambda x, y: (lambda t: ((t * x).sum(0), t.sum(1)))(gelu_chain(x)),
    "a result": lambda x, y: (lambda t: ((t * x).sum(0), t.sum(1), t))(root(x)),
    "an operator reads it": lambda x, y: (lambda t: (t.sum(1), t @ y.t()))(root(x)),
    "made of a reduction": lambda x, y: (lambda t: ((t * x).sum(0), t.sum(1)))(
        root(x) + x.sum(1, keepdim=True)
    ),
    "made of more than it is": lambda x, y: (lambda t: (t.sum(0), t.sum(1)))(x * y),
    "random": lambda x, y: (lambda t: ((t * 0).sum(0), (t * 0).sum(1)))(torch.rand_like(x)),
}


@pytest.mark.parametrize("name", STORED)
def test_stays_stored(name):
    assert notes_of(STORED[name], X, Y) == []


def test_inputs_that_are_written_to():
    def fn(x):
        t = root(x)
        a, b = (t * x).sum(0), t.sum(1)
        x.mul_(2)
        return a, b

    assert notes_of(fn, X) == []


def test_small_tensors_stay_stored(monkeypatch):
    monkeypatch.setattr(recompute, "LEAST_BYTES", 1 << 22)
    assert notes_of(lambda x: (lambda t: ((t * x).sum(0), t.sum(1)))(root(x)), X) == []


def steps(t):
    """Angles of time steps: 16 frequencies, read in both halves of a `cat`."""
    angle = t[:, None] * torch.exp(torch.arange(16) * -0.3)
    return torch.cat([angle.cos(), angle.sin()], -1)


def gated(x, w):
    """Read through loads of its own, of parts that are masked already."""
    scale = torch.nn.functional.pad(w, (3, 5)).exp()
    return torch.cat([x * scale, x[:, :7] * scale[:7], x + 1], 1)


def rounded(t):
    angle = t[:, None] * torch.exp(torch.arange(16) * -0.3).bfloat16()
    return torch.cat([angle.cos(), angle.sin()], -1)


IN_PARTS = [
    (steps, (torch.randn(64),)),
    (gated, (torch.randn(48, 40), torch.randn(32))),
    (rounded, (torch.randn(64),)),
]


def kernels_on_gpu(fn, *args):
    metrics.reset()
    (actual,) = compiled(fn, *args, cpu_backend="triton")(*args)
    torch.testing.assert_close(actual, fn(*args), **TOLERANCE)
    return metrics.generated_kernel_count


@pytest.mark.parametrize(("fn", "args"), IN_PARTS)
def test_under_masks_on_a_gpu(fn, args, monkeypatch):
    pytest.importorskip("triton")
    # Elements of 16 bits are rounded where they are stored.
    assert kernels_on_gpu(fn, *args) == 1 + (fn is rounded)
    monkeypatch.setattr(recompute, "LAUNCH_OPERATIONS", 64 * 32 * 12)
    assert kernels_on_gpu(fn, *args) == 2, "each reader counts, not each element"
