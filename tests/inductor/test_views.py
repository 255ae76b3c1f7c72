"""Views, rearrangements, factories, indexing: results and their layouts."""

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import CLOSE, as_tuple, assert_same, check, compiled

import minidynamo
from minidynamo.inductor import metrics


def test_views_of_values():
    check(
        lambda x: (
            x.view(16, -1) + 1,
            x.permute(2, 0, 1) * 2,
            x.transpose(0, 1).exp(),
            x[3] + 1,
            x[:, 2:20:3] * 2,
            x[..., None] + 1,
            x.unsqueeze(1).expand(16, 4, 33, 65) * 2,
            x.narrow(1, 3, 5) + 1,
            x.unflatten(0, (4, 4)) + 1,
            x.diagonal() + 1,
            x.unfold(2, 5, 3) + 1,
            x.flip(0, 2),
            x.roll(3, 1),
            x.roll((1, 2), (0, 1)),
            x.repeat(2, 1, 3),
            x.repeat_interleave(2, 1),
        ),
        torch.randn(16, 33, 65),
    )


def test_views_as_results():
    check(
        lambda x: (
            (x * 2).view(-1),
            (x * 3).transpose(0, 1),
            (x + 1)[:, 3],
            (x + 2).expand(3, 16, 33),
            (x + 3).unsqueeze(0),
        ),
        torch.randn(16, 33),
    )


def test_results_that_share_memory_share_it():
    run = compiled(lambda x: (lambda y: (y, y.view(-1)))(x + 1), torch.randn(4, 5))
    whole, flat = run(torch.randn(4, 5))
    assert whole.data_ptr() == flat.data_ptr()


def test_long_chains_of_views():
    check(
        lambda x: (
            x.sin().view(16, -1).t().reshape(33, 65, 16).permute(2, 1, 0).contiguous() + 1
        ),
        torch.randn(16, 33, 65),
        kernels=1,
    )


def test_splits():
    check(
        lambda x: (
            *(piece + 1 for piece in x.split(7, 1)),
            *(piece * 2 for piece in x.chunk(3, 2)),
            *(piece.exp() for piece in x.unbind(0)[:3]),
        ),
        torch.randn(16, 33, 65),
    )


def test_concatenation():
    check(
        lambda x, y: (
            torch.cat([x, y * 2], 1),
            torch.cat([x, y, x], 0),
            torch.stack([x, y], 1),
            torch.cat([x + 1, y], -1) + 1,
            torch.cat([x[:0], y]),
        ),
        torch.randn(6, 7, 8),
        torch.randn(6, 7, 8),
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.expand(2, *y.shape) + 1,
        lambda y: y[1:, 2:].t() * 2,
        lambda y: [part.exp() for part in y.unsqueeze(0).split(3, 1)],
        lambda y: [row * 2 for row in y.t().unbind(1)],
        lambda y: torch.cat([y.expand(2, *y.shape), y[None] + 1]),
        lambda y: y.as_strided((2, 3), (1, 2), y.storage_offset() + 5) + 1,
    ],
)
def test_views_of_what_was_stacked(view, dynamic):
    """A slice of a stack begins behind the others, and the tensor it is read from does not."""
    x, y = torch.randn(6, 5), torch.randn(6, 5)
    for f in (
        lambda x, y: view(torch.stack([x, y])[1]),
        lambda x, y: view(torch.stack([x[1:], y[:-1]]).unbind(0)[0]),
        lambda x, y: view(torch.stack([x + 1, x, y], 0)[-1].sin()),
    ):
        minidynamo.reset()
        run = minidynamo.compile(f, fullgraph=True, dynamic=dynamic)
        for left, right in zip(as_tuple(run(x, y)), as_tuple(f(x, y)), strict=True):
            assert_same(left, right)


