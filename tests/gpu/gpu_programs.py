"""Small programs for CUDA tensors, eager beside compiled; prints a line for each that begins with
"ok" where outputs, written inputs and gradients agree. `--stand-in`: on the GPU of stand_in_gpu.py;
`--part 2/4`: only the second quarter of the programs.
"""

from __future__ import annotations

import copy
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import minidynamo
from minidynamo.inductor import metrics

Program = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]
PROGRAMS: dict[str, Program] = {}
OPTIONS: dict[str, dict[str, Any]] = {
    "mode reduce-overhead": {"mode": "reduce-overhead"},
    "mode max-autotune": {"mode": "max-autotune"},
    "padded products": {"options": {"force_shape_pad": True}},
    "padded batches": {"options": {"force_shape_pad": True}},
    "dropout of eager": {"options": {"fallback_random": True}},
    "scattered parts": {"dynamic": True},
    "block of convolutions": {"options": {"force_layout_optimization": True}},
    "block of convolutions, trained": {"options": {"force_layout_optimization": True}},
}


def randn(*size: int, device: str = "cuda", grad: bool = False) -> torch.Tensor:
    return torch.randn(size).to(device).requires_grad_(grad)


def integers(limit: int, *size: int, device: str = "cuda") -> torch.Tensor:
    return torch.randint(0, limit, size).to(device)


