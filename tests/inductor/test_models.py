"""Models: values, numbers of kernels, gradients."""

import copy

import pytest
import torch
import torch.nn.functional as F
from inductor_testing import CLOSE, check, compiled
from torch import nn

from minidynamo.inductor import metrics


class Block(torch.nn.Module):
    """A post-norm transformer encoder layer."""

    def __init__(self, width=64, heads=4, hidden=128):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.ffn = torch.nn.Sequential(
            torch.nn.Linear(width, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, width)
        )

    def forward(self, x):
        x = self.norm1(x + self.attention(x, x, x, need_weights=False)[0])
        return self.norm2(x + self.ffn(x))


def mlp():
    return torch.nn.Sequential(
        torch.nn.Linear(20, 40),
        torch.nn.ReLU(),
        torch.nn.Linear(40, 40),
        torch.nn.Tanh(),
        torch.nn.Linear(40, 3),
    )


def convnet():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(inplace=True),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 4, 3),
        torch.nn.Flatten(),
        torch.nn.Linear(100, 5),
    )


def test_transformer_block():
    torch.manual_seed(0)
    with torch.no_grad():
        check(Block(), torch.randn(3, 10, 64), kernels=4, externs=5, fallbacks=0, **CLOSE)


def test_attention_weights_nobody_wants_are_not_computed():
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(32, 4, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    torch.manual_seed(0)
    with torch.no_grad():
        check(Attention(), torch.randn(2, 7, 32), **CLOSE)


def test_convnet_in_inference():
    torch.manual_seed(0)
    with torch.no_grad():
        check(convnet().eval(), torch.randn(2, 3, 16, 16), fallbacks=0, **CLOSE)


def test_large_products_take_the_faster_library():
    torch.manual_seed(0)
    a, b, bias = torch.randn(256, 300), torch.randn(300, 400), torch.randn(400)
    tolerance = {"rtol": 1e-4, "atol": 1e-3}
    fn = lambda a, b, bias: (a @ b, F.linear(a, b.t(), bias).relu(), a.t() @ a)
    check(fn, a, b, bias, **tolerance)
    for choice in ("onednn", "aten"):
        run = compiled(fn, a, b, bias, cpu_linear=choice)
        for actual, expected in zip(run(a, b, bias), fn(a, b, bias)):
            torch.testing.assert_close(actual, expected, **tolerance)


def gradients(call, module, x):
    module.zero_grad()
    x = x.clone().requires_grad_()
    result = call(x)
    result = result[0] if isinstance(result, (tuple, list)) else result
    weights = torch.linspace(0, 1, result.numel()).view_as(result)
    (result * weights).sum().backward()
    return [x.grad, *(p.grad.clone() for p in module.parameters())]


@pytest.mark.parametrize("make", [Block, mlp, convnet])
def test_training(make):
    torch.manual_seed(0)
    module = make().train()
    shape = {Block: (3, 10, 64), mlp: (7, 20), convnet: (4, 3, 16, 16)}[make]
    x = torch.randn(shape)
    reference = copy.deepcopy(module)
    expected = gradients(reference, reference, x)
    run = compiled(copy.deepcopy(module), x.clone().requires_grad_())
    del run
    run, owner = train_compiled(module, x)
    for actual, wanted in zip(gradients(run, owner, x), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-4)
    for actual, wanted in zip(owner.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)


def train_compiled(module, x):
    """The module compiled by a graph that refers to it, its buffers as they were before."""
    before = copy.deepcopy(module.state_dict())
    from inductor_testing import graph_of

    from minidynamo.inductor.compile_fx import compile_fx

    example = x.clone().requires_grad_()
    graph = graph_of(module, [example], module(example))
    module.load_state_dict(before)
    return compile_fx(graph, [example]), module


def test_backward_is_compiled_too():
    torch.manual_seed(0)
    module = Block()
    x = torch.randn(3, 10, 64)
    metrics.reset()
    run, _ = train_compiled(module, x)
    run(x.clone().requires_grad_())[0].sum().backward()
    assert metrics.generated_kernel_count > 6


def test_losses():
    check(
        lambda x, t: (
            F.cross_entropy(x, t),
            F.mse_loss(x, x * 2),
            F.smooth_l1_loss(x, x + 1),
            F.binary_cross_entropy_with_logits(x, x.sigmoid()),
        ),
        torch.randn(20, 10),
        torch.randint(0, 10, (20,)),
        **CLOSE,
    )


def test_sdpa_with_operands_of_any_layout():
    q, k, v = (torch.randn(2, 4, 16, 8) for _ in range(3))
    check(
        lambda q, k, v: (
            F.scaled_dot_product_attention(q, k, v, is_causal=True) * 2,
            F.scaled_dot_product_attention(
                q.transpose(1, 2).contiguous().transpose(1, 2), k, v
            ),
        ),
        q,
        k,
        v,
        **CLOSE,
    )


def test_equal_layers_share_kernels():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(Block() for _ in range(3)))
    with torch.no_grad():
        check(layers, torch.randn(3, 10, 64), rtol=1e-3, atol=1e-4)
    assert metrics.generated_kernel_count <= 6 < metrics.kernel_calls