def test_padding_and_triangles():
    check(
        lambda x: (
            F.pad(x, (1, 2)),
            F.pad(x, (1, 2, 3, 4), value=2.5),
            F.pad(x, (-1, 2, 0, -3)),
            F.pad(x + 1, (2, 2)) * 2,
            x.tril(),
            x.triu(1),
            (x + 1).tril(-2) * 2,
        ),
        torch.randn(5, 33, 35),
    )


def test_factories():
    check(
        lambda x: (
            torch.arange(10) + 1,
            torch.arange(3, 20, 2),
            torch.arange(0, 1, 0.1),
            torch.zeros_like(x) + 1,
            torch.full((3, 4), 2.5) * 2,
            torch.eye(5) + 1,
            x.new_ones(3) + 1,
            torch.linspace(0, 1, 7) * 2,
            x + torch.tensor([1.0, 2.0, 3.0]),
            torch.tensor(2) * 3,
        ),
        torch.randn(4, 3),
    )


def test_scatter_of_slices():
    check(
        lambda x, y: (
            torch.slice_scatter(x, y[:, 2:5], 1, 4, 7),
            torch.select_scatter(x, y[0], 0, 3),
            torch.diagonal_scatter(x[0], y[0].diagonal()),
        ),
        torch.randn(8, 9, 10),
        torch.randn(8, 9, 10),
    )


def test_indexing():
    check(
        lambda x, i: (
            x[i],
            x[:, i],
            x.index_select(1, i),
            F.embedding(i, x[0]),
            x[i, i],
            x[i] + 1,
        ),
        torch.randn(8, 9, 10),
        torch.tensor([3, 1, 0, 2]),
    )


def test_layouts_of_inputs():
    image = torch.randn(4, 6, 9, 11).to(memory_format=torch.channels_last)
    check(lambda x: (x + 1, x.relu().exp(), x.sum((2, 3)), x.mean(1)), image, **CLOSE)
    check(lambda x, y: (x + y, x * 2), torch.randn(20, 30).t(), torch.randn(30, 40)[:, ::2])
    check(lambda x: (x + 1, x.contiguous()), torch.randn(1, 40).expand(30, 40))
    check(lambda x: (x + 1, x.t() + 1), torch.randn(1000)[7:107].view(10, 10))


def test_bits():
    check(
        lambda x: (x.view(torch.int32) + 1, (x.view(torch.int32) >> 23).float()),
        torch.randn(50),
    )


def test_complex_numbers_and_other_operators_are_called():
    check(
        lambda x: (torch.complex(x, x).abs(), torch.fft.rfft(x).real, *x.sort(-1), *x.topk(5)),
        torch.randn(8, 64),
        rtol=1e-4,
        atol=1e-3,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int8])
def test_cross_product(dtype):
    x, y = (torch.randint(-9, 9, (7, 3, 40)).to(dtype) for _ in range(2))
    x[0, 0, 0] = 0
    cross = torch.linalg.cross
    check(lambda x, y: (cross(x + 1, y, dim=1), cross(x[:1], y, dim=1) * 2), x, y, externs=0)
    turned = x.transpose(1, 2), y.transpose(1, 2)
    check(lambda x, y: torch.cross(x, y, dim=-1), *turned, externs=0)


def test_cross_product_of_what_is_not_finite():
    x = torch.tensor([[1.0, float("inf"), 2.0], [float("nan"), 0.0, -0.0]])
    check(lambda x, y: torch.cross(x, y, dim=1), x, torch.randn(2, 3), externs=0)


def test_operators_are_given_what_was_cloned():
    """A copy that is laid out like its original is not made for a call that only reads."""
    check(lambda x: torch.special.bessel_j0(x.clone()), torch.randn(9), kernels=0, externs=1)
    turned = lambda x: torch.special.bessel_j0(x.t().contiguous())  # noqa: E731
    check(turned, torch.randn(4, 9), kernels=1, externs=1)
    both = lambda x: (torch.special.bessel_j0(y := x.clone()), y)  # noqa: E731
    check(both, torch.randn(9), kernels=1, externs=1)