def add(name: str, fn: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> None:
    assert name not in PROGRAMS
    PROGRAMS[name] = (fn, make)


def trained(*sizes: tuple[int, ...]) -> Callable[[], tuple[Any, ...]]:
    return lambda: tuple(randn(*size, grad=True) for size in sizes)


def plain(*sizes: tuple[int, ...]) -> Callable[[], tuple[Any, ...]]:
    return lambda: tuple(randn(*size) for size in sizes)


def module(make: Callable[[], nn.Module]) -> Callable[..., Any]:
    torch.manual_seed(5)
    return make().cuda()


# -- kernels -----------------------------------------------------------------------------------

add("pointwise", lambda x: x.relu() * 2 + 1, trained((3, 4)))
add("broadcast", lambda x, y: x * y + y, trained((30, 40), (40,)))
add("transposed", lambda x, y: x.t() + y, plain((70, 50), (50, 70)))
add("softmax", lambda x: x.softmax(-1), trained((30, 40)))
add("softmax over columns", lambda x: x.softmax(0), trained((300, 40)))
add("sum of all", lambda x: x.sum(), plain((100_000,)))
add("long rows", lambda x: x.var(-1), plain((6, 9000)))
add("layer_norm", lambda x: F.layer_norm(x, (64,)), trained((8, 64)))
add("gelu", lambda x: F.gelu(x, approximate="tanh"), trained((8, 64)))
add("half", lambda x: (x.half() * 4).float(), plain((8, 64)))
add("bool", lambda x: (x > 0) & ~(x > 1), plain((8, 64)))
add("integer division", lambda x: (x // 3, x % 3), lambda: (integers(99, 40) - 50,))
add("argmax", lambda x: x.argmax(-1), plain((6, 400)))
add("cumsum", lambda x: x.cumsum(-1), trained((6, 40)))
add("sort", lambda x: x.sort(-1), plain((6, 40)))
add("topk", lambda x: x.topk(3)[0] * 2, trained((6, 40)))
add("where", lambda x: torch.where(x > 0, x, 0.0), trained((8, 2)))
add("cat", lambda x, y: torch.cat([x, y * 2], 1), trained((8, 64), (8, 4)))
add("index", lambda x, i: x[i] * 2, lambda: (randn(5, 4, grad=True), integers(5, 3)))
add("mask", lambda x: x[x > 0].sum(), plain((5, 4)))
add("nonzero", lambda x: x.nonzero() + 1, plain((8, 2)))
add("unique", lambda x: x.round().unique() * 2, plain((8, 2)))
add("complex", lambda x: torch.view_as_complex(x) * 2, plain((8, 2)))
add(
    "scatter_add",
    lambda x, i: torch.zeros(9, 4, device="cuda").scatter_add(0, i, x),
    lambda: (randn(6, 4, grad=True), integers(9, 6, 4)),
)
add(
    "index_add",
    lambda x, i: torch.zeros(9, 4, device="cuda").index_add(0, i, x * 2),
    lambda: (randn(6, 4), integers(9, 6)),
)
add("embedding", F.embedding, lambda: (integers(9, 4, 3), randn(9, 4, grad=True)))
add("cross_entropy", F.cross_entropy, lambda: (randn(6, 9, grad=True), integers(9, 6)))
add("max_pool2d", lambda x: F.max_pool2d(x, 2), trained((1, 2, 8, 8)))
add("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 2), trained((1, 2, 8, 8)))
add("interpolate", lambda x: F.interpolate(x, scale_factor=2), trained((1, 2, 8, 8)))


# -- calls of libraries ------------------------------------------------------------------------

add("mm", lambda x, y: (x @ y).relu(), trained((5, 4), (4, 6)))
add("addmm", lambda b, x, y: torch.addmm(b, x, y).relu(), trained((6,), (5, 4), (4, 6)))
add("bmm", lambda x, y: (x @ y).relu(), trained((2, 5, 4), (2, 4, 6)))
add("convolution", lambda x, w: F.conv2d(x, w).relu(), trained((2, 3, 8, 8), (4, 3, 3, 3)))
add("bias, then gelu", lambda x, *w: F.gelu(F.linear(x, *w)), trained((5, 4), (6, 4), (6,)))
add(
    "bias of a convolution",
    lambda x, *w: F.conv2d(x, *w).relu(),
    trained((2, 3, 8, 8), (4, 3, 3, 3), (4,)),
)
add(
    "padded products",
    lambda x, *w: F.linear(*(t.round().bfloat16() for t in (x, *w))).float().log_softmax(-1),
    trained((10, 21), (13, 21), (13,)),
)
add(
    "padded batches",
    lambda x, y: torch.bmm(x.round().half(), y.round().half().mT).float().softmax(-1),
    trained((2, 9, 16), (2, 9, 16)),
)
add(
    "convolution, channels last",
    lambda x, w: F.conv2d(x.contiguous(memory_format=torch.channels_last), w).relu(),
    plain((2, 3, 8, 8), (4, 3, 3, 3)),
)


def attention_by_hand(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = (x @ w).view(2, 7, 3, 4, 8).permute(2, 0, 3, 1, 4)
    scores = (q * 0.3) @ (k + 1).transpose(-2, -1)
    return scores.softmax(-1) @ v, k.transpose(-2, -1) * 2


add("attention by hand", attention_by_hand, trained((2, 7, 6), (6, 96)))


def block(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of enough channels for another layout of the images."""
    first, second, scale, shift, last = weights
    y = F.conv2d(x, first, padding=1)
    z = F.conv2d(F.relu(y), second, padding=1)
    z = F.relu(y + F.batch_norm(z, None, None, scale, shift, training=True))
    pooled = F.adaptive_avg_pool2d(F.max_pool2d(z, 2), 1)
    return pooled.flatten(1) @ last, z, z[:, 1:3]


BLOCK = (2, 3, 4, 4), (72, 3, 3, 3), (72, 72, 3, 3), (72,), (72,), (72, 3)
add("block of convolutions", block, plain(*BLOCK))
add("block of convolutions, trained", block, trained(*BLOCK))
add("attention", F.scaled_dot_product_attention, trained(*[(1, 2, 8, 16)] * 3))
add(
    "causal attention",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    trained(*[(1, 2, 8, 16)] * 3),
)
add("fft", lambda x: torch.fft.fft(x).real * 2, plain((8, 8)))
add("inverse", lambda x: torch.linalg.inv(x) * 2, plain((8, 8)))


# -- memory ------------------------------------------------------------------------------------


def scattered(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    part = y.unsqueeze(-2)
    part[..., ::2] = 0
    return x.clone(), x.cumsum(-1), part >= torch.as_tensor(1, device="cuda"), y


def odd_offsets() -> tuple[Any, ...]:
    """Tensors that do not begin at multiples of 16 bytes."""
    x, y = integers(2, 6, 8).bool(), integers(2, 6, 8).bool()
    return x[:, ::2], y[3:]


add("scattered parts", scattered, odd_offsets)
add("odd offsets", lambda x, y: (x[:, 1:] * 2, y + 1), lambda: (randn(9, 9), randn(99)[3:]))
add("odd offsets, in place", lambda x: x.add_(1), lambda: (randn(99)[3:],))
add("in place", lambda x: x.add_(1).mul_(2), plain((8, 64)))
add("copy_", lambda x, y: x.copy_(y * 2), plain((8, 64), (8, 64)))
add("parts of inputs", lambda x: (x[1:], x.t()), plain((8, 64)))
add("buffers", module(lambda: nn.BatchNorm2d(3)), trained((2, 3, 8, 8)))


# -- devices -----------------------------------------------------------------------------------


def other_stream(x: torch.Tensor) -> torch.Tensor:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = x * 2
    torch.cuda.current_stream().wait_stream(stream)
    return y + 1


def autocast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return (x @ w).relu()


def synchronized(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch.cuda.synchronize()
    return y * 2


add("to the GPU", lambda x: x.cuda() * 2, lambda: (torch.randn(3),))
add("to the CPU", lambda x: (x * 2).cpu() + 1, plain((3,)))
add("number on the CPU", lambda x, s: x * s, lambda: (randn(3), torch.tensor(2.0)))
add("positions on the CPU", lambda x, i: x[i], lambda: (randn(3), torch.tensor([2, 0])))
add(
    "number made of constants",
    lambda x: x / torch.tensor(64.0).sqrt().bfloat16(),
    trained((3,)),
)
add("constant of the CPU", lambda x: x + torch.tensor([1.0, 2, 3]).cuda(), plain((3,)))
add("constant", lambda x: x + torch.tensor([1.0, 2, 3], device="cuda"), plain((3,)))
add("arange", lambda x: x + torch.arange(3, device=x.device), plain((3,)))
add("numbers on the GPU", lambda x: torch.linspace(x[0], x[1], 5), plain((3,)))
add(
    "numbers on the CPU",
    lambda x, s: x + torch.logspace(s, 1.5, 3, device="cuda"),
    lambda: (randn(3), torch.tensor(0.5)),
)
add("is_cuda", lambda x: x + 1 if x.is_cuda else x, plain((3,)))
add("index of the device", lambda x: x * (x.device.index + 1), plain((3,)))
add("capability", lambda x: x + torch.cuda.get_device_capability()[0], plain((3,)))
add("item", lambda x: x * x.sum().item(), plain((3,)))
add("autocast", autocast, trained((8, 4), (4, 4)))
add("stream", other_stream, plain((8,)))
add("synchronize", synchronized, plain((8,)))
add("pinned", lambda x: x.cuda(non_blocking=True) * 2, lambda: (torch.randn(4).pin_memory(),))
add("mode reduce-overhead", lambda x: (x * 2 + 1).sum(-1), plain((8, 8)))
add("mode max-autotune", lambda x: (x @ x).softmax(-1), plain((8, 8)))
add("dropout of eager", lambda x: F.dropout(x, 0.5, True), trained((8, 8)))
if torch.cuda.device_count() > 1:
    add("second GPU", lambda x: x * 2 + 1, lambda: (randn(4, device="cuda:1"),))
    add(
        "two GPUs",
        lambda x, y: (x * 2).to("cuda:1") + y,
        lambda: (randn(4), randn(4, device="cuda:1")),
    )


# -- modules -----------------------------------------------------------------------------------

add("attention module", module(lambda: nn.MultiheadAttention(8, 2)), plain(*[(5, 2, 8)] * 3))
add(
    "transformer",
    module(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)),
    trained((5, 2, 8)),
)


def stepping(make: Callable[..., torch.optim.Optimizer]) -> Callable[..., Any]:
    """Three steps of a small module, which is what a program returns."""

    def train(x: torch.Tensor) -> list[torch.Tensor]:
        torch.manual_seed(7)
        net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).cuda()
        optimizer = make(net.parameters())
        step = optimizer.step
        if train.compiled:  # type: ignore[attr-defined]
            step = minidynamo.compile(step)
        for _ in range(3):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            step()
        return [p.detach() for p in net.parameters()]

    train.compiled = False  # type: ignore[attr-defined]
    return train


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW, capturable": lambda p: torch.optim.AdamW(p, lr=0.01, capturable=True),
    "Adam, rate in a tensor": lambda p: torch.optim.Adam(
        p, lr=torch.tensor(0.01), capturable=True
    ),
}


# -- CUDA graphs -------------------------------------------------------------------------------

CALLS = 14
WITH_GRAPHS = {"mode": "reduce-overhead"}


def graphs_of_results(keep: bool) -> int:
    """Results that are dropped, or all kept, and an input that is given back with a part of it."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((x @ w).relu() * 2).sum(-1), x, x[1:]

    compiled, w, results = minidynamo.compile(fn, **WITH_GRAPHS), randn(8, 8), []
    inputs = [randn(4, 8) for _ in range(CALLS)]  # no two in one place
    for x in inputs:
        found = compiled(x, w)
        assert found[1] is x and found[2].data_ptr() == x[1:].data_ptr()
        results.append((found[0] if keep else found[0].cpu(), fn(x, w)[0]))
        del found
    for found, expected in results:
        compare(expected.cpu(), found.cpu())
    return CALLS - 4 if keep else CALLS - 2


def graphs_of_training() -> int:
    """Forward and backward; what the one saves stays where it is."""
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)
    ).cuda()
    other = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other)]
    compiled = minidynamo.compile(model, **WITH_GRAPHS)
    inputs = []  # no two in one place
    for _ in range(CALLS):
        inputs.append(randn(4, 8))
        losses = []
        for module, optimizer in zip((compiled, other), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(module(inputs[-1]).square().mean())
            losses[-1].backward()
            optimizer.step()
        compare(*(loss.detach() for loss in losses))
    compare([*model.parameters()], [*other.parameters()])
    return CALLS  # of twice as many; addresses of results may take a while to settle


def graphs_of_writes() -> int:
    """A buffer is written to once a call, and no two calls draw the same numbers."""

    def fn(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return F.dropout(x, 0.5) + count

    compiled, count, seen = minidynamo.compile(fn, **WITH_GRAPHS), randn(64) * 0, set()
    x = randn(64) * 0 + 1
    for i in range(CALLS):
        version = count._version
        kept = compiled(x, count) - count
        assert count._version > version and count[0].item() == i + 1
        seen.add(tuple(kept.cpu().tolist()))
    assert len(seen) == CALLS and {v for kept in seen for v in kept} == {0.0, 2.0}
    return CALLS - 2


def graphs_of_addresses() -> int:
    """A written input that moves, other streams, and sizes of other calls: right, if slower."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2) + 1

    compiled, kept = minidynamo.compile(fn, **WITH_GRAPHS), []
    for _ in range(CALLS):
        kept.append(randn(8))
        before = kept[-1].clone()
        compare(before * 2 + 1, compiled(kept[-1]))
        compare(before * 2, kept[-1])
    assert metrics.cudagraph_replays == 0
    compiled, x, stream = minidynamo.compile(lambda x: x * 2, **WITH_GRAPHS), randn(8), None
    for call in range(CALLS):
        stream = torch.cuda.Stream() if call > CALLS // 2 else torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            found = compiled(x)
        stream.synchronize()
        compare(x * 2, found)
    return 3


def graphs_of_host_work() -> int:
    """What reads from or gives to the host has no graph."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).cpu() + 1

    compiled = minidynamo.compile(fn, **WITH_GRAPHS)
    for _ in range(CALLS):
        x = randn(8)
        compare(x.cpu() * 2 + 1, compiled(x))
    assert metrics.cudagraph_recordings == 0
    return 0


def check_graphs(run: Callable[[], int]) -> None:
    minidynamo.reset()
    metrics.reset()
    torch.manual_seed(1)
    replays = run()
    assert metrics.cudagraph_replays >= replays, (metrics.cudagraph_replays, replays)


GRAPHS: dict[str, Callable[[], int]] = {
    "graphs, results dropped": lambda: graphs_of_results(False),
    "graphs, results kept": lambda: graphs_of_results(True),
    "graphs, training": graphs_of_training,
    "graphs, writes": graphs_of_writes,
    "graphs, addresses and streams": graphs_of_addresses,
    "graphs, host": graphs_of_host_work,
}


# -- running -----------------------------------------------------------------------------------


def fresh(value: Any) -> Any:
    """A copy, in the same place of its memory."""
    if not isinstance(value, torch.Tensor):
        return value
    base = value.detach()._base if value._is_view() else None
    if base is None:
        return value.detach().clone().requires_grad_(value.requires_grad)
    part = base.clone().as_strided(value.size(), value.stride(), value.storage_offset())
    return part.requires_grad_(value.requires_grad)


def call(fn: Callable[..., Any], inputs: Any) -> list[Any]:
    torch.manual_seed(3)
    inputs = tree_map(fresh, inputs)
    result = fn(*inputs)
    losses = [t.float().sum() for t in tree_leaves(result) if t.requires_grad]
    if losses:
        sum(losses).backward()
    return [result, inputs, [x.grad for x in inputs]]


def compare(expected: Any, found: Any) -> None:
    for left, right in zip(tree_leaves(expected), tree_leaves(found), strict=True):
        if not isinstance(left, torch.Tensor):
            assert left == right
            continue
        facts = [(t.device, t.dtype, t.stride(), t.requires_grad) for t in (left, right)]
        assert facts[0] == facts[1], facts
        torch.testing.assert_close(left.cpu(), right.cpu(), rtol=1e-3, atol=1e-4)


def check(name: str) -> None:
    minidynamo.reset()
    metrics.reset()
    fn, make = PROGRAMS[name]
    torch.manual_seed(1)
    compiled = minidynamo.compile(copy.deepcopy(fn), **OPTIONS.get(name, {}))
    eager = copy.deepcopy(fn)
    for _ in range(2):
        inputs = make()
        compare(call(eager, inputs), call(compiled, inputs))
    assert metrics.uncompiled_graphs == 0


def check_optimizer(name: str) -> None:
    minidynamo.reset()
    torch.manual_seed(1)
    x = randn(5, 6)
    expected = stepping(OPTIMIZERS[name])(x)
    train = stepping(OPTIMIZERS[name])
    train.compiled = True  # type: ignore[attr-defined]
    compare(expected, train(x))


def main() -> int:
    torch.backends.cudnn.allow_tf32 = False  # its roundings are larger than what is compared
    gpu = None
    if "--stand-in" in sys.argv:
        from stand_in_gpu import StandIn

        gpu = StandIn()
    wrong, part, parts = 0, 1, 1
    if "--part" in sys.argv:
        part, parts = map(int, sys.argv[sys.argv.index("--part") + 1].split("/"))
    tasks = [(check, name) for name in PROGRAMS] + [(check_optimizer, n) for n in OPTIMIZERS]
    tasks += [(lambda name: check_graphs(GRAPHS[name]), name) for name in GRAPHS]
    for run, name in tasks[part - 1 :: parts]:
        try:
            run(name)
            print(f"ok {name}", flush=True)
        except Exception as error:
            wrong += 1
            traceback.print_exc()
            print(f"WRONG {name}: {type(error).__name__}: {error}", flush=True)
    if gpu is not None:
        assert not gpu.errors
        assert len(gpu.launches) > len(PROGRAMS) // parts
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
