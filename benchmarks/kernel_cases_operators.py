"""More rows for `kernels.py`: operators that are seldom in models' hot loops but often in sweeps.

Functions of one number, remainders, windows, positions computed from positions, short rows,
double precision.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from kernel_cases import Made, Make, case

MANY = 1 << 18


@case("asin and acos", bound="compute")
def _inverse(g: Make) -> Made:
    return lambda x: torch.asin(x) + torch.acos(x), (g.rand(MANY),)


@case("sinh and cosh", bound="compute")
def _hyperbolic(g: Make) -> Made:
    return lambda x: torch.sinh(x) + torch.cosh(x), (g.randn(MANY),)


@case("angle of two numbers", bound="compute")
def _angle(g: Make) -> Made:
    return torch.atan2, (g.randn(MANY), g.randn(MANY))


@case("remainder of a division", bound="compute")
def _remainder(g: Make) -> Made:
    return lambda x: torch.remainder(x, 0.3), (g.randn(MANY),)


@case("distances on a sphere", bound="compute")
def _sphere(g: Make) -> Made:
    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        h = torch.sin((b - a) / 2) ** 2
        h = h + torch.cos(a) * torch.cos(b) * torch.sin((d - c) / 2) ** 2
        return 2 * torch.asin(h.clamp(0, 1).sqrt())

    return run, tuple(g.rand(MANY) for _ in range(4))


@case("logarithm and sine, float64", bound="compute")
def _doubles(g: Make) -> Made:
    return lambda x: torch.sin(x) + torch.log(x * x + 1), (g.randn(MANY, dtype=torch.float64),)


@case("gelu, float64", bound="compute")
def _gelu_double(g: Make) -> Made:
    return lambda x: F.gelu(x), (g.randn(MANY, dtype=torch.float64),)


@case("average pool of rows")
def _pool_rows(g: Make) -> Made:
    return lambda x: F.avg_pool1d(x, 4), (g.randn(32, 64, 1024),)


@case("adaptive average pool, 56 to 7")
def _adaptive(g: Make) -> Made:
    return lambda x: F.adaptive_avg_pool2d(x, 7), (g.randn(8, 64, 56, 56),)


@case("max pool of 9 x 9")
def _large_window(g: Make) -> Made:
    return lambda x: F.max_pool2d(x, 9, 1, 4), (g.randn(2, 64, 28, 28),)


@case("local response norm", bound="compute")
def _response(g: Make) -> Made:
    return lambda x: F.local_response_norm(x, 5), (g.randn(4, 64, 28, 28),)


@case("unfold: 3 x 3 windows as columns")
def _unfold(g: Make) -> Made:
    return lambda x: F.unfold(x, 3, padding=1), (g.randn(4, 16, 32, 32),)


@case("fold: columns to an image")
def _fold(g: Make) -> Made:
    return lambda x: F.fold(x, (32, 32), 3, padding=1), (g.randn(4, 144, 1024),)


@case("softmax near the diagonal", bound="compute")
def _near(g: Make) -> Made:
    def run(x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[-1], device=x.device)
        far = (place[:, None] - place).abs() > 32
        return torch.softmax(x.masked_fill(far, float("-inf")), -1)

    return run, (g.randn(16, 256, 256),)


@case("repeat_interleave")
def _repeated(g: Make) -> Made:
    return lambda x: x.repeat_interleave(4, 1) + 1, (g.randn(256, 512),)


@case("squared lengths of triples")
def _triples(g: Make) -> Made:
    return lambda x: (x * x).sum(-1), (g.randn(MANY, 3),)


@case("layer norm of 8")
def _short_norm(g: Make) -> Made:
    return lambda x: F.layer_norm(x, (8,)), (g.randn(50_000, 8),)


@case("argmin of 10")
def _short_argmin(g: Make) -> Made:
    return lambda x: x.argmin(-1), (g.randn(50_000, 10),)


# -- elements that are moved -----------------------------------------------------------------------


@case("pad as a torus")
def _torus(g: Make) -> Made:
    return lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"), (g.randn(4, 16, 128, 128),)


@case("pad with mirrors, bf16")
def _mirror(g: Make) -> Made:
    given = g.randn(4, 16, 128, 128, dtype=torch.bfloat16)
    return lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect"), (given,)


@case("pad and roll, bf16")
def _moved(g: Make) -> Made:
    given = g.randn(512, 1000, dtype=torch.bfloat16)
    return lambda x: F.pad(x, (8, 8)).roll(3, 1), (given,)


@case("masks combined")
def _masks(g: Make) -> Made:
    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return a & ~b | c

    return run, tuple(g.rand(1024, 1024) > 0.5 for _ in range(3))


@case("every second element, float64")
def _halved(g: Make) -> Made:
    return lambda x: x[:, ::2].contiguous(), (g.randn(512, 1024, dtype=torch.float64),)


@case("index_select columns")
def _columns(g: Make) -> Made:
    return lambda x, i: x.index_select(1, i), (g.randn(1000, 1000), g.ints(1000, 1000))


@case("products of rows, summed")
def _row_products(g: Make) -> Made:
    args = g.randn(64, 50, 60), g.randn(64, 50, 60)
    return lambda a, b: torch.einsum("bij,bij->b", a, b), args


@case("cross-entropy of 10 classes", bound="compute")
def _few_classes(g: Make) -> Made:
    args = g.randn(100_000, 10), g.ints(10, 100_000)
    return lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), args


@case("adaptive average pool, 56 to 20")
def _uneven_windows(g: Make) -> Made:
    return lambda x: F.adaptive_avg_pool2d(x, 20), (g.randn(8, 64, 56, 56),)


def _overlap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    low, high = torch.max(a[:, None, :2], b[:, :2]), torch.min(a[:, None, 2:], b[:, 2:])
    return (high - low).clamp(min=0).prod(-1)


@case("overlaps of all pairs of boxes")
def _boxes(g: Make) -> Made:
    return _overlap, (g.rand(1000, 4), g.rand(500, 4))


def _turns(angles: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    poses = torch.zeros(len(angles), 4, 4, device=angles.device)
    poses[:, 0, 0], poses[:, 0, 1] = angles.cos(), -angles.sin()
    poses[:, 1, 0], poses[:, 1, 1] = angles.sin(), angles.cos()
    poses[:, 2, 2] = poses[:, 3, 3] = 1.0
    poses[:, :3, 3] = moves
    return poses


@case("matrices filled place by place")
def _filled(g: Make) -> Made:
    return _turns, (g.randn(1 << 16), g.randn(1 << 16, 3))


def _decayed(x: torch.Tensor) -> torch.Tensor:
    states = torch.zeros_like(x)
    for step in range(1, x.shape[1]):
        states[:, step] = states[:, step - 1] * 0.9 + torch.tanh(x[:, step])
    return states


@case("a loop that fills its result")
def _steps(g: Make) -> Made:
    return _decayed, (g.randn(32, 64, 128),)


def _edge_attention(x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    source, target = edges
    score = F.leaky_relu((x[source] * weight).sum(-1) + (x[target] * weight).sum(-1), 0.2)
    top = x.new_full((len(x),), -1e9).scatter_reduce(0, target, score, "amax")
    share = torch.exp(score - top[target])
    total = x.new_zeros(len(x)).index_add(0, target, share)
    share = share / (total[target] + 1e-16)
    return torch.zeros_like(x).index_add(0, target, share[:, None] * x[source])


@case("attention over the edges of a graph")
def _graph(g: Make) -> Made:
    return _edge_attention, (g.randn(2000, 64), g.ints(2000, 2, 10_000), g.randn(64))


def _partition(scores: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    state = scores[:, 0]
    for step in range(1, scores.shape[1]):
        state = torch.logsumexp(state[:, :, None] + moves + scores[:, step, None], 1)
    return state.logsumexp(-1)


@case("partition function of a chain", bound="compute")
def _chain(g: Make) -> Made:
    return _partition, (g.randn(32, 16, 20), g.randn(20, 20))


def _pull(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    between = x[:, None] - x[None]
    force = torch.exp(-(between**2).sum(-1))[:, :, None].expand_as(between) * between
    return force.sum(0), force.sum(1)


@case("forces between all pairs of points")
def _pairs(g: Make) -> Made:
    return _pull, (g.randn(512, 3),)


def _turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[:, None]).flatten(3)


@case("rotary embedding in complex numbers")
def _rotary_complex(g: Make) -> Made:
    return _turned, (g.randn(2, 256, 8, 64), torch.view_as_complex(g.randn(256, 32, 2)))


def _mixed(z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    turned = z.abs() * torch.exp(1j * w.angle())
    return (z * w.conj() + turned) / (1 + w)


@case("arithmetic of complex numbers", bound="compute")
def _complex(g: Make) -> Made:
    return _mixed, tuple(torch.view_as_complex(g.randn(512, 256, 2)) for _ in range(2))