@pytest.mark.parametrize(
    "fn",
    [lambda y: y[..., 1:], lambda y: y.as_strided((2, 2), (1, 2), 9), lambda y: y.unbind(1)[2]],
)
def test_views_of_copies_with_room_around_them(fn):
    """`slice_scatter` copies the memory in front of its argument, too: views lie behind that."""

    def program(x):
        x[..., 1:].mul_(2)
        ordered = torch.sort(x, dim=0)[0]
        return fn(x), ordered, fn(torch.slice_scatter(x, x[:1], 0, 1, 2)) + 1

    for dynamic in (False, True):
        run = minidynamo.compile(program, dynamic=dynamic)
        left, right = torch.arange(40.0).view(5, 8), torch.arange(40.0).view(5, 8)
        for actual, expected in zip(run(left[1:]), program(right[1:]), strict=True):
            assert torch.equal(actual, expected) and actual.stride() == expected.stride()
        assert torch.equal(left, right)


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x.split([0, 0, 3])[0], x.split([0, 0, 3])[1]),
        lambda x: tuple((x * 2).split([0, 0, 3])),
        lambda x: x[:0].chunk(2),
        lambda x: ((y := x * 2)[1:2], y[1:2].view(1)),
        lambda x: ((y := x * 2)[:1], y[:1]),
    ],
)
def test_equal_views_are_several_tensors(fn, needs_grad):
    x = torch.arange(3.0, requires_grad=needs_grad)
    first, second, *_ = minidynamo.compile(fn)(x)
    assert first is not second
    torch.testing.assert_close((first, second), fn(x)[:2], **CLOSE)
    if needs_grad:
        (first.sum() + second.sum()).backward()
        assert x.grad is not None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.view(torch.int16) + 1,
        lambda x: (x * 2).view(torch.int16) & 3,
        lambda x: (x.view(torch.int16) & 0x7FFF).view(x.dtype),
        lambda x: (x.view(torch.int16) ^ 1).view(x.dtype).float() * 2,
        lambda x: x.t().view(torch.int16)[1:].clone(),
        lambda x: (x * 2).view(torch.bfloat16).view(torch.float16).view(torch.int16),
    ],
)
def test_bits_of_narrow_floats(fn, dtype):
    for size in ((64, 70), (3, 5)):
        check(fn, torch.randn(size).to(dtype), externs=0)


def test_bits_that_are_no_number():
    x = torch.tensor([0x7C01, -1, 0x7F81], dtype=torch.int16).repeat(20).view(torch.float16)
    y = minidynamo.compile(lambda x: (x.view(torch.int16) ^ 2).view(torch.float16))(x)
    assert torch.equal(y.view(torch.int16), x.view(torch.int16) ^ 2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_flipped_operands_of_calls_have_memory_of_their_own(dynamic):
    # A tensor's strides are never negative.
    def fn(x, y):
        return (
            x.flip(0) @ y,
            F.linear(x.flip(1), y.flip(0)),
            x.flip(0).t() @ y.flip(0, 1),
            x[None].flip(1).bmm(y[None].rot90(1, (1, 2))),
        )

    run = minidynamo.compile(fn, dynamic=dynamic)
    for size in (6, 9):
        x, y = torch.randn(2, size, size)
        torch.testing.assert_close(run(x, y), fn(x, y), **CLOSE)


def test_any_part_of_the_storage_behind_a_view_of_bits():
    def fn(x):
        halves = x.view(-1).view(torch.float16).as_strided((2, 5), (1, 1))
        return halves.view(torch.bfloat16).as_strided((10, 10), (1, 1))

    x = torch.randn(10, 10, dtype=torch.bfloat16)
    metrics.reset()
    result = minidynamo.compile(fn, fullgraph=True)(x)
    assert torch.equal(result, fn(x)) and result.stride() == (1, 1)
    assert metrics.uncompiled_graphs == 0
