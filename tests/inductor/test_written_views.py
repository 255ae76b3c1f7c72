"""Programs that write to views of their own values need no AOTAutograd: results, aliasing, strides
and what is left of other views as in eager.
"""

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import assert_same

import minidynamo
from minidynamo.inductor import metrics

X = torch.randn(4, 6)
WEIGHT = torch.randn(6, 6)


def selects_and_slices(x):
    y = torch.zeros(4, 6)
    y[:, 1:] = x[:, :5]
    y[:, 0] = 7
    y[2, ::2] += 1
    return y, y[0]


def other_views_see_it(x):
    y = x * 2
    flat, turned = y.view(-1), y.t()
    part = turned[1:3]
    part.mul_(3)
    y[0].add_(1)
    return flat * 1, turned + 0, part, y


def two_views_in_turn(x):
    y = x + 1
    low, high = y[1:], y[:2]
    low += high.sum()
    high += low.sum()
    return y, low, high


def parts(x):
    y = x + 1
    first, second = y.split([2, 4], 1)
    second.copy_(second * 2)
    rows = y.unbind(0)
    rows[1].zero_()
    left, right = y.chunk(2, 1)
    right -= left
    return first + 1, second, torch.stack(rows), y


def turned(x):
    y = (x + 1).permute(1, 0).unsqueeze(1)
    y[:, 0, 1] += 1
    z = y.squeeze(1)
    z.diagonal().fill_(9)
    z.t()[0, 0] = -1
    return y, z


def made_of_numbers(x):
    numbers = torch.tensor([1.0, 2.0, 3.0])
    numbers[1] = 5
    count = torch.tensor(3)
    count += 1
    plain = torch.tensor([4, 5])
    return numbers, count, plain, plain[:1], x + numbers.sum()


def detached(x):
    y = x + 1
    d = y.detach()
    d[0] = 1
    return y * 2, d.exp()


def of_a_product(x):
    y = F.linear(x[None], WEIGHT)
    y *= 0.5
    y[0, 0, 0] = 1
    return y


def pooled(x):
    return F.adaptive_avg_pool1d(x[None].transpose(1, 2), 1)


def expanded(x):
    y = x[:1].exp().expand(4, 6)
    y = y + 0
    y[1] = y[0] * 2
    return y


PROGRAMS = (
    selects_and_slices,
    other_views_see_it,
    two_views_in_turn,
    parts,
    turned,
    made_of_numbers,
    detached,
    of_a_product,
    pooled,
    expanded,
)


def layout(values):
    """Which results share memory, and where each of them begins."""
    places = [value.untyped_storage().data_ptr() for value in values]
    return [places.index(p) for p in places], [value.storage_offset() for value in values]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_writes_to_views(fn, dynamic):
    def whole(x):
        result = fn(x)
        return result if isinstance(result, tuple) else (result,)

    metrics.reset()
    compiled = minidynamo.compile(whole, dynamic=dynamic, fullgraph=True)
    want = whole(X)
    for _ in range(2):  # results of the first call must not be written by the second
        got = compiled(X)
        for mine, theirs in zip(want, got, strict=True):
            assert_same(theirs, mine)
        assert layout(want) == layout(got)
        got[0].add_(1)
    assert metrics.uncompiled_graphs == 0
    assert metrics.capture_fallbacks == 0 or dynamic


def test_inputs_and_overlaps_are_left_to_aotautograd():
    def of_an_input(x):
        x[0] = 1
        return x * 2

    def of_an_expanded(x):
        y = (x + 1)[:1].expand(2, 6)
        y[:, :1].t_()
        return y * 2

    for fn in (of_an_input, of_an_expanded):
        mine, theirs = X.clone(), X.clone()
        assert_same(fn(mine), minidynamo.compile(fn)(theirs))
        assert torch.equal(mine, theirs)


ADDED_TO = {
    "addmm": lambda a, x: torch.addmm(a, x, x.mT, beta=0.5, out=a),
    "addmm, not read": lambda a, x: torch.addmm(a, x, x.mT, beta=0.0, out=a),
    "baddbmm": lambda a, x: torch.baddbmm(a[None], x[None], x[None], out=a[None]),
    "addmv": lambda a, x: torch.addmv(a[1], x, x[0], out=a[1]),
    "addr": lambda a, x: torch.addr(a, x[0], x[1], out=a),
}


@pytest.mark.parametrize("name", ADDED_TO)
def test_what_is_added_to_may_be_out(name):
    """As Muon's iteration does, whose step ran operator by operator."""
    a, x = torch.randn(2, 4, 4, generator=torch.manual_seed(0))
    given = a.clone()
    metrics.reset()
    result = minidynamo.compile(ADDED_TO[name], fullgraph=True)(given, x)
    assert metrics.uncompiled_graphs == 0
    torch.testing.assert_close(result, ADDED_TO[name](a, x))
    torch.testing.assert_close(given, a)


def test_what_is_multiplied_may_not_be_out():
    def fn(a, x):
        return torch.addmm(a, a, x, out=a)

    a, x = torch.randn(2, 4, 4, generator=torch.manual_seed(0))
    given = a.clone()
    result = minidynamo.compile(fn, fullgraph=True)(given, x)
    torch.testing.assert_close(result, fn(a, x), rtol=0, atol=0)


@torch.library.custom_op("minidynamo_test::overwrite", mutates_args={"kept"})
def overwrite(kept: torch.Tensor, new: torch.Tensor) -> None:
    kept.copy_(new)


BITS = {
    "all": lambda kept, new: overwrite(kept.view(torch.float32), new),
    "smaller": lambda kept, new: overwrite(kept.view(torch.int16), new.view(torch.int16)),
    "part": lambda kept, new: overwrite(kept.view(torch.float32)[1:], new[1:]),
    "of a result": lambda kept, new: overwrite((kept + 1).view(torch.float32), new),
    "complex": lambda kept, new: overwrite(
        torch.view_as_complex(kept.view(torch.float32).view(3, 2, 2)),
        torch.view_as_complex(new.view(3, 2, 2)),
    ),
}


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", BITS)
def test_operators_that_write_bits_of_another_type(
    name,
    backend,
    mode,
):
    def program(kept, new):
        BITS[name](kept, new)
        return kept * 2

    compiled = minidynamo.compile(program, backend=backend, fullgraph=True)
    with mode():
        found = []
        for call in (program, compiled):
            kept = torch.zeros(3, 4, dtype=torch.int32)
            found.append((call(kept, torch.arange(12.0).view(3, 4)), kept))
    torch.testing.assert_close(found[1], found[0])
