"""Max pooling in joint graphs: what its gradient needs is one byte a result.

    y, indices = max_pool2d_with_indices(x, ...)
    max_pool2d_with_indices_backward(grad, x, ..., indices)

become

    y, numbers = minidynamo::pool_numbered(x, ...)
    minidynamo::pool_collect(grad, numbers, ...)

where a number says which element of its window is the maximum. Neither the indices (int64) nor `x`
is kept for the backward pass then, and both operators are loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch._prims_common import suggest_memory_format

aten = torch.ops.aten
# Elements of the largest window that is written out.
MOST = 27

_library = torch.library.Library("minidynamo", "FRAGMENT")
_library.define(
    "pool_numbered(Tensor x, int[] kernel, int[] stride, int[] padding, int[] dilation, "
    "bool ceil_mode) -> (Tensor, Tensor)"
)
_library.define(
    "pool_collect(Tensor grad, Tensor numbers, SymInt[] size, int[] kernel, int[] stride, "
    "int[] padding, bool ceil_mode, bool channels_last) -> Tensor"
)
POOL = torch.ops.minidynamo.pool_numbered.default
COLLECT = torch.ops.minidynamo.pool_collect.default
_POOLS = {
    2: (aten.max_pool2d_with_indices, aten.max_pool2d_with_indices_backward),
    3: (aten.max_pool3d_with_indices, aten.max_pool3d_with_indices_backward),
}


def _places(
    indices: Tensor, size: Sequence[int], *options: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor, int, int, int]]:
    """For each pooled dimension: where maxima are, where their windows begin, the kernel, the
    distance of its elements, and the extent of the dimension.
    """
    dims = len(options[0])
    extents = size[-dims:]
    for d, (k, s, p, step) in enumerate(zip(*options, strict=True)):
        count = indices.shape[d - dims]
        first = torch.arange(count, device=indices.device) * s - p
        at = indices // math.prod(extents[d + 1 :]) % extents[d]
        yield at, first.view(-1, *[1] * (dims - 1 - d)), k, step, extents[d]


@torch.library.impl(_library, "pool_numbered", "CompositeExplicitAutograd")
def pool_numbered(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Tensor, Tensor]:
    """Maxima of windows, and which of its elements, in row-major order, each of them is."""
    pool, _ = _POOLS[len(kernel)]
    values, indices = pool(x, kernel, stride, padding, dilation, ceil_mode)
    numbers = torch.zeros_like(indices)
    for at, first, k, step, _ in _places(indices, x.shape, kernel, stride, padding, dilation):
        numbers = numbers * k + (at - first) // step
    return values, numbers.to(torch.int8)


@torch.library.impl(_library, "pool_collect", "CompositeExplicitAutograd")
def pool_collect(
    grad: Tensor,
    numbers: Tensor,
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    channels_last: bool,
) -> Tensor:
    """The gradient of what was pooled, of this size."""
    _, backward = _POOLS[len(kernel)]
    ones = [1] * len(kernel)
    rest, indices, volume = numbers.long(), torch.zeros_like(numbers, dtype=torch.int64), 1
    places = list(_places(indices, size, kernel, stride, padding, ones))
    for _, first, k, step, extent in reversed(places):
        indices += (first + rest % k * step) * volume
        rest, volume = rest // k, volume * extent
    inner = torch.channels_last if len(size) == 4 else torch.channels_last_3d
    layout = inner if channels_last else torch.contiguous_format
    x = torch.empty(size, dtype=grad.dtype, device=grad.device, memory_format=layout)
    result: Tensor = backward(grad, x, kernel, stride, padding, ones, ceil_mode, indices)
    return result


def keep_positions(joint: torch.fx.GraphModule) -> None:
    """Rewrite a graph; see the module's docstring."""
    for dims, (pool, backward) in _POOLS.items():
        for node in joint.graph.find_nodes(op="call_function", target=pool.default):
            _rewrite(joint.graph, node, dims, backward.default)


def _rewrite(graph: torch.fx.Graph, node: torch.fx.Node, dims: int, backward: Any) -> None:
    x, options = node.args[0], _options(dims, *node.args[1:])
    value = x.meta["val"]
    indices = [user for user in node.users if user.args[1] == 1]
    gradients = [user for part in indices for user in part.users]
    if not gradients or any(user.target is not backward for user in gradients):
        return
    if not _is_written_out(value, *options):
        return
    node.target, node.args = POOL, (x, *options)
    for part in indices:
        numbers = part.meta["val"].to(torch.int8)
        part.meta = {**part.meta, "val": numbers}
    values, _ = node.meta["val"]
    node.meta = {**node.meta, "val": (values, numbers)}
    for gradient in gradients:
        result = gradient.meta["val"]
        laid_out = suggest_memory_format(result) is not torch.contiguous_format
        kernel, stride, padding, _, ceil_mode = options
        geometry = (_sizes_of(graph, x), kernel, stride, padding, ceil_mode, laid_out)
        gradient.args = (gradient.args[0], gradient.args[-1], *geometry)
        gradient.target = COLLECT


def _sizes_of(graph: torch.fx.Graph, x: torch.fx.Node) -> list[int | torch.fx.Node]:
    """The sizes of a tensor of the graph, symbolic ones as nodes."""
    sizes: list[int | torch.fx.Node] = []
    for d, extent in enumerate(x.meta["val"].shape):
        if isinstance(extent, torch.SymInt):
            with graph.inserting_after(x):
                node = graph.call_function(aten.sym_size.int, (x, d))
            node.meta["val"] = extent
            sizes.append(node)
        else:
            sizes.append(extent)
    return sizes


def _options(
    dims: int,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Any, ...]:
    parts = (kernel, stride or kernel, padding, dilation)
    spread = [list(part) * dims if len(part) == 1 else list(part) for part in parts]
    return (*spread, ceil_mode)


def _are_known(sizes: Sequence[Any]) -> bool:
    """Whether none of them depends on data."""
    return all(type(n) is int or n.node.has_hint() for n in sizes)


def _is_written_out(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> bool:
    if any(extent == 0 for extent in x.shape if type(extent) is int) or not _are_known(x.shape):
        return False
    if not x.dtype.is_floating_point or any(d != 1 for d in dilation):
        return False
    covering = math.prod(-(-k // s) for k, s in zip(kernel, stride, strict=True))
    return math.prod(kernel) <= MOST and covering <= MOST
