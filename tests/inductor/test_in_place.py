"""Inputs that are written to in part: the part alone is written, and only where that is right."""

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import CLOSE

import minidynamo
from minidynamo import events
from minidynamo.inductor import metrics


def check(fn, *args, in_place=True):
    """Results and arguments as eager has them; whether the first argument is written in place."""
    plans = []
    ours, eager = ([a.clone() for a in args] for _ in range(2))
    expected = fn(*eager)
    with events.subscribe(lambda event: plans.append(event.text), events.OutputCodeEvent):
        actual = minidynamo.compile(fn, fullgraph=True)(*ours)
    torch.testing.assert_close(actual, expected, equal_nan=True, **CLOSE)
    for left, right in zip(ours, eager, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
    size = str(tuple(args[0].shape))
    assert ("\n".join(plans).count(f"empty({size}") == 0) == in_place
    return plans


CACHE, K = torch.randn(2, 4, 64, 8), torch.randn(2, 4, 1, 8)


def set_slice(c, k):
    c[:, :, 17:18] = k


def set_steps(c, k):
    c[:, :, 3:60:7] = k


def set_last(c, k):
    c[:, :, -1] = k[:, :, 0]
    return c.sum(-1)


def set_and_read(c, k):
    c[:, :, 5:6] = k * 2
    return (c * k).sum(-1)


def set_twice(c, k):
    c[:, :, 4:8] = k.expand(2, 4, 4, 8)
    c[:, :, 5:9] = -k.expand(2, 4, 4, 8)
    return c.amax(-1)


def set_whole(c, k):
    c.copy_(c.index_copy(2, torch.tensor([3]), k))
    return c.sum(-1)


@pytest.mark.parametrize("fn", [set_slice, set_last, set_and_read, set_twice, set_whole])
def test_parts(fn):
    check(fn, CACHE, K)


def test_a_part_of_another_size_is_spread():
    check(set_steps, CACHE, K)
    check(set_steps, CACHE, K.expand(2, 4, 9, 8))


@pytest.mark.parametrize("place", [[3], [0, 63], [-1, 2]])
def test_computed_places(place):
    def put(c, k, p):
        c[:, :, p] = k
        return c * 2

    def copy(c, k, p):
        c.index_copy_(2, p, k)

    def scatter(c, k, p):
        c.scatter_(2, p[None, None, :, None].expand(2, 4, len(place), 8) % 64, k)

    places = torch.tensor(place)
    new = torch.randn(2, 4, len(place), 8)

    def fresh(c, k, p):
        c[:, :, p] = k

    check(fresh, CACHE, new, places)
    check(scatter, CACHE, new, places)
    if min(place) >= 0:
        check(copy, CACHE, new, places)
    own, expected = CACHE.clone(), CACHE.clone()
    torch.testing.assert_close(
        minidynamo.compile(put)(own, new, places), put(expected, new, places)
    )
    assert torch.equal(own, expected)


def test_a_bad_place_leaves_the_rest_alone():
    def put(c, k, p):
        c[:, p] = k

    own = torch.zeros(3, 50)
    run = minidynamo.compile(put)
    run(own.clone(), torch.ones(3, 1), torch.tensor([3]))
    with pytest.raises(IndexError, match="index 50 is out of bounds"):
        run(own, torch.ones(3, 1), torch.tensor([50]))
    assert not own.any()


def old_is_returned(c, k):
    old = c * 2
    c[:, :, 5:6] = k
    return old


def source_is_part(c, k):
    c[:, :, 1:] = c[:, :, :-1].clone()
    return c + k


def written_as_a_whole(c, k):
    c[:, :, 5:6] = k
    c.mul_(2)


def old_part_is_read(c, k):
    c[:, :, 5:6] = c[:, :, 5:6] + k


@pytest.mark.parametrize("fn", [old_is_returned, source_is_part])
def test_what_still_needs_the_old_value(fn):
    check(fn, CACHE, K, in_place=False)


def old_is_summed(c, k):
    total, part = c.sum(-1), c[:, :, 3] * k[:, :, 0]
    c[:, :, 5:6] = k
    c[:, :, 3:4] = part[:, :, None] + k
    return total, part


def old_is_read_between(c, k):
    c[:, :, 5:6] = k
    between = c[:, :, 4:6].sum(2)
    c[:, :, 4:5] = k * 3
    return between, c[:, :, 4:6].sum(2)


def moved_by_one(c, k):
    c[:, :, 1:9] = c[:, :, :8] + k


def handed_on(c, k):
    same = c[:, :, 5].to(c.dtype).contiguous()
    c[:, :, 5:6] = k
    return same + 1


@pytest.mark.parametrize(
    "fn", [old_part_is_read, old_is_summed, old_is_read_between, moved_by_one, handed_on]
)
def test_the_old_value_is_read_before(fn):
    check(fn, CACHE, K)


ROWS, NEW = torch.randn(50, 6), torch.randn(4, 6)
PLACES = torch.tensor([7, 0, 7, 49])
SPREAD = PLACES[:, None].expand(4, 6)


def averages(rows, new):
    rows[PLACES] = rows[PLACES] * 0.9 + new * 0.1


SUMS = {
    "index_add": lambda rows, new: rows.index_add_(0, PLACES, new, alpha=2),
    "index_reduce": lambda rows, new: rows.index_reduce_(0, PLACES, new, "amax"),
    "scatter_add": lambda rows, new: rows.scatter_add_(0, SPREAD, new),
    "scatter_prod": lambda rows, new: rows.scatter_(0, SPREAD, new, reduce="multiply"),
    "scatter_amin": lambda rows, new: rows.scatter_reduce_(0, SPREAD, new, "amin"),
    "index_put": lambda rows, new: rows.index_put_((PLACES,), new, accumulate=True),
    "put": lambda rows, new: rows.put_(SPREAD, new, accumulate=True),
    "averages": averages,
}


@pytest.mark.parametrize("name", SUMS)
def test_what_is_combined_with_the_old_value(name):
    def run(rows, new):
        before = rows[0] * 2
        SUMS[name](rows, new)
        return before

    if name == "averages":
        check(run, ROWS, new_at_different_places(NEW))
    else:
        check(run, ROWS, NEW)


def new_at_different_places(new):
    """Of two values for one place either may stay."""
    return new.clone().index_copy_(0, torch.tensor([2]), new[:1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("how", ["sum", "prod", "amax", "amin"])
def test_a_bad_place_is_combined_with_nothing(how, dtype):
    def combine(rows, new, places):
        rows.scatter_reduce_(0, places, new, how)

    rows = (
        torch.tensor([[-0.0], [3], [float("-inf")]])
        if dtype.is_floating_point
        else ROWS[:3, :1].to(dtype)
    )
    run, own = minidynamo.compile(combine), rows.clone()
    run(ROWS[:3, :1].to(dtype), NEW[:2, :1].to(dtype), torch.tensor([[0], [2]]))
    with pytest.raises(RuntimeError, match="index 3 is out of bounds"):
        run(own, NEW[:2, :1].to(dtype), torch.tensor([[3], [3]]))
    assert own.numpy().tobytes() == rows.numpy().tobytes()


def test_a_whole_change_after_it():
    own, expected = CACHE.clone(), CACHE.clone()
    minidynamo.compile(written_as_a_whole)(own, K)
    written_as_a_whole(expected, K)
    assert torch.equal(own, expected)


def test_two_caches_and_what_one_gives_the_other():
    def run(c, d, k):
        c[:, :, 3:4] = k
        d.copy_(c)
        d[:, :, 4:5] = k * 2
        return c + d

    own, other = CACHE.clone(), torch.zeros_like(CACHE)
    eager, eager_other = CACHE.clone(), torch.zeros_like(CACHE)
    torch.testing.assert_close(
        minidynamo.compile(run)(own, other, K), run(eager, eager_other, K)
    )
    assert torch.equal(own, eager) and torch.equal(other, eager_other)


def test_dense_but_turned():
    def put(c, k):
        c[:, 2:3] = k
        return c * 1

    turned = torch.randn(4, 6, 5).permute(2, 0, 1)
    eager, own = turned.clone(), turned.clone()
    k = torch.randn(5, 1, 6)
    assert own.stride() == turned.stride()
    torch.testing.assert_close(minidynamo.compile(put)(own, k), put(eager, k))
    assert torch.equal(own, eager)


def test_other_dtypes_are_converted():
    def put(c, k):
        c[:, :, 7:8] = k

    own, eager = CACHE.to(torch.bfloat16), CACHE.to(torch.bfloat16)
    minidynamo.compile(put)(own, K)
    put(eager, K)
    assert torch.equal(own, eager)
    check(put, CACHE.to(torch.bfloat16), K.to(torch.bfloat16))
    check(put, CACHE > 0, K > 0)


def averages_of_columns(x, mean):
    s = x.sum(0)
    mean.mul_(0.9).add_(s, alpha=0.1)
    return x - mean, (x * s).amax(0)


def sums_of_rows(x, old):
    s = (x * old[:, None]).sum(1)
    t = (x * s[:, None] * old[:, None]).amax(1)
    old.copy_(s)
    return t, x * t[:, None]


def row_is_read_beside_the_store(x, old):
    s = x.sum(1)
    y = x * old[:, None] + s[:, None]
    old.copy_(s)
    return y


def batch_norm(x, mean):
    return F.batch_norm(x, mean, mean * 2, training=True).relu()


@pytest.mark.parametrize(
    "fn", [averages_of_columns, sums_of_rows, row_is_read_beside_the_store, batch_norm]
)
@pytest.mark.parametrize("n", [4, 100])
def test_statistics_are_written_by_the_kernel_that_computes_them(fn, n):
    x, old = torch.randn(n, n), torch.rand(n)
    own, expected = old.clone(), fn(x, old)
    metrics.reset()
    torch.testing.assert_close(minidynamo.compile(fn)(x, own), expected, **CLOSE)
    torch.testing.assert_close(own, old, **CLOSE)
    assert metrics.kernel_calls == 1


@pytest.mark.parametrize("name", ["abs_", "cos_", "sigmoid_", "clamp_", "addcmul_"])
def test_gradients_of_what_is_written_in_steps(name):
    def f(x, w):
        y = x.clone()
        part = y[:, 1::2]
        args = {"clamp_": (w, w + 1), "addcmul_": (w, w)}.get(name, ())
        getattr(part, name)(*args)
        return y * y, part.exp()

    x, w = torch.randn(3, 11), torch.randn(3, 5)
    left, right = ([t.clone().requires_grad_() for t in (x, w)] for _ in range(2))
    metrics.reset()
    actual, expected = minidynamo.compile(f, fullgraph=True)(*left), f(*right)
    torch.testing.assert_close(actual, expected)
    sum(t.sum() for t in actual).backward()
    sum(t.sum() for t in expected).backward()
    for ours, eager in zip(left, right, strict=True):
        torch.testing.assert_close(ours.grad, eager.grad)
    assert not metrics.uncompiled_graphs


def test_columns_within_a_transform():
    def inner(x):
        y = x.clone()
        y[:, 0] += x[:, 2].abs()
        y[1] *= 2
        return y.square().sum()

    x = torch.randn(2, 3)
    metrics.reset()
    grad = minidynamo.compile(torch.func.grad(inner), fullgraph=True)(x)
    torch.testing.assert_close(grad, torch.func.grad(inner)(x))
    assert not metrics.uncompiled_graphs


def out_in_steps(x, out):
    return torch.sin(x, out=out[:, ::2]) * 2


def out_turned(x, out):
    part = out.t()[:4]
    torch.cumsum(x.t() + 1, 1, out=part)
    return part + 1


def out_in_steps_of_own(x, out):
    made = torch.zeros(6, 4)[::2]
    torch.mul(x, out[:, :4], out=made)
    return made, made.sum(0)


def out_in_rows(x, out):
    made = torch.zeros(3, 4, dtype=torch.complex64)
    return torch.fft.fft(x, dim=0, out=made), made * 2


def out_over_the_input(x, out):
    return torch.sigmoid(x, out=x), torch.clamp(out, -1, 1, out=out)


@pytest.mark.parametrize(
    "fn", [out_in_steps, out_turned, out_in_steps_of_own, out_in_rows, out_over_the_input]
)
def test_out_laid_out_in_another_way(fn):
    left, right = ((torch.arange(12.0).view(3, 4), torch.ones(6, 8)[::2]) for _ in range(2))
    metrics.reset()
    actual, expected = minidynamo.compile(fn, fullgraph=True)(*left), fn(*right)
    assert not metrics.uncompiled_graphs
    torch.testing.assert_close((actual, left), (expected, right), check_stride=True)


def test_out_of_what_is_its_argument():
    def fn(x):
        made = torch.zeros(3, 4)
        torch.conj_physical(x, out=made)
        return made

    x = torch.ones(3, 4)
    minidynamo.compile(fn, fullgraph=True)(x).zero_()
    assert x.all()


def test_results_of_another_layout():
    """Of columns, where `out=` has rows: such a call is eager's."""

    def fn(x):
        made = torch.zeros(4, 4), torch.zeros(4, 4)
        return torch.linalg.qr(x, out=made), made[0] * 2

    x = torch.randn(4, 4)
    torch.testing.assert_close(minidynamo.compile(fn)(x), fn(x), check_stride=True)