@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions_of_many_weights_keep_eagers_layout(channels_last):
    torch.manual_seed(0)
    wide, narrow = torch.nn.Conv2d(8, 96, 3), torch.nn.Conv2d(96, 4, 3)
    x = torch.randn(1, 8, 9, 9)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        check(lambda x: narrow(wide(x * 2).relu()).relu(), x, **CLOSE)
        check(lambda x: narrow(F.max_pool2d(wide(x), 2)), x, **CLOSE)


@pytest.mark.parametrize(
    ("channels", "groups", "dtype"),
    [
        (3, 1, torch.float32),
        (24, 24, torch.float32),
        (24, 2, torch.float32),
        (24, 1, torch.bfloat16),
    ],
)
def test_convolutions_choose_their_layout(channels, groups, dtype):
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(channels, 48, 3, groups=groups, dtype=dtype)
    x = torch.randn(2, channels, 16, 16, dtype=dtype)

    def fn(x):
        y = conv(x)
        return y, y.relu(), y.reshape(2, -1), y.sum(1), torch.cat([y, y], 1), y.sort(1)[0]

    close = CLOSE if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    with torch.no_grad():
        check(fn, x, **close)
        check(fn, x.to(memory_format=torch.channels_last), **close)


VOLUMES_AND_WIDER = {
    "transposed": (nn.ConvTranspose2d(16, 24, 3, padding=1), (2, 16, 12, 13)),
    "transposed, with a stride": (nn.ConvTranspose2d(16, 24, 4, 2, 1), (2, 16, 9, 8)),
    "transposed, many weights": (nn.ConvTranspose2d(64, 48, 4), (1, 64, 3, 3)),
    "transposed, groups": (nn.ConvTranspose2d(12, 24, 3, 2, groups=3), (2, 12, 9, 8)),
    "transposed, each channel": (nn.ConvTranspose2d(32, 32, 3, groups=32), (2, 32, 9, 8)),
    "groups of few channels": (nn.Conv2d(24, 48, 3, groups=3), (2, 24, 12, 13)),
    "volumes": (nn.Conv3d(8, 12, 3), (2, 8, 7, 6, 9)),
    "volumes, groups": (nn.Conv3d(8, 12, 3, groups=2), (2, 8, 7, 6, 9)),
    "transposed volumes, groups": (
        nn.ConvTranspose3d(8, 12, 3, 2, 1, groups=4),
        (2, 8, 5, 6, 4),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", VOLUMES_AND_WIDER)
def test_other_convolutions_choose_their_layout(case, dtype):
    conv, shape = VOLUMES_AND_WIDER[case]
    conv, x = copy.deepcopy(conv).to(dtype), torch.randn(shape).to(dtype)
    last = torch.channels_last if x.ndim == 4 else torch.channels_last_3d

    def fn(x):
        y = conv(x * 2)
        return y, y.relu(), y.sum(1)

    close = CLOSE
    if dtype is torch.bfloat16:
        # Eager may add in bfloat16, by the layout and the processor: what it is off by is allowed.
        double = copy.deepcopy(conv).double()(x.double() * 2)
        with torch.no_grad():
            off = max((fn(x)[i] - e).abs().max() for i, e in ((0, double), (2, double.sum(1))))
        close = {"rtol": 3e-2, "atol": max(3e-2, 2 * off.item())}
        assert off < 2**-6 * double.abs().sum(1).max()
    with torch.no_grad():
        check(fn, x, **close)
        check(fn, x.to(memory_format=last), **close)


@pytest.mark.parametrize(
    ("conv", "shape", "turned"),
    [
        (nn.ConvTranspose2d(16, 24, 3), (2, 16, 9, 8), True),
        (nn.Conv2d(24, 48, 3, groups=3), (2, 24, 9, 8), True),
        (nn.Conv3d(8, 12, 3, groups=2), (2, 8, 7, 6, 9), True),
        (nn.ConvTranspose2d(32, 32, 3, groups=32), (2, 32, 9, 8), False),
        (nn.Conv2d(32, 48, 3, groups=2), (2, 32, 9, 8), False),
        (nn.Conv2d(16, 16, 1), (2, 16, 9, 8), False),
        (nn.Conv3d(8, 12, 3), (2, 8, 7, 6, 9), False),
    ],
)
def test_which_convolutions_are_turned(conv, shape, turned):
    with torch.no_grad():  # a kernel lays out the operand, another one the result
        check(conv, torch.randn(shape), kernels=2 if turned else 0, **CLOSE)
