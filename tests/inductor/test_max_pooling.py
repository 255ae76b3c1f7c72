"""Max pooling with positions and with gradients: which of equal elements is the maximum, NaN,
windows that begin in the padding, and what is kept for the backward pass.
"""

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import check

import minidynamo
from minidynamo.inductor import metrics
from minidynamo.inductor.passes.pooled_positions import COLLECT, POOL

HOW = [
    ((2, 3, 9, 12), [3, 3], [2, 2], [1, 1]),
    ((2, 3, 9, 71), [3, 3], [2, 2], [1, 1]),
    ((1, 2, 10, 140), [2, 2], [2, 2], [0, 0]),
    ((2, 3, 9, 12), [2, 3], [2, 1], [1, 0]),
    ((2, 3, 8, 8), [5, 5], [1, 1], [2, 2]),
    ((2, 3, 9, 12), [2, 2], [3, 3], [1, 1]),
    ((2, 3, 7, 9, 12), [2, 2, 3], [2, 1, 3], [1, 1, 1]),
    ((3, 7, 9, 12), [2, 2, 3], [2, 1, 3], [1, 1, 1]),
]


def with_ties(size, dtype=torch.float32):
    x = torch.randint(-3, 3, size).to(dtype)
    x[0, 0, 0, 0] = x[-1, 0, 3, 3] = float("nan")
    x[-1, :, :3] = float("-inf")
    return x


def _relaid(x, kernel):
    if len(kernel) == 2:
        return x.to(memory_format=torch.channels_last)
    if x.dim() == 4:
        return x.double()
    # Where all is -inf eager's positions depend on the layout of volumes.
    return x.clamp(min=-9).to(memory_format=torch.channels_last_3d)


def pool_of(kernel):
    return F.max_pool2d if len(kernel) == 2 else F.max_pool3d


@pytest.mark.parametrize(
    ("how", "ceil_mode"), [(how, i % 2 == 1) for i, how in enumerate(HOW)], ids=str
)
def test_gradients(how, ceil_mode):
    size, kernel, stride, padding = how

    def fn(x):
        return pool_of(kernel)(x, kernel, stride, padding, ceil_mode=ceil_mode) * 2

    x = with_ties(size)
    for laid_out in (
        x,
        _relaid(x, kernel),
    ):
        given, expected = (laid_out.clone().requires_grad_() for _ in range(2))
        minidynamo.reset()
        metrics.reset()
        result, wanted = minidynamo.compile(fn)(given), fn(expected)
        torch.testing.assert_close(result, wanted, equal_nan=True, rtol=0, atol=0)
        grad = torch.randn_like(wanted)
        result.backward(grad)
        wanted.backward(grad)
        torch.testing.assert_close(given.grad, expected.grad, rtol=1e-6, atol=1e-6)
        assert given.grad.stride() == expected.grad.stride()
        assert metrics.extern_calls == 0
        assert metrics.uncompiled_graphs == 0


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_positions(how, dilation):
    size, kernel, stride, padding = how

    def fn(x):
        return pool_of(kernel)(x, kernel, stride, padding, dilation, return_indices=True)

    if dilation == 1 or all(k <= 3 for k in kernel):
        check(fn, with_ties(size), externs=0)
        check(fn, with_ties(size, torch.bfloat16), externs=0)


def test_positions_of_adaptive_pools():
    check(
        lambda x: F.adaptive_max_pool2d(x, (4, 3), return_indices=True), with_ties((2, 3, 8, 9))
    )


def test_positions_and_a_gradient():
    """Whoever reads the positions gets them, and the operator's own gradient."""

    def fn(x):
        values, positions = F.max_pool2d(x, 3, 2, 1, return_indices=True)
        return values.sin(), positions

    check(fn, torch.randn(2, 3, 9, 12, requires_grad=True))
    x = torch.randn(2, 3, 9, 12)
    a, b = (x.clone().requires_grad_() for _ in range(2))
    minidynamo.compile(fn)(a)[0].sum().backward()
    fn(b)[0].sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


def saved_bytes(fn, x):
    sizes = []

    def pack(tensor):
        sizes.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        fn(x)
    return sum(sizes)


def test_a_byte_is_kept_for_each_result():
    x = torch.randn(2, 8, 16, 16, requires_grad=True)
    assert (
        saved_bytes(minidynamo.compile(lambda x: F.max_pool2d(x, 3, 2, 1)), x) == 2 * 8 * 8 * 8
    )


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_the_operators_themselves(how, ceil_mode):
    """As a graph that runs operator by operator calls them."""
    size, kernel, stride, padding = how
    x = with_ties(size).requires_grad_()
    wanted = pool_of(kernel)(x, kernel, stride, padding, ceil_mode=ceil_mode)
    grad = torch.randn_like(wanted)
    wanted.backward(grad)
    ones = [1] * len(kernel)
    values, numbers = POOL(x.detach(), kernel, stride, padding, ones, ceil_mode)
    torch.testing.assert_close(values, wanted, equal_nan=True)
    result = COLLECT(grad, numbers, list(size), kernel, stride, padding, ceil_mode, False)
    torch.testing.assert_close(result, x.grad)
